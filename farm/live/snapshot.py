"""What the live view shows at one moment: the API's answers as values."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from farm.control.views import FarmView, JobView
from farm.errors import UserError
from farm.model.events import Event
from farm.model.ids import JobId
from farm.model.machines import Node
from farm.model.states import JobState

Get = Callable[[str, Mapping[str, Any]], Any]
"""GET of a path below /api/v1 with query values (a list repeats the key); the answer's JSON as objects.
Raises UserError (the request or the token is wrong) or Unavailable (safe to ask again)."""

MOST_JOBS: Final = 500
MOST_ENDED_JOBS: Final = 20
MOST_EVENTS: Final = 50
_OPEN_STATES: Final = ("active", "waiting", "paused")
_ENDED_STATES: Final = ("done", "failed", "cancelled")


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


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _read(kind: Any, answer: Any, what: str) -> Any:
    try:
        return _reader(kind).validate_python(answer)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(
            f"cannot read what the server says about {what} ({place}: {first['msg']}); "
            "are server and client of the same version?"
        ) from error


def fetch(get: Get) -> Snapshot:
    """Ask for everything once: five requests. Raises what `get` raises; UserError for a strange answer."""
    farm: FarmView = _read(FarmView, get("/farm", {}), "the farm")
    open_jobs = get("/jobs", {"state": list(_OPEN_STATES), "limit": MOST_JOBS})
    ended_jobs = get("/jobs", {"state": list(_ENDED_STATES), "limit": MOST_ENDED_JOBS})
    nodes: tuple[Node, ...] = _read(tuple[Node, ...], _items(get("/nodes", {}), "nodes"), "nodes")
    events: tuple[Event, ...] = _read(
        tuple[Event, ...],
        _items(get("/events", {"newest": "true", "limit": MOST_EVENTS}), "events"),
        "events",
    )
    unended: tuple[JobView, ...] = _read(tuple[JobView, ...], _items(open_jobs, "jobs"), "jobs")
    ended: tuple[JobView, ...] = _read(tuple[JobView, ...], _items(ended_jobs, "jobs"), "jobs")
    return Snapshot(
        farm=farm,
        jobs=(*sorted(unended, key=_order), *sorted(ended, key=lambda line: -line.job.id)),
        has_more_jobs=open_jobs.get("next") is not None,
        nodes=tuple(sorted(nodes, key=lambda node: node.id)),
        events=tuple(sorted(events, key=lambda event: -event.id)),
        utc_offset_s=float(time.localtime(farm.now).tm_gmtoff),
    )


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
