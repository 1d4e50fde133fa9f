"""Server-sent events: the events table, read twice a second for each listener, off the event loop."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import anyio
from anyio.to_thread import run_sync
from fastapi import Request

from farm.control.desk import Desk
from farm.control.views import MAX_PAGE
from farm.errors import Unavailable
from farm.http.guard import Refused
from farm.model.events import Event
from farm.model.ids import JobId
from farm.wire.messages import dump

POLL_S: Final = 0.5
COMMENT_EVERY_S: Final = 15.0
MAX_STREAMS: Final = 200
"""Of one server process."""
_SETTLE_S: Final = 3.0
"""PostgreSQL gives ids out before it commits, so a smaller id may appear this much later than a larger."""


def event_stream(
    request: Request, desk: Desk, *, after: int | None, job_id: JobId | None
) -> AsyncIterator[bytes]:
    """Ends when the listener leaves, the server stops, or the token is revoked. Raises Refused when too many
    listen already."""
    if request.app.state.streams >= MAX_STREAMS:
        raise Refused(503, "unavailable", "too many listeners; read /events instead", {"Retry-After": "15"})
    return _follow(request, desk, _Reader(desk, after, job_id))


async def _follow(request: Request, desk: Desk, reader: _Reader) -> AsyncIterator[bytes]:
    state = request.app.state
    token = request.headers["authorization"].partition(" ")[2]
    state.streams += 1
    try:
        with contextlib.suppress(Unavailable):
            await run_sync(reader.begin)  # what happens once we said that we listen is told
        yield b": listening\n\n"
        told_at = time.monotonic()
        while not state.stopping.is_set() and not await request.is_disconnected():
            try:
                if await run_sync(desk.access.owner, token) is None:
                    return
                found = await run_sync(reader.read)
            except Unavailable:
                found = []  # the database is away: go on when it is back, behind the last event told
            if found:
                yield b"".join(_encoded(event) for event in found)
                told_at = time.monotonic()
            elif time.monotonic() - told_at >= COMMENT_EVERY_S:
                yield b": still here\n\n"
                told_at = time.monotonic()
            await anyio.sleep(POLL_S)
    finally:
        state.streams -= 1


class _Reader:
    """Reads on from where it was, and again what may have been committed late."""

    def __init__(self, desk: Desk, after: int | None, job_id: JobId | None) -> None:
        self._desk = desk
        self._job_id = job_id
        self._floor = after
        self._told: set[int] = set()
        self._marks: deque[tuple[float, int]] = deque()
        """(when, last id then): what lies behind the floor is settled."""

    def begin(self) -> int:
        """Where to read on from: now, when nobody said."""
        if self._floor is None:
            self._floor = self._desk.events.last_event()
        return self._floor

    def read(self) -> list[Event]:
        floor = cursor = self.begin()
        fresh: list[Event] = []
        while True:
            page = self._desk.events.read_events(after=cursor, job_id=self._job_id, limit=MAX_PAGE).items
            fresh += [event for event in page if event.id not in self._told]
            cursor = page[-1].id if page else cursor
            if len(page) < MAX_PAGE or len(fresh) >= MAX_PAGE:
                break
        now = time.monotonic()
        self._told.update(event.id for event in fresh)
        self._marks.append((now, cursor))
        while self._marks[0][0] < now - _SETTLE_S:
            self._floor = floor = self._marks.popleft()[1]
        self._told = {event_id for event_id in self._told if event_id > floor}
        return fresh


def _encoded(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.id, str(event.kind).encode(), dump(event))
