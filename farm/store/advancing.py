"""Where a job stands after its tasks changed: steps that open, jobs that end, others that go on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from farm.errors import NotFound
from farm.flow.report import Advance, JobFacts, StepFacts, advance
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, StepId
from farm.model.states import ENDED_JOBS, JobState, TaskState
from farm.model.work import Job
from farm.store import events, moves, outbox, rows
from farm.store.engine import db_now
from farm.store.jobs import read_job
from farm.store.tables import AttemptRow, JobDependencyRow, JobRow, StepRow, TaskNeedRow, TaskRow
from farm.wire.messages import Stop, TidyJob

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_NEEDS = JobDependencyRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_TASK_NEED = TaskNeedRow.__table__  # type: ignore[attr-defined]

_T = TaskState
# What cancelling turns each state into.
_CANCEL = {
    _T.WAITING: _T.CANCELLED,
    _T.READY: _T.CANCELLED,
    _T.HELD: _T.CANCELLED,
    _T.ASSIGNED: _T.CANCELLING,
    _T.RUNNING: _T.CANCELLING,
}
_STANDING = (
    sa.select(
        _JOB.c.state,
        _JOB.c.reason,
        _JOB.c.is_paused,
        _JOB.c.max_failed_tasks,
        _STEP.c.id,
        _STEP.c.name,
        _STEP.c.depends_on,
        _STEP.c.by_frame,
        *(_STEP.c[f"n_{state}"] for state in TaskState),
    )
    .join(_STEP, _STEP.c.job_id == _JOB.c.id)
    .where(_JOB.c.id == sa.bindparam("job_id"))
    .order_by(_STEP.c.position)
)
_NEEDED = (
    sa.select(_NEEDS.c.job_id, _NEEDS.c.needs_job_id, _NEEDS.c.by_frame, _JOB.c.state)
    .join(_JOB, _JOB.c.id == _NEEDS.c.needs_job_id)
    .where(
        sa.or_(
            _NEEDS.c.job_id == sa.bindparam("job_id"),
            sa.and_(_NEEDS.c.needs_job_id == sa.bindparam("job_id"), _NEEDS.c.by_frame.is_(True)),
        )
    )
    .order_by(_NEEDS.c.needs_job_id)
)
"""Of a job: what it needs, and who waits for its frames."""
_ENDED_EVENTS = {
    JobState.DONE: EventKind.JOB_DONE,
    JobState.FAILED: EventKind.JOB_FAILED,
    JobState.CANCELLED: EventKind.JOB_CANCELLED,
}
_WRITE_REASON = (
    sa.update(_JOB)
    .where(_JOB.c.id == sa.bindparam("of_job"))
    .values(changed_at=db_now(), reason=sa.bindparam("new_reason"))
)
_WRITE_STATE = _WRITE_REASON.values(state=sa.bindparam("new_state"), finished_at=None)
_WRITE_END = _WRITE_STATE.values(finished_at=db_now())
_DEPENDENTS = sa.select(_NEEDS.c.job_id).where(_NEEDS.c.needs_job_id == sa.bindparam("job_id"))
_LAST_NODE = (
    sa.select(_ATTEMPT.c.node_id)
    .where(_ATTEMPT.c.job_id == sa.bindparam("job_id"))
    .order_by(_ATTEMPT.c.assigned_at.desc())
    .limit(1)
)
_TOUCH = sa.update(_JOB).where(_JOB.c.id == sa.bindparam("job_id")).values(changed_at=db_now())


def advance_jobs(db: sa.Connection, job_ids: Collection[JobId]) -> None:
    """After tasks changed: open steps, give up steps, end jobs, and go on with jobs that waited for them.

    The caller holds `lock_jobs` for `job_ids`.
    """
    for job_id in sorted(job_ids):
        standing = _standing(db, job_id)
        outcome = advance(standing.facts)
        if outcome.stop_all:
            cancel_tasks(db, read_job(db, job_id), reason=outcome.reason, task_ids=None)
            outcome = _after_changes(db, job_id, outcome)
        elif _apply(db, outcome):
            outcome = _after_changes(db, job_id, outcome)
        _write_state(db, job_id, standing, outcome)
        if standing.awaited_by_frame:
            moves.lock_jobs(db, standing.awaited_by_frame)
            advance_jobs(db, standing.awaited_by_frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """What there is to know of a job after each of its tasks: little, for it is read that often."""

    state: JobState
    reason: str
    facts: JobFacts
    awaited_by_frame: list[JobId]
    """Jobs that wait for single frames of this one."""


def _standing(db: sa.Connection, job_id: JobId) -> _Standing:
    """Raises NotFound."""
    found = db.execute(_STANDING, {"job_id": job_id}).mappings().all()
    if not found:
        raise NotFound(f"there is no job {job_id}")
    head = found[0]
    unmet, awaited = [], []
    for need in db.execute(_NEEDED, {"job_id": job_id}).mappings():
        if need["job_id"] != job_id:
            awaited.append(JobId(need["job_id"]))
        elif not need["by_frame"] and need["state"] != JobState.DONE:
            unmet.append(need["needs_job_id"])
    return _Standing(
        state=JobState(head["state"]),
        reason=head["reason"],
        facts=JobFacts(
            is_paused=head["is_paused"],
            max_failed_tasks=head["max_failed_tasks"],
            unmet_jobs=tuple(unmet),
            steps=tuple(
                StepFacts(
                    id=StepId(row["id"]),
                    name=row["name"],
                    depends_on=tuple(row["depends_on"]),
                    by_frame=tuple(row["by_frame"]),
                    counts=rows.counts(row),
                )
                for row in found
            ),
        ),
        awaited_by_frame=sorted(awaited),
    )


def _apply(db: sa.Connection, outcome: Advance) -> bool:
    """Move waiting tasks as the outcome says; whether any moved."""
    moved = 0
    for step_id in outcome.unlock:
        moved += moves.move_all(db, step_id, TaskState.WAITING, TaskState.READY)
    for step_id, why in outcome.give_up:
        moved += moves.move_all(db, step_id, TaskState.WAITING, TaskState.CANCELLED, values={"reason": why})
    for step_id in outcome.by_frame:
        moved += _open_frames(db, step_id)
    return moved > 0


def _open_frames(db: sa.Connection, step_id: StepId) -> int:
    """Open waiting tasks whose needed tasks are all done, give up those whose needed one never will be."""
    needed, before = _TASK.alias("needed"), _STEP.alias("before")
    pairs = _TASK_NEED.join(needed, needed.c.id == _TASK_NEED.c.needs_task_id)
    mine = _TASK_NEED.c.task_id == _TASK.c.id
    waiting = sa.select(_TASK.c.id).where(_TASK.c.step_id == step_id, _TASK.c.state == "waiting")
    unmet = sa.select(sa.literal(1)).select_from(pairs).where(mine, needed.c.state != "done")
    ready: list[int] = list(db.scalars(waiting.where(~unmet.exists())))
    is_over = before.c.n_done + before.c.n_failed + before.c.n_cancelled == sum(
        (before.c[f"n_{state}"] for state in TaskState), sa.literal(0)
    )
    broken = (
        sa.select(sa.literal(1))
        .select_from(pairs.join(before, before.c.id == needed.c.step_id))
        .where(
            mine,
            needed.c.job_id == _TASK.c.job_id,  # another job may be tried again: its frames are waited for
            needed.c.state.in_(["failed", "cancelled"]),
            is_over,
        )
    )
    lost: list[int] = list(db.scalars(waiting.where(broken.exists())))
    moved = 0
    if ready:
        moved += moves.move_all(db, step_id, TaskState.WAITING, TaskState.READY, task_ids=ready)
    if lost:
        why = {"reason": "step before it did not finish the same frame"}
        moved += moves.move_all(
            db, step_id, TaskState.WAITING, TaskState.CANCELLED, values=why, task_ids=lost
        )
    return moved


def _after_changes(db: sa.Connection, job_id: JobId, before: Advance) -> Advance:
    """Giving a step up may end others in turn: go on until nothing moves."""
    while True:
        outcome = advance(_standing(db, job_id).facts)
        if not _apply(db, outcome):
            reason = before.reason if before.stop_all else outcome.reason
            return Advance(state=outcome.state, reason=reason)


def _write_state(db: sa.Connection, job_id: JobId, before: _Standing, outcome: Advance) -> None:
    if before.state is outcome.state and before.reason == outcome.reason:
        db.execute(_TOUCH, {"job_id": job_id})
        return
    changed = {"of_job": job_id, "new_reason": outcome.reason}
    if before.state is outcome.state:
        db.execute(_WRITE_REASON, changed)
    else:
        written = _WRITE_END if outcome.state in ENDED_JOBS else _WRITE_STATE
        db.execute(written, {**changed, "new_state": str(outcome.state)})
    if before.state in ENDED_JOBS and outcome.state not in ENDED_JOBS:
        outbox.take_back_tidying(db, read_job(db, job_id).uid)
    if before.state is outcome.state or outcome.state not in ENDED_JOBS:
        return
    job = read_job(db, job_id)
    events.happened(db, _ENDED_EVENTS[outcome.state], outcome.reason or job.name, job_id=job_id)
    _owe_tidying(db, job)
    if outcome.state is JobState.DONE:
        dependents: list[int] = list(db.scalars(_DEPENDENTS, {"job_id": job_id}))
        moves.lock_jobs(db, dependents)
        advance_jobs(db, [JobId(i) for i in dependents])


def _owe_tidying(db: sa.Connection, job: Job) -> None:
    """A node that worked for the job removes its private directories; that also fences late attempts."""
    if not job.output_directories:
        return
    node_id = db.scalar(_LAST_NODE, {"job_id": job.id})
    if node_id is not None:
        outbox.owe_control(db, node_id, TidyJob(job_uid=job.uid, directories=job.output_directories))


def cancel_tasks(db: sa.Connection, job: Job, *, reason: str, task_ids: Collection[int] | None) -> int:
    moved = 0
    for step in job.steps:
        for old, new in _CANCEL.items():
            if getattr(step.counts, old.value):
                moved += moves.move_all(db, step.id, old, new, values={"reason": reason}, task_ids=task_ids)
    query = (
        sa.update(_ATTEMPT)
        .where(
            _ATTEMPT.c.job_id == job.id,
            _ATTEMPT.c.state.in_(["assigned", "running"]),
            _ATTEMPT.c.task_id.in_(
                sa.select(_TASK.c.id).where(
                    _TASK.c.job_id == job.id, _TASK.c.state.in_(["cancelling", "cancelled"])
                )
            ),
        )
        .values(state="cancelling")
        .returning(_ATTEMPT.c.node_id, _ATTEMPT.c.id)
    )
    stops: dict[str, list[AttemptId]] = {}
    for row in db.execute(query):
        stops.setdefault(row.node_id, []).append(AttemptId(row.id))
    for node_id, attempt_ids in sorted(stops.items()):
        outbox.owe_control(db, node_id, Stop(attempt_ids=tuple(attempt_ids), reason=reason))
    return moved
