"""Tasks, as they are stored: read and listed."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from farm.errors import NotFound
from farm.model.ids import AttemptId, JobId, StepId, TaskId
from farm.model.states import TaskState
from farm.model.work import Task
from farm.store import rows
from farm.store.engine import among
from farm.store.tables import AttemptRow, StepRow, TaskRow

_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]

_TASK_QUERY = sa.select(
    _TASK,
    _STEP.c.name.label("step_name"),
    _ATTEMPT.c.node_id,
    _ATTEMPT.c.progress,
    _ATTEMPT.c.load_s,
    _ATTEMPT.c.warnings,
).select_from(
    _TASK.join(_STEP, _STEP.c.id == _TASK.c.step_id).outerjoin(_ATTEMPT, _ATTEMPT.c.id == _TASK.c.attempt_id)
)


def read_task(db: sa.Connection, task_id: TaskId) -> Task:
    """Raises NotFound."""
    row = db.execute(_TASK_QUERY.where(_TASK.c.id == task_id)).mappings().first()
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    return rows.task(row)


def list_tasks(
    db: sa.Connection,
    job_id: JobId,
    *,
    step: str | None = None,
    states: Collection[TaskState] = (),
    task_ids: Collection[int] | None = None,
    after: int = 0,
    limit: int = 100,
) -> list[Task]:
    """In order of id; `after` is a task id to go on from."""
    query = _TASK_QUERY.where(_TASK.c.job_id == job_id, _TASK.c.id > after)
    if step is not None:
        query = query.where(_STEP.c.name == step)
    if states:
        query = query.where(_TASK.c.state.in_([str(s) for s in states]))
    if task_ids is not None:
        query = query.where(among(db, _TASK.c.id, task_ids))
    return [rows.task(row) for row in db.execute(query.order_by(_TASK.c.id).limit(limit)).mappings()]


def task_ids(
    db: sa.Connection,
    job_id: JobId,
    *,
    step_id: StepId | None = None,
    indexes: Collection[int] | None = None,
    of: Collection[int] | None = None,
) -> list[int]:
    """Ids of the job's tasks: of one step, at `indexes` in it, and among the ids `of`, as far as given."""
    query = sa.select(_TASK.c.id).where(_TASK.c.job_id == job_id)
    if step_id is not None:
        query = query.where(_TASK.c.step_id == step_id)
    if indexes is not None:
        query = query.where(among(db, _TASK.c.idx, indexes))
    if of is not None:
        query = query.where(among(db, _TASK.c.id, of))
    return list(db.scalars(query))


def indexes_of(db: sa.Connection, job_id: JobId, step: str) -> list[int]:
    """Of the tasks of the step, as they are now."""
    query = (
        sa.select(_TASK.c.idx)
        .join(_STEP, _STEP.c.id == _TASK.c.step_id)
        .where(_TASK.c.job_id == job_id, _STEP.c.name == step)
    )
    return list(db.scalars(query.order_by(_TASK.c.idx)))


def newest_attempts(
    db: sa.Connection,
    job_id: JobId,
    *,
    states: Collection[TaskState] = (),
    step: str | None = None,
    task_ids: Collection[int] | None = None,
    after: int = 0,
    limit: int = 100,
) -> list[tuple[Task, AttemptId]]:
    """Tasks that an attempt was made at, with the newest one, in order of the task's id."""
    query = _TASK_QUERY.where(
        _TASK.c.job_id == job_id,
        _TASK.c.id > after,
        _TASK.c.attempt_id.is_not(None),
        _ATTEMPT.c.id.is_not(None),
    )
    if states:
        query = query.where(_TASK.c.state.in_([str(state) for state in states]))
    if step is not None:
        query = query.where(_STEP.c.name == step)
    if task_ids is not None:
        query = query.where(among(db, _TASK.c.id, task_ids))
    found = db.execute(query.order_by(_TASK.c.id).limit(limit)).mappings()
    return [(rows.task(row), AttemptId(row["attempt_id"])) for row in found]
