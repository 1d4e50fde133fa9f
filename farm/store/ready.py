"""What there is to do, and what is done already: ready tasks, and what live attempts hold of the nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from farm.flow import avoid
from farm.flow.groups import Group
from farm.flow.refusals import vram_held_mib
from farm.model.ids import JobId, NodeId, StepId, TaskId
from farm.model.machines import Capabilities, Demand, Use
from farm.model.states import JobState
from farm.model.work import Profile
from farm.store import rows
from farm.store.engine import db_now, read_clock
from farm.store.tables import AttemptRow, JobRow, NodeRow, StepRow, TaskRow

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_NODE = NodeRow.__table__  # type: ignore[attr-defined]


TAKES_WORK = sa.and_(
    _NODE.c.state == "online", _NODE.c.is_drained.is_(False), _NODE.c.quarantined_until <= db_now()
)


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
            _STEP.c.id,
            _STEP.c.job_id,
            rows.as_text(_STEP.c.demand),
            rows.as_text(_STEP.c.profile),
            _STEP.c.n_ready,
            _STEP.c.n_assigned,
            _STEP.c.n_running,
            _STEP.c.n_cancelling,
            _STEP.c.runtime_count,
            _STEP.c.runtime_sum_s,
            _STEP.c.vram_peak_mib,
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
        open_nodes = nodes_taking_work(db)
        for texts in avoiding.values():
            for text in list(texts):
                excluded[text] = nodes_excluded(text, open_nodes)
                if len(excluded[text]) == len(open_nodes):
                    del texts[text]  # nobody else could try first
    found = []
    for row in waiting:
        avoided = avoiding.get(row["id"], {})
        group = Group(
            step_id=StepId(row["id"]),
            job_id=JobId(row["job_id"]),
            demand=_demand(row),
            profile=rows.from_text(Profile, row["profile"]),
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


def nodes_taking_work(db: sa.Connection) -> dict[NodeId, Capabilities]:
    """Those that take work."""
    found = db.execute(_TAKING_WORK)
    return {NodeId(row.id): rows.from_text(Capabilities, row.capabilities) for row in found}


_TAKING_WORK = sa.select(_NODE.c.id, rows.as_text(_NODE.c.capabilities)).where(TAKES_WORK)


def nodes_excluded(text: str, open_nodes: Mapping[NodeId, Capabilities]) -> frozenset[NodeId]:
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
    now = read_clock(db)
    query = sa.select(_TASK.c.not_before, _TASK.c.avoid_node, _TASK.c.avoid_until)
    row = db.execute(query.where(_TASK.c.id == task_id)).one()
    avoids = ""
    if row.avoid_node and row.avoid_until > now:
        open_nodes = nodes_taking_work(db)
        if len(nodes_excluded(row.avoid_node, open_nodes)) < len(open_nodes):
            avoids = avoid.read(row.avoid_node).told()
    return Delay(seconds=max(0.0, row.not_before - now), avoids=avoids)


def next_due_s(db: sa.Connection, step_id: StepId) -> float:
    """Seconds until a ready task of the step may start; 0 when one may now, or none is ready."""
    now = read_clock(db)
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
    demand: Demand = rows.from_text(Demand, row["demand"])
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
        .where(_ATTEMPT.c.state.in_(rows.LIVE))
        .group_by(_ATTEMPT.c.node_id, _ATTEMPT.c.device_id, _ATTEMPT.c.step_id, _ATTEMPT.c.started_at)
    )


def _held_query() -> sa.Select[Any]:
    """What each task takes, of the steps that have live attempts."""
    return (
        sa.select(
            _STEP.c.id,
            rows.as_text(_STEP.c.demand),
            _STEP.c.vram_peak_mib,
            _STEP.c.runtime_count,
            _STEP.c.runtime_sum_s,
            _JOB.c.priority,
            _JOB.c.user,
            _JOB.c.project,
        )
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .where(_STEP.c.id.in_(sa.select(_ATTEMPT.c.step_id).where(_ATTEMPT.c.state.in_(rows.LIVE))))
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
    demand = _demand(row)
    return Use(
        device_id="",
        cpus=demand.cpus,
        memory_mib=demand.memory_mib,
        vram_mib=vram_held_mib(demand),
        mean_runtime_s=row["runtime_sum_s"] / row["runtime_count"] if row["runtime_count"] else None,
        step_id=StepId(row["id"]),
        priority=row["priority"],
        user=row["user"],
        project=row["project"],
    )
