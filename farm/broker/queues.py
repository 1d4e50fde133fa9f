"""kombu declarations of the queues named in `farm.wire.queues`.

All are durable classic queues with `x-expires` where a node owns them: transient queues and global QoS are
refused by RabbitMQ 4.3, and an expiring queue needs no clean-up when a node is retired.
"""

from __future__ import annotations

from typing import Any

from kombu import Exchange, Queue
from kombu.exceptions import ChannelError

from farm.model.ids import NodeId
from farm.wire import queues as names

EXCHANGE = Exchange(names.EXCHANGE, type="direct", durable=True)
_ITSELF = Exchange("", type="direct")
"""The broker's own exchange, which reaches every queue by its name."""


def ensure_exchange(connection: Any) -> None:
    """Declare the farm's exchange unless it is there: a node's account may look, but not declare it."""
    try:
        with connection.channel() as channel:
            EXCHANGE(channel).declare(passive=True)
    except ChannelError:
        with connection.channel() as channel:
            EXCHANGE(channel).declare()


def _queue(
    name: str, arguments: dict[str, int | str] | None = None, *, exchange: Exchange = EXCHANGE
) -> Queue:
    return Queue(
        name,
        exchange,
        routing_key=name,
        durable=True,
        queue_arguments={"x-queue-type": "classic", **(arguments or {})},
    )


def node_launch_queue(node_id: NodeId) -> Queue:
    return _queue(names.launch_queue(node_id), {"x-expires": names.NODE_QUEUE_EXPIRES_MS}, exchange=_ITSELF)


def node_control_queue(node_id: NodeId) -> Queue:
    # Heartbeat answers are worth nothing after a minute; stops are repeated until obeyed.
    return _queue(
        names.control_queue(node_id),
        {"x-expires": names.NODE_QUEUE_EXPIRES_MS, "x-message-ttl": 60_000},
        exchange=_ITSELF,
    )


def farm_queues() -> tuple[Queue, ...]:
    """What the leading scheduler consumes, in the order of importance."""
    return (
        _queue(names.REPORTS),
        _queue(names.HEARTBEATS, {"x-message-ttl": 60_000}),
        _queue(names.TELEMETRY, {"x-max-length": 20_000, "x-overflow": "drop-head"}),
        _queue(names.NUDGES, {"x-message-ttl": 10_000, "x-max-length": 100}),
    )


def parked_queue() -> Queue:
    """Messages that this version cannot read: kept for the next one, never acknowledged away."""
    return _queue(names.PARKED, {"x-max-length": 10_000})
