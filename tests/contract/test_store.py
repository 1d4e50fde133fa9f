"""The store's promises, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.errors import NotFound, NotLeader, Rejected
from farm.flow.order import rank
from farm.flow.outage import Silence
from farm.flow.submit import JobPlan, StepPlan
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.machines import Capabilities, Demand, Device, DeviceKind
from farm.model.stalls import Evidence, Origin
from farm.model.states import AttemptState, JobState, NodeState, Outcome, TaskState
from farm.model.work import Isolation, Job, JobSettings, Profile, Submission, Tag
from farm.store import (
    dispatching,
    events,
    jobs,
    leader,
    leases,
    logs,
    moves,
    nodes,
    outbox,
    settling,
    stalling,
    steering,
    submitting,
    tokens,
)
from farm.store.attempts import list_attempts, newest_done, read_attempt
from farm.store.engine import among, db_now, open_engine, reading, writing
from farm.store.tables import AttemptRow, StepRow, TaskRow
from farm.store.tasks import list_tasks, task_ids
from farm.wire.messages import Finished, FromNode, Heartbeat, LogChunk, Progress, Telemetry, dump, load
from tests.leasing import lease

_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]

BLADE = NodeId("blade")


# --- a farm in few words ------------------------------------------------------------------------------


def a_step(name: str = "Render", tasks: int = 4, *, after: Sequence[str] = (), position: int = 0) -> StepPlan:
    return StepPlan(
        name=name,
        position=position,
        depends_on=tuple(after),
        demand=Demand(),
        profile=Profile(),
        isolation=Isolation.STAGED,
        output=None,
        frames=None,
        task_count=tasks,
    )


def submit(
    engine: sa.Engine,
    *steps: StepPlan,
    key: str | None = None,
    digest: str = "d",
    isolation: Isolation | None = None,
    **settings: Any,
) -> JobId:
    planned = steps or (a_step(),)
    if isolation is not None:
        planned = tuple(
            StepPlan(**{**{f: getattr(s, f) for f in s.__slots__}, "isolation": isolation}) for s in planned
        )
    plan = JobPlan(
        name="shot", uid=str(uuid.uuid4()), steps=planned, parameters={}, output_directories=("/out",)
    )
    submission = Submission(name="shot", template={"a": 1}, settings=JobSettings(user="anna", **settings))
    with writing(engine) as db:
        job_id, _ = submitting.submit(db, submission, plan, actor="anna", key=key, digest=digest)
    check_counts(engine)
    return job_id


def read(engine: sa.Engine, job_id: JobId) -> Job:
    with reading(engine) as db:
        return jobs.read_job(db, job_id)


def claim(
    engine: sa.Engine, job_id: JobId, count: int = 1, *, node: NodeId = BLADE, step: int = 0
) -> list[AttemptId]:
    """Lease up to `count` tasks of the job's step to the node, as the scheduler does."""
    with writing(engine) as db:
        moves.lock_jobs(db, [job_id])
        step_id = jobs.read_job(db, job_id).steps[step].id
        leases = lease(db, step_id, node, count)
    check_counts(engine)
    return [each.attempt_id for each in leases]


def start(engine: sa.Engine, attempts: Sequence[AttemptId], *, node: NodeId = BLADE) -> None:
    with writing(engine) as db:
        settling.lock_jobs_of(db, attempts)
        settling.started(db, node, attempts)
    check_counts(engine)


def finish(
    engine: sa.Engine,
    attempts: Sequence[AttemptId],
    outcome: Outcome = Outcome.SUCCEEDED,
    *,
    node: NodeId = BLADE,
    **others: Any,
) -> None:
    with writing(engine) as db:
        settling.lock_jobs_of(db, attempts)
        reports = [Finished(attempt_id=a, outcome=outcome, **others) for a in attempts]
        settling.finished(db, {node: reports})
    check_counts(engine)


def expire_all(engine: sa.Engine) -> None:
    with writing(engine) as db:
        db.execute(sa.update(_ATTEMPT).values(lease_until=0.0))
        late = leases.expired(db)
        moves.lock_jobs(db, {job for _, job in late})
        settling.expire_leases(db, [attempt for attempt, _ in late])
    check_counts(engine)


_SEQUENCE = itertools.count(1)


def enrol(engine: sa.Engine, name: str = "blade", **others: Any) -> nodes.Hearing:
    machine = Capabilities(devices=(Device(id="cpu", kind=DeviceKind.CPU, model="test", slots=2),))
    beat = Heartbeat(
        **{
            "node_id": NodeId(name),
            "session": "s1",
            "boot_id": "b1",
            "sequence": next(_SEQUENCE),
            "capabilities": machine,
            **others,
        }
    )
    with writing(engine) as db:
        return nodes.heard(db, beat, rival_s=30)


def task_states(engine: sa.Engine, job_id: JobId) -> list[str]:
    with reading(engine) as db:
        return [str(task.state) for task in list_tasks(db, job_id, limit=1_000)]


def attempt_state(engine: sa.Engine, attempt_id: AttemptId) -> AttemptState:
    with reading(engine) as db:
        return read_attempt(db, attempt_id).state


def check_counts(engine: sa.Engine) -> None:
    """The steps' counts are what a count of the tasks gives."""
    with reading(engine) as db:
        counted: dict[int, dict[str, int]] = {}
        query = sa.select(_TASK.c.step_id, _TASK.c.state, sa.func.count().label("n"))
        for row in db.execute(query.group_by(_TASK.c.step_id, _TASK.c.state)):
            counted.setdefault(row.step_id, {})[row.state] = row.n
        for step in db.execute(sa.select(_STEP)).mappings():
            kept = {str(s): step[f"n_{s}"] for s in TaskState if step[f"n_{s}"]}
            assert kept == counted.get(step["id"], {}), f"step {step['id']}"


# --- submit -------------------------------------------------------------------------------------------


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


def test_tasks_are_claimed_in_the_order_of_the_job(engine: sa.Engine) -> None:
    for reverse, expected in ((False, [0, 1]), (True, [3, 2])):
        job_id = submit(engine, reverse=reverse)
        with writing(engine) as db:
            step_id = jobs.read_job(db, job_id).steps[0].id
            (claimed,) = dispatching.claim(db, step_id, [(BLADE, 2)])
            assert [task.index for task in claimed] == expected


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
            found = list(
                db.scalars(sa.select(_TASK.c.idx).where(_TASK.c.step_id == step_id).order_by(_TASK.c.rank))
            )
        assert found == expected


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


# --- leases -------------------------------------------------------------------------------------------


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
        assert leases.renew(db, rogue, attempts, lease_s=30) == ([], attempts)
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


def test_a_renewed_lease_holds_and_an_unknown_attempt_is_told_to_stop(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=2))
    attempts = claim(engine, job_id, 2)
    start(engine, attempts)
    enrol(engine, "other")
    with writing(engine) as db:
        db.execute(sa.update(_ATTEMPT).values(lease_until=0.0))
        assert {a for a, _ in leases.expired(db)} == set(attempts)
        assert leases.expired(db, grace_s=1e12) == [], "most nodes are silent: wait"
        assert leases.silence(db, heard_s=60.0) == Silence(silent=1, heard=1)
        db.execute(sa.update(_ATTEMPT).where(_ATTEMPT.c.id == attempts[0]).values(state="cancelling"))
        assert [a for a, _ in leases.expired(db, grace_s=1e12)] == [attempts[0]], "nobody waits for that"
        db.execute(sa.update(_ATTEMPT).where(_ATTEMPT.c.id == attempts[0]).values(state="running"))
        unknown = AttemptId(str(uuid.uuid4()))
        assert leases.renew(db, BLADE, [attempts[0], unknown], lease_s=30) == ([attempts[0]], [unknown])
        assert [a for a, _ in leases.expired(db)] == [attempts[1]]


def test_a_staged_task_whose_lease_ran_out_is_ready_again(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1))
    [first] = claim(engine, job_id)
    start(engine, [first])
    expire_all(engine)
    assert task_states(engine, job_id) == ["ready"]
    assert attempt_state(engine, first) is AttemptState.LOST
    [second] = claim(engine, job_id, node=NodeId("other"))
    # The lost one was alive after all, and published first: its files are whole, and it is accepted.
    finish(engine, [first], runtime_s=3)
    assert task_states(engine, job_id) == ["done"]
    assert attempt_state(engine, first) is AttemptState.SUCCEEDED
    with reading(engine) as db:
        stops = [owed.payload for owed in outbox.read(db) if owed.payload.get("kind") == "stop"]
        assert [stop["attempt_ids"] for stop in stops] == [[second]]
    finish(engine, [second], node=NodeId("other"))
    assert attempt_state(engine, second) is AttemptState.SUPERSEDED
    assert read(engine, job_id).counts.done == 1


def test_an_exclusive_task_whose_lease_ran_out_is_held(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=2), isolation=Isolation.EXCLUSIVE)
    attempts = claim(engine, job_id, 2)
    start(engine, attempts)
    expire_all(engine)
    assert task_states(engine, job_id) == ["held", "held"]
    assert claim(engine, job_id, 2) == []
    expire_all(engine)
    assert task_states(engine, job_id) == ["held", "held"]
    # The node comes back with the first; a person says that the second is dead.
    with writing(engine) as db:
        moves.lock_jobs(db, [job_id])
        assert leases.renew(db, BLADE, attempts[:1], lease_s=30) == (attempts[:1], [])
    assert task_states(engine, job_id) == ["running", "held"]
    with writing(engine) as db:
        assert steering.retry(db, job_id, actor="anna", states=[TaskState.HELD]) == 1
    check_counts(engine)
    assert task_states(engine, job_id) == ["running", "ready"]
    assert attempt_state(engine, attempts[1]) is AttemptState.LOST
    with writing(engine) as db:
        assert leases.renew(db, BLADE, attempts, lease_s=30) == (attempts[:1], attempts[1:])


def test_attempts_that_a_node_does_not_list_are_sent_again_or_known_dead(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=2))
    attempts = claim(engine, job_id, 2)
    start(engine, attempts[:1])
    with writing(engine) as db:
        assert leases.unheard(db, BLADE, set(), relaunch_s=10) == ([], [])
        db.execute(sa.update(_ATTEMPT).values(assigned_at=0.0))
        db.execute(sa.update(_ATTEMPT).where(_ATTEMPT.c.state == "running").values(started_at=0.0))
        assert leases.unheard(db, BLADE, set(), relaunch_s=10) == (attempts[1:], attempts[:1])
        assert leases.unheard(db, BLADE, set(attempts), relaunch_s=10) == ([], [])


def test_two_claimers_at_once_never_get_one_task(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=200))
    step_id = read(engine, job_id).steps[0].id
    got: list[list[TaskId]] = [[], [], [], []]
    barrier = threading.Barrier(len(got))

    def take(mine: list[TaskId], node: str) -> None:
        barrier.wait()
        while read(engine, job_id).counts.ready:
            with writing(engine) as db:
                (claimed,) = dispatching.claim(db, step_id, [(NodeId(node), 4)])
                mine += [task.task_id for task in claimed]

    run_all([lambda mine=mine, n=n: take(mine, f"n{n}") for n, mine in enumerate(got)])
    every = list(itertools.chain(*got))
    assert len(every) == len(set(every)) == 200
    check_counts(engine)


def run_all(calls: Sequence[Callable[[], None]]) -> None:
    """Each in a thread; the first error is raised."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=90)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_the_claim_reads_an_index_and_nothing_else(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=20_000))
    step_id = read(engine, job_id).steps[0].id
    seen: list[tuple[str, Any]] = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def watch(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("UPDATE task"):
            seen.append((statement, parameters))

    with writing(engine) as db:
        if db.dialect.name == "postgresql":
            db.exec_driver_sql("ANALYZE task")
        dispatching.claim(db, step_id, [(BLADE, 4)])
    sa.event.remove(engine, "before_cursor_execute", watch)
    [(statement, parameters)] = seen
    with reading(engine) as db:
        how = "EXPLAIN QUERY PLAN " if db.dialect.name == "sqlite" else "EXPLAIN "
        plan = "\n".join(str(tuple(row)) for row in db.exec_driver_sql(how + statement, parameters))
    assert "task_claim" in plan, plan
    assert "Seq Scan on task" not in plan, plan
    assert "SCAN task" not in plan, plan
    assert "TEMP B-TREE FOR ORDER BY" not in plan, plan


def test_a_paused_jobs_tasks_are_not_claimed_even_by_a_match_made_before(engine: sa.Engine) -> None:
    job_id = submit(engine)
    with writing(engine) as db:
        steering.change(db, job_id, {"is_paused": True}, actor="anna", text="paused")
    assert read(engine, job_id).state is JobState.PAUSED
    assert claim(engine, job_id, 4) == []
    with writing(engine) as db:
        steering.change(db, job_id, {"is_paused": False}, actor="anna", text="resumed")
    assert len(claim(engine, job_id, 4)) == 4


# --- steering -----------------------------------------------------------------------------------------


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


def test_the_database_itself_refuses_a_second_accepted_attempt(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1))
    finish(engine, claim(engine, job_id))
    with reading(engine) as db:
        row = dict(db.execute(sa.select(_ATTEMPT)).mappings().one())
    second = sa.insert(_ATTEMPT).values({**row, "id": "another"})
    with writing(engine) as db, pytest.raises(sa.exc.IntegrityError):
        db.execute(second)


# --- what nodes send ------------------------------------------------------------------------------------


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


def test_a_heartbeat_of_nonsense_is_refused_with_the_reason(engine: sa.Engine) -> None:
    nonsense = Capabilities(
        devices=(Device(id="cpu", kind=DeviceKind.CPU, model="x", fp32_tflops=float("nan")),)
    )
    assert "no number" in enrol(engine, capabilities=nonsense).refused
    assert "free disk" in enrol(engine, disk_free_mib=2**40).refused
    assert enrol(engine, name="bl\0ade").refused
    assert enrol(engine, name="x\x1b[2J").refused
    assert enrol(engine, agent_version="\0").refused
    with reading(engine) as db:
        assert nodes.list_nodes(db) == []


def test_nodes_enrol_fall_silent_and_come_back(engine: sa.Engine) -> None:
    assert enrol(engine, capabilities=None).wants_hello
    assert enrol(engine) == nodes.Hearing(is_first=True)
    with reading(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.ONLINE
    for _ in range(2):
        with writing(engine) as db:
            db.execute(sa.text("UPDATE node SET seen_at = seen_at - 20"))
            nodes.watch(db, suspect_s=10, offline_s=30)
    with reading(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.OFFLINE
        assert not nodes.views(db, {})[0].accepts_work
    enrol(engine, capabilities=None)
    with writing(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.ONLINE
        nodes.drain(db, BLADE, is_drained=True, actor="root")
        assert nodes.read_node(db, BLADE).state is NodeState.DRAINING
        kinds = [event.kind for event in events.read(db)]
    assert kinds == [
        EventKind.NODE_ENROLLED, EventKind.NODE_SUSPECTED, EventKind.NODE_OFFLINE, EventKind.NODE_ONLINE,
        EventKind.NODE_DRAINED,
    ]  # fmt: skip
    assert "alive elsewhere" in enrol(engine, session="s2", boot_id="b2").refused
    assert enrol(engine, session="s2") == nodes.Hearing(is_first=True)
    assert enrol(engine, session="s2", capabilities=None) == nodes.Hearing()


def test_an_old_heartbeat_says_nothing(engine: sa.Engine) -> None:
    """It lay in the hands of a scheduler that was stopped, and came again when that one died."""
    enrol(engine, sequence=98)
    enrol(engine, sequence=100, is_draining=True)
    for sequence in (99, 100):
        assert enrol(engine, sequence=sequence).is_old
    with reading(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.DRAINING
    assert enrol(engine, sequence=101) == nodes.Hearing()
    assert enrol(engine, session="s2", sequence=1) == nodes.Hearing(is_first=True)


# --- the leader ---------------------------------------------------------------------------------------


def test_one_leads_and_renews_and_the_next_waits(engine: sa.Engine) -> None:
    first = leader.acquire(engine, holder="a", ttl_s=30)
    assert first is not None
    assert leader.acquire(engine, holder="b", ttl_s=30) is None
    assert leader.acquire(engine, holder="a", ttl_s=30) == first
    with reading(engine) as db:
        assert leader.current(db) == "a"
    leader.resign(engine, first)
    with reading(engine) as db:
        assert leader.current(db) is None
    second = leader.acquire(engine, holder="b", ttl_s=30)
    assert second is not None
    assert second.epoch > first.epoch


def test_a_deposed_leader_writes_nothing(engine: sa.Engine) -> None:
    first = leader.acquire(engine, holder="a", ttl_s=30)
    assert first is not None
    with leader.leading(engine, first) as db:
        events.happened(db, EventKind.JOB_CHANGED, "mine")
    with writing(engine) as db:
        db.execute(sa.text("UPDATE leader SET until = 0"))  # it was asleep for longer than its lease
    for _ in range(2):
        with pytest.raises(NotLeader), leader.leading(engine, first) as db:
            events.happened(db, EventKind.JOB_CHANGED, "must not be")
        leader.acquire(engine, holder="b", ttl_s=30)
    with reading(engine) as db:
        assert [e.text for e in events.read(db) if e.kind is EventKind.JOB_CHANGED] == ["mine"]
    # Even under its own name it comes back with a new epoch only.
    with writing(engine) as db:
        db.execute(sa.text("UPDATE leader SET until = 0"))
    again = leader.acquire(engine, holder="a", ttl_s=30)
    assert again is not None
    assert again.epoch > first.epoch


def test_of_many_that_want_to_lead_one_does(engine: sa.Engine) -> None:
    for _ in range(3):
        won: list[leader.Lead] = []

        def want(name: str, won: list[leader.Lead] = won) -> None:
            lead = leader.acquire(engine, holder=name, ttl_s=30)
            if lead is not None:
                won.append(lead)

        run_all([lambda name=name: want(name) for name in "abcde"])
        assert len(won) == 1
        leader.resign(engine, won[0])


# --- the outbox, tokens, text -------------------------------------------------------------------------


def test_what_is_owed_is_kept_until_it_is_sent(engine: sa.Engine) -> None:
    with writing(engine) as db:
        outbox.owe_launches(db, {NodeId("a"): [AttemptId("x")], NodeId("b"): [AttemptId("y")]})
    with contextlib.suppress(RuntimeError), writing(engine) as db:
        outbox.owe_launches(db, {NodeId("c"): [AttemptId("z")]})
        raise RuntimeError("the transaction fails")
    with writing(engine) as db:
        owed = outbox.read(db)
        assert [o.node_id for o in owed] == ["a", "b"]
        outbox.sent(db, [owed[0].id])
        assert [o.node_id for o in outbox.read(db)] == ["b"]


def test_the_database_holds_no_usable_token(engine: sa.Engine) -> None:
    with writing(engine) as db:
        token = tokens.create(db, name="t", user="anna", role="user")
        assert tokens.owner(db, token) == tokens.TokenOwner(name="t", user="anna", role="user")
        assert tokens.owner(db, tokens.digest(token)) is None
        assert token not in str(db.execute(sa.text("SELECT * FROM token")).all())
        tokens.revoke(db, "t")
        assert tokens.owner(db, token) is None


@pytest.mark.parametrize("name", ["Szene 1 – Ä/ö", "夜の街", "🎬 shot", "a'b\"c%d_e\\f", " x "])
def test_any_printable_text_comes_back_as_it_went_in(engine: sa.Engine, name: str) -> None:
    with writing(engine) as db:
        events.happened(db, EventKind.JOB_CHANGED, name)
        assert events.read(db)[0].text == name


def test_writers_wait_for_each_other_and_none_is_turned_away(engine: sa.Engine, database_url: str) -> None:
    """SQLite: a writer that begins as a reader would fail at once, whatever the time-out."""

    def write(own: sa.Engine) -> None:
        for n in range(200):
            with writing(own) as db:
                last = events.last_id(db)
                events.happened(db, EventKind.JOB_CHANGED, f"{n} after {last}")

    engines = [open_engine(database_url) for _ in range(2)]
    try:
        run_all([lambda own=own: write(own) for own in engines])
    finally:
        for own in engines:
            own.dispose()
    with reading(engine) as db:
        assert len(events.read(db, limit=1_000)) == 400


def test_sqlite_is_opened_for_safety(sqlite_url: str) -> None:
    engine = open_engine(sqlite_url)
    with reading(engine) as db:
        found = {
            name: db.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    engine.dispose()
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}


# --- counts, whatever happens ---------------------------------------------------------------------------

_OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "claim",
                "start",
                "succeed",
                "fail",
                "licence",
                "cancelled",
                "expire",
                "renew",
                "cancel",
                "cancel-some",
                "retry",
                "requeue",
                "release",
                "pause",
                "resume",
                "copy",
                "copy",
                "ask-to-end",
            ]
        ),
        st.integers(0, 3),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=_OPERATIONS, isolation=st.sampled_from(list(Isolation)))
def test_counts_hold_and_the_law_is_kept_whatever_happens(
    engine: sa.Engine, operations: list[tuple[str, int]], isolation: Isolation
) -> None:
    job_id = submit(
        engine,
        a_step("A", 3),
        a_step("B", 2, after=["A"], position=1),
        isolation=isolation,
        max_retries=1,
        max_failed_tasks=2,
    )
    attempts: list[AttemptId] = []
    for operation, n in operations:
        some = attempts[n : n + 2]
        if operation == "claim":
            attempts += claim(engine, job_id, n, step=n % 2)
        elif operation == "start":
            start(engine, some)
        elif operation in ("succeed", "fail", "licence", "cancelled"):
            outcome = {
                "succeed": Outcome.SUCCEEDED,
                "fail": Outcome.JOB_ERROR,
                "licence": Outcome.LICENCE,
                "cancelled": Outcome.CANCELLED,
            }[operation]
            finish(engine, some, outcome, runtime_s=1.0)
        elif operation == "expire":
            expire_all(engine)
        elif operation in ("copy", "ask-to-end"):
            attempts += _meddle(engine, operation, some)
            check_counts(engine)
        else:
            _steer(engine, job_id, operation, n, some)
            check_counts(engine)
        with writing(engine) as db:
            db.execute(sa.update(_TASK).values(not_before=0.0))
        check_job(engine, job_id)


def _meddle(engine: sa.Engine, operation: str, some: list[AttemptId]) -> list[AttemptId]:
    """As the stall watch does; returns the second copies."""
    made: list[AttemptId] = []
    with writing(engine) as db:
        settling.lock_jobs_of(db, some)
        stalling.witness(db, BLADE, [Evidence(attempt_id=attempt, age_s=9.0) for attempt in some])
        for seen in stalling.running(db):
            if seen.id not in some:
                continue
            if operation == "ask-to-end":
                stalling.ask_to_end(db, seen, Outcome.STALLED, "hung")
                continue
            new_id = AttemptId(str(uuid.uuid4()))
            is_made = stalling.copy(
                db, seen, new_id, node_id=BLADE, device_id="cpu", origin=Origin.COPY, reason="hung",
                lease_s=30, left_s=None,
            )  # fmt: skip
            made += [new_id] if is_made else []
    return made


def _steer(engine: sa.Engine, job_id: JobId, operation: str, n: int, some: list[AttemptId]) -> None:
    with writing(engine) as db:
        if operation == "renew":
            moves.lock_jobs(db, [job_id])
            leases.renew(db, BLADE, some, lease_s=30)
        elif operation == "cancel":
            steering.cancel(db, job_id, actor="anna", reason="no")
        elif operation == "cancel-some":
            ids = [task.id for task in list_tasks(db, job_id)][n : n + 1]
            steering.cancel(db, job_id, actor="anna", reason="no", task_ids=ids)
        elif operation in ("pause", "resume"):
            steering.change(db, job_id, {"is_paused": operation == "pause"}, actor="anna", text=operation)
        else:
            states = {
                "retry": [TaskState.FAILED, TaskState.CANCELLED],
                "requeue": [TaskState.DONE],
                "release": [TaskState.HELD],
            }[operation]
            steering.retry(db, job_id, actor="anna", states=states)


def check_job(engine: sa.Engine, job_id: JobId) -> None:
    with reading(engine) as db:
        job = jobs.read_job(db, job_id)
        accepted = db.scalar(
            sa.select(sa.func.count())
            .select_from(_ATTEMPT.join(_TASK, _TASK.c.attempt_id == _ATTEMPT.c.id))
            .where(_TASK.c.state == "done", _ATTEMPT.c.state == "succeeded")
        )
        owners = db.scalar(
            sa.select(sa.func.count())
            .select_from(_TASK.join(_ATTEMPT, _TASK.c.attempt_id == _ATTEMPT.c.id))
            .where(
                _TASK.c.job_id == job_id,
                _TASK.c.state.in_(["assigned", "running", "cancelling", "held"]),
                _ATTEMPT.c.state.in_(["assigned", "running", "cancelling"]),
            )
        )
        live = db.scalar(
            sa.select(sa.func.count()).where(
                _TASK.c.job_id == job_id, _TASK.c.state.in_(["assigned", "running", "cancelling", "held"])
            )
        )
        done = db.scalar(sa.select(sa.func.count()).where(_TASK.c.state == "done"))
    assert accepted == done, "a done task has exactly one accepted attempt: its own"
    assert owners == live, "a task in a node's hands has a live attempt"
    is_over = job.counts.ended == job.counts.total
    assert is_over == (job.state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED))
