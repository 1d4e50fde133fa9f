"""The leader's lease: one row, an epoch, the database's clock. Checked inside every write of the leader.

An advisory lock alone would not do: a paused holder keeps it for ever (docs/decisions/0002).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from farm.errors import NotLeader
from farm.model.events import EventKind
from farm.store import events
from farm.store.engine import db_now, read_clock, reading, writing
from farm.store.tables import LeaderRow

_T = LeaderRow.__table__  # type: ignore[attr-defined]
_NAME = "scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """The right to write as the leader, of one holder in one epoch."""

    holder: str
    epoch: int


def is_led_by_another(engine: sa.Engine, holder: str) -> bool:
    """Only reads: so one that stands by may ask every second, and hold up no writer."""
    with reading(engine) as db:
        leads = db.scalar(_CURRENT)
    return leads is not None and leads != holder


def acquire(engine: sa.Engine, *, holder: str, ttl_s: float) -> Lead | None:
    """Take or renew the lease; None when another holds it. Renewal keeps the epoch, a change raises it."""
    with writing(engine) as db:
        renewed = db.scalar(_renewal(), {"of_holder": holder, "ttl_s": ttl_s})
        if renewed is not None:
            return Lead(holder=holder, epoch=renewed)
        row = db.execute(_LEADER).mappings().first()
        now = row["now"] if row is not None else read_clock(db)
        if row is not None and row["until"] > now:
            return None
        # Not below the wall clock: after a restored backup or a lossy failover no epoch comes twice.
        epoch = max((row["epoch"] if row else 0) + 1, int(now))
        values = {"holder": holder, "epoch": epoch, "until": now + ttl_s}
        if row is None:
            try:
                with db.begin_nested():
                    db.execute(sa.insert(_T).values(name=_NAME, **values))
            except sa.exc.IntegrityError:
                return None  # another one was first on an empty table
        else:
            db.execute(sa.update(_T).where(_T.c.name == _NAME).values(**values))
        events.happened(db, EventKind.LEADER_CHANGED, f"{holder} leads, epoch {epoch}")
        return Lead(holder=holder, epoch=epoch)


# While it waits for the lock the clock may have been read: the other one then leads a little longer.
_LEADER = sa.select(_T, db_now().label("now")).where(_T.c.name == _NAME).with_for_update()


@cache
def _renewal() -> Any:
    return (
        sa.update(_T)
        .where(_T.c.name == _NAME, _T.c.holder == sa.bindparam("of_holder"), _T.c.until > db_now())
        .values(until=db_now() + sa.bindparam("ttl_s", type_=sa.Float()))
        .returning(_T.c.epoch)
    )


def current(db: sa.Connection) -> str | None:
    """Who leads now; None when nobody does."""
    holder: str | None = db.scalar(_CURRENT)
    return holder


_CURRENT = sa.select(_T.c.holder).where(_T.c.name == _NAME, _T.c.until > db_now())


def resign(engine: sa.Engine, lead: Lead) -> None:
    """Let the next one lead at once."""
    with writing(engine) as db:
        db.execute(
            sa.update(_T).where(_T.c.holder == lead.holder, _T.c.epoch == lead.epoch).values(until=db_now())
        )


@contextlib.contextmanager
def leading(engine: sa.Engine, lead: Lead) -> Iterator[sa.Connection]:
    """A writing transaction that holds only while `lead` does; raises NotLeader, nothing is written then."""
    with writing(engine) as db:
        if db.scalar(_lead_query(), {"of_holder": lead.holder, "of_epoch": lead.epoch}) is None:
            raise NotLeader(f"{lead.holder} no longer leads (epoch {lead.epoch})")
        yield db


@cache
def _lead_query() -> sa.Select[Any]:
    is_holder = _T.c.holder == sa.bindparam("of_holder")
    is_epoch = _T.c.epoch == sa.bindparam("of_epoch")
    return sa.select(_T.c.epoch).where(is_holder, is_epoch, _T.c.until > db_now()).with_for_update(read=True)
