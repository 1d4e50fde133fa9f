"""The nodes: listed, shown, drained."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import sqlalchemy as sa

from farm.control.desk.callers import Caller, audit_row, check_admin
from farm.control.spaces import Spaces
from farm.control.views import Page
from farm.model.ids import AttemptId, NodeId
from farm.model.machines import Node
from farm.store import nodes
from farm.store.engine import reading, writing

FAILURES_WINDOW_S: Final = 24 * 3600.0
"""Failures of a node are counted that happened within this time."""
_FAILURES_KEPT_S: Final = 5.0


class NodeDesk:
    """Thread-safe."""

    def __init__(self, engine: sa.Engine, spaces: Spaces, *, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._spaces = spaces
        self._wake = wake
        self._failures: dict[NodeId, int] = {}
        self._failures_at = float("-inf")

    def list_nodes(self) -> Page[Node]:
        labels = self._running_labels()
        with reading(self._engine) as db:
            found = nodes.list_nodes(db, labels)
        return Page(items=tuple(map(self._with_failures, found)))

    def read_node(self, node_id: NodeId) -> Node:
        """Raises NotFound."""
        labels = self._running_labels()
        with reading(self._engine) as db:
            found = nodes.read_node(db, node_id, labels)
        return self._with_failures(found)

    def drain(self, node_id: NodeId, by: Caller, *, is_drained: bool) -> Node:
        """Raises Forbidden, NotFound."""
        check_admin(by, "drain nodes")
        with writing(self._engine) as db:
            before = nodes.read_node(db, node_id)
            nodes.drain(db, node_id, is_drained=is_drained, actor=by.user)
            after = nodes.read_node(db, node_id)
            audit_row(db, by, f"node {node_id}", before={"state": before.state}, after={"state": after.state})
        self._wake()
        return self.read_node(node_id)

    def _with_failures(self, node: Node) -> Node:
        """Counted anew every few seconds at most: every live view asks for nodes once a second."""
        now = time.monotonic()
        if now - self._failures_at > _FAILURES_KEPT_S:
            with reading(self._engine) as db:
                self._failures = nodes.failures(db, window_s=FAILURES_WINDOW_S)
            self._failures_at = now
        return replace(node, fails=self._failures.get(node.id, 0))

    def _running_labels(self) -> dict[AttemptId, str]:
        with reading(self._engine) as db:
            live = nodes.given(db)
        return {held.attempt_id: self._spaces.label(held.job_id, held.step, held.index) for held in live}
