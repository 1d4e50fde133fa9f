"""Who may ask, and what was asked."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Response

from farm.control.access_views import AuditView, NewTokenView, TokenView
from farm.control.views import Page
from farm.http import bodies, examples
from farm.http.routes.answers import answers, errors
from farm.http.routes.parameters import After, Limit, TheCaller, TheDesk

router = APIRouter(tags=["administration"])


@router.get("/tokens", summary="List tokens", responses=answers(examples.page(examples.TOKEN), 403))
def list_tokens(desk: TheDesk, caller: TheCaller) -> Page[TokenView]:
    """Whose tokens there are; the tokens themselves are not kept. Admins only. `next` is always null."""
    return desk.access.list_tokens(caller)


@router.post(
    "/tokens",
    status_code=201,
    summary="Make a token",
    responses=answers(examples.shown(examples.NEW_TOKEN), 400, 403, 413, 415, status=201),
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


@router.delete(
    "/tokens/{name}",
    status_code=204,
    summary="Revoke a token",
    responses=errors(403, 404, 409),
)
def revoke_token(
    desk: TheDesk,
    caller: TheCaller,
    name: Annotated[str, Path(max_length=255, description="The token's name.", examples=["anna-laptop"])],
) -> None:
    """It stops working within 2 s everywhere. Admins only."""
    desk.access.revoke_token(name, caller)


@router.get(
    "/audit", summary="Read the audit", responses=answers(examples.page(examples.AUDIT, following=77), 403)
)
def list_audit(desk: TheDesk, caller: TheCaller, after: After = 0, limit: Limit = 100) -> Page[AuditView]:
    """Who asked for what, in order of id: requests that change something, refused ones too. Admins only."""
    return desk.access.read_audit(caller, after=after, limit=limit)
