"""Walk over the jobs and look at the disk: `farm.flow.reconcile` says what differs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

import sqlalchemy as sa

from farm.control.spaces import Spaces
from farm.flow.reconcile import Difference, Finding, Recorded, compare, not_seen, unknown_job
from farm.model.ids import JobId, TaskId
from farm.model.states import TaskState
from farm.model.work import Job, Step
from farm.store import attempts, jobs, steering
from farm.store.engine import reading, writing
from farm.store.tasks import list_tasks

PRIVATE = ".farm"
"""As in `workers.staging`, whose names these are."""
_AT_ONCE = 1_000


def marker(directory: Path, job_uid: str, task_id: TaskId, generation: int) -> Path:
    """The record of a task's publication, as `workers.staging` names it."""
    return directory / PRIVATE / job_uid / f"{task_id}.g{generation}.json"


def differences(engine: sa.Engine, job_ids: Collection[JobId] = ()) -> Iterator[Finding]:
    """What differs, job by job (of these, or of all). Raises NotFound, Unavailable."""
    spaces = Spaces(engine)
    directories: set[Path] = set()
    uids: set[str] = set()
    for job in _jobs(engine, job_ids):
        uids.add(job.uid)
        for step in job.steps:
            if step.output is None:
                continue
            _, parameters = spaces.source(job.id)
            directory = Path(parameters[step.output.directory_parameter][1])
            if not directory.is_dir():
                if step.counts.done:
                    yield not_seen(job.id, str(directory))
                continue
            directories.add(directory)
            yield from _of_step(engine, spaces, job, step, directory)
    if not job_ids:
        for directory in sorted(directories):
            for uid in _private(directory):
                if uid not in uids:
                    yield unknown_job(uid, str(directory))


def render_again(engine: sa.Engine, findings: Collection[Finding]) -> int:
    """Let the tasks run again whose files are gone; returns how many. Their old files are moved aside."""
    by_job: dict[JobId, list[int]] = {}
    for finding in findings:
        is_gone = finding.difference is Difference.FILES_GONE
        if is_gone and finding.job_id is not None and finding.task_id is not None:
            by_job.setdefault(finding.job_id, []).append(finding.task_id)
    moved = 0
    for job_id, task_ids in by_job.items():
        with writing(engine) as db:
            moved += steering.retry(db, job_id, actor="reconcile", states=[TaskState.DONE], task_ids=task_ids)
    return moved


def _jobs(engine: sa.Engine, job_ids: Collection[JobId]) -> Iterator[Job]:
    if job_ids:
        for job_id in job_ids:
            with reading(engine) as db:
                yield jobs.read_job(db, job_id)
        return
    before: int | None = None
    while True:
        with reading(engine) as db:
            found = jobs.list_jobs(db, before=before, limit=_AT_ONCE)
        if not found:
            return
        yield from found
        before = found[-1].id


def _of_step(engine: sa.Engine, spaces: Spaces, job: Job, step: Step, directory: Path) -> Iterator[Finding]:
    space = spaces.of(job.id)
    after = 0
    while True:
        with reading(engine) as db:
            tasks = list_tasks(db, job.id, step=step.name, after=after, limit=_AT_ONCE)
            accepted = attempts.accepted_files(
                db, [task.id for task in tasks if task.state is TaskState.DONE]
            )
        if not tasks:
            return
        after = tasks[-1].id
        for task in tasks:
            files = accepted.get(task.id, ())
            is_done = task.state is TaskState.DONE
            names = () if is_done else space.files(step.name, task.index)
            recorded = Recorded(
                job_id=job.id,
                task_id=task.id,
                step=step.name,
                label=space.label(step.name, task.index),
                state=task.state,
                expected=tuple(str(directory / name) for name in names),
                accepted=files,
                has_marker=marker(directory, job.uid, task.id, task.generation).is_file(),
            )
            paths = (*recorded.expected, *(file.path for file in files))
            finding = compare(recorded, {path: _size(path) for path in paths})
            if finding is not None:
                yield finding


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _private(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory / PRIVATE))
    except OSError:
        return []
