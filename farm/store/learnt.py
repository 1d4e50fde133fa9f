"""What the scheduler has learnt of run times, a row for each step, and the attempts that it learns from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import sqlalchemy as sa

from farm.flow.run_times import FarmState, StepState
from farm.model.ids import AttemptId, NodeId, StepId
from farm.model.states import AttemptState, Outcome
from farm.store.bulk import insert_many
from farm.store.engine import among_ids
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
    if not step_ids:
        return {}
    found = db.execute(_steps(db.dialect.name).learnt, {"ids": sorted(step_ids)})
    return {str(row.step_id): StepState(**row.state) for row in found}


def write(db: sa.Connection, farm: FarmState | None, steps: Mapping[str, StepState]) -> None:
    """Keep what changed. Steps that are gone meanwhile are left out."""
    if steps:
        about, ids = _steps(db.dialect.name), {"ids": sorted(map(int, steps))}
        there: set[int] = set(db.scalars(about.there, ids))
        db.execute(about.forget, ids)
        insert_many(
            db,
            _LEARNT,
            [{"step_id": int(n), "state": _as_dict(s)} for n, s in steps.items() if int(n) in there],
        )
    if farm is not None:
        kept = {"farm_id": _FARM_ID, "new_state": _as_dict(farm)}
        if not db.execute(_KEEP_FARM, kept).rowcount:
            db.execute(sa.insert(_FARM).values(id=_FARM_ID, state=kept["new_state"]))


def _as_dict(state: FarmState | StepState) -> dict[str, Any]:
    """Its fields as they are: what is in them is plain data, and need not be copied to be written."""
    return {each.name: getattr(state, each.name) for each in fields(state)}


_KEEP_FARM = (
    sa.update(_FARM).where(_FARM.c.id == sa.bindparam("farm_id")).values(state=sa.bindparam("new_state"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    """Statements about the steps `ids`."""

    learnt: sa.Select[Any]
    there: sa.Select[Any]
    forget: sa.Delete
    earlier: sa.Select[Any]


@cache
def _steps(dialect: str) -> _About:
    old_step, old_job = _STEP.alias("old_step"), _JOB.alias("old_job")
    size = sa.func.length(old_step.c.name)
    is_appended = sa.and_(
        old_step.c.job_id == _STEP.c.job_id,
        sa.func.substr(_STEP.c.name, 1, size + 1) == old_step.c.name + " ",
        sa.func.ltrim(sa.func.substr(_STEP.c.name, size + 2), "0123456789") == "",
    )
    is_same = sa.or_(old_step.c.name == _STEP.c.name, is_appended)
    earlier = (
        sa.select(_STEP.c.id, sa.func.max(old_step.c.id).label("earlier"))
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .join(old_job, sa.and_(old_job.c.name == _JOB.c.name, old_job.c.kind == _JOB.c.kind))
        .join(old_step, sa.and_(old_step.c.job_id == old_job.c.id, is_same))
        .where(among_ids(dialect, _STEP.c.id), old_step.c.id < _STEP.c.id, old_step.c.runtime_count > 0)
        .group_by(_STEP.c.id)
    )
    return _About(
        learnt=sa.select(_LEARNT).where(among_ids(dialect, _LEARNT.c.step_id)),
        there=sa.select(_STEP.c.id).where(among_ids(dialect, _STEP.c.id)),
        forget=sa.delete(_LEARNT).where(among_ids(dialect, _LEARNT.c.step_id)),
        earlier=earlier,
    )


def earlier(db: sa.Connection, step_ids: Collection[StepId]) -> dict[StepId, StepId]:
    """For each step the newest earlier one that has run: of the same name in a job of that name and kind, or
    in its own job the one whose frames it adds to ("render" for "render 2", so named by `farm.flow.extend`).
    """
    if not step_ids:
        return {}
    found = db.execute(_steps(db.dialect.name).earlier, {"ids": sorted(step_ids)})
    return {StepId(row.id): StepId(row.earlier) for row in found}


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


_TEACHES = [
    sa.literal_column(f"'{outcome}'", sa.Text())
    for outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.STALLED)
]


def ended(db: sa.Connection, attempt_ids: Collection[AttemptId]) -> list[Ended]:
    """Those of `attempt_ids` that have ended, in that order, and teach: done, or stopped at work."""
    found = db.execute(_teaching(db.dialect.name), {"ids": sorted(attempt_ids)})
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
        for row in found.mappings()
    ]


@cache
def _teaching(dialect: str) -> sa.Select[Any]:
    columns = (
        _ATTEMPT.c.step_id, _ATTEMPT.c.node_id, _ATTEMPT.c.device_id, _ATTEMPT.c.started_at,
        _ATTEMPT.c.runtime_s, _ATTEMPT.c.load_s, _ATTEMPT.c.state, _ATTEMPT.c.vram_peak_mib,
    )  # fmt: skip
    query = sa.select(*columns).where(
        among_ids(dialect, _ATTEMPT.c.id),
        _ATTEMPT.c.outcome.in_(_TEACHES),
        _ATTEMPT.c.runtime_s > 0,
        _ATTEMPT.c.started_at.is_not(None),
    )
    return query.order_by(_ATTEMPT.c.finished_at)
