"""The front desk: what people ask of the farm, answered for the API's routes.

Every method opens its own transaction. What changes something takes the caller, checks his rights, writes
the audit row in the same transaction, and wakes the scheduler afterwards.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa

from farm import __version__
from farm.control import matching, record, sharing
from farm.control.callers import Caller, audit_row, check_admin, check_word
from farm.control.environments import load_environments
from farm.control.matcher import weights_now
from farm.control.spaces import Spaces
from farm.control.views import (
    Append,
    AuditView,
    ChangedView,
    FarmView,
    FoundLine,
    HookView,
    JobChange,
    JobView,
    LimitHolder,
    LimitRequest,
    LimitView,
    LogPiece,
    LogView,
    MatchingView,
    NewTokenView,
    Page,
    PlannedStep,
    PlanView,
    ProfileView,
    RetryChoice,
    StalledView,
    TaskChoice,
    TokenRequest,
    TokenView,
    WhyLine,
    WhyView,
)
from farm.errors import Forbidden, NotFound, Rejected, UserError
from farm.failpoints import reach
from farm.flow import match
from farm.flow.by_frame import FrameNeed, by_frame
from farm.flow.choose import check_step, tasks_of_frames
from farm.flow.environments import with_environments
from farm.flow.extend import extended
from farm.flow.grep import matching_lines
from farm.flow.hooks import check_hooks
from farm.flow.keep import Kept
from farm.flow.limits import Ledger, unknown_limits
from farm.flow.match import Cause
from farm.flow.order import parse_order
from farm.flow.predict import UseState
from farm.flow.recording import Recording
from farm.flow.stats import eta_s, spread
from farm.flow.submit import JobPlan, TaskSpace, plan_job
from farm.flow.turn import ahead
from farm.model.attempts import Attempt, JobUsage
from farm.model.events import Event
from farm.model.frames import canonical, describe, parse_frames
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.limits import MAX_LIMIT, Limit, check_limit_name, limits_needed
from farm.model.machines import Node, NodeView
from farm.model.stalls import MoveCosts
from farm.model.states import (
    ENDED_JOBS,
    ENDED_TASKS,
    LIVE_ATTEMPTS,
    AttemptState,
    JobState,
    NodeState,
    TaskState,
)
from farm.model.work import Job, Step, Submission, Tag, Task
from farm.settings import Settings
from farm.store import (
    audit,
    events,
    jobs,
    leader,
    learnt,
    limits,
    logs,
    moves,
    nodes,
    ready,
    rows,
    stalling,
    tokens,
)
from farm.store.engine import db_now, reading, writing
from farm.store.tokens import TokenOwner
from farm.text import clean, duration, plural

_LOG = logging.getLogger(__name__)

MAX_PAGE: Final = 1_000
TOKEN_CACHE_S: Final = 2.0
"""How long a revoked token may still be believed by another process than the one that revoked it."""
_TOKENS_KEPT: Final = 1_000
_RUNTIMES_OLD_S: Final = 5.0
"""Run times of a job are read again at most this often: the live view asks twice a second."""
_RUNTIMES_KEPT: Final = 2_000
FAILURES_WINDOW_S: Final = 24 * 3600.0
"""Failures of a node are counted that happened within this time."""
_FAILURES_KEPT_S: Final = 5.0
_LATE_LOG_S: Final = 2.0
"""Output comes on another way than the report of an attempt's end, and may be this much later."""
_LONGEST_TIMEOUT_S: Final = 365 * 86400.0
_GREPPED_TASKS: Final = 100
_GREPPED_CHARS: Final = 8_000_000
"""Read by one request, in about a second; of one attempt, what is beyond is not looked at."""
_LINES_OF_A_TASK: Final = 1_000
_RETRIED: Final = frozenset({TaskState.FAILED, TaskState.CANCELLED, TaskState.DONE, TaskState.HELD})


class Desk:
    """Thread-safe. `nudge` wakes the scheduler, best effort: without it the next tick finds the work."""

    def __init__(
        self, engine: sa.Engine, settings: Settings, spaces: Spaces, *, nudge: Callable[[], None]
    ) -> None:
        """Raises UserError for a queue environment that cannot be read."""
        self._engine = engine
        self._settings = settings
        self._spaces = spaces
        self._environments = load_environments(settings.queue_environments)
        self._nudge = nudge
        self._lock = threading.Lock()
        self._owners: OrderedDict[str, tuple[TokenOwner, float]] = OrderedDict()
        self._runtimes: OrderedDict[JobId, _Runtimes] = OrderedDict()
        self._failures: dict[NodeId, int] = {}
        self._failures_at = float("-inf")

    # --- who asks -------------------------------------------------------------------------------------

    def owner(self, token: str) -> TokenOwner | None:
        """Whose token it is; None when unknown or revoked. Raises Unavailable."""
        key = tokens.digest(token)
        now = time.monotonic()
        with self._lock:
            known = self._owners.get(key)
        if known is not None and known[1] > now:
            return known[0]
        with reading(self._engine) as db:
            found = tokens.owner(db, token)
        with self._lock:
            self._owners.pop(key, None)
            if found is not None:
                self._owners[key] = (found, now + TOKEN_CACHE_S)
                while len(self._owners) > _TOKENS_KEPT:
                    self._owners.popitem(last=False)
        return found

    def list_tokens(self, by: Caller) -> Page[TokenView]:
        """Raises Forbidden."""
        check_admin(by, "see the tokens")
        with reading(self._engine) as db:
            found = tokens.listed(db)
        return Page(items=tuple(TokenView(name=t.name, user=t.user, role=t.role) for t in found))

    def make_token(self, request: TokenRequest, by: Caller) -> NewTokenView:
        """Raises Forbidden, UserError."""
        check_admin(by, "make tokens")
        check_word("the token's name", request.name)
        check_word("the user's name", request.user)
        shown = {"name": request.name, "user": request.user, "role": request.role}
        with writing(self._engine) as db:
            token = tokens.create(db, name=request.name, user=request.user, role=request.role)
            audit_row(db, by, f"token {request.name}", after=shown, status=201)
        return NewTokenView(token=token, **shown)

    def revoke_token(self, name: str, by: Caller) -> None:
        """Raises Forbidden, NotFound, Rejected."""
        check_admin(by, "revoke tokens")
        with writing(self._engine) as db:
            admins = [token.name for token in tokens.listed(db) if token.role == "admin"]
            if admins == [name]:
                raise Rejected(f"{name!r} is the last admin token: make another one first")
            before = next(
                ({"user": t.user, "role": t.role} for t in tokens.listed(db) if t.name == name), None
            )
            tokens.revoke(db, name)
            audit_row(db, by, f"token {name}", before=before, status=204)
        with self._lock:
            self._owners.clear()

    def read_audit(self, by: Caller, *, after: int, limit: int) -> Page[AuditView]:
        """Raises Forbidden."""
        check_admin(by, "read the audit")
        with reading(self._engine) as db:
            found = audit.read(db, after=after, limit=limit)
        items = tuple(
            AuditView(**{f.name: getattr(entry, f.name) for f in fields(AuditView)}) for entry in found
        )
        return Page(items=items, next=_next(items, limit))

    def refused(self, by: Caller, status: int, text: str) -> None:
        """Keep that a change was asked for and refused. Raises Unavailable."""
        with writing(self._engine) as db:
            audit_row(db, by, "", after={"refused": clean(text, limit=500, one_line=True)}, status=status)

    # --- jobs -----------------------------------------------------------------------------------------

    def submit(self, submission: Submission, by: Caller, *, key: str | None) -> tuple[JobView, bool]:
        """Store a job; returns it, and whether it is new (False: `key` was used for this very request).

        Raises UserError, Rejected (the key was used for another request), NotFound (depends_on), Unavailable.
        """
        submission = _with_user(submission, by)
        digest = _digest(submission)  # of what was asked for, before the farm adds its own
        submission = self._surrounded(submission)
        plan = self._plan(submission)
        self._check_limits(plan)
        check_hooks(submission.settings.hooks, self._settings.hooks)
        plan, frame_needs = self._by_frame(submission, plan)
        if key is not None:
            check_word("the idempotency key", key)
            key = f"{by.user}:{key}"  # one's keys are one's own: nobody can meet, or probe for, another's
        with writing(self._engine) as db:
            job_id, is_new = jobs.submit(
                db, submission, plan, actor=by.user, key=key, digest=digest, frame_needs=frame_needs
            )
            job = jobs.read_job(db, job_id)
            if is_new:
                after = {"name": job.name, "user": job.settings.user, "tasks": job.counts.total}
                audit_row(db, by, f"job {job_id}", after=after, status=201)
            reach("desk.submitting")
        reach("desk.submitted")
        if is_new:
            self._wake()
        return self._view(job), is_new

    def preview(self, submission: Submission, by: Caller) -> PlanView:
        """What `submit` would make of it. Raises as it does."""
        submission = self._surrounded(_with_user(submission, by))
        plan = self._plan(submission)
        self._check_limits(plan)
        check_hooks(submission.settings.hooks, self._settings.hooks)
        plan, _ = self._by_frame(submission, plan)
        with reading(self._engine) as db:
            for needed in submission.settings.depends_on:
                jobs.read_job(db, needed)
        return PlanView(
            name=plan.name,
            steps=tuple(
                PlannedStep(
                    name=step.name,
                    tasks=step.task_count,
                    frames=step.frames,
                    depends_on=step.depends_on,
                    isolation=step.isolation,
                    demand=step.demand,
                    profile=step.profile,
                )
                for step in plan.steps
            ),
            output_directories=plan.output_directories,
            warnings=plan.warnings,
        )

    def _surrounded(self, submission: Submission) -> Submission:
        """With the farm's own environments around it."""
        if not self._environments:
            return submission
        return replace(submission, template=with_environments(submission.template, self._environments))

    def _by_frame(self, submission: Submission, plan: JobPlan) -> tuple[JobPlan, list[FrameNeed]]:
        """Raises UserError, NotFound."""
        if not submission.settings.frame_by_frame:
            return plan, []
        others = {}
        for job_id in submission.settings.depends_on:
            with reading(self._engine) as db:
                job = jobs.read_job(db, job_id)
            others[job_id] = (job, self._spaces.of(job_id, edition=job.edition))
        space = TaskSpace(submission.template, plan.parameters, submission.outputs)
        return by_frame(plan, space, others)

    def _plan(self, submission: Submission) -> JobPlan:
        plan = plan_job(submission, uid=str(uuid.uuid4()))
        count = sum(step.task_count for step in plan.steps)
        if count > self._settings.max_tasks_per_job:
            raise UserError(
                f"the job holds {count:,} tasks; this farm takes at most "
                f"{self._settings.max_tasks_per_job:,} (max_tasks_per_job): use chunks of frames, "
                "or several jobs"
            )
        return plan

    def _check_limits(self, plan: JobPlan) -> None:
        """A misspelt limit must not silently hold nobody up. Raises UserError."""
        amounts = [step.demand.amounts for step in plan.steps if step.demand.amounts]
        if not any(map(limits_needed, amounts)):
            return
        with reading(self._engine) as db:
            known = self._settings.declared_limits | limits.read(db)
        unknown = unknown_limits(amounts, known)
        if unknown:
            raise UserError(limits.no_limit(unknown[0], known))

    # --- limits ---------------------------------------------------------------------------------------

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
            self._check_not_from_settings(name, before)
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
            self._check_not_from_settings(name, before)
            limits.remove(db, name)
            assert before is not None
            told = {"amount": before.amount, "per": before.per}
            audit_row(db, by, f"limit {name}", before=told, status=204)
        self._wake()

    def _check_not_from_settings(self, name: str, known: Limit | None) -> None:
        if known is not None and known.is_from_settings:
            raise Rejected(
                f"limit {name} is named in the scheduler's settings: change `limits` there, "
                "and restart the scheduler"
            )

    def list_hooks(self) -> Page[HookView]:
        """What may be asked for by name; where they lead is told to nobody."""
        return Page(
            items=tuple(
                HookView(name=name, kind=hook.kind, on=hook.on, every_job=hook.every_job)
                for name, hook in sorted(self._settings.hooks.items())
            )
        )

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
            items=tuple(self._views(found)),
            next=found[-1].id if len(found) == limit else None,
        )

    def read_job(self, job_id: JobId) -> JobView:
        """Raises NotFound."""
        with reading(self._engine) as db:
            job = jobs.read_job(db, job_id)
            moves = stalling.costs(db, job_id)
        return replace(self._view(job), moves=moves if moves != MoveCosts() else None)

    def change_job(self, job_id: JobId, change: JobChange, by: Caller) -> JobView:
        """Raises NotFound, Forbidden, UserError."""
        values = _changes(change)
        with writing(self._engine) as db:
            job = self._own_job(db, job_id, by)
            before = {"name": job.name, **{n: getattr(job.settings, n) for n in values if n != "name"}}
            values = {name: value for name, value in values.items() if before[name] != value}
            if values:
                jobs.change(db, job_id, values, actor=by.user, text=_told(values))
                job = jobs.read_job(db, job_id)
            before = {name: before[name] for name in values}
            audit_row(db, by, f"job {job_id}", before=before, after=values)
        self._wake()
        return self._view(job)

    def read_submission(self, job_id: JobId, by: Caller) -> Submission:
        """What was submitted, to submit it again. Raises NotFound, Forbidden."""
        with reading(self._engine) as db:
            job = self._own_job(db, job_id, by)
            submission, _ = jobs.read_source(db, job_id)
        return replace(submission, name=job.name, settings=job.settings)

    def append(self, job_id: JobId, request: Append, by: Caller) -> ChangedView:
        """Add frames to a job. Raises NotFound, Forbidden, UserError, Rejected."""
        frames = parse_frames(request.frames)
        with writing(self._engine) as db:
            job = self._own_job(db, job_id, by)
            moves.lock_jobs(db, [job_id])
            submission, parameters = jobs.read_source(db, job_id)
            submission = replace(submission, settings=job.settings)
            more = extended(submission, parameters, frames, step=request.step)
            plan = self._plan(more.submission)
            text = f"frames {describe(frames)} appended"
            made = jobs.append(
                db,
                job_id,
                more.submission,
                plan,
                new_steps=more.clones,
                set_back=more.set_back,
                actor=by.user,
                text=text,
            )
            after = jobs.read_job(db, job_id)
            audit_row(
                db,
                by,
                f"job {job_id}",
                before={"state": job.state, "tasks": rows.to_json(job.counts)},
                after={
                    "state": after.state,
                    "appended": canonical(frames),
                    "tasks": rows.to_json(after.counts),
                },
            )
        self._wake()
        return ChangedView(changed=made, job=self._view(after))

    def cancel(self, job_id: JobId, choice: TaskChoice, by: Caller) -> ChangedView:
        """Raises NotFound, Forbidden, UserError."""

        def change(db: sa.Connection, task_ids: Collection[int] | None) -> int:
            return jobs.cancel(db, job_id, actor=by.user, reason=f"cancelled by {by.user}", task_ids=task_ids)

        return self._steer(job_id, choice, by, change)

    def retry(self, job_id: JobId, choice: RetryChoice, by: Caller) -> ChangedView:
        """Raises NotFound, Forbidden, UserError."""
        wrong = [state for state in choice.states if state not in _RETRIED]
        if wrong or not choice.states:
            told = f"a {wrong[0]} task cannot be tried again" if wrong else "no states are given"
            raise UserError(f"{told}; states may hold: {', '.join(sorted(_RETRIED))}")

        def change(db: sa.Connection, task_ids: Collection[int] | None) -> int:
            return jobs.retry(db, job_id, actor=by.user, states=choice.states, task_ids=task_ids)

        return self._steer(job_id, choice, by, change)

    def _steer(
        self,
        job_id: JobId,
        choice: TaskChoice,
        by: Caller,
        change: Callable[[sa.Connection, Collection[int] | None], int],
    ) -> ChangedView:
        indexes = self._indexes(job_id, choice)
        with writing(self._engine) as db:
            job = self._own_job(db, job_id, by)
            changed = change(db, _task_ids(db, job, choice, indexes))
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
                    "chosen": _shown_choice(choice),
                },
            )
        self._wake()
        return ChangedView(changed=changed, job=self._view(after))

    def _own_job(self, db: sa.Connection, job_id: JobId, by: Caller) -> Job:
        job = jobs.read_job(db, job_id)
        if not by.is_admin and job.settings.user != by.user:
            raise Forbidden(
                f"job {job_id} belongs to {job.settings.user or 'nobody'}; "
                f"{by.user} may steer only their own jobs"
            )
        return job

    # --- tasks and attempts ---------------------------------------------------------------------------

    def list_tasks(
        self, job_id: JobId, choice: TaskChoice, *, states: Collection[TaskState], after: int, limit: int
    ) -> Page[Task]:
        """Raises NotFound, UserError."""
        indexes = self._indexes(job_id, choice)
        with reading(self._engine) as db:
            job = jobs.read_job(db, job_id)
            task_ids = _task_ids(db, job, choice, indexes) if choice.frames is not None else None
            found = jobs.list_tasks(
                db, job_id, step=choice.step, states=states, task_ids=task_ids, after=after, limit=limit
            )
        return Page(items=tuple(self._labelled(found)), next=_next(found, limit))

    def read_task(self, task_id: TaskId) -> Task:
        """Raises NotFound."""
        with reading(self._engine) as db:
            task = jobs.read_task(db, task_id)
        return self._labelled([task])[0]

    def list_attempts(
        self,
        *,
        job_id: JobId | None = None,
        task_id: TaskId | None = None,
        states: Collection[AttemptState] = (),
        limit: int,
    ) -> Page[Attempt]:
        """Of a job or a task, newest first. Raises NotFound."""
        with reading(self._engine) as db:
            if job_id is not None:
                jobs.read_job(db, job_id)
            if task_id is not None:
                jobs.read_task(db, task_id)
            found = jobs.list_attempts(db, job_id=job_id, task_id=task_id, states=states, limit=limit)
        return Page(items=tuple(found))

    def read_attempt(self, attempt_id: AttemptId) -> Attempt:
        """Raises NotFound."""
        with reading(self._engine) as db:
            return jobs.read_attempt(db, attempt_id)

    def job_profile(self, job_id: JobId) -> ProfileView:
        """What is known of what the job's steps demand, and how long they take where. Raises NotFound."""
        with reading(self._engine) as db:
            return matching.profile(db, job_id)

    def matching(self) -> MatchingView:
        """How matching does, farm-wide."""
        with reading(self._engine) as db:
            view = matching.view(db, self._settings.policy)
            return replace(view, moves=stalling.costs(db))

    def stalled(self, *, with_silent: bool) -> Page[StalledView]:
        """Live attempts that are taken for stalled, the longest first."""
        with reading(self._engine) as db:
            found = stalling.stalled(db, with_silent=with_silent)
        return Page(
            items=tuple(
                StalledView(
                    job_name=each.job_name,
                    user=each.user,
                    step=each.step,
                    label=self._label(each.attempt.job_id, each.step, each.index),
                    stall=each.stall,
                    attempt=each.attempt,
                )
                for each in found
            )
        )

    def record(self, hours: float) -> Recording:
        """What the farm did. Raises UserError when that is too much."""
        with reading(self._engine) as db:
            return record.record(db, hours)

    def job_usage(self, job_id: JobId) -> JobUsage:
        """Raises NotFound."""
        with reading(self._engine) as db:
            return jobs.usage(db, job_id)

    def read_log(self, attempt_id: AttemptId, *, after: int, limit: int) -> LogView:
        """Raises NotFound."""
        with reading(self._engine) as db:
            attempt = jobs.read_attempt(db, attempt_id)
            found = logs.read(db, attempt_id, after=after, limit=limit)
            now = db.scalar(sa.select(db_now())) or 0.0
        is_over = attempt.state not in LIVE_ATTEMPTS and now - (attempt.finished_at or now) >= _LATE_LOG_S
        return LogView(
            chunks=tuple(LogPiece(sequence=chunk.sequence, text=chunk.text) for chunk in found),
            is_ended=is_over and len(found) < limit,
        )

    def grep(
        self,
        job_id: JobId,
        text: str,
        choice: TaskChoice,
        *,
        states: Collection[TaskState],
        after: int,
        limit: int,
    ) -> Page[FoundLine]:
        """Lines that hold `text` in the output of the tasks' newest attempts, in order of the task.

        A page may hold few lines or none although more follow: what one request reads is bounded. `next` is
        a task's id; all lines of the tasks up to there have been looked at. Raises NotFound, UserError.
        """
        if not text.strip():
            raise UserError("the text to look for is empty")
        indexes = self._indexes(job_id, choice)
        found: list[FoundLine] = []
        read_chars = 0
        with reading(self._engine) as db:
            job = jobs.read_job(db, job_id)
            task_ids = _task_ids(db, job, choice, indexes) if choice.frames is not None else None
            tried = jobs.newest_attempts(
                db,
                job_id,
                states=states,
                step=choice.step,
                task_ids=task_ids,
                after=after,
                limit=_GREPPED_TASKS,
            )
            for task, attempt_id in tried:
                log = logs.whole(db, attempt_id, most_chars=_GREPPED_CHARS)
                read_chars += len(log)
                label = self._label(task.job_id, task.step, task.index)
                found += (
                    FoundLine(
                        task_id=task.id,
                        step=task.step,
                        label=label,
                        attempt_id=attempt_id,
                        node_id=NodeId(task.node_id or ""),
                        number=number,
                        text=line,
                    )
                    for number, line in islice(matching_lines(log, text), _LINES_OF_A_TASK)
                )
                if len(found) >= limit or read_chars >= _GREPPED_CHARS:
                    return Page(items=tuple(found), next=task.id)
        return Page(items=tuple(found), next=tried[-1][0].id if len(tried) == _GREPPED_TASKS else None)

    def _labelled(self, found: Sequence[Task]) -> list[Task]:
        return [replace(task, label=self._label(task.job_id, task.step, task.index)) for task in found]

    def _label(self, job_id: JobId, step: str, index: int) -> str:
        try:
            space = self._spaces.of(job_id)
            if step not in space.steps:  # appended since
                with reading(self._engine) as db:
                    space = self._spaces.of(job_id, edition=jobs.read_job(db, job_id).edition)
            return space.label(step, index)
        except (UserError, KeyError, IndexError):
            # The library that reads templates has changed its mind about this one: the job stays visible.
            return f"#{index}"

    def _indexes(self, job_id: JobId, choice: TaskChoice) -> dict[str, list[int]] | None:
        """The chosen frames as step -> task indexes; None when no frames are given. Raises UserError."""
        if choice.step is None and choice.frames is None:
            return None
        with reading(self._engine) as db:
            edition = jobs.read_job(db, job_id).edition
        space = self._spaces.of(job_id, edition=edition)
        if choice.step is not None:
            check_step(space, choice.step)
        if choice.frames is None:
            return None
        with reading(self._engine) as db:
            return tasks_of_frames(
                space,
                parse_frames(choice.frames),
                step=choice.step,
                indexes=lambda step: jobs.indexes_of(db, job_id, step),
            )

    # --- why ------------------------------------------------------------------------------------------

    def why_job(self, job_id: JobId) -> WhyView:
        """Every reason why tasks of the job do not run. Raises NotFound."""
        with reading(self._engine) as db:
            job = jobs.read_job(db, job_id)
            return WhyView(lines=tuple(_why_job(db, job, _Matching(db, self._settings, tells_turns=True))))

    def why_task(self, task_id: TaskId) -> WhyView:
        """Why this task does not run, or what it does. Raises NotFound."""
        with reading(self._engine) as db:
            task = jobs.read_task(db, task_id)
            job = jobs.read_job(db, task.job_id)
            return WhyView(
                lines=tuple(_why_task(db, job, task, _Matching(db, self._settings, tells_turns=True)))
            )

    # --- farm, nodes, events --------------------------------------------------------------------------

    def farm(self, by: Caller) -> FarmView:
        with reading(self._engine) as db:
            now = db.scalar(sa.select(db_now())) or 0.0
            holder = leader.current(db)
            known = nodes.list_nodes(db)
            live = nodes.held(db)
            counts = jobs.open_counts(db)
        usable = [node for node in known if node.state is not NodeState.OFFLINE]
        return FarmView(
            version=__version__,
            now=now,
            policy=self._settings.policy,
            leader=holder,
            nodes=len(known),
            nodes_online=sum(node.state is NodeState.ONLINE for node in known),
            slots=sum(node.capabilities.slots for node in usable),
            slots_used=len(live),
            counts=counts,
            user=by.user,
            role=by.owner.role,
        )

    def list_nodes(self) -> Page[Node]:
        labels = self._running_labels()
        with reading(self._engine) as db:
            found = nodes.list_nodes(db, labels)
        return Page(items=tuple(map(self._with_failures, found)))

    def read_node(self, node_id: NodeId) -> Node:
        """Raises NotFound."""
        labels = self._running_labels()
        with reading(self._engine) as db:
            found = nodes.read_node(db, node_id, labels)
        return self._with_failures(found)

    def _with_failures(self, node: Node) -> Node:
        """Counted anew every few seconds at most: every live view asks for nodes once a second."""
        now = time.monotonic()
        if now - self._failures_at > _FAILURES_KEPT_S:
            with reading(self._engine) as db:
                self._failures = nodes.failures(db, window_s=FAILURES_WINDOW_S)
            self._failures_at = now
        return replace(node, fails=self._failures.get(node.id, 0))

    def _running_labels(self) -> dict[AttemptId, str]:
        with reading(self._engine) as db:
            live = nodes.held(db)
        return {held.attempt_id: self._label(held.job_id, held.step, held.index) for held in live}

    def drain(self, node_id: NodeId, by: Caller, *, is_drained: bool) -> Node:
        """Raises Forbidden, NotFound."""
        check_admin(by, "drain nodes")
        with writing(self._engine) as db:
            before = nodes.read_node(db, node_id)
            nodes.drain(db, node_id, is_drained=is_drained, actor=by.user)
            after = nodes.read_node(db, node_id)
            audit_row(db, by, f"node {node_id}", before={"state": before.state}, after={"state": after.state})
        self._wake()
        return self.read_node(node_id)

    def read_events(
        self, *, after: int, job_id: JobId | None, limit: int, newest: bool = False
    ) -> Page[Event]:
        with reading(self._engine) as db:
            found = events.read(db, after=after, job_id=job_id, limit=limit, newest=newest)
        return Page(items=tuple(found), next=None if newest else _next(found, limit))

    def last_event(self) -> int:
        with reading(self._engine) as db:
            return events.last_id(db)

    # --- views of jobs --------------------------------------------------------------------------------

    def _view(self, job: Job) -> JobView:
        return self._views([job])[0]

    def _views(self, found: Sequence[Job]) -> list[JobView]:
        with reading(self._engine) as db:
            matching = _Matching(db, self._settings)
            return [
                _job_view(job, self._runtimes_of(db, job), waiting=_waiting(db, job, matching))
                for job in found
            ]

    def _runtimes_of(self, db: sa.Connection, job: Job) -> _Runtimes:
        done = job.counts.done
        if not done:
            return _Runtimes()
        now = time.monotonic()
        with self._lock:
            known = self._runtimes.get(job.id)
        if known is not None and (known.done == done or now - known.read_at < _RUNTIMES_OLD_S):
            return known
        found = jobs.newest_done(db, job.id)
        read = _Runtimes(
            done=done,
            read_at=now,
            seconds=tuple(each.runtime_s for each in found),
            completions_s=tuple(each.completion_s for each in found),
        )
        with self._lock:
            self._runtimes[job.id] = read
            self._runtimes.move_to_end(job.id)
            while len(self._runtimes) > _RUNTIMES_KEPT:
                self._runtimes.popitem(last=False)
        return read

    def _wake(self) -> None:
        try:
            self._nudge()
        except Exception:  # noqa: BLE001 - whatever the broker does, the change is stored and the tick finds it
            _LOG.warning("the scheduler could not be woken; its next tick will do", exc_info=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtimes:
    """Of a job's accepted attempts, the newest 2,000 at most."""

    done: int = 0
    read_at: float = 0.0
    seconds: tuple[float, ...] = ()
    completions_s: tuple[float, ...] = ()
    """From each task's first start to delivery."""


class _Matching:
    """What matching looks at, read once and only when a job needs it."""

    def __init__(self, db: sa.Connection, settings: Settings, *, tells_turns: bool = False) -> None:
        """tells_turns: also whose work goes before whose, which takes a look at all groups for each."""
        self._db = db
        self._settings = settings
        self._tells_turns = tells_turns
        self._sharing: sharing.Sharing | None = None
        self._kept: Kept | None = None
        self._use: UseState | None = None
        self._nodes: list[NodeView] | None = None
        self._groups: dict[int, list[match.Group]] | None = None

    @property
    def nodes(self) -> list[NodeView]:
        if self._nodes is None:
            self._nodes = nodes.views(self._db, ready.uses(self._db))
        return self._nodes

    def groups(self, job_id: JobId) -> list[match.Group]:
        if self._groups is None:
            self._groups = {}
            for group in ready.groups(self._db):
                self._groups.setdefault(group.job_id, []).append(group)
        return self._groups.get(job_id, [])

    @property
    def sharing(self) -> sharing.Sharing:
        if self._sharing is None:
            found = sharing.read(self._db, self._settings, self._everything)
            self._sharing = sharing.with_preemption(self._db, self._settings, found)
        return self._sharing

    @property
    def kept(self) -> Kept:
        """What is kept free of the nodes, as in the next round of matching."""
        if self._kept is None:
            self._kept = self.sharing.round(self._everything, self.nodes)[2]
        return self._kept

    def seen_by(self, group: match.Group) -> Sequence[NodeView]:
        """The nodes as the group finds them: with what is kept, unless it is kept for this very group."""
        mine = {view.id: view for view in self.kept.held if self.kept.holds[view.id].step_id == group.step_id}
        return [mine.get(view.id, view) for view in self.kept.views]

    def ahead(self, group: match.Group) -> Sequence[Cause]:
        """Whose work goes before the group's."""
        if not self._tells_turns:
            return ()
        if self._use is None:
            kept = learnt.read_farm(self._db).use if self._settings.policy == "predictive" else {}
            self._use = UseState(**kept)
        now = float(self._db.scalar(sa.select(db_now())) or 0.0)
        return ahead(group, self._everything, weights_now(self._settings, now), self._use)

    @property
    def _everything(self) -> list[match.Group]:
        return [group for groups in (self._groups or {}).values() for group in groups]


def _job_view(job: Job, runtimes: _Runtimes, *, waiting: str) -> JobView:
    counts = job.counts
    has_ended = job.state in ENDED_JOBS
    largest = max(job.steps, key=lambda step: step.counts.total, default=None)
    return JobView(
        job=job,
        counts=counts,
        progress=counts.ended / counts.total if counts.total else 0.0,
        tag=largest.profile.tag if largest is not None else Tag.UNKNOWN,
        eta_s=None if has_ended else eta_s(counts.total - counts.ended, runtimes.seconds, counts.live),
        spread=spread(runtimes.completions_s),
        waiting=waiting,
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


# --- why: what is known of a job, as lines ---------------------------------------------------------------


def _waiting(db: sa.Connection, job: Job, matching: _Matching) -> str:
    """One line; empty when something runs or the job has ended."""
    if job.state in ENDED_JOBS or job.counts.live:
        return ""
    lines = list(_why_job(db, job, matching))
    if not lines:
        return ""
    more = f" (and {len(lines) - 1} more: see why)" if len(lines) > 1 else ""
    return lines[0].text + more


def _why_job(db: sa.Connection, job: Job, matching: _Matching) -> Iterable[WhyLine]:
    counts = job.counts
    if job.state in ENDED_JOBS:
        yield WhyLine(step="", text=f"the job is {job.state}" + (f": {job.reason}" if job.reason else ""))
        return
    if job.state is JobState.PAUSED:
        yield WhyLine(step="", text="paused", is_momentary=False)
    yield from _needed_jobs(db, job)
    for step in job.steps:
        if step.counts.held:
            yield WhyLine(
                step=step.name,
                text=f"{plural(step.counts.held, 'task')} held: the node fell silent, and the output cannot "
                "be staged; waits for the node to come back, or for `farm release`",
                is_momentary=False,
            )
    for found in stalling.stalled(db, job_id=job.id, limit=20) if counts.live else ():
        yield WhyLine(step=found.step, text=f"on {found.attempt.node_id} taken for {found.stall.told}")
    for group in matching.groups(job.id):
        step = next(step for step in job.steps if step.id == group.step_id)
        yield from _why_group(db, step, group, matching)
    for step in job.steps:
        if step.counts.waiting and job.state is JobState.ACTIVE:
            yield _waits_for_steps(job, step)
        if step.counts.ready:
            yield from _waits_for_licence(db, step)
    if job.state is JobState.ACTIVE and not counts.ready and not counts.waiting and not counts.held:
        yield WhyLine(step="", text=f"nothing waits: {plural(counts.live, 'task')} on nodes")


def _needed_jobs(db: sa.Connection, job: Job) -> Iterable[WhyLine]:
    is_by_frame = job.settings.frame_by_frame and job.counts.waiting > 0
    if job.state not in (JobState.WAITING, JobState.PAUSED) and not is_by_frame:
        return
    for needed in job.settings.depends_on:
        other = jobs.read_job(db, needed)
        if other.state is JobState.DONE:
            continue
        is_over = other.state in ENDED_JOBS
        told = (
            f"which is {other.state}: retry it, or cancel this one" if is_over else f"which is {other.state}"
        )
        yield WhyLine(
            step="", text=f"waits for job {needed} ({other.name}), {told}", is_momentary=not is_over
        )


def _waits_for_licence(db: sa.Connection, step: Step) -> Iterable[WhyLine]:
    wait_s = ready.licence_wait_s(db, step.id)
    if wait_s > 0:
        yield WhyLine(
            step=step.name,
            text=f"tries again in {duration(wait_s)}, or when one of its tasks is done: its renderers found "
            "no licence; no retry is spent. With `farm limits` the farm counts licences itself",
        )


def _why_group(db: sa.Connection, step: Step, group: match.Group, matching: _Matching) -> Iterable[WhyLine]:
    due_s = ready.next_due_s(db, step.id)
    if due_s > 0:
        yield WhyLine(step=step.name, text=f"tries again in {duration(due_s)} after failures")
        return
    shared = matching.sharing.causes(group, matching.kept) if group.ready > 0 else ()
    for cause in match.why(group, matching.seen_by(group), shared=shared):
        yield WhyLine(
            step=step.name,
            text=cause.text,
            count=cause.count,
            node_ids=cause.node_ids,
            is_momentary=cause.is_momentary,
        )
    if group.ready > 0:
        for cause in matching.ahead(group):
            yield WhyLine(step=step.name, text=cause.text)


def _waits_for_steps(job: Job, step: Step) -> WhyLine:
    by_name = {other.name: other for other in job.steps}
    needs = [by_name[name] for name in step.depends_on if name in by_name]
    open_steps = [other for other in needs if other.counts.done < other.counts.total]
    told = ", ".join(
        f"{other.name} ({other.counts.done:,} of {other.counts.total:,} done)" for other in open_steps
    )
    return WhyLine(step=step.name, text=f"waits for step {told}" if told else "opens with the next match")


def _why_task(db: sa.Connection, job: Job, task: Task, matching: _Matching) -> Iterable[WhyLine]:
    def line(text: str, *, is_momentary: bool = True) -> WhyLine:
        return WhyLine(step=task.step, text=text, is_momentary=is_momentary)

    if task.state in ENDED_TASKS:
        yield line(
            f"the task is {task.state}" + (f": {task.reason}" if task.reason else ""), is_momentary=False
        )
        return
    if task.state is TaskState.HELD:
        yield line(f"held: {task.reason}", is_momentary=False)
        return
    if task.state in (TaskState.ASSIGNED, TaskState.RUNNING, TaskState.CANCELLING):
        yield line(f"{task.state} on {task.node_id}")
        for found in stalling.stalled(db, job_id=job.id, with_silent=True):
            if found.attempt.task_id == task.id:
                yield line(f"on {found.attempt.node_id} taken for {found.stall.told}")
        return
    if task.state is TaskState.WAITING or job.state is not JobState.ACTIVE:
        yield from (why for why in _why_job(db, job, matching) if why.step in ("", task.step))
        return
    delay = ready.delay(db, task.id)
    if delay.seconds > 0:
        last = f" after: {task.reason}" if task.reason else ""
        yield line(f"tries again in {duration(delay.seconds)}{last}")
        return
    if delay.avoids:
        yield line(f"{delay.avoids}: other nodes may try first, for a while")
    step = next(step for step in job.steps if step.id == task.step_id)
    yield from _waits_for_licence(db, step)
    for group in matching.groups(job.id):
        if group.step_id == step.id:
            yield from _why_group(db, step, group, matching)


# --- small things ----------------------------------------------------------------------------------------


def _with_user(submission: Submission, by: Caller) -> Submission:
    """A user's jobs are his own; an admin may submit for others."""
    settings = submission.settings
    user = settings.user if by.is_admin and settings.user else by.user
    return replace(submission, settings=replace(settings, user=user))


def _digest(submission: Submission) -> str:
    text = json.dumps(rows.to_json(submission), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


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
        elif value is None:
            told.append(
                {"max_running": "no running limit", "timeout_s": "no time limit"}.get(name, "any pool")
            )
        else:
            told.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(told)


def _task_ids(
    db: sa.Connection, job: Job, choice: TaskChoice, indexes: dict[str, list[int]] | None
) -> list[int] | None:
    """Ids of the chosen tasks; None for all. Raises UserError for an id that is not the job's."""
    if choice.task_ids is not None:
        wanted = set(choice.task_ids)
        own = set(jobs.task_ids(db, job.id, of=wanted))
        if own != wanted:
            raise NotFound(f"job {job.id} has no task {min(wanted - own)}")
    if indexes is not None:
        ids = []
        for step in job.steps:
            if step.name in indexes:
                ids += jobs.task_ids(
                    db, job.id, step_id=step.id, indexes=indexes[step.name], of=choice.task_ids
                )
        return ids
    if choice.step is not None:
        step = next(step for step in job.steps if step.name == choice.step)
        return jobs.task_ids(db, job.id, step_id=step.id, of=choice.task_ids)
    return None if choice.task_ids is None else list(choice.task_ids)


def _shown_choice(choice: TaskChoice) -> dict[str, Any]:
    shown: dict[str, Any] = rows.to_json(choice)
    if choice.task_ids is not None and len(choice.task_ids) > 100:
        shown["task_ids"] = f"{len(choice.task_ids):,} tasks"
    if choice.frames is not None:
        shown["frames"] = clean(choice.frames, limit=1_000)
    return shown


def _next(found: Sequence[Any], limit: int) -> int | None:
    return found[-1].id if len(found) == limit else None
