"""How jobs are shown: their progress, their expected end, and why nothing runs when nothing does."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from farm.control.desk.why import NextRound, waiting_line
from farm.control.views import JobView
from farm.flow.stats import eta_s, spread
from farm.model.ids import JobId
from farm.model.states import ENDED_JOBS
from farm.model.work import Job, Tag
from farm.settings import Settings
from farm.store import attempts
from farm.store.engine import reading

_RUNTIMES_OLD_S: Final = 5.0
"""Run times of a job are read again at most this often: the live view asks twice a second."""
_RUNTIMES_KEPT: Final = 2_000


class JobViews:
    """Thread-safe."""

    def __init__(self, engine: sa.Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._lock = threading.Lock()
        self._runtimes: OrderedDict[JobId, _Runtimes] = OrderedDict()

    def of(self, job: Job) -> JobView:
        return self.of_all([job])[0]

    def of_all(self, found: Sequence[Job]) -> list[JobView]:
        with reading(self._engine) as db:
            coming = NextRound(db, self._settings)
            return [
                _job_view(job, self._runtimes_of(db, job), waiting=waiting_line(db, job, coming))
                for job in found
            ]

    def _runtimes_of(self, db: sa.Connection, job: Job) -> _Runtimes:
        done = job.counts.done
        if not done:
            return _Runtimes()
        now = time.monotonic()
        with self._lock:
            known = self._runtimes.get(job.id)
        if known is not None and (known.done == done or now - known.read_at < _RUNTIMES_OLD_S):
            return known
        found = attempts.newest_done(db, job.id)
        read = _Runtimes(
            done=done,
            read_at=now,
            seconds=tuple(each.runtime_s for each in found),
            completions_s=tuple(each.completion_s for each in found),
        )
        with self._lock:
            self._runtimes[job.id] = read
            self._runtimes.move_to_end(job.id)
            while len(self._runtimes) > _RUNTIMES_KEPT:
                self._runtimes.popitem(last=False)
        return read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtimes:
    """Of a job's accepted attempts, the newest 2,000 at most."""

    done: int = 0
    read_at: float = 0.0
    seconds: tuple[float, ...] = ()
    completions_s: tuple[float, ...] = ()
    """From each task's first start to delivery."""


def _job_view(job: Job, runtimes: _Runtimes, *, waiting: str) -> JobView:
    counts = job.counts
    has_ended = job.state in ENDED_JOBS
    largest = max(job.steps, key=lambda step: step.counts.total, default=None)
    return JobView(
        job=job,
        counts=counts,
        progress=counts.ended / counts.total if counts.total else 0.0,
        tag=largest.profile.tag if largest is not None else Tag.UNKNOWN,
        eta_s=None if has_ended else eta_s(counts.total - counts.ended, runtimes.seconds, counts.live),
        spread=spread(runtimes.completions_s),
        waiting=waiting,
    )
