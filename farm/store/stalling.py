"""Running attempts as the stall watch sees them, and what it writes: verdicts, second copies, ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Protocol

import sqlalchemy as sa

from farm.flow import avoid
from farm.model.attempts import Attempt
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, NodeId, StepId, TaskId
from farm.model.machines import Demand
from farm.model.stalls import Evidence, MoveCosts, Origin, Stall, StallKind, Verdict
from farm.model.states import AttemptState, Outcome, TaskState
from farm.model.work import Isolation, JobSettings
from farm.store import events, outbox, rows
from farm.store.bulk import update_many
from farm.store.engine import db_now, read_clock
from farm.store.tables import AttemptRow, JobRow, NodeRow, StepRow, TaskRow
from farm.wire.messages import Stop

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_NODE = NodeRow.__table__  # type: ignore[attr-defined]

_PLACE = (
    _ATTEMPT.c.id,
    _ATTEMPT.c.task_id,
    _ATTEMPT.c.job_id,
    _ATTEMPT.c.step_id,
    _ATTEMPT.c.node_id,
    _ATTEMPT.c.device_id,
)
"""Whose attempt it is, and where."""
_MAX_TEXT = 500
_MOST = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running attempt that its node has told of."""

    id: AttemptId
    task_id: TaskId
    job_id: JobId
    step_id: StepId
    node_id: NodeId
    device_id: str
    generation: int
    owns: bool
    """The task is its own; a second copy's is not."""
    copies: int
    """Other live attempts at the task."""
    copied: int
    """Second copies that were ever made of the task in this generation."""
    isolation: Isolation
    demand: Demand
    settings: JobSettings
    avoids: frozenset[NodeId]
    evidence: Evidence
    told_s: float
    """Since the evidence came."""
    verdict: Verdict
    """As it was last written."""
    runtime_count: int
    runtime_mean_s: float | None
    """Of tasks of the step that are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An attempt that a node was given a while ago and has not started."""

    id: AttemptId
    task_id: TaskId
    job_id: JobId
    step_id: StepId
    node_id: NodeId
    device_id: str
    demand: Demand
    avoids: frozenset[NodeId]
    runtime_count: int
    runtime_mean_s: float | None
    is_behind_others: bool
    """Something runs on its device."""


def witness(db: sa.Connection, node_id: NodeId, seen: Sequence[Evidence]) -> None:
    """Keep what the node says of its running attempts."""
    if not seen:
        return
    db.execute(
        _WITNESS,
        [
            {"b_id": each.attempt_id, "of_node": node_id, "b_evidence": rows.to_json(_bearable(each))}
            for each in seen
            if len(each.attempt_id) < 100
        ],
    )


_WITNESS = (
    sa.update(_ATTEMPT)
    .where(
        _ATTEMPT.c.id == sa.bindparam("b_id"),
        _ATTEMPT.c.node_id == sa.bindparam("of_node"),
        _ATTEMPT.c.state == "running",
    )
    .values(evidence=sa.bindparam("b_evidence", type_=sa.JSON()), evidence_at=db_now())
)


def _bearable(seen: Evidence) -> Evidence:
    """Less what no column holds: a node may be wrong, and must not stop the farm by it."""
    changed: dict[str, Any] = {}
    for each in fields(Evidence):
        value = getattr(seen, each.name)
        if isinstance(value, float):
            figure = rows.figure(value)
            if figure is None and each.name in ("gpu_idle_s", "progress", "progress_idle_s", "files_done_s"):
                changed[each.name] = None
            else:
                changed[each.name] = min(figure or 0.0, _MOST)
        elif isinstance(value, str):
            changed[each.name] = value[:_MAX_TEXT]
        elif isinstance(value, int) and not isinstance(value, bool):
            changed[each.name] = min(max(value, -(2**31)), 2**31 - 1)
    states = {name[:1]: count for name, count in list(seen.states.items())[:10] if 0 <= count < 2**31}
    return replace(seen, **changed, states=states)


def running(db: sa.Connection) -> list[Running]:
    """Every running attempt with evidence, of tasks that run."""
    return [_running(row) for row in db.execute(_running_query()).mappings() if row["evidence"]]


@cache
def _running_query() -> sa.Select[Any]:
    others = _ATTEMPT.alias("other")
    same_task = sa.and_(others.c.task_id == _ATTEMPT.c.task_id, others.c.generation == _ATTEMPT.c.generation)
    copies = (
        sa.select(sa.func.count())
        .where(same_task, others.c.id != _ATTEMPT.c.id, others.c.state.in_(rows.LIVE))
        .correlate(_ATTEMPT)
        .scalar_subquery()
    )
    copied = (
        sa.select(sa.func.count())
        .where(same_task, others.c.origin != str(Origin.MATCH))
        .correlate(_ATTEMPT)
        .scalar_subquery()
    )
    return (
        sa.select(
            *_PLACE,
            _ATTEMPT.c.generation,
            _ATTEMPT.c.evidence,
            _ATTEMPT.c.evidence_at,
            _ATTEMPT.c.stall,
            _ATTEMPT.c.stall_text,
            db_now().label("now"),
            _TASK.c.attempt_id.label("owner_id"),
            _TASK.c.avoid_node,
            _STEP.c.isolation,
            rows.as_text(_STEP.c.demand),
            _STEP.c.runtime_count,
            _STEP.c.runtime_sum_s,
            rows.as_text(_JOB.c.settings),
            copies.label("copies"),
            copied.label("copied"),
        )
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .join(_STEP, _STEP.c.id == _ATTEMPT.c.step_id)
        .join(_JOB, _JOB.c.id == _ATTEMPT.c.job_id)
        .where(_ATTEMPT.c.state == "running", _ATTEMPT.c.evidence.is_not(None), _TASK.c.state == "running")
        .order_by(_ATTEMPT.c.started_at)
        .limit(20_000)
    )


def _running(row: rows.Row) -> Running:
    count = row["runtime_count"]
    return Running(
        id=AttemptId(row["id"]),
        task_id=TaskId(row["task_id"]),
        job_id=JobId(row["job_id"]),
        step_id=StepId(row["step_id"]),
        node_id=NodeId(row["node_id"]),
        device_id=row["device_id"],
        generation=row["generation"],
        owns=row["owner_id"] == row["id"],
        copies=row["copies"],
        copied=row["copied"],
        isolation=rows.isolation(row),
        demand=rows.from_text(Demand, row["demand"]),
        settings=rows.from_text(JobSettings, row["settings"]),
        avoids=frozenset(avoid.read(row["avoid_node"]).nodes),
        evidence=rows.from_json(Evidence, row["evidence"]),
        told_s=max(0.0, row["now"] - (row["evidence_at"] or 0.0)),
        verdict=Verdict(kind=rows.stall_kind(row["stall"]), text=row["stall_text"] or ""),
        runtime_count=count,
        runtime_mean_s=row["runtime_sum_s"] / count if count else None,
    )


def waiting(db: sa.Connection, *, older_s: float, heard_s: float) -> list[Waiting]:
    """Attempts of which their node has said nothing since they were assigned, `older_s` ago or earlier.

    Of nodes that have spoken within `heard_s`: what one that is silent has begun is not known.
    """
    return [
        Waiting(
            id=AttemptId(row["id"]),
            task_id=TaskId(row["task_id"]),
            job_id=JobId(row["job_id"]),
            step_id=StepId(row["step_id"]),
            node_id=NodeId(row["node_id"]),
            device_id=row["device_id"],
            demand=rows.from_text(Demand, row["demand"]),
            avoids=frozenset(avoid.read(row["avoid_node"]).nodes),
            runtime_count=row["runtime_count"],
            runtime_mean_s=row["runtime_sum_s"] / row["runtime_count"] if row["runtime_count"] else None,
            is_behind_others=row["running_there"] > 0,
        )
        for row in db.execute(_waiting_query(), {"older_s": older_s, "heard_s": heard_s}).mappings()
    ]


@cache
def _waiting_query() -> sa.Select[Any]:
    others = _ATTEMPT.alias("other")
    running_there = (
        sa.select(sa.func.count())
        .where(
            others.c.node_id == _ATTEMPT.c.node_id,
            others.c.device_id == _ATTEMPT.c.device_id,
            others.c.state == "running",
        )
        .correlate(_ATTEMPT)
        .scalar_subquery()
    )
    return (
        sa.select(
            *_PLACE,
            _TASK.c.avoid_node,
            rows.as_text(_STEP.c.demand),
            _STEP.c.runtime_count,
            _STEP.c.runtime_sum_s,
            running_there.label("running_there"),
        )
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .join(_STEP, _STEP.c.id == _ATTEMPT.c.step_id)
        .join(_NODE, _NODE.c.id == _ATTEMPT.c.node_id)
        .where(
            _NODE.c.seen_at >= db_now() - sa.bindparam("heard_s", type_=sa.Float()),
            _ATTEMPT.c.state == "assigned",
            _ATTEMPT.c.assigned_at < db_now() - sa.bindparam("older_s", type_=sa.Float()),
            _TASK.c.state == "assigned",
            _TASK.c.attempt_id == _ATTEMPT.c.id,
        )
        .order_by(_ATTEMPT.c.assigned_at)
        .limit(100)
    )


def take_back(db: sa.Connection, found: Sequence[Waiting]) -> None:
    """Have nodes give back what they have not started, so that it starts elsewhere.

    The caller holds `moves.lock_jobs`.
    """
    reason = "moved: it waited behind other work, and another device was free"
    for each in found:
        asked = db.execute(
            sa.update(_ATTEMPT)
            .where(_ATTEMPT.c.id == each.id, _ATTEMPT.c.state == "assigned")
            .values(state="cancelling", ends_as=str(Outcome.NODE_LOST), ends_because=reason)
        ).rowcount
        if asked:
            outbox.owe_control(db, each.node_id, Stop(attempt_ids=(each.id,), reason=reason))


def judged(db: sa.Connection, verdicts: Sequence[tuple[Running, Verdict]]) -> None:
    """Keep verdicts that differ from those before. A stall that begins is an event."""
    if not verdicts:
        return
    now = read_clock(db)
    fresh = [(seen, verdict) for seen, verdict in verdicts if verdict.kind is not seen.verdict.kind]
    update_many(
        db,
        _ATTEMPT,
        [{"id": seen.id, "stall": str(v.kind), "stall_text": v.text[:_MAX_TEXT]} for seen, v in verdicts],
    )
    update_many(db, _ATTEMPT, [{"id": seen.id, "stall_since": now} for seen, _ in fresh])
    events.happened_many(
        db,
        [
            {
                "kind": str(EventKind.ATTEMPT_STALLED),
                "text": f"{verdict.kind}: {verdict.text}"[:_MAX_TEXT],
                "actor": "",
                "job_id": seen.job_id,
                "task_id": seen.task_id,
                "attempt_id": seen.id,
                "node_id": seen.node_id,
            }
            for seen, verdict in fresh
            if verdict.is_stall
        ],
        now=now,
    )


def acted(db: sa.Connection, seen: Running, text: str) -> None:
    """Keep what was done about a stall, for people."""
    db.execute(sa.update(_ATTEMPT).where(_ATTEMPT.c.id == seen.id).values(stall_action=text[:_MAX_TEXT]))


class Attempted(Protocol):
    """An attempt, as far as its end needs it."""

    @property
    def id(self) -> AttemptId: ...
    @property
    def task_id(self) -> TaskId: ...
    @property
    def job_id(self) -> JobId: ...
    @property
    def node_id(self) -> NodeId: ...


def ask_to_end(
    db: sa.Connection, seen: Attempted, outcome: Outcome, reason: str, *, takes_output: bool = False
) -> bool:
    """Have the node end the attempt, which then has ended with `outcome`; False: it runs no more.

    The caller holds `moves.lock_jobs`. Until the node says that nothing is left of it, or its lease runs out,
    the task waits for it.
    """
    asked = db.execute(
        sa.update(_ATTEMPT)
        .where(_ATTEMPT.c.id == seen.id, _ATTEMPT.c.state == "running")
        .values(state=str(AttemptState.CANCELLING), ends_as=str(outcome), ends_because=reason[:_MAX_TEXT])
    ).rowcount
    if not asked:
        return False
    outbox.owe_control(
        db, seen.node_id, Stop(attempt_ids=(seen.id,), reason=reason[:_MAX_TEXT], takes_output=takes_output)
    )
    events.happened(
        db,
        EventKind.ATTEMPT_STOPPED,
        reason[:_MAX_TEXT],
        job_id=seen.job_id,
        task_id=seen.task_id,
        attempt_id=seen.id,
        node_id=seen.node_id,
    )
    return True


def copy(
    db: sa.Connection,
    seen: Running,
    new_id: AttemptId,
    *,
    node_id: NodeId,
    device_id: str,
    origin: Origin,
    reason: str,
    lease_s: float,
    left_s: float | None,
) -> bool:
    """Start a second attempt at the task there; False: it may not be any more. First whole result wins.

    The caller holds `moves.lock_jobs`. left_s: what the first one was expected to need from now on, None for
    ever.
    """
    task = db.execute(sa.select(_TASK).where(_TASK.c.id == seen.task_id)).mappings().one()
    live = db.scalar(
        sa.select(sa.func.count()).where(_ATTEMPT.c.task_id == seen.task_id, _ATTEMPT.c.state.in_(rows.LIVE))
    )
    is_same = task["attempt_id"] == seen.id and task["generation"] == seen.generation
    if not is_same or task["state"] != TaskState.RUNNING or live != 1:
        return False
    now = read_clock(db)
    db.execute(
        sa.insert(_ATTEMPT).values(
            id=new_id,
            task_id=seen.task_id,
            job_id=seen.job_id,
            step_id=seen.step_id,
            generation=seen.generation,
            node_id=node_id,
            device_id=device_id,
            state=str(AttemptState.ASSIGNED),
            assigned_at=now,
            lease_until=now + lease_s,
            origin=str(origin),
            warnings=[],
            files=[],
        )
    )
    db.execute(
        sa.update(_ATTEMPT)
        .where(_ATTEMPT.c.id == seen.id)
        .values(left_until=None if left_s is None else now + left_s)
    )
    db.execute(sa.update(_TASK).where(_TASK.c.id == seen.task_id).values(starts=_TASK.c.starts + 1))
    outbox.owe_launches(db, {node_id: [new_id]})
    events.happened(
        db,
        EventKind.ATTEMPT_COPIED,
        reason[:_MAX_TEXT],
        job_id=seen.job_id,
        task_id=seen.task_id,
        attempt_id=new_id,
        node_id=node_id,
    )
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """An attempt with a verdict, for people."""

    attempt: Attempt
    stall: Stall
    index: int
    step: str
    job_name: str
    user: str


def stalled(
    db: sa.Connection, *, job_id: JobId | None = None, with_silent: bool = False, limit: int = 1_000
) -> list[Stalled]:
    """Live attempts that are taken for stalled (and those that work in silence), the longest first."""
    wanted = [str(kind) for kind in StallKind if kind is not StallKind.WORKING]
    if not with_silent:
        wanted.remove(str(StallKind.SILENT))
    query = (
        sa.select(_ATTEMPT, _TASK.c.idx, _STEP.c.name.label("step"), _JOB.c.name, _JOB.c.user)
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .join(_STEP, _STEP.c.id == _ATTEMPT.c.step_id)
        .join(_JOB, _JOB.c.id == _ATTEMPT.c.job_id)
        .where(_ATTEMPT.c.state.in_(rows.LIVE), _ATTEMPT.c.stall.in_(wanted))
        .order_by(_ATTEMPT.c.stall_since)
        .limit(limit)
    )
    if job_id is not None:
        query = query.where(_ATTEMPT.c.job_id == job_id)
    found = []
    for row in db.execute(query).mappings():
        attempt = rows.attempt(row)
        if attempt.stall is not None:
            found.append(
                Stalled(
                    attempt=attempt,
                    stall=attempt.stall,
                    index=row["idx"],
                    step=row["step"],
                    job_name=row["name"],
                    user=row["user"],
                )
            )
    return found


def costs(db: sa.Connection, job_id: JobId | None = None) -> MoveCosts:
    """What moving attempts has cost and saved so far: of a job, or of all jobs."""
    a, winners = _ATTEMPT.c, _ATTEMPT.alias("winner")
    winner = winners.c
    is_copy = a.origin != str(Origin.MATCH)
    has_no_result = a.state != str(AttemptState.SUCCEEDED)
    was_moved = sa.and_(a.ends_as == str(Outcome.STALLED), has_no_result)
    was_killed = sa.and_(a.ends_as == str(Outcome.JOB_ERROR), has_no_result)
    was_raced = sa.or_(is_copy, a.left_until.is_not(None))
    is_over = a.state.in_(["cancelled", "superseded", "failed", "lost"])
    lost = sa.and_(sa.or_(was_moved, was_killed, was_raced), is_over)
    query = sa.select(
        sa.func.count(sa.case((was_moved, 1))).label("moved"),
        sa.func.count(sa.case((was_killed, 1))).label("killed"),
        sa.func.count(sa.case((a.origin == str(Origin.COPY), 1))).label("copies"),
        sa.func.count(sa.case((a.origin == str(Origin.SPECULATION), 1))).label("speculations"),
        sa.func.count(sa.case((sa.and_(is_copy, a.state == "succeeded"), 1))).label("won"),
        sa.func.coalesce(sa.func.sum(sa.case((lost, a.runtime_s))), 0.0).label("lost_s"),
    )
    saved = (
        sa.select(sa.func.coalesce(sa.func.sum(a.left_until - winner.finished_at), 0.0))
        .select_from(_ATTEMPT.join(winners, winner.task_id == a.task_id))
        .where(
            a.left_until.is_not(None),
            winner.state == "succeeded",
            winner.origin != str(Origin.MATCH),
            winner.generation == a.generation,
        )
    )
    if job_id is not None:
        query, saved = query.where(a.job_id == job_id), saved.where(a.job_id == job_id)
    row = db.execute(query).one()
    return MoveCosts(
        moved=row.moved,
        killed=row.killed,
        copies=row.copies,
        speculations=row.speculations,
        copies_won=row.won,
        lost_s=row.lost_s,
        saved_s=db.scalar(saved) or 0.0,
    )
