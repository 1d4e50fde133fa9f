"""`farm tasks`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from farm.cli import show
from farm.cli.answers import read
from farm.cli.jobs import job_answers
from farm.cli.listing import Listing, Wanted
from farm.cli.naming import Connected, check_frames, check_states, find_job
from farm.cli.show import Column, cell
from farm.control.fields import TASK_FIELDS
from farm.control.views import JobView
from farm.errors import UserError
from farm.model.states import TaskState
from farm.model.work import Task
from farm.text import duration

_SHOWN_TASKS: Final = 1_000


def tasks(
    client: Connected, *, states: Sequence[str], frames: str | None, step: str | None, wanted: Wanted
) -> None:
    """The first of the typed words may be a job; without one, tasks of all jobs are listed."""
    job_text, words = _job_and_filter(wanted.words)
    wanted = replace(wanted, words=words)
    listing = Listing(Task, TASK_FIELDS, "tasks", wanted)
    chosen = check_states(states, TaskState, "task")
    pinned = listing.filter.pinned("state")
    if pinned is not None:
        chosen = [state for state in TaskState if state in pinned and (not chosen or state in chosen)]
    query: dict[str, Any] = {"state": tuple(chosen), "frames": check_frames(frames), "step": step}
    connected = client()
    if job_text is None:
        if frames is not None or step is not None:
            raise UserError("--frames and --step need a job: farm tasks JOB --frames 1-20")
        views = [read(JobView, answer) for answer in job_answers(connected, {"state": ()}, is_whole=False)]
    else:
        views = [find_job(connected, job_text)[0]]
    has_load = show.width() >= 100
    has_steps = job_text is None or len(views[0].job.steps) > 1
    columns = [Column("Job", is_right=True)] if job_text is None else []
    columns += [Column("Task", is_right=True), *([Column("Step", shrinks=True)] if has_steps else [])]
    columns += [Column("Frame", shrinks=True), Column("State"), Column("Node", shrinks=True)]
    columns += [
        Column("Tries", is_right=True),
        Column("Time", is_right=True),
        *([Column("Load", is_right=True)] if has_load else []),
        Column("Note", shrinks=True, least=12),
    ]

    def row(task: Task) -> list[Any]:
        note = task.reason or "; ".join(task.warnings)
        if not note and task.progress is not None and task.state is TaskState.RUNNING:
            note = show.percent(task.progress)
        return [
            *([cell(task.job_id)] if job_text is None else []),
            cell(task.id),
            *([cell(task.step)] if has_steps else []),
            cell(task.label),
            show.state(task.state),
            cell(task.node_id or ""),
            cell(task.starts),
            duration(task.runtime_s),
            *([duration(task.load_s)] if has_load else []),
            cell(note),
        ]

    def answers() -> Iterator[Any]:
        if pinned is not None and not chosen:
            return
        for view in views:
            if job_text or not chosen or any(getattr(view.counts, state.value) for state in chosen):
                yield from connected.items(f"/jobs/{view.job.id}/tasks", **query)

    is_cut = listing.put(listing.matching(answers()), columns, row, empty="no such tasks", limit=_SHOWN_TASKS)
    if is_cut:
        show.note(f"only the first {_SHOWN_TASKS:,} tasks are shown: use a filter, --frames or --json")


def _job_and_filter(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """A word that compares nothing, at the front, is a job."""
    first, rest = (words[0].strip(), tuple(words[1:])) if words else ("", ())
    is_filter = (
        not first
        or re.search(r"[=~<>(]", first) is not None
        or first.lower() == "not"
        or (rest and re.match(r"\s*[=~<>!]", rest[0]) is not None)
    )
    return (None, tuple(words)) if is_filter else (first, rest)
