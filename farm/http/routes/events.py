"""What happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from farm.control.views import Page
from farm.http import examples
from farm.http.routes.answers import answers, errors
from farm.http.routes.parameters import MAX_ID, After, Limit, TheDesk
from farm.http.stream import event_stream
from farm.model.events import Event
from farm.model.ids import JobId

router = APIRouter(tags=["events"])
EventJob = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Only of this job.", examples=[12])]


@router.get(
    "/events", summary="Read events", responses=answers(examples.page(examples.EVENT, following=90210))
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


@router.get(
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
        **errors(),
    },
)
def stream_events(
    request: Request,
    desk: TheDesk,
    after: Annotated[
        int | None, Query(ge=0, le=MAX_ID, description="Begin behind this event; left out: begin now.")
    ] = None,
    job_id: EventJob = None,
    last_event_id: Annotated[
        str | None, Header(max_length=20, description="As browsers send it when they connect again.")
    ] = None,
) -> StreamingResponse:
    """Server-sent events as they happen, with a comment every 15 s. An event may rarely come out of order."""
    begin = after
    if begin is None and last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit():
        begin = min(int(last_event_id), MAX_ID)
    stream = event_stream(request, desk, after=begin, job_id=None if job_id is None else JobId(job_id))
    headers: Mapping[str, str] = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)
