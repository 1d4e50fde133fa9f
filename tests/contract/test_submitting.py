"""Submitting: what is read back, the order of tasks, one job a request."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from farm.errors import NotFound, Rejected
from farm.flow.order import rank
from farm.model.events import EventKind
from farm.model.ids import JobId
from farm.model.states import JobState
from farm.store import (
    events,
    jobs,
    steering,
)
from farm.store.engine import db_now, reading, writing
from farm.store.tables import TaskRow
from tests.contract.stored_farm import a_step, read, submit, task_states

_TASK = TaskRow.__table__  # type: ignore[attr-defined]


def test_a_job_is_read_back_as_it_was_submitted(engine: sa.Engine) -> None:
    job_id = submit(
        engine, a_step("A", 3), a_step("B", 2, after=["A"], position=1), priority=70, pool="night"
    )
    job = read(engine, job_id)
    assert (job.name, job.state, job.settings.priority, job.settings.pool) == (
        "shot",
        JobState.ACTIVE,
        70,
        "night",
    )
    assert [(s.name, s.counts.ready, s.counts.waiting) for s in job.steps] == [("A", 3, 0), ("B", 0, 2)]
    assert task_states(engine, job_id) == ["ready"] * 3 + ["waiting"] * 2
    with reading(engine) as db:
        submission, _ = jobs.read_source(db, job_id)
        assert submission.template == {"a": 1}
        assert [e.kind for e in events.read(db)] == [EventKind.JOB_SUBMITTED]
        assert abs(time.time() - (db.scalar(sa.select(db_now())) or 0)) < 60


@pytest.mark.parametrize("order", ["forward", "reverse", "first-middle-last", "every-3"])
def test_the_order_in_the_database_is_the_one_that_is_written_down(engine: sa.Engine, order: str) -> None:
    expected = sorted(range(10), key=lambda index: rank(order, index, 10))
    asked = submit(engine, a_step(tasks=10), order=order)
    changed = submit(engine, a_step(tasks=10))
    with writing(engine) as db:
        steering.change(db, changed, {"order": order}, actor="anna", text="order")
    for job_id in (asked, changed):
        with reading(engine) as db:
            step_id = jobs.read_job(db, job_id).steps[0].id
            found: list[int] = list(
                db.scalars(sa.select(_TASK.c.idx).where(_TASK.c.step_id == step_id).order_by(_TASK.c.rank))
            )
        assert found == expected


def test_an_idempotency_key_names_one_request(engine: sa.Engine) -> None:
    job_id = submit(engine, key="k", digest="one")
    assert submit(engine, key="k", digest="one") == job_id
    with pytest.raises(Rejected, match=f"used for another request .job {job_id}"):
        submit(engine, key="k", digest="other")
    with reading(engine) as db:
        assert len(jobs.list_jobs(db)) == 1


def test_a_job_cannot_wait_for_one_that_does_not_exist(engine: sa.Engine) -> None:
    with pytest.raises(NotFound, match="job 99"):
        submit(engine, depends_on=(JobId(99),))
    with reading(engine) as db:
        assert jobs.list_jobs(db) == []
        assert events.read(db) == []


def test_a_hundred_thousand_tasks_are_submitted_and_cancelled(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=100_000))
    with writing(engine) as db:
        assert steering.cancel(db, job_id, actor="anna", reason="no") == 100_000
    assert read(engine, job_id).state is JobState.CANCELLED
