"""Leases: renewed, run out, told to stop."""

from __future__ import annotations

import uuid

import sqlalchemy as sa

from farm.flow.outage import Silence
from farm.model.ids import AttemptId, NodeId
from farm.model.states import AttemptState, TaskState
from farm.model.work import Isolation
from farm.store import (
    leases,
    moves,
    outbox,
    steering,
)
from farm.store.engine import reading, writing
from farm.store.tables import AttemptRow
from tests.contract.stored_farm import (
    BLADE,
    a_step,
    attempt_state,
    check_counts,
    claim,
    enrol,
    expire_all,
    finish,
    read,
    start,
    submit,
    task_states,
)

_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]


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
        renewal = leases.renew(db, BLADE, [attempts[0], unknown], lease_s=30, relaunch_s=10)
        assert (renewal.kept, renewal.stop) == ([attempts[0]], [unknown])
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
        renewal = leases.renew(db, BLADE, attempts[:1], lease_s=30, relaunch_s=10)
        assert (renewal.kept, renewal.stop) == (attempts[:1], [])
    assert task_states(engine, job_id) == ["running", "held"]
    with writing(engine) as db:
        assert steering.retry(db, job_id, actor="anna", states=[TaskState.HELD]) == 1
    check_counts(engine)
    assert task_states(engine, job_id) == ["running", "ready"]
    assert attempt_state(engine, attempts[1]) is AttemptState.LOST
    with writing(engine) as db:
        renewal = leases.renew(db, BLADE, attempts, lease_s=30, relaunch_s=10)
        assert (renewal.kept, renewal.stop) == (attempts[:1], attempts[1:])


def test_attempts_that_a_node_does_not_list_are_sent_again_or_known_dead(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=2))
    attempts = claim(engine, job_id, 2)
    start(engine, attempts[:1])
    with writing(engine) as db:
        renewal = leases.renew(db, BLADE, [], lease_s=30, relaunch_s=10)
        assert renewal == leases.Renewal(kept=[], stop=[], unsent=[], gone=[])
        db.execute(sa.update(_ATTEMPT).values(assigned_at=0.0))
        db.execute(sa.update(_ATTEMPT).where(_ATTEMPT.c.state == "running").values(started_at=0.0))
        renewal = leases.renew(db, BLADE, [], lease_s=30, relaunch_s=10)
        assert renewal == leases.Renewal(kept=[], stop=[], unsent=attempts[1:], gone=attempts[:1])
        renewal = leases.renew(db, NodeId("blade-02"), [], lease_s=30, relaunch_s=10)
        assert renewal == leases.Renewal(kept=[], stop=[], unsent=[], gone=[]), "another node's"
        renewal = leases.renew(db, BLADE, attempts, lease_s=30, relaunch_s=10)
        assert renewal == leases.Renewal(kept=attempts, stop=[], unsent=[], gone=[])
