"""Limits in the store: what is held follows from live attempts alone, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from farm.errors import NotFound, NotLeader
from farm.flow.limits import Ledger
from farm.flow.preempt import Way
from farm.flow.report import MAX_STARTS
from farm.model.ids import AttemptId, JobId, NodeId
from farm.model.limits import LIMIT_PREFIX, Limit, LimitScope
from farm.model.machines import Demand
from farm.model.states import Outcome, TaskState
from farm.store import jobs, leader, limits, moves, preempting, ready, steering
from farm.store.engine import reading, writing
from farm.store.leader import Lead
from farm.store.tables import TaskRow
from farm.store.tasks import list_tasks
from tests.contract.stored_farm import a_step, claim, enrol, expire_all, finish, start, submit
from tests.leasing import lease

ARNOLD = Demand(amounts=((f"{LIMIT_PREFIX}arnold", 1.0),))


@pytest.fixture(autouse=True)
def no_limits_left(engine: sa.Engine) -> None:
    """The databases are shared by a session's tests."""
    with writing(engine) as db:
        for name in limits.read(db):
            limits.remove(db, name)


def set_limit(engine: sa.Engine, amount: int, per: LimitScope = LimitScope.TASK) -> None:
    with writing(engine) as db:
        limits.put(db, Limit(name="arnold", amount=amount, per=per))


def ledger(engine: sa.Engine) -> Ledger:
    with reading(engine) as db:
        return limits.ledger(db)


def licensed_job(engine: sa.Engine, tasks: int = 4) -> JobId:
    return submit(engine, replace(a_step(tasks=tasks), demand=ARNOLD))


def test_limits_are_made_changed_and_removed(engine: sa.Engine) -> None:
    set_limit(engine, 3)
    set_limit(engine, 5, LimitScope.NODE)
    assert ledger(engine).limits == {"arnold": Limit(name="arnold", amount=5, per=LimitScope.NODE)}
    with writing(engine) as db:
        limits.remove(db, "arnold")
    assert ledger(engine).limits == {}
    with pytest.raises(NotFound, match="limits are: none yet"), writing(engine) as db:
        limits.remove(db, "arnold")


def test_settings_rule_the_limits_that_they_name_and_no_others(engine: sa.Engine) -> None:
    set_limit(engine, 3)
    nuke = Limit(name="nuke", amount=2, is_from_settings=True)
    with writing(engine) as db:
        limits.follow_settings(db, {"nuke": nuke})
    assert set(ledger(engine).limits) == {"arnold", "nuke"}
    with writing(engine) as db:
        limits.follow_settings(db, {"nuke": replace(nuke, amount=9)})
    assert ledger(engine).limits["nuke"].amount == 9
    with writing(engine) as db:
        limits.follow_settings(db, {})
    assert set(ledger(engine).limits) == {"arnold"}


def test_what_is_held_follows_live_attempts_however_they_end(engine: sa.Engine) -> None:
    enrol(engine)
    set_limit(engine, 9)
    job_id = licensed_job(engine)
    first, second, third = claim(engine, job_id, 3)
    assert ledger(engine).used("arnold") == 3
    assert ledger(engine).holders("arnold") == [(job_id, 3)]
    finish(engine, [first])
    finish(engine, [second], Outcome.LICENCE)
    assert ledger(engine).used("arnold") == 1
    expire_all(engine)
    assert ledger(engine).used("arnold") == 0, third
    with reading(engine) as db:
        assert limits.waiting(db) == {"arnold": 3}


def test_nodes_and_jobs_are_counted_once_where_the_limit_says_so(engine: sa.Engine) -> None:
    a, b = licensed_job(engine), licensed_job(engine)
    claim(engine, a, 2, node=NodeId("x"))
    claim(engine, b, 1, node=NodeId("x"))
    claim(engine, b, 1, node=NodeId("y"))
    for per, used in ((LimitScope.TASK, 4), (LimitScope.NODE, 2), (LimitScope.JOB, 2)):
        set_limit(engine, 9, per)
        assert ledger(engine).used("arnold") == used
    for job_id in (a, b):
        with writing(engine) as db:
            steering.cancel(db, job_id, actor="anna", reason="over")


def test_a_user_s_running_tasks_are_counted_over_all_his_jobs(engine: sa.Engine) -> None:
    with reading(engine) as db:
        before = limits.running_by_user(db).get("anna", 0)
    claim(engine, submit(engine), 2)
    claim(engine, submit(engine), 1)
    with reading(engine) as db:
        assert limits.running_by_user(db)["anna"] == before + 3


def test_two_schedulers_together_never_exceed_a_limit(engine: sa.Engine) -> None:
    """The plan of one that lost the lead is refused whole; the next one counts what the first has given."""
    set_limit(engine, 2)
    job_id = licensed_job(engine, tasks=9)
    with reading(engine) as db:
        step_id = jobs.read_job(db, job_id).steps[0].id

    def start(lead: Lead, wanted: int) -> int:
        """As the scheduler does: count, claim and lease in one of the leader's transactions."""
        needs = (("arnold", 1),)
        with leader.leading(engine, lead) as db:
            count = limits.ledger(db).how_many(needs, job_id=job_id, node_id=NodeId("x"), wanted=wanted)
            return len(lease(db, step_id, NodeId("x"), count))

    first = leader.acquire(engine, holder="first", ttl_s=60)
    assert first is not None
    assert start(first, 1) == 1
    leader.resign(engine, first)
    second = leader.acquire(engine, holder="second", ttl_s=60)
    assert second is not None
    with pytest.raises(NotLeader):
        start(first, 9)
    assert start(second, 9) == 1
    assert start(second, 9) == 0
    assert ledger(engine).used("arnold") == 2
    leader.resign(engine, second)
    with writing(engine) as db:
        steering.cancel(db, job_id, actor="anna", reason="over")


def test_a_step_whose_renderers_find_no_licence_waits_whole_until_one_is_done(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=5))

    def waiting() -> tuple[int, float]:
        """(groups with something ready, seconds that the step waits)"""
        with reading(engine) as db:
            step_id = jobs.read_job(db, job_id).steps[0].id
            found = ready.groups(db, job_id=job_id)
            return len(found), ready.licence_wait_s(db, step_id)

    first, second = claim(engine, job_id, 2)
    assert waiting() == (1, 0.0)
    finish(engine, [first], Outcome.LICENCE)
    count, wait_s = waiting()
    assert count == 0
    assert 50 < wait_s <= 60
    finish(engine, [second], runtime_s=3.0)
    assert waiting() == (1, 0.0)
    with writing(engine) as db:
        steering.cancel(db, job_id, actor="anna", reason="over")


def test_want_of_a_licence_spends_no_start_of_a_task(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1), max_retries=0)
    for _ in range(MAX_STARTS + 3):
        (attempt,) = claim(engine, job_id)
        finish(engine, [attempt], Outcome.LICENCE)
        with writing(engine) as db:
            db.execute(sa.update(TaskRow).values(not_before=0.0))
    with reading(engine) as db:
        (task,) = list_tasks(db, job_id)
    assert (task.state, task.failures, task.starts) == (TaskState.READY, 0, MAX_STARTS + 3)


def test_a_task_makes_way_and_is_ready_again_at_once(engine: sa.Engine) -> None:
    low = submit(engine, a_step(tasks=2), priority=40)
    high = submit(engine, a_step(tasks=1), priority=95, preempts=True)
    submit(engine, a_step(tasks=1), priority=95)
    first, second = claim(engine, low, 2)
    start(engine, [first, second])

    def victims() -> list[AttemptId]:
        with reading(engine) as db:
            found = preempting.victims(db, below=95, ran_s=60.0)
            return [each.id for each in found if each.job_id == low]

    with reading(engine) as db:
        assert preempting.asking(db, from_priority=90) & {low, high} == {high}
        assert preempting.asking(db, from_priority=96) == set()
        found = [v for v in preempting.victims(db, below=95, ran_s=60.0) if v.id == first]
        assert low not in {v.job_id for v in preempting.victims(db, below=40, ran_s=60.0)}
        (group,) = ready.groups(db, job_id=high)
    with writing(engine) as db:
        moves.lock_jobs(db, [low])
        assert preempting.stop(db, [Way(victim=v, group=group) for v in found]) == 1
        assert preempting.stop(db, [Way(victim=v, group=group) for v in found]) == 0, "once is enough"
    with reading(engine) as db:
        assert preempting.stopping(db) == {high: 1}
    assert victims() == [second]
    finish(engine, [first], Outcome.CANCELLED)
    with reading(engine) as db:
        assert preempting.stopping(db) == {}
        tasks = {task.state: task for task in list_tasks(db, low)}
    assert tasks[TaskState.READY].failures == 0
    assert TaskState.RUNNING in tasks
    for job_id in (low, high):
        with writing(engine) as db:
            steering.cancel(db, job_id, actor="anna", reason="over")
