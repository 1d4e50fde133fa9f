"""Counts that the whole farm shares, such as licences."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa

from farm.control.desk.callers import Caller, audit_row, check_admin
from farm.control.requests import LimitRequest
from farm.control.views import LimitHolder, LimitView, Page
from farm.errors import Rejected, UserError
from farm.flow.limits import Ledger, unknown_limits
from farm.flow.submit import JobPlan
from farm.model.limits import MAX_LIMIT, Limit, check_limit_name, limits_needed
from farm.settings import Settings
from farm.store import limits
from farm.store.engine import reading, writing


def check_limits(db: sa.Connection, plan: JobPlan, settings: Settings) -> None:
    """A misspelt limit must not silently hold nobody up. Raises UserError."""
    amounts = [step.demand.amounts for step in plan.steps if step.demand.amounts]
    if any(map(limits_needed, amounts)):
        known = settings.declared_limits | limits.read(db)
        for unknown in unknown_limits(amounts, known):
            raise UserError(limits.no_limit(unknown, known))


class LimitDesk:
    """Thread-safe."""

    def __init__(self, engine: sa.Engine, *, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._wake = wake

    def list_limits(self) -> Page[LimitView]:
        """Every limit, what is left of it, and who holds the rest."""
        with reading(self._engine) as db:
            ledger = limits.ledger(db)
            waiting = limits.waiting(db)
        return Page(items=tuple(_limit_view(limit, ledger, waiting) for limit in ledger.limits.values()))

    def set_limit(self, name: str, request: LimitRequest, by: Caller) -> LimitView:
        """Make a limit, or change it. Raises Forbidden, UserError, Rejected."""
        check_admin(by, "set limits")
        name = check_limit_name(name)
        if not 0 <= request.amount <= MAX_LIMIT:
            raise UserError(f"the amount is {request.amount}; it must be 0 to {MAX_LIMIT:,}")
        with writing(self._engine) as db:
            before = limits.read(db).get(name)
            _check_not_from_settings(name, before)
            limits.put(db, Limit(name=name, amount=request.amount, per=request.per))
            audit_row(
                db,
                by,
                f"limit {name}",
                before=None if before is None else {"amount": before.amount, "per": before.per},
                after={"amount": request.amount, "per": request.per},
            )
            ledger = limits.ledger(db)
            view = _limit_view(ledger.limits[name], ledger, limits.waiting(db))
        self._wake()
        return view

    def remove_limit(self, name: str, by: Caller) -> None:
        """What asked for it is not held up by it any more. Raises Forbidden, NotFound, Rejected."""
        check_admin(by, "remove limits")
        name = check_limit_name(name)
        with writing(self._engine) as db:
            before = limits.read(db).get(name)
            _check_not_from_settings(name, before)
            limits.remove(db, name)
            assert before is not None
            told = {"amount": before.amount, "per": before.per}
            audit_row(db, by, f"limit {name}", before=told, status=204)
        self._wake()


def _check_not_from_settings(name: str, known: Limit | None) -> None:
    if known is not None and known.is_from_settings:
        raise Rejected(
            f"limit {name} is named in the scheduler's settings: change `limits` there, "
            "and restart the scheduler"
        )


def _limit_view(limit: Limit, ledger: Ledger, waiting: Mapping[str, int]) -> LimitView:
    return LimitView(
        name=limit.name,
        amount=limit.amount,
        per=limit.per,
        used=ledger.used(limit.name),
        free=ledger.free(limit.name),
        waiting=waiting.get(limit.name, 0),
        is_from_settings=limit.is_from_settings,
        holders=tuple(
            LimitHolder(job_id=job_id, tasks=tasks) for job_id, tasks in ledger.holders(limit.name)[:100]
        ),
    )
