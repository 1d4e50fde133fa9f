"""Jobs, as they are stored: read, listed, counted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from farm.errors import NotFound
from farm.model.ids import JobId
from farm.model.states import ENDED_JOBS, JobState, TaskState
from farm.model.work import Counts, Job, Step, Submission
from farm.store import rows
from farm.store.engine import among_ids
from farm.store.tables import JobDependencyRow, JobRow, JobSourceRow, StepRow

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_SOURCE = JobSourceRow.__table__  # type: ignore[attr-defined]
_NEEDS = JobDependencyRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]


def read_job(db: sa.Connection, job_id: JobId) -> Job:
    """Raises NotFound."""
    return _jobs(db, [job_row(db, job_id)])[0]


def list_jobs(
    db: sa.Connection,
    *,
    states: Collection[JobState] = (),
    user: str | None = None,
    name: str | None = None,
    before: int | None = None,
    changed_after: float | None = None,
    limit: int = 100,
) -> list[Job]:
    """Newest first; `name` is a part of the name, `before` a job id to go on from."""
    query = sa.select(_JOB)
    if states:
        query = query.where(_JOB.c.state.in_([str(s) for s in states]))
    if user is not None:
        query = query.where(_JOB.c.user == user)
    if name is not None:
        query = query.where(_JOB.c.name.icontains(name, autoescape=True))
    if before is not None:
        query = query.where(_JOB.c.id < before)
    if changed_after is not None:
        query = query.where(_JOB.c.changed_at > changed_after)
    found = db.execute(query.order_by(_JOB.c.id.desc()).limit(limit)).mappings().all()
    return _jobs(db, found)


def open_counts(db: sa.Connection) -> Counts:
    """Tasks by state, of all jobs that have not ended."""
    query = (
        sa.select(
            *(
                sa.func.coalesce(sa.func.sum(_STEP.c[f"n_{state}"]), 0).label(f"n_{state}")
                for state in TaskState
            )
        )
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .where(_JOB.c.state.not_in([str(state) for state in ENDED_JOBS]))
    )
    return rows.counts(db.execute(query).mappings().one())


def active_counts(db: sa.Connection) -> dict[JobId, Counts]:
    """Tasks by state of each active job."""
    return {JobId(row["job_id"]): rows.counts(row) for row in db.execute(_ACTIVE_COUNTS).mappings()}


_ACTIVE_COUNTS = (
    sa.select(_STEP.c.job_id, *(sa.func.sum(_STEP.c[f"n_{s}"]).label(f"n_{s}") for s in TaskState))
    .join(_JOB, _JOB.c.id == _STEP.c.job_id)
    .where(_JOB.c.state == str(JobState.ACTIVE))
    .group_by(_STEP.c.job_id)
)


def submitted_since(db: sa.Connection, since: float) -> list[JobId]:
    """In the order in which they came."""
    query = sa.select(_JOB.c.id).where(_JOB.c.submitted_at >= since).order_by(_JOB.c.submitted_at)
    return [JobId(row.id) for row in db.execute(query)]


def newest_jobs(db: sa.Connection, *, limit: int) -> list[JobId]:
    """Those that changed last."""
    query = sa.select(_JOB.c.id).order_by(_JOB.c.changed_at.desc()).limit(limit)
    return [JobId(row.id) for row in db.execute(query)]


def read_source(db: sa.Connection, job_id: JobId) -> tuple[Submission, dict[str, tuple[str, str]]]:
    """What was submitted, and the job parameters (OpenJD type, text). Raises NotFound."""
    row = db.execute(sa.select(_SOURCE).where(_SOURCE.c.job_id == job_id)).mappings().first()
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    submission: Submission = rows.from_json(Submission, row["submission"])
    return submission, {name: (value[0], value[1]) for name, value in row["parameters"].items()}


def write_source(
    db: sa.Connection, job_id: JobId, submission: Submission, parameters: Mapping[str, tuple[str, str]]
) -> None:
    db.execute(
        sa.update(_SOURCE)
        .where(_SOURCE.c.job_id == job_id)
        .values(
            submission=rows.to_json(submission),
            parameters={name: list(value) for name, value in parameters.items()},
        )
    )
    db.execute(sa.update(_JOB).where(_JOB.c.id == job_id).values(edition=_JOB.c.edition + 1))


def job_row(db: sa.Connection, job_id: JobId) -> rows.Row:
    row = db.execute(_ONE_JOB, {"job_id": job_id}).mappings().first()
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    return row


_ONE_JOB = sa.select(_JOB).where(_JOB.c.id == sa.bindparam("job_id"))


def _jobs(db: sa.Connection, found: Sequence[rows.Row]) -> list[Job]:
    steps_of, needs_of = _belonging(db.dialect.name)
    ids = {"ids": sorted(row["id"] for row in found)}
    steps: dict[int, list[Step]] = {i: [] for i in ids["ids"]}
    for row in db.execute(steps_of, ids).mappings():
        steps[row["job_id"]].append(rows.step(row))
    needs: dict[int, list[int]] = {i: [] for i in ids["ids"]}
    for row in db.execute(needs_of, ids).mappings():
        needs[row["job_id"]].append(row["needs_job_id"])
    return [rows.job(row, steps[row["id"]], sorted(needs[row["id"]])) for row in found]


@cache
def _belonging(dialect: str) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """The steps of jobs, and what those jobs wait for."""
    steps = sa.select(_STEP).where(among_ids(dialect, _STEP.c.job_id))
    needs = sa.select(_NEEDS.c.job_id, _NEEDS.c.needs_job_id).where(among_ids(dialect, _NEEDS.c.job_id))
    return steps.order_by(_STEP.c.job_id, _STEP.c.position), needs
