"""Attempts, as they are stored: how they go, how long they took, what they made and used."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from farm.errors import NotFound
from farm.model.attempts import Attempt, JobUsage, PublishedFile
from farm.model.decisions import Decision
from farm.model.ids import AttemptId, JobId, StepId, TaskId
from farm.model.states import AttemptState, Outcome
from farm.store import rows
from farm.store.engine import among
from farm.store.jobs import read_job
from farm.store.tables import AttemptRow, TaskRow

_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]


def read_attempt(db: sa.Connection, attempt_id: AttemptId) -> Attempt:
    """Raises NotFound."""
    row = db.execute(sa.select(_ATTEMPT).where(_ATTEMPT.c.id == attempt_id)).mappings().first()
    if row is None:
        raise NotFound(f"there is no attempt {attempt_id}")
    return rows.attempt(row)


def list_attempts(
    db: sa.Connection,
    *,
    task_id: TaskId | None = None,
    job_id: JobId | None = None,
    states: Collection[AttemptState] = (),
    limit: int = 100,
) -> list[Attempt]:
    """Newest first."""
    query = sa.select(_ATTEMPT)
    if task_id is not None:
        query = query.where(_ATTEMPT.c.task_id == task_id)
    if job_id is not None:
        query = query.where(_ATTEMPT.c.job_id == job_id)
    if states:
        query = query.where(_ATTEMPT.c.state.in_([str(s) for s in states]))
    query = query.order_by(_ATTEMPT.c.assigned_at.desc(), _ATTEMPT.c.id).limit(limit)
    return [rows.attempt(row) for row in db.execute(query).mappings()]


def any_ended_with(db: sa.Connection, job_id: JobId, outcome: Outcome) -> bool:
    query = sa.select(_ATTEMPT.c.id).where(_ATTEMPT.c.job_id == job_id, _ATTEMPT.c.outcome == str(outcome))
    return db.scalar(query.limit(1)) is not None


def accepted_files(db: sa.Connection, task_ids: Collection[int]) -> dict[TaskId, tuple[PublishedFile, ...]]:
    """The files of the accepted attempts of done tasks."""
    query = (
        sa.select(_TASK.c.id, _ATTEMPT.c.files)
        .join(_ATTEMPT, _ATTEMPT.c.id == _TASK.c.attempt_id)
        .where(among(db, _TASK.c.id, task_ids), _ATTEMPT.c.state == "succeeded")
    )
    return {
        TaskId(row.id): tuple(rows.from_json(PublishedFile, file) for file in row.files)
        for row in db.execute(query)
    }


def usage(db: sa.Connection, job_id: JobId) -> JobUsage:
    """What the job's attempts used of GPUs so far. Raises NotFound."""
    read_job(db, job_id)
    a = _ATTEMPT.c
    weighed = sa.case((a.gpu_busy.is_not(None), a.gpu_s), else_=None)
    memory_weighed = sa.case((a.gpu_memory_busy.is_not(None), a.gpu_s), else_=None)
    query = sa.select(
        sa.func.count().label("attempts"),
        sa.func.sum(a.gpu_s).label("gpu_s"),
        sa.func.sum(sa.case((a.state == "succeeded", 0.0), else_=a.gpu_s)).label("wasted_s"),
        sa.func.sum(a.energy_j).label("energy_j"),
        sa.func.count(a.energy_j).label("energy_attempts"),
        sa.func.max(a.vram_peak_mib).label("vram_peak_mib"),
        (sa.func.sum(a.gpu_busy * a.gpu_s) / sa.func.nullif(sa.func.sum(weighed), 0.0)).label("busy"),
        (sa.func.sum(a.gpu_memory_busy * a.gpu_s) / sa.func.nullif(sa.func.sum(memory_weighed), 0.0)).label(
            "memory_busy"
        ),
        sa.func.sum(a.throttled_s).label("throttled_s"),
    ).where(a.job_id == job_id, a.gpu_s.is_not(None))
    row = db.execute(query).one()
    models: list[str] = list(
        db.scalars(sa.select(a.gpu_model).where(a.job_id == job_id, a.gpu_model.is_not(None)).distinct())
    )
    return JobUsage(
        attempts=row.attempts,
        gpu_hours=(row.gpu_s or 0.0) / 3600,
        wasted_gpu_hours=(row.wasted_s or 0.0) / 3600,
        energy_kwh=None if row.energy_j is None else row.energy_j / 3.6e6,
        energy_attempts=row.energy_attempts,
        vram_peak_mib=row.vram_peak_mib,
        busy=row.busy,
        memory_busy=row.memory_busy,
        throttled_s=row.throttled_s,
        models=tuple(sorted(models)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An accepted attempt."""

    step_id: StepId
    runtime_s: float
    completion_s: float
    """From the task's first start to delivery: what other attempts took before it counts too."""
    load_s: float
    finished_at: float
    node_id: str
    device_id: str
    decision: Decision | None


def newest_done(db: sa.Connection, job_id: JobId, *, limit: int = 2_000) -> list[Done]:
    """Of a job's accepted attempts, newest first."""
    first = _ATTEMPT.alias("first")
    begun = (
        sa.select(sa.func.min(first.c.started_at))
        .where(first.c.task_id == _ATTEMPT.c.task_id, first.c.generation == _ATTEMPT.c.generation)
        .scalar_subquery()
    )
    query = _newest_done(
        _ATTEMPT.c.step_id,
        _ATTEMPT.c.runtime_s,
        _ATTEMPT.c.load_s,
        _ATTEMPT.c.finished_at,
        _ATTEMPT.c.node_id,
        _ATTEMPT.c.device_id,
        _ATTEMPT.c.decision,
        sa.func.coalesce(_ATTEMPT.c.started_at - begun, 0.0).label("before_s"),
    )
    return [
        Done(
            step_id=StepId(row.step_id),
            runtime_s=row.runtime_s,
            completion_s=row.runtime_s + max(row.before_s, 0.0),
            load_s=min(row.load_s or 0.0, row.runtime_s),
            finished_at=row.finished_at or 0.0,
            node_id=row.node_id,
            device_id=row.device_id,
            decision=rows.from_json(Decision, row.decision) if row.decision else None,
        )
        for row in db.execute(query, {"of_job": job_id, "most": limit})
    ]


def newest_runtimes_s(db: sa.Connection, job_id: JobId, *, limit: int = 2_000) -> list[float]:
    """Of a job's accepted attempts, newest first."""
    return list(db.scalars(_NEWEST_RUNTIMES, {"of_job": job_id, "most": limit}))


def _newest_done(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    query = sa.select(*columns).where(
        _ATTEMPT.c.job_id == sa.bindparam("of_job"),
        _ATTEMPT.c.state == "succeeded",
        _ATTEMPT.c.runtime_s.is_not(None),
    )
    return query.order_by(_ATTEMPT.c.finished_at.desc()).limit(sa.bindparam("most"))


_NEWEST_RUNTIMES = _newest_done(_ATTEMPT.c.runtime_s)


def first_starts(db: sa.Connection, job_id: JobId) -> dict[StepId, float]:
    """When each step's first attempt was assigned."""
    query = (
        sa.select(_ATTEMPT.c.step_id, sa.func.min(_ATTEMPT.c.assigned_at).label("at"))
        .where(_ATTEMPT.c.job_id == job_id)
        .group_by(_ATTEMPT.c.step_id)
    )
    return {StepId(row.step_id): row.at for row in db.execute(query)}
