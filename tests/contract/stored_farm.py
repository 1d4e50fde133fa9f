"""A farm in few words, straight in the store: submit, lease, hear a node, and what must hold."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from farm.flow.submit import JobPlan, StepPlan
from farm.model.ids import AttemptId, JobId, NodeId
from farm.model.machines import Capabilities, Demand, Device, DeviceKind
from farm.model.states import AttemptState, JobState, Outcome, TaskState
from farm.model.work import Isolation, Job, JobSettings, Profile, Submission
from farm.store import (
    jobs,
    leases,
    moves,
    nodes,
    settling,
    submitting,
)
from farm.store.attempts import read_attempt
from farm.store.engine import reading, writing
from farm.store.tables import AttemptRow, StepRow, TaskRow
from farm.store.tasks import list_tasks
from farm.wire.messages import Finished, Heartbeat
from tests.leasing import lease

_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]


BLADE = NodeId("blade")


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
