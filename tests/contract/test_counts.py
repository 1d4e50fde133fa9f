"""Counts and the law, whatever happens in whatever order."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.model.ids import AttemptId, JobId
from farm.model.stalls import Evidence, Origin
from farm.model.states import Outcome, TaskState
from farm.model.work import Isolation
from farm.store import (
    leases,
    moves,
    settling,
    stalling,
    steering,
)
from farm.store.engine import writing
from farm.store.tables import TaskRow
from farm.store.tasks import list_tasks
from tests.contract.stored_farm import (
    BLADE,
    a_step,
    check_counts,
    check_job,
    claim,
    expire_all,
    finish,
    start,
    submit,
)

_TASK = TaskRow.__table__  # type: ignore[attr-defined]


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
            leases.renew(db, BLADE, some, lease_s=30, relaunch_s=10)
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
