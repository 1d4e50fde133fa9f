"""What the tasks of stored jobs are, by index: a small cache over the job's template.

Rows of tasks hold an index only; the parameters, label and files of a task follow from the template.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import sqlalchemy as sa

from farm.flow.submit import TaskSpace
from farm.model.ids import JobId
from farm.model.work import Submission
from farm.store import jobs
from farm.store.engine import reading

_KEPT = 64


class Spaces:
    """Thread-safe; the newest `_KEPT` jobs asked for are kept."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._kept: OrderedDict[JobId, tuple[Submission, dict[str, tuple[str, str]], TaskSpace]] = (
            OrderedDict()
        )

    def of(self, job_id: JobId) -> TaskSpace:
        """Raises NotFound, Unavailable."""
        return self._entry(job_id)[2]

    def source(self, job_id: JobId) -> tuple[Submission, dict[str, tuple[str, str]]]:
        """What was submitted, and the job parameters. Raises NotFound, Unavailable."""
        return self._entry(job_id)[:2]

    def _entry(self, job_id: JobId) -> tuple[Submission, dict[str, tuple[str, str]], TaskSpace]:
        with self._lock:
            if job_id in self._kept:
                self._kept.move_to_end(job_id)
                return self._kept[job_id]
        with reading(self._engine) as db:
            submission, parameters = jobs.read_source(db, job_id)
        space = TaskSpace(submission.template, parameters, submission.outputs)
        with self._lock:
            self._kept[job_id] = (submission, parameters, space)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return submission, parameters, space
