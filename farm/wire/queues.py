"""Names of queues, exchanges and routing keys. All are durable and expire when unused (docs/protocol.md)."""

from __future__ import annotations

from farm.model.ids import NodeId

EXCHANGE = "farm"
"""What nodes and the API say goes through this direct exchange; the routing key is the queue's name. What the
farm says to a node goes to the node's queue itself: nodes may write to the exchange, and through it reach the
farm alone, not each other."""
REPORTS = "farm.reports"
HEARTBEATS = "farm.heartbeats"
TELEMETRY = "farm.telemetry"
NUDGES = "farm.nudges"
PARKED = "farm.parked"
LAUNCH_HANDLER = "farm.launch"
"""The name of the agent's Celery handler."""

LAUNCH_PREFIX = "node."
CONTROL_PREFIX = "ctl."
NODE_QUEUE_EXPIRES_MS = 24 * 3600 * 1000


def launch_queue(node_id: NodeId) -> str:
    return f"{LAUNCH_PREFIX}{node_id}"


def control_queue(node_id: NodeId) -> str:
    return f"{CONTROL_PREFIX}{node_id}"


def is_of_node(queue: str) -> bool:
    """Whether it is a node's own queue, which no exchange leads to."""
    return queue.startswith((LAUNCH_PREFIX, CONTROL_PREFIX))
