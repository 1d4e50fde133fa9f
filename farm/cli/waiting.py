"""`farm wait` and `farm watch`: follow jobs to their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from farm.cli import show
from farm.cli.client import Client
from farm.cli.naming import find_job
from farm.cli.notify import notify
from farm.cli.progress import follow, is_all_done, outcome, tell_end
from farm.control.views import JobView
from farm.model.states import ENDED_JOBS, JobState
from farm.text import plural


def wait(client: Client, texts: Sequence[str], *, is_quiet: bool, is_json: bool) -> int:
    """The exit status: 0 when all jobs are done."""
    numbers = [find_job(client, text)[0].job.id for text in texts]
    ended = follow(client, numbers, is_quiet=is_quiet)
    if is_json:
        show.data([client.get(f"/jobs/{number}") for number in numbers])
    else:
        for view in ended:
            tell_end(client, view)
    return 0 if is_all_done(ended) else 1


CANCELLED_STATUS: Final = 4


def watch(
    client: Client, texts: Sequence[str], *, is_failing_fast: bool, is_quiet: bool, is_json: bool
) -> int:
    """As `wait`, with a notification for each job that ends, and at its first failed frame.

    The exit status: 0 all done, 1 one failed, 4 one was cancelled and none failed.
    """
    numbers = list(dict.fromkeys(find_job(client, text)[0].job.id for text in texts))
    told: set[tuple[int, str]] = set()

    def seen(view: JobView) -> bool:
        job = view.job
        name = f"job {job.id} {job.name}"
        if job.state in ENDED_JOBS:
            _tell_once(told, job.id, "end", f"{name}: {job.state}", outcome(view).removeprefix(f"{name}: "))
        elif view.counts.failed:
            failed = f"{plural(view.counts.failed, 'frame')} failed"
            _tell_once(told, job.id, "failure", failed, f"{name}: `farm logs {job.id}` says why")
        return is_failing_fast and bool(view.counts.failed)

    ended = follow(client, numbers, is_quiet=is_quiet, is_enough=seen)
    for view in ended:
        seen(view)
    if is_json:
        show.data([client.get(f"/jobs/{number}") for number in numbers])
    elif not is_quiet:
        for view in ended:
            tell_end(client, view)
    if is_all_done(ended):
        return 0
    is_cancelled = all(view.job.state in (JobState.DONE, JobState.CANCELLED) for view in ended)
    return CANCELLED_STATUS if is_cancelled else 1


def _tell_once(told: set[tuple[int, str]], job_id: int, what: str, title: str, text: str) -> None:
    if (job_id, what) not in told:
        told.add((job_id, what))
        notify(title, text)
