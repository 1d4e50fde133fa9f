"""Messages owed to nodes: written in the transaction that owes them, removed when the broker confirmed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from farm.model.ids import AttemptId
from farm.store import rows
from farm.store.engine import among, db_now
from farm.store.tables import OutboxRow

_T = OutboxRow.__table__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """A message to be sent. A launch's payload names the attempts; its body is built when it is sent."""

    id: int
    node_id: str
    kind: str
    payload: dict[str, Any]


def owe_launch(db: sa.Connection, node_id: str, attempt_ids: Sequence[AttemptId]) -> None:
    _owe(db, node_id, "launch", {"attempt_ids": list(attempt_ids)})


def owe_control(db: sa.Connection, node_id: str, message: Any) -> None:
    """message: a farm -> node control message."""
    _owe(db, node_id, "control", rows.to_json(message))


def _owe(db: sa.Connection, node_id: str, kind: str, payload: dict[str, Any]) -> None:
    db.execute(sa.insert(_T).values(node_id=node_id, kind=kind, payload=payload, created_at=db_now()))


def read(db: sa.Connection, *, limit: int = 1_000) -> list[Owed]:
    """The oldest messages that are still owed."""
    query = sa.select(_T).order_by(_T.c.id).limit(limit)
    return [
        Owed(id=row["id"], node_id=row["node_id"], kind=row["kind"], payload=row["payload"])
        for row in db.execute(query).mappings()
    ]


def sent(db: sa.Connection, ids: Collection[int]) -> None:
    """The broker has confirmed these."""
    if ids:
        db.execute(sa.delete(_T).where(among(db, _T.c.id, ids)))
