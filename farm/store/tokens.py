"""API tokens. The database holds digests only."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import sqlalchemy as sa

from farm.errors import NotFound, UserError
from farm.model.ids import NodeId
from farm.store.engine import db_now
from farm.store.tables import TokenRow

_T = TokenRow.__table__  # type: ignore[attr-defined]

ROLES = ("admin", "user")
NODE_ROLE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOwner:
    """Whom a token speaks for. An admin may steer everybody's jobs and the nodes; a user his own jobs; a node
    (whose name is `user`) may ask for its account at the broker."""

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
    return _insert(db, name=name, user=user, role=role)


def create_for_node(db: sa.Connection, node_id: NodeId) -> str:
    """Make the node's token and return it; one that it had is of no use any more."""
    name = node_token_name(node_id)
    db.execute(sa.delete(_T).where(_T.c.name == name))
    return _insert(db, name=name, user=node_id, role=NODE_ROLE)


def is_of_node(db: sa.Connection, node_id: NodeId) -> bool:
    """Whether it has a token: it joined by a code."""
    name = node_token_name(node_id)
    return db.scalar(sa.select(_T.c.name).where(_T.c.name == name)) is not None


def revoke_of_node(db: sa.Connection, node_id: NodeId) -> None:
    """None is fine."""
    db.execute(sa.delete(_T).where(_T.c.name == node_token_name(node_id)))


def node_token_name(node_id: NodeId) -> str:
    return f"node {node_id}"


def _insert(db: sa.Connection, *, name: str, user: str, role: str) -> str:
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
