"""Forecasts of when jobs end, kept to be held against what came: a row for each job and mark."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from farm.model.ids import JobId
from farm.model.states import JobState
from farm.store import jobs
from farm.store.engine import db_now
from farm.store.tables import ForecastRow, JobRow

_FORECAST = ForecastRow.__table__  # type: ignore[attr-defined]
_JOB = JobRow.__table__  # type: ignore[attr-defined]

MARKS: Final = (25, 50, 75)
"""Percent of a job's tasks; as it passes one, the forecast of then is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A job that has passed a mark."""

    job_id: JobId
    mark: int
    left: int
    """Tasks that have not ended."""
    live: int


def due(db: sa.Connection, seen: Collection[tuple[JobId, int]]) -> list[Due]:
    """Active jobs at a mark of which no forecast is kept, but for those `seen` by the caller already."""
    found = []
    for job_id, counts in jobs.active_counts(db).items():
        mark = max((m for m in MARKS if counts.ended * 100 >= m * counts.total), default=0)
        if mark and (job_id, mark) not in seen:
            left = counts.total - counts.ended
            found.append(Due(job_id=job_id, mark=mark, left=left, live=counts.live))
    return found


def keep(db: sa.Connection, job_id: JobId, mark: int, likely_s: float, worst_s: float) -> None:
    """The first one of a job at a mark stays."""
    there = sa.select(_FORECAST.c.at).where(_FORECAST.c.job_id == job_id, _FORECAST.c.mark == mark)
    if db.scalar(there) is None:
        row = {"job_id": job_id, "mark": mark, "at": db_now(), "likely_s": likely_s, "worst_s": worst_s}
        db.execute(sa.insert(_FORECAST).values(row))


def outcomes(db: sa.Connection, *, limit: int) -> list[tuple[float, float, float]]:
    """(likely, at worst, what it was) in seconds, of forecasts for jobs that are done, the newest first."""
    query = (
        sa.select(_FORECAST.c.likely_s, _FORECAST.c.worst_s, _JOB.c.finished_at - _FORECAST.c.at)
        .join(_JOB, _JOB.c.id == _FORECAST.c.job_id)
        .where(_JOB.c.state == str(JobState.DONE))
        .order_by(_JOB.c.finished_at.desc())
        .limit(limit)
    )
    return [(row[0], row[1], row[2]) for row in db.execute(query)]
