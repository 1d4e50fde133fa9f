"""What is submitted: planned, checked and stored as a job, or as more frames of one."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import replace

import sqlalchemy as sa

from farm.control.desk.callers import Caller, audit_row, check_word, own_job
from farm.control.desk.environments import load_environments
from farm.control.desk.job_views import JobViews
from farm.control.desk.limits import check_limits
from farm.control.requests import Append
from farm.control.spaces import Spaces
from farm.control.views import ChangedView, JobView, PlannedStep, PlanView
from farm.errors import UserError
from farm.failpoints import reach
from farm.flow.by_frame import FrameNeed, by_frame
from farm.flow.environments import with_environments
from farm.flow.extend import extended
from farm.flow.hooks import check_hooks
from farm.flow.submit import JobPlan, plan_job
from farm.flow.task_space import TaskSpace
from farm.model.frames import canonical, describe, parse_frames
from farm.model.ids import JobId
from farm.model.work import Submission
from farm.settings import Settings
from farm.store import jobs, moves, rows, submitting
from farm.store.engine import reading, writing


class SubmissionDesk:
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
        """Raises UserError for a queue environment that cannot be read."""
        self._engine = engine
        self._settings = settings
        self._spaces = spaces
        self._environments = load_environments(settings.queue_environments)
        self._views = views
        self._wake = wake

    def submit(self, submission: Submission, by: Caller, *, key: str | None) -> tuple[JobView, bool]:
        """Store a job; returns it, and whether it is new (False: `key` was used for this very request).

        Raises UserError, Rejected (the key was used for another request), NotFound (depends_on), Unavailable.
        """
        submission = _with_user(submission, by)
        digest = _digest(submission)  # of what was asked for, before the farm adds its own
        submission, plan, frame_needs = self._laid_out(submission)
        if key is not None:
            check_word("the idempotency key", key)
            key = f"{by.user}:{key}"  # one's keys are one's own: nobody can meet, or probe for, another's
        with writing(self._engine) as db:
            job_id, is_new = submitting.submit(
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
        return self._views.of(job), is_new

    def preview(self, submission: Submission, by: Caller) -> PlanView:
        """What `submit` would make of it. Raises as it does."""
        submission, plan, _ = self._laid_out(_with_user(submission, by))
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

    def read_submission(self, job_id: JobId, by: Caller) -> Submission:
        """What was submitted, to submit it again. Raises NotFound, Forbidden."""
        with reading(self._engine) as db:
            job = own_job(db, job_id, by)
            submission, _ = jobs.read_source(db, job_id)
        return replace(submission, name=job.name, settings=job.settings)

    def append(self, job_id: JobId, request: Append, by: Caller) -> ChangedView:
        """Add frames to a job. Raises NotFound, Forbidden, UserError, Rejected."""
        frames = parse_frames(request.frames)
        with writing(self._engine) as db:
            job = own_job(db, job_id, by)
            moves.lock_jobs(db, [job_id])
            submission, parameters = jobs.read_source(db, job_id)
            submission = replace(submission, settings=job.settings)
            more = extended(submission, parameters, frames, step=request.step)
            plan = self._plan(more.submission)
            text = f"frames {describe(frames)} appended"
            made = submitting.append(
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
        return ChangedView(changed=made, job=self._views.of(after))

    def _laid_out(self, submission: Submission) -> tuple[Submission, JobPlan, list[FrameNeed]]:
        """With the farm's own environments around it; its plan, and which tasks wait for which frames.

        Raises UserError, NotFound.
        """
        submission = self._surrounded(submission)
        plan = self._plan(submission)
        self._check_limits(plan)
        check_hooks(submission.settings.hooks, self._settings.hooks)
        plan, frame_needs = self._by_frame(submission, plan)
        return submission, plan, frame_needs

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
        """Raises UserError."""
        with reading(self._engine) as db:
            check_limits(db, plan, self._settings)


def _with_user(submission: Submission, by: Caller) -> Submission:
    """A user's jobs are his own; an admin may submit for others."""
    settings = submission.settings
    user = settings.user if by.is_admin and settings.user else by.user
    return replace(submission, settings=replace(settings, user=user))


def _digest(submission: Submission) -> str:
    text = json.dumps(rows.to_json(submission), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
