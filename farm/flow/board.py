"""The predictive policy: groups and devices in arrays that are kept up to date, and matched by price.

A free device takes the group that it is *relatively* best at: the cheapest seconds anywhere, in prices,
over those here (scene load included), less what a long task minds a slow device. Among near-equals (within
`Weights.window` of the best) the people's order decides: priority, share, then the shortest work or the
oldest. A device is left idle rather than made to harm: where a long task would take a multiple of its usual
time, and in the tail where better devices will be done with all that waits before it would.

`waiting` has the groups, `places` the devices, `scores` what each group gains where, `window` the choice.
A round costs what has changed, not what there is: see `docs/matching.md` for the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from farm.flow.accounts import Accounts
from farm.flow.cached import Cached, Scenes
from farm.flow.counts import SharedCounts
from farm.flow.groups import Assignment, Group
from farm.flow.kinds import Kinds
from farm.flow.places import NO_ROW, Places
from farm.flow.prices import Prices, shadow_prices
from farm.flow.run_times import RunTimes, UseState
from farm.flow.scores import UPPER_Z, Farm, scores
from farm.flow.tail import Tail
from farm.flow.waiting import GroupKey, Waiting
from farm.flow.weights import Weights
from farm.flow.window import Window, advantage_at
from farm.model.decisions import Decision
from farm.model.ids import JobId, NodeId, StepId
from farm.model.machines import Demand, NodeView

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_USUAL_W: Final = 300.0
"""A device of unknown design power is taken to draw this."""
_ORDER_EVERY_S: Final = 2.0
DECISIONS_KEPT: Final = 20_000

_Slot = tuple[StepId, NodeId, str]


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
        self.period = ""
        self._explain = explain
        self._reasons: dict[_Slot, _Reason] = {}
        """Of the last decisions, the oldest first."""
        self._kinds = Kinds()
        self.scenes = Scenes()
        self._places = Places(model, self._kinds, Cached(self.scenes))
        self._accounts = Accounts(shares or {}, project_shares or {})
        self._counts = SharedCounts(limits or {})
        self._groups = Waiting(model, self._kinds, self._accounts, self._counts, weights or Weights())
        self._tail = Tail(self._groups, self._places, model)
        self._windows: list[Window] = []
        """By kind."""
        self._learnt: set[int] = set()
        """Rows of groups to be scored anew."""
        self._started_on: set[NodeId] = set()
        self._ordered_at = -math.inf
        self.prices: Prices | None = None
        self._price: Floats = np.ones(4)
        self._priced_at = -math.inf
        self._is_stale = True
        self._mean_task_s = 60.0

    @property
    def weights(self) -> Weights:
        return self._groups.weights

    @weights.setter
    def weights(self, weights: Weights) -> None:
        if weights is not self._groups.weights and weights != self._groups.weights:
            self._groups.weigh_by(weights)
            self._learnt.update(self._groups.rows().tolist())

    @property
    def waiting(self) -> int:
        """Ready tasks of all groups."""
        return self._groups.total

    # --- groups -----------------------------------------------------------------------------------

    def put_group(self, group: Group, now: float) -> None:
        """A group that is new, or has changed. Its step must be in the model."""
        if group.like:
            self.scenes.join(group.step_id, StepId(int(group.like)))
        is_new, is_other = self._groups.put(group, now)
        self._is_stale |= is_new
        if is_other:
            self._learnt.add(self._groups.row((group.step_id, group.avoid)))

    def drop_group(self, key: GroupKey) -> None:
        """It has nothing left to start."""
        self._places.forget_row(self._groups.drop(key))
        self._is_stale = True

    def learned(self, step_id: StepId) -> None:
        """The model has changed for this step: its groups are scored anew with the next round."""
        self._learnt.update(self._groups.rows_of_step(step_id))

    def groups(self) -> Iterable[GroupKey]:
        return self._groups.keys()

    def ready(self, key: GroupKey) -> int:
        return int(self._groups.ready[self._groups.row(key)])

    def running(self, step_id: StepId) -> int:
        """Attempts of the step that run by the board's count; 0 for one that is not on it."""
        return sum(int(self._groups.running[row]) for row in self._groups.rows_of_step(step_id))

    def add_ready(self, step_id: StepId, count: int) -> None:
        """Tasks that came back (or were taken elsewhere, when negative)."""
        self._groups.add_ready(self._groups.rows_of_step(step_id)[0], count)

    def _row_of(self, step_id: StepId | None) -> int | None:
        """The first of a step's groups."""
        rows = self._groups.rows_of_step(step_id) if step_id is not None else ()
        return rows[0] if rows else None

    # --- devices ----------------------------------------------------------------------------------

    def put_node(self, view: NodeView, now: float) -> None:
        """A node that is new, or has changed. What its attempts hold is read from `view.uses`."""
        kinds = len(self._kinds)
        self._is_stale |= self._places.put(view)
        if len(self._kinds) > kinds:
            self._add_kinds()
        self._started_on.discard(view.id)
        held = {
            device_id: use
            for use in view.uses
            if use.step_id is not None
            for device_id in use.device_id.split(",")
        }
        places = self._places
        for at in places.of_node[view.id]:
            use = held.get(places[at].device.id)
            if use is None or use.step_id is None:
                places.set_idle(at)
            elif places[at].step_id != use.step_id:
                self._set_busy(at, use.step_id, use.since)
            elif places.since[at] != use.since:
                places.began(at, use.since)

    def drop_node(self, node_id: NodeId) -> None:
        self._places.drop(node_id)
        self._is_stale = True

    def node_is(self, node_id: NodeId, *, accepts: bool) -> None:
        """It takes work, or does not, from now on."""
        self._places.node_is(node_id, accepts=accepts)

    def cooled(self, node_id: NodeId) -> None:
        """What its devices had loaded is gone."""
        self._places.cooled(node_id)

    def free_places(self) -> list[tuple[NodeId, str]]:
        """Devices with a free slot on nodes that take work."""
        found = [self._places[at] for free in self._places.free for at in free]
        return sorted((place.node_id, place.device.id) for place in found)

    def has_started_on(self, node_id: NodeId) -> bool:
        """Whether rounds gave the node tasks since it was put last."""
        return node_id in self._started_on

    def _add_kinds(self) -> None:
        """New kinds of places have come: what every group gains is to be seen anew."""
        models = len(self._places.model_names)
        self._groups.add_models(models)
        for _ in range(len(self._groups.barred), len(self._kinds)):
            self._groups.add_kind()
        while models > len(self._price):
            self._price = np.concatenate([self._price, np.full_like(self._price, self._price.mean())])
        self._learnt.update(self._groups.rows().tolist())

    # --- what runs where --------------------------------------------------------------------------

    def busy(self, node_id: NodeId, device_id: str, step_id: StepId, since: float) -> None:
        """An attempt of the step runs there: for affinity, and for when the device will be free."""
        at = self._places.find(node_id, device_id)
        if at is not None:
            self._set_busy(at, step_id, since)

    def copied(self, node_id: NodeId, device_id: str, step_id: StepId, now: float) -> None:
        """A second copy of a running task has started there: it takes room, but is none of those waiting."""
        row = self._groups.rows_of_step(step_id)[0]
        room = self._places.rooms[node_id]
        at = self._places.find(node_id, device_id)
        if at is not None:
            room.take(self._groups[row].demand, (self._places[at].device,))
            self._set_busy(at, step_id, now)
            self._places.note_free(at, room)
        self._groups.copied(row)

    def ended(self, node_id: NodeId, device_id: str, demand: Demand, step_id: StepId, job_id: JobId) -> None:
        """An attempt has ended there, well or not. The board gives its room back."""
        self._groups.ended(self._row_of(step_id), job_id)
        self._places.give_back(node_id, demand, device_id.split(","))

    def set_free(self, free: Mapping[str, int]) -> None:
        """How much is left of each shared count, such as a limit."""
        self._counts.set_free(free)

    def _set_busy(self, at: int, step_id: StepId, since: float) -> None:
        row = self._row_of(step_id)
        self._occupy(at, step_id, NO_ROW if row is None else row, since)

    def _occupy(self, at: int, step_id: StepId, row: int, since: float) -> None:
        self._places.set_busy(at, step_id, row, since, scenes=self.weights.cached_scenes)

    # --- prices and scores ------------------------------------------------------------------------

    def reprice(self, now: float, *, force: bool = False) -> bool:
        """Set the prices anew if it is time; off the hot path. Returns whether it did."""
        due_s = 4.0 if self._is_stale else self.weights.reprice_s
        if not force and now - self._priced_at < due_s:
            return False
        self._accounts.decay(now, self.weights.share_half_life_s)
        self._catch_up(now)
        groups = self._groups
        rows = np.flatnonzero(groups.ready[: len(groups)] > 0)
        n = len(self._places.model_names)
        if n == 0 or not len(rows):
            return False
        seconds = self.model.median_s[groups.step[rows], :n].copy()
        seconds[~self._able(rows)] = np.inf
        start = self._price[:n] if self.prices is not None else None
        found = shadow_prices(
            seconds,
            groups.ready[rows].astype(float),
            self._places.slots,
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
        self._places.refresh_factors()
        live = groups.rows()
        self._rescore(live, now)
        self._mean_task_s = self._mean_of(live)
        self._rescore(live, now)
        groups.has_order = False
        return True

    def price(self, model: str) -> float:
        """Of a second of the device model, in parts of the whole farm's."""
        return float(self._price[self.model.models[model]])

    def prices_now(self) -> tuple[dict[str, list[float]], float]:
        """(device model -> slots that take work and price, how long the waiting work takes at least)."""
        if self.prices is None:
            return {}, 0.0
        slots = self._places.slots
        told = {
            name: [float(slots[at]), float(f"{self._price[at]:.6g}")]
            for at, name in enumerate(self._places.model_names)
            if name and slots[at] > 0
        }
        return told, self.prices.bound_s if self.waiting else 0.0

    def use_now(self) -> UseState:
        """What everybody has used, for the next scheduler."""
        return self._accounts.state()

    def set_use(self, state: UseState) -> None:
        """Go on with what another scheduler has counted."""
        self._accounts.take_over(state)

    def _catch_up(self, now: float) -> None:
        """Score the groups of steps that have learnt; together is cheaper than apart."""
        if not self._learnt:
            return
        self.model.refresh()
        rows = sorted(row for row in self._learnt if self._groups.is_there(row))
        self._learnt.clear()
        if rows:
            learnt, was_known = np.array(rows), self._groups.is_known[rows]
            self._rescore(learnt, now)
            if (self._groups.is_known[rows] & ~was_known).any():
                # Until then others were a guess to them: what passes for long may be another now.
                self._mean_task_s = self._mean_of(self._groups.rows())
                self._rescore(learnt, now)

    def _mean_of(self, rows: Ints) -> float:
        """Seconds of a waiting task, over the farm: of those that something is known of, if there are any."""
        groups = self._groups
        there = np.isfinite(groups.mean_s[rows]) & (groups.ready[rows] > 0)
        known = there & groups.is_known[rows]
        rows = rows[known if known.any() else there]
        return (
            float(np.average(groups.mean_s[rows], weights=groups.ready[rows]))
            if len(rows)
            else self._mean_task_s
        )

    def _able(self, rows: Ints) -> Bools:
        """Which device models can ever take each group."""
        able = self._kinds.able(len(self._places.model_names))[self._groups.demand[rows]]
        found: Bools = able & (self._places.slots > 0)
        return found

    def _rescore(self, rows: Ints, now: float) -> None:
        n = len(self._places.model_names)
        if n == 0 or not len(rows):
            return
        groups = self._groups
        steps = groups.step[rows]
        # A device that begins with a group loads its scene once for its part of the tasks that are left.
        parts = np.minimum((groups.running[rows] + 1) / np.maximum(groups.ready[rows], 1), 1.0)
        cold_s, warm_s, _ = np.array([self.model.load_s(int(step)) for step in steps]).T
        groups.load_s[rows] = self.weights.load_weight * (warm_s + (cold_s - warm_s) * parts)
        farm = Farm(
            price=self._price[:n],
            slots=self._places.slots,
            tdp_w=self._places.tdp_w,
            mean_task_s=self._mean_task_s,
            cap=self._cap(),
        )
        found = scores(
            farm,
            self.weights,
            median_s=self.model.median_s[steps, :n],
            sd=self.model.sd[steps, :n],
            load_s=groups.load_s[rows],
            able=self._able(rows),
            ready=groups.ready[rows],
            are_few=groups.left[rows] <= self.weights.probe_tasks,
            has_run=self.model.has_run_on(steps)[:, :n],
            is_patient=groups.served[rows] + self.weights.cap_patience_s > self._priced_at,
        )
        groups.scored(rows, found, now)
        groups.best[rows] = found.best
        groups.mean_s[rows] = found.mean_s

    def _cap(self) -> float:
        return self.weights.slow_cap * (1 + self._backlogs())

    def _backlogs(self) -> float:
        """How many times `backlog_s` waits beyond the first."""
        return max(0.0, self._backlog_s() / self.weights.backlog_s - 1)

    def _backlog_s(self) -> float:
        """How long the waiting work takes at least."""
        return self.prices.bound_s if self.prices is not None else 0.0

    # --- a round ----------------------------------------------------------------------------------

    def round(self, now: float, limit: int) -> tuple[Assignment, ...]:
        """Start at most `limit` tasks on free devices. The board counts them as started."""
        if self.waiting <= 0 or limit <= 0:
            return ()
        groups = self._groups
        self._catch_up(now)
        groups.settle()
        if not groups.has_order or now - self._ordered_at > _ORDER_EVERY_S:
            groups.reorder(now, backlogs=self._backlogs())
            self._ordered_at = now
        taken: dict[_Slot, int] = {}
        is_tail = self.weights.idle_in_tail and self.waiting < self._places.total_slots
        tail = self._tail if is_tail else None
        left = limit - self._serve_all(now, limit, tail, taken)
        held = groups.held_back() if left > 0 else set()
        if held and any(self._places.free):
            # Better to learn from many at once than to leave devices idle.
            groups.free_probing(True, held)
            self._serve_all(now, left, tail, taken)
            groups.free_probing(False, held)
        return tuple(
            Assignment(
                step_id=step_id,
                job_id=groups[groups.rows_of_step(step_id)[0]].job_id,
                node_id=node_id,
                device_id=device_id,
                count=count,
            )
            for (step_id, node_id, device_id), count in taken.items()
        )

    def _serve_all(self, now: float, left: int, tail: Tail | None, taken: dict[_Slot, int]) -> int:
        given = 0
        kinds = [kind for kind, free in enumerate(self._places.free) if free]
        if len(kinds) > 1:
            kinds.sort(key=lambda kind: (-self._worth(kind), kind))
        for kind in kinds:
            if given >= left:
                break
            given += self._serve(kind, now, left - given, tail, taken)
        return given

    def _worth(self, kind: int) -> float:
        """What a second of a kind's best free device is worth: of throttled ones what is left of them, and
        of equals that is worth more which draws less."""
        model = self._kinds.model[kind]
        worth = float(self._price[model]) * self._places.best_health(kind)
        watts = float(self._places.tdp_w[model])
        return worth * (watts / _USUAL_W) ** -self.weights.energy if watts > 0 else worth

    def _serve(self, kind: int, now: float, left: int, tail: Tail | None, taken: dict[_Slot, int]) -> int:
        """Give the free places of one kind their tasks; returns how many."""
        groups, places = self._groups, self._places
        free = list(places.free[kind])
        while kind >= len(self._windows):
            self._windows.append(Window(groups, places, self.model, kind=len(self._windows)))
        window = self._windows[kind]
        window.follow()
        if len(free) > 1:
            free.sort(key=lambda at: (places.factor[at], places[at].node_id, at))
        given = 0
        for at in free:
            place = places[at]
            room = places.rooms[place.node_id]
            while given < left and room.slots[place.device.id] > 0:
                row = window.choose(at, room, now, tail)
                if row is None:
                    break
                slot = (groups[row].step_id, place.node_id, place.device.id)
                if self._explain and slot not in taken:
                    self._remember(at, row, window)
                if self._start(at, row, now):
                    window.follow()
                taken[slot] = taken.get(slot, 0) + 1
                given += 1
            if given >= left or window.is_empty:
                break
        return given

    def _start(self, at: int, row: int, now: float) -> bool:
        """Start a task of the group there. Returns whether the next one gains less by such a device."""
        groups, places = self._groups, self._places
        place = places[at]
        room = places.rooms[place.node_id]
        room.take(groups[row].demand, (place.device,))
        self._started_on.add(place.node_id)
        self._occupy(at, groups[row].step_id, row, now)
        is_less = groups.started(row, place.model, now, float(places.until[at]))
        groups.charge(row, float(self._price[place.model]) * (float(places.until[at]) - now))
        places.note_free(at, room)
        return is_less

    def _remember(self, at: int, row: int, window: Window) -> None:
        groups, places = self._groups, self._places
        place = places[at]
        step = int(groups.step[row])
        other = window.runner_up(row)
        key = (groups[row].step_id, place.node_id, place.device.id)
        self._reasons.pop(key, None)
        self._reasons[key] = _Reason(
            places.model_names[place.model],
            float(self.model.median_s[step, place.model]) * float(places.factor[at]),
            places.load_s(at, row, step, groups[row].step_id),
            float(self.model.sd[step, place.model]),
            float(self._price[place.model]),
            advantage_at(groups, places, self.model, row, at),
            window.most,
            window.near_equals,
            None if other is None else groups[other].step_id,
            None if other is None else float(groups.advantage[place.model, other]),
            self.period,
            bool(groups.offered[place.model, row] > groups.advantage[place.model, row]),
        )
        if len(self._reasons) > DECISIONS_KEPT:
            del self._reasons[next(iter(self._reasons))]

    def decision(self, step_id: StepId, node_id: NodeId, device_id: str) -> Decision | None:
        """Why the last round that sent a task of the step to the device did; None: none has, or nobody asked
        for reasons."""
        reason = self._reasons.get((step_id, node_id, device_id))
        return None if reason is None else reason.told()


class _Reason(NamedTuple):
    """A decision as it was made; put into shown figures only when somebody asks."""

    model: str
    render_s: float
    load_s: float
    sd: float
    price: float
    advantage: float
    most: float
    near_equals: int
    runner_up: StepId | None
    runner_up_advantage: float | None
    period: str
    is_trial: bool

    def told(self) -> Decision:
        other = self.runner_up_advantage
        return Decision(
            model=self.model,
            predicted_s=_shown(self.render_s + self.load_s),
            upper_s=_shown(self.render_s * math.exp(UPPER_Z * self.sd) + self.load_s),
            load_s=_shown(self.load_s),
            price=_shown(self.price),
            advantage=_shown(math.exp(min(self.advantage, 0.0))),
            best_advantage=_shown(math.exp(min(self.most, 0.0))),
            near_equals=self.near_equals,
            runner_up=self.runner_up,
            runner_up_advantage=None if other is None else _shown(math.exp(min(other, 0.0))),
            period=self.period,
            is_trial=self.is_trial,
        )


def _shown(value: float) -> float:
    """As many digits as are worth keeping."""
    return float(f"{value:.4g}")
