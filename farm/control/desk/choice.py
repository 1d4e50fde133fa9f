"""Which tasks of a job a request means: by id, by step, by frames."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from farm.control.requests import TaskChoice
from farm.control.spaces import Spaces
from farm.errors import NotFound
from farm.flow.choose import check_step, tasks_of_frames
from farm.model.frames import parse_frames
from farm.model.ids import JobId
from farm.model.work import Job
from farm.store import jobs, rows, tasks
from farm.store.engine import reading
from farm.text import clean


def frame_indexes(
    engine: sa.Engine, spaces: Spaces, job_id: JobId, choice: TaskChoice
) -> dict[str, list[int]] | None:
    """The chosen frames as step -> task indexes; None when no frames are given. Raises UserError."""
    if choice.step is None and choice.frames is None:
        return None
    with reading(engine) as db:
        edition = jobs.read_job(db, job_id).edition
    space = spaces.of(job_id, edition=edition)
    if choice.step is not None:
        check_step(space, choice.step)
    if choice.frames is None:
        return None
    with reading(engine) as db:
        return tasks_of_frames(
            space,
            parse_frames(choice.frames),
            step=choice.step,
            indexes=lambda step: tasks.indexes_of(db, job_id, step),
        )


def ids_of(
    db: sa.Connection, job: Job, choice: TaskChoice, indexes: dict[str, list[int]] | None
) -> list[int] | None:
    """Ids of the chosen tasks; None for all. Raises UserError for an id that is not the job's."""
    if choice.task_ids is not None:
        wanted = set(choice.task_ids)
        own = set(tasks.task_ids(db, job.id, of=wanted))
        if own != wanted:
            raise NotFound(f"job {job.id} has no task {min(wanted - own)}")
    if indexes is not None:
        ids = []
        for step in job.steps:
            if step.name in indexes:
                ids += tasks.task_ids(
                    db, job.id, step_id=step.id, indexes=indexes[step.name], of=choice.task_ids
                )
        return ids
    if choice.step is not None:
        step = next(step for step in job.steps if step.name == choice.step)
        return tasks.task_ids(db, job.id, step_id=step.id, of=choice.task_ids)
    return None if choice.task_ids is None else list(choice.task_ids)


def shown_choice(choice: TaskChoice) -> dict[str, Any]:
    shown: dict[str, Any] = rows.to_json(choice)
    if choice.task_ids is not None and len(choice.task_ids) > 100:
        shown["task_ids"] = f"{len(choice.task_ids):,} tasks"
    if choice.frames is not None:
        shown["frames"] = clean(choice.frames, limit=1_000)
    return shown
