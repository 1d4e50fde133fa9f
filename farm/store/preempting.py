"""Running tasks that may make way for urgent ones, and their stopping."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import sqlalchemy as sa

from farm.flow.preempt import Victim, Way
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.states import JobState, Outcome
from farm.model.work import Isolation
from farm.store import stalling
from farm.store.engine import db_now
from farm.store.tables import AttemptRow, JobRow, StepRow, TaskRow
from farm.text import duration

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]

_REASON = re.compile(r"makes way for job ([0-9]+) ")


def asking(db: sa.Connection, *, from_priority: int) -> set[JobId]:
    """Active jobs of this priority and above that ask for others to make way."""
    found: list[int] = list(db.scalars(_ASKING, {"from_priority": from_priority}))
    return set(map(JobId, found))


_ASKING = sa.select(_JOB.c.id).where(
    _JOB.c.state == str(JobState.ACTIVE),
    _JOB.c.priority >= sa.bindparam("from_priority"),
    _JOB.c.settings["preempts"].as_boolean().is_(True),
)


def stopping(db: sa.Connection) -> dict[JobId, int]:
    """By job, how many tasks are being stopped for it."""
    reasons: list[str] = list(db.scalars(_STOPPING))
    matches = (_REASON.match(text) for text in reasons)
    return Counter(JobId(int(match[1])) for match in matches if match)


_STOPPING = sa.select(_ATTEMPT.c.ends_because).where(
    _ATTEMPT.c.state == "cancelling", _ATTEMPT.c.ends_because.is_not(None)
)


def victims(db: sa.Connection, *, below: int, ran_s: float) -> list[Victim]:
    """Running attempts of a priority below, for `ran_s` at most, that a stop harms in nothing but time."""
    return [
        Victim(
            id=AttemptId(row["id"]),
            task_id=TaskId(row["task_id"]),
            job_id=JobId(row["job_id"]),
            node_id=NodeId(row["node_id"]),
            device_id=row["device_id"],
            priority=row["priority"],
            ran_s=max(0.0, row["now"] - row["started_at"]),
            starts=row["starts"],
        )
        for row in db.execute(_VICTIMS, {"below": below, "ran_s": ran_s}).mappings()
    ]


_VICTIMS = (
    sa.select(
        _ATTEMPT.c.id,
        _ATTEMPT.c.task_id,
        _ATTEMPT.c.job_id,
        _ATTEMPT.c.node_id,
        _ATTEMPT.c.device_id,
        _ATTEMPT.c.started_at,
        _TASK.c.starts,
        _JOB.c.priority,
        db_now().label("now"),
    )
    .join(_TASK, sa.and_(_TASK.c.id == _ATTEMPT.c.task_id, _TASK.c.attempt_id == _ATTEMPT.c.id))
    .join(_STEP, _STEP.c.id == _ATTEMPT.c.step_id)
    .join(_JOB, _JOB.c.id == _ATTEMPT.c.job_id)
    .where(
        _ATTEMPT.c.state == "running",
        _ATTEMPT.c.started_at >= db_now() - sa.bindparam("ran_s", type_=sa.Float()),
        _TASK.c.state == "running",
        _STEP.c.isolation == str(Isolation.STAGED),
        _JOB.c.priority < sa.bindparam("below"),
    )
    .limit(10_000)
)


def stop(db: sa.Connection, ways: Sequence[Way]) -> int:
    """Have these end; returns how many still ran. The caller holds `moves.lock_jobs` on their jobs."""
    stopped = 0
    for way in ways:
        reason = (
            f"makes way for job {way.group.job_id} of priority {way.group.priority}, "
            f"having run {duration(way.victim.ran_s)}"
        )
        stopped += stalling.ask_to_end(db, way.victim, Outcome.CANCELLED, reason)
    return stopped
