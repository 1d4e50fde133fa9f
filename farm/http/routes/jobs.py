"""Jobs: submitted, listed, shown, steered."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Header, Query, Response
from pydantic import Field

from farm.control.matching_views import ProfileView
from farm.control.views import ChangedView, FoundLine, JobView, Page, PlanView, WhyView
from farm.http import bodies, examples
from farm.http.routes.answers import BODY_ERRORS, answers, errors
from farm.http.routes.parameters import MAX_ID, After, Frames, JobNumber, Limit, TheCaller, TheDesk
from farm.model import work
from farm.model.attempts import Attempt, JobUsage
from farm.model.ids import JobId
from farm.model.states import AttemptState, JobState, TaskState
from farm.model.work import Task

router = APIRouter(tags=["jobs"])


@router.post(
    "/jobs",
    status_code=201,
    summary="Submit a job",
    responses=answers(
        examples.shown(examples.JOB_VIEW),
        *BODY_ERRORS,
        409,
        status=201,
    )
    | {
        200: {
            "model": JobView | PlanView,
            "description": "The job of an earlier request with this key; or, of a dry run, the plan",
            "content": {
                "application/json": {
                    "examples": {
                        "dry_run": {"summary": "Dry run", "value": examples.shown(examples.PLAN)},
                        "repeated": {
                            "summary": "Repeated request",
                            "value": examples.shown(examples.JOB_VIEW),
                        },
                    }
                }
            },
        }
    },
)
def submit_job(
    desk: TheDesk,
    caller: TheCaller,
    response: Response,
    submission: Annotated[
        bodies.Submission, Body(openapi_examples={"povray": {"value": examples.SUBMISSION}})
    ],
    dry_run: Annotated[bool, Query(description="Only say what would be made of it.")] = False,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=255,
            description="A text of your own, new for each request: a repeated request makes no second job.",
        ),
    ] = None,
) -> JobView | PlanView:
    """Check a submission and store it as a job.

    201: a new job. 200: `Idempotency-Key` was used before for this very request, and this is that job.
    409: it was used for another request. With `dry_run` nothing is stored, and the answer is what the job
    would be. A user's job is always their own; an admin may set `settings.user`.
    """
    if dry_run:
        response.status_code = 200
        return desk.submissions.preview(submission, caller)
    view, is_new = desk.submissions.submit(submission, caller, key=idempotency_key)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/api/v1/jobs/{view.job.id}"
    return view


@router.get("/jobs", summary="List jobs", responses=answers(examples.page(examples.JOB_VIEW, following=12)))
def list_jobs(
    desk: TheDesk,
    state: Annotated[list[JobState], Query(description="Only in these states; may be repeated.")] = [],  # noqa: B006 - FastAPI copies it
    user: Annotated[str | None, Query(max_length=255, description="Only of this user.")] = None,
    name: Annotated[str | None, Query(max_length=255, description="A part of the name.")] = None,
    before: Annotated[
        int | None, Query(ge=0, le=MAX_ID, description="Go on below this id: `next` of the page before.")
    ] = None,
    limit: Limit = 100,
) -> Page[JobView]:
    """Jobs, the newest first."""
    return desk.jobs.list_jobs(states=state, user=user, name=name, before=before, limit=limit)


@router.get("/jobs/{job_id}", summary="Read a job", responses=answers(examples.shown(examples.JOB_VIEW), 404))
def read_job(desk: TheDesk, job_id: JobNumber) -> JobView:
    """A job with its steps, counts, progress, expected end, and why nothing runs when nothing does."""
    return desk.jobs.read_job(JobId(job_id))


@router.patch(
    "/jobs/{job_id}",
    summary="Change a job",
    responses=answers(examples.shown(examples.JOB_VIEW), *BODY_ERRORS),
)
def change_job(
    desk: TheDesk,
    caller: TheCaller,
    job_id: JobNumber,
    change: Annotated[
        bodies.JobChange,
        Body(
            openapi_examples={
                "pause": {"value": {"is_paused": True}},
                "hurry": {"value": {"priority": 90, "max_running": 0}},
            }
        ),
    ],
) -> JobView:
    """Set the name, priority, limits, pool or order, or pause and resume. Running tasks go on as they are."""
    return desk.jobs.change_job(JobId(job_id), change, caller)


@router.get(
    "/jobs/{job_id}/submission",
    summary="Read what was submitted",
    responses=answers(examples.SUBMISSION, 403, 404),
)
def read_submission(desk: TheDesk, caller: TheCaller, job_id: JobNumber) -> work.Submission:
    """The submission with the job's settings as they are now: change it, and post it as another job."""
    return desk.submissions.read_submission(JobId(job_id), caller)


@router.post(
    "/jobs/{job_id}/frames",
    summary="Append frames to a job",
    responses=answers(examples.shown(examples.CHANGED), *BODY_ERRORS, 409),
)
def append_frames(
    desk: TheDesk,
    caller: TheCaller,
    job_id: JobNumber,
    request: Annotated[bodies.Append, Body(openapi_examples={"more": {"value": {"frames": "101-120"}}})],
) -> ChangedView:
    """Add frames to the steps with the most frames, or to `step`, in steps of their own.

    What depends on them, such as a film, is made again. `changed` is the number of new tasks. 409: such a
    step runs just now, or the job was cancelled.
    """
    return desk.submissions.append(JobId(job_id), request, caller)


@router.delete(
    "/jobs/{job_id}", status_code=204, summary="Remove an ended job", responses=errors(403, 404, 409)
)
def remove_job(desk: TheDesk, caller: TheCaller, job_id: JobNumber) -> None:
    """Forget the job, its tasks, attempts, logs and events. Its files stay.

    409: it has not ended, another job waits for it, or it is the newest.
    """
    desk.jobs.remove(JobId(job_id), caller)


@router.post(
    "/jobs/{job_id}/cancel",
    summary="Cancel tasks of a job",
    responses=answers(examples.shown(examples.CHANGED), *BODY_ERRORS),
)
def cancel_job(
    desk: TheDesk,
    caller: TheCaller,
    job_id: JobNumber,
    choice: Annotated[
        bodies.TaskChoice,
        Body(openapi_examples={"all": {"value": {}}, "frames": {"value": {"frames": "10-20"}}}),
    ] = bodies.TaskChoice(),  # noqa: B008 - frozen
) -> ChangedView:
    """Cancel what has not ended: the whole job, or a choice of its tasks.

    A running task is `cancelling` until its node says that no process is left.
    """
    return desk.jobs.cancel(JobId(job_id), choice, caller)


@router.post(
    "/jobs/{job_id}/retry",
    summary="Try tasks of a job again",
    responses=answers(examples.shown(examples.CHANGED), *BODY_ERRORS),
)
def retry_job(
    desk: TheDesk,
    caller: TheCaller,
    job_id: JobNumber,
    choice: Annotated[
        bodies.RetryChoice,
        Body(
            openapi_examples={
                "failed": {"value": {"states": ["failed"]}},
                "requeue": {"value": {"states": ["done"], "frames": "7"}},
                "release": {"value": {"states": ["held"]}},
            }
        ),
    ] = bodies.RetryChoice(),  # noqa: B008 - frozen
) -> ChangedView:
    """Let ended tasks run again with a fresh budget of retries.

    `done` renders accepted frames again (their files are moved aside when the new ones are there); `held` is
    your word that the lost attempt is dead.
    """
    return desk.jobs.retry(JobId(job_id), choice, caller)


@router.get(
    "/jobs/{job_id}/tasks",
    summary="List a job's tasks",
    responses=answers(examples.page(examples.TASK, following=4711), 400, 404),
)
def list_tasks(
    desk: TheDesk,
    job_id: JobNumber,
    state: Annotated[list[TaskState], Query(description="Only in these states; may be repeated.")] = [],  # noqa: B006 - FastAPI copies it
    step: Annotated[str | None, Query(max_length=255, description="Only of this step.")] = None,
    frames: Frames = None,
    task: Annotated[
        list[Annotated[int, Field(ge=1, le=MAX_ID)]] | None,
        Query(max_length=500, description="Only these, by their numbers; may be repeated."),
    ] = None,
    after: After = 0,
    limit: Limit = 100,
) -> Page[Task]:
    """Tasks in order of id."""
    choice = bodies.TaskChoice(frames=frames, step=step, task_ids=None if task is None else tuple(task))
    return desk.tasks.list_tasks(JobId(job_id), choice, states=state, after=after, limit=limit)


@router.get(
    "/jobs/{job_id}/grep",
    summary="Look for a text in a job's output",
    responses=answers(examples.page(examples.FOUND_LINE, following=4711), 400, 404),
)
def grep_job(
    desk: TheDesk,
    job_id: JobNumber,
    text: Annotated[str, Query(min_length=1, max_length=500, description="The text, whatever the case.")],
    state: Annotated[list[TaskState], Query(description="Only in these states; may be repeated.")] = [],  # noqa: B006 - FastAPI copies it
    step: Annotated[str | None, Query(max_length=255, description="Only of this step.")] = None,
    frames: Frames = None,
    after: After = 0,
    limit: Limit = 100,
) -> Page[FoundLine]:
    """Lines of the newest attempt at each task, in order of the task's id.

    A page may hold fewer lines than `limit`, even none, and more may follow: go on until `next` is null.
    """
    choice = bodies.TaskChoice(frames=frames, step=step)
    return desk.tasks.grep(JobId(job_id), text, choice, states=state, after=after, limit=limit)


@router.get(
    "/jobs/{job_id}/why", summary="Why a job waits", responses=answers(examples.shown(examples.WHY), 404)
)
def why_job(desk: TheDesk, job_id: JobNumber) -> WhyView:
    """Every cause why tasks of the job do not run, those of most nodes first."""
    return desk.why.why_job(JobId(job_id))


@router.get(
    "/jobs/{job_id}/usage",
    summary="What a job used of GPUs",
    responses=answers(examples.USAGE, 404),
)
def read_job_usage(desk: TheDesk, job_id: JobNumber) -> JobUsage:
    """GPU time and energy of all attempts so far, those that failed too."""
    return desk.jobs.job_usage(JobId(job_id))


@router.get(
    "/jobs/{job_id}/profile",
    summary="What a job's steps demand",
    responses=answers(examples.shown(examples.PROFILE), 404),
)
def read_job_profile(desk: TheDesk, job_id: JobNumber) -> ProfileView:
    """Profiles as declared and as learnt, with how long tasks take on each device model."""
    return desk.jobs.job_profile(JobId(job_id))


@router.get(
    "/jobs/{job_id}/attempts",
    summary="List a job's attempts",
    responses=answers(examples.page(examples.ATTEMPT), 404),
)
def list_job_attempts(
    desk: TheDesk,
    job_id: JobNumber,
    state: Annotated[list[AttemptState], Query(description="Only in these states; may be repeated.")] = [],  # noqa: B006 - FastAPI copies it
    limit: Limit = 100,
) -> Page[Attempt]:
    """The newest attempts at tasks of the job. `next` is always null."""
    return desk.tasks.list_attempts(job_id=JobId(job_id), states=state, limit=limit)
