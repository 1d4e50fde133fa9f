"""What nodes report of their attempts, and what becomes of those whose lease ran out: the leader's writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import sqlalchemy as sa

from farm.flow import avoid, quarantine
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
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, NodeId, StepId
from farm.model.machines import Capabilities
from farm.model.probes import Probe
from farm.model.states import AttemptState, Outcome, TaskState, check_attempt_move
from farm.model.work import Isolation, Profile
from farm.store import advancing, events, moves, outbox, rows
from farm.store.bulk import update_many
from farm.store.engine import among, among_ids, db_now
from farm.store.ready import TAKES_WORK
from farm.store.tables import AttemptRow, JobRow, NodeRow, StepRow, TaskRow
from farm.text import duration
from farm.wire.messages import Finished, Progress, Stop

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_NODE = NodeRow.__table__  # type: ignore[attr-defined]


_MAX_REASON = 1_000
_MAX_WARNINGS = 100
_MAX_DEVICES = 64
_KILLED = (-9, 137)
"""Exit codes of a process that the kernel's out-of-memory killer ended."""


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
        .where(other.c.state.in_(rows.LIVE))
    )
    bad_ends = sa.func.coalesce(sa.cast(_NODE.c.bad_ends, sa.Text), "[]")
    has_bad_ends = sa.and_(bad_ends != "[]", bad_ends != "null")
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
    for row in db.execute(_live_of(db.dialect.name), {"ids": sorted(asked)}).mappings():
        live.setdefault((row["task_id"], row["generation"]), []).append(_attempt_facts(row))
    return {
        row["id"]: [o for o in live.get((row["task_id"], row["task_generation"]), ()) if o.id != row["id"]]
        for row in found
        if row["has_others"]
    }


@cache
def _live_of(dialect: str) -> sa.Select[Any]:
    """Live attempts at these tasks."""
    return sa.select(
        _ATTEMPT.c.id,
        _ATTEMPT.c.state,
        _ATTEMPT.c.generation,
        _ATTEMPT.c.node_id,
        _ATTEMPT.c.task_id,
        _ATTEMPT.c.ends_as,
        _ATTEMPT.c.ends_because,
    ).where(among_ids(dialect, _ATTEMPT.c.task_id), _ATTEMPT.c.state.in_(rows.LIVE))


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
    nodes: dict[int, set[NodeId]] = {}
    for row in db.execute(_badly_ended(db.dialect.name), {"ids": sorted(asked)}):
        nodes.setdefault(row.task_id, set()).add(NodeId(row.node_id))
    return {task_id: frozenset(of) for task_id, of in nodes.items()}


@cache
def _badly_ended(dialect: str) -> sa.Select[Any]:
    return (
        sa.select(_ATTEMPT.c.task_id, _ATTEMPT.c.node_id)
        .distinct()
        .join(_TASK, _TASK.c.id == _ATTEMPT.c.task_id)
        .where(
            among_ids(dialect, _ATTEMPT.c.task_id),
            _ATTEMPT.c.generation == _TASK.c.generation,
            _ATTEMPT.c.started_at.is_not(None),
            _ATTEMPT.c.outcome.in_([str(outcome) for outcome in POISON]),
            sa.not_(_ATTEMPT.c.reason.like("handed back%")),
        )
    )


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
    advancing.advance_jobs(db, touched)
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
    open_ = db.scalar(sa.select(sa.func.count()).select_from(_NODE).where(TAKES_WORK)) or 0
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


def expire_leases(db: sa.Connection, attempt_ids: Collection[AttemptId]) -> set[JobId]:
    """Settle attempts whose lease ran out. The caller holds `moves.lock_jobs` on their jobs."""
    left = set(attempt_ids)
    touched: set[JobId] = set()
    while True:
        query = _FACTS.where(
            among(db, _ATTEMPT.c.id, left), _ATTEMPT.c.lease_until < db_now(), _ATTEMPT.c.state.in_(rows.LIVE)
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
        _PROGRESS,
        [
            {
                "b_id": item.attempt_id,
                "of_node": node_id,
                "b_progress": rows.figure(item.fraction),
                "b_message": item.message[:_MAX_REASON],
            }
            for item in items
        ],
    )


_PROGRESS = (
    sa.update(_ATTEMPT)
    .where(
        _ATTEMPT.c.id == sa.bindparam("b_id"),
        _ATTEMPT.c.node_id == sa.bindparam("of_node"),
        _ATTEMPT.c.state == "running",
    )
    .values(progress=sa.bindparam("b_progress"), message=sa.bindparam("b_message"))
)
