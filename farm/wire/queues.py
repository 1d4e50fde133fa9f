"""Names of queues, exchanges and routing keys. All are durable and expire when unused (docs/protocol.md)."""

from __future__ import annotations

from farm.model.ids import NodeId

EXCHANGE = "farm"
"""One direct exchange; the routing key is the queue's name."""
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
