"""Ready tasks that must wait, or that other nodes should try first: what matching gets to see of them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from farm.flow import match
from farm.model.ids import NodeId
from farm.model.states import Outcome
from farm.store import nodes, ready
from farm.store.engine import reading, writing
from tests.contract.stored_farm import BLADE, a_step, claim, enrol, finish, submit

OTHER = NodeId("other")


def groups(engine: sa.Engine) -> list[tuple[int, set[str]]]:
    """Of each group: tasks that may start now, and the nodes that they avoid."""
    with reading(engine) as db:
        return [(g.ready, set(g.avoid)) for g in ready.groups(db)]


def test_a_task_that_must_wait_takes_no_slot_from_others(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=3))
    enrol(engine, "blade")
    finish(engine, claim(engine, job_id), Outcome.STORAGE)
    assert groups(engine) == [(2, set())]
    finish(engine, claim(engine, job_id, 2), Outcome.STORAGE)
    assert groups(engine) == [(0, set())]


def test_matching_sends_a_failed_task_to_another_node(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=2), max_retries=9)
    enrol(engine, "blade")
    finish(engine, claim(engine, job_id), Outcome.JOB_ERROR)
    assert groups(engine) == [(2, set())], "there is no other node"
    enrol(engine, "other")
    assert groups(engine) == [(1, set()), (1, {"blade"})]
    with reading(engine) as db:
        plan = match.plan(
            ready.groups(db),
            nodes.views(db, ready.uses(db)),
            score=match.fitness,
            limit=10,
        )
    assert sum(a.count for a in plan) == 2
    assert sum(len(claim(engine, job_id, a.count, node=a.node_id)) for a in plan) == 2


def test_a_node_that_is_drained_is_no_other_node(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=1), max_retries=9)
    enrol(engine, "blade")
    enrol(engine, "other")
    finish(engine, claim(engine, job_id), Outcome.JOB_ERROR)
    assert groups(engine) == [(0, set()), (1, {BLADE})]
    with writing(engine) as db:
        nodes.drain(db, OTHER, is_drained=True, actor="anna")
    assert groups(engine) == [(1, set())]


@pytest.mark.parametrize("statistics", [False, True])
def test_what_is_held_back_is_found_without_reading_all_ready_tasks(
    engine: sa.Engine, statistics: bool
) -> None:
    submit(engine, a_step(tasks=20_000))
    if statistics:
        with writing(engine) as db:
            db.exec_driver_sql("ANALYZE")
    query = str(ready._HELD_BACK.compile(engine, compile_kwargs={"literal_binds": True}))
    with reading(engine) as db:
        how = "EXPLAIN QUERY PLAN " if db.dialect.name == "sqlite" else "EXPLAIN "
        plan = "\n".join(str(tuple(row)) for row in db.exec_driver_sql(how + query))
    assert "task_held_back" in plan, plan
