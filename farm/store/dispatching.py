"""The leader's writes: tasks are claimed, leased, reported, and their leases run out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import sqlalchemy as sa

from farm.flow import avoid, quarantine
from farm.flow.match import Group, vram_held_mib
from farm.flow.outage import Silence
from farm.flow.probe import learned
from farm.flow.report import (
    MAX_BAD_NODES,
    MAX_STARTS,
    POISON,
    AttemptFacts,
    Settlement,
    TaskFacts,
    as_asked,
    expire,
    settle,
)
from farm.model.attempts import DeviceUsage
from farm.model.decisions import Decision
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, NodeId, StepId, TaskId
from farm.model.machines import Capabilities, Demand, Use
from farm.model.probes import Probe
from farm.model.states import AttemptState, JobState, Outcome, TaskState, check_attempt_move
from farm.model.work import Isolation, Profile
from farm.store import events, jobs, moves, outbox, rows
from farm.store.bulk import insert_many, update_many
from farm.store.engine import among, among_ids, db_now
from farm.store.tables import AttemptRow, JobRow, NodeRow, StepRow, TaskRow
from farm.text import duration
from farm.wire.messages import Finished, Progress, Stop

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_NODE = NodeRow.__table__  # type: ignore[attr-defined]

_LIVE = ("assigned", "running", "cancelling")
_TAKES_WORK = sa.and_(
    _NODE.c.state == "online", _NODE.c.is_drained.is_(False), _NODE.c.quarantined_until <= db_now()
)
_MAX_REASON = 1_000
_MAX_WARNINGS = 100
_MAX_DEVICES = 64
_KILLED = (-9, 137)
"""Exit codes of a process that the kernel's out-of-memory killer ended."""


# --- what there is to do ------------------------------------------------------------------------------


def _groups_query() -> sa.Select[Any]:
    waiting = _STEP.alias("waiting")
    running = (
        sa.select(
            _STEP.c.job_id,
            sa.func.sum(_STEP.c.n_assigned + _STEP.c.n_running + _STEP.c.n_cancelling).label("job_running"),
        )
        .where(_STEP.c.job_id.in_(sa.select(waiting.c.job_id).where(waiting.c.n_ready > 0)))
        .group_by(_STEP.c.job_id)
        .subquery()
    )
    return (
        sa.select(
            _STEP,
            _JOB.c.priority,
            _JOB.c.submitted_at,
            _JOB.c.max_running,
            _JOB.c.user,
            _JOB.c.project,
            running.c.job_running,
        )
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .join(running, running.c.job_id == _STEP.c.job_id)
        .where(_STEP.c.n_ready > 0, _JOB.c.state == str(JobState.ACTIVE))
        .where(_STEP.c.licence_until <= db_now())
    )


def _held_back_query() -> sa.Select[Any]:
    """Ready tasks that not every node may take at once: they failed lately, or must wait.

    The first two conditions are text because the index that makes this cheap is chosen by them.
    """
    delayed = sa.func.sum(sa.case((_TASK.c.not_before > db_now(), 1), else_=0)).label("delayed")
    return (
        sa.select(
            _TASK.c.step_id,
            _TASK.c.avoid_node,
            (_TASK.c.avoid_until > db_now()).label("avoids"),
            sa.func.count().label("n"),
            delayed,
        )
        .where(sa.text("task.state = 'ready' AND task.not_before > 0"))
        .where(sa.or_(_TASK.c.not_before > db_now(), _TASK.c.avoid_until > db_now()))
        .group_by(_TASK.c.step_id, _TASK.c.avoid_node, _TASK.c.avoid_until > db_now())
    )


# Built once: building it costs more than running it.
_GROUPS = _groups_query()
_HELD_BACK = _held_back_query()


def groups(db: sa.Connection, *, job_id: JobId | None = None) -> list[Group]:
    """The steps with ready tasks of active jobs, as matching sees them (with `job_id`: of that job only).

    A step's tasks that failed on a node, and that others should try first, are groups of their own. Tasks
    that must wait are counted by none: a slot that is kept free for them would do nothing.
    """
    query = _GROUPS if job_id is None else _GROUPS.where(_STEP.c.job_id == job_id)
    waiting = db.execute(query).mappings().all()
    if not waiting:
        return []
    delayed: dict[int, int] = {}
    avoiding: dict[int, dict[str, int]] = {}
    for held in db.execute(_HELD_BACK):
        delayed[held.step_id] = delayed.get(held.step_id, 0) + held.delayed
        if held.avoid_node is not None and held.avoids and held.n > held.delayed:
            avoiding.setdefault(held.step_id, {})[held.avoid_node] = held.n - held.delayed
    excluded: dict[str, frozenset[NodeId]] = {}
    if avoiding:
        open_nodes = _open_nodes(db)
        for texts in avoiding.values():
            for text in list(texts):
                excluded[text] = _excluded(text, open_nodes)
                if len(excluded[text]) == len(open_nodes):
                    del texts[text]  # nobody else could try first
    found = []
    for row in waiting:
        avoided = avoiding.get(row["id"], {})
        group = Group(
            step_id=StepId(row["id"]),
            job_id=JobId(row["job_id"]),
            demand=_demand(row),
            profile=rows.from_json(Profile, row["profile"]),
            ready=max(0, row["n_ready"] - delayed.get(row["id"], 0) - sum(avoided.values())),
            running=row["n_assigned"] + row["n_running"] + row["n_cancelling"],
            max_running=row["max_running"],
            job_running=row["job_running"],
            priority=row["priority"],
            submitted_at=row["submitted_at"],
            mean_runtime_s=row["runtime_sum_s"] / row["runtime_count"] if row["runtime_count"] else None,
            runtimes=row["runtime_count"],
            user=row["user"],
            project=row["project"],
        )
        found.append(group)
        for text, count in sorted(avoided.items()):
            needs = avoid.read(text)
            demand = replace(
                group.demand,
                memory_mib=max(group.demand.memory_mib, needs.memory_mib),
                vram_mib=max(group.demand.vram_mib, needs.vram_mib),
            )
            away = excluded[text] | set(needs.nodes)
            found.append(replace(group, ready=count, running=0, demand=demand, avoid=frozenset(away)))
    return found


def _open_nodes(db: sa.Connection) -> dict[NodeId, Capabilities]:
    """Those that take work."""
    query = sa.select(_NODE.c.id, _NODE.c.capabilities).where(_TAKES_WORK)
    return {NodeId(row.id): rows.from_json(Capabilities, row.capabilities) for row in db.execute(query)}


def _excluded(text: str, open_nodes: Mapping[NodeId, Capabilities]) -> frozenset[NodeId]:
    """Those of the nodes that a task with this `avoid_node` is kept from."""
    avoided = avoid.read(text)
    return frozenset(node_id for node_id, has in open_nodes.items() if avoided.excludes(node_id, has))


def idle_since(db: sa.Connection, wanted: Collection[Group]) -> dict[StepId, float]:
    """When the last task of each of these groups' steps was started, or its job submitted."""
    found = {group.step_id: group.submitted_at for group in wanted}
    if not found:
        return found
    jobs_of = sorted({group.job_id for group in wanted})
    query = (
        sa.select(_ATTEMPT.c.step_id, sa.func.max(_ATTEMPT.c.assigned_at).label("at"))
        .where(_ATTEMPT.c.job_id.in_(jobs_of), _ATTEMPT.c.step_id.in_(list(found)))
        .group_by(_ATTEMPT.c.step_id)
    )
    for row in db.execute(query):
        found[StepId(row.step_id)] = max(found[StepId(row.step_id)], row.at)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Why a ready task is not taken yet."""

    seconds: float = 0.0
    """Until it may start; 0: now."""
    avoids: str = ""
    """Where it is not tried for now, and why, one line."""


def delay(db: sa.Connection, task_id: TaskId) -> Delay:
    """Of one ready task."""
    now = db.scalar(sa.select(db_now())) or 0.0
    query = sa.select(_TASK.c.not_before, _TASK.c.avoid_node, _TASK.c.avoid_until)
    row = db.execute(query.where(_TASK.c.id == task_id)).one()
    avoids = ""
    if row.avoid_node and row.avoid_until > now:
        open_nodes = _open_nodes(db)
        if len(_excluded(row.avoid_node, open_nodes)) < len(open_nodes):
            avoids = avoid.read(row.avoid_node).told()
    return Delay(seconds=max(0.0, row.not_before - now), avoids=avoids)


def next_due_s(db: sa.Connection, step_id: StepId) -> float:
    """Seconds until a ready task of the step may start; 0 when one may now, or none is ready."""
    now = db.scalar(sa.select(db_now())) or 0.0
    ready = sa.select(_TASK.c.not_before).where(_TASK.c.step_id == step_id, _TASK.c.state == "ready")
    if db.scalar(ready.where(_TASK.c.not_before <= now).limit(1)) is not None:
        return 0.0
    soonest = db.scalar(ready.order_by(_TASK.c.not_before).limit(1))
    return 0.0 if soonest is None else max(0.0, soonest - now)


def licence_wait_s(db: sa.Connection, step_id: StepId) -> float:
    """Seconds until a step whose renderers found no licence is tried again; 0: now."""
    left_s = db.scalar(sa.select(_STEP.c.licence_until - db_now()).where(_STEP.c.id == step_id))
    return max(0.0, float(left_s or 0.0))


def _demand(row: rows.Row) -> Demand:
    """A step's demand, with what was seen of its VRAM."""
    demand: Demand = rows.from_json(Demand, row["demand"])
    seen = row["vram_peak_mib"] if demand.gpus else None
    return replace(demand, vram_seen_mib=seen) if seen else demand


def _live_query() -> sa.Select[Any]:
    """Live attempts; those of a step that wait on a device to be started are one row."""
    return (
        sa.select(
            _ATTEMPT.c.node_id,
            _ATTEMPT.c.device_id,
            _ATTEMPT.c.step_id,
            sa.func.coalesce(_ATTEMPT.c.started_at, sa.func.min(_ATTEMPT.c.assigned_at)).label("since"),
            sa.func.count().label("n"),
        )
        .where(_ATTEMPT.c.state.in_(_LIVE))
        .group_by(_ATTEMPT.c.node_id, _ATTEMPT.c.device_id, _ATTEMPT.c.step_id, _ATTEMPT.c.started_at)
    )


def _held_query() -> sa.Select[Any]:
    """What each task takes, of the steps that have live attempts."""
    return (
        sa.select(
            _STEP.c.id,
            _STEP.c.demand,
            _STEP.c.vram_peak_mib,
            _STEP.c.runtime_count,
            _STEP.c.runtime_sum_s,
            _JOB.c.priority,
            _JOB.c.user,
            _JOB.c.project,
        )
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .where(_STEP.c.id.in_(sa.select(_ATTEMPT.c.step_id).where(_ATTEMPT.c.state.in_(_LIVE))))
    )


_LIVE_ATTEMPTS = _live_query()
_HELD_BY_STEP = _held_query()


def uses(db: sa.Connection) -> dict[NodeId, list[Use]]:
    """What live attempts hold of each node."""
    live = db.execute(_LIVE_ATTEMPTS).all()
    if not live:
        return {}
    of_step = {row["id"]: _use(row) for row in db.execute(_HELD_BY_STEP).mappings()}
    held: dict[NodeId, list[Use]] = {}
    for row in live:
        use = of_step.get(row.step_id)  # None: they have all ended since the first question
        if use is not None:
            use = replace(use, device_id=row.device_id, since=row.since)
            held.setdefault(NodeId(row.node_id), []).extend([use] * row.n)
    return held


def _use(row: rows.Row) -> Use:
    """Of any one task of a step."""
    vram_mib = row["demand"]["vram_mib"]
    if row["vram_peak_mib"] and row["demand"]["gpus"]:
        vram_mib = vram_held_mib(Demand(vram_mib=vram_mib, vram_seen_mib=row["vram_peak_mib"]))
    return Use(
        device_id="",
        cpus=row["demand"]["cpus"],
        memory_mib=row["demand"]["memory_mib"],
        vram_mib=vram_mib,
        mean_runtime_s=row["runtime_sum_s"] / row["runtime_count"] if row["runtime_count"] else None,
        step_id=StepId(row["id"]),
        priority=row["priority"],
        user=row["user"],
        project=row["project"],
    )


# --- claim and lease ----------------------------------------------------------------------------------


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
        away = _kept_away(texts, _open_nodes(db), {node_id for node_id, _ in places})
        return [_claim(db, step_id, count, away[node_id]) for node_id, count in places]
    # No task prefers one node to another: all are taken together, and dealt out.
    taken = iter(_claim(db, step_id, sum(count for _, count in places), ()))
    return [list(islice(taken, count)) for _, count in places]


def _claim(db: sa.Connection, step_id: StepId, count: int, kept_away: Sequence[str]) -> list[Claimed]:
    if count <= 0:
        return []
    taken = db.execute(_claim_query(), {"of_step": step_id, "most": count, "away": list(kept_away)}).all()
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
def _claim_query() -> sa.Update:
    now = db_now()
    kept_away: Any = sa.bindparam("away", expanding=True)
    may = sa.or_(
        _TASK.c.avoid_node.is_(None), _TASK.c.avoid_until <= now, _TASK.c.avoid_node.not_in(kept_away)
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
        excluded = _excluded(text, open_nodes)
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
            edition=row["edition"],
        )
        for row in db.execute(_leased_query(db.dialect.name), {"ids": sorted(attempt_ids)}).mappings()
    ]


# --- reports ------------------------------------------------------------------------------------------


def started(db: sa.Connection, node_id: NodeId, attempt_ids: Collection[AttemptId]) -> None:
    """The node has begun these; those that are not its own, or not assigned any more, are left alone."""
    begin_attempts, begin_tasks = _starting(db.dialect.name)
    asked = {"ids": sorted(attempt_ids), "of_node": node_id}
    begun: list[str] = list(db.execute(begin_attempts, asked).scalars())
    moved: Counter[int] = Counter(db.execute(begin_tasks, {"ids": sorted(begun)}).scalars())
    moves.count(db, {(StepId(s), TaskState.ASSIGNED, TaskState.RUNNING): n for s, n in moved.items()})


@cache
def _starting(dialect: str) -> tuple[sa.Update, sa.Update]:
    attempts = (
        sa.update(_ATTEMPT)
        .where(
            among_ids(dialect, _ATTEMPT.c.id),
            _ATTEMPT.c.node_id == sa.bindparam("of_node"),
            _ATTEMPT.c.state == "assigned",
        )
        .values(state="running", started_at=db_now())
        .returning(_ATTEMPT.c.id)
    )
    tasks = (
        sa.update(_TASK)
        .where(among_ids(dialect, _TASK.c.attempt_id), _TASK.c.state == "assigned")
        .values(state="running")
        .returning(_TASK.c.step_id)
    )
    return attempts, tasks


def _facts_query() -> sa.Select[Any]:
    other = _ATTEMPT.alias("other")
    has_others = (
        sa.exists()
        .where(other.c.task_id == _ATTEMPT.c.task_id, other.c.id != _ATTEMPT.c.id)
        .where(other.c.state.in_(_LIVE))
    )
    has_bad_ends = sa.func.coalesce(sa.cast(_NODE.c.bad_ends, sa.Text), "[]").not_in(["[]", "null"])
    return sa.select(
        _ATTEMPT.c.id,
        _ATTEMPT.c.state,
        _ATTEMPT.c.generation,
        _ATTEMPT.c.node_id,
        _ATTEMPT.c.task_id,
        _ATTEMPT.c.job_id,
        _ATTEMPT.c.step_id,
        _ATTEMPT.c.device_id,
        _ATTEMPT.c.started_at,
        _ATTEMPT.c.ends_as,
        _ATTEMPT.c.ends_because,
        has_others.label("has_others"),
        has_bad_ends.label("has_bad_ends"),
        _TASK.c.state.label("task_state"),
        _TASK.c.attempt_id.label("task_attempt_id"),
        _TASK.c.generation.label("task_generation"),
        _TASK.c.failures,
        _TASK.c.faults,
        _TASK.c.starts,
        _TASK.c.not_before,
        _TASK.c.avoid_node,
        _TASK.c.avoid_until,
        _TASK.c.reason.label("task_reason"),
        _TASK.c.runtime_s.label("task_runtime_s"),
        _JOB.c.max_retries,
        _STEP.c.isolation,
        _STEP.c.n_done,
        db_now().label("now"),
    ).select_from(
        _ATTEMPT.join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .join(_STEP, _STEP.c.id == _ATTEMPT.c.step_id)
        .join(_JOB, _JOB.c.id == _ATTEMPT.c.job_id)
        .outerjoin(_NODE, _NODE.c.id == _ATTEMPT.c.node_id)
    )


_FACTS = _facts_query()


@cache
def _facts_of(dialect: str) -> sa.Select[Any]:
    return _FACTS.where(among_ids(dialect, _ATTEMPT.c.id))


def _task_facts(row: rows.Row) -> TaskFacts:
    return TaskFacts(
        state=TaskState(row["task_state"]),
        attempt_id=row["task_attempt_id"],
        generation=row["task_generation"],
        failures=row["failures"],
        faults=row["faults"],
        starts=row["starts"],
        max_retries=row["max_retries"],
    )


def _attempt_facts(row: rows.Row) -> AttemptFacts:
    return AttemptFacts(
        id=AttemptId(row["id"]),
        state=AttemptState(row["state"]),
        generation=row["generation"],
        node_id=NodeId(row["node_id"]),
        ends_as=rows.outcome(row["ends_as"]),
        ends_because=row["ends_because"] or "",
    )


def _siblings(db: sa.Connection, found: Collection[rows.Row]) -> dict[str, list[AttemptFacts]]:
    """Of each attempt: the further live attempts at its task, in the task's generation."""
    asked = {row["task_id"] for row in found if row["has_others"]}
    if not asked:
        return {}
    live: dict[tuple[int, int], list[AttemptFacts]] = {}
    query = sa.select(
        _ATTEMPT.c.id,
        _ATTEMPT.c.state,
        _ATTEMPT.c.generation,
        _ATTEMPT.c.node_id,
        _ATTEMPT.c.task_id,
        _ATTEMPT.c.ends_as,
        _ATTEMPT.c.ends_because,
    ).where(_ATTEMPT.c.task_id.in_(asked), _ATTEMPT.c.state.in_(_LIVE))
    for row in db.execute(query).mappings():
        live.setdefault((row["task_id"], row["generation"]), []).append(_attempt_facts(row))
    return {
        row["id"]: [o for o in live.get((row["task_id"], row["task_generation"]), ()) if o.id != row["id"]]
        for row in found
        if row["has_others"]
    }


def lock_jobs_of(db: sa.Connection, attempt_ids: Collection[AttemptId]) -> None:
    """`moves.lock_jobs` on the jobs of these attempts."""
    if attempt_ids and db.dialect.name != "sqlite":
        db.execute(_locking(db.dialect.name), {"ids": sorted(attempt_ids)})


@cache
def _locking(dialect: str) -> sa.Select[Any]:
    of_these = sa.select(_ATTEMPT.c.job_id).where(among_ids(dialect, _ATTEMPT.c.id))
    return sa.select(_JOB.c.id).where(_JOB.c.id.in_(of_these)).order_by(_JOB.c.id).with_for_update()


def finished(db: sa.Connection, reports: Mapping[NodeId, Sequence[Finished]]) -> set[JobId]:
    """Settle the ends that nodes reported; returns the jobs whose tasks changed.

    The caller has called `lock_jobs_of`. A node's report on an attempt of another node changes nothing (G7).
    """
    touched: set[JobId] = set()
    left = [(node_id, _bearable(report)) for node_id, told in reports.items() for report in told]
    while left:
        # Two attempts at one task may end together: what the second end means hangs on the first.
        left, changed = _finished_apart(db, left)
        touched |= changed
    return touched


def _finished_apart(
    db: sa.Connection, told: Sequence[tuple[NodeId, Finished]]
) -> tuple[list[tuple[NodeId, Finished]], set[JobId]]:
    """Settle reports on different tasks; returns the rest, and the jobs that changed."""
    asked = {report.attempt_id for _, report in told}
    asked |= {report.published_by for _, report in told if report.published_by is not None}
    found = {
        row["id"]: row for row in db.execute(_facts_of(db.dialect.name), {"ids": sorted(asked)}).mappings()
    }
    own: dict[AttemptId, Finished] = {}
    left: list[tuple[NodeId, Finished]] = []
    tasks: set[int] = set()
    for node_id, report in told:
        row = found.get(report.attempt_id)
        if row is None or row["node_id"] != node_id:
            continue
        if row["task_id"] in tasks:
            left.append((node_id, report))
            continue
        tasks.add(row["task_id"])
        own[report.attempt_id] = as_asked(_attempt_facts(row), report)
    rows_of = [found[attempt_id] for attempt_id in own]
    siblings = _siblings(db, rows_of)
    bad_nodes = _bad_nodes(db, rows_of)
    unlicensed = _unlicensed(db, rows_of, own)
    settled: list[tuple[rows.Row, Settlement, Finished]] = []
    for (attempt_id, report), row in zip(own.items(), rows_of, strict=True):
        publisher_row = found.get(report.published_by) if report.published_by else None
        if publisher_row is not None and publisher_row["task_id"] != row["task_id"]:
            publisher_row = None  # a node may not name another task's attempt
        publisher = _attempt_facts(publisher_row) if publisher_row is not None else None
        facts = replace(
            _task_facts(row),
            unlicensed=unlicensed.get(row["task_id"], 0),
            bad_nodes=bad_nodes.get(row["task_id"], frozenset()),
        )
        change = settle(facts, _attempt_facts(row), report, publisher, siblings.get(attempt_id, ()))
        settled.append((row, change, report))
    return left, _write(db, settled)


def _bad_nodes(db: sa.Connection, found: Collection[rows.Row]) -> dict[int, frozenset[NodeId]]:
    """Nodes on which tasks ended badly before, not by the job's own words; asked where it may matter."""
    asked = {row["task_id"] for row in found if row["starts"] >= MAX_BAD_NODES}
    if not asked:
        return {}
    query = (
        sa.select(_ATTEMPT.c.task_id, _ATTEMPT.c.node_id)
        .distinct()
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .where(
            _ATTEMPT.c.task_id.in_(asked),
            _ATTEMPT.c.generation == _TASK.c.generation,
            _ATTEMPT.c.started_at.is_not(None),
            _ATTEMPT.c.outcome.in_([str(outcome) for outcome in POISON]),
            sa.not_(_ATTEMPT.c.reason.like("handed back%")),
        )
    )
    nodes: dict[int, set[NodeId]] = {}
    for row in db.execute(query):
        nodes.setdefault(row.task_id, set()).add(NodeId(row.node_id))
    return {task_id: frozenset(of) for task_id, of in nodes.items()}


def _unlicensed(
    db: sa.Connection, found: Sequence[rows.Row], reports: Mapping[AttemptId, Finished]
) -> dict[int, int]:
    """How often tasks found no licence before; asked for those only of which it matters."""
    asked = [
        row["task_id"]
        for row in found
        if reports[row["id"]].outcome is Outcome.LICENCE or row["starts"] >= MAX_STARTS
    ]
    if not asked:
        return {}
    query = (
        sa.select(_ATTEMPT.c.task_id, sa.func.count().label("n"))
        .where(_ATTEMPT.c.task_id.in_(asked), _ATTEMPT.c.outcome == str(Outcome.LICENCE))
        .group_by(_ATTEMPT.c.task_id)
    )
    return {row.task_id: row.n for row in db.execute(query)}


def _bearable(report: Finished) -> Finished:
    """The report less what no column holds: a node may be wrong, and must not stop the farm by it."""
    return replace(
        report,
        reason=report.reason[:_MAX_REASON],
        warnings=tuple(warning[:_MAX_REASON] for warning in report.warnings[:_MAX_WARNINGS]),
        exit_code=_in_32_bits(report.exit_code),
        peak_memory_mib=_in_32_bits(report.peak_memory_mib),
        runtime_s=rows.figure(report.runtime_s) or 0.0,
        load_s=rows.figure(report.load_s),
        cpu_s=rows.figure(report.cpu_s),
        usage=_bearable_usage(report.usage),
        probe=_bearable_probe(report.probe),
    )


def _bearable_usage(usage: DeviceUsage | None) -> DeviceUsage | None:
    if usage is None:
        return None
    peak = usage.vram_peak_mib
    return replace(
        usage,
        device_model=usage.device_model[:_MAX_REASON],
        devices=min(max(usage.devices, 1), _MAX_DEVICES),
        seconds=rows.figure(usage.seconds) or 0.0,
        busy=rows.figure(usage.busy),
        memory_busy=rows.figure(usage.memory_busy),
        vram_peak_mib=peak if peak is not None and 0 <= peak < 2**31 else None,
        energy_j=rows.figure(usage.energy_j),
        throttled_s=rows.figure(usage.throttled_s),
    )


def _bearable_probe(probe: Probe | None) -> Probe | None:
    """None for a probe whose shares are no shares."""
    if probe is None:
        return None
    shares = (probe.compute_share, probe.bandwidth_share, probe.confidence)
    if any(share is not None and not 0 <= share <= 1 for share in shares):
        return None
    return replace(probe, device_model=probe.device_model[:_MAX_REASON], reason=probe.reason[:_MAX_REASON])


def _in_32_bits(value: int | None) -> int | None:
    """Windows tells exit codes without a sign: 0xC0000005 is -1073741819."""
    return None if value is None else (value + 2**31) % 2**32 - 2**31


def _write(db: sa.Connection, settled: Sequence[tuple[rows.Row, Settlement, Finished]]) -> set[JobId]:
    if not settled:
        return set()
    now: float = settled[0][0]["now"]
    attempt_changes: list[dict[str, Any]] = []
    task_changes: list[dict[str, Any]] = []
    occurred: list[dict[str, object]] = []
    runtimes: dict[StepId, tuple[int, float]] = {}
    licence_delays: dict[StepId, float] = {}
    """One that was refused a licence: the step's other tasks would be refused too."""
    stops: dict[str, list[AttemptId]] = {}
    touched: set[JobId] = set()
    for row, change, report in settled:
        if change.attempt is not None:
            check_attempt_move(AttemptState(row["state"]), change.attempt)
            attempt_changes.append(_ended(row, change, report, now))
        if change.adopted is not None:
            _adopt(db, change.adopted, report, now)
        for pointless in change.stop:
            stops.setdefault(_node_of(db, pointless), []).append(pointless)
        if change.task is not None:
            touched.add(row["job_id"])
            away = _away(db, row, report) if change.avoid else None
            task_changes.append(_moved(row, change, report, now, away or None))
            if report.outcome is Outcome.LICENCE and change.delay_s:
                licence_delays[row["step_id"]] = change.delay_s
            if change.task is TaskState.DONE and report.runtime_s:
                count, total_s = runtimes.get(row["step_id"], (0, 0.0))
                runtimes[row["step_id"]] = (count + 1, total_s + report.runtime_s)
        kind = _event_kind(change, report)
        if kind is not None:
            occurred.append(
                {
                    "kind": str(kind),
                    "text": change.reason or report.reason,
                    "actor": "",
                    "job_id": row["job_id"],
                    "task_id": row["task_id"],
                    "attempt_id": row["id"],
                    "node_id": row["node_id"],
                }
            )
    _write_attempts(db, attempt_changes)
    moves.move_each(db, task_changes)
    _judge_nodes(db, settled, now)
    if runtimes:
        db.execute(
            _ADD_RUNTIMES,
            [{"of_step": s, "count": n, "seconds": total_s} for s, (n, total_s) in sorted(runtimes.items())],
        )
    for step_id, delay_s in sorted(licence_delays.items()):
        db.execute(sa.update(_STEP).where(_STEP.c.id == step_id).values(licence_until=now + delay_s))
    _learn_of_steps(db, [(row["step_id"], r) for row, _, r in settled if r.outcome is Outcome.SUCCEEDED])
    for node_id, attempt_ids in sorted(stops.items()):
        outbox.owe_control(
            db, node_id, Stop(attempt_ids=tuple(attempt_ids), reason="another attempt was accepted")
        )
    events.happened_many(db, occurred, now=now)
    jobs.settle_jobs(db, touched)
    return touched


def _write_attempts(db: sa.Connection, changes: Sequence[dict[str, Any]]) -> None:
    """Most of the figures are those of GPUs: where no attempt used one, nothing is written of them."""
    on_cpu = [change for change in changes if change["gpu_s"] is None]
    on_gpu = [change for change in changes if change["gpu_s"] is not None]
    figures = _used(Finished(attempt_id=AttemptId(""), outcome=Outcome.SUCCEEDED)).keys() - {"probe"}
    update_many(db, _ATTEMPT, [{k: v for k, v in c.items() if k not in figures} for c in on_cpu])
    update_many(db, _ATTEMPT, on_gpu)


_ADD_RUNTIMES = (
    sa.update(_STEP)
    .where(_STEP.c.id == sa.bindparam("of_step"))
    .values(
        runtime_count=_STEP.c.runtime_count + sa.bindparam("count"),
        runtime_sum_s=_STEP.c.runtime_sum_s + sa.bindparam("seconds"),
        licence_until=0.0,  # one of its licences has just become free
    )
)


def _judge_nodes(
    db: sa.Connection, settled: Sequence[tuple[rows.Row, Settlement, Finished]], now: float
) -> None:
    """Keep each node's bad ends since its last good one, and close it for a while when they are too many."""
    ends: dict[str, list[quarantine.Bad | None]] = {}
    concerned: set[str] = set()
    """Nodes of which something is kept, or has to be."""
    for row, change, report in settled:
        if row["has_bad_ends"]:
            concerned.add(row["node_id"])
        if change.attempt in (AttemptState.SUCCEEDED, AttemptState.SUPERSEDED):
            ends.setdefault(row["node_id"], []).append(None)
        elif change.attempt is not None and quarantine.blames_node(
            report.outcome,
            works_elsewhere=row["n_done"] > 0,
            is_device_fault=report.is_device_fault,
        ):
            bad = quarantine.Bad(job_id=row["job_id"], task_id=row["task_id"], outcome=report.outcome)
            ends.setdefault(row["node_id"], []).append(bad)
            concerned.add(row["node_id"])
    concerned &= ends.keys()
    if not concerned:
        return
    query = sa.select(_NODE.c.id, _NODE.c.bad_ends, _NODE.c.quarantined_until, _NODE.c.quarantines).where(
        _NODE.c.id.in_(concerned)
    )
    for node in db.execute(query).mappings().all():
        streak = [rows.from_json(quarantine.Bad, bad) for bad in node["bad_ends"] or ()]
        before = list(streak)
        for end in ends[node["id"]]:
            streak = [] if end is None else [*streak, end][-quarantine.STREAK :]
        if streak == before:
            continue
        values: dict[str, Any] = {"bad_ends": [rows.to_json(bad) for bad in streak]}
        if quarantine.is_bad(streak) and node["quarantined_until"] <= now and _may_be_closed(db, now):
            seconds = quarantine.cool_down_s(node["quarantines"])
            why = quarantine.told(streak)
            values |= {
                "bad_ends": [],
                "quarantined_until": now + seconds,
                "quarantines": node["quarantines"] + 1,
                "quarantine_reason": why,
            }
            text = f"quarantined for {duration(seconds)}: {why}; `farm undrain {node['id']}` releases it"
            events.happened(db, EventKind.NODE_QUARANTINED, text, node_id=node["id"])
        db.execute(sa.update(_NODE).where(_NODE.c.id == node["id"]).values(**values))


def _may_be_closed(db: sa.Connection, now: float) -> bool:
    open_ = db.scalar(sa.select(sa.func.count()).select_from(_NODE).where(_TAKES_WORK)) or 0
    closed = db.scalar(sa.select(sa.func.count()).where(_NODE.c.quarantined_until > now)) or 0
    return quarantine.may_be_closed(taking_work=open_, closed=closed)


def _ended(row: rows.Row, change: Settlement, report: Finished, now: float) -> dict[str, Any]:
    is_accepted = change.attempt is AttemptState.SUCCEEDED
    return {
        "id": row["id"],
        "state": str(change.attempt),
        "started_at": row["started_at"] or max(0.0, now - report.runtime_s),
        "finished_at": now,
        "outcome": str(report.outcome),
        "exit_code": report.exit_code,
        "reason": report.reason or change.reason,
        "progress": 1.0 if is_accepted else None,
        "runtime_s": report.runtime_s or None,
        "load_s": report.load_s,
        "peak_memory_mib": report.peak_memory_mib,
        "cpu_s": report.cpu_s,
        **_used(report),
        "warnings": list(report.warnings),
        "files": [rows.to_json(f) for f in report.files] if is_accepted else [],
    }


def _used(report: Finished) -> dict[str, Any]:
    usage, probe = report.usage, report.probe
    return {
        "gpu_model": usage.device_model if usage else None,
        "gpu_count": usage.devices if usage else None,
        "gpu_s": usage.seconds * usage.devices if usage else None,
        "gpu_busy": usage.busy if usage else None,
        "gpu_memory_busy": usage.memory_busy if usage else None,
        "vram_peak_mib": usage.vram_peak_mib if usage else None,
        "energy_j": usage.energy_j if usage else None,
        "throttled_s": usage.throttled_s if usage else None,
        "probe": rows.to_json(probe) if probe else None,
    }


def _learn_of_steps(db: sa.Connection, reports: Sequence[tuple[StepId, Finished]]) -> None:
    """The most VRAM a step was seen to hold, and what a probe says of its demand.

    What a step that is a probe showed counts for those that depend on it too.
    """
    peaks: dict[StepId, int] = {}
    probes: dict[StepId, Probe] = {}
    told = [(step_id, r) for step_id, r in reports if r.usage is not None or r.probe is not None]
    probed = _probed_by(db, {step_id for step_id, _ in told})
    for source, report in told:
        for step_id in (source, *probed.get(source, ())):
            if report.usage is not None and report.usage.vram_peak_mib:
                peaks[step_id] = max(peaks.get(step_id, 0), report.usage.vram_peak_mib)
            best = probes.get(step_id)
            if report.probe is not None and (best is None or report.probe.confidence > best.confidence):
                probes[step_id] = report.probe
    for step_id, peak in sorted(peaks.items()):
        seen = sa.func.coalesce(_STEP.c.vram_peak_mib, 0)
        db.execute(sa.update(_STEP).where(_STEP.c.id == step_id, seen < peak).values(vram_peak_mib=peak))
    for step_id, probe in sorted(probes.items()):
        row = db.execute(sa.select(_STEP.c.profile).where(_STEP.c.id == step_id)).mappings().one()
        before = rows.from_json(Profile, row["profile"])
        after = learned(before, probe)
        if after != before:
            db.execute(sa.update(_STEP).where(_STEP.c.id == step_id).values(profile=rows.to_json(after)))


def _probed_by(db: sa.Connection, step_ids: set[StepId]) -> dict[StepId, list[StepId]]:
    """Those of the steps that are probes, each with the steps that depend on it."""
    if not step_ids:
        return {}
    found: dict[StepId, list[StepId]] = {}
    probes = db.execute(
        sa.select(_STEP.c.id, _STEP.c.job_id, _STEP.c.name).where(
            _STEP.c.id.in_(step_ids), _STEP.c.isolation == str(Isolation.PROBE)
        )
    ).mappings()
    for probe in probes.all():
        others = db.execute(
            sa.select(_STEP.c.id, _STEP.c.depends_on).where(_STEP.c.job_id == probe["job_id"])
        ).mappings()
        found[StepId(probe["id"])] = [
            StepId(other["id"]) for other in others if probe["name"] in other["depends_on"]
        ]
    return found


def _adopt(db: sa.Connection, attempt_id: AttemptId, report: Finished, now: float) -> None:
    """Another attempt's committed files were found and completed: that attempt is the accepted one."""
    state = db.scalar(sa.select(_ATTEMPT.c.state).where(_ATTEMPT.c.id == attempt_id))
    if state is None or state == AttemptState.SUCCEEDED:
        return
    check_attempt_move(AttemptState(state), AttemptState.SUCCEEDED)
    db.execute(
        sa.update(_ATTEMPT)
        .where(_ATTEMPT.c.id == attempt_id)
        .values(
            state="succeeded",
            outcome=str(Outcome.SUCCEEDED),
            finished_at=now,
            reason="its files were found published",
            files=[rows.to_json(f) for f in report.files],
        )
    )


def _away(db: sa.Connection, row: rows.Row, report: Finished) -> str:
    """The task's `avoid_node` after this failure."""
    before = avoid.read(row["avoid_node"]) if row["task_generation"] == row["generation"] else avoid.Avoid()
    after = avoid.also(before, NodeId(row["node_id"]))
    if report.outcome is not Outcome.OUT_OF_MEMORY:
        return after.text()
    query = sa.select(_NODE.c.id, _NODE.c.capabilities).where(_NODE.c.state != "offline")
    farm = {r.id: rows.from_json(Capabilities, r.capabilities) for r in db.execute(query)}
    here = farm.get(row["node_id"], Capabilities())
    demand: dict[str, Any] = db.scalar(sa.select(_STEP.c.demand).where(_STEP.c.id == row["step_id"])) or {}
    on_gpu = demand["gpus"] > 0 and report.exit_code not in _KILLED
    if on_gpu:
        used = report.usage.vram_peak_mib if report.usage is not None else None
        had = max((d.vram_mib or 0 for d in here.devices if d.id in row["device_id"].split(",")), default=0)
        asked = demand["vram_mib"]
    else:
        used, had, asked = report.peak_memory_mib, here.memory_mib, demand["memory_mib"]
    grown = avoid.grown(
        before, on_gpu=on_gpu, used_mib=used, asked_mib=asked, had_mib=had or None, farm=farm.values()
    )
    # The node itself may try again where it has what is needed: it may have been crowded.
    return grown.text() if grown != before else after.text()


def _moved(
    row: rows.Row, change: Settlement, report: Finished, now: float, away: str | None
) -> dict[str, Any]:
    is_done = change.task is TaskState.DONE
    return {
        "task_id": row["task_id"],
        "step_id": row["step_id"],
        "old": TaskState(row["task_state"]),
        "new": change.task,
        # A done task points at the attempt whose files it has.
        "attempt_id": (change.adopted or row["id"]) if is_done else change.owner or row["task_attempt_id"],
        "failures": row["failures"] + change.failures,
        "faults": row["faults"] + change.faults,
        # The minute in which others may try first is counted from here, so it is set without a delay too.
        "not_before": now + change.delay_s if change.delay_s or change.avoid else row["not_before"],
        "avoid_node": away if change.avoid else row["avoid_node"],
        "avoid_until": (
            max(row["avoid_until"], now + change.delay_s + avoid.seconds(report.outcome))
            if change.avoid
            else row["avoid_until"]
        ),
        "reason": "" if is_done else change.reason or row["task_reason"],
        "runtime_s": (report.runtime_s or None) if is_done else row["task_runtime_s"],
    }


def _node_of(db: sa.Connection, attempt_id: AttemptId) -> str:
    return db.scalar(sa.select(_ATTEMPT.c.node_id).where(_ATTEMPT.c.id == attempt_id)) or ""


def _event_kind(change: Settlement, report: Finished) -> EventKind | None:
    if change.task is TaskState.FAILED:
        return EventKind.TASK_FAILED
    if change.task is TaskState.HELD:
        return EventKind.TASK_HELD
    if change.task is TaskState.DONE:
        return EventKind.TASK_DONE
    if change.attempt is AttemptState.FAILED:
        return EventKind.ATTEMPT_FAILED
    if change.attempt is AttemptState.LOST:
        return EventKind.ATTEMPT_LOST
    return None


# --- leases -------------------------------------------------------------------------------------------


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
        _ATTEMPT.c.state.in_(_LIVE),
        since < db_now() - sa.bindparam("before_s", type_=sa.Float()),
    )


def _ran_out() -> sa.Select[Any]:
    """Live attempts whose lease has run out, less those whose task is held for that very reason."""
    return (
        sa.select(_ATTEMPT.c.id, _ATTEMPT.c.job_id)
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .where(_ATTEMPT.c.state.in_(_LIVE), _ATTEMPT.c.lease_until < db_now(), _TASK.c.state != "held")
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


def expire_leases(db: sa.Connection, attempt_ids: Collection[AttemptId]) -> set[JobId]:
    """Settle attempts whose lease ran out. The caller holds `moves.lock_jobs` on their jobs."""
    left = set(attempt_ids)
    touched: set[JobId] = set()
    while True:
        query = _FACTS.where(
            among(db, _ATTEMPT.c.id, left), _ATTEMPT.c.lease_until < db_now(), _ATTEMPT.c.state.in_(_LIVE)
        )
        # One of each task at a time, as in `finished`.
        found = {row["task_id"]: row for row in db.execute(query).mappings()}
        if not found:
            return touched
        siblings = _siblings(db, found.values())
        bad_nodes = _bad_nodes(db, found.values())
        settled = []
        for row in found.values():
            left.discard(row["id"])
            facts = replace(_task_facts(row), bad_nodes=bad_nodes.get(row["task_id"], frozenset()))
            change = expire(facts, _attempt_facts(row), rows.isolation(row), siblings.get(row["id"], ()))
            lost = Finished(attempt_id=row["id"], outcome=Outcome.NODE_LOST, reason=change.reason)
            settled.append((row, change, lost))
        touched |= _write(db, settled)


def progressed(db: sa.Connection, node_id: NodeId, items: Sequence[Progress]) -> None:
    """The newest progress of running attempts of this node."""
    if not items:
        return
    db.execute(
        sa.update(_ATTEMPT)
        .where(
            _ATTEMPT.c.id == sa.bindparam("b_id"),
            _ATTEMPT.c.node_id == node_id,
            _ATTEMPT.c.state == "running",
        )
        .values(progress=sa.bindparam("b_progress"), message=sa.bindparam("b_message")),
        [
            {
                "b_id": item.attempt_id,
                "b_progress": rows.figure(item.fraction),
                "b_message": item.message[:_MAX_REASON],
            }
            for item in items
        ],
    )
