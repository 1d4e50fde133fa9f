"""Leases of live attempts: renewed by heartbeats, and run out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from farm.flow.outage import Silence
from farm.model.ids import AttemptId, JobId, NodeId
from farm.model.states import TaskState
from farm.store import moves
from farm.store.engine import among_ids, db_now
from farm.store.rows import LIVE
from farm.store.tables import AttemptRow, NodeRow, TaskRow

_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_NODE = NodeRow.__table__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What a heartbeat's list of attempts comes to."""

    kept: list[AttemptId]
    """Their leases run anew."""
    stop: list[AttemptId]
    """Listed, and not the node's to run (any more)."""
    unsent: list[AttemptId]
    """Not listed, and to be launched again: the message was lost."""
    gone: list[AttemptId]
    """Not listed, and proven not running."""


def renew(
    db: sa.Connection,
    node_id: NodeId,
    listed: Collection[AttemptId],
    *,
    lease_s: float,
    relaunch_s: float,
) -> Renewal:
    """The node says it holds `listed`, and nothing else. Tasks that were held for them go on running.

    relaunch_s: an attempt may be unlisted for so long after it was given or has begun.
    """
    asked = {"ids": sorted(listed), "of_node": node_id, "before_s": relaunch_s}
    found = db.execute(_concerned(db.dialect.name), asked).all()
    known = {row.id: row.state for row in found}
    kept = [a for a in listed if known.get(a) in ("assigned", "running")]
    if kept:
        db.execute(_extending(db.dialect.name), {"ids": sorted(kept), "for_s": lease_s})
    for row in found:
        if row.is_held and row.id in kept:
            going_on = {"reason": ""}
            moves.move_all(
                db, row.step_id, TaskState.HELD, TaskState.RUNNING, values=going_on, task_ids=[row.task_id]
            )
    late = [row for row in found if row.is_late and row.id not in listed]
    return Renewal(
        kept=kept,
        # An attempt that ended well is on the node's list until the node has read that it was accepted.
        stop=[a for a in listed if known.get(a) not in ("assigned", "running", "succeeded")],
        unsent=[AttemptId(row.id) for row in late if row.state == "assigned"],
        gone=[AttemptId(row.id) for row in late if row.state != "assigned"],
    )


@cache
def _concerned(dialect: str) -> sa.Select[Any]:
    """The node's attempts that live, and those that it lists."""
    since = sa.func.coalesce(_ATTEMPT.c.started_at, _ATTEMPT.c.assigned_at)
    is_late = since < db_now() - sa.bindparam("before_s", type_=sa.Float())
    is_live = _ATTEMPT.c.state.in_(LIVE)
    return (
        sa.select(
            _ATTEMPT.c.id,
            _ATTEMPT.c.state,
            _ATTEMPT.c.step_id,
            _ATTEMPT.c.task_id,
            sa.and_(is_live, is_late).label("is_late"),
            sa.and_(_TASK.c.state == "held", _TASK.c.attempt_id == _ATTEMPT.c.id).label("is_held"),
        )
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .where(
            _ATTEMPT.c.node_id == sa.bindparam("of_node"),
            sa.or_(is_live, among_ids(dialect, _ATTEMPT.c.id)),
        )
    )


@cache
def _extending(dialect: str) -> sa.Update:
    return (
        sa.update(_ATTEMPT)
        .where(among_ids(dialect, _ATTEMPT.c.id))
        .values(lease_until=db_now() + sa.bindparam("for_s", type_=sa.Float()))
    )


def _ran_out() -> sa.Select[Any]:
    """Live attempts whose lease has run out, less those whose task is held for that very reason."""
    return (
        sa.select(_ATTEMPT.c.id, _ATTEMPT.c.job_id)
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .where(_ATTEMPT.c.state.in_(LIVE), _ATTEMPT.c.lease_until < db_now(), _TASK.c.state != "held")
    )


def silence(db: sa.Connection, *, heard_s: float) -> Silence:
    """How many nodes have leases that ran out, and how many have spoken within `heard_s`."""
    row = db.execute(_silence_query(), {"heard_s": heard_s}).one()
    return Silence(silent=row.silent, heard=row.heard)


@cache
def _silence_query() -> sa.Select[Any]:
    heard_s = sa.bindparam("heard_s", type_=sa.Float())
    silent = _ran_out().with_only_columns(sa.func.count(sa.distinct(_ATTEMPT.c.node_id)))
    heard = sa.select(sa.func.count()).select_from(_NODE).where(_NODE.c.seen_at >= db_now() - heard_s)
    return sa.select(silent.scalar_subquery().label("silent"), heard.scalar_subquery().label("heard"))


def expired(db: sa.Connection, *, grace_s: float = 0.0) -> list[tuple[AttemptId, JobId]]:
    """Attempts to be given up: their lease ran out, `grace_s` ago or more (for cancelled ones: at all)."""
    found = db.execute(_expired_query(), {"grace_s": grace_s})
    return [(AttemptId(row.id), JobId(row.job_id)) for row in found]


@cache
def _expired_query() -> sa.Select[Any]:
    grace_s = sa.bindparam("grace_s", type_=sa.Float())
    is_over = sa.or_(_ATTEMPT.c.lease_until < db_now() - grace_s, _ATTEMPT.c.state == "cancelling")
    return _ran_out().where(is_over).limit(1_000)
