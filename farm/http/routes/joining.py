"""Machines that join the farm by a code."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from farm.control.access_views import AccountView, InviteView, JoinView
from farm.http import bodies, examples
from farm.http.routes.answers import BODY_ERRORS, answers
from farm.http.routes.parameters import TheCaller, TheDesk

router = APIRouter(tags=["nodes"])


@router.post(
    "/invites",
    status_code=201,
    summary="Invite a machine",
    responses=answers(examples.shown(examples.INVITE), *BODY_ERRORS, 409, status=201),
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


@router.post(
    "/join",
    status_code=201,
    summary="Join by a code",
    responses=answers(examples.shown(examples.JOINED), 400, 403, 409, 413, 415, 429, status=201),
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


@router.post(
    "/join/account",
    summary="Get the account at the broker",
    responses=answers(examples.shown(examples.ACCOUNT), 403, 409),
)
def make_account(request: Request, desk: TheDesk, caller: TheCaller, response: Response) -> AccountView:
    """The account of the node whose token this is, with a new password. Nodes only."""
    response.headers["Cache-Control"] = "no-store"
    return desk.joining.account(caller, reached_as=request.url.hostname or "")
