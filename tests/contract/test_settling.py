"""Reports: what they settle, once, for the node that was given the attempt, whatever they hold."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from farm.model.events import EventKind
from farm.model.ids import NodeId
from farm.model.states import AttemptState, JobState, Outcome
from farm.store import (
    dispatching,
    events,
    leases,
    logs,
    outbox,
    settling,
)
from farm.store.attempts import list_attempts, newest_done, read_attempt
from farm.store.engine import reading, writing
from farm.store.tables import AttemptRow
from farm.store.tasks import list_tasks
from farm.wire.messages import FromNode, LogChunk, Progress, Telemetry, dump, load
from tests.contract.stored_farm import (
    BLADE,
    a_step,
    attempt_state,
    claim,
    enrol,
    finish,
    read,
    start,
    submit,
    task_states,
)

_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]


def test_a_task_goes_its_way_from_ready_to_done(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1))
    [attempt] = claim(engine, job_id)
    assert task_states(engine, job_id) == ["assigned"]
    with reading(engine) as db:
        assert [(o.node_id, o.kind, o.payload) for o in outbox.read(db)] == [
            ("blade", "launch", {"attempt_ids": [attempt]})
        ]
        assert [leased.attempt_id for leased in dispatching.leased(db, [attempt])] == [attempt]
    start(engine, [attempt])
    assert task_states(engine, job_id) == ["running"]
    finish(engine, [attempt], runtime_s=12.5)
    assert task_states(engine, job_id) == ["done"]
    job = read(engine, job_id)
    assert (job.state, job.steps[0].mean_runtime_s) == (JobState.DONE, 12.5)
    assert attempt_state(engine, attempt) is AttemptState.SUCCEEDED
    with reading(engine) as db:
        assert [(d.step_id, d.runtime_s) for d in newest_done(db, job_id)] == [(job.steps[0].id, 12.5)]
        assert [e.kind for e in events.read(db)][-2:] == [EventKind.TASK_DONE, EventKind.JOB_DONE]


def test_a_doubled_report_changes_nothing(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1))
    attempts = claim(engine, job_id)
    start(engine, attempts)
    start(engine, attempts)
    finish(engine, attempts, runtime_s=5)
    before = (read(engine, job_id), task_states(engine, job_id))
    finish(engine, attempts, runtime_s=5)
    finish(engine, attempts, Outcome.JOB_ERROR)
    start(engine, attempts)
    after = (read(engine, job_id), task_states(engine, job_id))
    assert after == before


def test_a_node_affects_only_its_own_attempts(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1))
    attempts = claim(engine, job_id)
    rogue = NodeId("rogue")
    start(engine, attempts, node=rogue)
    assert task_states(engine, job_id) == ["assigned"]
    start(engine, attempts)
    finish(engine, attempts, node=rogue)
    with writing(engine) as db:
        renewal = leases.renew(db, rogue, attempts, lease_s=30, relaunch_s=10)
        assert (renewal.kept, renewal.stop) == ([], attempts)
        settling.progressed(db, rogue, [Progress(attempt_id=attempts[0], fraction=0.9)])
        logs.append(db, rogue, [LogChunk(attempt_id=attempts[0], sequence=0, text="mine")])
        assert logs.read(db, attempts[0]) == []
        assert read_attempt(db, attempts[0]).progress is None
    assert task_states(engine, job_id) == ["running"]


def test_a_failed_task_is_tried_again_until_its_retries_are_spent(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1), max_retries=1)
    for expected in (["ready"], ["failed"]):
        attempts = claim(engine, job_id)
        start(engine, attempts)
        finish(engine, attempts, Outcome.JOB_ERROR, reason="no camera")
        assert task_states(engine, job_id) == expected
    job = read(engine, job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "1 of 1 tasks failed")
    with reading(engine) as db:
        task = list_tasks(db, job_id)[0]
        assert (task.starts, task.failures, task.reason) == (2, 2, "no camera")
        found = list_attempts(db, job_id=job_id)
        assert [a.state for a in found] == [AttemptState.FAILED] * 2


def test_another_node_tries_a_failed_task_first_where_there_is_one(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1), max_retries=9)
    enrol(engine, "blade")
    finish(engine, claim(engine, job_id), Outcome.JOB_ERROR)
    again = claim(engine, job_id)  # there is no other node: no reason to wait
    assert len(again) == 1
    enrol(engine, "other")
    finish(engine, again, Outcome.JOB_ERROR)
    assert claim(engine, job_id) == []
    assert len(claim(engine, job_id, node=NodeId("other"))) == 1


def test_the_database_itself_refuses_a_second_accepted_attempt(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1))
    finish(engine, claim(engine, job_id))
    with reading(engine) as db:
        row = dict(db.execute(sa.select(_ATTEMPT)).mappings().one())
    second = sa.insert(_ATTEMPT).values({**row, "id": "another"})
    with writing(engine) as db, pytest.raises(sa.exc.IntegrityError):
        db.execute(second)


def test_text_that_a_database_cannot_hold_does_not_stop_the_farm(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1))
    attempts = claim(engine, job_id)
    start(engine, attempts)
    with writing(engine) as db:
        sent = Telemetry(
            node_id=BLADE,
            items=(
                Progress(attempt_id=attempts[0], fraction=0.5, message="a\0b"),
                LogChunk(attempt_id=attempts[0], sequence=0, text="x\0y"),
            ),
        )
        progress, chunk = load(FromNode, dump(sent)).items
        settling.progressed(db, BLADE, [progress])
        logs.append(db, BLADE, [chunk])
        assert logs.read(db, attempts[0])[0].text == "x\ufffdy"
        assert read_attempt(db, attempts[0]).message == "a\ufffdb"
    finish(
        engine,
        attempts,
        Outcome.JOB_ERROR,
        reason="bad name" + "x" * 100_000,
        exit_code=0xC0000005,
        peak_memory_mib=2**40,
    )
    with reading(engine) as db:
        attempt = read_attempt(db, attempts[0])
    assert (attempt.state, attempt.exit_code) == (AttemptState.FAILED, -1_073_741_819)
    assert len(attempt.reason) < 2_000


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), -1.0])
def test_figures_that_are_none_are_not_kept(engine: sa.Engine, figure: float) -> None:
    job_id = submit(engine, a_step(tasks=2))
    attempts = claim(engine, job_id, 2)
    start(engine, attempts)
    with writing(engine) as db:
        settling.progressed(db, BLADE, [Progress(attempt_id=attempts[0], fraction=figure)])
    finish(engine, attempts[:1], runtime_s=figure, load_s=figure, cpu_s=figure)
    finish(engine, attempts[1:], runtime_s=4.0)
    job = read(engine, job_id)
    assert job.state is JobState.DONE
    assert job.steps[0].mean_runtime_s == 4.0
    with reading(engine) as db:
        attempt = read_attempt(db, attempts[0])
        assert attempt.cpu_s is None
        assert [done.runtime_s for done in newest_done(db, job_id)] == [4.0]
