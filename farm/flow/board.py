"""The predictive policy: groups and devices in arrays that are kept up to date, and matched by price.

A free device takes the group that it is *relatively* best at: the cheapest seconds anywhere, in prices,
over those here (scene load included), less what a long task minds a slow device. Among near-equals (within
`Weights.window` of the best) the people's order decides: priority, share, then the shortest work or the
oldest. A device is left idle rather than made to harm: where a long task would take a multiple of its usual
time, and in the tail where better devices will be done with all that waits before it would.

A round costs what has changed, not what there is: see `docs/matching.md` for the figures.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from farm.flow.match import Assignment, Group, Room, eligible_devices, pool_rank, scratch_gib, standing
from farm.flow.predict import UseState, model_key
from farm.flow.prices import Prices, shadow_prices
from farm.flow.weights import Order, PriorityMode, Weights
from farm.model.decisions import Decision
from farm.model.ids import JobId, NodeId, StepId
from farm.model.limits import limits_needed
from farm.model.machines import Demand, Device, NodeView

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NONE: Final = -1
_NO_POOL: Final = 1 << 30
_USUAL_W: Final = 300.0
"""A device of unknown design power is taken to draw this."""
_KEYS_EVERY_S: Final = 2.0
_FEW: Final = 6
"""Up to so many places each is looked up by itself; more are served from a sorted list."""
_PROBE_SD: Final = 0.6
"""A step of which a prediction doubts more than this is new: its first tasks probe it."""
_TAIL_SLACK_S: Final = 2.0
_BETTER: Final = 0.95
_UPPER_Z: Final = 1.2816
DECISIONS_KEPT: Final = 20_000


GroupKey = tuple[StepId, frozenset[NodeId]]
"""A step's tasks that avoid other nodes are another group."""


def group_key(group: Group) -> GroupKey:
    return group.step_id, group.avoid


class RunTimes(Protocol):
    """What the board asks of a run-time model; `predict.RunTimeModel` is one."""

    steps: dict[str, int]
    models: dict[str, int]
    median_s: Floats
    sd: Floats

    def refresh(self) -> None: ...

    def load_s(self, row: int) -> tuple[float, float]: ...

    def node_factor(self, node: str) -> float: ...


@dataclass(slots=True)
class _Place:
    """A device of a node. Its number is its index in the board's arrays."""

    node_id: NodeId
    device: Device
    model: int
    kind: int
    """Places of one kind refuse the same demands for good."""


class Board:
    """Groups, devices and prices of the farm now. One owner; no I/O."""

    def __init__(
        self,
        model: RunTimes,
        *,
        weights: Weights | None = None,
        shares: Mapping[str, float] | None = None,
        project_shares: Mapping[str, float] | None = None,
        limits: Mapping[str, int] | None = None,
        explain: bool = True,
    ) -> None:
        self.model = model
        self.weights = weights or Weights()
        self.period = ""
        self._shares = dict(shares or {})
        self._project_shares = dict(project_shares or {})
        self._limits = dict(limits or {})
        self._limits_used: dict[str, int] = {}
        self._explain = explain
        self.decisions: OrderedDict[tuple[StepId, NodeId, str], Decision] = OrderedDict()
        # groups
        self._rows: dict[GroupKey, int] = {}
        self._rows_of_step: dict[StepId, list[int]] = {}
        self._groups: list[Group | None] = []
        self._free_rows: list[int] = []
        size = 64
        self._ready: Ints = np.zeros(size, np.int64)
        self._left: Ints = np.zeros(size, np.int64)
        self._open: npt.NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._step: Ints = np.zeros(size, np.int64)
        self._demand: Ints = np.zeros(size, np.int64)
        self._user: Ints = np.zeros(size, np.int64)
        """The account that the group's use is charged to."""
        self._turn: Floats = np.zeros(size)
        """What its job has had, in price units over its priority: the least is next, where that is a rate."""
        self._job_number: Ints = np.zeros(size, np.int64)
        self._priority: Floats = np.zeros(size)
        self._submitted: Floats = np.zeros(size)
        self._served: Floats = np.zeros(size)
        self._best: Floats = np.ones(size)
        self._mean_s: Floats = np.ones(size)
        self._tier: Ints = np.zeros(size, np.int64)
        self._rank: Ints = np.zeros(size, np.int64)
        """Place in the people's order, apart from priority and share."""
        self._is_known: npt.NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._running: Ints = np.zeros(size, np.int64)
        self._advantage: Floats = np.full((4, size), -np.inf)
        """By device model and group; -inf: not there."""
        self._offered: Floats = np.full((4, size), -np.inf)
        """The same while one more task may start, limits of the farm apart; else -inf."""
        self._keyed_at = -math.inf
        self._jobs: dict[JobId, int] = {}
        """Live attempts, of jobs on the board."""
        self._rows_of_job: dict[JobId, list[int]] = {}
        self._limited: dict[int, tuple[tuple[str, int], ...]] = {}
        self._rows_needing: dict[tuple[tuple[str, int], ...], dict[int, None]] = {}
        """The groups by what a task of theirs takes of which limits."""
        self._room_for: dict[tuple[tuple[str, int], ...], bool] = {}
        self._are_limits_settled = True
        self._limited_out: Floats = np.zeros(size)
        """0, or -inf while the farm has no more of what the group's tasks are limited by."""
        self._may: npt.NDArray[np.bool_] = np.zeros(size, np.bool_)
        """Whether one more task may start, limits of the farm apart."""
        self._learnt: set[int] = set()
        self._probing: set[int] = set()
        """Groups that are held back until the first of their tasks have taught something."""
        self._probed_on: dict[int, set[int]] = {}
        """The device models on which a group that nothing is known of has started tasks."""
        self._is_probing_free = False
        # demands
        self._demands: dict[Demand, int] = {}
        self._demand_list: list[Demand] = []
        # devices
        self._kinds: dict[Any, int] = {}
        self._kind_nodes: list[tuple[NodeView, int]] = []
        """An example of each kind: a node, and the device's index there."""
        self._kind_model: list[int] = []
        self._kind_free: list[dict[int, None]] = []
        self._fits: list[npt.NDArray[np.bool_]] = []
        """By kind and demand."""
        self._pool_ranks: list[Ints | None] = []
        """By kind and demand: which of the node's pools it is for; None where all are of one."""
        self._barred: list[Floats] = []
        """By kind and group: 0, or -inf when the kind refuses the group's demand for good."""
        self._able_of: npt.NDArray[np.bool_] = np.zeros((0, 0), np.bool_)
        """By demand and device model: whether some place of the model fits for good."""
        self._able_kinds = 0
        self._rooms: dict[NodeId, Room] = {}
        self._places_of: dict[NodeId, list[int]] = {}
        self._capabilities: dict[NodeId, Any] = {}
        self._started_on: set[NodeId] = set()
        self._places: list[_Place] = []
        self._free_ats: list[int] = []
        """Indexes in `_places` of devices that are gone."""
        self._place_model: Ints = np.zeros(size, np.int64)
        self._place_node_factor: Floats = np.ones(size)
        self._place_health: Floats = np.ones(size)
        self._place_until: Floats = np.zeros(size)
        """Until when it is busy by prediction; 0: free."""
        self._place_since: Floats = np.zeros(size)
        self._place_accepts: npt.NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._place_last: Ints = np.full(size, _NONE)
        self._place_kinds: Ints = np.zeros(size, np.int64)
        self._model_names: list[str] = []
        self._tdp_w = np.zeros(4)
        """Design power of each device model; 0: not known."""
        self._devices = np.zeros(4)
        """Slots of each device model on nodes that take work."""
        # prices and shares
        self.prices: Prices | None = None
        self._price: Floats = np.ones(4)
        self._priced_at = -math.inf
        self._is_stale = True
        self._mean_task_s = 60.0
        self._accounts: dict[tuple[str, str], int] = {}
        """By project and user."""
        self._projects: dict[str, int] = {}
        self._project_of: Ints = np.zeros(16, np.int64)
        """Of each account."""
        self._project_use: Floats = np.zeros(16)
        """Of each project, in price units over its share, decayed."""
        self._job_numbers: dict[JobId, int] = {}
        self._next_job = 0
        self._turn_floor = 0.0
        """The turn of the job that started last: those that come later have had theirs until then."""
        self._use: Floats = np.zeros(16)
        """Of each account, in price units over the user's share, decayed."""
        self._decayed_at: float | None = None
        self.waiting = 0
        """Ready tasks of all groups."""
        self.urgent = 0
        """Groups whose priority matching does not override."""

    # --- groups -----------------------------------------------------------------------------------

    def put_group(self, group: Group, now: float) -> None:
        """A group that is new, or has changed. Its step must be in the model."""
        key = group_key(group)
        row = self._rows.get(key)
        if row is None:
            row = self._new_row()
            self._rows[key] = row
            self._rows_of_step.setdefault(group.step_id, []).append(row)
            self._join_turns(row, group.job_id)
            self._rows_of_job.setdefault(group.job_id, []).append(row)
            self._served[row] = max(now, group.submitted_at)
            self._ready[row] = self._running[row] = 0
            self._is_known[row] = False
            self._is_stale = True
            self._keyed_at = -math.inf
            old = None
        else:
            old = self._groups[row]
        self._groups[row] = group
        self.waiting += group.ready - int(self._ready[row])
        self._ready[row] = group.ready
        self._running[row] = group.running
        self._left[row] = group.ready + group.running
        self._jobs[group.job_id] = group.job_running
        self.urgent += (group.priority >= self.weights.urgent_from) - (
            old is not None and old.priority >= self.weights.urgent_from
        )
        self._priority[row] = group.priority
        self._submitted[row] = group.submitted_at
        if (
            old is None
            or old.demand != group.demand
            or old.user != group.user
            or old.project != group.project
            or old.priority != group.priority
            or old.takes != group.takes
        ):
            self._step[row] = self.model.steps[str(group.step_id)]
            self._demand[row] = self._demand_at(group.demand)
            self._user[row] = self._account_at(group.project, group.user)
            limited = limits_needed(group.demand.amounts) if group.takes is None else group.takes
            if limited:
                self._limited[row] = limited
            else:
                self._limited.pop(row, None)
            for kind, fits in enumerate(self._fits):
                self._barred[kind][row] = 0.0 if fits[self._demand[row]] else -math.inf
            self._limit_rows_changed(row, limited)
            self._learnt.add(row)
            self._keyed_at = -math.inf
        self._reopen(row)

    def drop_group(self, key: GroupKey) -> None:
        """It has nothing left to start."""
        row = self._rows.pop(key)
        self._rows_of_step[key[0]].remove(row)
        if not self._rows_of_step[key[0]]:
            del self._rows_of_step[key[0]]
        group = self._groups[row]
        assert group is not None
        self.waiting -= int(self._ready[row])
        self.urgent -= group.priority >= self.weights.urgent_from
        self._ready[row] = 0
        self._open[row] = False
        self._probing.discard(row)
        self._probed_on.pop(row, None)
        self._groups[row] = None
        self._limited.pop(row, None)
        rows = self._rows_of_job[group.job_id]
        rows.remove(row)
        if not rows:
            del self._rows_of_job[group.job_id]
            self._jobs.pop(group.job_id, None)
            del self._job_numbers[group.job_id]
        self._advantage[:, row] = self._offered[:, row] = -np.inf
        self._limit_rows_changed(row, ())
        self._free_rows.append(row)
        last = self._place_last
        last[last == row] = _NONE
        self._is_stale = True

    def learned(self, step_id: StepId) -> None:
        """The model has changed for this step: its group is scored anew with the next round."""
        self._learnt.update(self._rows_of_step.get(step_id, ()))

    def _catch_up(self) -> None:
        """Score the groups of steps that have learnt; together is cheaper than apart."""
        if not self._learnt:
            return
        self.model.refresh()
        rows = sorted(row for row in self._learnt if self._groups[row] is not None)
        self._learnt.clear()
        if rows:
            self._rescore(np.array(rows))
            for row in rows:
                self._reopen(row)

    def _row_of(self, step_id: StepId | None) -> int:
        """The first of a step's groups."""
        rows = self._rows_of_step.get(step_id) if step_id is not None else None
        return rows[0] if rows else _NONE

    def groups(self) -> Iterable[GroupKey]:
        return self._rows.keys()

    def ready(self, key: GroupKey) -> int:
        return int(self._ready[self._rows[key]])

    def free_places(self) -> list[tuple[NodeId, str]]:
        """Devices with a free slot on nodes that take work."""
        found = [self._places[at] for free in self._kind_free for at in free]
        return sorted((place.node_id, place.device.id) for place in found)

    def add_ready(self, step_id: StepId, count: int) -> None:
        """Tasks that came back (or were taken elsewhere, when negative)."""
        row = self._rows_of_step[step_id][0]
        self._ready[row] += count
        self.waiting += count
        self._reopen(row)

    def _new_row(self) -> int:
        if self._free_rows:
            return self._free_rows.pop()
        row = len(self._groups)
        self._groups.append(None)
        if row == len(self._ready):
            for name in (
                "_ready", "_left", "_open", "_step", "_demand", "_user", "_priority", "_submitted", "_served",
                "_turn", "_job_number",
                "_best", "_mean_s", "_tier", "_rank", "_is_known", "_running", "_may", "_limited_out",
            ):  # fmt: skip
                value = getattr(self, name)
                setattr(self, name, np.concatenate([value, np.zeros_like(value)]))
            more = np.full_like(self._advantage, -np.inf)
            self._advantage = np.concatenate([self._advantage, more], axis=1)
            self._offered = np.concatenate([self._offered, more], axis=1)
            self._barred = [np.concatenate([each, np.zeros_like(each)]) for each in self._barred]
        return row

    def _demand_at(self, demand: Demand) -> int:
        demand = replace(demand, vram_seen_mib=0)  # what was seen refuses nothing for good
        at = self._demands.get(demand)
        if at is None:
            at = len(self._demand_list)
            self._demands[demand] = at
            self._demand_list.append(demand)
            for kind in range(len(self._fits)):
                if at == len(self._fits[kind]):
                    self._fits[kind] = np.concatenate([self._fits[kind], np.zeros_like(self._fits[kind])])
                self._fits[kind][at] = self._kind_fits(kind, demand)
                self._pool_ranks[kind] = self._ranks_of_kind(kind)
        return at

    def _account_at(self, project: str, user: str) -> int:
        at = self._accounts.get((project, user))
        if at is None:
            at = self._accounts[project, user] = len(self._accounts)
            if at == len(self._use):
                self._use = np.concatenate([self._use, np.zeros_like(self._use)])
                self._project_of = np.concatenate([self._project_of, np.zeros_like(self._project_of)])
            of = self._projects.setdefault(project, len(self._projects))
            if of == len(self._project_use):
                self._project_use = np.concatenate([self._project_use, np.zeros_like(self._project_use)])
            self._project_of[at] = of
        return at

    def _join_turns(self, row: int, job_id: JobId) -> None:
        """Where a new group's job stands if priority is a rate: as its other groups, or as if it came now."""
        known = self._job_numbers.get(job_id)
        if known is None:
            known = self._job_numbers[job_id] = self._next_job
            self._next_job += 1
            self._turn[row] = self._turn_floor
        else:
            self._turn[row] = self._turn[self._rows_of_job[job_id][0]]
        self._job_number[row] = known

    def _reopen(self, row: int) -> None:
        """Whether one more of the group's tasks may start, as far as counts say."""
        group = self._groups[row]
        if group is None or self._ready[row] <= 0:
            may = False
        else:
            may = group.max_running is None or self._jobs[group.job_id] < group.max_running
            is_probed = may and not self._is_known[row] and self._running[row] >= self.weights.probe_tasks
            if is_probed:
                self._probing.add(row)
                may = self._is_probing_free
            else:
                self._probing.discard(row)
        self._offered[:, row] = self._advantage[:, row] if may else -np.inf
        if may and not self._is_known[row] and not self._is_probing_free and row in self._probed_on:
            # Contrast tells more: each probe on another device model.
            self._offered[list(self._probed_on[row]), row] = -np.inf
        self._may[row] = may
        self._open[row] = may and (row not in self._limited or self._room_for[self._limited[row]])

    # --- devices ----------------------------------------------------------------------------------

    def put_node(self, view: NodeView, now: float) -> None:
        """A node that is new, or has changed. What its attempts hold is read from `view.uses`."""
        known = self._capabilities.get(view.id)
        if known is not view.capabilities and known != view.capabilities:
            if known is not None:
                self.drop_node(view.id)
            self._capabilities[view.id] = view.capabilities
            self._places_of[view.id] = [
                self._new_place(view, at, device)
                for at, device in enumerate(view.capabilities.devices)
                if device.slots > 0
            ]
            self._is_stale = True
        room = self._rooms[view.id] = Room.of(view)
        factor = self.model.node_factor(view.id)
        health = {load.device_id: min(max(load.health, 0.05), 1.0) for load in view.loads}
        for at in self._places_of[view.id]:
            place = self._places[at]
            self._place_health[at] = health.get(place.device.id, 1.0)
            if self._place_accepts[at] != view.accepts_work:
                self._devices[place.model] += place.device.slots * (1 if view.accepts_work else -1)
                self._place_accepts[at] = view.accepts_work
            self._place_node_factor[at] = factor / self._place_health[at]
            self._set_free(at, room)
        self._started_on.discard(view.id)
        self._follow_uses(view)

    def _follow_uses(self, view: NodeView) -> None:
        """Until when each device is busy, from the attempts that the node has."""
        held = {
            device_id: use
            for use in view.uses
            if use.step_id is not None
            for device_id in use.device_id.split(",")
        }
        for at in self._places_of[view.id]:
            use = held.get(self._places[at].device.id)
            if use is None:
                self._place_until[at] = 0.0
            elif self._place_until[at] == 0.0 or self._place_since[at] != use.since:
                row = self._row_of(use.step_id)
                self._set_busy(at, row, use.since)

    def has_started_on(self, node_id: NodeId) -> bool:
        """Whether rounds gave the node tasks since it was put last."""
        return node_id in self._started_on

    def set_free(self, free: Mapping[str, int]) -> None:
        """How much is left of each shared count, such as a limit."""
        used = {name: count for name, count in self._limits_used.items() if count}
        if used or self._limits != free:
            self._limits, self._limits_used = dict(free), {}
            self._are_limits_settled = False

    def drop_node(self, node_id: NodeId) -> None:
        for at in self._places_of.pop(node_id):
            place = self._places[at]
            if self._place_accepts[at]:
                self._devices[place.model] -= place.device.slots
                self._place_accepts[at] = False
            self._kind_free[place.kind].pop(at, None)
            self._place_last[at] = _NONE
            self._place_until[at] = self._place_since[at] = 0.0
            self._place_health[at] = 1.0
            self._free_ats.append(at)
        self._rooms.pop(node_id, None)
        del self._capabilities[node_id]
        self._is_stale = True

    def busy(self, node_id: NodeId, device_id: str, step_id: StepId, since: float) -> None:
        """An attempt of the step runs there: for affinity, and for when the device will be free."""
        row = self._row_of(step_id)
        for at in self._places_of.get(node_id, ()):
            if self._places[at].device.id == device_id:
                self._set_busy(at, row, since)

    def copied(self, node_id: NodeId, device_id: str, step_id: StepId, now: float) -> None:
        """A second copy of a running task has started there: it takes room, but is none of those waiting."""
        row = self._rows_of_step[step_id][0]
        group = self._groups[row]
        assert group is not None
        room = self._rooms[node_id]
        for at in self._places_of[node_id]:
            place = self._places[at]
            if place.device.id == device_id:
                room.take(group.demand, (place.device,))
                self._set_busy(at, row, now)
                self._set_free(at, room)
        self._running[row] += 1
        self._jobs[group.job_id] += 1
        for name, needed in self._limited.get(row, ()):
            self._use_limit(name, needed)

    def ended(self, node_id: NodeId, device_id: str, demand: Demand, step_id: StepId, job_id: JobId) -> None:
        """An attempt has ended there, well or not. The board gives its room back."""
        room = self._rooms.get(node_id)
        row = self._row_of(step_id)
        if job_id in self._jobs:
            was_full = self._jobs[job_id]
            self._jobs[job_id] = max(0, was_full - 1)
        if row != _NONE:
            self._running[row] = max(0, int(self._running[row]) - 1)
            for name, needed in self._limited.get(row, ()):
                self._use_limit(name, -needed)
            self._left[row] = self._ready[row] + self._running[row]
        for other in self._rows_of_job.get(job_id, ()):
            self._reopen(other)
        if room is None:
            return
        ids = device_id.split(",")
        room.give_back(demand, ids)
        for at in self._places_of[node_id]:
            if self._places[at].device.id in ids:
                self._place_until[at] = 0.0
            self._set_free(at, room)

    def node_is(self, node_id: NodeId, *, accepts: bool) -> None:
        """It takes work, or does not, from now on."""
        for at in self._places_of[node_id]:
            place = self._places[at]
            if self._place_accepts[at] != accepts:
                self._devices[place.model] += place.device.slots * (1 if accepts else -1)
                self._place_accepts[at] = accepts
            self._set_free(at, self._rooms[node_id])

    def cooled(self, node_id: NodeId) -> None:
        """What its devices had loaded is gone."""
        for at in self._places_of[node_id]:
            self._place_last[at] = _NONE

    def _new_place(self, view: NodeView, index: int, device: Device) -> int:
        name = model_key(device)
        model = self.model.models[name]
        while model >= len(self._devices):
            self._devices = np.concatenate([self._devices, np.zeros_like(self._devices)])
            self._tdp_w = np.concatenate([self._tdp_w, np.zeros_like(self._tdp_w)])
            self._price = np.concatenate([self._price, np.full_like(self._price, self._price.mean())])
            self._advantage = np.concatenate([self._advantage, np.full_like(self._advantage, -np.inf)])
            self._offered = np.concatenate([self._offered, np.full_like(self._offered, -np.inf)])
        while len(self._model_names) <= model:
            self._model_names.append("")
        self._model_names[model] = name
        self._tdp_w[model] = device.tdp_w or 0.0
        view = _coarse(view)
        key = (_kind_key(view), index)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = len(self._kind_nodes)
            self._learnt.update(self._rows.values())
            self._kind_nodes.append((replace(view, uses=(), accepts_work=True), index))
            self._kind_model.append(model)
            self._kind_free.append({})
            fits = np.zeros(max(8, 2 * len(self._demand_list)), np.bool_)
            self._fits.append(fits)
            for at, demand in enumerate(self._demand_list):
                fits[at] = self._kind_fits(kind, demand)
            self._pool_ranks.append(self._ranks_of_kind(kind))
            self._barred.append(np.where(fits[self._demand], 0.0, -np.inf))
        place = _Place(node_id=view.id, device=device, model=model, kind=kind)
        if self._free_ats:
            at = self._free_ats.pop()
            self._places[at] = place
        else:
            at = len(self._places)
            self._places.append(place)
        if at == len(self._place_model):
            for array in (
                "_place_model", "_place_node_factor", "_place_until", "_place_since", "_place_accepts",
                "_place_last", "_place_health", "_place_kinds",
            ):  # fmt: skip
                value = getattr(self, array)
                setattr(self, array, np.concatenate([value, np.zeros_like(value)]))
        self._place_model[at] = model
        self._place_kinds[at] = kind
        self._place_accepts[at] = False
        self._place_last[at] = _NONE
        self._place_health[at] = 1.0
        return at

    def _ranks_of_kind(self, kind: int) -> Ints | None:
        has = self._kind_nodes[kind][0].capabilities
        if len(has.pools) < 2 or all(demand.pool is None for demand in self._demand_list):
            return None
        return np.array([pool_rank(demand, has) for demand in self._demand_list], np.int64)

    def _kind_fits(self, kind: int, demand: Demand) -> bool:
        view, index = self._kind_nodes[kind]
        device = view.capabilities.devices[index]
        if demand.gpus > 1 or next(standing(demand, view), None) is not None:
            return False
        return device in eligible_devices(demand, view)

    def _set_free(self, at: int, room: Room) -> None:
        place = self._places[at]
        if self._place_accepts[at] and room.slots[place.device.id] > 0:
            self._kind_free[place.kind][at] = None
        else:
            self._kind_free[place.kind].pop(at, None)

    def _set_busy(self, at: int, row: int, since: float) -> None:
        self._place_since[at] = since
        predicted = 60.0
        if row != _NONE:
            median = float(self.model.median_s[self._step[row], self._place_model[at]])
            cold, warm = self.model.load_s(int(self._step[row]))
            load = warm if self._place_last[at] == row else cold
            predicted = median * float(self._place_node_factor[at]) + load
        self._place_until[at] = since + predicted
        self._place_last[at] = row

    def _use_limit(self, name: str, change: int) -> None:
        self._limits_used[name] = self._limits_used.get(name, 0) + change
        self._are_limits_settled = False

    def _settle_limits(self) -> None:
        """Open and close the groups whose limits have room again, or no more: all of a kind at once."""
        if self._are_limits_settled:
            return
        self._are_limits_settled = True
        for needs, rows in self._rows_needing.items():
            has_room = self._has_room(needs)
            if has_room != self._room_for[needs]:
                self._room_for[needs] = has_room
                at = np.fromiter(rows, np.int64, len(rows))
                self._open[at] = self._may[at] & has_room
                self._limited_out[at] = 0.0 if has_room else -np.inf

    def _has_room(self, needs: tuple[tuple[str, int], ...]) -> bool:
        return all(
            name not in self._limits or self._limits_used.get(name, 0) + needed <= self._limits[name]
            for name, needed in needs
        )

    def _limit_rows_changed(self, row: int, needs: tuple[tuple[str, int], ...]) -> None:
        for rows in self._rows_needing.values():
            rows.pop(row, None)
        self._limited_out[row] = 0.0
        if needs:
            self._rows_needing.setdefault(needs, {})[row] = None
            has_room = self._room_for.setdefault(needs, self._has_room(needs))
            self._limited_out[row] = 0.0 if has_room else -np.inf

    # --- prices and scores ------------------------------------------------------------------------

    def reprice(self, now: float, *, force: bool = False) -> bool:
        """Set the prices anew if it is time; off the hot path. Returns whether it did."""
        due_s = 4.0 if self._is_stale else self.weights.reprice_s
        if not force and now - self._priced_at < due_s:
            return False
        self._decay(now)
        self._catch_up()
        rows = np.flatnonzero(self._ready[: len(self._groups)] > 0)
        n = len(self._model_names)
        if n == 0 or not len(rows):
            return False
        seconds = self.model.median_s[self._step[rows], :n].copy()
        seconds[~self._able(rows)] = np.inf
        start = self._price[:n] if self.prices is not None else None
        found = shadow_prices(
            seconds,
            self._ready[rows].astype(float),
            self._devices[:n],
            start=start,
            rounds=250 if start is None else 40,
        )
        if found.bound_s > 0:
            new = np.maximum(found.per_second, found.per_second.max() * 1e-3)
            if self.prices is None:
                self._price[:n] = new
            else:
                self._price[:n] = np.sqrt(np.maximum(self._price[:n], 1e-9) * new)
                self._price[:n] = np.maximum(self._price[:n], self._price[:n].max() * 1e-3)
            self.prices = found
        self._priced_at = now
        self._is_stale = False
        for place in range(len(self._places)):
            factor = self.model.node_factor(self._places[place].node_id)
            self._place_node_factor[place] = factor / self._place_health[place]
        live = np.array(sorted(self._rows.values()), np.int64)
        self._rescore(live)
        tasks = self._ready[live].astype(float)
        if tasks.sum() > 0:
            known = np.isfinite(self._mean_s[live])
            total = float(tasks[known].sum())
            if total > 0:
                self._mean_task_s = float((self._mean_s[live][known] * tasks[known]).sum()) / total
        self._rescore(live)
        for row in live.tolist():
            self._reopen(row)
        self._keyed_at = -math.inf
        return True

    def price(self, model: str) -> float:
        """Of a second of the device model, in parts of the whole farm's."""
        return float(self._price[self.model.models[model]])

    def prices_now(self) -> tuple[dict[str, list[float]], float]:
        """(device model -> slots that take work and price, how long the waiting work takes at least)."""
        if self.prices is None:
            return {}, 0.0
        told = {
            name: [float(self._devices[at]), float(f"{self._price[at]:.6g}")]
            for at, name in enumerate(self._model_names)
            if name and self._devices[at] > 0
        }
        return told, self.prices.bound_s if self.waiting else 0.0

    def _able(self, rows: Ints) -> npt.NDArray[np.bool_]:
        """Which device models can ever take each group."""
        n = len(self._model_names)
        demands = self._demand[rows]
        if len(self._able_of) != len(self._demand_list) or self._able_kinds != len(self._kind_model):
            able = np.zeros((len(self._demand_list), n), np.bool_)
            for kind, model in enumerate(self._kind_model):
                able[:, model] |= self._fits[kind][: len(self._demand_list)]
            self._able_of, self._able_kinds = able, len(self._kind_model)
        found: npt.NDArray[np.bool_] = self._able_of[demands] & (self._devices[:n] > 0)
        return found

    def _rescore(self, rows: Ints) -> None:
        n = len(self._model_names)
        if n == 0 or not len(rows):
            return
        weights = self.weights
        steps = self._step[rows]
        able = self._able(rows)
        doubted = np.exp(np.minimum(weights.caution * self.model.sd[steps, :n] ** 2, 1.0))
        median = np.where(able, self.model.median_s[steps, :n] * doubted, np.inf)
        price, devices = self._price[:n], self._devices[:n]
        best = (median * price).min(axis=1)
        loads = np.array([self.model.load_s(int(step))[0] for step in steps])
        with np.errstate(divide="ignore", invalid="ignore"):
            number = np.where(able, devices, 0.0)
            mean = number.sum(axis=1) / np.where(able, devices / median, 0.0).sum(axis=1)
            advantage = np.log(best[:, None] / (price * (median + weights.load_weight * loads[:, None])))
            longer = np.maximum(median - mean[:, None], 0.0)
            # The last tasks of a step decide when it is done: waiting for a better device costs the job.
            last = 1 - weights.finish_ease / np.maximum(self._ready[rows], 1)
            advantage -= weights.slow_penalty * last[:, None] * longer / self._mean_task_s
            if weights.energy > 0 and self._tdp_w.any():
                advantage -= weights.energy * self._excess(median)
            # Where the doubt is large, so is the harm that a slow device may do.
            doubt = np.exp(np.minimum(_UPPER_Z * self.model.sd[steps, :n], 1.5) - 0.26)
            cap = self._cap()
            waited = self._served[rows] + weights.cap_patience_s
            slow = (median > cap * mean[:, None]) & (median * np.maximum(doubt, 1.0) > self._mean_task_s)
            slow &= (waited > self._priced_at)[:, None]
        advantage[~able | slow] = -np.inf
        self._advantage[:n, rows] = advantage.T
        self._is_known[rows] = self.model.sd[steps, :n].min(axis=1) < _PROBE_SD
        self._best[rows] = np.where(np.isfinite(best), best, 0.0)
        self._mean_s[rows] = mean

    def _worth(self, kind: int) -> float:
        """What a second of a kind's best free device is worth: of throttled ones what is left of them, and
        of equals that is worth more which draws less."""
        model = self._kind_model[kind]
        worth = float(self._price[model]) * self._best_health(kind)
        watts = float(self._tdp_w[model])
        return worth * (watts / _USUAL_W) ** -self.weights.energy if watts > 0 else worth

    def _excess(self, seconds: Floats) -> Floats:
        """log of what a task of each group draws on each device model over the least; 0 where unknown."""
        watts = self._tdp_w[: seconds.shape[1]]
        joules = np.where((watts > 0) & np.isfinite(seconds), seconds * watts, np.nan)
        least = np.where(np.isnan(joules), np.inf, joules).min(axis=1)
        excess: Floats = np.nan_to_num(np.log(joules / least[:, None]), nan=0.0)
        return excess

    def _cap(self) -> float:
        over = max(0.0, self._backlog_s() / self.weights.cap_backlog_s - 1)
        return self.weights.slow_cap * (1 + over)

    def _backlog_s(self) -> float:
        """How long the waiting work takes at least."""
        return self.prices.bound_s if self.prices is not None else 0.0

    def _rekey(self, now: float) -> None:
        """The people's order as one number for each group: the smaller, the sooner."""
        n = len(self._groups)
        weights = self.weights
        if weights.order is Order.SUBMITTED:
            base = self._submitted[:n]
        else:
            waited = np.maximum(now - self._submitted[:n], 0.0)
            base = self._best[:n] * self._left[:n] * np.exp2(-waited / weights.age_s)
        if self._backlog_s() > weights.cap_backlog_s:
            # What is learnt soon helps all the tasks after it.
            is_probe = ~self._is_known[:n] & (self._running[:n] < weights.probe_tasks)
            base = np.where(is_probe, base - np.ptp(base) - 1.0, base)
        if weights.priority_mode is PriorityMode.RATE:
            tier = np.zeros(n, np.int64)
        else:
            tier = (200 - self._priority[:n]).astype(np.int64)
        self._tier[:n] = tier
        self._rank[np.argsort(base, kind="stable")] = np.arange(n)
        self._keyed_at = now

    def _key(self, row: int) -> tuple[int, float, float, float, int]:
        """The people's order as it is now: priority, use per share, the job's turn, then the rest."""
        account = self._user[row]
        is_fair = self.weights.fair_share
        return (
            int(self._tier[row]),
            float(self._project_use[self._project_of[account]]) if is_fair else 0.0,
            float(self._use[account]) if is_fair else 0.0,
            float(self._turn[row]) if self._takes_turns else 0.0,
            int(self._rank[row]),
        )

    @property
    def _takes_turns(self) -> bool:
        return self.weights.priority_mode is PriorityMode.RATE

    def _charge(self, row: int, group: Group, cost: float) -> None:
        """Count a start of the group: to its user, project and job."""
        account = self._user[row]
        self._use[account] += cost / self._shares.get(group.user, 1.0)
        project_share = self._project_shares.get(group.project, 1.0)
        self._project_use[self._project_of[account]] += cost / project_share
        if self._takes_turns:
            turn = float(self._turn[row])
            self._turn_floor = max(self._turn_floor, turn)
            for other in self._rows_of_job[group.job_id]:
                self._turn[other] = turn + cost / max(group.priority, 1)

    def _decay(self, now: float) -> None:
        if self._decayed_at is not None:
            less = 0.5 ** (max(now - self._decayed_at, 0.0) / self.weights.share_half_life_s)
            self._use *= less
            self._project_use *= less
        self._decayed_at = now

    def use_now(self) -> UseState:
        """What everybody has used, for the next scheduler."""
        names = {at: project for project, at in self._projects.items()}
        return UseState(
            at=self._decayed_at,
            projects={name: float(f"{self._project_use[at]:.6g}") for at, name in names.items()},
            users=[
                (project, user, float(f"{self._use[at]:.6g}"))
                for (project, user), at in self._accounts.items()
                if self._use[at] > 0
            ],
        )

    def set_use(self, state: UseState) -> None:
        """Go on with what another scheduler has counted."""
        for project, user, used in state.users:
            self._use[self._account_at(project, user)] = used
        for project, used in state.projects.items():
            if project in self._projects:
                self._project_use[self._projects[project]] = used
        self._decayed_at = state.at

    # --- a round ----------------------------------------------------------------------------------

    def round(self, now: float, limit: int) -> tuple[Assignment, ...]:
        """Start at most `limit` tasks on free devices. The board counts them as started."""
        if self.waiting <= 0 or limit <= 0:
            return ()
        self._catch_up()
        self._settle_limits()
        if now - self._keyed_at > _KEYS_EVERY_S:
            self._rekey(now)
        taken: dict[tuple[StepId, NodeId, str], int] = {}
        left = limit
        in_tail = self.weights.idle_in_tail and self.waiting < int(self._devices.sum())
        left -= self._serve_all(now, left, in_tail, taken)
        held = {*self._probing, *self._probed_on}
        if left > 0 and held and any(self._kind_free):
            # Better to learn from many at once than to leave devices idle.
            self._is_probing_free = True
            for row in held:
                self._reopen(row)
            self._serve_all(now, left, in_tail, taken)
            self._is_probing_free = False
            for row in held:
                self._reopen(row)
        return tuple(
            Assignment(
                step_id=step_id,
                job_id=self._job_of(step_id),
                node_id=node_id,
                device_id=device_id,
                count=count,
            )
            for (step_id, node_id, device_id), count in taken.items()
        )

    def _serve_all(
        self, now: float, left: int, in_tail: bool, taken: dict[tuple[StepId, NodeId, str], int]
    ) -> int:
        given = 0
        kinds = [kind for kind, free in enumerate(self._kind_free) if free]
        kinds.sort(key=lambda kind: (-self._worth(kind), kind))
        for kind in kinds:
            if given >= left:
                break
            given += self._serve(kind, now, left - given, in_tail, taken)
        return given

    def _best_health(self, kind: int) -> float:
        """Of the kind's free places."""
        return max(float(self._place_health[at]) for at in self._kind_free[kind])

    def _job_of(self, step_id: StepId) -> JobId:
        group = self._groups[self._rows_of_step[step_id][0]]
        assert group is not None
        return group.job_id

    def _serve(
        self, kind: int, now: float, left: int, in_tail: bool, taken: dict[tuple[StepId, NodeId, str], int]
    ) -> int:
        """Give the free places of one kind their tasks; returns how many."""
        model = self._kind_model[kind]
        given = 0
        window = _Window(self, kind, model, wanted=min(len(self._kind_free[kind]), left))
        places = list(self._kind_free[kind])
        if len(places) > 1:
            places.sort(key=lambda at: (self._place_node_factor[at], self._places[at].node_id, at))
        for at in places:
            place = self._places[at]
            room = self._rooms[place.node_id]
            while given < left and room.slots[place.device.id] > 0:
                row = window.choose(at, room, now if in_tail else None)
                if row is None:
                    break
                group = self._groups[row]
                assert group is not None
                slot = (group.step_id, place.node_id, place.device.id)
                if self._explain and slot not in taken:
                    self._remember(at, row, group, window)
                self._start(at, row, group, room, now)
                taken[slot] = taken.get(slot, 0) + 1
                given += 1
            if given >= left or window.is_empty:
                break
        return given

    def _start(self, at: int, row: int, group: Group, room: Room, now: float) -> None:
        place = self._places[at]
        room.take(group.demand, (place.device,))
        self._started_on.add(place.node_id)
        self._set_busy(at, row, now)
        if self._is_known[row]:
            self._probed_on.pop(row, None)
        else:
            self._probed_on.setdefault(row, set()).add(place.model)
        self._ready[row] -= 1
        self._running[row] += 1
        self.waiting -= 1
        self._served[row] = now
        self._jobs[group.job_id] += 1
        if group.max_running is not None:
            for other in self._rows_of_job[group.job_id]:
                self._reopen(other)
        for name, needed in self._limited.get(row, ()):
            self._use_limit(name, needed)
        self._settle_limits()
        cost = float(self._price[place.model]) * (float(self._place_until[at]) - now)
        self._charge(row, group, cost)
        self._reopen(row)
        self._set_free(at, room)

    def _remember(self, at: int, row: int, group: Group, window: _Window) -> None:
        place = self._places[at]
        cold, warm = self.model.load_s(int(self._step[row]))
        load = warm if self._place_last[at] == row else cold
        step = int(self._step[row])
        render_s = float(self.model.median_s[step, place.model]) * float(self._place_node_factor[at])
        sd = float(self.model.sd[step, place.model])
        next_row = window.runner_up(row)
        runner_up = self._groups[next_row] if next_row is not None else None
        decision = Decision(
            model=self._model_names[place.model],
            predicted_s=_shown(render_s + load),
            upper_s=_shown(render_s * math.exp(_UPPER_Z * sd) + load),
            load_s=_shown(load),
            price=_shown(float(self._price[place.model])),
            advantage=_shown(math.exp(min(self._advantage_of(row, at), 0.0))),
            best_advantage=_shown(math.exp(min(window.most, 0.0))),
            near_equals=window.near_equals,
            runner_up=runner_up.step_id if runner_up is not None else None,
            runner_up_advantage=(
                _shown(math.exp(min(float(self._advantage[place.model, next_row]), 0.0)))
                if next_row is not None
                else None
            ),
            period=self.period,
        )
        key = (group.step_id, place.node_id, place.device.id)
        self.decisions[key] = decision
        self.decisions.move_to_end(key)
        while len(self.decisions) > DECISIONS_KEPT:
            self.decisions.popitem(last=False)

    def _advantage_of(self, row: int, at: int) -> float:
        """A group's advantage on a place, its warm scene counted."""
        model = int(self._place_model[at])
        value = float(self._advantage[model, row])
        if self._place_last[at] != row or value == -math.inf:
            return value
        step = int(self._step[row])
        cold, warm = self.model.load_s(step)
        median = float(self.model.median_s[step, model])
        weight = self.weights.load_weight
        return value + math.log((median + weight * cold) / max(median + weight * warm, 1e-9))

    def _can_start(self, row: int, room: Room, device: Device) -> bool:
        group = self._groups[row]
        assert group is not None
        demand = group.demand
        if not room.holds(demand) or room.node.id in group.avoid or not room.is_free(demand, device):
            return False
        if demand.amounts:
            scratch = scratch_gib(demand)
            if scratch > 0 and (room.node.disk_free_mib or 0) < 1024 * scratch:
                return False
        return True

    def _is_worth(self, at: int, row: int, now: float) -> bool:
        """In the tail: whether the better devices would not have done all that waits before this one ends."""
        step = int(self._step[row])
        count = len(self._places)
        models = self._place_model[:count]
        median = self.model.median_s[step][models] * self._place_node_factor[:count]
        cold, warm = self.model.load_s(step)
        demand = int(self._demand[row])
        able = np.array([fits[demand] for fits in self._fits])[self._place_kinds[:count]]
        takes = median + np.where(self._place_last[:count] == row, warm, cold)
        here = float(takes[at])
        better = np.flatnonzero((takes < _BETTER * here) & self._place_accepts[:count] & able)
        group = self._groups[row]
        assert group is not None
        if group.avoid:
            shunned = [other for node in group.avoid for other in self._places_of.get(node, ())]
            better = better[~np.isin(better, shunned)]
        if not len(better):
            return True
        until = self._place_until[better]
        since = self._place_since[better]
        # Longer than predicted already: it may take as long again as it is late.
        late = np.where(until > 0, np.maximum(now - until, 0.0), 0.0)
        wait = np.where(
            until > 0, np.maximum(until - now, 0.15 * np.maximum(until - since, 0.0) + 0.5 * late), 0.0
        )
        could = np.floor(np.maximum(here - wait - _TAIL_SLACK_S, 0.0) / takes[better])
        soon = 0
        for other, tasks in zip(better.tolist(), could.tolist(), strict=True):
            if soon >= self.waiting:
                break
            place = self._places[other]
            # One that is free and cannot start it (no memory left, say) is no reason to wait.
            is_free = other in self._kind_free[place.kind]
            if not is_free or self._can_start(row, self._rooms[place.node_id], place.device):
                soon += int(tasks)
        return soon < self.waiting


def _least(rows: Ints, values: Floats) -> Ints:
    """The rows of the least value."""
    return rows[values == values.min()] if len(rows) > 1 else rows


_Entry = tuple[int, float, float, float, int, int]
"""A group's key, and its bucket."""


class _Window:
    """The near-equal groups for the places of one kind, in the people's order; renewed as they run out."""

    def __init__(self, board: Board, kind: int, model: int, *, wanted: int) -> None:
        self._board = board
        self._kind = kind
        self._model = model
        self._is_few = wanted <= _FEW
        self._slack = math.log(board.weights.window)
        self.most = -math.inf
        self.is_empty = False
        self._rows: Ints = np.zeros(0, np.int64)
        self._values: Floats = np.zeros(0)
        self._heap: list[_Entry] | None = None
        self._rank = 0
        """The first of the node's pools for which there is a group."""
        self._renew()

    @property
    def near_equals(self) -> int:
        return len(self._rows)

    def _scores(self) -> Floats:
        board = self._board
        n = len(board._groups)
        scores: Floats = board._offered[self._model, :n] + board._barred[self._kind][:n]
        if board._limited:
            scores += board._limited_out[:n]
        return scores

    def _ranks(self, scores: Floats) -> Ints | None:
        """Which of the node's pools each group is for, the first 0; None where all are of one."""
        board = self._board
        ranks = board._pool_ranks[self._kind]
        if ranks is None:
            return None
        return np.where(scores > -np.inf, ranks[board._demand[: len(scores)]], _NO_POOL)

    def _renew(self) -> None:
        self._heap = None
        self._best_two: list[int] | None = None
        self._is_used = False
        scores = self._scores()
        ranks = self._ranks(scores)
        if ranks is not None:
            # A node serves its pools in order: the next one's groups are not even compared.
            self._rank = int(ranks.min(initial=_NO_POOL))
            scores[ranks > self._rank] = -np.inf
        self.most = float(scores.max(initial=-np.inf))
        if self.most == -math.inf:
            self._rows, self.is_empty = self._rows[:0], True
            return
        board = self._board
        near = scores >= self.most + self._slack
        if board.urgent:
            near |= (board._priority[: len(scores)] >= board.weights.urgent_from) & (scores > -np.inf)
        self._rows = np.flatnonzero(near)
        self._values = scores[self._rows]

    def choose(self, at: int, room: Room, tail_now: float | None) -> int | None:
        """The group to start on the place, None: none."""
        board = self._board
        device = board._places[at].device
        last = int(board._place_last[at])
        warm = -math.inf
        if last != _NONE and board._open[last] and board._barred[self._kind][last] == 0.0:
            ranks = board._pool_ranks[self._kind]
            if ranks is None or ranks[board._demand[last]] <= self._rank:
                warm = board._advantage_of(last, at)
        row = None
        if not self.is_empty or warm > -math.inf:
            least = max(self.most, warm) + self._slack
            if warm == -math.inf or warm < least:
                last = _NONE
            row = self._first(least, room, device, last)
            if row is None and not self.is_empty:
                self._renew()
                least = max(self.most, warm) + self._slack
                row = self._first(least, room, device, last)
            if row is None:
                row = self._search(room, device)
            if row is not None and tail_now is not None and not board._is_worth(at, row, tail_now):
                row = self._search(room, device, at, tail_now)
        return row

    def _first(self, least: float, room: Room, device: Device, last: int) -> int | None:
        """The first in order that is near enough, open and has room here."""
        board = self._board
        best = self._first_of_few(least) if self._is_few else None
        if best is None or not board._can_start(best, room, device):
            best = self._first_sorted(least, room, device)
        if last == _NONE or not board._can_start(last, room, device):
            return best
        return last if best is None or board._key(last) < board._key(best) else best

    def _first_of_few(self, least: float) -> int | None:
        board = self._board
        rows = self._rows
        if len(rows) > 1:
            if least > self.most + self._slack and not board.urgent:
                rows = rows[self._values >= least]
            if self._is_used:
                rows = rows[board._open[rows]]
            self._is_used = True
            tier = board._tier[rows]
            rows = rows[tier == tier.min(initial=1 << 40)]
            if board.weights.fair_share and len(board._accounts) > 1:
                rows = _least(rows, board._project_use[board._project_of[board._user[rows]]])
                rows = _least(rows, board._use[board._user[rows]])
            if board._takes_turns:
                rows = _least(rows, board._turn[rows])
        if not len(rows):
            return None
        row = int(rows[board._rank[rows].argmin()]) if len(rows) > 1 else int(rows[0])
        return row if board._open[row] else None

    def _sort(self) -> None:
        """The rows by priority and user (or job), each in order: use moves with every start, the rest not."""
        board = self._board
        rows = self._rows
        if board._takes_turns:
            user = board._job_number[rows]
        elif board.weights.fair_share and len(board._accounts) > 1:
            user = board._user[rows]
        else:
            user = np.zeros(len(rows), np.int64)
        order = np.lexsort((board._rank[rows], user, board._tier[rows]))
        rows = rows[order]
        self._sorted = rows.tolist()
        self._sorted_values = self._values[order].tolist()
        bucket = (board._tier[rows] << 32) + user[order]
        starts = np.flatnonzero(np.diff(bucket, prepend=-1))
        self._heads = starts.tolist()
        self._ends = [*self._heads[1:], len(rows)]
        self._heap = [(*board._key(self._sorted[head]), number) for number, head in enumerate(self._heads)]
        heapq.heapify(self._heap)

    def _first_sorted(self, least: float, room: Room, device: Device) -> int | None:
        board = self._board
        if self._heap is None:
            self._sort()
        heap = self._heap
        assert heap is not None
        found: int | None = None
        skipped: list[_Entry] = []
        while heap and found is None:
            entry = heap[0]
            number = entry[-1]
            head, end = self._heads[number], self._ends[number]
            while head < end and not board._open[self._sorted[head]]:
                head += 1
            self._heads[number] = head
            if head == end:
                heapq.heappop(heap)
                continue
            now = (*board._key(self._sorted[head]), number)
            if now != entry:
                heapq.heapreplace(heap, now)
                continue
            for at in range(head, end):
                row = self._sorted[at]
                if self._sorted_values[at] < least and board._priority[row] < board.weights.urgent_from:
                    continue
                if board._open[row] and board._can_start(row, room, device):
                    found = row
                    break
            else:
                skipped.append(heapq.heappop(heap))
        for entry in skipped:
            heapq.heappush(heap, entry)
        return found

    def _search(
        self, room: Room, device: Device, at: int = _NONE, tail_now: float | None = None
    ) -> int | None:
        """Every group from the best match down: for a place that the near-equals have no use for."""
        board = self._board
        scores = self._scores()
        ranks = self._ranks(scores)
        order = np.argsort(-scores, kind="stable") if ranks is None else np.lexsort((-scores, ranks))
        for row in order.tolist():
            if scores[row] == -np.inf:
                return None
            if not board._can_start(row, room, device):
                continue
            if tail_now is not None and not board._is_worth(at, row, tail_now):
                continue
            return int(row)
        return None

    def runner_up(self, row: int) -> int | None:
        """The best match of the other near-equals."""
        if self._best_two is None:
            two = (
                np.argsort(-self._values, kind="stable")[:2]
                if len(self._values) < 64
                else np.argpartition(-self._values, 2)[:2]
            )
            self._best_two = self._rows[two].tolist()
        return next((int(other) for other in self._best_two if other != row), None)


def _shown(value: float) -> float:
    """As many digits as are worth keeping."""
    return float(f"{value:.4g}")


def _coarse(view: NodeView) -> NodeView:
    """The node with its memory as bought: equal machines report a few MiB more or less. A place's own `Room`
    knows the memory to the MiB."""
    has = view.capabilities
    return replace(view, capabilities=replace(has, memory_mib=math.ceil(has.memory_mib / 4096) * 4096))


def _kind_key(view: NodeView) -> str:
    """What decides refusals for good: all the node has, whatever its devices are called."""
    has = view.capabilities
    devices = [(d.kind, d.model, d.slots, d.vram_mib, d.vram_per_task_mib) for d in has.devices]
    return repr(
        (
            (has.os_family, has.cpu_arch, has.cpus, has.memory_mib, has.pools),
            (sorted(has.software), sorted(has.attributes.items()), sorted(has.amounts.items())),
            devices,
        )
    )
