"""Claims: in the order of the job, each task once, by an index alone."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import Any

import sqlalchemy as sa

from farm.model.ids import NodeId, TaskId
from farm.model.states import JobState
from farm.store import (
    dispatching,
    jobs,
    steering,
)
from farm.store.engine import reading, writing
from tests.contract.stored_farm import BLADE, a_step, check_counts, claim, read, run_all, submit


def test_tasks_are_claimed_in_the_order_of_the_job(engine: sa.Engine) -> None:
    for reverse, expected in ((False, [0, 1]), (True, [3, 2])):
        job_id = submit(engine, reverse=reverse)
        with writing(engine) as db:
            step_id = jobs.read_job(db, job_id).steps[0].id
            (claimed,) = dispatching.claim(db, step_id, [(BLADE, 2)])
            assert [task.index for task in claimed] == expected


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

    run_all([partial(take, mine, f"n{n}") for n, mine in enumerate(got)])
    every = list(itertools.chain(*got))
    assert len(every) == len(set(every)) == 200
    check_counts(engine)


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
