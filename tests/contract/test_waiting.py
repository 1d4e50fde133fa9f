"""Frames that wait for frames, and calls of hooks that are owed, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from farm.flow.by_frame import FrameNeed
from farm.flow.submit import JobPlan
from farm.model.events import EventKind
from farm.model.hooks import Hook
from farm.model.ids import JobId
from farm.model.states import TaskState
from farm.model.work import JobSettings, Submission
from farm.store import advancing, events, hooks, jobs, moves, submitting, tasks
from farm.store.engine import reading, writing
from tests.contract.stored_farm import a_step, check_counts, submit, task_states


def done(engine: sa.Engine, job_id: JobId, index: int) -> None:
    """The task at `index` of the first step, taken to be done."""
    with writing(engine) as db:
        moves.lock_jobs(db, [job_id])
        step = jobs.read_job(db, job_id).steps[0]
        ids = tasks.task_ids(db, job_id, step_id=step.id, indexes=[index])
        moves.move_all(db, step.id, TaskState.READY, TaskState.DONE, task_ids=ids)
        advancing.advance_jobs(db, [job_id])
    check_counts(engine)


def test_single_frames_open_single_frames_in_a_job_and_in_the_next(engine: sa.Engine) -> None:
    render = submit(engine, a_step(tasks=3))
    done(engine, render, 0)
    steps = (
        replace(a_step("Comp", 3), by_frame=(f"#{render}",)),
        replace(a_step("Grade", 3, after=("Comp",), position=1), by_frame=("Comp",)),
    )
    needs = [
        need
        for index in range(3)
        for need in (
            FrameNeed(step="Comp", index=index, needs_job_id=render, needs_step="Render", needs_index=index),
            FrameNeed(step="Grade", index=index, needs_job_id=None, needs_step="Comp", needs_index=index),
        )
    ]
    plan = JobPlan(name="comp", uid="comp", steps=steps, parameters={}, output_directories=())
    settings = JobSettings(user="anna", depends_on=(render,), frame_by_frame=True)
    with writing(engine) as db:
        comp, _ = submitting.submit(
            db,
            Submission(name="comp", template={}, settings=settings),
            plan,
            actor="anna",
            frame_needs=needs,
        )
    check_counts(engine)
    assert task_states(engine, comp) == ["ready", "waiting", "waiting"] + ["waiting"] * 3
    done(engine, render, 2)
    assert task_states(engine, comp) == ["ready", "waiting", "ready"] + ["waiting"] * 3
    done(engine, comp, 2)
    assert task_states(engine, comp) == ["ready", "waiting", "done", "waiting", "waiting", "ready"]


def test_a_call_is_owed_once_and_taken_by_one(engine: sa.Engine) -> None:
    job_id = submit(engine, hooks=("chat",))
    known = {"chat": Hook(url="https://x.y/")}
    with writing(engine) as db:
        hooks.gather(db, known)
        events.happened(db, EventKind.JOB_DONE, "shot", job_id=job_id)
    with writing(engine) as db:
        assert (hooks.gather(db, known), hooks.gather(db, known)) == (1, 0)
    with writing(engine) as db:
        (call,) = hooks.take(db)
        assert hooks.take(db) == []
        hooks.failed(db, call.id, "no", delay_s=-1.0)
    with writing(engine) as db:
        (again,) = hooks.take(db)
        hooks.went_well(db, again.id)
    with reading(engine) as db:
        assert (again.id, again.tries) == (call.id, 2)
    with writing(engine) as db:
        assert hooks.take(db) == []
