"""Nodes: enrolled by their first heartbeat, seen by every further one, drained by people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import sqlalchemy as sa

from farm.errors import NotFound, Rejected
from farm.flow import node_users
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, NodeId
from farm.model.machines import Capabilities, DeviceLoad, Node, NodeView, Use
from farm.model.states import AttemptState, NodeState
from farm.store import events, rows
from farm.store.engine import db_now, read_clock
from farm.store.tables import AttemptRow, JobRow, NodeRow, StepRow, TaskRow
from farm.text import clean
from farm.wire.messages import OLDEST_WIRE, WIRE_VERSION, Heartbeat

_T = NodeRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_JOB = JobRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]

_MAX_WORD = 200
_PENDING = "waits for an administrator to let it in: `farm enrol`"
_JOINED = "has joined, and was not heard yet: `farm worker` starts it there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """What became of a heartbeat. Nothing set: it was taken in."""

    refused: str = ""
    wants_hello: bool = False
    """The farm has no capabilities of this session yet."""
    is_old: bool = False
    """A newer one of its session was heard before: what it says was true once."""
    is_first: bool = False
    """Of its session, as far as the farm knows; it was taken in. It may be an old one, of an agent that has
    been restarted since: what it does not list may run all the same."""
    is_news: bool = field(default=False, compare=False)
    """The node may take work that it did not before, or the other way round."""
    at: float | None = field(default=None, compare=False)
    """When it was taken in, by the database's clock; None if it was not, or was the first of its node."""


def heard(db: sa.Connection, beat: Heartbeat, *, rival_s: float) -> Hearing:
    """Take a heartbeat in.

    rival_s: another agent of the same name that was heard within this time keeps the name.
    """
    unusable = _unusable(beat)
    if unusable:
        return Hearing(refused=unusable)
    row = db.execute(_KNOWN, {"of_node": beat.node_id}).mappings().first()
    if beat.wire > WIRE_VERSION:
        return Hearing(
            refused=f"it speaks wire version {beat.wire}, this farm {WIRE_VERSION}: upgrade the farm"
        )
    if beat.wire < OLDEST_WIRE:
        return Hearing(
            refused=f"it speaks wire version {beat.wire}, this farm {OLDEST_WIRE} or newer: upgrade the node"
        )
    if row is None:
        if beat.capabilities is None:
            return Hearing(wants_hello=True)
        _insert(db, beat)
        return Hearing(is_first=True, is_news=True)
    now = row["now"]
    if row["state"] == NodeState.PENDING:
        return Hearing(refused=f"it waits for an administrator to let it in: farm enrol {beat.node_id}")
    is_new_session = row["session"] != beat.session
    if is_new_session:
        # On one machine the agent's lock file has shown that the old one is dead; on another it may live.
        if row["session"] and row["boot_id"] != beat.boot_id and now - row["seen_at"] < rival_s:
            text = f"another agent named {beat.node_id} is alive elsewhere; choose another node_name"
            return Hearing(refused=text)
        if beat.capabilities is None:
            return Hearing(wants_hello=True)
    elif beat.sequence <= row["sequence"]:
        # Doubled, or it lay in the hands of a scheduler that was stopped.
        return Hearing(is_old=True)
    state = NodeState.DRAINING if beat.is_draining or beat.fault else NodeState.ONLINE
    values: dict[str, Any] = {
        "seen_at": now,
        "session": beat.session,
        "boot_id": beat.boot_id,
        "sequence": beat.sequence,
        "state": str(state),
        "reason": "the agent is stopping" if beat.is_draining else beat.fault[:_MAX_WORD],
        "loads": [rows.to_json(load) for load in beat.loads],
        "disk_free_mib": beat.disk_free_mib,
        "agent_version": beat.agent_version,
    }
    if beat.capabilities is not None:
        values["capabilities"] = rows.to_json(beat.capabilities)
        values["user_ids"] = node_users.also(row["user_ids"] or (), beat.capabilities.user_id)
    db.execute(_updating(tuple(values)), {"of_node": beat.node_id, **_named(values)})
    if is_new_session or row["state"] in (NodeState.OFFLINE, NodeState.SUSPECT):
        text = "restarted" if is_new_session else "back"
        if row["session"]:
            events.happened(db, EventKind.NODE_ONLINE, text, node_id=beat.node_id)
        else:
            events.happened(db, EventKind.NODE_ENROLLED, "enrolled", node_id=beat.node_id)
    if beat.fault and row["reason"] != beat.fault[:_MAX_WORD]:
        events.happened(db, EventKind.NODE_FAULTY, beat.fault[:_MAX_WORD], node_id=beat.node_id)
    if any(load.fault or load.closed or load.complaint for load in beat.loads):
        before = () if is_new_session else [rows.from_json(DeviceLoad, load) for load in row["loads"]]
        _tell_of_devices(db, beat, before)
    is_news = is_new_session or row["state"] != state
    return Hearing(is_first=is_new_session, is_news=is_news, at=now)


_KNOWN = sa.select(
    _T.c.state,
    _T.c.reason,
    _T.c.session,
    _T.c.boot_id,
    _T.c.sequence,
    _T.c.seen_at,
    _T.c.loads,
    _T.c.user_ids,
    db_now().label("now"),
).where(_T.c.id == sa.bindparam("of_node"))


@cache
def _updating(columns: tuple[str, ...]) -> sa.Update:
    values: dict[str, Any] = {column: sa.bindparam(f"new_{column}") for column in columns}
    return sa.update(_T).where(_T.c.id == sa.bindparam("of_node")).values(values)


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"new_{column}": value for column, value in values.items()}


def _tell_of_devices(db: sa.Connection, beat: Heartbeat, before: Sequence[DeviceLoad]) -> None:
    """Events for what has become wrong with a device since the last heartbeat."""
    known = {load.device_id: load for load in before}
    for load in beat.loads:
        old = known.get(load.device_id, DeviceLoad(device_id=load.device_id))
        for kind, was, now_is in (
            (EventKind.DEVICE_LOST, old.fault, load.fault),
            (EventKind.DEVICE_CLOSED, old.closed, load.closed),
            (EventKind.DEVICE_DEGRADED, old.complaint, load.complaint),
        ):
            if now_is and not was:
                text = f"{load.device_id}: {now_is}"
                events.happened(db, kind, clean(text, limit=_MAX_WORD, one_line=True), node_id=beat.node_id)


def _unusable(beat: Heartbeat) -> str:
    """What in the heartbeat the farm cannot keep; a node may be wrong, and must not stop the farm by it."""
    for word in (beat.node_id, beat.session, beat.boot_id, beat.agent_version):
        if len(word) > _MAX_WORD or clean(word, one_line=True) != word:
            return f"{clean(word, limit=40, one_line=True)!r} in its heartbeat is no printable name"
    figures: list[float | None] = []
    for load in beat.loads:
        figures += [load.utilisation, load.memory_occupancy, load.memory_busy, load.temperature_c]
        figures += [load.power_w, load.clock_mhz, load.health]
    if beat.capabilities is not None:
        figures += beat.capabilities.amounts.values()
        for device in beat.capabilities.devices:
            figures += [device.fp32_tflops, device.memory_bandwidth_gbps, device.tdp_w]
            figures += [device.host_bandwidth_gbps, device.ray_rate_mrays]
    if any(figure is not None and rows.figure(figure) is None for figure in figures):
        return "a figure in its heartbeat is negative or no number"
    user_id = beat.capabilities.user_id if beat.capabilities is not None else None
    if user_id is not None and not 0 <= user_id < 2**32:
        return f"its user id, {user_id}, cannot be"
    if beat.disk_free_mib is not None and not 0 <= beat.disk_free_mib < 2**31:
        return f"its free disk, {beat.disk_free_mib} MiB, cannot be"
    return ""


def _insert(db: sa.Connection, beat: Heartbeat) -> None:
    assert beat.capabilities is not None
    db.execute(
        sa.insert(_T).values(
            id=beat.node_id,
            state=str(NodeState.ONLINE),
            session=beat.session,
            boot_id=beat.boot_id,
            sequence=beat.sequence,
            seen_at=db_now(),
            enrolled_at=db_now(),
            capabilities=rows.to_json(beat.capabilities),
            user_ids=node_users.also((), beat.capabilities.user_id),
            loads=[rows.to_json(load) for load in beat.loads],
            disk_free_mib=beat.disk_free_mib,
            agent_version=beat.agent_version,
        )
    )
    events.happened(db, EventKind.NODE_ENROLLED, "enrolled", node_id=beat.node_id)


def join(db: sa.Connection, node_id: NodeId, *, is_pending: bool, text: str) -> None:
    """A row for a machine that has not been heard yet; one of that name is taken over as it is."""
    state, reason = (NodeState.PENDING, _PENDING) if is_pending else (NodeState.OFFLINE, _JOINED)
    if _exists(db, node_id):
        db.execute(sa.update(_T).where(_T.c.id == node_id).values(state=str(state), reason=reason))
    else:
        now = read_clock(db)
        db.execute(
            sa.insert(_T).values(
                id=node_id,
                state=str(state),
                reason=reason,
                session="",
                boot_id="",
                seen_at=now,
                enrolled_at=now,
                capabilities={},
                loads=[],
            )
        )
    events.happened(db, EventKind.NODE_JOINED, text, node_id=node_id)


def enrol(db: sa.Connection, node_id: NodeId, *, actor: str) -> None:
    """Let a pending node in. Raises NotFound, Rejected."""
    changed = db.execute(
        sa.update(_T)
        .where(_T.c.id == node_id, _T.c.state == str(NodeState.PENDING))
        .values(state=str(NodeState.OFFLINE), reason=_JOINED)
    )
    if not changed.rowcount:
        state = read_node(db, node_id).state
        raise Rejected(f"{node_id} is {state}: it waits for nobody to let it in")
    events.happened(db, EventKind.NODE_ENROLLED, "let in", actor=actor, node_id=node_id)


def remove(db: sa.Connection, node_id: NodeId, *, actor: str) -> None:
    """Forget the node. What it still runs is lost at the end of its leases. Raises NotFound."""
    if not db.execute(sa.delete(_T).where(_T.c.id == node_id)).rowcount:
        read_node(db, node_id)
    events.happened(db, EventKind.NODE_REMOVED, "removed", actor=actor, node_id=node_id)


def _exists(db: sa.Connection, node_id: NodeId) -> bool:
    return db.scalar(sa.select(_T.c.id).where(_T.c.id == node_id)) is not None


def state_of(db: sa.Connection, node_id: NodeId) -> NodeState | None:
    """None: there is no such node."""
    found = db.scalar(sa.select(_T.c.state).where(_T.c.id == node_id))
    return None if found is None else NodeState(found)


def is_silence_news(db: sa.Connection, *, suspect_s: float, offline_s: float) -> bool:
    """Whether `watch` would mark a node."""
    return db.scalar(_silent_query(), {"suspect_s": suspect_s, "offline_s": offline_s}) is not None


@cache
def _silent_query() -> sa.Select[Any]:
    return (
        sa.select(_T.c.id)
        .where(
            sa.or_(
                _falls_silent(NodeState.SUSPECT, sa.bindparam("suspect_s", type_=sa.Float())),
                _falls_silent(NodeState.OFFLINE, sa.bindparam("offline_s", type_=sa.Float())),
            )
        )
        .limit(1)
    )


def _falls_silent(state: NodeState, after_s: sa.ColumnElement[float]) -> sa.ColumnElement[bool]:
    """Silent for so long, and not marked `state` (or worse) yet."""
    marked = {NodeState.OFFLINE, NodeState.PENDING, state}
    return sa.and_(
        _T.c.seen_at < db_now() - after_s,
        _T.c.state.not_in([sa.literal_column(f"'{each}'") for each in sorted(marked)]),
    )


def watch(db: sa.Connection, *, suspect_s: float, offline_s: float) -> None:
    """Mark silent nodes."""
    for state, kind, after_s in (
        (NodeState.OFFLINE, EventKind.NODE_OFFLINE, offline_s),
        (NodeState.SUSPECT, EventKind.NODE_SUSPECTED, suspect_s),
    ):
        silent: list[str] = list(db.execute(_falling_silent(state), {"after_s": after_s}).scalars())
        for node_id in silent:
            events.happened(db, kind, f"silent for {after_s:.0f} s", node_id=node_id)


@cache
def _falling_silent(state: NodeState) -> Any:
    after_s = sa.bindparam("after_s", type_=sa.Float())
    return (
        sa.update(_T)
        .where(_falls_silent(state, after_s))
        .values(state=str(state), reason="")
        .returning(_T.c.id)
    )


# JSON is read as text: a node says the same of itself for days (see `rows.from_text`).
_VIEWED = sa.select(
    _T.c.id,
    _T.c.state,
    _T.c.reason,
    _T.c.seen_at,
    _T.c.is_drained,
    _T.c.drained_by,
    _T.c.quarantined_until,
    _T.c.quarantine_reason,
    _T.c.loads,
    _T.c.disk_free_mib,
    rows.as_text(_T.c.capabilities),
    db_now().label("now"),
).order_by(_T.c.id)


def views(db: sa.Connection, uses: Mapping[NodeId, Sequence[Use]]) -> list[NodeView]:
    """Every node as matching sees it."""
    found = []
    for row in db.execute(_VIEWED).mappings():
        now = row["now"]
        state = rows.node_state(row, now)
        accepts = state is NodeState.ONLINE
        node_id = NodeId(row["id"])
        found.append(
            NodeView(
                id=node_id,
                capabilities=rows.from_text(Capabilities, row["capabilities"]),
                accepts_work=accepts,
                refusal="" if accepts else rows.node_reason(row, now) or str(state),
                uses=tuple(uses.get(node_id, ())),
                loads=tuple(rows.from_json(DeviceLoad, load) for load in row["loads"]),
                disk_free_mib=row["disk_free_mib"],
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A live attempt that the farm has given a node."""

    attempt_id: AttemptId
    node_id: NodeId
    job_id: JobId
    job: str
    step: str
    index: int


def given(db: sa.Connection) -> list[Given]:
    """Every live attempt (at most 10,000), the oldest first."""
    query = (
        sa.select(
            _ATTEMPT.c.id,
            _ATTEMPT.c.node_id,
            _ATTEMPT.c.job_id,
            _JOB.c.name.label("job"),
            _STEP.c.name.label("step"),
            _TASK.c.idx,
        )
        .join(_JOB, _JOB.c.id == _ATTEMPT.c.job_id)
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .join(_STEP, _STEP.c.id == _ATTEMPT.c.step_id)
        .where(_ATTEMPT.c.state.in_(rows.LIVE))
        .order_by(_ATTEMPT.c.assigned_at)
        .limit(10_000)
    )
    return [
        Given(
            attempt_id=AttemptId(row["id"]),
            node_id=NodeId(row["node_id"]),
            job_id=JobId(row["job_id"]),
            job=row["job"],
            step=row["step"],
            index=row["idx"],
        )
        for row in db.execute(query).mappings()
    ]


def list_nodes(db: sa.Connection, labels: Mapping[AttemptId, str] | None = None) -> list[Node]:
    """In order of name. `labels`: what to call the task of an attempt; without one it is its index."""
    now = read_clock(db)
    told: dict[str, list[tuple[str, str]]] = {}
    for live in given(db):
        label = (labels or {}).get(live.attempt_id, f"#{live.index}")
        text = f"{live.job_id} {live.job} {label}".rstrip()
        told.setdefault(live.node_id, []).append((live.attempt_id, text))
    odd = remarks(db)
    return [
        rows.node(
            row,
            now=now,
            attempts=[a for a, _ in told.get(row["id"], [])],
            running=[t for _, t in told.get(row["id"], [])],
            remark=odd.get(row["id"], ""),
        )
        for row in db.execute(sa.select(_T).order_by(_T.c.id)).mappings()
    ]


def remarks(db: sa.Connection) -> dict[NodeId, str]:
    """One line for each node of which the farm has something to say that the node does not say itself."""
    found = db.execute(sa.select(_T.c.id, _T.c.user_ids).where(_T.c.user_ids.is_not(None)).order_by(_T.c.id))
    return node_users.remarks({NodeId(row.id): row.user_ids or () for row in found})


def failures(db: sa.Connection, *, window_s: float) -> dict[NodeId, int]:
    """Attempts that failed or were lost lately, by node; nodes without any are left out."""
    ended = sa.select(_ATTEMPT.c.node_id, sa.func.count()).where(
        _ATTEMPT.c.state.in_([str(AttemptState.FAILED), str(AttemptState.LOST)]),
        _ATTEMPT.c.finished_at > db_now() - window_s,
    )
    counted = db.execute(ended.group_by(_ATTEMPT.c.node_id)).all()
    return {NodeId(row[0]): int(row[1]) for row in counted}


def read_node(db: sa.Connection, node_id: NodeId, labels: Mapping[AttemptId, str] | None = None) -> Node:
    """Raises NotFound."""
    for node in list_nodes(db, labels):
        if node.id == node_id:
            return node
    names = ", ".join(db.scalars(sa.select(_T.c.id).order_by(_T.c.id).limit(10))) or "none yet"
    raise NotFound(f"there is no node {node_id!r}; nodes are: {names}")


def drain(db: sa.Connection, node_id: NodeId, *, is_drained: bool, actor: str) -> None:
    """Let the node take no more work, or take it again (out of quarantine too). Raises NotFound."""
    node = read_node(db, node_id)
    values: dict[str, Any] = {"is_drained": is_drained, "drained_by": actor if is_drained else ""}
    if not is_drained:
        values |= {"quarantined_until": 0.0, "quarantines": 0, "bad_ends": None}
        values["user_ids"] = node_users.also((), node.capabilities.user_id)
    db.execute(sa.update(_T).where(_T.c.id == node_id).values(**values))
    kind = EventKind.NODE_DRAINED if is_drained else EventKind.NODE_RELEASED
    events.happened(db, kind, "drained" if is_drained else "takes work again", actor=actor, node_id=node_id)
