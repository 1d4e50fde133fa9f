"""Ended jobs are taken out of the database, with all that is kept of them."""

from __future__ import annotations

import sqlalchemy as sa

from farm.errors import Rejected
from farm.model.events import EventKind
from farm.model.ids import JobId
from farm.model.states import ENDED_JOBS
from farm.store import events, moves
from farm.store.jobs import read_job
from farm.store.rows import LIVE
from farm.store.tables import AttemptRow, EventRow, JobDependencyRow, JobRow, LogRow, StepRow, TaskRow
from farm.text import plural

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_LOG = LogRow.__table__  # type: ignore[attr-defined]
_EVENT = EventRow.__table__  # type: ignore[attr-defined]
_NEEDS = JobDependencyRow.__table__  # type: ignore[attr-defined]


def remove_job(db: sa.Connection, job_id: JobId, *, actor: str) -> None:
    """Forget the job, its tasks, attempts, logs, events and what was learnt of its steps, in one transaction.

    Raises NotFound; Rejected when it has not ended, a renderer of it still runs, an open job waits for it, or
    it is the newest.
    """
    moves.lock_jobs(db, [job_id])
    job = read_job(db, job_id)
    if job.state not in ENDED_JOBS:
        raise Rejected(f"job {job_id} is {job.state}: cancel it first, or wait until it has ended")
    live = db.scalar(
        sa.select(sa.func.count()).where(_ATTEMPT.c.job_id == job_id, _ATTEMPT.c.state.in_(LIVE))
    )
    if live:
        raise Rejected(f"{plural(live, 'renderer')} of job {job_id} still to be stopped: try again later")
    ended = [str(state) for state in ENDED_JOBS]
    waits = db.scalar(
        sa.select(_NEEDS.c.job_id)
        .join(_JOB, _JOB.c.id == _NEEDS.c.job_id)
        .where(_NEEDS.c.needs_job_id == job_id, _JOB.c.state.not_in(ended))
        .limit(1)
    )
    if waits is not None:
        raise Rejected(f"job {waits} waits for job {job_id}: cancel that one first")
    if _is_newest(db, job_id):
        raise Rejected(f"job {job_id} is the newest, or has the newest frames: it can go after the next")
    # It goes first: SQLite gives the number of a last row again, and listeners go on from the last event's.
    text = f"job {job_id} {job.name} removed"
    events.happened(db, EventKind.JOB_REMOVED, text, actor=actor)
    of_job = sa.select(_ATTEMPT.c.id).where(_ATTEMPT.c.job_id == job_id)
    db.execute(sa.delete(_LOG).where(_LOG.c.attempt_id.in_(of_job)))
    db.execute(sa.delete(_EVENT).where(_EVENT.c.job_id == job_id))
    db.execute(sa.delete(_JOB).where(_JOB.c.id == job_id))  # what refers to it goes with it


def _is_newest(db: sa.Connection, job_id: JobId) -> bool:
    """SQLite gives the numbers of last rows again: people, and this farm's memory, would mistake the next job
    for this one."""
    newest_step = sa.select(sa.func.max(_STEP.c.id)).scalar_subquery()
    newest_task = sa.select(sa.func.max(_TASK.c.id)).scalar_subquery()
    return job_id in (
        db.scalar(sa.select(sa.func.max(_JOB.c.id))),
        db.scalar(sa.select(_STEP.c.job_id).where(_STEP.c.id == newest_step)),
        db.scalar(sa.select(_TASK.c.job_id).where(_TASK.c.id == newest_task)),
    )
