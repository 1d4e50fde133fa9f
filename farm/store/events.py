"""What happened: appended in the transaction that did it."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from farm.model.events import Event, EventKind
from farm.model.ids import JobId
from farm.store import rows
from farm.store.bulk import insert_many
from farm.store.engine import read_clock
from farm.store.tables import EventRow

_T = EventRow.__table__  # type: ignore[attr-defined]


def happened(
    db: sa.Connection,
    kind: EventKind,
    text: str = "",
    *,
    actor: str = "",
    job_id: int | None = None,
    task_id: int | None = None,
    attempt_id: str | None = None,
    node_id: str | None = None,
) -> None:
    happened_many(
        db,
        [
            {
                "kind": str(kind),
                "text": text,
                "actor": actor,
                "job_id": job_id,
                "task_id": task_id,
                "attempt_id": attempt_id,
                "node_id": node_id,
            }
        ],
    )


def happened_many(
    db: sa.Connection, events: Sequence[dict[str, object]], *, now: float | None = None
) -> None:
    """Append rows with the keys of EventRow less `id` and `at`; `now`: the database's, when known."""
    if events:
        now = read_clock(db) if now is None else now
        insert_many(db, _T, [{**event, "at": now} for event in events])


def read(
    db: sa.Connection, *, after: int = 0, job_id: JobId | None = None, limit: int = 100, newest: bool = False
) -> list[Event]:
    """In order of id: the first `limit` after `after`, or with `newest` the last `limit`."""
    query = sa.select(_T).where(_T.c.id > after)
    if job_id is not None:
        query = query.where(_T.c.job_id == job_id)
    query = query.order_by(_T.c.id.desc() if newest else _T.c.id).limit(limit)
    found = [rows.event(row) for row in db.execute(query).mappings()]
    return found[::-1] if newest else found


def happened_since(db: sa.Connection, kind: EventKind, *, actor: str, since: float) -> bool:
    """Whether `actor` made such a thing happen at `since` (database clock) or later."""
    query = sa.select(_T.c.id).where(_T.c.at >= since, _T.c.kind == str(kind), _T.c.actor == actor)
    return db.scalar(query.limit(1)) is not None


def last_id(db: sa.Connection) -> int:
    return db.scalar(sa.select(sa.func.max(_T.c.id))) or 0
