"""Since when which policy and weights hold: the spread before and after a change can be told apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from farm.store.engine import db_now
from farm.store.tables import PolicyChangeRow

_CHANGE = PolicyChangeRow.__table__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    at: float
    policy: str
    weights: dict[str, Any]
    """Those that differ from their defaults."""


def note(db: sa.Connection, policy: str, weights: dict[str, Any]) -> None:
    """These hold now. Nothing is written when they held already."""
    newest = recent(db, limit=1)
    if not newest or (newest[0].policy, newest[0].weights) != (policy, weights):
        db.execute(sa.insert(_CHANGE).values(at=db_now(), policy=policy, weights=weights))


def recent(db: sa.Connection, *, limit: int) -> list[PolicyChange]:
    """The newest first."""
    query = sa.select(_CHANGE).order_by(_CHANGE.c.id.desc()).limit(limit)
    return [PolicyChange(at=row.at, policy=row.policy, weights=row.weights) for row in db.execute(query)]
