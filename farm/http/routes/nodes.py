"""The nodes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from farm.control.views import Page
from farm.http import examples
from farm.http.routes.answers import answers, errors
from farm.http.routes.parameters import NodeName, TheCaller, TheDesk
from farm.model.ids import NodeId
from farm.model.machines import Node

router = APIRouter(tags=["nodes"])


@router.get("/nodes", summary="List nodes", responses=answers(examples.page(examples.NODE)))
def list_nodes(desk: TheDesk) -> Page[Node]:
    """Every node that has enrolled, by name. `next` is always null."""
    return desk.nodes.list_nodes()


@router.get("/nodes/{node_id}", summary="Read a node", responses=answers(examples.shown(examples.NODE), 404))
def read_node(desk: TheDesk, node_id: NodeName) -> Node:
    """What a node has, how busy it is, what it runs."""
    return desk.nodes.read_node(NodeId(node_id))


@router.post(
    "/nodes/{node_id}/drain",
    summary="Drain a node",
    responses=answers(examples.shown(examples.NODE), 403, 404),
)
def drain_node(desk: TheDesk, caller: TheCaller, node_id: NodeName) -> Node:
    """Let the node finish what it runs and take no more. Outlives restarts. Admins only."""
    return desk.nodes.drain(NodeId(node_id), caller, is_drained=True)


@router.post(
    "/nodes/{node_id}/undrain",
    summary="Let a node work again",
    responses=answers(examples.shown(examples.NODE), 403, 404),
)
def undrain_node(desk: TheDesk, caller: TheCaller, node_id: NodeName) -> Node:
    """Take the drain back. Admins only."""
    return desk.nodes.drain(NodeId(node_id), caller, is_drained=False)


@router.post(
    "/nodes/{node_id}/enrol",
    summary="Let a node in",
    responses=answers(examples.shown(examples.NODE), 403, 404, 409),
)
def enrol_node(desk: TheDesk, caller: TheCaller, node_id: NodeName) -> Node:
    """Let a node in that joined by a code and is pending. Admins only."""
    desk.joining.enrol(NodeId(node_id), caller)
    return desk.nodes.read_node(NodeId(node_id))


@router.delete("/nodes/{node_id}", status_code=204, summary="Remove a node", responses=errors(403, 404, 409))
def remove_node(
    desk: TheDesk,
    caller: TheCaller,
    node_id: NodeName,
    force: Annotated[bool, Query(description="Also when it works: what it runs will be lost.")] = False,
) -> None:
    """Forget a node, its token and its account at the broker. Admins only."""
    desk.joining.remove(NodeId(node_id), caller, force=force)
