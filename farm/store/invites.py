"""Codes with which a machine may join, each once. The database holds digests only."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import sqlalchemy as sa

from farm.errors import Forbidden
from farm.flow.joining import CODE_LENGTH, CODE_SIGNS, read_code, written_code
from farm.model.ids import NodeId
from farm.store.engine import db_now, read_clock
from farm.store.tables import InviteRow
from farm.store.tokens import digest
from farm.text import clean, duration

_T = InviteRow.__table__  # type: ignore[attr-defined]
_KEPT_S = 7 * 86400.0
"""A code that is over is remembered so long, to say why it is not taken."""


class UnknownCode(Forbidden):
    """A guess, perhaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invite:
    node_id: NodeId | None
    """The one name that may join by it; None: any that is free."""
    needs_approval: bool
    made_by: str


def create(
    db: sa.Connection, *, life_s: float, node_id: NodeId | None, needs_approval: bool, actor: str
) -> tuple[str, float]:
    """Make a code, and return it with the time (of the database) when it runs out."""
    now = read_clock(db)
    db.execute(sa.delete(_T).where(_T.c.until < now - _KEPT_S))
    code = "".join(secrets.choice(CODE_SIGNS) for _ in range(CODE_LENGTH))
    db.execute(
        sa.insert(_T).values(
            digest=digest(code),
            node_id=node_id,
            needs_approval=needs_approval,
            made_by=actor,
            made_at=now,
            until=now + life_s,
        )
    )
    return written_code(code), now + life_s


def use(db: sa.Connection, text: str, *, node_id: NodeId) -> Invite:
    """Take the code for this node: it is of no use afterwards, if the transaction goes well.

    Raises UserError, UnknownCode, Forbidden.
    """
    code = digest(read_code(text))
    # In one statement: of two machines with one code, one gets in.
    used = db.execute(
        sa.update(_T)
        .where(
            _T.c.digest == code,
            _T.c.used_at.is_(None),
            _T.c.until > db_now(),
            sa.or_(_T.c.node_id.is_(None), _T.c.node_id == node_id),
        )
        .values(used_at=db_now(), used_by=node_id)
        .returning(_T.c.node_id, _T.c.needs_approval, _T.c.made_by)
    ).first()
    if used is not None:
        named = None if used[0] is None else NodeId(used[0])
        return Invite(node_id=named, needs_approval=bool(used[1]), made_by=used[2])
    row = db.execute(sa.select(_T, db_now().label("now")).where(_T.c.digest == code)).mappings().first()
    if row is None:
        raise UnknownCode(f"the code {clean(text, limit=40, one_line=True)} is not known: look at it again")
    if row["used_at"] is not None:
        raise Forbidden(f"the code was used by {row['used_by']}: each lets one machine in; ask for another")
    if row["until"] <= row["now"]:
        ago = duration(row["now"] - row["until"])
        raise Forbidden(f"the code ran out {ago} ago: ask for another (`farm invite`)")
    raise Forbidden(f"the code is for the node {row['node_id']}, not for {node_id}: join with --name")
