"""Consuming what nodes say, on a connection of its own, acknowledged only after the farm has stored it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from kombu import Connection, Consumer, Queue
from kombu.message import Message

from farm.broker.app import transport_options
from farm.broker.publisher import BROKER_ERRORS
from farm.broker.queues import parked_queue
from farm.errors import Unavailable
from farm.wire.messages import ParkedMessage, dump
from farm.wire.queues import REPORTS

_LOG = logging.getLogger(__name__)
_PARKED_KNOWN = 1_000
_MOST_REASON = 500


class Intake:
    """Owned by one thread: `drain`, work, `acknowledge`. What is not acknowledged is delivered again."""

    def __init__(self, broker_url: str, queues: Sequence[Queue], *, prefetch: int) -> None:
        self._url = broker_url
        self._queues = queues
        self._prefetch = prefetch
        self._connection: Connection | None = None
        self._consumer: Consumer | None = None
        self._inbox: list[Message] = []
        self._handed: list[Message] = []
        self._parked: OrderedDict[bytes, None] = OrderedDict()
        """Digests of what was parked last."""

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def drain(self, timeout_s: float, most: int, *, linger_s: float = 0.0) -> list[bytes]:
        """Wait up to `timeout_s` for a message, then take what comes within `linger_s` (at most `most`).

        Raises Unavailable; everything not acknowledged will come again.
        """
        try:
            connection = self._connection or self._connect()
            with contextlib.suppress(TimeoutError):
                if not self._inbox:
                    connection.drain_events(timeout=timeout_s)
                end = time.monotonic() + linger_s
                while len(self._inbox) < most:
                    # 0 would mean "for ever" to some transports.
                    connection.drain_events(timeout=max(end - time.monotonic(), 0.0005))
            if connection.transport.driver_type == "amqp":
                connection.heartbeat_check()
        except BROKER_ERRORS as error:
            self.close()
            raise Unavailable(f"the broker cannot be reached: {error}") from error
        taken = self._inbox[:most]
        del self._inbox[:most]  # in place: the consumer appends to this very list
        self._handed += taken
        return [_bytes(message) for message in taken]

    def acknowledge(self) -> None:
        """Everything handed out so far is stored. Raises Unavailable (it will come again: harmless)."""
        handed, self._handed = self._handed, []
        try:
            if handed and self._connection is not None and self._connection.transport.driver_type == "amqp":
                handed[-1].ack(multiple=True)  # they are acknowledged in the order in which they came
                return
            for message in handed:
                message.ack()
        except BROKER_ERRORS as error:
            self.close()
            raise Unavailable(f"the broker connection was lost: {error}") from error

    def park(self, body: bytes, *, by: str, reason: str) -> None:
        """Keep a message that cannot be read, for a newer version or a person. Raises Unavailable.

        A node sends again what is not answered: the same message is kept once.
        """
        if self._connection is None:
            raise Unavailable("the broker connection was lost")
        digest = hashlib.sha256(body).digest()
        if digest in self._parked:
            return
        self._parked[digest] = None
        if len(self._parked) > _PARKED_KNOWN:
            self._parked.popitem(last=False)
        parked = ParkedMessage(
            queue=REPORTS,
            by=by,
            reason=reason[:_MOST_REASON],
            body=base64.b64encode(body).decode(),
            at=time.time(),
        )
        try:
            with self._connection.channel() as channel:
                queue = parked_queue()(channel)
                queue.declare()
                channel.basic_publish(
                    channel.prepare_message(
                        dump(parked), content_type="application/json", content_encoding="utf-8"
                    ),
                    exchange="",
                    routing_key=queue.name,
                )
        except BROKER_ERRORS as error:
            self.close()
            raise Unavailable(f"the broker connection was lost: {error}") from error

    def close(self) -> None:
        connection, self._connection, self._consumer = self._connection, None, None
        self._inbox.clear()
        self._handed.clear()
        if connection is not None:
            with contextlib.suppress(*BROKER_ERRORS):
                connection.collect(socket_timeout=1)

    def _connect(self) -> Connection:
        connection = Connection(
            self._url, heartbeat=10, connect_timeout=5, transport_options=transport_options(self._url)
        )
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
        channel = connection.channel()
        consumer = Consumer(
            channel,
            queues=list(self._queues),
            on_message=self._inbox.append,
            accept=["json"],
            prefetch_count=self._prefetch,
        )
        consumer.consume()
        # Nodes park too, and cannot declare it everywhere.
        parked_queue()(channel).declare()
        self._connection, self._consumer = connection, consumer
        _LOG.info("consuming %s", ", ".join(queue.name for queue in self._queues))
        return connection


def _bytes(message: Message) -> bytes:
    body: Any = message.body
    return body if isinstance(body, bytes) else str(body).encode()
