"""Who asked for what: added in the transaction that did it, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from farm.store.engine import db_now
from farm.store.tables import AuditRow

_T = AuditRow.__table__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that somebody asked for through the API."""

    id: int = 0
    """Given by the database, as `at` is."""
    at: float = 0.0
    actor: str
    token: str
    """The token's name."""
    ip: str
    method: str
    path: str
    target: str = ""
    """What it was about: "job 12", "node blade-3"."""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    status: int
    """HTTP; 400 and above: it was refused."""


def add(db: sa.Connection, entry: Entry) -> None:
    db.execute(
        sa.insert(_T).values(
            at=db_now(),
            actor=entry.actor,
            token=entry.token,
            ip=entry.ip,
            method=entry.method,
            path=entry.path,
            target=entry.target,
            before=sa.null() if entry.before is None else entry.before,
            after=sa.null() if entry.after is None else entry.after,
            status=entry.status,
        )
    )


def read(db: sa.Connection, *, after: int = 0, limit: int = 100) -> list[Entry]:
    """In order of id: the first `limit` after `after`."""
    query = sa.select(_T).where(_T.c.id > after).order_by(_T.c.id).limit(limit)
    return [Entry(**row) for row in db.execute(query).mappings()]
