"""Writes what was submitted: a job with its steps and tasks, or more steps of one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from farm.errors import NotFound, Rejected
from farm.flow.by_frame import FrameNeed
from farm.flow.order import ENDS_FIRST, FORWARD, REVERSE, every
from farm.flow.submit import JobPlan, StepPlan
from farm.model.events import EventKind
from farm.model.ids import JobId, StepId
from farm.model.states import JobState, TaskState
from farm.model.work import JobSettings, Submission
from farm.store import events, limits, moves, rows
from farm.store.advancing import advance_jobs
from farm.store.bulk import insert_many
from farm.store.engine import among, read_clock
from farm.store.jobs import read_job, write_source
from farm.store.tables import (
    IdempotencyRow,
    JobDependencyRow,
    JobRow,
    JobSourceRow,
    StepRow,
    TaskNeedRow,
    TaskRow,
)

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_SOURCE = JobSourceRow.__table__  # type: ignore[attr-defined]
_NEEDS = JobDependencyRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_TASK_NEED = TaskNeedRow.__table__  # type: ignore[attr-defined]
_KEY = IdempotencyRow.__table__  # type: ignore[attr-defined]


def submit(
    db: sa.Connection,
    submission: Submission,
    plan: JobPlan,
    *,
    actor: str,
    key: str | None = None,
    digest: str = "",
    frame_needs: Sequence[FrameNeed] = (),
) -> tuple[JobId, bool]:
    """Store a job; returns its id and whether it is new (False: `key` was used for this very request).

    frame_needs: which of its tasks wait for which, when it waits frame by frame.

    Raises Rejected when the key was used for another request, NotFound for an unknown job in `depends_on`.
    """
    known = None if key is None else _job_of_key(db, key, digest)
    if known is not None:
        return known, False
    settings = submission.settings
    unmet = _unmet(db, settings.depends_on)
    if settings.frame_by_frame:
        unmet = []  # its tasks wait, not the job
    now = read_clock(db)
    state = JobState.PAUSED if settings.is_paused else JobState.WAITING if unmet else JobState.ACTIVE
    inserted = db.execute(
        sa.insert(_JOB).values(
            uid=plan.uid,
            name=plan.name,
            kind=submission.kind,
            state=str(state),
            user=settings.user,
            project=settings.project,
            priority=settings.priority,
            pool=settings.pool,
            is_paused=settings.is_paused,
            max_retries=settings.max_retries,
            max_failed_tasks=settings.max_failed_tasks,
            max_running=settings.max_running,
            replaces_existing=settings.replace_existing,
            settings=rows.to_json(settings),
            output_directories=list(plan.output_directories),
            submitted_at=now,
            changed_at=now,
            reason="waits for job " + ", ".join(map(str, unmet)) if unmet else "",
        )
    )
    job_id = JobId(_new_id(inserted))
    db.execute(
        sa.insert(_SOURCE).values(
            job_id=job_id,
            submission=rows.to_json(submission),
            parameters={name: list(value) for name, value in plan.parameters.items()},
        )
    )
    if settings.depends_on:
        db.execute(
            sa.insert(_NEEDS),
            [
                {"job_id": job_id, "needs_job_id": needed, "by_frame": settings.frame_by_frame}
                for needed in dict.fromkeys(settings.depends_on)
            ],
        )
    for step_plan in plan.steps:
        opens_now = not unmet and not step_plan.depends_on and not step_plan.by_frame
        first = TaskState.READY if opens_now else TaskState.WAITING
        _insert_step(db, job_id, step_plan, first, order=order_of(settings))
    if frame_needs:
        _insert_needs(db, job_id, frame_needs)
        advance_jobs(db, [job_id])  # some frames may be done already
    if key is not None:
        db.execute(sa.insert(_KEY).values(key=key, digest=digest, job_id=job_id, created_at=now))
    events.happened(db, EventKind.JOB_SUBMITTED, plan.name, actor=actor, job_id=job_id)
    return job_id, True


def append(
    db: sa.Connection,
    job_id: JobId,
    submission: Submission,
    plan: JobPlan,
    *,
    new_steps: Collection[str],
    set_back: Collection[str],
    actor: str,
    text: str,
) -> int:
    """Add the plan's `new_steps` to a job; returns how many tasks. `plan` is of the whole job.

    Steps named in `set_back` wait for them, and what they made is made again. Raises NotFound, and Rejected
    when one of those runs now, or the job was cancelled.
    """
    moves.lock_jobs(db, [job_id])
    job = read_job(db, job_id)
    if job.state is JobState.CANCELLED:
        raise Rejected(f"job {job_id} was cancelled: submit it again (`farm resubmit {job_id}`)")
    planned = {step.name: step for step in plan.steps}
    for step in job.steps:
        if step.name not in set_back:
            continue
        if step.counts.live or step.counts.held:
            raise Rejected(
                f"step {step.name} runs now, and would lack the new frames: append them when it has ended"
            )
        db.execute(
            sa.update(_STEP)
            .where(_STEP.c.id == step.id)
            .values(depends_on=list(planned[step.name].depends_on))
        )
        again: dict[str, Any] = {
            "generation": _TASK.c.generation + 1,
            "failures": 0,
            "faults": 0,
            "starts": 0,
        }
        moves.move_all(db, step.id, TaskState.DONE, TaskState.WAITING, values=again)
        moves.move_all(db, step.id, TaskState.READY, TaskState.WAITING)
    made = 0
    for step_plan in plan.steps:
        if step_plan.name in new_steps:
            _insert_step(db, job_id, step_plan, TaskState.WAITING, order=order_of(job.settings))
            made += step_plan.task_count
    write_source(db, job_id, submission, plan.parameters)
    db.execute(sa.update(_JOB).where(_JOB.c.id == job_id).values(finished_at=None))
    events.happened(db, EventKind.JOB_CHANGED, text, actor=actor, job_id=job_id)
    advance_jobs(db, [job_id])
    return made


def _job_of_key(db: sa.Connection, key: str, digest: str) -> JobId | None:
    """The job that an earlier request with the key made. Raises Rejected when that was another request."""
    if db.dialect.name == "postgresql":  # a SQLite writer is alone; here two would both find nothing
        db.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(key, 0))))
    row = db.execute(sa.select(_KEY).where(_KEY.c.key == key)).mappings().first()
    if row is None:
        return None
    if row["digest"] != digest:
        raise Rejected(f"idempotency key {key!r} was used for another request (job {row['job_id']})")
    return JobId(row["job_id"])


def _insert_step(db: sa.Connection, job_id: JobId, plan: StepPlan, state: TaskState, *, order: str) -> None:
    step_id = _new_id(
        db.execute(
            sa.insert(_STEP).values(
                job_id=job_id,
                position=plan.position,
                name=plan.name,
                depends_on=list(plan.depends_on),
                by_frame=list(plan.by_frame),
                demand=rows.to_json(plan.demand),
                profile=rows.to_json(plan.profile),
                isolation=str(plan.isolation),
                output=rows.to_json(plan.output) if plan.output else None,
                frames=plan.frames,
                chunk_target_s=plan.chunk_target_s,
                **{f"n_{state.value}": plan.task_count},
            )
        )
    )
    if plan.indexes is None:
        _insert_tasks(db, job_id, step_id, plan.task_count, state, order=order)
    else:
        insert_chunks(db, job_id, StepId(step_id), plan.indexes, state, is_reversed=order == REVERSE)
    limits.needed_by(db, StepId(step_id), plan.demand)


def _insert_needs(db: sa.Connection, job_id: JobId, needs: Sequence[FrameNeed]) -> None:
    job_ids = {job_id, *(need.needs_job_id for need in needs if need.needs_job_id is not None)}
    query = (
        sa.select(_TASK.c.id, _TASK.c.job_id, _STEP.c.name, _TASK.c.idx)
        .join(_STEP, _STEP.c.id == _TASK.c.step_id)
        .where(_TASK.c.job_id.in_(sorted(job_ids)))
    )
    ids = {(row.job_id, row.name, row.idx): row.id for row in db.execute(query)}
    insert_many(
        db,
        _TASK_NEED,
        [
            {
                "task_id": ids[job_id, need.step, need.index],
                "needs_task_id": ids[need.needs_job_id or job_id, need.needs_step, need.needs_index],
            }
            for need in needs
        ],
    )


def _insert_tasks(
    db: sa.Connection, job_id: int, step_id: int, count: int, state: TaskState, *, order: str
) -> None:
    """The rows are made inside the database: 100,000 in a fraction of a second, and no memory here."""
    if db.dialect.name == "sqlite":
        numbers = (
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count) "
            "SELECT :job_id, :step_id, i, {rank}, :state, 0, 0, 0, 1, 0.0, '' FROM n"
        )
    else:
        numbers = (
            "SELECT :job_id, :step_id, i, {rank}, :state, 0, 0, 0, 1, 0.0, '' "
            "FROM generate_series(0, :count - 1) AS n(i)"
        )
    # The text is ours alone; every value is bound.
    statement = (
        "INSERT INTO task (job_id, step_id, idx, rank, state, starts, failures, faults, generation, "
        "not_before, reason) " + numbers.format(rank=rank_sql(order, "i"))
    )
    db.execute(
        sa.text(statement).bindparams(
            sa.bindparam("count", type_=sa.Integer), sa.bindparam("state", type_=sa.String)
        ),
        {"job_id": job_id, "step_id": step_id, "count": count, "state": str(state)},
    )


def insert_chunks(
    db: sa.Connection,
    job_id: JobId,
    step_id: StepId,
    indexes: Sequence[int],
    state: TaskState,
    *,
    is_reversed: bool,
) -> None:
    """Tasks whose index is a chunk (`farm.flow.chunks`). The step's counts are the caller's."""
    if indexes:
        db.execute(
            sa.insert(_TASK),
            [
                {
                    "job_id": job_id,
                    "step_id": step_id,
                    "idx": index,
                    "rank": -index if is_reversed else index,
                    "state": str(state),
                    "starts": 0,
                    "failures": 0,
                    "faults": 0,
                    "generation": 1,
                    "not_before": 0.0,
                    "reason": "",
                }
                for index in indexes
            ],
        )


def order_of(settings: JobSettings) -> str:
    return settings.order or (REVERSE if settings.reverse else FORWARD)


def rank_sql(order: str, index: str) -> str:
    """As `farm.flow.order.rank`, with `:count` bound. The text is made of our own words and a number."""
    if order == REVERSE:
        return f":count - 1 - {index}"
    stride = every(order)
    if order == ENDS_FIRST:
        first = f"{index} IN (0, :count / 2, :count - 1)"
    elif stride is not None:
        first = f"{index} % {stride:d} = 0"
    else:
        return index
    return f"CASE WHEN {first} THEN {index} - :count ELSE {index} END"


def _new_id(inserted: sa.CursorResult[Any]) -> int:
    key = inserted.inserted_primary_key
    assert key is not None
    return int(key[0])


def _unmet(db: sa.Connection, needed: Sequence[int]) -> list[int]:
    if not needed:
        return []
    query = sa.select(_JOB.c.id, _JOB.c.state).where(among(db, _JOB.c.id, needed))
    found: dict[int, str] = {row.id: row.state for row in db.execute(query)}
    for job_id in needed:
        if job_id not in found:
            raise NotFound(f"depends_on names job {job_id}, which does not exist")
    return [job_id for job_id in needed if found[job_id] != JobState.DONE]
