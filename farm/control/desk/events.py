"""What happened, for people to read and to follow."""

from __future__ import annotations

import sqlalchemy as sa

from farm.control.views import Page, next_after
from farm.model.events import Event
from farm.model.ids import JobId
from farm.store import events
from farm.store.engine import reading


class EventDesk:
    """Thread-safe."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def read_events(
        self, *, after: int, job_id: JobId | None, limit: int, newest: bool = False
    ) -> Page[Event]:
        with reading(self._engine) as db:
            found = events.read(db, after=after, job_id=job_id, limit=limit, newest=newest)
        return Page(items=tuple(found), next=None if newest else next_after(found, limit))

    def last_event(self) -> int:
        with reading(self._engine) as db:
            return events.last_id(db)
