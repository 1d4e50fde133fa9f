"""The farm's limits, and what live attempts hold of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from farm.errors import NotFound
from farm.flow.limits import Ledger
from farm.model.ids import JobId, NodeId, StepId
from farm.model.limits import Hold, Limit, LimitScope, limits_needed
from farm.model.machines import Demand
from farm.model.states import ENDED_JOBS
from farm.model.work import Step
from farm.store.rows import LIVE, known, to_json
from farm.store.tables import AttemptRow, JobRow, LimitRow, StepLimitRow, StepRow

_LIMIT = LimitRow.__table__  # type: ignore[attr-defined]
_NEEDS = StepLimitRow.__table__  # type: ignore[attr-defined]
_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_JOB = JobRow.__table__  # type: ignore[attr-defined]


def read(db: sa.Connection) -> dict[str, Limit]:
    """All limits by name, in order of name."""
    return {
        row.name: Limit(
            name=row.name,
            amount=row.amount,
            per=known(LimitScope, row.per, LimitScope.TASK),  # which takes the most
            is_from_settings=row.is_from_settings,
        )
        for row in db.execute(_BY_NAME)
    }


_BY_NAME = sa.select(_LIMIT).order_by(_LIMIT.c.name)


def put(db: sa.Connection, limit: Limit) -> None:
    """Make the limit, or make it what it is now."""
    values: dict[str, Any] = {
        "amount": limit.amount,
        "per": str(limit.per),
        "is_from_settings": limit.is_from_settings,
    }
    changed = db.execute(sa.update(_LIMIT).where(_LIMIT.c.name == limit.name).values(**values))
    if not changed.rowcount:
        db.execute(sa.insert(_LIMIT).values(name=limit.name, **values))


def remove(db: sa.Connection, name: str) -> None:
    """What asks for it is not held up by it any more. Raises NotFound."""
    if not db.execute(sa.delete(_LIMIT).where(_LIMIT.c.name == name)).rowcount:
        raise NotFound(no_limit(name, read(db)))


def no_limit(name: str, known: Iterable[str]) -> str:
    """What to say of a limit that does not exist."""
    told = ", ".join(known) or "none yet"
    return f"there is no limit {name!r}; limits are: {told}. An admin makes one: farm limits set {name} N"


def follow_settings(db: sa.Connection, declared: Mapping[str, Limit]) -> None:
    """Limits that the settings name are as the settings say; those that they named before are gone."""
    known = read(db)
    for name, limit in declared.items():
        if known.get(name) != limit:
            put(db, limit)
    for name, limit in known.items():
        if limit.is_from_settings and name not in declared:
            remove(db, name)


def needed_by(db: sa.Connection, step_id: StepId, demand: Demand) -> None:
    """Keep what each task of a new step takes of which limits."""
    needs = limits_needed(demand.amounts)
    if needs:
        rows = [{"step_id": step_id, "name": name, "amount": amount} for name, amount in needs]
        db.execute(sa.insert(_NEEDS), rows)


def need_otherwise(db: sa.Connection, step: Step, amounts: tuple[tuple[str, float], ...]) -> None:
    """Let each task of the step take so much from now on, those that run now too."""
    demand = replace(step.demand, amounts=amounts)
    db.execute(sa.update(_STEP).where(_STEP.c.id == step.id).values(demand=to_json(demand)))
    db.execute(sa.delete(_NEEDS).where(_NEEDS.c.step_id == step.id))
    needed_by(db, step.id, demand)


def ledger(db: sa.Connection) -> Ledger:
    """All limits, and what live attempts hold of them now.

    In the leader's transaction nobody else can start attempts: what it says is left stays left.
    """
    known = read(db)
    if not known:
        return Ledger({})
    holds = [
        Hold(
            limit=row.name,
            amount=row.amount,
            node_id=NodeId(row.node_id),
            job_id=JobId(row.job_id),
            tasks=row.tasks,
        )
        for row in db.execute(_HELD)
    ]
    return Ledger(known, holds)


_HELD = (
    sa.select(
        _NEEDS.c.name,
        _NEEDS.c.amount,
        _ATTEMPT.c.node_id,
        _ATTEMPT.c.job_id,
        sa.func.count().label("tasks"),
    )
    .join(_NEEDS, _NEEDS.c.step_id == _ATTEMPT.c.step_id)
    .where(_ATTEMPT.c.state.in_(LIVE))
    .group_by(_NEEDS.c.name, _NEEDS.c.amount, _ATTEMPT.c.node_id, _ATTEMPT.c.job_id)
)


def waiting(db: sa.Connection) -> dict[str, int]:
    """By limit: ready tasks of active jobs that need it."""
    query = (
        sa.select(_NEEDS.c.name, sa.func.sum(_STEP.c.n_ready).label("ready"))
        .join(_STEP, _STEP.c.id == _NEEDS.c.step_id)
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .where(_JOB.c.state == "active")
        .group_by(_NEEDS.c.name)
    )
    return {row.name: row.ready for row in db.execute(query)}


def running_by_user(db: sa.Connection) -> dict[str, int]:
    """Live attempts of each user who has any."""
    live = _STEP.c.n_assigned + _STEP.c.n_running + _STEP.c.n_cancelling
    query = (
        sa.select(_JOB.c.user, sa.func.sum(live).label("live"))
        .join(_JOB, _JOB.c.id == _STEP.c.job_id)
        .where(_JOB.c.state.not_in([str(state) for state in ENDED_JOBS]), live > 0)
        .group_by(_JOB.c.user)
    )
    return {row.user: row.live for row in db.execute(query)}
