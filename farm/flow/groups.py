"""The groups that wait, and what a plan gives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from farm.flow.refusals import vram_held_mib
from farm.model.ids import JobId, NodeId, StepId
from farm.model.machines import Demand, NodeView, Use
from farm.model.work import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The tasks of one step that demand the same: what is matched, whatever their number."""

    step_id: StepId
    job_id: JobId
    demand: Demand = Demand()
    profile: Profile = Profile()
    ready: int = 0
    """Tasks that could start now."""
    running: int = 0
    """Live attempts of this group."""
    max_running: int | None = None
    """Of the whole job."""
    job_running: int = 0
    """Live attempts of the whole job."""
    priority: int = 50
    submitted_at: float = 0.0
    mean_runtime_s: float | None = None
    """Of its tasks that are done; None: not known yet."""
    runtimes: int = 0
    """How many that is the mean of."""
    avoid: frozenset[NodeId] = frozenset()
    """Nodes where this group's tasks have failed for the node's own reasons."""
    holds: tuple[str, ...] = ()
    """Why its tasks are not ready, for people: "waits for job 12", "paused by anna". Only `why` reads it."""
    user: str = ""
    """Whose share of the farm it uses."""
    project: str = ""
    """Within whose share the user has theirs; empty: none."""
    takes: tuple[tuple[str, int], ...] | None = None
    """(shared count, what one more task takes of it), as `limits.counted` found; None: nobody has looked."""
    like: str = ""
    """Names the same step in earlier jobs, whose run times it is expected to have; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """`count` tasks of a group for one device of one node."""

    step_id: StepId
    job_id: JobId
    node_id: NodeId
    device_id: str
    """For a demand of several GPUs their ids, joined by commas (as CUDA_VISIBLE_DEVICES takes them)."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason why a group's tasks wait, over all nodes that it holds for."""

    text: str
    """One line: "3 nodes: VRAM 24,000 MiB < 31,000 MiB needed"."""
    node_ids: tuple[NodeId, ...] = ()
    is_momentary: bool = False

    @property
    def count(self) -> int:
        """How many nodes."""
        return len(self.node_ids)


# --- after a plan ---


def left_of(
    free: Mapping[str, int], plans: Sequence[Assignment], groups: Sequence[Group]
) -> Mapping[str, int]:
    """What is left of the shared counts after these assignments."""
    if not free or not plans:
        return free
    takes = {group.step_id: group.takes or () for group in groups}
    left = dict(free)
    for assignment in plans:
        for name, needed in takes[assignment.step_id]:
            if name in left:
                left[name] -= needed * assignment.count
    return left


def without(groups: Sequence[Group], plans: Sequence[Assignment]) -> Sequence[Group]:
    """The groups less the tasks of these assignments."""
    if not plans:
        return groups
    given: dict[StepId, int] = defaultdict(int)
    for assignment in plans:
        given[assignment.step_id] += assignment.count
    found = []
    for group in groups:
        count = min(given[group.step_id], group.ready)
        if count:
            given[group.step_id] -= count
            group = replace(
                group,
                ready=group.ready - count,
                running=group.running + count,
                job_running=group.job_running + count,
            )
        found.append(group)
    return found


def used(
    nodes: Sequence[NodeView], plans: Sequence[Assignment], groups: Sequence[Group]
) -> Sequence[NodeView]:
    """The nodes with what these assignments take of them."""
    demands = {group.step_id: group.demand for group in groups}
    uses: dict[NodeId, list[Use]] = defaultdict(list)
    for assignment in plans:
        demand = demands[assignment.step_id]
        use = Use(
            device_id=assignment.device_id,
            cpus=demand.cpus,
            memory_mib=demand.memory_mib,
            vram_mib=vram_held_mib(demand),
        )
        uses[assignment.node_id] += [use] * assignment.count
    return [replace(n, uses=(*n.uses, *uses[n.id])) if n.id in uses else n for n in nodes]


def merged(plan: Sequence[Assignment]) -> tuple[Assignment, ...]:
    """The same plan with one assignment for each step on a device, in the order of their first ones."""
    counts: dict[Assignment, int] = {}
    for assignment in plan:
        place = replace(assignment, count=0)
        counts[place] = counts.get(place, 0) + assignment.count
    return tuple(replace(place, count=count) for place, count in counts.items())
