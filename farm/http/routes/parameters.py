"""What routes take: the desk, who asks, and the parameters that several of them share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from farm.control.desk import Desk
from farm.control.desk.callers import Caller
from farm.control.views import MAX_PAGE
from farm.http import examples


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


TheDesk = Annotated[Desk, Depends(_desk)]
TheCaller = Annotated[Caller, Depends(_caller)]
MAX_ID = 2**63 - 1
JobNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="The job's id.", examples=[12])]
TaskNumber = Annotated[int, Path(ge=1, le=MAX_ID, description="The task's id.", examples=[4711])]
AttemptName = Annotated[
    str, Path(max_length=64, description="The attempt's UUID.", examples=[examples.ATTEMPT.id])
]
NodeName = Annotated[str, Path(max_length=64, description="The node's name.", examples=["blade-3"])]
LimitName = Annotated[str, Path(max_length=80, description="The limit's name.", examples=["arnold"])]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="At most so many.")]
After = Annotated[int, Query(ge=0, le=MAX_ID, description="Go on behind this id: `next` of the page before.")]
Frames = Annotated[
    str | None, Query(max_length=100_000, description="A frame range, such as 1-100x2.", examples=["1-10"])
]
