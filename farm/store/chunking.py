"""Chunks of a target run time: what was rendered, what waits, and the waiting tasks cut anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from farm.flow.chunks import LEAST_RUNS, Chunk, ChunkRun, packed, unpacked
from farm.flow.order import REVERSE
from farm.model.ids import JobId, StepId, TaskId
from farm.model.states import JobState, TaskState
from farm.store import jobs, submitting
from farm.store.engine import among
from farm.store.tables import AttemptRow, JobRow, StepRow, TaskRow

_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_JOB = JobRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]

_MOST_RUNS = 50
"""The newest: a shot's frames change along it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveStep:
    step_id: StepId
    job_id: JobId
    target_s: float


def adaptive_steps(db: sa.Connection) -> list[AdaptiveStep]:
    """Steps with chunks that wait, and enough that were rendered."""
    return [
        AdaptiveStep(step_id=StepId(row.id), job_id=JobId(row.job_id), target_s=row.chunk_target_s)
        for row in db.execute(_adaptive_query())
    ]


@cache
def _adaptive_query() -> sa.Select[Any]:
    return (
        sa.select(_STEP.c.id, _STEP.c.job_id, _STEP.c.chunk_target_s)
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .where(
            _STEP.c.n_ready > 0,
            _STEP.c.chunk_target_s.is_not(None),
            _STEP.c.runtime_count >= LEAST_RUNS,
            _JOB.c.state == str(JobState.ACTIVE),
        )
        .order_by(_STEP.c.id)
    )


def runs(db: sa.Connection, step_id: StepId) -> list[ChunkRun]:
    """The newest chunks that were rendered."""
    query = (
        sa.select(_TASK.c.idx, _ATTEMPT.c.runtime_s, _ATTEMPT.c.load_s)
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .where(
            _ATTEMPT.c.step_id == step_id,
            _ATTEMPT.c.state == "succeeded",
            _ATTEMPT.c.runtime_s.is_not(None),
        )
        .order_by(_ATTEMPT.c.finished_at.desc())
        .limit(_MOST_RUNS)
    )
    return [
        ChunkRun(length=unpacked(row.idx).length, runtime_s=row.runtime_s, load_s=row.load_s or 0.0)
        for row in db.execute(query)
    ]


def waiting(db: sa.Connection, step_id: StepId) -> dict[TaskId, Chunk]:
    """Tasks that nobody was ever given. Under the job's lock they stay that."""
    query = sa.select(_TASK.c.id, _TASK.c.idx).where(
        _TASK.c.step_id == step_id,
        _TASK.c.state == str(TaskState.READY),
        _TASK.c.starts == 0,
        _TASK.c.generation == 1,
    )
    return {TaskId(row.id): unpacked(row.idx) for row in db.execute(query)}


def cut_anew(db: sa.Connection, step: AdaptiveStep, tasks: Sequence[TaskId], chunks: Sequence[Chunk]) -> None:
    """Put `chunks` in the place of the waiting `tasks`, which hold the same frames. Under the job's lock."""
    order = submitting.order_of(jobs.read_job(db, step.job_id).settings)
    db.execute(sa.delete(_TASK).where(among(db, _TASK.c.id, tasks)))
    submitting.insert_chunks(
        db,
        step.job_id,
        step.step_id,
        [packed(chunk) for chunk in chunks],
        TaskState.READY,
        is_reversed=order == REVERSE,
    )
    more = len(chunks) - len(tasks)
    db.execute(sa.update(_STEP).where(_STEP.c.id == step.step_id).values(n_ready=_STEP.c.n_ready + more))
