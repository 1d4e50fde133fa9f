"""The farm as a whole."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST

from farm.control.matching_views import MatchingView
from farm.control.views import FarmView, HookView, Page
from farm.flow.recording import Recording
from farm.http import examples
from farm.http.metrics import exposition
from farm.http.routes.answers import answers, errors
from farm.http.routes.parameters import TheCaller, TheDesk

router = APIRouter(tags=["farm"])


@router.get("/farm", summary="The farm at a glance", responses=answers(examples.shown(examples.FARM)))
def read_farm(desk: TheDesk, caller: TheCaller) -> FarmView:
    """Version, leader, nodes, slots and tasks of the farm, and as whom the token speaks."""
    return desk.overview.farm(caller)


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,  # with no type of its own: errors stay JSON
    responses=errors()
    | {200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": examples.METRICS}}}},
)
def read_metrics(desk: TheDesk, caller: TheCaller) -> Response:
    """Tasks, slots, nodes, stalls, limits, spread and prices in Prometheus' text format."""
    return Response(exposition(desk, caller), media_type=CONTENT_TYPE_LATEST)


@router.get("/matching", summary="How matching does", responses=answers(examples.shown(examples.MATCHING)))
def read_matching(desk: TheDesk) -> MatchingView:
    """The spread of run times, what each device model is worth, and nodes slow for no visible reason."""
    return desk.overview.matching()


@router.get(
    "/recording",
    summary="Record what the farm did",
    responses=answers(examples.shown(examples.RECORDING), 422),
)
def read_recording(
    desk: TheDesk, hours: Annotated[float, Query(gt=0, le=24 * 31, description="How far back.")] = 12.0
) -> Recording:
    """Nodes, jobs and what each task took, to be played again by `farm simulate`."""
    return desk.overview.record(hours)


@router.get("/hooks", summary="List hooks", responses=answers(examples.page(examples.HOOK)))
def list_hooks(desk: TheDesk) -> Page[HookView]:
    """What jobs may ask for in `settings.hooks`. `next` is always null."""
    return desk.overview.list_hooks()
