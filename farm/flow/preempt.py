"""Which running tasks make way for an urgent one: only where its job asks, and only those that lose little.

A task that makes way goes back to the queue: no retry is spent, and what it had rendered is thrown away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from farm.flow.groups import Group
from farm.flow.keep import may_start
from farm.flow.refusals import fits, standing
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.machines import NodeView, Use

AT_ONCE: Final = 20
"""Tasks that make way in one look."""
MOST_STARTS: Final = 5
"""A task that was started so often stays: it must come to its end some day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A running attempt that could be stopped without harm but for the time lost."""

    id: AttemptId
    task_id: TaskId
    job_id: JobId
    node_id: NodeId
    device_id: str
    priority: int
    ran_s: float
    starts: int
    """Of its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An attempt that makes way, and for whom."""

    victim: Victim
    group: Group


def make_way(
    groups: Sequence[Group],
    nodes: Sequence[NodeView],
    victims: Sequence[Victim],
    *,
    asking: Collection[JobId],
    from_priority: int,
    loss_s: float,
    stopping: Mapping[JobId, int],
    free: Mapping[str, int],
) -> tuple[Way, ...]:
    """For each task of `asking` jobs that could start nowhere the running one that loses least, if any may.

    from_priority: for a job below it nothing makes way. loss_s: nothing that has run longer does. stopping:
    by job, tasks that are being stopped for it already. free: how much is left of each shared count. Only
    tasks of a lower priority make way.
    """
    views = {view.id: view for view in nodes}
    left = sorted(
        (v for v in victims if v.ran_s <= loss_s and v.starts < MOST_STARTS),
        key=lambda v: (v.priority, v.ran_s, v.id),
    )
    ways: list[Way] = []
    due = Counter(stopping)
    for group in sorted(groups, key=lambda g: (-g.priority, g.submitted_at, g.step_id)):
        if group.job_id not in asking or group.priority < from_priority or not may_start(group, free):
            continue
        wanted = group.ready - due[group.job_id]
        if group.max_running is not None:
            wanted = min(wanted, group.max_running - group.job_running - due[group.job_id])
        for name, needed in group.takes or ():
            wanted = min(wanted, free.get(name, wanted * needed) // needed)
        if any(fits(group.demand, view) for view in views.values() if view.id not in group.avoid):
            continue  # it starts by itself
        for victim in list(left):
            if wanted <= 0 or len(ways) >= AT_ONCE or victim.priority >= group.priority:
                break
            view = views.get(victim.node_id)
            if view is None or view.id in group.avoid or next(standing(group.demand, view), None):
                continue
            freed = _without(view, victim.device_id)
            if freed is None or not fits(group.demand, freed):
                continue
            views[view.id] = _with(freed, victim.device_id, group)
            left.remove(victim)
            ways.append(Way(victim=victim, group=group))
            due[group.job_id] += 1
            wanted -= 1
    return tuple(ways)


def _without(view: NodeView, device_id: str) -> NodeView | None:
    """The node less one task on that device; None: there is none."""
    at = next((at for at, use in enumerate(view.uses) if use.device_id == device_id), None)
    return None if at is None else replace(view, uses=view.uses[:at] + view.uses[at + 1 :])


def _with(view: NodeView, device_id: str, group: Group) -> NodeView:
    demand = group.demand
    use = Use(device_id=device_id, cpus=demand.cpus, memory_mib=demand.memory_mib, vram_mib=demand.vram_mib)
    return replace(view, uses=(*view.uses, use))
