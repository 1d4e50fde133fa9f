"""What the scheduler has learnt of run times, a row for each step, and the attempts that it learns from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from farm.flow.predict import FarmState, StepState
from farm.model.ids import AttemptId, NodeId, StepId
from farm.model.states import AttemptState, Outcome
from farm.store.tables import AttemptRow, JobRow, LearntFarmRow, LearntStepRow, StepRow

_FARM = LearntFarmRow.__table__  # type: ignore[attr-defined]
_LEARNT = LearntStepRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_JOB = JobRow.__table__  # type: ignore[attr-defined]

_FARM_ID = 1


def read_farm(db: sa.Connection) -> FarmState:
    """What was learnt of device models and nodes."""
    state = db.scalar(sa.select(_FARM.c.state).where(_FARM.c.id == _FARM_ID))
    return FarmState(**state) if state else FarmState()


def read_steps(db: sa.Connection, step_ids: Collection[StepId]) -> dict[str, StepState]:
    """What was learnt of these steps; those of which nothing was are left out."""
    query = sa.select(_LEARNT).where(_LEARNT.c.step_id.in_(list(step_ids)))
    return {str(row.step_id): StepState(**row.state) for row in db.execute(query)}


def write(db: sa.Connection, farm: FarmState | None, steps: Mapping[str, StepState]) -> None:
    """Keep what changed. Steps that are gone meanwhile are left out."""
    ids = [int(name) for name in steps]
    there: set[int] = set(db.scalars(sa.select(_STEP.c.id).where(_STEP.c.id.in_(ids)))) if ids else set()
    rows = [{"step_id": int(name), "state": asdict(s)} for name, s in steps.items() if int(name) in there]
    if rows:
        db.execute(sa.delete(_LEARNT).where(_LEARNT.c.step_id.in_([row["step_id"] for row in rows])))
        db.execute(sa.insert(_LEARNT), rows)
    if farm is not None:
        db.execute(sa.delete(_FARM).where(_FARM.c.id == _FARM_ID))
        db.execute(sa.insert(_FARM).values(id=_FARM_ID, state=asdict(farm)))


def earlier(db: sa.Connection, step_ids: Collection[StepId]) -> dict[StepId, StepId]:
    """For each step the newest earlier one that has run, of the same name in a job of that name and kind."""
    old_step, old_job = _STEP.alias("old_step"), _JOB.alias("old_job")
    query = (
        sa.select(_STEP.c.id, sa.func.max(old_step.c.id).label("earlier"))
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .join(old_job, sa.and_(old_job.c.name == _JOB.c.name, old_job.c.kind == _JOB.c.kind))
        .join(old_step, sa.and_(old_step.c.job_id == old_job.c.id, old_step.c.name == _STEP.c.name))
        .where(_STEP.c.id.in_(list(step_ids)), old_step.c.id < _STEP.c.id, old_step.c.runtime_count > 0)
        .group_by(_STEP.c.id)
    )
    return {StepId(row.id): StepId(row.earlier) for row in db.execute(query)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt that has ended, as far as it teaches."""

    step_id: StepId
    node_id: NodeId
    device_id: str
    started_at: float
    runtime_s: float
    load_s: float
    is_complete: bool
    """It was accepted; else it was stopped before its end."""
    vram_peak_mib: int | None


_TEACHES = (str(Outcome.SUCCEEDED), str(Outcome.CANCELLED), str(Outcome.STALLED))


def ended(db: sa.Connection, attempt_ids: Collection[AttemptId]) -> list[Ended]:
    """Those of `attempt_ids` that have ended, in that order, and teach: done, or stopped at work."""
    columns = (
        _ATTEMPT.c.step_id, _ATTEMPT.c.node_id, _ATTEMPT.c.device_id, _ATTEMPT.c.started_at,
        _ATTEMPT.c.runtime_s, _ATTEMPT.c.load_s, _ATTEMPT.c.state, _ATTEMPT.c.vram_peak_mib,
    )  # fmt: skip
    query = sa.select(*columns).where(
        _ATTEMPT.c.id.in_(list(attempt_ids)),
        _ATTEMPT.c.outcome.in_(_TEACHES),
        _ATTEMPT.c.runtime_s > 0,
        _ATTEMPT.c.started_at.is_not(None),
    )
    query = query.order_by(_ATTEMPT.c.finished_at)
    return [
        Ended(
            step_id=StepId(row["step_id"]),
            node_id=NodeId(row["node_id"]),
            device_id=row["device_id"],
            started_at=row["started_at"],
            runtime_s=row["runtime_s"],
            load_s=min(row["load_s"] or 0.0, row["runtime_s"]),
            is_complete=row["state"] == AttemptState.SUCCEEDED,
            vram_peak_mib=row["vram_peak_mib"],
        )
        for row in db.execute(query).mappings()
    ]
