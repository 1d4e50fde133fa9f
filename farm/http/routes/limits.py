"""Counts that the whole farm shares."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body

from farm.control.views import LimitView, Page
from farm.http import bodies, examples
from farm.http.routes.answers import answers, errors
from farm.http.routes.parameters import LimitName, TheCaller, TheDesk

router = APIRouter(tags=["farm"])


@router.get("/limits", summary="List limits", responses=answers(examples.page(examples.LIMIT)))
def list_limits(desk: TheDesk) -> Page[LimitView]:
    """Counts that the whole farm shares, such as licences, and who holds them. `next` is always null."""
    return desk.limits.list_limits()


@router.put(
    "/limits/{name}",
    summary="Set a limit",
    responses=answers(examples.shown(examples.LIMIT), 400, 403, 409, 413, 415),
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


@router.delete(
    "/limits/{name}", status_code=204, summary="Remove a limit", responses=errors(400, 403, 404, 409)
)
def remove_limit(desk: TheDesk, caller: TheCaller, name: LimitName) -> None:
    """Tasks that ask for it are not held up by it any more. Admins only."""
    desk.limits.remove_limit(name, caller)
