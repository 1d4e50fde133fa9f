"""Following jobs to their end: a bar on a terminal, plain lines elsewhere. All on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.naming import label
from farm.control.views import JobView
from farm.errors import FarmError, Unavailable
from farm.model.states import ENDED_JOBS, JobState
from farm.model.work import Task
from farm.text import duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

FIRST_LOOK_S: Final = 0.1
LONGEST_LOOK_S: Final = 1.0
PLAIN_EVERY_S: Final = 5.0
"""Without a terminal, a line when something changed, but not more often than this."""
GIVE_UP_S: Final = 300.0
"""A farm that stays away for longer is given up while following."""


def follow(
    client: Client,
    job_ids: Sequence[int],
    *,
    is_quiet: bool = False,
    give_up_s: float = GIVE_UP_S,
    is_enough: Callable[[JobView], bool] = lambda view: False,
) -> list[JobView]:
    """Wait until every job has ended, or is said to be enough; their last views, in the order of `job_ids`.

    A farm that goes away meanwhile is waited for. Raises Unavailable when it stays away, NotFound.
    """
    ended: dict[int, JobView] = {}
    pause_s = FIRST_LOOK_S
    lost_at: float | None = None
    with _screen(is_quiet) as screen:
        while True:
            try:
                for job_id in job_ids:
                    if job_id in ended:
                        continue
                    view = read(JobView, client.get(f"/jobs/{job_id}"))
                    screen.show(view)
                    if view.job.state in ENDED_JOBS or is_enough(view):
                        ended[job_id] = view
                lost_at = None
            except Unavailable as error:
                now = time.monotonic()
                if lost_at is None:
                    lost_at = now
                    screen.say(f"{error}; the job goes on, waiting for the farm")
                if now - lost_at > give_up_s:
                    raise
            if len(ended) == len(set(job_ids)):
                return [ended[job_id] for job_id in job_ids]
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_LOOK_S)


def is_all_done(views: Sequence[JobView]) -> bool:
    return all(view.job.state is JobState.DONE for view in views)


def outcome(view: JobView) -> str:
    """ "job 12 shot_010: done, 250 frames in 1:02:03"."""
    job = view.job
    told = f"job {job.id} {job.name}: {job.state}, {show.every_count(view.counts)}"
    if job.finished_at is not None:
        told += f", took {duration(job.finished_at - job.submitted_at)}"
    return f"{told}; {job.reason}" if job.reason else told


def first_failure(client: Client, view: JobView) -> str:
    """ "first failed: Render 7 on blade-3: out of memory; farm logs 12"; empty when none has."""
    if not view.counts.failed:
        return ""
    found = []
    with suppress(FarmError):  # the job has ended as it has: a farm that is gone by now changes nothing
        found = client.get(f"/jobs/{view.job.id}/tasks", state="failed", limit=1)["items"]
    if not found:
        return ""
    task = read(Task, found[0])
    where = f" on {task.node_id}" if task.node_id else ""
    why = task.reason or "no reason was given"
    return f"first failed: {label(task)}{where}: {why}; farm logs {view.job.id} --task {task.id}"


def tell_end(client: Client, view: JobView) -> None:
    """Print how it ended, and why the first of its tasks failed."""
    show.line(outcome(view))
    if failure := first_failure(client, view):
        show.line(failure)


class _Screen(Protocol):
    def show(self, view: JobView) -> None: ...
    def say(self, text: str) -> None: ...


def _screen(is_quiet: bool) -> AbstractContextManager[_Screen]:
    if is_quiet:
        return _Silent()
    return _Bars() if sys.stderr.isatty() else _Lines()


class _Silent:
    def __enter__(self) -> _Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, view: JobView) -> None:
        pass

    def say(self, text: str) -> None:
        show.note(text)


class _Lines(_Silent):
    """For logs: one line a job when it changed."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, float]] = {}

    def __enter__(self) -> _Lines:
        return self

    def show(self, view: JobView) -> None:
        text = _told(view)
        before, at = self._last.get(view.job.id, ("", float("-inf")))
        now = time.monotonic()
        if text != before and (now - at >= PLAIN_EVERY_S or view.job.state in ENDED_JOBS):
            self._last[view.job.id] = (text, now)
            show.note(f"job {view.job.id} {view.job.name}: {text}")


class _Bars(_Silent):
    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        cut = Column(no_wrap=True, overflow="ellipsis")
        self._progress: Progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[told]}", markup=False, table_column=cut),
            TimeElapsedColumn(),
            console=show.console(is_error=True),
            transient=False,
        )
        self._rows: dict[int, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, view: JobView) -> None:
        job = view.job
        if job.id not in self._rows:
            name = show.shown(f"job {job.id} {job.name}", 28)
            self._rows[job.id] = self._progress.add_task(name, total=1.0, told="")
        self._progress.update(self._rows[job.id], completed=view.progress, told=show.shown(_told(view)))

    def say(self, text: str) -> None:
        from rich.text import Text

        self._progress.console.print(Text(show.shown(text, 1_000)))


def _told(view: JobView) -> str:
    counts = view.counts
    told = f"{counts.done:,}/{counts.total:,} done"
    if counts.failed:
        told += f", {counts.failed:,} failed"
    if counts.live:
        told += f", {counts.live:,} running"
    if view.job.state in ENDED_JOBS:
        return f"{told}; {view.job.state}"
    if view.job.state is JobState.PAUSED:
        return f"{told}, paused"
    if view.waiting and not counts.live:
        return f"{told}; waits: {view.waiting}"
    return f"{told}, {show.eta(view.eta_s)} left" if view.eta_s is not None else told
