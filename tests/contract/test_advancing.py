"""What follows from the end of a task: steps open or are given up, jobs go on or end."""

from __future__ import annotations

import sqlalchemy as sa

from farm.model.states import JobState, Outcome, TaskState
from farm.store import (
    steering,
)
from farm.store.engine import writing
from tests.contract.stored_farm import a_step, check_counts, claim, finish, read, start, submit, task_states


def test_too_many_failed_tasks_stop_the_job(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=6), max_failed_tasks=1, max_retries=0)
    attempts = claim(engine, job_id, 3)
    start(engine, attempts)
    finish(engine, attempts[:2], Outcome.JOB_ERROR)
    assert task_states(engine, job_id) == [
        "failed",
        "failed",
        "cancelling",
        "cancelled",
        "cancelled",
        "cancelled",
    ]
    finish(engine, attempts[2:], Outcome.CANCELLED)
    job = read(engine, job_id)
    assert job.state is JobState.FAILED
    assert (job.counts.failed, job.counts.cancelled) == (2, 4)


def test_a_step_opens_when_the_step_before_it_is_done(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step("A", 2), a_step("B", 1, after=["A"], position=1))
    finish(engine, claim(engine, job_id, 1))
    assert task_states(engine, job_id) == ["done", "ready", "waiting"]
    finish(engine, claim(engine, job_id, 1))
    assert task_states(engine, job_id) == ["done", "done", "ready"]
    finish(engine, claim(engine, job_id, 1, step=1))
    assert read(engine, job_id).state is JobState.DONE


def test_steps_behind_a_failed_one_are_given_up_and_open_again_on_retry(engine: sa.Engine) -> None:
    job_id = submit(
        engine,
        a_step("A", 2),
        a_step("B", 1, after=["A"], position=1),
        a_step("C", 1, after=["B"], position=2),
        max_retries=0,
    )
    attempts = claim(engine, job_id, 2)
    finish(engine, attempts[:1], Outcome.JOB_ERROR)
    assert task_states(engine, job_id) == ["failed", "assigned", "waiting", "waiting"]
    finish(engine, attempts[1:])
    assert task_states(engine, job_id) == ["failed", "done", "cancelled", "cancelled"]
    assert read(engine, job_id).state is JobState.FAILED
    with writing(engine) as db:
        assert steering.retry(db, job_id, actor="anna", states=[TaskState.FAILED]) == 1
    check_counts(engine)
    assert task_states(engine, job_id) == ["ready", "done", "waiting", "waiting"]
    for step in (0, 1, 2):
        finish(engine, claim(engine, job_id, 1, step=step))
    job = read(engine, job_id)
    assert (job.state, job.reason) == (JobState.DONE, "")


def test_a_job_waits_for_another_and_goes_on_when_that_is_done(engine: sa.Engine) -> None:
    first = submit(engine, a_step(tasks=1))
    second = submit(engine, a_step(tasks=1), depends_on=(first,))
    third = submit(engine, a_step(tasks=1), depends_on=(first, second))
    assert read(engine, second).state is JobState.WAITING
    assert read(engine, third).reason == f"waits for job {first}, {second}"
    finish(engine, claim(engine, first))
    assert read(engine, second).state is JobState.ACTIVE
    assert task_states(engine, second) == ["ready"]
    assert read(engine, third).state is JobState.WAITING
    finish(engine, claim(engine, second))
    assert read(engine, third).state is JobState.ACTIVE
