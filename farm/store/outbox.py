"""Messages owed to nodes: written in the transaction that owes them, removed when the broker confirmed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from farm.model.ids import AttemptId, NodeId
from farm.store import rows
from farm.store.engine import among_ids, db_now
from farm.store.tables import OutboxRow
from farm.wire.messages import TidyJob

_T = OutboxRow.__table__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """A message to be sent. A launch's payload names the attempts; its body is built when it is sent."""

    id: int
    node_id: str
    kind: str
    payload: dict[str, Any]


def owe_launches(db: sa.Connection, attempt_ids: Mapping[NodeId, Sequence[AttemptId]]) -> None:
    """attempt_ids: of each node, those that it is to start."""
    if attempt_ids:
        db.execute(
            _OWE,
            [
                {"node_id": node_id, "kind": "launch", "payload": {"attempt_ids": list(ids)}}
                for node_id, ids in attempt_ids.items()
            ],
        )


def owe_control(db: sa.Connection, node_id: str, message: Any) -> None:
    """message: a farm -> node control message."""
    db.execute(_OWE, {"node_id": node_id, "kind": "control", "payload": rows.to_json(message)})


_OWE = sa.insert(_T).values(
    node_id=sa.bindparam("node_id"),
    kind=sa.bindparam("kind"),
    payload=sa.bindparam("payload"),
    created_at=db_now(),
)
_OLDEST = sa.select(_T).order_by(_T.c.id).limit(sa.bindparam("most"))


def read(db: sa.Connection, *, limit: int = 1_000) -> list[Owed]:
    """The oldest messages that are still owed."""
    return [
        Owed(id=row["id"], node_id=row["node_id"], kind=row["kind"], payload=row["payload"])
        for row in db.execute(_OLDEST, {"most": limit}).mappings()
    ]


def take_back_tidying(db: sa.Connection, job_uid: str) -> None:
    """The job goes on after all: what was owed at its end would take its attempts' directories from them."""
    db.execute(_TAKE_BACK, {"of_kind": TidyJob(job_uid=job_uid, directories=()).kind, "of_job": job_uid})


_TAKE_BACK = sa.delete(_T).where(
    _T.c.kind == "control",
    _T.c.payload["kind"].as_string() == sa.bindparam("of_kind"),
    _T.c.payload["job_uid"].as_string() == sa.bindparam("of_job"),
)


def sent(db: sa.Connection, ids: Collection[int]) -> None:
    """The broker has confirmed these."""
    if ids:
        db.execute(_removing(db.dialect.name), {"ids": sorted(ids)})


@cache
def _removing(dialect: str) -> sa.Delete:
    return sa.delete(_T).where(among_ids(dialect, _T.c.id))
