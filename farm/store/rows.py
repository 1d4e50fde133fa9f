"""Rows to nouns and back: the only place that knows both."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import RowMapping

from farm.model.attempts import Attempt, DeviceUsage, PublishedFile
from farm.model.decisions import Decision
from farm.model.events import Event, EventKind
from farm.model.ids import AttemptId, JobId, NodeId, StepId, TaskId
from farm.model.machines import Capabilities, Demand, DeviceLoad, Node
from farm.model.probes import Probe
from farm.model.stalls import Evidence, Origin, Stall, StallKind
from farm.model.states import LIVE_ATTEMPTS, AttemptState, JobState, NodeState, Outcome, TaskState
from farm.model.work import Counts, Isolation, Job, JobSettings, OutputSpec, Profile, Step, Task
from farm.text import duration

Row = RowMapping

LIVE: Final = tuple(sorted(map(str, LIVE_ATTEMPTS)))
"""Attempts in these states hold their node's room."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(value: Any) -> Any:
    """A noun as what a JSON column holds."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json")


def from_json(kind: Any, value: Any) -> Any:
    """A JSON column's content as a noun of `kind`.

    While the farm is upgraded a newer process may have written values of an enum that this version does not
    know: such a field has its default then, or what is in a list is left out.
    """
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        readable = copy.deepcopy(value)
        for each in sorted(error.errors(include_url=False), key=lambda e: str(e["loc"]), reverse=True):
            if each["type"] != "enum":
                raise
            _leave_out(readable, each["loc"])
        return _adapter(kind).validate_python(readable)


def as_text(column: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """A JSON column's content as it lies there, for `from_text`, under the column's own name."""
    return sa.cast(column, sa.Text).label(column.key)


@lru_cache(maxsize=20_000)
def from_text(kind: Any, text: str) -> Any:
    """As `from_json`, for what is read again and again and seldom changes.

    Kept by the text itself: another text is read anew, whoever wrote it. What is returned is shared, and not
    to be changed.
    """
    return from_json(kind, json.loads(text))


def _leave_out(value: Any, where: Sequence[int | str]) -> None:
    """Delete the item of the innermost list that this is in, else the field itself."""
    last = max((n for n, part in enumerate(where) if isinstance(part, int)), default=len(where) - 1)
    for part in where[:last]:
        value = value[part]
    del value[where[last]]


_E = TypeVar("_E", bound=StrEnum)


def known(kind: type[_E], value: str, otherwise: _E) -> _E:
    """A text column's content; `otherwise` for what only a newer version knows."""
    try:
        return kind(value)
    except ValueError:
        return otherwise


def figure(value: float | None) -> float | None:
    """A node's figure, or None when it is none: NaN, infinite or negative would spoil every sum it is in."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def isolation(row: Row) -> Isolation:
    """The strictest one for what is not known: no second start before the first is proven dead."""
    return known(Isolation, row["isolation"], Isolation.EXCLUSIVE)


def counts(row: Row) -> Counts:
    return Counts(**{state.value: row[f"n_{state.value}"] for state in TaskState})


def step(row: Row) -> Step:
    return Step(
        id=StepId(row["id"]),
        job_id=JobId(row["job_id"]),
        name=row["name"],
        position=row["position"],
        depends_on=tuple(row["depends_on"]),
        by_frame=tuple(row["by_frame"]),
        demand=from_json(Demand, row["demand"]),
        profile=from_json(Profile, row["profile"]),
        isolation=isolation(row),
        output=from_json(OutputSpec, row["output"]) if row["output"] else None,
        frames=row["frames"],
        counts=counts(row),
        mean_runtime_s=row["runtime_sum_s"] / row["runtime_count"] if row["runtime_count"] else None,
    )


def job_settings(row: Row, depends_on: Sequence[int]) -> JobSettings:
    """The settings as they are now: what may change lives in columns."""
    changed = {
        "priority": row["priority"],
        "is_paused": row["is_paused"],
        "max_running": row["max_running"],
        "pool": row["pool"],
        "user": row["user"],
        "max_retries": row["max_retries"],
        "max_failed_tasks": row["max_failed_tasks"],
        "replace_existing": row["replaces_existing"],
        "depends_on": tuple(depends_on),
    }
    settings: JobSettings = from_json(JobSettings, {**row["settings"], **changed})
    return settings


def job(row: Row, steps: Sequence[Step], depends_on: Sequence[int]) -> Job:
    return Job(
        id=JobId(row["id"]),
        uid=row["uid"],
        name=row["name"],
        kind=row["kind"],
        state=JobState(row["state"]),
        settings=job_settings(row, depends_on),
        submitted_at=row["submitted_at"],
        finished_at=row["finished_at"],
        steps=tuple(steps),
        output_directories=tuple(row["output_directories"]),
        reason=row["reason"],
        edition=row["edition"],
    )


def task(row: Row) -> Task:
    """`label` is left as the index: `farm.control.spaces` knows the parameters."""
    return Task(
        id=TaskId(row["id"]),
        job_id=JobId(row["job_id"]),
        step_id=StepId(row["step_id"]),
        step=row["step_name"],
        index=row["idx"],
        label=str(row["idx"]),
        state=TaskState(row["state"]),
        starts=row["starts"],
        failures=row["failures"],
        generation=row["generation"],
        node_id=row["node_id"],
        progress=row["progress"] if row["state"] in ("running", "assigned") else None,
        runtime_s=row["runtime_s"],
        load_s=row["load_s"],
        reason=row["reason"],
        warnings=tuple(row["warnings"] or ()),
    )


def attempt(row: Row) -> Attempt:
    return Attempt(
        id=AttemptId(row["id"]),
        task_id=TaskId(row["task_id"]),
        job_id=JobId(row["job_id"]),
        step_id=StepId(row["step_id"]),
        node_id=NodeId(row["node_id"]),
        device_id=row["device_id"],
        state=AttemptState(row["state"]),
        assigned_at=row["assigned_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        lease_until=row["lease_until"],
        outcome=outcome(row["outcome"]),
        exit_code=row["exit_code"],
        reason=row["reason"],
        progress=row["progress"],
        message=row["message"],
        runtime_s=row["runtime_s"],
        load_s=row["load_s"],
        peak_memory_mib=row["peak_memory_mib"],
        cpu_s=row["cpu_s"],
        usage=_usage(row),
        probe=from_json(Probe, row["probe"]) if row["probe"] else None,
        decision=from_json(Decision, row["decision"]) if row["decision"] else None,
        origin=known(Origin, row["origin"], Origin.MATCH),
        evidence=from_json(Evidence, row["evidence"]) if row["evidence"] else None,
        stall=_stall(row),
        warnings=tuple(row["warnings"]),
        files=tuple(from_json(PublishedFile, f) for f in row["files"]),
    )


def outcome(text: str | None) -> Outcome | None:
    """None for one that only a newer version knows, too."""
    try:
        return Outcome(text) if text else None
    except ValueError:
        return None


def stall_kind(text: str | None) -> StallKind:
    """What it was last taken for; what is not known counts for nothing, and is judged anew."""
    return known(StallKind, text or "", StallKind.WORKING)


def _stall(row: Row) -> Stall | None:
    kind = stall_kind(row["stall"])
    if kind is StallKind.WORKING:
        return None
    return Stall(
        kind=kind,
        text=row["stall_text"] or "",
        since=row["stall_since"],
        action=row["stall_action"] or "",
    )


def _usage(row: Row) -> DeviceUsage | None:
    if row["gpu_s"] is None:
        return None
    count = row["gpu_count"] or 1
    return DeviceUsage(
        device_model=row["gpu_model"] or "",
        devices=count,
        seconds=row["gpu_s"] / count,
        busy=row["gpu_busy"],
        memory_busy=row["gpu_memory_busy"],
        vram_peak_mib=row["vram_peak_mib"],
        energy_j=row["energy_j"],
        throttled_s=row["throttled_s"],
    )


def node(row: Row, *, now: float, attempts: Sequence[str], running: Sequence[str], remark: str = "") -> Node:
    """`remark`: what the farm says of the node beside its own notes."""
    able: Capabilities = from_json(Capabilities, row["capabilities"])
    return Node(
        id=NodeId(row["id"]),
        state=node_state(row, now),
        reason=node_reason(row, now),
        capabilities=replace(able, notes=(*able.notes, remark)) if remark else able,
        loads=tuple(from_json(DeviceLoad, load) for load in row["loads"]),
        disk_free_mib=row["disk_free_mib"],
        silent_s=max(0.0, now - row["seen_at"]),
        attempts=tuple(AttemptId(a) for a in attempts),
        running=tuple(running),
        agent_version=row["agent_version"],
    )


def node_state(row: Row, now: float) -> NodeState:
    state = known(NodeState, row["state"], NodeState.SUSPECT)  # which takes no work
    is_closed = row["is_drained"] or row["quarantined_until"] > now
    return NodeState.DRAINING if state is NodeState.ONLINE and is_closed else state


def node_reason(row: Row, now: float) -> str:
    if row["state"] in (NodeState.SUSPECT, NodeState.OFFLINE):
        return row["reason"] or f"silent for {max(0, now - row['seen_at']):.0f} s"
    if row["is_drained"]:
        return f"drained by {row['drained_by'] or 'an administrator'}"
    if row["quarantined_until"] > now:
        left = duration(row["quarantined_until"] - now)
        return f"quarantined for {left}: {row['quarantine_reason']}; farm undrain {row['id']} releases it"
    return str(row["reason"])


def event(row: Row) -> Event:
    return Event(
        id=row["id"],
        at=row["at"],
        kind=known(EventKind, row["kind"], EventKind.OTHER),
        text=row["text"],
        actor=row["actor"],
        job_id=row["job_id"],
        task_id=row["task_id"],
        attempt_id=row["attempt_id"],
        node_id=row["node_id"],
    )
