"""What the tasks of stored jobs are, by index: a small cache over the job's template.

Rows of tasks hold an index only; the parameters, label and files of a task follow from the template.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import sqlalchemy as sa

from farm.errors import UserError
from farm.flow.task_space import TaskSpace
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
        self._kept: OrderedDict[JobId, _Kept] = OrderedDict()

    def of(self, job_id: JobId, *, edition: int = 1) -> TaskSpace:
        """`edition`: the least that will do; what an older one says of a step stays true of that step.

        Raises NotFound, Unavailable.
        """
        return self._entry(job_id, edition).space

    def source(self, job_id: JobId, *, edition: int = 1) -> tuple[Submission, dict[str, tuple[str, str]]]:
        """What was submitted, and the job parameters. Raises NotFound, Unavailable."""
        entry = self._entry(job_id, edition)
        return entry.submission, entry.parameters

    def label(self, job_id: JobId, step: str, index: int) -> str:
        """What people call the task: its frames, or its parameters. Raises NotFound, Unavailable."""
        try:
            space = self.of(job_id)
            if step not in space.steps:  # appended since
                with reading(self._engine) as db:
                    space = self.of(job_id, edition=jobs.read_job(db, job_id).edition)
            return space.label(step, index)
        except (UserError, KeyError, IndexError):
            # The library that reads templates has changed its mind about this one: the job stays visible.
            return f"#{index}"

    def _entry(self, job_id: JobId, edition: int) -> _Kept:
        with self._lock:
            known = self._kept.get(job_id)
            if known is not None and known.edition >= edition:
                self._kept.move_to_end(job_id)
                return known
        with reading(self._engine) as db:
            found = jobs.read_job(db, job_id).edition
            submission, parameters = jobs.read_source(db, job_id)
        made = _Kept(
            edition=found,
            submission=submission,
            parameters=parameters,
            space=TaskSpace(submission.template, parameters, submission.outputs),
        )
        with self._lock:
            self._kept[job_id] = made
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    edition: int
    submission: Submission
    parameters: dict[str, tuple[str, str]]
    space: TaskSpace
