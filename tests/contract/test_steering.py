"""What people do to jobs and tasks: change, cancel, do again."""

from __future__ import annotations

import sqlalchemy as sa

from farm.model.ids import NodeId
from farm.model.states import AttemptState, JobState, Outcome, TaskState
from farm.model.work import Tag
from farm.store import (
    jobs,
    outbox,
    steering,
)
from farm.store.engine import among, reading, writing
from farm.store.tables import TaskRow
from farm.store.tasks import list_tasks, task_ids
from tests.contract.stored_farm import (
    a_step,
    attempt_state,
    check_counts,
    claim,
    expire_all,
    finish,
    read,
    start,
    submit,
    task_states,
)

_TASK = TaskRow.__table__  # type: ignore[attr-defined]


def test_settings_that_have_no_column_change_too(engine: sa.Engine) -> None:
    job_id = submit(engine)
    values = {"timeout_s": 60.0, "tag": Tag.COMPUTE, "replace_existing": True, "name": "other", "pool": "gpu"}
    with writing(engine) as db:
        steering.change(db, job_id, values, actor="anna", text="changed")
    job = read(engine, job_id)
    assert (job.name, job.settings.timeout_s, job.settings.replace_existing) == ("other", 60.0, True)
    assert (job.steps[0].profile.tag, job.steps[0].demand.pool, job.edition) == (Tag.COMPUTE, "gpu", 2)
    with reading(engine) as db:
        submission, _ = jobs.read_source(db, job_id)
    assert submission.settings.timeout_s == 60.0


def test_cancelling_stops_what_runs_and_forgets_nothing(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=4))
    attempts = claim(engine, job_id, 2)
    start(engine, attempts[:1])
    with writing(engine) as db:
        assert steering.cancel(db, job_id, actor="anna", reason="cancelled by anna") == 4
    check_counts(engine)
    assert task_states(engine, job_id) == ["cancelling", "cancelling", "cancelled", "cancelled"]
    with reading(engine) as db:
        stop = outbox.read(db)[-1].payload
        assert (stop["kind"], set(stop["attempt_ids"])) == ("stop", set(attempts))
    finish(engine, attempts[:1], Outcome.CANCELLED)
    assert read(engine, job_id).state is JobState.ACTIVE
    finish(engine, attempts[1:], Outcome.SUCCEEDED)  # it was quicker than the message
    assert task_states(engine, job_id) == ["cancelled", "done", "cancelled", "cancelled"]
    assert read(engine, job_id).state is JobState.CANCELLED


def test_a_cancelled_task_whose_node_is_lost_is_cancelled(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1))
    start(engine, claim(engine, job_id))
    with writing(engine) as db:
        steering.cancel(db, job_id, actor="anna", reason="no")
    expire_all(engine)
    assert task_states(engine, job_id) == ["cancelled"]
    assert read(engine, job_id).state is JobState.CANCELLED


def test_a_choice_may_hold_more_tasks_than_a_driver_takes_parameters(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=70_000))
    with writing(engine) as db:
        step_id = jobs.read_job(db, job_id).steps[0].id
        ids = task_ids(db, job_id, step_id=step_id, indexes=range(1, 70_000))
        assert len(ids) == 69_999
        assert steering.cancel(db, job_id, actor="anna", reason="no", task_ids=ids) == 69_999
        assert len(list_tasks(db, job_id, task_ids=ids, limit=10)) == 10
        assert db.scalar(sa.select(sa.func.count()).where(among(db, _TASK.c.id, []))) == 0
    assert read(engine, job_id).counts.ready == 1


def test_a_requeued_frame_is_a_new_generation_and_the_old_report_no_longer_counts(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1))
    [old] = claim(engine, job_id)
    start(engine, [old])
    expire_all(engine)
    [accepted] = claim(engine, job_id, node=NodeId("other"))
    finish(engine, [accepted], node=NodeId("other"))
    with writing(engine) as db:
        assert steering.retry(db, job_id, actor="anna", states=[TaskState.DONE]) == 1
    finish(engine, [old])  # of the generation before
    assert task_states(engine, job_id) == ["ready"]
    assert attempt_state(engine, old) is AttemptState.SUPERSEDED
    [new] = claim(engine, job_id)
    finish(engine, [new], published_by=old)  # which no honest node says: it is not believed
    assert attempt_state(engine, new) is attempt_state(engine, accepted) is AttemptState.SUCCEEDED
