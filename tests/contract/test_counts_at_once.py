"""Counts are kept beside the tasks that they count: both agree, whoever writes at the same time."""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from farm.errors import Unavailable
from farm.model.ids import AttemptId, JobId
from farm.model.stalls import Evidence, Origin
from farm.model.states import Outcome, TaskState
from farm.model.work import Isolation
from farm.store import jobs, leases, moves, settling, stalling, steering
from farm.store.engine import reading, writing
from farm.store.tables import AttemptRow, TaskRow
from farm.store.tasks import list_tasks
from farm.wire.messages import Finished
from tests import leasing
from tests.contract.stored_farm import BLADE, a_step, check_counts, check_job, run_all, submit

_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]

TURNS = 40
Turn = Callable[[sa.Connection, random.Random, Sequence[JobId]], None]


def _some(db: sa.Connection, draw: random.Random, *states: str) -> list[AttemptId]:
    """As a node knows them: they may have ended since, or belong to a task that was set back."""
    rows: sa.ScalarResult[str] = db.scalars(sa.select(_ATTEMPT.c.id).where(_ATTEMPT.c.state.in_(states)))
    found = [AttemptId(row) for row in rows]
    return draw.sample(sorted(found), min(len(found), draw.randint(1, 3)))


# --- what the leader writes -----------------------------------------------------------------------------


def lease(db: sa.Connection, draw: random.Random, job_ids: Sequence[JobId]) -> None:
    moves.lock_jobs(db, job_ids)
    job = jobs.read_job(db, draw.choice(job_ids))
    leasing.lease(db, draw.choice(job.steps).id, BLADE, draw.randint(1, 3))


def start(db: sa.Connection, draw: random.Random, job_ids: Sequence[JobId]) -> None:
    found = _some(db, draw, "assigned", "running", "lost")
    settling.lock_jobs_of(db, found)
    settling.started(db, BLADE, found)


def finish(db: sa.Connection, draw: random.Random, job_ids: Sequence[JobId]) -> None:
    found = _some(db, draw, "assigned", "running", "cancelling", "lost", "succeeded")
    settling.lock_jobs_of(db, found)
    outcomes = [Outcome.SUCCEEDED, *Outcome]
    ends = [Finished(attempt_id=a, outcome=draw.choice(outcomes), runtime_s=1.0) for a in found]
    settling.finished(db, {BLADE: ends})


def renew(db: sa.Connection, draw: random.Random, job_ids: Sequence[JobId]) -> None:
    found = _some(db, draw, "assigned", "running", "lost")
    settling.lock_jobs_of(db, found)
    leases.renew(db, BLADE, found, lease_s=30, relaunch_s=10)


def expire(db: sa.Connection, draw: random.Random, job_ids: Sequence[JobId]) -> None:
    found = _some(db, draw, "assigned", "running", "cancelling")
    settling.lock_jobs_of(db, found)
    db.execute(sa.update(_ATTEMPT).where(_ATTEMPT.c.id.in_(found)).values(lease_until=0.0))
    settling.expire_leases(db, found)


def stall(db: sa.Connection, draw: random.Random, job_ids: Sequence[JobId]) -> None:
    found = _some(db, draw, "running")
    settling.lock_jobs_of(db, found)
    stalling.witness(db, BLADE, [Evidence(attempt_id=attempt, age_s=9.0) for attempt in found])
    for seen in stalling.running(db):
        if seen.id not in found:
            continue
        if draw.random() < 0.5:
            stalling.ask_to_end(db, seen, Outcome.STALLED, "hung")
        else:
            stalling.copy(
                db, seen, AttemptId(str(uuid.uuid4())), node_id=BLADE, device_id="cpu", origin=Origin.COPY,
                reason="hung", lease_s=30, left_s=None,
            )  # fmt: skip


# --- what people have written ---------------------------------------------------------------------------


def cancel(db: sa.Connection, draw: random.Random, job_ids: Sequence[JobId]) -> None:
    job_id = draw.choice(job_ids)
    tasks = [task.id for task in list_tasks(db, job_id)]
    only = draw.sample(tasks, 2) if draw.random() < 0.8 else None
    steering.cancel(db, job_id, actor="anna", reason="no", task_ids=only)


def retry(db: sa.Connection, draw: random.Random, job_ids: Sequence[JobId]) -> None:
    states = draw.choice(
        ([TaskState.FAILED, TaskState.CANCELLED], [TaskState.DONE], [TaskState.HELD], [TaskState.CANCELLED])
    )
    steering.retry(db, draw.choice(job_ids), actor="anna", states=states)


def pause(db: sa.Connection, draw: random.Random, job_ids: Sequence[JobId]) -> None:
    change = {"is_paused": draw.random() < 0.3}
    steering.change(db, draw.choice(job_ids), change, actor="anna", text="paused or not")


LEADER: tuple[Turn, ...] = (lease, lease, lease, start, start, finish, finish, renew, expire, stall)
PEOPLE: tuple[Turn, ...] = (cancel, retry, retry, pause)


def _play(engine: sa.Engine, turns: Sequence[Turn], job_ids: Sequence[JobId], draw: random.Random) -> None:
    for _ in range(TURNS):
        turn = draw.choice(turns)
        # Two that wait for each other: the database ends one, whose caller tries again.
        with contextlib.suppress(Unavailable), writing(engine) as db:
            turn(db, draw, job_ids)


def play(engine: sa.Engine, seed: int) -> None:
    """A leader, another that believes it leads, and three people at once; one job needs another."""
    draw = random.Random(seed)
    isolation = draw.choice((Isolation.STAGED, Isolation.EXCLUSIVE))
    settings: dict[str, Any] = {
        "isolation": isolation,
        "max_retries": 1,
        "max_failed_tasks": draw.choice((2, 100)),
    }
    first = submit(engine, a_step("A", 3), a_step("B", 3, after=["A"], position=1), **settings)
    second = submit(engine, a_step("A", 4), depends_on=(first,), **settings)
    third = submit(engine, a_step("A", 4), **settings)
    job_ids = (first, second, third)
    parts = [LEADER, LEADER, PEOPLE, PEOPLE, PEOPLE]
    run_all(
        [
            partial(_play, engine, turns, job_ids, random.Random(seed * 10 + n))
            for n, turns in enumerate(parts)
        ]
    )
    check_counts(engine)
    for job_id in job_ids:
        check_job(engine, job_id)
    with reading(engine) as db:
        doubled = db.execute(
            sa.select(_ATTEMPT.c.task_id, _ATTEMPT.c.generation)
            .where(_ATTEMPT.c.state == "succeeded")
            .group_by(_ATTEMPT.c.task_id, _ATTEMPT.c.generation)
            .having(sa.func.count() > 1)
        ).all()
    assert not doubled, "one accepted attempt for each task and generation"


@pytest.mark.parametrize("seed", range(2))
def test_counts_hold_when_everybody_writes_at_once(engine: sa.Engine, seed: int) -> None:
    play(engine, seed)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(2, 40))
def test_counts_hold_in_many_such_histories(engine: sa.Engine, seed: int) -> None:
    play(engine, seed)
