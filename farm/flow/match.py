"""Which node gets which group's tasks, and why others do not.

Refusals first: every reason why a node cannot take a task. Then a score orders the free devices that are
left. A score is a plain function (`Score`), so that a policy can be swapped for another.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from farm.flow.groups import Assignment, Cause, Group
from farm.flow.rays import ray_factor
from farm.flow.refusals import (
    BUSY,
    RefusalKind,
    Room,
    eligible_devices,
    pool_rank,
    refusals,
    scratch_gib,
    standing,
)
from farm.model.ids import JobId, NodeId
from farm.model.machines import Demand, Device, DeviceKind, DeviceLoad, NodeView
from farm.model.work import Profile
from farm.text import plural

Score = Callable[[Profile, Device, DeviceLoad | None], float | None]
"""Higher is better; compared only between devices for one profile. None: the figures needed are not known."""


def with_health(score: float | None, load: DeviceLoad | None) -> float | None:
    """A throttled or otherwise degraded device is worth what it gives now."""
    return score if score is None or load is None else score * min(max(load.health, 0.0), 1.0)


# --- scores -------------------------------------------------------------------------------------------------


def fitness(profile: Profile, device: Device, load: DeviceLoad | None) -> float | None:
    """The articles' published formula, the plain baseline.

    A compute-heavy profile scores FLOPS x (1 - utilisation), in TFLOP/s; a bandwidth-heavy one memory
    bandwidth x (1 - memory occupancy) - transfer cost, in GB/s. For a ray tracer FLOPS count by the device's
    ray-tracing generation. A use that the device cannot report costs nothing (`unknowns` tells), a missing
    FLOPS or bandwidth figure gives None.
    """
    if profile.compute_share >= profile.bandwidth_share:
        if device.fp32_tflops is None:
            return None
        tflops = device.fp32_tflops * (ray_factor(device) if profile.is_ray_traced else 1.0)
        return tflops * (1 - _share(load.utilisation if load else None))
    if device.memory_bandwidth_gbps is None:
        return None
    free = 1 - _share(load.memory_occupancy if load else None)
    return device.memory_bandwidth_gbps * free - _transfer_cost_gbps(device)


def fifo(profile: Profile, device: Device, load: DeviceLoad | None) -> float | None:
    """No preference: the oldest task to any free device."""
    return 0.0


def unknowns(profile: Profile, device: Device, load: DeviceLoad | None) -> tuple[str, ...]:
    """Which figures `fitness` had to do without for this device, for people."""
    if profile.compute_share >= profile.bandwidth_share:
        pairs = (("FLOPS", device.fp32_tflops), ("utilisation", load.utilisation if load else None))
    else:
        pairs = (
            ("memory bandwidth", device.memory_bandwidth_gbps),
            ("memory occupancy", load.memory_occupancy if load else None),
        )
    return tuple(name for name, figure in pairs if figure is None)


def _share(figure: float | None) -> float:
    return 0.0 if figure is None else min(max(figure, 0.0), 1.0)


def _transfer_cost_gbps(device: Device) -> float:
    """The articles give no figure. 2 % of the bandwidth for a device with memory of its own (the scene has
    to be copied there), as in the simulation that the design rests on; nothing for the CPU."""
    if device.kind is DeviceKind.CPU or device.memory_bandwidth_gbps is None:
        return 0.0
    return 0.02 * device.memory_bandwidth_gbps


# --- plan ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Place:
    """A device of a node (or several, for a demand of several GPUs: then the best ones, chosen when
    taken)."""

    score: float
    is_guess: bool
    room: Room
    devices: tuple[Device, ...]
    """One; or all eligible ones, the best first."""

    def free_devices(self, demand: Demand) -> tuple[Device, ...]:
        """What one task would take now; empty when there is no room."""
        if not self.room.holds(demand):
            return ()
        if len(self.devices) == 1:
            return self.devices if self.room.is_free(demand, self.devices[0]) else ()
        needed = max(demand.gpus, 1)
        free = [device for device in self.devices if self.room.is_free(demand, device)]
        return tuple(free[:needed]) if len(free) >= needed else ()

    def key(self) -> tuple[float, bool, float, NodeId, str]:
        """Best first: score; a known one before a guessed one; the emptier device; then by name."""
        total = sum(device.slots for device in self.devices)
        free = sum(self.room.slots[device.id] for device in self.devices)
        return -self.score, self.is_guess, 1 - free / total, self.room.node.id, self.devices[0].id


def plan(
    groups: Sequence[Group],
    nodes: Sequence[NodeView],
    *,
    score: Score,
    limit: int,
    free: Mapping[str, int] | None = None,
) -> tuple[Assignment, ...]:
    """Which tasks start where now: at most `limit` of them. Deterministic.

    Groups are served whole, by priority, then age, then step id; each gets its best-scoring free slots. A
    node in several pools serves groups of the first one before those of the next, whatever their priority. No
    node's slots, CPUs, memory or VRAM, no job's `max_running` and none of the shared counts (`free`: how much
    is left of each) are exceeded.
    """
    rooms = [Room.of(node) for node in nodes if node.accepts_work]
    rooms = [room for room in rooms if room.free_slots > 0]
    ranks = 1
    if any(group.demand.pool is not None for group in groups):
        ranks = max((len(room.node.capabilities.pools) for room in rooms), default=1)
    turn = _Turn(free=dict(free or {}), left=limit, score=score)
    ordered = sorted(groups, key=lambda g: (-g.priority, g.submitted_at, g.step_id))
    for rank in range(max(ranks, 1)):
        turn.serve(ordered, rooms, rank if ranks > 1 else None)
    return tuple(turn.plans)


@dataclass(slots=True)
class _Turn:
    """What `plan` has given out so far, and what is left."""

    free: dict[str, int]
    left: int
    score: Score
    plans: list[Assignment] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)
    """By place in the order of groups."""
    given: dict[JobId, int] = field(default_factory=lambda: defaultdict(int))

    def serve(self, groups: Sequence[Group], rooms: Sequence[Room], rank: int | None) -> None:
        """Serve the groups in order: on nodes of which it is the pool of this rank, None: on any."""
        places: dict[tuple[Demand, Profile], list[_Place]] = {}
        full: set[Demand] = set()  # nothing left that fits: room only shrinks, so this holds to the end
        for at, group in enumerate(groups):
            if self.left <= 0 or not rooms:
                break
            wanted = self._wanted(at, group)
            if wanted <= 0 or group.demand in full:
                continue
            # CPUs and memory are counted down per task anyway: groups that differ in nothing else share
            # their places.
            base = replace(group.demand, cpus=0, memory_mib=0)
            key = (base, group.profile)
            if key not in places:
                places[key] = _places(base, group.profile, rooms, self.score, rank)
            taken, is_full = _fill(group, places[key], wanted)
            if is_full:
                full.add(group.demand)
            if not taken:
                continue
            self._take(at, group, taken)
            rooms = [room for room in rooms if room.free_slots > 0]

    def _wanted(self, at: int, group: Group) -> int:
        wanted = min(group.ready - self.started.get(at, 0), self.left)
        if group.max_running is not None:
            wanted = min(wanted, group.max_running - group.job_running - self.given[group.job_id])
        for name, needed in group.takes or ():
            wanted = min(wanted, self.free.get(name, wanted * needed) // needed)
        return wanted

    def _take(self, at: int, group: Group, taken: Mapping[tuple[NodeId, str], int]) -> None:
        for (node_id, device_id), count in taken.items():
            self.plans.append(
                Assignment(
                    step_id=group.step_id,
                    job_id=group.job_id,
                    node_id=node_id,
                    device_id=device_id,
                    count=count,
                )
            )
            self.started[at] = self.started.get(at, 0) + count
            self.given[group.job_id] += count
            self.left -= count
            for name, needed in group.takes or ():
                if name in self.free:
                    self.free[name] -= count * needed


def _places(
    demand: Demand, profile: Profile, rooms: Sequence[Room], score: Score, rank: int | None
) -> list[_Place]:
    """Where tasks of this demand and profile can start now (what has no room now gets none in this round).

    rank: only on nodes to which it is for their pool of this rank.
    """
    found: list[tuple[float | None, Room, tuple[Device, ...]]] = []
    scratch_mib = 1024 * scratch_gib(demand)
    for room in rooms:
        node = room.node
        if not room.may_take(demand):
            continue
        if rank is not None and pool_rank(demand, node.capabilities) != rank:
            continue
        if next(standing(demand, node), None) is not None or scratch_mib > (node.disk_free_mib or 0):
            continue
        loads = {load.device_id: load for load in node.loads}
        scored = [
            (with_health(score(profile, device, loads.get(device.id)), loads.get(device.id)), device)
            for device in eligible_devices(demand, node)
            if device.slots > 0
        ]
        if demand.gpus > 1:
            # The slowest of several GPUs is waited for: the place is worth what the last one chosen is.
            scored.sort(key=lambda pair: (pair[0] is None, -(pair[0] or 0.0), pair[1].id))
            found.append((scored[demand.gpus - 1][0], room, tuple(device for _, device in scored)))
        else:
            found.extend((value, room, (device,)) for value, device in scored)
    known = [value for value, _, _ in found if value is not None]
    mean = sum(known) / len(known) if known else 0.0
    return [
        _Place(score=mean if value is None else value, is_guess=value is None, room=room, devices=devices)
        for value, room, devices in found
    ]


def _fill(group: Group, places: Sequence[_Place], wanted: int) -> tuple[dict[tuple[NodeId, str], int], bool]:
    """Take up to `wanted` slots, best first: (tasks by node and device, whether no room for the demand is
    left)."""
    demand = group.demand
    heap = [
        (place.key(), at)
        for at, place in enumerate(places)
        if place.room.node.id not in group.avoid and place.free_devices(demand)
    ]
    if not heap:
        return {}, not group.avoid
    heapq.heapify(heap)
    taken: dict[tuple[NodeId, str], int] = {}
    while heap and wanted > 0:
        _, at = heapq.heappop(heap)
        place = places[at]
        devices = place.free_devices(demand)
        if not devices:
            continue  # another device of the node took the last CPUs or memory
        place.room.take(demand, devices)
        slot = (place.room.node.id, ",".join(device.id for device in devices))
        taken[slot] = taken.get(slot, 0) + 1
        wanted -= 1
        if place.free_devices(demand):
            heapq.heappush(heap, (place.key(), at))
    return taken, False


# --- why ----------------------------------------------------------------------------------------------------


def why(group: Group, nodes: Sequence[NodeView], *, shared: Sequence[Cause] = ()) -> tuple[Cause, ...]:
    """Why the group's tasks wait: one cause a line, those of most nodes first. Empty when none waits.

    shared: what holds it up whatever the node, such as a limit. A node that refuses for good, or takes no
    work at all, is told only by that: the rest would not help.
    """
    causes = [Cause(text=text, is_momentary=True) for text in group.holds]
    if group.ready <= 0:
        return tuple(causes)
    if group.max_running is not None and group.job_running >= group.max_running:
        text = (
            f"max running {group.max_running} reached: waits for one of its tasks to end, or for "
            f"`farm change {group.job_id} --max-running N`"
        )
        causes.append(Cause(text=text, is_momentary=True))
    causes += shared
    is_held_up = bool(shared)
    if not nodes:
        return (*causes, Cause(text="no node has enrolled yet", is_momentary=True))
    by_reason: dict[tuple[bool, bool, str], list[NodeId]] = defaultdict(list)
    for node in nodes:
        if node.id in group.avoid:
            by_reason[False, False, "avoided, tasks of this step failed there"].append(node.id)
            continue
        found = tuple(refusals(group.demand, node))
        decisive = [refusal for refusal in found if not refusal.is_momentary]
        decisive = decisive or [refusal for refusal in found if refusal.kind is RefusalKind.NOT_ACCEPTING]
        for refusal in decisive or found:
            is_busy = refusal.kind in BUSY
            by_reason[refusal.is_momentary, is_busy, refusal.text].append(node.id)
        if not found and not is_held_up:
            by_reason[True, False, "fits and has room: starts with the next match"].append(node.id)
    told = []
    for (is_momentary, is_busy, text), ids in by_reason.items():
        who = str(ids[0]) if len(ids) == 1 else plural(len(ids), "node")
        line = f"{who}: fits, but {text}" if is_busy else f"{who}: {text}"
        told.append(Cause(text=line, node_ids=tuple(ids), is_momentary=is_momentary))
    told.sort(key=lambda cause: (-cause.count, cause.text))
    return (*causes, *told)
