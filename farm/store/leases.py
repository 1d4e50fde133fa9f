"""Leases of live attempts: renewed by heartbeats, and run out."""

from __future__ import annotations

from collections.abc import Collection
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


def renew(
    db: sa.Connection, node_id: NodeId, attempt_ids: Collection[AttemptId], *, lease_s: float
) -> tuple[list[AttemptId], list[AttemptId]]:
    """The node says it holds these: returns (kept, to be stopped). Held tasks go on running."""
    if not attempt_ids:
        return [], []
    asked = {"ids": sorted(attempt_ids), "of_node": node_id}
    known: dict[str, str] = {row.id: row.state for row in db.execute(_listed(db.dialect.name), asked)}
    kept = [a for a in attempt_ids if known.get(a) in ("assigned", "running")]
    if kept:
        _extend(db, kept, lease_s)
    # An attempt that ended well is on the node's list until the node has read that it was accepted.
    stop = [a for a in attempt_ids if known.get(a) not in ("assigned", "running", "succeeded")]
    return kept, stop


@cache
def _listed(dialect: str) -> sa.Select[Any]:
    """Those attempts that are the node's."""
    return sa.select(_ATTEMPT.c.id, _ATTEMPT.c.state).where(
        among_ids(dialect, _ATTEMPT.c.id), _ATTEMPT.c.node_id == sa.bindparam("of_node")
    )


def _extend(db: sa.Connection, attempt_ids: Collection[AttemptId], lease_s: float) -> None:
    """Their leases run anew, and tasks that were held because a lease had run out go on."""
    extend, held = _extending(db.dialect.name)
    ids = sorted(attempt_ids)
    db.execute(extend, {"ids": ids, "for_s": lease_s})
    for row in db.execute(held, {"ids": ids}).all():
        moves.move_all(
            db, row.step_id, TaskState.HELD, TaskState.RUNNING, values={"reason": ""}, task_ids=[row.id]
        )


@cache
def _extending(dialect: str) -> tuple[sa.Update, sa.Select[Any]]:
    extend = (
        sa.update(_ATTEMPT)
        .where(among_ids(dialect, _ATTEMPT.c.id))
        .values(lease_until=db_now() + sa.bindparam("for_s", type_=sa.Float()))
    )
    held = sa.select(_TASK.c.id, _TASK.c.step_id).where(
        among_ids(dialect, _TASK.c.attempt_id), _TASK.c.state == "held"
    )
    return extend, held


def unheard(
    db: sa.Connection, node_id: NodeId, listed: Collection[AttemptId], *, relaunch_s: float
) -> tuple[list[AttemptId], list[AttemptId]]:
    """Live attempts that the node does not list: (to be launched again, proven not running)."""
    lost_message: list[AttemptId] = []
    gone: list[AttemptId] = []
    for row in db.execute(_given_before(), {"of_node": node_id, "before_s": relaunch_s}):
        if row.id not in listed:
            (lost_message if row.state == "assigned" else gone).append(AttemptId(row.id))
    return lost_message, gone


@cache
def _given_before() -> sa.Select[Any]:
    """Live attempts that the node has had for so long."""
    since = sa.func.coalesce(_ATTEMPT.c.started_at, _ATTEMPT.c.assigned_at)
    return sa.select(_ATTEMPT.c.id, _ATTEMPT.c.state).where(
        _ATTEMPT.c.node_id == sa.bindparam("of_node"),
        _ATTEMPT.c.state.in_(LIVE),
        since < db_now() - sa.bindparam("before_s", type_=sa.Float()),
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
