"""Frame by frame: comp frame 7 may start once render frame 7 is done, while others still render."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from farm.errors import UserError
from farm.flow.submit import JobPlan
from farm.flow.task_space import TaskSpace
from farm.model.frames import describe
from farm.model.ids import JobId
from farm.model.work import Job
from farm.text import clean

MAX_NEEDS: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameNeed:
    """A task that waits for another one."""

    step: str
    index: int
    needs_job_id: JobId | None
    """None: a task of the same job."""
    needs_step: str
    needs_index: int


def by_frame(
    plan: JobPlan, space: TaskSpace, others: Mapping[JobId, tuple[Job, TaskSpace]]
) -> tuple[JobPlan, list[FrameNeed]]:
    """`plan` with its dependencies held frame by frame, and which task waits for which.

    A step with frames waits frame by frame for the steps with frames before it; without any, its
    frames wait for those of the jobs in `others` (for their last steps with frames). Other steps wait as
    ever. Raises UserError for a frame that nothing before it has, or too many tasks.
    """
    frames = {name: _frames(space, name) for name in space.steps}
    needs: list[FrameNeed] = []
    steps = []
    for step in plan.steps:
        if step.chunk_target_s is not None:
            raise UserError(
                f"step '{clean(step.name, limit=60, one_line=True)}' makes chunks of a target run time; "
                "frame by frame takes chunks of a fixed size"
            )
        own = frames[step.name]
        soft = [name for name in step.depends_on if own and frames[name]]
        sources: list[tuple[JobId | None, str, dict[int, list[int]]]] = [
            (None, name, frames[name]) for name in soft
        ]
        if own and not step.depends_on:
            for job_id, (job, there) in others.items():
                last = _last(job, there)
                if any(there.is_adaptive(name) for name in last):
                    raise UserError(
                        f"job {job_id} makes chunks of a target run time: wait for the whole of it"
                    )
                sources += [(job_id, name, _frames(there, name)) for name in last]
        if sources:
            needs += _needs(step.name, own, sources)
            soft += [f"#{job_id}" for job_id in others if not step.depends_on]
        if len(needs) > MAX_NEEDS:
            raise UserError(f"frame by frame takes at most {MAX_NEEDS:,} pairs of tasks: use chunks")
        steps.append(replace(step, by_frame=tuple(soft)))
    if not needs:
        raise UserError("nothing waits frame by frame: no step with frames depends on another, or on a job")
    return replace(plan, steps=tuple(steps)), needs


def _needs(
    step: str, own: Mapping[int, list[int]], sources: list[tuple[JobId | None, str, dict[int, list[int]]]]
) -> list[FrameNeed]:
    there = set().union(*(found for _, _, found in sources))
    missing = set(own) - there
    if missing:
        where = ", ".join(
            f"job {job_id}" if job_id is not None else clean(name, limit=60, one_line=True)
            for job_id, name, _ in sources
        )
        raise UserError(
            f"step '{clean(step, limit=60, one_line=True)}' waits frame by frame, but {where} does not have "
            f"{describe(missing)}"
        )
    pairs: dict[tuple[int, JobId | None, str, int], None] = {}
    for frame, indexes in own.items():
        for job_id, name, found in sources:
            for needed in found.get(frame, ()):
                pairs |= dict.fromkeys((index, job_id, name, needed) for index in indexes)
    return [
        FrameNeed(step=step, index=index, needs_job_id=job_id, needs_step=name, needs_index=needed)
        for index, job_id, name, needed in pairs
    ]


def _frames(space: TaskSpace, step: str) -> dict[int, list[int]]:
    """Frame -> indexes of the tasks that make it; empty when the step has no frames."""
    if space.frame_parameter(step) is None:
        return {}
    found: defaultdict[int, list[int]] = defaultdict(list)
    for index in space.indexes(step):
        for frame in space.frames(step, index):
            found[frame].append(index)
    return dict(found)


def _last(job: Job, space: TaskSpace) -> list[str]:
    """Steps with frames that no other such step waits for."""
    framed = [step for step in job.steps if space.frame_parameter(step.name) is not None]
    needed = {name for step in framed for name in step.depends_on}
    return [step.name for step in framed if step.name not in needed]
