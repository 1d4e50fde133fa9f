"""Ready tasks are claimed for nodes and leased to them: the leader's writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import sqlalchemy as sa

from farm.flow import avoid
from farm.model.decisions import Decision
from farm.model.ids import AttemptId, JobId, NodeId, StepId, TaskId
from farm.model.machines import Capabilities
from farm.model.states import JobState, TaskState
from farm.store import moves, outbox, rows
from farm.store.bulk import insert_many, update_many
from farm.store.engine import among_ids, db_now, none_of
from farm.store.ready import nodes_excluded, nodes_taking_work
from farm.store.tables import AttemptRow, JobRow, StepRow, TaskRow

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A task that was taken out of READY for a node, in this transaction."""

    task_id: TaskId
    job_id: JobId
    step_id: StepId
    index: int
    generation: int
    at: float
    """When, by the database's clock, in seconds since 1970."""


def claim(db: sa.Connection, step_id: StepId, places: Sequence[tuple[NodeId, int]]) -> list[list[Claimed]]:
    """Take ready tasks of the step for nodes, up to so many for each place, first in rank first.

    Returns a list for each place. The first places get the first tasks.
    """
    texts: list[str] = list(db.scalars(_AVOIDED, {"step_id": step_id}))
    if texts:
        away = _kept_away(texts, nodes_taking_work(db), {node_id for node_id, _ in places})
        return [_claim(db, step_id, count, away[node_id]) for node_id, count in places]
    # No task prefers one node to another: all are taken together, and dealt out.
    taken = iter(_claim(db, step_id, sum(count for _, count in places), ()))
    return [list(islice(taken, count)) for _, count in places]


def _claim(db: sa.Connection, step_id: StepId, count: int, kept_away: Sequence[str]) -> list[Claimed]:
    if count <= 0:
        return []
    taken = db.execute(
        _claim_query(db.dialect.name), {"of_step": step_id, "most": count, "away": list(kept_away)}
    ).all()
    moves.count(db, {(step_id, TaskState.READY, TaskState.ASSIGNED): len(taken)})
    return [
        Claimed(
            task_id=TaskId(row.id),
            job_id=JobId(row.job_id),
            step_id=step_id,
            index=row.idx,
            generation=row.generation,
            at=row.at,
        )
        for row in sorted(taken, key=lambda r: r.rank)
    ]


@cache
def _claim_query(dialect: str) -> sa.Update:
    now = db_now()
    may = sa.or_(
        _TASK.c.avoid_node.is_(None),
        _TASK.c.avoid_until <= now,
        none_of(dialect, _TASK.c.avoid_node, "away"),
    )
    is_active = sa.exists().where(
        _STEP.c.id == sa.bindparam("of_step"),
        _JOB.c.id == _STEP.c.job_id,
        _JOB.c.state == str(JobState.ACTIVE),
    )
    wanted = (
        sa.select(_TASK.c.id)
        .where(
            _TASK.c.step_id == sa.bindparam("of_step"),
            _TASK.c.state == "ready",
            _TASK.c.not_before <= now,
            may,
            is_active,  # it may have been paused since it was matched
        )
        .order_by(_TASK.c.rank)
        .limit(sa.bindparam("most"))
    )
    return (
        sa.update(_TASK)
        .where(_TASK.c.id.in_(wanted), _TASK.c.state == "ready")
        .values(state="assigned", starts=_TASK.c.starts + 1)
        .returning(_TASK.c.id, _TASK.c.job_id, _TASK.c.idx, _TASK.c.rank, _TASK.c.generation, now.label("at"))
    )


_AVOIDED = (
    sa.select(_TASK.c.avoid_node)
    .distinct()
    .where(sa.text("task.state = 'ready' AND task.not_before > 0"))
    .where(_TASK.c.step_id == sa.bindparam("step_id"), _TASK.c.avoid_node.is_not(None))
)
"""The `avoid_node` of ready tasks of a step that let other nodes try first."""


def _kept_away(
    texts: Sequence[str], open_nodes: Mapping[NodeId, Capabilities], node_ids: Collection[NodeId]
) -> dict[NodeId, list[str]]:
    """For each node, those of the `avoid_node`s that keep tasks from it."""
    found: dict[NodeId, list[str]] = {node_id: [] for node_id in node_ids}
    for text in texts:
        excluded = nodes_excluded(text, open_nodes)
        for node_id in node_ids:
            is_away = node_id in excluded or node_id in avoid.read(text).nodes
            if is_away and open_nodes.keys() - excluded - {node_id}:
                found[node_id].append(text)  # else nobody could try first
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """An attempt at a claimed task, given to a node."""

    attempt_id: AttemptId
    task: Claimed
    node_id: NodeId
    device_id: str
    decision: Decision | None = None
    """Why it went there, kept with the attempt; None: the policy does not say."""


def lease(db: sa.Connection, leases: Sequence[Lease], *, lease_s: float) -> None:
    """Give nodes leases on attempts at claimed tasks, and owe them the launch messages."""
    told: dict[Decision, Any] = {}
    attempts: list[dict[str, Any]] = []
    launches: dict[NodeId, list[AttemptId]] = {}
    for each in leases:
        task, decision = each.task, each.decision
        if decision is not None and decision not in told:
            told[decision] = rows.to_json(decision)
        launches.setdefault(each.node_id, []).append(each.attempt_id)
        attempts.append(
            {
                "id": each.attempt_id,
                "task_id": task.task_id,
                "job_id": task.job_id,
                "step_id": task.step_id,
                "generation": task.generation,
                "node_id": each.node_id,
                "device_id": each.device_id,
                "state": "assigned",
                "assigned_at": task.at,
                "lease_until": task.at + lease_s,
                "reason": "",
                "message": "",
                "decision": None if decision is None else told[decision],
                "warnings": [],
                "files": [],
            }
        )
    insert_many(db, _ATTEMPT, attempts)
    update_many(db, _TASK, [{"id": each.task.task_id, "attempt_id": each.attempt_id} for each in leases])
    outbox.owe_launches(db, launches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """What a launch message needs to know of an attempt."""

    attempt_id: AttemptId
    task_id: TaskId
    job_id: JobId
    step_id: StepId
    index: int
    generation: int
    replace_existing: bool
    device_id: str
    assigned_at: float
    """By the database's clock, in seconds since 1970."""
    edition: int = 1
    """Of the job."""


@cache
def _leased_query(dialect: str) -> sa.Select[Any]:
    return (
        sa.select(
            _ATTEMPT.c.id,
            _ATTEMPT.c.task_id,
            _ATTEMPT.c.job_id,
            _ATTEMPT.c.step_id,
            _ATTEMPT.c.generation,
            _ATTEMPT.c.device_id,
            _ATTEMPT.c.assigned_at,
            _TASK.c.idx,
            _JOB.c.replaces_existing,
            _JOB.c.edition,
        )
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .join(_JOB, _JOB.c.id == _ATTEMPT.c.job_id)
        .where(among_ids(dialect, _ATTEMPT.c.id), _ATTEMPT.c.state == "assigned")
        .order_by(_ATTEMPT.c.step_id, _TASK.c.rank)
    )


def leased(db: sa.Connection, attempt_ids: Collection[AttemptId]) -> list[Leased]:
    """Those of `attempt_ids` that are still to be started, by step."""
    return [
        Leased(
            attempt_id=AttemptId(row["id"]),
            task_id=TaskId(row["task_id"]),
            job_id=JobId(row["job_id"]),
            step_id=StepId(row["step_id"]),
            index=row["idx"],
            generation=row["generation"],
            replace_existing=row["replaces_existing"],
            device_id=row["device_id"],
            assigned_at=row["assigned_at"],
            edition=row["edition"],
        )
        for row in db.execute(_leased_query(db.dialect.name), {"ids": sorted(attempt_ids)}).mappings()
    ]
