"""Jobs: submitted, read, steered."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from farm.errors import NotFound, Rejected
from farm.flow.by_frame import FrameNeed
from farm.flow.classify import classify
from farm.flow.order import ENDS_FIRST, FORWARD, REVERSE, every
from farm.flow.report import Advance, JobFacts, StepFacts, advance
from farm.flow.submit import JobPlan, StepPlan
from farm.model.attempts import Attempt, JobUsage, PublishedFile
from farm.model.decisions import Decision
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, StepId, TaskId
from farm.model.states import ENDED_JOBS, AttemptState, JobState, TaskState
from farm.model.work import Counts, Job, JobSettings, Step, Submission, Task
from farm.store import events, limits, moves, outbox, rows
from farm.store.bulk import insert_many
from farm.store.engine import among, db_now
from farm.store.tables import (
    AttemptRow,
    IdempotencyRow,
    JobDependencyRow,
    JobRow,
    JobSourceRow,
    StepRow,
    TaskNeedRow,
    TaskRow,
)
from farm.text import plural
from farm.wire.messages import Stop, TidyJob

_JOB = JobRow.__table__  # type: ignore[attr-defined]
_SOURCE = JobSourceRow.__table__  # type: ignore[attr-defined]
_NEEDS = JobDependencyRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_TASK_NEED = TaskNeedRow.__table__  # type: ignore[attr-defined]
_KEY = IdempotencyRow.__table__  # type: ignore[attr-defined]

_T = TaskState
# What cancelling turns each state into.
_CANCEL = {
    _T.WAITING: _T.CANCELLED,
    _T.READY: _T.CANCELLED,
    _T.HELD: _T.CANCELLED,
    _T.ASSIGNED: _T.CANCELLING,
    _T.RUNNING: _T.CANCELLING,
}


# --- submit -------------------------------------------------------------------------------------------


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
    if key is not None:
        if db.dialect.name == "postgresql":  # a SQLite writer is alone; here two would both find nothing
            db.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(key, 0))))
        known = db.execute(sa.select(_KEY).where(_KEY.c.key == key)).mappings().first()
        if known is not None:
            if known["digest"] != digest:
                raise Rejected(
                    f"idempotency key {key!r} was used for another request (job {known['job_id']})"
                )
            return JobId(known["job_id"]), False
    settings = submission.settings
    unmet = _unmet(db, settings.depends_on)
    if settings.frame_by_frame:
        unmet = []  # its tasks wait, not the job
    now = db.scalar(sa.select(db_now()))
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
        settle_jobs(db, [job_id])  # some frames may be done already
    if key is not None:
        db.execute(sa.insert(_KEY).values(key=key, digest=digest, job_id=job_id, created_at=now))
    events.happened(db, EventKind.JOB_SUBMITTED, plan.name, actor=actor, job_id=job_id)
    return job_id, True


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
        "not_before, reason) " + numbers.format(rank=_rank_sql(order, "i"))
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


def indexes_of(db: sa.Connection, job_id: JobId, step: str) -> list[int]:
    """Of the tasks of the step, as they are now."""
    query = (
        sa.select(_TASK.c.idx)
        .join(_STEP, _STEP.c.id == _TASK.c.step_id)
        .where(_TASK.c.job_id == job_id, _STEP.c.name == step)
    )
    return list(db.scalars(query.order_by(_TASK.c.idx)))


def order_of(settings: JobSettings) -> str:
    return settings.order or (REVERSE if settings.reverse else FORWARD)


def _rank_sql(order: str, index: str) -> str:
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


# --- read ---------------------------------------------------------------------------------------------


def read_job(db: sa.Connection, job_id: JobId) -> Job:
    """Raises NotFound."""
    return _jobs(db, [_job_row(db, job_id)])[0]


def list_jobs(
    db: sa.Connection,
    *,
    states: Collection[JobState] = (),
    user: str | None = None,
    name: str | None = None,
    before: int | None = None,
    changed_after: float | None = None,
    limit: int = 100,
) -> list[Job]:
    """Newest first; `name` is a part of the name, `before` a job id to go on from."""
    query = sa.select(_JOB)
    if states:
        query = query.where(_JOB.c.state.in_([str(s) for s in states]))
    if user is not None:
        query = query.where(_JOB.c.user == user)
    if name is not None:
        query = query.where(_JOB.c.name.icontains(name, autoescape=True))
    if before is not None:
        query = query.where(_JOB.c.id < before)
    if changed_after is not None:
        query = query.where(_JOB.c.changed_at > changed_after)
    found = db.execute(query.order_by(_JOB.c.id.desc()).limit(limit)).mappings().all()
    return _jobs(db, found)


def open_counts(db: sa.Connection) -> Counts:
    """Tasks by state, of all jobs that have not ended."""
    query = (
        sa.select(
            *(
                sa.func.coalesce(sa.func.sum(_STEP.c[f"n_{state}"]), 0).label(f"n_{state}")
                for state in TaskState
            )
        )
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .where(_JOB.c.state.not_in([str(state) for state in ENDED_JOBS]))
    )
    return rows.counts(db.execute(query).mappings().one())


def active_counts(db: sa.Connection) -> dict[JobId, Counts]:
    """Tasks by state of each active job."""
    sums = (sa.func.sum(_STEP.c[f"n_{state}"]).label(f"n_{state}") for state in TaskState)
    query = (
        sa.select(_STEP.c.job_id, *sums)
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .where(_JOB.c.state == str(JobState.ACTIVE))
        .group_by(_STEP.c.job_id)
    )
    return {JobId(row["job_id"]): rows.counts(row) for row in db.execute(query).mappings()}


def _job_row(db: sa.Connection, job_id: JobId) -> rows.Row:
    row = db.execute(sa.select(_JOB).where(_JOB.c.id == job_id)).mappings().first()
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    return row


def _jobs(db: sa.Connection, found: Sequence[rows.Row]) -> list[Job]:
    ids = [row["id"] for row in found]
    steps: dict[int, list[Step]] = {i: [] for i in ids}
    query = sa.select(_STEP).where(_STEP.c.job_id.in_(ids)).order_by(_STEP.c.job_id, _STEP.c.position)
    for row in db.execute(query).mappings():
        steps[row["job_id"]].append(rows.step(row))
    needs: dict[int, list[int]] = {i: [] for i in ids}
    for row in db.execute(sa.select(_NEEDS).where(_NEEDS.c.job_id.in_(ids))).mappings():
        needs[row["job_id"]].append(row["needs_job_id"])
    return [rows.job(row, steps[row["id"]], sorted(needs[row["id"]])) for row in found]


def read_source(db: sa.Connection, job_id: JobId) -> tuple[Submission, dict[str, tuple[str, str]]]:
    """What was submitted, and the job parameters (OpenJD type, text). Raises NotFound."""
    row = db.execute(sa.select(_SOURCE).where(_SOURCE.c.job_id == job_id)).mappings().first()
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    submission: Submission = rows.from_json(Submission, row["submission"])
    return submission, {name: (value[0], value[1]) for name, value in row["parameters"].items()}


_TASK_QUERY = sa.select(
    _TASK,
    _STEP.c.name.label("step_name"),
    _ATTEMPT.c.node_id,
    _ATTEMPT.c.progress,
    _ATTEMPT.c.load_s,
    _ATTEMPT.c.warnings,
).select_from(
    _TASK.join(_STEP, _STEP.c.id == _TASK.c.step_id).outerjoin(_ATTEMPT, _ATTEMPT.c.id == _TASK.c.attempt_id)
)


def list_tasks(
    db: sa.Connection,
    job_id: JobId,
    *,
    step: str | None = None,
    states: Collection[TaskState] = (),
    task_ids: Collection[int] | None = None,
    after: int = 0,
    limit: int = 100,
) -> list[Task]:
    """In order of id; `after` is a task id to go on from."""
    query = _TASK_QUERY.where(_TASK.c.job_id == job_id, _TASK.c.id > after)
    if step is not None:
        query = query.where(_STEP.c.name == step)
    if states:
        query = query.where(_TASK.c.state.in_([str(s) for s in states]))
    if task_ids is not None:
        query = query.where(among(db, _TASK.c.id, task_ids))
    return [rows.task(row) for row in db.execute(query.order_by(_TASK.c.id).limit(limit)).mappings()]


def task_ids(
    db: sa.Connection,
    job_id: JobId,
    *,
    step_id: StepId | None = None,
    indexes: Collection[int] | None = None,
    of: Collection[int] | None = None,
) -> list[int]:
    """Ids of the job's tasks: of one step, at `indexes` in it, and among the ids `of`, as far as given."""
    query = sa.select(_TASK.c.id).where(_TASK.c.job_id == job_id)
    if step_id is not None:
        query = query.where(_TASK.c.step_id == step_id)
    if indexes is not None:
        query = query.where(among(db, _TASK.c.idx, indexes))
    if of is not None:
        query = query.where(among(db, _TASK.c.id, of))
    return list(db.scalars(query))


def newest_attempts(
    db: sa.Connection,
    job_id: JobId,
    *,
    states: Collection[TaskState] = (),
    step: str | None = None,
    task_ids: Collection[int] | None = None,
    after: int = 0,
    limit: int = 100,
) -> list[tuple[Task, AttemptId]]:
    """Tasks that an attempt was made at, with the newest one, in order of the task's id."""
    query = _TASK_QUERY.where(
        _TASK.c.job_id == job_id,
        _TASK.c.id > after,
        _TASK.c.attempt_id.is_not(None),
        _ATTEMPT.c.id.is_not(None),
    )
    if states:
        query = query.where(_TASK.c.state.in_([str(state) for state in states]))
    if step is not None:
        query = query.where(_STEP.c.name == step)
    if task_ids is not None:
        query = query.where(among(db, _TASK.c.id, task_ids))
    found = db.execute(query.order_by(_TASK.c.id).limit(limit)).mappings()
    return [(rows.task(row), AttemptId(row["attempt_id"])) for row in found]


def accepted_files(db: sa.Connection, task_ids: Collection[int]) -> dict[TaskId, tuple[PublishedFile, ...]]:
    """The files of the accepted attempts of done tasks."""
    query = (
        sa.select(_TASK.c.id, _ATTEMPT.c.files)
        .join(_ATTEMPT, _ATTEMPT.c.id == _TASK.c.attempt_id)
        .where(among(db, _TASK.c.id, task_ids), _ATTEMPT.c.state == "succeeded")
    )
    return {
        TaskId(row.id): tuple(rows.from_json(PublishedFile, file) for file in row.files)
        for row in db.execute(query)
    }


def read_task(db: sa.Connection, task_id: TaskId) -> Task:
    """Raises NotFound."""
    row = db.execute(_TASK_QUERY.where(_TASK.c.id == task_id)).mappings().first()
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    return rows.task(row)


def list_attempts(
    db: sa.Connection,
    *,
    task_id: TaskId | None = None,
    job_id: JobId | None = None,
    states: Collection[AttemptState] = (),
    limit: int = 100,
) -> list[Attempt]:
    """Newest first."""
    query = sa.select(_ATTEMPT)
    if task_id is not None:
        query = query.where(_ATTEMPT.c.task_id == task_id)
    if job_id is not None:
        query = query.where(_ATTEMPT.c.job_id == job_id)
    if states:
        query = query.where(_ATTEMPT.c.state.in_([str(s) for s in states]))
    query = query.order_by(_ATTEMPT.c.assigned_at.desc(), _ATTEMPT.c.id).limit(limit)
    return [rows.attempt(row) for row in db.execute(query).mappings()]


def usage(db: sa.Connection, job_id: JobId) -> JobUsage:
    """What the job's attempts used of GPUs so far. Raises NotFound."""
    read_job(db, job_id)
    a = _ATTEMPT.c
    weighed = sa.case((a.gpu_busy.is_not(None), a.gpu_s), else_=None)
    memory_weighed = sa.case((a.gpu_memory_busy.is_not(None), a.gpu_s), else_=None)
    query = sa.select(
        sa.func.count().label("attempts"),
        sa.func.sum(a.gpu_s).label("gpu_s"),
        sa.func.sum(sa.case((a.state == "succeeded", 0.0), else_=a.gpu_s)).label("wasted_s"),
        sa.func.sum(a.energy_j).label("energy_j"),
        sa.func.count(a.energy_j).label("energy_attempts"),
        sa.func.max(a.vram_peak_mib).label("vram_peak_mib"),
        (sa.func.sum(a.gpu_busy * a.gpu_s) / sa.func.nullif(sa.func.sum(weighed), 0.0)).label("busy"),
        (sa.func.sum(a.gpu_memory_busy * a.gpu_s) / sa.func.nullif(sa.func.sum(memory_weighed), 0.0)).label(
            "memory_busy"
        ),
        sa.func.sum(a.throttled_s).label("throttled_s"),
    ).where(a.job_id == job_id, a.gpu_s.is_not(None))
    row = db.execute(query).one()
    models: list[str] = list(
        db.scalars(sa.select(a.gpu_model).where(a.job_id == job_id, a.gpu_model.is_not(None)).distinct())
    )
    return JobUsage(
        attempts=row.attempts,
        gpu_hours=(row.gpu_s or 0.0) / 3600,
        wasted_gpu_hours=(row.wasted_s or 0.0) / 3600,
        energy_kwh=None if row.energy_j is None else row.energy_j / 3.6e6,
        energy_attempts=row.energy_attempts,
        vram_peak_mib=row.vram_peak_mib,
        busy=row.busy,
        memory_busy=row.memory_busy,
        throttled_s=row.throttled_s,
        models=tuple(sorted(models)),
    )


def read_attempt(db: sa.Connection, attempt_id: AttemptId) -> Attempt:
    """Raises NotFound."""
    row = db.execute(sa.select(_ATTEMPT).where(_ATTEMPT.c.id == attempt_id)).mappings().first()
    if row is None:
        raise NotFound(f"there is no attempt {attempt_id}")
    return rows.attempt(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An accepted attempt."""

    step_id: StepId
    runtime_s: float
    completion_s: float
    """From the task's first start to delivery: what other attempts took before it counts too."""
    load_s: float
    finished_at: float
    node_id: str
    device_id: str
    decision: Decision | None


def newest_runtimes_s(db: sa.Connection, job_id: JobId, *, limit: int = 2_000) -> list[float]:
    """Of a job's accepted attempts, newest first."""
    return list(db.scalars(_newest_done(job_id, _ATTEMPT.c.runtime_s).limit(limit)))


def _newest_done(job_id: JobId, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    is_told = _ATTEMPT.c.runtime_s.is_not(None)
    query = sa.select(*columns).where(_ATTEMPT.c.job_id == job_id, _ATTEMPT.c.state == "succeeded", is_told)
    return query.order_by(_ATTEMPT.c.finished_at.desc())


def newest_done(db: sa.Connection, job_id: JobId, *, limit: int = 2_000) -> list[Done]:
    """Of a job's accepted attempts, newest first."""
    first = _ATTEMPT.alias("first")
    begun = (
        sa.select(sa.func.min(first.c.started_at))
        .where(first.c.task_id == _ATTEMPT.c.task_id, first.c.generation == _ATTEMPT.c.generation)
        .scalar_subquery()
    )
    query = _newest_done(
        job_id,
        _ATTEMPT.c.step_id,
        _ATTEMPT.c.runtime_s,
        _ATTEMPT.c.load_s,
        _ATTEMPT.c.finished_at,
        _ATTEMPT.c.node_id,
        _ATTEMPT.c.device_id,
        _ATTEMPT.c.decision,
        sa.func.coalesce(_ATTEMPT.c.started_at - begun, 0.0).label("before_s"),
    ).limit(limit)
    return [
        Done(
            step_id=StepId(row.step_id),
            runtime_s=row.runtime_s,
            completion_s=row.runtime_s + max(row.before_s, 0.0),
            load_s=min(row.load_s or 0.0, row.runtime_s),
            finished_at=row.finished_at or 0.0,
            node_id=row.node_id,
            device_id=row.device_id,
            decision=rows.from_json(Decision, row.decision) if row.decision else None,
        )
        for row in db.execute(query)
    ]


def submitted_since(db: sa.Connection, since: float) -> list[JobId]:
    """In the order in which they came."""
    query = sa.select(_JOB.c.id).where(_JOB.c.submitted_at >= since).order_by(_JOB.c.submitted_at)
    return [JobId(row.id) for row in db.execute(query)]


def first_starts(db: sa.Connection, job_id: JobId) -> dict[StepId, float]:
    """When each step's first attempt was assigned."""
    query = (
        sa.select(_ATTEMPT.c.step_id, sa.func.min(_ATTEMPT.c.assigned_at).label("at"))
        .where(_ATTEMPT.c.job_id == job_id)
        .group_by(_ATTEMPT.c.step_id)
    )
    return {StepId(row.step_id): row.at for row in db.execute(query)}


def newest_jobs(db: sa.Connection, *, limit: int) -> list[JobId]:
    """Those that changed last."""
    query = sa.select(_JOB.c.id).order_by(_JOB.c.changed_at.desc()).limit(limit)
    return [JobId(row.id) for row in db.execute(query)]


# --- steer --------------------------------------------------------------------------------------------


_COLUMNS = frozenset(
    {"name", "priority", "is_paused", "max_running", "pool", "max_retries", "max_failed_tasks", "project"}
)
"""Of what may change: what has a column. The rest lives in the settings' JSON."""


def change(db: sa.Connection, job_id: JobId, values: Mapping[str, Any], *, actor: str, text: str) -> None:
    """Set a job's name and fields of its JobSettings; running tasks go on as they are. Raises NotFound."""
    moves.lock_jobs(db, [job_id])
    row = _job_row(db, job_id)
    columns = {name: value for name, value in values.items() if name in _COLUMNS}
    if "replace_existing" in values:
        columns["replaces_existing"] = values["replace_existing"]
    changed = {**row["settings"], **{n: v for n, v in values.items() if n != "name"}}
    settings: JobSettings = rows.from_json(JobSettings, changed)
    columns["settings"] = rows.to_json(settings)
    db.execute(sa.update(_JOB).where(_JOB.c.id == job_id).values(**columns, changed_at=db_now()))
    steps = read_job(db, job_id).steps
    if "pool" in values:
        for step in steps:
            demand = {**rows.to_json(step.demand), "pool": values["pool"]}
            db.execute(sa.update(_STEP).where(_STEP.c.id == step.id).values(demand=demand))
    if "order" in values:
        for step in steps:
            rank = _rank_sql(order_of(settings), "idx")
            query = sa.text(f"UPDATE task SET rank = {rank} WHERE step_id = :step AND :count > 0")
            db.execute(
                query.bindparams(sa.bindparam("count", type_=sa.Integer)),
                {"count": step.counts.total, "step": step.id},
            )
    if "timeout_s" in values or "tag" in values:
        submission, parameters = read_source(db, job_id)
        if "tag" in values:
            profile = classify(values["tag"], submission.hints, submission.kind)
            db.execute(sa.update(_STEP).where(_STEP.c.job_id == job_id).values(profile=rows.to_json(profile)))
        _write_source(db, job_id, replace(submission, settings=settings), parameters)
    events.happened(db, EventKind.JOB_CHANGED, text, actor=actor, job_id=job_id)
    settle_jobs(db, [job_id])


def _write_source(
    db: sa.Connection, job_id: JobId, submission: Submission, parameters: Mapping[str, tuple[str, str]]
) -> None:
    db.execute(
        sa.update(_SOURCE)
        .where(_SOURCE.c.job_id == job_id)
        .values(
            submission=rows.to_json(submission),
            parameters={name: list(value) for name, value in parameters.items()},
        )
    )
    db.execute(sa.update(_JOB).where(_JOB.c.id == job_id).values(edition=_JOB.c.edition + 1))


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
    _write_source(db, job_id, submission, plan.parameters)
    db.execute(sa.update(_JOB).where(_JOB.c.id == job_id).values(finished_at=None))
    events.happened(db, EventKind.JOB_CHANGED, text, actor=actor, job_id=job_id)
    settle_jobs(db, [job_id])
    return made


def cancel(
    db: sa.Connection, job_id: JobId, *, actor: str, reason: str, task_ids: Collection[int] | None = None
) -> int:
    """Cancel everything that has not ended (of `task_ids`, when given); returns how many tasks.

    Live attempts are told to stop; their tasks are cancelled when the node says that nothing is left.
    """
    moves.lock_jobs(db, [job_id])
    job = read_job(db, job_id)
    moved = _cancel_tasks(db, job, reason=reason, task_ids=task_ids)
    if moved:
        text = f"{plural(moved, 'task')} cancelled"
        events.happened(db, EventKind.JOB_CHANGED, text, actor=actor, job_id=job_id)
    settle_jobs(db, [job_id])
    return moved


def _cancel_tasks(db: sa.Connection, job: Job, *, reason: str, task_ids: Collection[int] | None) -> int:
    moved = 0
    for step in job.steps:
        for old, new in _CANCEL.items():
            if getattr(step.counts, old.value):
                moved += moves.move_all(db, step.id, old, new, values={"reason": reason}, task_ids=task_ids)
    query = (
        sa.update(_ATTEMPT)
        .where(
            _ATTEMPT.c.job_id == job.id,
            _ATTEMPT.c.state.in_(["assigned", "running"]),
            _ATTEMPT.c.task_id.in_(
                sa.select(_TASK.c.id).where(
                    _TASK.c.job_id == job.id, _TASK.c.state.in_(["cancelling", "cancelled"])
                )
            ),
        )
        .values(state="cancelling")
        .returning(_ATTEMPT.c.node_id, _ATTEMPT.c.id)
    )
    stops: dict[str, list[AttemptId]] = {}
    for row in db.execute(query):
        stops.setdefault(row.node_id, []).append(AttemptId(row.id))
    for node_id, attempt_ids in sorted(stops.items()):
        outbox.owe_control(db, node_id, Stop(attempt_ids=tuple(attempt_ids), reason=reason))
    return moved


def retry(
    db: sa.Connection,
    job_id: JobId,
    *,
    actor: str,
    states: Collection[TaskState],
    task_ids: Collection[int] | None = None,
) -> int:
    """Let ended (or held) tasks in `states` run again with a fresh budget; returns how many.

    A done task gets a new generation: its files will be moved aside and replaced.
    """
    moves.lock_jobs(db, [job_id])
    job = read_job(db, job_id)
    moved = 0
    for step in job.steps:
        for old in states:
            if not getattr(step.counts, old.value):
                continue
            values: dict[str, Any] = {
                "failures": 0, "faults": 0, "starts": 0, "not_before": 0.0, "avoid_node": None, "reason": ""
            }  # fmt: skip
            if old is TaskState.DONE:
                values["generation"] = _TASK.c.generation + 1
            new = TaskState.READY
            if old is TaskState.CANCELLED and (step.by_frame or not _is_open(job, step)):
                new = TaskState.WAITING
            if old is TaskState.HELD:
                _release_held(db, step.id, task_ids)
            moved += moves.move_all(db, step.id, old, new, values=values, task_ids=task_ids)
    if moved:
        db.execute(sa.update(_JOB).where(_JOB.c.id == job_id).values(finished_at=None))
        what = "/".join(str(s) for s in states)
        events.happened(
            db, EventKind.TASK_REQUEUED, f"{moved} {what} tasks again", actor=actor, job_id=job_id
        )
    _reopen_dependents(db, job_id)
    settle_jobs(db, [job_id])
    return moved


def _reopen_dependents(db: sa.Connection, job_id: JobId) -> None:
    """Steps that were given up because a step of this job failed wait for it again."""
    job = read_job(db, job_id)
    for step in job.steps:
        if step.depends_on and not _is_open(job, step) and step.counts.cancelled:
            ids = sa.select(_TASK.c.id).where(
                _TASK.c.step_id == step.id, _TASK.c.state == "cancelled", _TASK.c.reason.like("step %")
            )
            given_up: list[int] = list(db.scalars(ids))
            moves.move_all(
                db, step.id, TaskState.CANCELLED, TaskState.WAITING, values={"reason": ""}, task_ids=given_up
            )


def _is_open(job: Job, step: Step) -> bool:
    done = {s.name for s in job.steps if s.counts.done == s.counts.total}
    return all(name in done for name in step.depends_on)


def _release_held(db: sa.Connection, step_id: StepId, task_ids: Collection[int] | None) -> None:
    """A person decided that the old attempt is dead: it is lost, and told to stop should it come back."""
    query = sa.select(_TASK.c.attempt_id).where(_TASK.c.step_id == step_id, _TASK.c.state == "held")
    if task_ids is not None:
        query = query.where(among(db, _TASK.c.id, task_ids))
    db.execute(
        sa.update(_ATTEMPT)
        .where(_ATTEMPT.c.id.in_(query), _ATTEMPT.c.state.in_(rows.LIVE))
        .values(state="lost", finished_at=db_now(), reason="given up by a person")
    )


# --- where a job stands -------------------------------------------------------------------------------


def settle_jobs(db: sa.Connection, job_ids: Collection[JobId]) -> None:
    """After tasks changed: open steps, give up steps, end jobs, and go on with jobs that waited for them.

    The caller holds `lock_jobs` for `job_ids`.
    """
    for job_id in sorted(job_ids):
        standing = _standing(db, job_id)
        outcome = advance(standing.facts)
        if outcome.stop_all:
            _cancel_tasks(db, read_job(db, job_id), reason=outcome.reason, task_ids=None)
            outcome = _after_changes(db, job_id, outcome)
        elif _apply(db, outcome):
            outcome = _after_changes(db, job_id, outcome)
        _write_state(db, job_id, standing, outcome)
        if standing.awaited_by_frame:
            moves.lock_jobs(db, standing.awaited_by_frame)
            settle_jobs(db, standing.awaited_by_frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """What there is to know of a job after each of its tasks: little, for it is read that often."""

    state: JobState
    reason: str
    facts: JobFacts
    awaited_by_frame: list[JobId]
    """Jobs that wait for single frames of this one."""


def _standing(db: sa.Connection, job_id: JobId) -> _Standing:
    """Raises NotFound."""
    found = db.execute(_STANDING, {"job_id": job_id}).mappings().all()
    if not found:
        raise NotFound(f"there is no job {job_id}")
    head = found[0]
    unmet, awaited = [], []
    for need in db.execute(_NEEDED, {"job_id": job_id}).mappings():
        if need["job_id"] != job_id:
            awaited.append(JobId(need["job_id"]))
        elif not need["by_frame"] and need["state"] != JobState.DONE:
            unmet.append(need["needs_job_id"])
    return _Standing(
        state=JobState(head["state"]),
        reason=head["reason"],
        facts=JobFacts(
            is_paused=head["is_paused"],
            max_failed_tasks=head["max_failed_tasks"],
            unmet_jobs=tuple(unmet),
            steps=tuple(
                StepFacts(
                    id=StepId(row["id"]),
                    name=row["name"],
                    depends_on=tuple(row["depends_on"]),
                    by_frame=tuple(row["by_frame"]),
                    counts=rows.counts(row),
                )
                for row in found
            ),
        ),
        awaited_by_frame=sorted(awaited),
    )


_STANDING = (
    sa.select(
        _JOB.c.state,
        _JOB.c.reason,
        _JOB.c.is_paused,
        _JOB.c.max_failed_tasks,
        _STEP.c.id,
        _STEP.c.name,
        _STEP.c.depends_on,
        _STEP.c.by_frame,
        *(_STEP.c[f"n_{state}"] for state in TaskState),
    )
    .join(_STEP, _STEP.c.job_id == _JOB.c.id)
    .where(_JOB.c.id == sa.bindparam("job_id"))
    .order_by(_STEP.c.position)
)
_NEEDED = (
    sa.select(_NEEDS.c.job_id, _NEEDS.c.needs_job_id, _NEEDS.c.by_frame, _JOB.c.state)
    .join(_JOB, _JOB.c.id == _NEEDS.c.needs_job_id)
    .where(
        sa.or_(
            _NEEDS.c.job_id == sa.bindparam("job_id"),
            sa.and_(_NEEDS.c.needs_job_id == sa.bindparam("job_id"), _NEEDS.c.by_frame.is_(True)),
        )
    )
    .order_by(_NEEDS.c.needs_job_id)
)
"""Of a job: what it needs, and who waits for its frames."""


def _apply(db: sa.Connection, outcome: Advance) -> bool:
    """Move waiting tasks as the outcome says; whether any moved."""
    moved = 0
    for step_id in outcome.unlock:
        moved += moves.move_all(db, step_id, TaskState.WAITING, TaskState.READY)
    for step_id, why in outcome.give_up:
        moved += moves.move_all(db, step_id, TaskState.WAITING, TaskState.CANCELLED, values={"reason": why})
    for step_id in outcome.by_frame:
        moved += _open_frames(db, step_id)
    return moved > 0


def _open_frames(db: sa.Connection, step_id: StepId) -> int:
    """Open waiting tasks whose needed tasks are all done, give up those whose needed one never will be."""
    needed, before = _TASK.alias("needed"), _STEP.alias("before")
    pairs = _TASK_NEED.join(needed, needed.c.id == _TASK_NEED.c.needs_task_id)
    mine = _TASK_NEED.c.task_id == _TASK.c.id
    waiting = sa.select(_TASK.c.id).where(_TASK.c.step_id == step_id, _TASK.c.state == "waiting")
    unmet = sa.select(sa.literal(1)).select_from(pairs).where(mine, needed.c.state != "done")
    ready: list[int] = list(db.scalars(waiting.where(~unmet.exists())))
    is_over = before.c.n_done + before.c.n_failed + before.c.n_cancelled == sum(
        (before.c[f"n_{state}"] for state in TaskState), sa.literal(0)
    )
    broken = (
        sa.select(sa.literal(1))
        .select_from(pairs.join(before, before.c.id == needed.c.step_id))
        .where(
            mine,
            needed.c.job_id == _TASK.c.job_id,  # another job may be tried again: its frames are waited for
            needed.c.state.in_(["failed", "cancelled"]),
            is_over,
        )
    )
    lost: list[int] = list(db.scalars(waiting.where(broken.exists())))
    moved = 0
    if ready:
        moved += moves.move_all(db, step_id, TaskState.WAITING, TaskState.READY, task_ids=ready)
    if lost:
        why = {"reason": "step before it did not finish the same frame"}
        moved += moves.move_all(
            db, step_id, TaskState.WAITING, TaskState.CANCELLED, values=why, task_ids=lost
        )
    return moved


def _after_changes(db: sa.Connection, job_id: JobId, before: Advance) -> Advance:
    """Giving a step up may end others in turn: go on until nothing moves."""
    while True:
        outcome = advance(_standing(db, job_id).facts)
        if not _apply(db, outcome):
            reason = before.reason if before.stop_all else outcome.reason
            return Advance(state=outcome.state, reason=reason)


_ENDED_EVENTS = {
    JobState.DONE: EventKind.JOB_DONE,
    JobState.FAILED: EventKind.JOB_FAILED,
    JobState.CANCELLED: EventKind.JOB_CANCELLED,
}


def _write_state(db: sa.Connection, job_id: JobId, before: _Standing, outcome: Advance) -> None:
    if before.state is outcome.state and before.reason == outcome.reason:
        db.execute(_TOUCH, {"job_id": job_id})
        return
    values: dict[str, Any] = {"changed_at": db_now(), "reason": outcome.reason}
    if before.state is not outcome.state:
        values["state"] = str(outcome.state)
        values["finished_at"] = db_now() if outcome.state in ENDED_JOBS else None
    db.execute(sa.update(_JOB).where(_JOB.c.id == job_id).values(**values))
    if before.state is outcome.state or outcome.state not in ENDED_JOBS:
        return
    job = read_job(db, job_id)
    events.happened(db, _ENDED_EVENTS[outcome.state], outcome.reason or job.name, job_id=job_id)
    _owe_tidying(db, job)
    if outcome.state is JobState.DONE:
        dependents: list[int] = list(
            db.scalars(sa.select(_NEEDS.c.job_id).where(_NEEDS.c.needs_job_id == job_id))
        )
        moves.lock_jobs(db, dependents)
        settle_jobs(db, [JobId(i) for i in dependents])


_TOUCH = sa.update(_JOB).where(_JOB.c.id == sa.bindparam("job_id")).values(changed_at=db_now())


def _owe_tidying(db: sa.Connection, job: Job) -> None:
    """A node that worked for the job removes its private directories; that also fences late attempts."""
    if not job.output_directories:
        return
    node_id = db.scalar(
        sa.select(_ATTEMPT.c.node_id)
        .where(_ATTEMPT.c.job_id == job.id)
        .order_by(_ATTEMPT.c.assigned_at.desc())
        .limit(1)
    )
    if node_id is not None:
        outbox.owe_control(db, node_id, TidyJob(job_uid=job.uid, directories=job.output_directories))
