"""`farm logs`: the output of renderers."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.naming import check_frames, check_states, find_job, label
from farm.cli.show import shown
from farm.control.views import FoundLine, JobView, LogView
from farm.errors import NotFound, Unavailable, UserError
from farm.model.attempts import Attempt
from farm.model.states import LIVE_ATTEMPTS, AttemptState, TaskState
from farm.model.work import Task
from farm.text import clean

_LOG_PAGE: Final = 500
_LOG_LOOK_S: Final = 0.5
_RECONNECT_S: Final = 1.0


def logs(
    client: Client,
    text: str,
    *,
    frame: int | None,
    task_id: int | None,
    attempt_id: str | None,
    is_following: bool,
    tail: int | None,
    is_json: bool,
) -> None:
    if is_json and is_following:
        raise UserError("--follow prints text as it comes: leave --json away")
    if sum(choice is not None for choice in (frame, task_id, attempt_id)) > 1:
        raise UserError("choose one of --frame, --task and --attempt")
    view, _ = find_job(client, text)
    attempt = _attempt(client, view, frame=frame, task_id=task_id, attempt_id=attempt_id)
    if is_json:
        pieces = _log(client, attempt.id, is_following=False, is_whole=tail is not None)
        told = {"attempt_id": attempt.id, "task_id": attempt.task_id, "node_id": attempt.node_id}
        text = "".join(pieces if tail is None else _last_lines(pieces, tail))
        show.data({**told, "state": attempt.state, "text": text})
        return
    task = read(Task, client.get(f"/tasks/{attempt.task_id}"))
    show.note(f"{label(task)} on {attempt.node_id}: {attempt.state} (attempt {attempt.id})")
    if attempt.stall is not None and attempt.stall.is_stall:
        show.note(f"taken for {show.shown(attempt.stall.told, 500)}")
    pieces = _log(client, attempt.id, is_following=is_following, is_whole=tail is not None)
    if tail is None:
        for piece in pieces:
            _write(piece)
    else:
        for kept in _last_lines(pieces, tail):
            _write(kept)


def grep(
    client: Client, text: str, pattern: str, *, frames: str | None, states: Sequence[str], is_json: bool
) -> int:
    """The exit status, as grep's: 1 when no line holds the text."""
    query: dict[str, Any] = {
        "text": pattern,
        "frames": check_frames(frames),
        "state": tuple(check_states(states, TaskState, "task")),
    }
    view, _ = find_job(client, text)
    lines = _found_lines(client, f"/jobs/{view.job.id}/grep", query)
    if is_json:
        answers = list(lines)
        show.data(answers)
        return 0 if answers else 1
    is_found = False
    for line in (read(FoundLine, answer) for answer in lines):
        is_found = True
        where = f"{line.step} {line.label}".strip() if len(view.job.steps) > 1 else line.label or line.step
        show.line(f"{where} {line.node_id}:{line.number}: {line.text}")
    if not is_found:
        show.note(f"no output of job {view.job.id} holds '{shown(pattern, 60)}'")
    return 0 if is_found else 1


def _found_lines(client: Client, path: str, query: dict[str, Any]) -> Iterator[Any]:
    """A page without lines is not the last one."""
    after: Any = None
    while True:
        page = client.get(path, **query, after=after, limit=_LOG_PAGE)
        yield from page["items"]
        after = page["next"]
        if after is None:
            return


def _last_lines(pieces: Iterable[str], count: int) -> Iterator[str]:
    """The last `count` lines of what is there now, then whatever follows. An empty piece marks "now"."""
    lines: deque[str] = deque(maxlen=count)
    rest = ""
    is_now = False
    for piece in pieces:
        if is_now:
            yield piece
        elif piece:
            *whole, rest = (rest + piece).split("\n")
            lines.extend(line + "\n" for line in whole)
        else:
            is_now = True
            yield from [*lines, rest][-count:] if rest and count else lines
            lines.clear()


def _log(client: Client, attempt_id: str, *, is_following: bool, is_whole: bool) -> Iterator[str]:
    """Pieces of raw text. With `is_whole`, an empty piece after what is there now."""
    after = -1
    is_caught_up = False
    while True:
        try:
            log = read(LogView, client.get(f"/attempts/{attempt_id}/log", after=after, limit=_LOG_PAGE))
        except Unavailable as error:
            if not is_following:
                raise
            show.note(f"{error}; trying again")
            time.sleep(_RECONNECT_S)
            continue
        for chunk in log.chunks:
            after = max(after, chunk.sequence)
            if chunk.text:
                yield chunk.text
        if log.chunks:
            continue
        if is_whole and not is_caught_up:
            is_caught_up = True
            yield ""
        if log.is_ended or not is_following:
            return
        time.sleep(_LOG_LOOK_S)


def _write(text: str) -> None:
    sys.stdout.write(clean(text, limit=len(text)))
    sys.stdout.flush()


def _attempt(
    client: Client, view: JobView, *, frame: int | None, task_id: int | None, attempt_id: str | None
) -> Attempt:
    job = view.job
    if attempt_id is not None:
        attempt = read(Attempt, client.get(f"/attempts/{quote(attempt_id, safe='')}"))
        if attempt.job_id != job.id:
            raise UserError(f"attempt {attempt.id} is of job {attempt.job_id}, not of job {job.id}")
        return attempt
    what = f"job {job.id}"
    if frame is not None:
        found = client.get(f"/jobs/{job.id}/tasks", frames=str(frame), limit=10)["items"]
        if not found:
            known = "; ".join(step.frames for step in job.steps if step.frames)
            has = f"; it has {shown(known, 100)}" if known else ""
            raise NotFound(f"job {job.id} has no frame {frame}{has}")
        listed = [a for item in found for a in client.get(f"/tasks/{item['id']}/attempts")["items"]]
        what = f"frame {frame} of job {job.id}"
    elif task_id is not None:
        task = read(Task, client.get(f"/tasks/{task_id}"))
        if task.job_id != job.id:
            raise UserError(f"task {task_id} is of job {task.job_id}, not of job {job.id}")
        listed = client.get(f"/tasks/{task_id}/attempts")["items"]
        what = f"task {task_id}"
    else:
        for states in (tuple(LIVE_ATTEMPTS), (AttemptState.FAILED, AttemptState.LOST), ()):
            listed = client.get(f"/jobs/{job.id}/attempts", state=states, limit=50)["items"]
            if listed:
                break
    if not listed:
        waits = f": {view.waiting}" if view.waiting else ""
        raise NotFound(f"nothing has run of {what} yet{waits}")
    return min((read(Attempt, item) for item in listed), key=_interest)


def _interest(attempt: Attempt) -> tuple[int, float]:
    """The running one first, then the last failed one, then the last."""
    if attempt.state in LIVE_ATTEMPTS:
        rank = 0
    elif attempt.state in (AttemptState.FAILED, AttemptState.LOST):
        rank = 1
    else:
        rank = 2
    return rank, -attempt.assigned_at
