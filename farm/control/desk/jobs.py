"""Jobs: listed, shown, changed, cancelled and tried again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any, Final

import sqlalchemy as sa

from farm.control.desk import matching
from farm.control.desk.callers import Caller, audit_row, check_word, own_job
from farm.control.desk.choice import frame_indexes, ids_of, shown_choice
from farm.control.desk.job_views import JobViews
from farm.control.desk.limits import check_limits
from farm.control.matching_views import ProfileView
from farm.control.requests import JobChange, RetryChoice, TaskChoice
from farm.control.spaces import Spaces
from farm.control.views import ChangedView, JobView, Page, next_after
from farm.errors import UserError
from farm.flow.hooks import check_hooks
from farm.flow.order import parse_order
from farm.flow.submit import plan_job
from farm.model.attempts import JobUsage
from farm.model.ids import JobId
from farm.model.stalls import MoveCosts
from farm.model.states import JobState, TaskState
from farm.model.work import Job
from farm.settings import Settings
from farm.store import attempts, jobs, limits, removing, rows, stalling, steering
from farm.store.engine import reading, writing

_LONGEST_TIMEOUT_S: Final = 365 * 86400.0
_RETRIED: Final = frozenset({TaskState.FAILED, TaskState.CANCELLED, TaskState.DONE, TaskState.HELD})

_LISTS: Final = frozenset({"limits", "hooks"})


class JobDesk:
    """Thread-safe."""

    def __init__(
        self,
        engine: sa.Engine,
        settings: Settings,
        spaces: Spaces,
        views: JobViews,
        *,
        wake: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._spaces = spaces
        self._views = views
        self._wake = wake

    def list_jobs(
        self,
        *,
        states: Collection[JobState],
        user: str | None,
        name: str | None,
        before: int | None,
        limit: int,
    ) -> Page[JobView]:
        with reading(self._engine) as db:
            found = jobs.list_jobs(db, states=states, user=user, name=name, before=before, limit=limit)
        return Page(
            items=tuple(self._views.of_all(found)),
            next=next_after(found, limit),
        )

    def read_job(self, job_id: JobId) -> JobView:
        """Raises NotFound."""
        with reading(self._engine) as db:
            job = jobs.read_job(db, job_id)
            moves = stalling.costs(db, job_id)
        return replace(self._views.of(job), moves=moves if moves != MoveCosts() else None)

    def job_usage(self, job_id: JobId) -> JobUsage:
        """Raises NotFound."""
        with reading(self._engine) as db:
            return attempts.usage(db, job_id)

    def job_profile(self, job_id: JobId) -> ProfileView:
        """What is known of what the job's steps demand, and how long they take where. Raises NotFound."""
        with reading(self._engine) as db:
            return matching.profile(db, job_id)

    def change_job(self, job_id: JobId, change: JobChange, by: Caller) -> JobView:
        """Raises NotFound, Forbidden, UserError."""
        values = _changes(change)
        check_hooks(change.hooks or (), self._settings.hooks)
        with writing(self._engine) as db:
            job = own_job(db, job_id, by)
            before = {"name": job.name, **{n: getattr(job.settings, n) for n in values if n != "name"}}
            values = {name: value for name, value in values.items() if before[name] != value}
            if values:
                if "limits" in values:
                    self._take_of_limits(db, job, values["limits"])
                steering.change(db, job_id, values, actor=by.user, text=_told(values))
                job = jobs.read_job(db, job_id)
            before = {name: before[name] for name in values}
            audit_row(db, by, f"job {job_id}", before=before, after=values)
        self._wake()
        return self._views.of(job)

    def _take_of_limits(self, db: sa.Connection, job: Job, taken: dict[str, int]) -> None:
        """Raises UserError."""
        submission, _ = jobs.read_source(db, job.id)
        plan = plan_job(replace(submission, settings=replace(job.settings, limits=taken)), uid=job.uid)
        check_limits(db, plan, self._settings)
        amounts = {step.name: step.demand.amounts for step in plan.steps}
        for step in job.steps:
            limits.need_otherwise(db, step, amounts[step.name])

    def cancel(self, job_id: JobId, choice: TaskChoice, by: Caller) -> ChangedView:
        """Raises NotFound, Forbidden, UserError."""

        def change(db: sa.Connection, task_ids: Collection[int] | None) -> int:
            return steering.cancel(
                db, job_id, actor=by.user, reason=f"cancelled by {by.user}", task_ids=task_ids
            )

        return self._steer(job_id, choice, by, change)

    def retry(self, job_id: JobId, choice: RetryChoice, by: Caller) -> ChangedView:
        """Raises NotFound, Forbidden, UserError."""
        wrong = [state for state in choice.states if state not in _RETRIED]
        if wrong or not choice.states:
            told = f"a {wrong[0]} task cannot be tried again" if wrong else "no states are given"
            raise UserError(f"{told}; states may hold: {', '.join(sorted(_RETRIED))}")

        def change(db: sa.Connection, task_ids: Collection[int] | None) -> int:
            return steering.retry(db, job_id, actor=by.user, states=choice.states, task_ids=task_ids)

        return self._steer(job_id, choice, by, change)

    def remove(self, job_id: JobId, by: Caller) -> None:
        """Forget an ended job; its files stay. Raises NotFound, Forbidden, Rejected."""
        with writing(self._engine) as db:
            job = own_job(db, job_id, by)
            removing.remove_job(db, job_id, actor=by.user)
            before = {"name": job.name, "user": job.settings.user, "state": job.state}
            audit_row(db, by, f"job {job_id}", before=before, status=204)

    def _steer(
        self,
        job_id: JobId,
        choice: TaskChoice,
        by: Caller,
        change: Callable[[sa.Connection, Collection[int] | None], int],
    ) -> ChangedView:
        indexes = frame_indexes(self._engine, self._spaces, job_id, choice)
        with writing(self._engine) as db:
            job = own_job(db, job_id, by)
            changed = change(db, ids_of(db, job, choice, indexes))
            after = jobs.read_job(db, job_id)
            audit_row(
                db,
                by,
                f"job {job_id}",
                before={"state": job.state, "tasks": rows.to_json(job.counts)},
                after={
                    "state": after.state,
                    "tasks": rows.to_json(after.counts),
                    "changed": changed,
                    "chosen": shown_choice(choice),
                },
            )
        self._wake()
        return ChangedView(changed=changed, job=self._views.of(after))


def _changes(change: JobChange) -> dict[str, Any]:
    """The columns that the request means. Raises UserError."""
    values: dict[str, Any] = {}
    if change.priority is not None:
        if not 0 <= change.priority <= 100:
            raise UserError(f"the priority is {change.priority}; it must be 0 to 100")
        values["priority"] = change.priority
    if change.max_running is not None:
        if not 0 <= change.max_running <= 1_000_000:
            raise UserError(
                f"max_running is {change.max_running}; it must be 1 to 1,000,000, or 0 for no limit"
            )
        values["max_running"] = change.max_running or None
    if change.pool is not None:
        for pool in change.pool.split(",") if change.pool else ():
            check_word("the pool's name", pool)
        values["pool"] = change.pool or None
    if change.name is not None:
        check_word("the job's name", change.name)
    if change.max_retries is not None and not 0 <= change.max_retries <= 100:
        raise UserError(f"max_retries is {change.max_retries}; it must be 0 to 100")
    if change.max_failed_tasks is not None and not 0 <= change.max_failed_tasks <= 1_000_000:
        raise UserError(f"max_failed_tasks is {change.max_failed_tasks}; it must be 0 to 1,000,000")
    if change.timeout_s is not None:
        if not 0 <= change.timeout_s <= _LONGEST_TIMEOUT_S:
            raise UserError(f"timeout_s is {change.timeout_s:g}; it must be 0 (none) to a year")
        values["timeout_s"] = change.timeout_s or None
    if change.order is not None:
        values["order"] = parse_order(change.order)
    if change.project:
        check_word("the project's name", change.project)
    for name in (
        "is_paused",
        "name",
        "project",
        "on_stall",
        "max_retries",
        "max_failed_tasks",
        "tag",
        "replace_existing",
        "limits",
        "hooks",
        "preempts",
    ):
        if getattr(change, name) is not None:
            values[name] = getattr(change, name)
    if not values:
        names = ", ".join(field.name for field in fields(JobChange))
        raise UserError(f"the request changes nothing: give one of {names}")
    return values


def _told(values: dict[str, Any]) -> str:
    """For the event: "paused, priority 80"."""
    told = []
    for name, value in values.items():
        if name == "is_paused":
            told.append("paused" if value else "resumed")
        elif name in _LISTS:
            told.append(f"{name} {_listed(value)}" if value else f"no {name}")
        elif value is None:
            told.append(
                {"max_running": "no running limit", "timeout_s": "no time limit"}.get(name, "any pool")
            )
        else:
            told.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(told)


def _listed(value: dict[str, int] | tuple[str, ...]) -> str:
    """ "arnold=2, houdini=1" """
    words = [f"{name}={amount}" for name, amount in value.items()] if isinstance(value, dict) else value
    return ", ".join(words)
