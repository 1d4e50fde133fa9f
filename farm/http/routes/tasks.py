"""Tasks and the attempts at them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from farm.control.views import LogView, Page, StalledView, WhyView
from farm.http import examples
from farm.http.routes.answers import answers
from farm.http.routes.parameters import AttemptName, Limit, TaskNumber, TheDesk
from farm.model.attempts import Attempt
from farm.model.ids import AttemptId, TaskId
from farm.model.work import Task

router = APIRouter(tags=["tasks"])


@router.get("/tasks/{task_id}", summary="Read a task", responses=answers(examples.shown(examples.TASK), 404))
def read_task(desk: TheDesk, task_id: TaskNumber) -> Task:
    """A task: a frame, or a chunk of frames."""
    return desk.tasks.read_task(TaskId(task_id))


@router.get(
    "/tasks/{task_id}/attempts",
    summary="List a task's attempts",
    responses=answers(examples.page(examples.ATTEMPT), 404),
)
def list_task_attempts(desk: TheDesk, task_id: TaskNumber, limit: Limit = 100) -> Page[Attempt]:
    """The newest attempts at the task. `next` is always null."""
    return desk.tasks.list_attempts(task_id=TaskId(task_id), limit=limit)


@router.get(
    "/tasks/{task_id}/why", summary="Why a task waits", responses=answers(examples.shown(examples.WHY), 404)
)
def why_task(desk: TheDesk, task_id: TaskNumber) -> WhyView:
    """Why the task does not run, or where it runs."""
    return desk.why.why_task(TaskId(task_id))


@router.get(
    "/stalled",
    summary="List stalled attempts",
    responses=answers(examples.page(examples.STALLED)),
)
def list_stalled(
    desk: TheDesk,
    silent: Annotated[
        bool, Query(description="Also those that work and have said nothing for a while.")
    ] = False,
) -> Page[StalledView]:
    """Attempts that run and are taken for stalled, each with its evidence; the longest stalled first."""
    return desk.tasks.stalled(with_silent=silent)


@router.get(
    "/attempts/{attempt_id}",
    summary="Read an attempt",
    responses=answers(examples.shown(examples.ATTEMPT), 404),
)
def read_attempt(desk: TheDesk, attempt_id: AttemptName) -> Attempt:
    """One try at a task on one node: how it goes, or how it ended, with its files."""
    return desk.tasks.read_attempt(AttemptId(attempt_id))


@router.get(
    "/attempts/{attempt_id}/log",
    summary="Read an attempt's output",
    responses=answers(examples.shown(examples.LOG), 404),
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
