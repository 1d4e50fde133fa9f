"""The outbox: what is owed is kept with the change that owes it."""

from __future__ import annotations

import contextlib

import sqlalchemy as sa

from farm.model.ids import AttemptId, NodeId
from farm.model.states import TaskState
from farm.store import outbox, steering
from farm.store.engine import reading, writing
from tests.contract.stored_farm import a_step, claim, finish, read, start, submit


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


def test_a_job_that_goes_on_after_all_is_not_tidied(engine: sa.Engine) -> None:
    """Its attempts would lose their directories: the message may lie there while no scheduler leads."""

    def tidied() -> list[str]:
        with reading(engine) as db:
            return [o.payload["job_uid"] for o in outbox.read(db) if o.payload.get("kind") == "tidy-job"]

    ended = []
    for _ in range(2):
        job_id = submit(engine, a_step(tasks=1))
        attempts = claim(engine, job_id, 1)
        start(engine, attempts)
        finish(engine, attempts)
        ended.append(read(engine, job_id))
    assert tidied() == [job.uid for job in ended]
    with writing(engine) as db:
        assert steering.retry(db, ended[0].id, actor="anna", states=[TaskState.DONE]) == 1
    assert tidied() == [ended[1].uid]
