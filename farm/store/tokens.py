"""API tokens. The database holds digests only."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import sqlalchemy as sa

from farm.errors import NotFound, UserError
from farm.store.engine import db_now
from farm.store.tables import TokenRow

_T = TokenRow.__table__  # type: ignore[attr-defined]

ROLES = ("admin", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOwner:
    """Whom a token speaks for. An admin may steer everybody's jobs and the nodes; a user his own jobs."""

    name: str
    user: str
    role: str


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def create(db: sa.Connection, *, name: str, user: str, role: str) -> str:
    """Make a token and return it: the only time it can be seen. Raises UserError."""
    if role not in ROLES:
        raise UserError(f"role {role!r} does not exist; roles are: {', '.join(ROLES)}")
    if db.scalar(sa.select(_T.c.name).where(_T.c.name == name)) is not None:
        raise UserError(f"a token named {name!r} exists already; revoke it or choose another name")
    token = "rl_" + secrets.token_urlsafe(32)
    db.execute(
        sa.insert(_T).values(digest=digest(token), name=name, user=user, role=role, created_at=db_now())
    )
    return token


def owner(db: sa.Connection, token: str) -> TokenOwner | None:
    """Whose token it is; None when unknown or revoked."""
    row = db.execute(sa.select(_T).where(_T.c.digest == digest(token))).mappings().first()
    return TokenOwner(name=row["name"], user=row["user"], role=row["role"]) if row else None


def listed(db: sa.Connection) -> list[TokenOwner]:
    query = sa.select(_T).order_by(_T.c.name)
    return [
        TokenOwner(name=row["name"], user=row["user"], role=row["role"])
        for row in db.execute(query).mappings()
    ]


def revoke(db: sa.Connection, name: str) -> None:
    """Raises NotFound."""
    if not db.execute(sa.delete(_T).where(_T.c.name == name)).rowcount:
        raise NotFound(f"there is no token named {name!r}")
