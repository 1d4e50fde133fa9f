"""Short tasks queued on devices that are busy, so that no slot waits for a message between two of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from farm.flow.groups import Assignment, Group
from farm.flow.refusals import RefusalKind, eligible_devices, refusals
from farm.model.ids import NodeId, StepId
from farm.model.machines import Device, NodeView

SHORT_S: Final = 0.25
"""Tasks shorter than this end sooner than a report and the next launch have made their way."""
AHEAD_S: Final = 2.0
"""A queued task waits, and holds up what comes after it, for about so long at most."""
MOST_AHEAD: Final = 32
"""How many short tasks may wait on a device for each of its slots."""
_TRUST: Final = 4
"""For each task of a step that was short, so many more are queued at a time on the word that they are."""


def queue_ahead(
    groups: Sequence[Group],
    nodes: Sequence[NodeView],
    plans: Sequence[Assignment],
    *,
    limit: int,
    now: float = 0.0,
) -> tuple[Assignment, ...]:
    """Short tasks for devices that are busy (or will be by `plans`): no slot need wait for a message.

    Only tasks that ask for no more than a slot, only behind other short tasks, and only while no group that
    comes first is left waiting. All devices get queues of one length, as far as there are tasks. The first
    tasks of a step to end are its shortest ones: only a few times as many as have ended are queued at once,
    and none behind one that has been there for longer than queues are meant to last. now: seconds, as
    `Use.since`.
    """
    given: dict[StepId, int] = defaultdict(int)
    held: dict[tuple[NodeId, str], int] = defaultdict(int)
    slow: set[tuple[NodeId, str]] = set()
    """Devices whose slots may not be free soon."""
    short_steps = {group.step_id for group in groups if _takes_moments(group.mean_runtime_s)}
    for assignment in plans:
        given[assignment.step_id] += assignment.count
        for device_id in assignment.device_id.split(","):
            held[assignment.node_id, device_id] += assignment.count
            if assignment.step_id not in short_steps:
                slow.add((assignment.node_id, device_id))
    for node in nodes:
        for use in node.uses:
            for device_id in use.device_id.split(","):
                held[node.id, device_id] += 1
                if not _takes_moments(use.mean_runtime_s) or now - use.since > 2 * AHEAD_S:
                    slow.add((node.id, device_id))
    ahead: list[Assignment] = []
    left = limit - sum(assignment.count for assignment in plans)
    for group in sorted(groups, key=lambda g: (-g.priority, g.submitted_at, g.step_id)):
        waiting = group.ready - given[group.step_id]
        if waiting <= 0:
            continue
        if left <= 0 or not _is_short(group):
            break
        places = [
            (node.id, device.id, device.slots)
            for node in nodes
            for device in _queueing_devices(group, node)
            if (node.id, device.id) not in slow
        ]
        wanted = min(waiting, left, _TRUST * group.runtimes)
        depth = _depth(group, places, held, wanted)
        counts: dict[tuple[NodeId, str], int] = defaultdict(int)
        for level in (depth - 1, depth):
            for node_id, device_id, slots in places:
                place = node_id, device_id
                count = min(slots * (1 + level) - held[place], wanted)
                if count > 0:
                    counts[place] += count
                    held[place] += count
                    wanted -= count
        left -= sum(counts.values())
        ahead += (
            Assignment(
                step_id=group.step_id, job_id=group.job_id, node_id=node_id, device_id=device_id, count=count
            )
            for (node_id, device_id), count in counts.items()
        )
    return tuple(ahead)


def _depth(
    group: Group,
    places: Sequence[tuple[NodeId, str, int]],
    held: Mapping[tuple[NodeId, str], int],
    wanted: int,
) -> int:
    """Tasks behind each slot: the fewest with which `wanted` find room, or the most that there may be."""
    mean_s = group.mean_runtime_s or 0.0
    most = min(MOST_AHEAD, int(AHEAD_S / mean_s)) if mean_s > 0 else MOST_AHEAD

    def room(depth: int) -> int:
        return sum(max(0, slots * (1 + depth) - held[node, device]) for node, device, slots in places)

    return bisect_left(range(most), wanted, key=room)


def _is_short(group: Group) -> bool:
    demand = group.demand
    asks_for_a_slot_only = demand.cpus == 0 and demand.memory_mib == 0 and demand.gpus == 0
    is_free = group.max_running is None and not group.takes
    return _takes_moments(group.mean_runtime_s) and asks_for_a_slot_only and is_free


def _takes_moments(mean_runtime_s: float | None) -> bool:
    return mean_runtime_s is not None and mean_runtime_s < SHORT_S


def _queueing_devices(group: Group, node: NodeView) -> Sequence[Device]:
    if not node.accepts_work or node.id in group.avoid:
        return ()
    found = {refusal.kind for refusal in refusals(group.demand, node)}
    if not found <= {RefusalKind.SLOTS_BUSY}:
        return ()
    closed = {load.device_id for load in node.loads if load.fault or load.closed}
    return tuple(device for device in eligible_devices(group.demand, node) if device.id not in closed)
