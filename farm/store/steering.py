"""What people do to a job: change it, cancel it, try its tasks again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from farm.flow.classify import classify
from farm.model.events import EventKind
from farm.model.ids import JobId, StepId
from farm.model.states import TaskState
from farm.model.work import Job, JobSettings, Step
from farm.store import events, moves, rows
from farm.store.advancing import advance_jobs, cancel_tasks
from farm.store.engine import among, db_now
from farm.store.jobs import job_row, read_job, read_source, write_source
from farm.store.submitting import order_of, rank_sql
from farm.store.tables import AttemptRow, JobRow, StepRow, TaskRow
from farm.text import plural

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]

_COLUMNS = frozenset(
    {"name", "priority", "is_paused", "max_running", "pool", "max_retries", "max_failed_tasks", "project"}
)
"""Of what may change: what has a column. The rest lives in the settings' JSON."""


def change(db: sa.Connection, job_id: JobId, values: Mapping[str, Any], *, actor: str, text: str) -> None:
    """Set a job's name and fields of its JobSettings; running tasks go on as they are. Raises NotFound."""
    moves.lock_jobs(db, [job_id])
    row = job_row(db, job_id)
    columns = {name: value for name, value in values.items() if name in _COLUMNS}
    if "replace_existing" in values:
        columns["replaces_existing"] = values["replace_existing"]
    changed = {**row["settings"], **{n: v for n, v in values.items() if n != "name"}}
    settings: JobSettings = rows.from_json(JobSettings, changed)
    columns["settings"] = rows.to_json(settings)
    db.execute(sa.update(_JOB).where(_JOB.c.id == job_id).values(**columns, changed_at=db_now()))
    steps = read_job(db, job_id).steps
    if "pool" in values:
        for step in steps:
            demand = {**rows.to_json(step.demand), "pool": values["pool"]}
            db.execute(sa.update(_STEP).where(_STEP.c.id == step.id).values(demand=demand))
    if "order" in values:
        for step in steps:
            rank = rank_sql(order_of(settings), "idx")
            query = sa.text(f"UPDATE task SET rank = {rank} WHERE step_id = :step AND :count > 0")
            db.execute(
                query.bindparams(sa.bindparam("count", type_=sa.Integer)),
                {"count": step.counts.total, "step": step.id},
            )
    if "timeout_s" in values or "tag" in values:
        submission, parameters = read_source(db, job_id)
        if "tag" in values:
            profile = classify(values["tag"], submission.hints, submission.kind)
            db.execute(sa.update(_STEP).where(_STEP.c.job_id == job_id).values(profile=rows.to_json(profile)))
        write_source(db, job_id, replace(submission, settings=settings), parameters)
    events.happened(db, EventKind.JOB_CHANGED, text, actor=actor, job_id=job_id)
    advance_jobs(db, [job_id])


def cancel(
    db: sa.Connection, job_id: JobId, *, actor: str, reason: str, task_ids: Collection[int] | None = None
) -> int:
    """Cancel everything that has not ended (of `task_ids`, when given); returns how many tasks.

    Live attempts are told to stop; their tasks are cancelled when the node says that nothing is left.
    """
    moves.lock_jobs(db, [job_id])
    job = read_job(db, job_id)
    moved = cancel_tasks(db, job, reason=reason, task_ids=task_ids)
    if moved:
        text = f"{plural(moved, 'task')} cancelled"
        events.happened(db, EventKind.JOB_CHANGED, text, actor=actor, job_id=job_id)
    advance_jobs(db, [job_id])
    return moved


def retry(
    db: sa.Connection,
    job_id: JobId,
    *,
    actor: str,
    states: Collection[TaskState],
    task_ids: Collection[int] | None = None,
) -> int:
    """Let ended (or held) tasks in `states` run again with a fresh budget; returns how many.

    A done task gets a new generation: its files will be moved aside and replaced.
    """
    moves.lock_jobs(db, [job_id])
    job = read_job(db, job_id)
    moved = 0
    for step in job.steps:
        for old in states:
            if not getattr(step.counts, old.value):
                continue
            values: dict[str, Any] = {
                "failures": 0, "faults": 0, "starts": 0, "not_before": 0.0, "avoid_node": None, "reason": ""
            }  # fmt: skip
            if old is TaskState.DONE:
                values["generation"] = _TASK.c.generation + 1
            new = TaskState.READY
            if old is TaskState.CANCELLED and (step.by_frame or not _is_open(job, step)):
                new = TaskState.WAITING
            if old is TaskState.HELD:
                _release_held(db, step.id, task_ids)
            moved += moves.move_all(db, step.id, old, new, values=values, task_ids=task_ids)
    if moved:
        db.execute(sa.update(_JOB).where(_JOB.c.id == job_id).values(finished_at=None))
        what = "/".join(str(s) for s in states)
        events.happened(
            db, EventKind.TASK_REQUEUED, f"{moved} {what} tasks again", actor=actor, job_id=job_id
        )
    _reopen_dependents(db, job_id)
    advance_jobs(db, [job_id])
    return moved


def _reopen_dependents(db: sa.Connection, job_id: JobId) -> None:
    """Steps that were given up because a step of this job failed wait for it again."""
    job = read_job(db, job_id)
    for step in job.steps:
        if step.depends_on and not _is_open(job, step) and step.counts.cancelled:
            ids = sa.select(_TASK.c.id).where(
                _TASK.c.step_id == step.id, _TASK.c.state == "cancelled", _TASK.c.reason.like("step %")
            )
            given_up: list[int] = list(db.scalars(ids))
            moves.move_all(
                db, step.id, TaskState.CANCELLED, TaskState.WAITING, values={"reason": ""}, task_ids=given_up
            )


def _is_open(job: Job, step: Step) -> bool:
    done = {s.name for s in job.steps if s.counts.done == s.counts.total}
    return all(name in done for name in step.depends_on)


def _release_held(db: sa.Connection, step_id: StepId, task_ids: Collection[int] | None) -> None:
    """A person decided that the old attempt is dead: it is lost, and told to stop should it come back."""
    query = sa.select(_TASK.c.attempt_id).where(_TASK.c.step_id == step_id, _TASK.c.state == "held")
    if task_ids is not None:
        query = query.where(among(db, _TASK.c.id, task_ids))
    db.execute(
        sa.update(_ATTEMPT)
        .where(_ATTEMPT.c.id.in_(query), _ATTEMPT.c.state.in_(rows.LIVE))
        .values(state="lost", finished_at=db_now(), reason="given up by a person")
    )
