"""What nobody could read: kept in a durable queue, looked at, sent on again, or dropped by a person.

After an upgrade `replay` hands each message to those that it was for, who may read it now; one that they
still cannot read is parked again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from kombu import Connection

from farm.broker.app import transport_options
from farm.broker.publisher import BROKER_ERRORS, Publisher
from farm.broker.queues import parked_queue
from farm.errors import Unavailable
from farm.wire import queues as names
from farm.wire.messages import ParkedMessage, UnknownMessage, load

MOST = 10_000
"""The queue holds no more."""
_FLUSH_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """One message as people see it."""

    id: str
    """Of its content: the same message parked twice has the same."""
    queue: str
    """Where it was on its way to."""
    by: str
    """Who could not read it."""
    at: float
    """When, seconds since the epoch on that machine's clock; 0: not known."""
    reason: str
    kind: str
    """As it says itself; empty when even that cannot be read."""
    wire: int | None
    """The version it says it is of."""
    size_bytes: int


def unpack(body: bytes) -> tuple[ParkedMessage, bytes]:
    """What was parked, and the message itself. One that an older version parked has no envelope."""
    with contextlib.suppress(UnknownMessage, ValueError):
        parked: ParkedMessage = load(ParkedMessage, body)
        return parked, base64.b64decode(parked.body, validate=True)
    return ParkedMessage(queue=names.REPORTS, by="", reason="", body=""), body


def listed(broker_url: str) -> list[Parked]:
    """Everything parked, oldest first. Raises Unavailable."""
    with _taking(broker_url) as taken:
        return [_shown(body) for body, _ in taken]


def replay(broker_url: str, ids: Collection[str] = ()) -> int:
    """Send these on (all without ids) to where they were going; returns how many. Raises Unavailable."""
    publisher = Publisher(broker_url)
    count = 0
    try:
        with _taking(broker_url) as taken:
            for body, settle in taken:
                parked, message = unpack(body)
                if ids and _id(message) not in ids:
                    continue
                is_launch = parked.queue.startswith(names.LAUNCH_PREFIX)
                publisher.publish(
                    parked.queue,
                    _launch_in(message) if is_launch else message,
                    persistent=True,
                    celery_task=names.LAUNCH_HANDLER if is_launch else None,
                )
                # It leaves the parked queue only when the other one has it: twice does no harm.
                publisher.flush(_FLUSH_S)
                settle()
                count += 1
    finally:
        publisher.close()
    return count


def drop(broker_url: str, ids: Collection[str] = ()) -> int:
    """Throw these away (all without ids); returns how many. Raises Unavailable."""
    count = 0
    with _taking(broker_url) as taken:
        for body, settle in taken:
            if not ids or _id(unpack(body)[1]) in ids:
                settle()
                count += 1
    return count


@contextlib.contextmanager
def _taking(broker_url: str) -> Iterator[list[tuple[bytes, Callable[[], None]]]]:
    """(body, what takes it out for good) of all that is parked. What was not taken out goes back."""
    left: dict[int, Any] = {}
    taken: list[tuple[bytes, Callable[[], None]]] = []
    connection = Connection(broker_url, connect_timeout=5, transport_options=transport_options(broker_url))
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
        queue = parked_queue()(connection.channel())
        queue.declare()
        while len(taken) < MOST and (message := queue.get(accept=["json"])) is not None:
            number = len(taken)
            left[number] = message

            def settle(number: int = number) -> None:
                left.pop(number).ack()

            raw = message.body
            taken.append((raw if isinstance(raw, bytes) else str(raw).encode(), settle))
        yield taken
        for message in left.values():
            message.requeue()
    except BROKER_ERRORS as error:
        raise Unavailable(f"the broker cannot be reached: {error}") from error
    finally:
        with contextlib.suppress(*BROKER_ERRORS):
            connection.release()


def _id(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()[:12]


def _launch_in(message: bytes) -> bytes:
    """The launch in what Celery calls the body, or the message as it is."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        content = json.loads(message)
        if isinstance(content, list):
            return json.dumps(content[0][0]).encode()
    return message


def _shown(body: bytes) -> Parked:
    parked, message = unpack(body)
    content: Any = None
    with contextlib.suppress(ValueError):
        content = json.loads(_launch_in(message))
    says = content if isinstance(content, dict) else {}
    kind, wire = says.get("kind"), says.get("wire")
    return Parked(
        id=_id(message),
        queue=parked.queue,
        by=parked.by,
        at=parked.at,
        reason=parked.reason,
        kind=kind if isinstance(kind, str) else "",
        wire=wire if isinstance(wire, int) else None,
        size_bytes=len(message),
    )
