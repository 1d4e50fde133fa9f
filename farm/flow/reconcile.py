"""The disk against the database: what differs, and what to do about it. Who calls looks at the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from farm.model.attempts import PublishedFile
from farm.model.ids import JobId, TaskId
from farm.model.states import TaskState


class Difference(StrEnum):
    FILES_GONE = "files-gone"
    """A done task's accepted files are not there, or are of another size."""
    NOT_RECORDED = "not-recorded"
    """All of a task's files are there, and the database does not take it for done."""
    JOB_UNKNOWN = "job-unknown"
    """A private directory of a job that the database does not have."""
    NOT_SEEN = "not-seen"
    """The output directory cannot be seen from this machine: nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the database holds of one task."""

    job_id: JobId
    task_id: TaskId
    step: str
    label: str
    state: TaskState
    expected: tuple[str, ...]
    """Paths that it is to write; empty when that is not known."""
    accepted: tuple[PublishedFile, ...]
    """Of its accepted attempt; empty unless it is done."""
    has_marker: bool
    """A record of the publication lies in the job's private directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    difference: Difference
    text: str
    """One line."""
    advice: str
    job_id: JobId | None = None
    task_id: TaskId | None = None
    paths: tuple[str, ...] = ()


def compare(task: Recorded, sizes: Mapping[str, int | None]) -> Finding | None:
    """What differs for one task. sizes: bytes of each path that it names, None for one that is not there."""
    name = f"job {task.job_id} {task.step} {task.label}"
    if task.state is TaskState.DONE:
        wrong = [file.path for file in task.accepted if sizes.get(file.path) != file.size_bytes]
        if not wrong:
            return None
        is_there = any(sizes.get(path) is not None for path in wrong)
        return Finding(
            difference=Difference.FILES_GONE,
            text=f"{name} is done, and {wrong[0]} is {'of another size' if is_there else 'not there'}",
            advice="`farm reconcile --fix` renders it again; or bring the file back from a backup",
            job_id=task.job_id,
            task_id=task.task_id,
            paths=tuple(wrong),
        )
    if not task.expected or any(not sizes.get(path) for path in task.expected):
        return None
    if task.has_marker:
        advice = "nothing: when its turn comes it is taken over without being rendered"
        if task.state in (TaskState.FAILED, TaskState.CANCELLED):
            advice = f"`farm retry {task.job_id}`: it is taken over without being rendered"
    else:
        advice = (
            "look at the file, which another job may have rendered: move it away to render the task, "
            "or leave the task alone"
        )
    return Finding(
        difference=Difference.NOT_RECORDED,
        text=f"{name} is {task.state}, and {task.expected[0]} is there",
        advice=advice,
        job_id=task.job_id,
        task_id=task.task_id,
        paths=task.expected,
    )


def unknown_job(uid: str, directory: str) -> Finding:
    return Finding(
        difference=Difference.JOB_UNKNOWN,
        text=f"{directory} holds the private directory of a job that the database does not have ({uid})",
        advice="it was submitted after the backup that was restored, or by another farm: submit it again",
        paths=(directory,),
    )


def not_seen(job_id: JobId, directory: str) -> Finding:
    return Finding(
        difference=Difference.NOT_SEEN,
        text=f"job {job_id} writes to {directory}, which cannot be seen from here",
        advice="run this where the storage is mounted",
        job_id=job_id,
        paths=(directory,),
    )
