"""What the live view shows at one moment: the API's answers as values."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from farm.control.views import FarmView, JobView, LogView, StalledView
from farm.errors import NotFound, UserError
from farm.model.attempts import Attempt
from farm.model.events import Event
from farm.model.ids import JobId
from farm.model.machines import Node
from farm.model.states import JobState, NodeState
from farm.model.work import Task

Get = Callable[[str, Mapping[str, Any]], Any]
"""GET of a path below /api/v1 with query values (a list repeats the key); the answer's JSON as objects.
Raises UserError (the request or the token is wrong) or Unavailable (safe to ask again)."""

MOST_JOBS: Final = 500
MOST_ENDED_JOBS: Final = 20
MOST_EVENTS: Final = 50
MOST_TASKS: Final = 500
MOST_LOG_LINES: Final = 5_000
_LOG_PAGE: Final = 200
_LOUD_TASKS: Final = ("assigned", "running", "cancelling", "held", "failed")
"""Shown whatever the number of the job's other tasks."""
HISTORY: Final = 240
"""Answers that the sparklines remember."""
_OPEN_STATES: Final = ("active", "waiting", "paused")
_ENDED_STATES: Final = ("done", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What else the person looks at, beyond jobs, nodes and events."""

    job_id: int | None = None
    """Whose tasks."""
    task_id: int | None = None
    """Whose log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """A task with its newest attempt."""

    task: Task
    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Of the newest attempt at a task."""

    task_id: int
    attempt: Attempt | None = None
    """None: none was made yet."""
    lines: tuple[str, ...] = ()
    """Raw, the newest last."""
    sequence: int = -1
    """Of the last chunk that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the sparklines show, one value for each answer, the newest last. None: not known then."""

    use: tuple[float | None, ...] = ()
    """0 to 1: mean utilisation of all devices that can say."""
    per_minute: tuple[float | None, ...] = ()
    spread: tuple[float | None, ...] = ()
    """Mean over the jobs that run: standard deviation / mean of their frames' times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    farm: FarmView | None = None
    """None: the farm has not answered yet."""
    jobs: tuple[JobView, ...] = ()
    """In the order shown: those that may run, by priority; then those that ended, newest first."""
    has_more_jobs: bool = False
    nodes: tuple[Node, ...] = ()
    events: tuple[Event, ...] = ()
    """Newest first."""
    per_minute: float | None = None
    """Tasks done in a minute, lately; None until there are two answers to compare."""
    utc_offset_s: float = 0.0
    """Of this machine's time zone: what a time is shown in."""
    lost_s: float | None = None
    """Seconds since the farm's last answer; None: it answers."""
    lost_reason: str = ""
    job_id: int | None = None
    """Whose tasks `tasks` are."""
    tasks: tuple[TaskLine, ...] = ()
    """Those that run, wait for a person or failed, and the first others."""
    stalled: tuple[StalledView, ...] = ()
    """The longest stalled first."""
    log: Log | None = None
    history: History = History()
    answer: str = ""
    """What the farm said to the last thing that it was asked to do."""
    has_refused: bool = False


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _read(kind: Any, answer: Any, what: str, place: str = "") -> Any:
    try:
        return _reader(kind).validate_python(answer)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place += ".".join(map(str, first["loc"]))
        raise UserError(
            f"cannot read what the server says about {what} ({place}: {first['msg']}); "
            "are server and client of the same version?"
        ) from error


@dataclass(slots=True)
class Memo:
    """Jobs as they were read last, with what they were read from: most have not changed since."""

    jobs: dict[int, tuple[Any, JobView]] = field(default_factory=dict)


def _read_jobs(items: Any, memo: Memo) -> tuple[JobView, ...]:
    found = []
    for index, raw in enumerate(items):
        number = raw["job"]["id"] if isinstance(raw, dict) and isinstance(raw.get("job"), dict) else None
        known = memo.jobs.get(number) if isinstance(number, int) else None
        if known is not None and known[0] == raw:
            found.append(known[1])
            continue
        view: JobView = _read(JobView, raw, "jobs", f"{index}.")
        memo.jobs[view.job.id] = (raw, view)
        found.append(view)
    return tuple(found)


def fetch(get: Get, wants: Wants = Wants(), log: Log | None = None, memo: Memo | None = None) -> Snapshot:
    """Ask for everything once: six requests, and a few for what else is wanted.

    log: as it was before; memo: of the fetch before, changed here. Answers are taken to be new objects each.

    Raises what `get` raises; UserError for a strange answer.
    """
    farm: FarmView = _read(FarmView, get("/farm", {}), "the farm")
    open_jobs = get("/jobs", {"state": list(_OPEN_STATES), "limit": MOST_JOBS})
    ended_jobs = get("/jobs", {"state": list(_ENDED_STATES), "limit": MOST_ENDED_JOBS})
    nodes: tuple[Node, ...] = _read(tuple[Node, ...], _items(get("/nodes", {}), "nodes"), "nodes")
    events: tuple[Event, ...] = _read(
        tuple[Event, ...],
        _items(get("/events", {"newest": "true", "limit": MOST_EVENTS}), "events"),
        "events",
    )
    memo = memo or Memo()
    unended = _read_jobs(_items(open_jobs, "jobs"), memo)
    ended = _read_jobs(_items(ended_jobs, "jobs"), memo)
    listed = {line.job.id for line in (*unended, *ended)}
    memo.jobs = {number: known for number, known in memo.jobs.items() if number in listed}
    return Snapshot(
        farm=farm,
        jobs=(*sorted(unended, key=_order), *sorted(ended, key=lambda line: -line.job.id)),
        has_more_jobs=open_jobs.get("next") is not None,
        nodes=tuple(sorted(nodes, key=lambda node: node.id)),
        events=tuple(sorted(events, key=lambda event: -event.id)),
        utc_offset_s=float(time.localtime(farm.now).tm_gmtoff),
        job_id=wants.job_id,
        tasks=() if wants.job_id is None else _tasks(get, wants.job_id),
        stalled=_stalled(get),
        log=None if wants.task_id is None else _log(get, wants.task_id, log),
    )


def _tasks(get: Get, job_id: int) -> tuple[TaskLine, ...]:
    try:
        loud = _items(get(f"/jobs/{job_id}/tasks", {"state": _LOUD_TASKS, "limit": MOST_TASKS}), "tasks")
        first = _items(get(f"/jobs/{job_id}/tasks", {"limit": MOST_TASKS}), "tasks")
        newest = _items(get(f"/jobs/{job_id}/attempts", {"limit": MOST_TASKS}), "attempts")
    except NotFound:
        return ()
    tasks: tuple[Task, ...] = _read(tuple[Task, ...], [*loud, *first], "tasks")
    attempts: tuple[Attempt, ...] = _read(tuple[Attempt, ...], newest, "attempts")
    of: dict[int, Attempt] = {}
    for attempt in sorted(attempts, key=lambda attempt: attempt.assigned_at):
        of[attempt.task_id] = attempt
    each = {task.id: TaskLine(task=task, attempt=of.get(task.id)) for task in tasks}
    return tuple(each.values())


def _stalled(get: Get) -> tuple[StalledView, ...]:
    try:
        answer = get("/stalled", {})
    except NotFound:
        return ()  # a farm from before it could tell
    stalled: tuple[StalledView, ...] = _read(
        tuple[StalledView, ...], _items(answer, "stalled attempts"), "stalled attempts"
    )
    return stalled


def _log(get: Get, task_id: int, before: Log | None) -> Log:
    """The log as it is now: only what has come since `before` is asked for."""
    try:
        attempts: tuple[Attempt, ...] = _read(
            tuple[Attempt, ...],
            _items(get(f"/tasks/{task_id}/attempts", {"limit": 1}), "attempts"),
            "attempts",
        )
    except NotFound:
        return Log(task_id=task_id)
    if not attempts:
        return Log(task_id=task_id)
    attempt = attempts[0]
    known = before if before is not None and before.attempt is not None else None
    is_same = known is not None and known.attempt is not None and known.attempt.id == attempt.id
    lines = list(known.lines) if is_same and known is not None else [""]
    sequence = known.sequence if is_same and known is not None else -1
    while True:
        answer = get(f"/attempts/{attempt.id}/log", {"after": sequence, "limit": _LOG_PAGE})
        chunks = _read(LogView, answer, "a log").chunks
        for chunk in chunks:
            more = chunk.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            lines[-1] += more[0]
            lines += more[1:]
            sequence = chunk.sequence
        lines = lines[-MOST_LOG_LINES:]
        if len(chunks) < _LOG_PAGE:
            return Log(task_id=task_id, attempt=attempt, lines=tuple(lines), sequence=sequence)


def remember(history: History, snapshot: Snapshot) -> History:
    """The history with what a new snapshot says."""
    uses = [
        load.utilisation
        for node in snapshot.nodes
        if node.state is not NodeState.OFFLINE
        for load in node.loads
        if load.utilisation is not None
    ]
    spreads = [
        line.spread.relative
        for line in snapshot.jobs
        if line.job.state is JobState.ACTIVE and line.spread is not None and line.spread.count > 1
    ]
    return History(
        use=_longer(history.use, _mean(uses)),
        per_minute=_longer(history.per_minute, snapshot.per_minute),
        spread=_longer(history.spread, _mean(spreads)),
    )


def _longer(values: tuple[float | None, ...], value: float | None) -> tuple[float | None, ...]:
    return (*values, value)[-HISTORY:]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _items(page: Any, what: str) -> Any:
    if not isinstance(page, dict) or "items" not in page:
        raise UserError(f"the server's list of {what} has no items; does the address lead to a farm?")
    return page["items"]


def _order(line: JobView) -> tuple[bool, int, int]:
    job = line.job
    return job.state is not JobState.ACTIVE, -job.settings.priority, job.id


@dataclass(slots=True)
class Throughput:
    """Tasks done in a minute, from answer to answer. A job that is requeued does not count backwards."""

    window_s: float = 60.0
    _last: dict[JobId, int] | None = None
    _steps: deque[tuple[float, int]] = field(default_factory=deque)
    """(time of the answer, tasks done since the one before)"""

    def add(self, now: float, done: Mapping[JobId, int]) -> float | None:
        """Take in an answer (seconds, done tasks of each job); the rate, None for the first one."""
        before = self._last
        self._last = dict(done)
        if before is None:
            self._steps.append((now, 0))
            return None
        more = sum(max(count - before[job], 0) for job, count in done.items() if job in before)
        self._steps.append((now, more))
        while len(self._steps) > 2 and self._steps[0][0] < now - self.window_s:
            self._steps.popleft()
        since = self._steps[0][0]
        total = sum(count for at, count in self._steps if at > since)
        return total * 60 / (now - since) if now > since else None
