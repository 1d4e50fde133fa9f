"""The routes. Each asks one subject of the desk and nothing else; FastAPI runs them in threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST

from farm.control.desk import Desk
from farm.control.desk.callers import Caller
from farm.control.views import (
    MAX_PAGE,
    AccountView,
    AuditView,
    ChangedView,
    FarmView,
    FoundLine,
    HookView,
    InviteView,
    JobView,
    JoinView,
    LimitView,
    LogView,
    MatchingView,
    NewTokenView,
    Page,
    PlanView,
    ProfileView,
    StalledView,
    TokenView,
    WhyView,
)
from farm.flow.recording import Recording
from farm.http import bodies, examples
from farm.http.metrics import exposition
from farm.http.stream import event_stream
from farm.model import work
from farm.model.attempts import Attempt, JobUsage
from farm.model.events import Event
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.machines import Node
from farm.model.states import AttemptState, JobState, TaskState
from farm.model.work import Task

_TELL = {
    400: ("user-error", "frames 251-300 are not in this job"),
    401: ("no-token", "a token is needed; send Authorization: Bearer <token>"),
    403: ("forbidden", "job 12 belongs to anna; bert may steer only their own jobs"),
    404: ("not-found", "there is no job 12"),
    429: ("too-many", "too many wrong codes: none is taken for 9:41"),
    409: ("rejected", "idempotency key 'x' was used for another request (job 11)"),
    413: ("too-large", "the request is larger than 8,388,608 bytes (max_body_bytes)"),
    415: ("user-error", "the request must be application/json, not text/plain"),
    422: ("user-error", "settings.prio: Unexpected keyword argument"),
    503: ("unavailable", "the database cannot be used: the server closed the connection"),
}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {
            "model": bodies.ErrorView,
            "description": _TELL[status][0],
            "content": {
                "application/json": {
                    "example": {"error": {"kind": _TELL[status][0], "message": _TELL[status][1]}}
                }
            },
        }
        for status in (*statuses, 401, 422, 503)
    }


_BODY_ERRORS = (400, 403, 404, 413, 415)


def _answers(example: Any, *statuses: int, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a route answers: its example, and the errors that it can give."""
    found = _errors(*statuses)
    found[status] = {"content": {"application/json": {"example": example}}}
    return found


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


TheDesk = Annotated[Desk, Depends(_desk)]
TheCaller = Annotated[Caller, Depends(_caller)]
_MAX = 2**63 - 1
JobNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="The job's id.", examples=[12])]
TaskNumber = Annotated[int, Path(ge=1, le=_MAX, description="The task's id.", examples=[4711])]
AttemptName = Annotated[
    str, Path(max_length=64, description="The attempt's UUID.", examples=[examples.ATTEMPT.id])
]
NodeName = Annotated[str, Path(max_length=64, description="The node's name.", examples=["blade-3"])]
LimitName = Annotated[str, Path(max_length=80, description="The limit's name.", examples=["arnold"])]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="At most so many.")]
After = Annotated[int, Query(ge=0, le=_MAX, description="Go on behind this id: `next` of the page before.")]
Frames = Annotated[
    str | None, Query(max_length=100_000, description="A frame range, such as 1-100x2.", examples=["1-10"])
]

farm = APIRouter(tags=["farm"])
jobs = APIRouter(tags=["jobs"])
tasks = APIRouter(tags=["tasks"])
nodes = APIRouter(tags=["nodes"])
events = APIRouter(tags=["events"])
administration = APIRouter(tags=["administration"])
ROUTERS = (farm, jobs, tasks, nodes, events, administration)


@farm.get("/matching", summary="How matching does", responses=_answers(examples.shown(examples.MATCHING)))
def read_matching(desk: TheDesk) -> MatchingView:
    """The spread of run times, what each device model is worth, and nodes slow for no visible reason."""
    return desk.overview.matching()


@farm.get(
    "/recording",
    summary="Record what the farm did",
    responses=_answers(examples.shown(examples.RECORDING), 422),
)
def read_recording(
    desk: TheDesk, hours: Annotated[float, Query(gt=0, le=24 * 31, description="How far back.")] = 12.0
) -> Recording:
    """Nodes, jobs and what each task took, to be played again by `farm simulate`."""
    return desk.overview.record(hours)


@farm.get("/farm", summary="The farm at a glance", responses=_answers(examples.shown(examples.FARM)))
def read_farm(desk: TheDesk, caller: TheCaller) -> FarmView:
    """Version, leader, nodes, slots and tasks of the farm, and as whom the token speaks."""
    return desk.overview.farm(caller)


@farm.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,  # with no type of its own: errors stay JSON
    responses=_errors()
    | {200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": examples.METRICS}}}},
)
def read_metrics(desk: TheDesk, caller: TheCaller) -> Response:
    """Tasks, slots, nodes, stalls, limits, spread and prices in Prometheus' text format."""
    return Response(exposition(desk, caller), media_type=CONTENT_TYPE_LATEST)


@farm.get("/limits", summary="List limits", responses=_answers(examples.page(examples.LIMIT)))
def list_limits(desk: TheDesk) -> Page[LimitView]:
    """Counts that the whole farm shares, such as licences, and who holds them. `next` is always null."""
    return desk.limits.list_limits()


@farm.put(
    "/limits/{name}",
    summary="Set a limit",
    responses=_answers(examples.shown(examples.LIMIT), 400, 403, 409, 413, 415),
)
def set_limit(
    desk: TheDesk,
    caller: TheCaller,
    name: LimitName,
    request: Annotated[
        bodies.LimitRequest, Body(openapi_examples={"licences": {"value": {"amount": 10, "per": "task"}}})
    ],
) -> LimitView:
    """Make it, or change it. Below what is in use nothing is stopped: no more starts. Admins only."""
    return desk.limits.set_limit(name, request, caller)


@farm.delete(
    "/limits/{name}", status_code=204, summary="Remove a limit", responses=_errors(400, 403, 404, 409)
)
def remove_limit(desk: TheDesk, caller: TheCaller, name: LimitName) -> None:
    """Tasks that ask for it are not held up by it any more. Admins only."""
    desk.limits.remove_limit(name, caller)


# --- jobs ---------------------------------------------------------------------------------------------


@jobs.post(
    "/jobs",
    status_code=201,
    summary="Submit a job",
    responses=_answers(
        examples.shown(examples.JOB_VIEW),
        *_BODY_ERRORS,
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


@jobs.get("/jobs", summary="List jobs", responses=_answers(examples.page(examples.JOB_VIEW, following=12)))
def list_jobs(
    desk: TheDesk,
    state: Annotated[list[JobState], Query(description="Only in these states; may be repeated.")] = [],  # noqa: B006 - FastAPI copies it
    user: Annotated[str | None, Query(max_length=255, description="Only of this user.")] = None,
    name: Annotated[str | None, Query(max_length=255, description="A part of the name.")] = None,
    before: Annotated[
        int | None, Query(ge=0, le=_MAX, description="Go on below this id: `next` of the page before.")
    ] = None,
    limit: Limit = 100,
) -> Page[JobView]:
    """Jobs, the newest first."""
    return desk.jobs.list_jobs(states=state, user=user, name=name, before=before, limit=limit)


@jobs.get("/jobs/{job_id}", summary="Read a job", responses=_answers(examples.shown(examples.JOB_VIEW), 404))
def read_job(desk: TheDesk, job_id: JobNumber) -> JobView:
    """A job with its steps, counts, progress, expected end, and why nothing runs when nothing does."""
    return desk.jobs.read_job(JobId(job_id))


@jobs.patch(
    "/jobs/{job_id}",
    summary="Change a job",
    responses=_answers(examples.shown(examples.JOB_VIEW), *_BODY_ERRORS),
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


@jobs.get(
    "/jobs/{job_id}/submission",
    summary="Read what was submitted",
    responses=_answers(examples.SUBMISSION, 403, 404),
)
def read_submission(desk: TheDesk, caller: TheCaller, job_id: JobNumber) -> work.Submission:
    """The submission with the job's settings as they are now: change it, and post it as another job."""
    return desk.submissions.read_submission(JobId(job_id), caller)


@jobs.post(
    "/jobs/{job_id}/frames",
    summary="Append frames to a job",
    responses=_answers(examples.shown(examples.CHANGED), *_BODY_ERRORS, 409),
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


@jobs.post(
    "/jobs/{job_id}/cancel",
    summary="Cancel tasks of a job",
    responses=_answers(examples.shown(examples.CHANGED), *_BODY_ERRORS),
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


@jobs.post(
    "/jobs/{job_id}/retry",
    summary="Try tasks of a job again",
    responses=_answers(examples.shown(examples.CHANGED), *_BODY_ERRORS),
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


@jobs.get(
    "/jobs/{job_id}/tasks",
    summary="List a job's tasks",
    responses=_answers(examples.page(examples.TASK, following=4711), 400, 404),
)
def list_tasks(
    desk: TheDesk,
    job_id: JobNumber,
    state: Annotated[list[TaskState], Query(description="Only in these states; may be repeated.")] = [],  # noqa: B006 - FastAPI copies it
    step: Annotated[str | None, Query(max_length=255, description="Only of this step.")] = None,
    frames: Frames = None,
    after: After = 0,
    limit: Limit = 100,
) -> Page[Task]:
    """Tasks in order of id."""
    choice = bodies.TaskChoice(frames=frames, step=step)
    return desk.tasks.list_tasks(JobId(job_id), choice, states=state, after=after, limit=limit)


@jobs.get(
    "/jobs/{job_id}/grep",
    summary="Look for a text in a job's output",
    responses=_answers(examples.page(examples.FOUND_LINE, following=4711), 400, 404),
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


@jobs.get(
    "/jobs/{job_id}/why", summary="Why a job waits", responses=_answers(examples.shown(examples.WHY), 404)
)
def why_job(desk: TheDesk, job_id: JobNumber) -> WhyView:
    """Every cause why tasks of the job do not run, those of most nodes first."""
    return desk.why.why_job(JobId(job_id))


@jobs.get(
    "/jobs/{job_id}/usage",
    summary="What a job used of GPUs",
    responses=_answers(examples.USAGE, 404),
)
def read_job_usage(desk: TheDesk, job_id: JobNumber) -> JobUsage:
    """GPU time and energy of all attempts so far, those that failed too."""
    return desk.jobs.job_usage(JobId(job_id))


@jobs.get(
    "/jobs/{job_id}/profile",
    summary="What a job's steps demand",
    responses=_answers(examples.shown(examples.PROFILE), 404),
)
def read_job_profile(desk: TheDesk, job_id: JobNumber) -> ProfileView:
    """Profiles as declared and as learnt, with how long tasks take on each device model."""
    return desk.jobs.job_profile(JobId(job_id))


@jobs.get(
    "/jobs/{job_id}/attempts",
    summary="List a job's attempts",
    responses=_answers(examples.page(examples.ATTEMPT), 404),
)
def list_job_attempts(
    desk: TheDesk,
    job_id: JobNumber,
    state: Annotated[list[AttemptState], Query(description="Only in these states; may be repeated.")] = [],  # noqa: B006 - FastAPI copies it
    limit: Limit = 100,
) -> Page[Attempt]:
    """The newest attempts at tasks of the job. `next` is always null."""
    return desk.tasks.list_attempts(job_id=JobId(job_id), states=state, limit=limit)


# --- tasks and attempts -------------------------------------------------------------------------------


@tasks.get("/tasks/{task_id}", summary="Read a task", responses=_answers(examples.shown(examples.TASK), 404))
def read_task(desk: TheDesk, task_id: TaskNumber) -> Task:
    """A task: a frame, or a chunk of frames."""
    return desk.tasks.read_task(TaskId(task_id))


@tasks.get(
    "/tasks/{task_id}/attempts",
    summary="List a task's attempts",
    responses=_answers(examples.page(examples.ATTEMPT), 404),
)
def list_task_attempts(desk: TheDesk, task_id: TaskNumber, limit: Limit = 100) -> Page[Attempt]:
    """The newest attempts at the task. `next` is always null."""
    return desk.tasks.list_attempts(task_id=TaskId(task_id), limit=limit)


@tasks.get(
    "/tasks/{task_id}/why", summary="Why a task waits", responses=_answers(examples.shown(examples.WHY), 404)
)
def why_task(desk: TheDesk, task_id: TaskNumber) -> WhyView:
    """Why the task does not run, or where it runs."""
    return desk.why.why_task(TaskId(task_id))


@tasks.get(
    "/stalled",
    summary="List stalled attempts",
    responses=_answers(examples.page(examples.STALLED)),
)
def list_stalled(
    desk: TheDesk,
    silent: Annotated[
        bool, Query(description="Also those that work and have said nothing for a while.")
    ] = False,
) -> Page[StalledView]:
    """Attempts that run and are taken for stalled, each with its evidence; the longest stalled first."""
    return desk.tasks.stalled(with_silent=silent)


@tasks.get(
    "/attempts/{attempt_id}",
    summary="Read an attempt",
    responses=_answers(examples.shown(examples.ATTEMPT), 404),
)
def read_attempt(desk: TheDesk, attempt_id: AttemptName) -> Attempt:
    """One try at a task on one node: how it goes, or how it ended, with its files."""
    return desk.tasks.read_attempt(AttemptId(attempt_id))


@tasks.get(
    "/attempts/{attempt_id}/log",
    summary="Read an attempt's output",
    responses=_answers(examples.shown(examples.LOG), 404),
)
def read_log(
    desk: TheDesk,
    attempt_id: AttemptName,
    after: Annotated[
        int, Query(ge=-1, le=2**31 - 1, description="Go on behind the chunk of this sequence number.")
    ] = -1,
    limit: Limit = 200,
) -> LogView:
    """What the renderer wrote, in chunks. Follow it by asking again behind the last one, until `is_ended`."""
    return desk.tasks.read_log(AttemptId(attempt_id), after=after, limit=limit)


# --- nodes --------------------------------------------------------------------------------------------


@nodes.get("/nodes", summary="List nodes", responses=_answers(examples.page(examples.NODE)))
def list_nodes(desk: TheDesk) -> Page[Node]:
    """Every node that has enrolled, by name. `next` is always null."""
    return desk.nodes.list_nodes()


@nodes.get("/nodes/{node_id}", summary="Read a node", responses=_answers(examples.shown(examples.NODE), 404))
def read_node(desk: TheDesk, node_id: NodeName) -> Node:
    """What a node has, how busy it is, what it runs."""
    return desk.nodes.read_node(NodeId(node_id))


@nodes.post(
    "/nodes/{node_id}/drain",
    summary="Drain a node",
    responses=_answers(examples.shown(examples.NODE), 403, 404),
)
def drain_node(desk: TheDesk, caller: TheCaller, node_id: NodeName) -> Node:
    """Let the node finish what it runs and take no more. Outlives restarts. Admins only."""
    return desk.nodes.drain(NodeId(node_id), caller, is_drained=True)


@nodes.post(
    "/nodes/{node_id}/undrain",
    summary="Let a node work again",
    responses=_answers(examples.shown(examples.NODE), 403, 404),
)
def undrain_node(desk: TheDesk, caller: TheCaller, node_id: NodeName) -> Node:
    """Take the drain back. Admins only."""
    return desk.nodes.drain(NodeId(node_id), caller, is_drained=False)


@nodes.post(
    "/nodes/{node_id}/enrol",
    summary="Let a node in",
    responses=_answers(examples.shown(examples.NODE), 403, 404, 409),
)
def enrol_node(desk: TheDesk, caller: TheCaller, node_id: NodeName) -> Node:
    """Let a node in that joined by a code and is pending. Admins only."""
    desk.joining.enrol(NodeId(node_id), caller)
    return desk.nodes.read_node(NodeId(node_id))


@nodes.delete("/nodes/{node_id}", status_code=204, summary="Remove a node", responses=_errors(403, 404, 409))
def remove_node(
    desk: TheDesk,
    caller: TheCaller,
    node_id: NodeName,
    force: Annotated[bool, Query(description="Also when it works: what it runs will be lost.")] = False,
) -> None:
    """Forget a node, its token and its account at the broker. Admins only."""
    desk.joining.remove(NodeId(node_id), caller, force=force)


@nodes.post(
    "/invites",
    status_code=201,
    summary="Invite a machine",
    responses=_answers(examples.shown(examples.INVITE), *_BODY_ERRORS, 409, status=201),
)
def make_invite(
    desk: TheDesk,
    caller: TheCaller,
    response: Response,
    request: Annotated[bodies.InviteRequest, Body(openapi_examples={"an_hour": {"value": {"life_s": 3600}}})],
) -> InviteView:
    """A code with which one machine may join. It is told this once. Admins only."""
    response.headers["Cache-Control"] = "no-store"
    return desk.joining.invite(request, caller)


@nodes.post(
    "/join",
    status_code=201,
    summary="Join by a code",
    responses=_answers(examples.shown(examples.JOINED), 400, 403, 409, 413, 415, 429, status=201),
)
def join_farm(
    desk: TheDesk,
    caller: TheCaller,
    response: Response,
    request: Annotated[
        bodies.JoinRequest,
        Body(openapi_examples={"blade": {"value": {"code": "K7QD-4M2X-9TRF", "node_id": "blade-4"}}}),
    ],
) -> JoinView:
    """Become a node: the code is the right to do so, and needs no token beside it. Each is good once.

    429: too many wrong codes came from this address, or from all together.
    """
    response.headers["Cache-Control"] = "no-store"
    return desk.joining.join(request, caller)


@nodes.post(
    "/join/account",
    summary="Get the account at the broker",
    responses=_answers(examples.shown(examples.ACCOUNT), 403, 409),
)
def make_account(request: Request, desk: TheDesk, caller: TheCaller, response: Response) -> AccountView:
    """The account of the node whose token this is, with a new password. Nodes only."""
    response.headers["Cache-Control"] = "no-store"
    return desk.joining.account(caller, reached_as=request.url.hostname or "")


# --- events -------------------------------------------------------------------------------------------

EventJob = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Only of this job.", examples=[12])]


@events.get(
    "/events", summary="Read events", responses=_answers(examples.page(examples.EVENT, following=90210))
)
def list_events(
    desk: TheDesk,
    after: After = 0,
    job_id: EventJob = None,
    newest: Annotated[bool, Query(description="The last `limit` events instead of the first.")] = False,
    limit: Limit = 100,
) -> Page[Event]:
    """What happened, in order of id."""
    return desk.events.read_events(
        after=after, job_id=None if job_id is None else JobId(job_id), limit=limit, newest=newest
    )


@events.get(
    "/events/stream",
    summary="Follow events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events: `id` is the event's id, `event` its kind, "
            "`data` the Event as JSON",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'id: 90210\nevent: task-done\ndata: {"id": 90210, "kind": "task-done"}\n\n',
                }
            },
        },
        **_errors(),
    },
)
def stream_events(
    request: Request,
    desk: TheDesk,
    after: Annotated[
        int | None, Query(ge=0, le=_MAX, description="Begin behind this event; left out: begin now.")
    ] = None,
    job_id: EventJob = None,
    last_event_id: Annotated[
        str | None, Header(max_length=20, description="As browsers send it when they connect again.")
    ] = None,
) -> StreamingResponse:
    """Server-sent events as they happen, with a comment every 15 s. An event may rarely come out of order."""
    begin = after
    if begin is None and last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit():
        begin = min(int(last_event_id), _MAX)
    stream = event_stream(request, desk, after=begin, job_id=None if job_id is None else JobId(job_id))
    headers: Mapping[str, str] = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


@farm.get("/hooks", summary="List hooks", responses=_answers(examples.page(examples.HOOK)))
def list_hooks(desk: TheDesk) -> Page[HookView]:
    """What jobs may ask for in `settings.hooks`. `next` is always null."""
    return desk.overview.list_hooks()


# --- administration -----------------------------------------------------------------------------------


@administration.get("/tokens", summary="List tokens", responses=_answers(examples.page(examples.TOKEN), 403))
def list_tokens(desk: TheDesk, caller: TheCaller) -> Page[TokenView]:
    """Whose tokens there are; the tokens themselves are not kept. Admins only. `next` is always null."""
    return desk.access.list_tokens(caller)


@administration.post(
    "/tokens",
    status_code=201,
    summary="Make a token",
    responses=_answers(examples.shown(examples.NEW_TOKEN), 400, 403, 413, 415, status=201),
)
def make_token(
    desk: TheDesk,
    caller: TheCaller,
    response: Response,
    request: Annotated[
        bodies.TokenRequest,
        Body(openapi_examples={"user": {"value": {"name": "anna-laptop", "user": "anna", "role": "user"}}}),
    ],
) -> NewTokenView:
    """The answer is the only time that the token can be seen. Admins only."""
    response.headers["Cache-Control"] = "no-store"
    return desk.access.make_token(request, caller)


@administration.delete(
    "/tokens/{name}",
    status_code=204,
    summary="Revoke a token",
    responses=_errors(403, 404, 409),
)
def revoke_token(
    desk: TheDesk,
    caller: TheCaller,
    name: Annotated[str, Path(max_length=255, description="The token's name.", examples=["anna-laptop"])],
) -> None:
    """It stops working within 2 s everywhere. Admins only."""
    desk.access.revoke_token(name, caller)


@administration.get(
    "/audit", summary="Read the audit", responses=_answers(examples.page(examples.AUDIT, following=77), 403)
)
def list_audit(desk: TheDesk, caller: TheCaller, after: After = 0, limit: Limit = 100) -> Page[AuditView]:
    """Who asked for what, in order of id: requests that change something, refused ones too. Admins only."""
    return desk.access.read_audit(caller, after=after, limit=limit)
