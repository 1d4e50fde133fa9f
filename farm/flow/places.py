"""Places: every device of every node, what is free there, and until when it is busy by prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from farm.flow.cached import Cached
from farm.flow.kinds import Kinds
from farm.flow.refusals import Room
from farm.flow.run_times import RunTimes, model_key
from farm.model.ids import NodeId, StepId
from farm.model.machines import Demand, Device, NodeView

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NO_ROW: Final = -1
"""Instead of a group's row: none."""
_USUAL_S: Final = 60.0
"""A task is taken to run so long where its step is not in the model."""


@dataclass(slots=True)
class Place:
    """A device of a node. Its number is its index in the arrays of `Places`."""

    node_id: NodeId
    device: Device
    model: int
    kind: int
    """Places of one kind refuse the same demands for good."""
    step_id: StepId | None = None
    """Of the task that began there last, as long as it runs."""


class Places:
    """All places of the farm. One owner; no I/O."""

    def __init__(self, times: RunTimes, kinds: Kinds, cached: Cached) -> None:
        self._times = times
        self.kinds = kinds
        self.cached = cached
        """Which scenes the nodes have read."""
        self.rooms: dict[NodeId, Room] = {}
        self.of_node: dict[NodeId, list[int]] = {}
        self._capabilities: dict[NodeId, Any] = {}
        self._places: list[Place] = []
        self._gone: list[int] = []
        """Numbers of devices that are gone, to be used again."""
        size = 64
        self._model: Ints = np.zeros(size, np.int64)
        self._kind: Ints = np.zeros(size, np.int64)
        self._factor: Floats = np.ones(size)
        """How much longer than others of its model it takes: the node's factor over the device's health."""
        self._health: Floats = np.ones(size)
        self._accepts: Bools = np.zeros(size, np.bool_)
        self._until: Floats = np.zeros(size)
        """Until when it is busy by prediction; 0: free."""
        self._since: Floats = np.zeros(size)
        self._last: Ints = np.full(size, NO_ROW)
        """The row of the group that it ran last."""
        self.version = 0
        """How often anything of this has changed."""
        self.free: list[dict[int, None]] = []
        """By kind: the places with a free slot, on nodes that take work."""
        self.model_names: list[str] = []
        self._tdp_w = np.zeros(4)
        self._slots = np.zeros(4)
        self.total_slots = 0
        """On nodes that take work."""

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, at: int) -> Place:
        return self._places[at]

    # --- views of the arrays: as many as there are ------------------------------------------------

    @property
    def model(self) -> Ints:
        return self._model[: len(self._places)]

    @property
    def kind(self) -> Ints:
        return self._kind[: len(self._places)]

    @property
    def factor(self) -> Floats:
        return self._factor[: len(self._places)]

    @property
    def accepts(self) -> Bools:
        return self._accepts[: len(self._places)]

    @property
    def until(self) -> Floats:
        return self._until[: len(self._places)]

    @property
    def since(self) -> Floats:
        return self._since[: len(self._places)]

    @property
    def last(self) -> Ints:
        return self._last[: len(self._places)]

    @property
    def tdp_w(self) -> Floats:
        """Design power of each device model; 0: not known."""
        return self._tdp_w[: len(self.model_names)]

    @property
    def slots(self) -> Floats:
        """Of each device model, on nodes that take work."""
        return self._slots[: len(self.model_names)]

    # --- nodes ------------------------------------------------------------------------------------

    def put(self, view: NodeView) -> bool:
        """A node that is new, or has changed. Returns whether it has other devices than before."""
        known = self._capabilities.get(view.id)
        is_other = known is not view.capabilities and known != view.capabilities
        if is_other:
            if known is not None:
                self.drop(view.id)
            self._capabilities[view.id] = view.capabilities
            self.of_node[view.id] = [
                self._new(view, at, device)
                for at, device in enumerate(view.capabilities.devices)
                if device.slots > 0
            ]
        room = self.rooms[view.id] = Room.of(view)
        self.version += 1
        factor = self._times.node_factor(view.id)
        health = {load.device_id: min(max(load.health, 0.05), 1.0) for load in view.loads}
        for at in self.of_node[view.id]:
            self._health[at] = health.get(self._places[at].device.id, 1.0)
            self._set_accepts(at, view.accepts_work)
            self._factor[at] = factor / self._health[at]
            self.note_free(at, room)
        return is_other

    def drop(self, node_id: NodeId) -> None:
        self.version += 1
        for at in self.of_node.pop(node_id):
            self._set_accepts(at, False)
            self.free[self._places[at].kind].pop(at, None)
            self._last[at] = NO_ROW
            self._until[at] = self._since[at] = 0.0
            self._health[at] = 1.0
            self._gone.append(at)
        self.rooms.pop(node_id, None)
        self.cached.forget_node(node_id)
        del self._capabilities[node_id]

    def node_is(self, node_id: NodeId, *, accepts: bool) -> None:
        """It takes work, or does not, from now on."""
        for at in self.of_node[node_id]:
            self._set_accepts(at, accepts)
            self.note_free(at, self.rooms[node_id])

    def cooled(self, node_id: NodeId) -> None:
        """What it had loaded and read is gone."""
        self.version += 1
        self.cached.forget_node(node_id)
        for at in self.of_node[node_id]:
            self._last[at] = NO_ROW

    def forget_row(self, row: int) -> None:
        """The group is gone: nobody has its scene loaded any more."""
        self._last[self._last == row] = NO_ROW
        self.version += 1

    def refresh_factors(self) -> None:
        """Take in what has been learnt of the nodes."""
        self.version += 1
        for at, place in enumerate(self._places):
            self._factor[at] = self._times.node_factor(place.node_id) / self._health[at]

    # --- what runs where --------------------------------------------------------------------------

    def last_row(self, at: int) -> int:
        """The row of the group that it ran last, or NO_ROW."""
        return self._last.item(at)

    def load_s(self, at: int, row: int, step: int, step_id: StepId) -> float:
        """Seconds that the scene of a group takes to load there. step: its row in the run-time model."""
        loads = self._times.load_s(step)
        if row != NO_ROW and self._last[at] == row:
            return loads.warm
        if loads.cached < loads.cold and self.cached.holds(self._places[at].node_id, step_id):
            return loads.cached
        return loads.cold

    def loads_s(self, row: int, step: int, step_id: StepId) -> Floats:
        """The same of every place."""
        loads = self._times.load_s(step)
        found = np.where(self.last == row, loads.warm, loads.cold)
        if loads.cached < loads.cold:
            for node_id in self.cached.nodes(step_id):
                for at in self.of_node.get(node_id, ()):
                    found[at] = min(found[at], loads.cached)
        return found

    def find(self, node_id: NodeId, device_id: str) -> int | None:
        """The place; None: the farm does not know it (any more)."""
        for at in self.of_node.get(node_id, ()):
            if self._places[at].device.id == device_id:
                return at
        return None

    def set_busy(self, at: int, step_id: StepId, row: int, since: float, *, scenes: int) -> None:
        """A task of the step began there.

        row: its group's, or NO_ROW where nothing of it waits. scenes: how many a node keeps in its cache.
        """
        predicted = _USUAL_S
        step = self._times.steps.get(str(step_id))
        if step is not None:
            median = float(self._times.median_s[step, self._places[at].model])
            predicted = median * float(self._factor[at]) + self.load_s(at, row, step, step_id)
        self._places[at].step_id = step_id
        self._since[at] = since
        self._until[at] = since + predicted
        self.version += 1
        self._last[at] = row
        self.cached.read(self._places[at].node_id, step_id, since, most=scenes)

    def began(self, at: int, since: float) -> None:
        """The task that it was given has begun, a little later than it was given."""
        self._until[at] += since - self._since[at]
        self._since[at] = since
        self.version += 1

    def set_idle(self, at: int) -> None:
        self._until[at] = 0.0
        self._places[at].step_id = None
        self.version += 1

    def give_back(self, node_id: NodeId, demand: Demand, device_ids: Sequence[str]) -> None:
        """A task has ended there, well or not."""
        room = self.rooms.get(node_id)
        if room is None:
            return
        room.give_back(demand, device_ids)
        factor = self._times.node_factor(node_id)
        for at in self.of_node[node_id]:
            self._factor[at] = factor / self._health[at]  # what has ended may have told of the node
            if self._places[at].device.id in device_ids:
                self._until[at] = 0.0
                self._places[at].step_id = None
            self.note_free(at, room)

    def note_free(self, at: int, room: Room) -> None:
        """Its room has changed."""
        self.version += 1
        place = self._places[at]
        if self._accepts[at] and room.slots[place.device.id] > 0:
            self.free[place.kind][at] = None
        else:
            self.free[place.kind].pop(at, None)

    def best_health(self, kind: int) -> float:
        """Of the kind's free places."""
        return max(float(self._health[at]) for at in self.free[kind])

    def _set_accepts(self, at: int, accepts: bool) -> None:
        if self._accepts[at] != accepts:
            place = self._places[at]
            change = place.device.slots * (1 if accepts else -1)
            self._slots[place.model] += change
            self.total_slots += change
            self._accepts[at] = accepts

    def _new(self, view: NodeView, index: int, device: Device) -> int:
        name = model_key(device)
        model = self._times.models[name]
        while model >= len(self._slots):
            self._slots = np.concatenate([self._slots, np.zeros_like(self._slots)])
            self._tdp_w = np.concatenate([self._tdp_w, np.zeros_like(self._tdp_w)])
        while len(self.model_names) <= model:
            self.model_names.append("")
        self.model_names[model] = name
        self._tdp_w[model] = device.tdp_w or 0.0
        kind = self.kinds.kind_at(view, index, model)
        if kind == len(self.free):
            self.free.append({})
        place = Place(node_id=view.id, device=device, model=model, kind=kind)
        if self._gone:
            at = self._gone.pop()
            self._places[at] = place
        else:
            at = len(self._places)
            self._places.append(place)
        if at == len(self._model):
            for array in (
                "_model", "_kind", "_factor", "_health", "_accepts", "_until", "_since", "_last",
            ):  # fmt: skip
                value = getattr(self, array)
                setattr(self, array, np.concatenate([value, np.zeros_like(value)]))
        self._model[at] = model
        self._kind[at] = kind
        self._accepts[at] = False
        self._last[at] = NO_ROW
        self._health[at] = 1.0
        return at
