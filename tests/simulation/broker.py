"""A broker that delays, doubles, reorders, goes away and forgets; and the two doors to it.

At least once: a persistent message whose confirm was seen stays, until it is acknowledged or the broker is
wiped. What was published without a confirm may be there or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from farm.errors import Unavailable
from farm.wire import queues as names
from tests.simulation.kernel import Kernel, Process

_TTL_S = {names.HEARTBEATS: 60.0, names.NUDGES: 10.0}
_FARM = (names.REPORTS, names.HEARTBEATS, names.TELEMETRY, names.NUDGES)


@dataclass(slots=True)
class Message:
    queue: str
    body: bytes
    is_persistent: bool
    at: float


@dataclass(slots=True)
class Link:
    """A machine's way to the broker. Each direction is cut until a time."""

    cannot_send_until: float = 0.0
    cannot_hear_until: float = 0.0
    loses_confirms_until: float = 0.0


@dataclass
class Chaos:
    """What happens to messages on their way, while faults last."""

    doubled: float = 0.0
    delayed: float = 0.0
    """Shares of messages."""
    most_delay_s: float = 30.0


class Broker:
    def __init__(self, kernel: Kernel, chaos: Chaos) -> None:
        self.kernel = kernel
        self.chaos = chaos
        self.away_until = 0.0
        self.epoch = 0
        """Counts its deaths: a connection of an earlier life is gone."""
        self.queues: dict[str, deque[Message]] = {name: deque() for name in _FARM}
        self.parked: list[bytes] = []
        self.listeners: dict[str, Callable[[], None]] = {}

    def is_up(self) -> bool:
        return self.kernel.now >= self.away_until

    def declare(self, queue: str) -> None:
        self.queues.setdefault(queue, deque())

    def publish(self, queue: str, body: bytes, *, is_persistent: bool) -> bool:
        """False: no such queue."""
        if queue == names.PARKED:
            self.parked.append(body)
            return True
        if queue not in self.queues:
            return False
        draw, chaos = self.kernel.draw, self.chaos
        message = Message(queue, body, is_persistent, self.kernel.now)
        for _ in range(2 if draw.random() < chaos.doubled else 1):
            late = draw.random() < chaos.delayed
            delay_s = draw.uniform(1.0, chaos.most_delay_s) if late else draw.uniform(0.001, 0.01)
            self.kernel.at(delay_s, self._arrive, message)
        return True

    def _arrive(self, message: Message) -> None:
        if message.queue not in self.queues:
            return
        if not self.is_up() and not message.is_persistent:
            return
        self.queues[message.queue].append(message)
        listener = self.listeners.get(message.queue)
        if listener is not None:
            listener()

    def take(self, queue: str, most: int) -> list[Message]:
        waiting = self.queues.get(queue)
        taken: list[Message] = []
        ttl_s = _TTL_S.get(queue, 60.0 if queue.startswith("ctl.") else 1e9)
        while waiting and len(taken) < most:
            message = waiting.popleft()
            if self.kernel.now - message.at <= ttl_s:
                taken.append(message)
        return taken

    def put_back(self, messages: list[Message]) -> None:
        for message in reversed(messages):
            if message.queue in self.queues:
                self.queues[message.queue].appendleft(message)

    def die(self, seconds: float) -> None:
        """kill -9, and started again after `seconds`: what is persistent stays."""
        self.epoch += 1
        self.away_until = max(self.away_until, self.kernel.now + seconds)
        for name, waiting in self.queues.items():
            self.queues[name] = deque(m for m in waiting if m.is_persistent)

    def wipe(self, seconds: float) -> None:
        """It comes back without its disk: no queue, no message."""
        self.die(seconds)
        self.queues = {}


@dataclass
class SimPublisher:
    """In place of `farm.broker.publisher.Publisher`."""

    broker: Broker
    link: Link
    unroutable: set[str] = field(default_factory=set)
    blocked: str = ""
    sent: int = 0
    """As in the real one: messages handed over on this connection."""
    _is_pending: bool = False

    def publish(
        self, routing_key: str, body: bytes, *, persistent: bool, celery_task: str | None = None
    ) -> None:
        self.broker.kernel.checkpoint(f"publish to {routing_key}")
        kernel = self.broker.kernel
        if not self.broker.is_up() or self.link.cannot_send_until > kernel.now:
            raise Unavailable("the broker cannot be reached")
        if routing_key in _FARM:
            self.broker.declare(routing_key)
        if not self.broker.publish(routing_key, body, is_persistent=persistent):
            self.unroutable.add(routing_key)
        self.sent += 1
        self._is_pending = True

    def heard(self, wanted: int, timeout_s: float) -> int:
        """All at once, or the time is over."""
        self.flush(timeout_s)
        return self.sent

    def flush(self, timeout_s: float) -> None:
        self.broker.kernel.checkpoint("flush")
        kernel = self.broker.kernel
        if not self._is_pending:
            return
        self._is_pending = False
        is_deaf = max(self.link.cannot_hear_until, self.link.loses_confirms_until) > kernel.now
        if is_deaf or not self.broker.is_up():
            if kernel.current is not None:
                kernel.sleep(min(timeout_s, 5.0))
            raise Unavailable("the broker did not confirm")

    def heartbeat(self) -> None:
        pass

    def close(self) -> None:
        self._is_pending = False
        self.sent = 0


class SimIntake:
    """In place of `farm.broker.intake.Intake`: for a process that waits in `drain`."""

    def __init__(self, broker: Broker, link: Link) -> None:
        self._broker = broker
        self._link = link
        self._epoch: int | None = None
        self._handed: list[Message] = []
        self._waiter: Process | None = None

    @property
    def is_connected(self) -> bool:
        return self._epoch is not None

    def _is_lost(self) -> bool:
        now = self._broker.kernel.now
        return (
            not self._broker.is_up()
            or self._epoch != self._broker.epoch
            or (max(self._link.cannot_hear_until, self._link.cannot_send_until) > now)
        )

    def drain(self, timeout_s: float, most: int, *, linger_s: float = 0.0) -> list[bytes]:
        broker, kernel = self._broker, self._broker.kernel
        kernel.checkpoint("drain")
        if self._epoch is None:
            now = kernel.now
            if not broker.is_up() or max(self._link.cannot_hear_until, self._link.cannot_send_until) > now:
                kernel.sleep(1.0)
                raise Unavailable("the broker cannot be reached")
            self._epoch = broker.epoch
            for name in _FARM:
                broker.declare(name)
        taken = self._take(most)
        if not taken:
            self._waiter = kernel.current
            for name in _FARM:
                broker.listeners[name] = self._arrived
            kernel.sleep(timeout_s)
            self._waiter = None
            taken = self._take(most)
        if self._is_lost():
            broker.put_back(taken)
            self.close()
            raise Unavailable("the broker connection was lost")
        self._handed += taken
        return [message.body for message in taken]

    def _take(self, most: int) -> list[Message]:
        if self._is_lost():
            return []
        taken: list[Message] = []
        for name in _FARM:
            taken += self._broker.take(name, most - len(taken))
        return taken

    def _arrived(self) -> None:
        if self._waiter is not None:
            self._waiter.wake()

    def acknowledge(self) -> None:
        self._broker.kernel.checkpoint("acknowledge")
        if self._is_lost():
            self.close()
            raise Unavailable("the broker connection was lost")
        self._handed = []

    def park(self, body: bytes) -> None:
        if self._is_lost():
            raise Unavailable("the broker connection was lost")
        self._broker.parked.append(body)

    def close(self) -> None:
        """Unacknowledged messages are delivered again; also what the broker does for a killed consumer."""
        handed, self._handed = self._handed, []
        self._broker.put_back([m for m in handed if m.is_persistent or self._epoch == self._broker.epoch])
        self._epoch = None
