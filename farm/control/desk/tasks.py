"""Tasks and the attempts at them, with what they wrote."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import sqlalchemy as sa

from farm.control.desk.choice import frame_indexes, ids_of
from farm.control.requests import TaskChoice
from farm.control.spaces import Spaces
from farm.control.views import FoundLine, LogPiece, LogView, Page, StalledView, next_after
from farm.errors import UserError
from farm.flow.grep import matching_lines
from farm.model.attempts import Attempt
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.states import LIVE_ATTEMPTS, AttemptState, TaskState
from farm.model.work import Task
from farm.store import attempts, jobs, logs, stalling, tasks
from farm.store.engine import read_clock, reading

_LATE_LOG_S: Final = 2.0
"""Output comes on another way than the report of an attempt's end, and may be this much later."""
_GREPPED_TASKS: Final = 100
_GREPPED_CHARS: Final = 8_000_000
"""Read by one request, in about a second; of one attempt, what is beyond is not looked at."""
_LINES_OF_A_TASK: Final = 1_000


class TaskDesk:
    """Thread-safe."""

    def __init__(self, engine: sa.Engine, spaces: Spaces) -> None:
        self._engine = engine
        self._spaces = spaces

    def list_tasks(
        self, job_id: JobId, choice: TaskChoice, *, states: Collection[TaskState], after: int, limit: int
    ) -> Page[Task]:
        """Raises NotFound, UserError."""
        indexes = frame_indexes(self._engine, self._spaces, job_id, choice)
        with reading(self._engine) as db:
            job = jobs.read_job(db, job_id)
            is_narrowed = choice.frames is not None or choice.task_ids is not None
            task_ids = ids_of(db, job, choice, indexes) if is_narrowed else None
            found = tasks.list_tasks(
                db, job_id, step=choice.step, states=states, task_ids=task_ids, after=after, limit=limit
            )
        return Page(items=tuple(self._labelled(found)), next=next_after(found, limit))

    def read_task(self, task_id: TaskId) -> Task:
        """Raises NotFound."""
        with reading(self._engine) as db:
            task = tasks.read_task(db, task_id)
        return self._labelled([task])[0]

    def list_attempts(
        self,
        *,
        job_id: JobId | None = None,
        task_id: TaskId | None = None,
        states: Collection[AttemptState] = (),
        limit: int,
    ) -> Page[Attempt]:
        """Of a job or a task, newest first. Raises NotFound."""
        with reading(self._engine) as db:
            if job_id is not None:
                jobs.read_job(db, job_id)
            if task_id is not None:
                tasks.read_task(db, task_id)
            found = attempts.list_attempts(db, job_id=job_id, task_id=task_id, states=states, limit=limit)
        return Page(items=tuple(found))

    def read_attempt(self, attempt_id: AttemptId) -> Attempt:
        """Raises NotFound."""
        with reading(self._engine) as db:
            return attempts.read_attempt(db, attempt_id)

    def stalled(self, *, with_silent: bool) -> Page[StalledView]:
        """Live attempts that are taken for stalled, the longest first."""
        with reading(self._engine) as db:
            found = stalling.stalled(db, with_silent=with_silent)
        return Page(
            items=tuple(
                StalledView(
                    job_name=each.job_name,
                    user=each.user,
                    step=each.step,
                    label=self._spaces.label(each.attempt.job_id, each.step, each.index),
                    stall=each.stall,
                    attempt=each.attempt,
                )
                for each in found
            )
        )

    def read_log(self, attempt_id: AttemptId, *, after: int, limit: int) -> LogView:
        """Raises NotFound."""
        with reading(self._engine) as db:
            attempt = attempts.read_attempt(db, attempt_id)
            found = logs.read(db, attempt_id, after=after, limit=limit)
            now = read_clock(db)
        is_over = attempt.state not in LIVE_ATTEMPTS and now - (attempt.finished_at or now) >= _LATE_LOG_S
        return LogView(
            chunks=tuple(LogPiece(sequence=chunk.sequence, text=chunk.text) for chunk in found),
            is_ended=is_over and len(found) < limit,
        )

    def grep(
        self,
        job_id: JobId,
        text: str,
        choice: TaskChoice,
        *,
        states: Collection[TaskState],
        after: int,
        limit: int,
    ) -> Page[FoundLine]:
        """Lines that hold `text` in the output of the tasks' newest attempts, in order of the task.

        A page may hold few lines or none although more follow: what one request reads is bounded. `next` is
        a task's id; all lines of the tasks up to there have been looked at. Raises NotFound, UserError.
        """
        if not text.strip():
            raise UserError("the text to look for is empty")
        indexes = frame_indexes(self._engine, self._spaces, job_id, choice)
        found: list[FoundLine] = []
        read_chars = 0
        with reading(self._engine) as db:
            job = jobs.read_job(db, job_id)
            task_ids = ids_of(db, job, choice, indexes) if choice.frames is not None else None
            tried = tasks.newest_attempts(
                db,
                job_id,
                states=states,
                step=choice.step,
                task_ids=task_ids,
                after=after,
                limit=_GREPPED_TASKS,
            )
            for task, attempt_id in tried:
                log = logs.whole(db, attempt_id, most_chars=_GREPPED_CHARS)
                read_chars += len(log)
                label = self._spaces.label(task.job_id, task.step, task.index)
                found += (
                    FoundLine(
                        task_id=task.id,
                        step=task.step,
                        label=label,
                        attempt_id=attempt_id,
                        node_id=NodeId(task.node_id or ""),
                        number=number,
                        text=line,
                    )
                    for number, line in islice(matching_lines(log, text), _LINES_OF_A_TASK)
                )
                if len(found) >= limit or read_chars >= _GREPPED_CHARS:
                    return Page(items=tuple(found), next=task.id)
        return Page(items=tuple(found), next=tried[-1][0].id if len(tried) == _GREPPED_TASKS else None)

    def _labelled(self, found: Sequence[Task]) -> list[Task]:
        return [replace(task, label=self._spaces.label(task.job_id, task.step, task.index)) for task in found]
