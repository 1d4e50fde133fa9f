"""Calls of hooks that are owed: rows made from events, tried until they went well or are given up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from farm.flow.hooks import EVENTS, called
from farm.model.hooks import Hook, HookEvent
from farm.model.ids import JobId
from farm.store.engine import db_now, read_clock
from farm.store.tables import EventRow, HookCallRow, HookCursorRow, JobRow

_CALL = HookCallRow.__table__  # type: ignore[attr-defined]
_CURSOR = HookCursorRow.__table__  # type: ignore[attr-defined]
_EVENT = EventRow.__table__  # type: ignore[attr-defined]
_JOB = JobRow.__table__  # type: ignore[attr-defined]
_NAME = "hooks"
_SINCE = "since:"
"""Before a hook's name: the newest event there was when the hook came."""
_EVENTS = [str(event) for event in HookEvent]
"""Calls of other events are for the newer process that owed them."""
_LATE_S = 60.0
"""Ids are given before a transaction ends: one that began earlier may show its events later."""
_KEPT_S = 86400.0
"""So long a call that is over is kept, so that its event makes no second one. What is older calls nobody."""
_QUIET_S = 3600.0
"""A job that stalls again within this time calls nobody again."""
_TRY_LIMIT_S = 120.0
"""A call that was taken and not told of for so long is taken again: its process died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    id: int
    hook: str
    event: HookEvent
    job_id: JobId
    at: float
    text: str
    tries: int
    """With this one."""


def alone(db: sa.Connection) -> None:
    """Until the transaction ends no other process gathers calls or asks by a scale rule."""
    db.execute(sa.select(_CURSOR.c.event_id).where(_CURSOR.c.name == _NAME).with_for_update())


def forget_others(db: sa.Connection, names: Collection[str]) -> None:
    """One that the settings have no more and that comes back is told of what happens from then on."""
    alone(db)
    kept = [_SINCE + name for name in names]
    db.execute(sa.delete(_CURSOR).where(_CURSOR.c.name.startswith(_SINCE), _CURSOR.c.name.not_in(kept)))


def gather(db: sa.Connection, hooks: Mapping[str, Hook]) -> int:
    """Owe the calls of events that happened since the last time; returns how many.

    A hook of every job is called for what happened since it came.
    """
    now = read_clock(db)
    cursor = db.scalar(sa.select(_CURSOR.c.event_id).where(_CURSOR.c.name == _NAME).with_for_update()) or 0
    since = _since(db, hooks)
    query = (
        sa.select(_EVENT, _JOB.c.settings)
        .join(_JOB, _JOB.c.id == _EVENT.c.job_id)
        .where(
            _EVENT.c.id > cursor,
            _EVENT.c.at > now - _KEPT_S,
            _EVENT.c.kind.in_([str(kind) for kind in EVENTS]),
        )
        .order_by(_EVENT.c.id)
    )
    owed = 0
    for row in db.execute(query).mappings().all():
        job_id = JobId(row["job_id"])
        event = next(event for kind, event in EVENTS.items() if kind == row["kind"])
        asked_for = row["settings"].get("hooks", ())
        came = {name: hook for name, hook in hooks.items() if row["id"] > since[name] or name in asked_for}
        for name in called(event, asked_for, came):
            if not _is_known(db, row["id"], name, job_id, event, now):
                db.execute(
                    sa.insert(_CALL).values(
                        event_id=row["id"],
                        hook=name,
                        event=str(event),
                        job_id=job_id,
                        at=row["at"],
                        text=row["text"],
                        tries=0,
                        due_at=now,
                        error="",
                    )
                )
                owed += 1
    settled = db.scalar(sa.select(sa.func.max(_EVENT.c.id)).where(_EVENT.c.at < now - _LATE_S))
    if settled is not None and settled > cursor:
        db.execute(sa.update(_CURSOR).where(_CURSOR.c.name == _NAME).values(event_id=settled))
    db.execute(sa.delete(_CALL).where(_CALL.c.over_at < now - _KEPT_S))
    return owed


def _since(db: sa.Connection, names: Collection[str]) -> dict[str, int]:
    """The newest event there was when each hook came; those that come now are noted."""
    query = sa.select(_CURSOR).where(_CURSOR.c.name.in_([_SINCE + name for name in names]))
    since = {row["name"].removeprefix(_SINCE): row["event_id"] for row in db.execute(query).mappings()}
    if new := [name for name in names if name not in since]:
        newest = db.scalar(sa.select(sa.func.max(_EVENT.c.id))) or 0
        db.execute(sa.insert(_CURSOR), [{"name": _SINCE + name, "event_id": newest} for name in new])
        since |= dict.fromkeys(new, newest)
    return since


def _is_known(
    db: sa.Connection, event_id: int, hook: str, job_id: JobId, event: HookEvent, now: float
) -> bool:
    same = sa.and_(_CALL.c.event_id == event_id, _CALL.c.hook == hook)
    if event is HookEvent.STALLED:
        recent = sa.and_(
            _CALL.c.job_id == job_id,
            _CALL.c.hook == hook,
            _CALL.c.event == str(event),
            _CALL.c.at > now - _QUIET_S,
        )
        same = sa.or_(same, recent)
    return db.scalar(sa.select(_CALL.c.id).where(same).limit(1)) is not None


def take(db: sa.Connection, *, limit: int = 10) -> list[Call]:
    """Calls that are due, for this process alone for a while: report each with `went_well` or `failed`."""
    now = read_clock(db)
    query = (
        sa.select(_CALL)
        .where(_CALL.c.over_at.is_(None), _CALL.c.due_at <= now, _CALL.c.event.in_(_EVENTS))
        .order_by(_CALL.c.due_at, _CALL.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    found = db.execute(query).mappings().all()
    if found:
        db.execute(
            sa.update(_CALL)
            .where(_CALL.c.id.in_([row["id"] for row in found]))
            .values(due_at=now + _TRY_LIMIT_S, tries=_CALL.c.tries + 1)
        )
    return [
        Call(
            id=row["id"],
            hook=row["hook"],
            event=HookEvent(row["event"]),
            job_id=JobId(row["job_id"]),
            at=row["at"],
            text=row["text"],
            tries=row["tries"] + 1,
        )
        for row in found
    ]


def went_well(db: sa.Connection, call_id: int) -> None:
    db.execute(sa.update(_CALL).where(_CALL.c.id == call_id).values(over_at=db_now(), error=""))


def failed(db: sa.Connection, call_id: int, error: str, *, delay_s: float | None) -> None:
    """To be tried again in `delay_s`; None: given up."""
    now = read_clock(db)
    over = {"over_at": now} if delay_s is None else {"due_at": now + delay_s}
    db.execute(sa.update(_CALL).where(_CALL.c.id == call_id).values(error=error, **over))
