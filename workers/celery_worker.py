"""The Celery worker inside an agent: it takes messages in, hands them over and is done with them.

A thread pool, acknowledgement on receipt, no gossip, mingle, heartbeat events, remote control or results.
Its one handler returns at once; nothing here ever waits for a renderer. Celery keeps the registry of tasks
and the shutdown flags for the whole process, so that a process can hold one agent.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import celery.worker.state
from celery import Celery, bootsteps
from celery.app.trace import setup_worker_optimizations
from celery.exceptions import InvalidTaskError, WorkerShutdown
from celery.worker import WorkController
from celery.worker.consumer import Consumer as CeleryConsumer
from kombu import messaging
from kombu.exceptions import ChannelError

from farm.broker.app import make_app
from farm.broker.queues import node_control_queue, node_launch_queue
from farm.model.ids import NodeId
from farm.settings import Settings
from farm.text import clean
from farm.trouble import Trouble
from farm.wire.messages import WIRE_VERSION, Control, Launch, UnknownMessage, load, load_parsed
from farm.wire.queues import LAUNCH_HANDLER, control_queue

_LOG = logging.getLogger(__name__)
_KombuConsumer: Any = messaging.Consumer
_LOOK_S = 0.2
_RESTART_S = 1.0
_RECONNECT_S = 3.0
"""Left to itself, Celery tries less and less often, in the end every 30 s."""
_POOL_THREADS = 1
"""Idle: the one handler runs in the loop, see `_at_once`."""


class CeleryWorker:
    """Runs in a thread of its own, for ever reconnecting, until `stop`.

    on_launch, on_control: called with each message that can be read; must not block.
    on_unreadable: called with queue, body and reason of each message that this version cannot read.
    on_connected: called after each (re)connect, when its queues are there and before the first message.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        on_launch: Callable[[Launch], None],
        on_control: Callable[[Any], None],
        on_unreadable: Callable[[str, bytes, str], None],
        on_connected: Callable[[], None],
    ) -> None:
        self._node_id = NodeId(settings.node_name)
        self._on_launch = on_launch
        self._on_control = on_control
        self._on_unreadable = on_unreadable
        self._on_connected = on_connected
        self._consumer: Any = None
        self._takes_work = True
        self._is_stopping = threading.Event()
        self._refusal = ""
        """Why the broker did not let the loop go on, when it did not."""
        self._trouble = Trouble()
        """With the connection, since there was one."""
        self._launch_queue = node_launch_queue(self._node_id)
        self._app = self._make_app(settings)
        self._thread = threading.Thread(target=self._run, name="celery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take_work(self, is_wanted: bool) -> None:
        """Consume the launch queue or leave it alone, from the loop's next turn on (within two seconds)."""
        self._takes_work = is_wanted
        consumer = self._consumer
        if consumer is not None:
            # The connection belongs to the loop's thread.
            consumer.call_soon(self._follow_wish, consumer)

    def ask_to_stop(self) -> None:
        """End the loop; it looks within two seconds."""
        self._is_stopping.set()
        celery.worker.state.should_stop = 0

    def join(self, timeout_s: float) -> bool:
        """Wait for the loop to end; True when it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _make_app(self, settings: Settings) -> Celery:
        app = make_app(settings)
        app.conf.update(
            task_queues=[self._launch_queue],
            task_default_queue=self._launch_queue.name,
            # Else Celery binds the queue to an exchange of that name, and a node's account may bind nothing.
            task_default_exchange="",
            # Nothing here acknowledges late, so that this cancels nothing; unset, Celery warns at each
            # reconnect.
            worker_cancel_long_running_tasks_on_connection_loss=True,
        )
        # Not shared: Celery would register it with every other application of this process too.
        app.task(name=LAUNCH_HANDLER, ignore_result=True, shared=False, Strategy=_at_once(self))(self._launch)
        app.steps["consumer"].add(_control_step(self))
        return app

    def _run(self) -> None:
        # A line for every task, twice, is no use to anybody.
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).setLevel(logging.WARNING)
        # It tells of connections; we do when the queues are there, too.
        logging.getLogger("celery.worker.consumer.connection").setLevel(logging.WARNING)
        # It shows a traceback for each lost connection, of which the consumer then tells in one line.
        logging.getLogger("celery.worker.loops").setLevel(logging.CRITICAL)
        while not self._is_stopping.is_set():
            try:
                self._work()
            except Exception:  # noqa: BLE001 - a loop's edge: the node must not go deaf, whatever Celery trips over
                _LOG.critical("the message loop failed", exc_info=True)
            if self._refusal:
                self._say_refusal()
            elif not self._is_stopping.is_set():
                _LOG.critical("the message loop ended by itself and is started again")
            self._is_stopping.wait(_RECONNECT_S if self._refusal else _RESTART_S)
            self._refusal = ""
        celery.worker.state.should_stop = None

    def _say_refusal(self) -> None:
        if self._trouble.is_news(self._refusal, time.monotonic()):
            _LOG.error(
                "the broker refuses this node's queues, asking again every %.0f s: %s",
                _RECONNECT_S,
                self._refusal,
            )

    def _say_unreachable(self, error: Exception, _interval_s: float) -> None:
        text = clean(str(error), limit=300, one_line=True)
        if self._trouble.is_news(text, time.monotonic()):
            _LOG.warning(
                "the broker cannot be reached, trying again every %.0f s until it is: %s", _RECONNECT_S, text
            )

    def _work(self) -> None:
        hostname = f"agent@{self._node_id}"
        # Tasks are looked up in the process's default application; Celery's own worker program does the same.
        setup_worker_optimizations(self._app, hostname)
        worker = WorkController(
            app=self._app,
            hostname=hostname,
            pool="threads",
            concurrency=_POOL_THREADS,
            consumer_cls=_parking_consumer(self),
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            task_events=False,
        )
        worker.start()

    def _launch(self, message: Any) -> None:
        """The handler `farm.launch`: take the orders in."""
        try:
            launch: Launch = (
                load(Launch, message) if isinstance(message, str) else load_parsed(Launch, message)
            )
            if launch.wire > WIRE_VERSION + 1:
                raise UnknownMessage(
                    f"it is of wire version {launch.wire}, this node speaks {WIRE_VERSION}: upgrade the node"
                )
        except UnknownMessage as error:
            body = message if isinstance(message, str) else json.dumps(message)
            self._unreadable(self._launch_queue.name, body.encode(), error)
            return
        self._on_launch(launch)

    def _control(self, message: Any) -> None:
        body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
        try:
            control = load(Control, body)
        except UnknownMessage as error:
            self._unreadable(control_queue(self._node_id), body, error)
        else:
            self._on_control(control)
        # Stops are repeated and answers are worth little: nothing is lost when this agent dies now.
        message.ack_log_error(_LOG, self._consumer.connection_errors)

    def _unreadable(self, queue: str, body: bytes, error: Exception | str) -> None:
        reason = clean(str(error), limit=500, one_line=True)
        _LOG.error("a message was parked: %s", reason)
        self._on_unreadable(queue, body, reason)

    def _connected(self, consumer: Any) -> None:
        self._consumer = consumer
        self._trouble = Trouble()
        _LOG.info("listening at %s", consumer.connection.as_uri())
        self._on_connected()

    def _follow_wish(self, consumer: Any) -> None:
        name = self._launch_queue.name
        if self._takes_work:
            consumer.add_task_queue(name)
        else:
            consumer.cancel_task_queue(name)


def _at_once(owner: CeleryWorker) -> Any:
    """The strategy (Celery's word for how a worker takes a message) that runs the handler in the loop.

    Celery's own has a thread of the pool run it, which costs more than all that the handler does.
    """

    def strategy(_task: Any, _app: Celery, _consumer: Any, **_: Any) -> Callable[..., None]:
        def take(message: Any, body: Any, *_: Any) -> None:
            try:
                arguments = message.payload[0] if body is None else body["args"]  # protocol 2; 1
                launch = arguments[0]
            except (LookupError, TypeError) as error:
                raise InvalidTaskError(f"no launch in it: {error!r}") from error
            owner._launch(launch)
            message.ack_log_error(_LOG, owner._consumer.connection_errors)

        return take

    return staticmethod(strategy)


def _control_step(owner: CeleryWorker) -> type[bootsteps.ConsumerStep]:
    """A bootstep that consumes the node's control queue on the worker's connection."""

    class ControlStep(bootsteps.ConsumerStep):  # type: ignore[misc]
        requires = ("celery.worker.consumer.tasks:Tasks",)  # which declares the other queue

        def get_consumers(self, channel: Any) -> list[Any]:
            return [
                _KombuConsumer(
                    channel,
                    queues=[node_control_queue(owner._node_id)],
                    on_message=owner._control,
                    accept=["json"],
                    prefetch_count=64,
                )
            ]

        def start(self, consumer: Any) -> None:
            super().start(consumer)
            owner._connected(consumer)

    return ControlStep


def _parking_consumer(owner: CeleryWorker) -> type[CeleryConsumer]:
    """Celery's consumer, but what it cannot read is parked: Celery itself would acknowledge it away."""

    class ParkingConsumer(CeleryConsumer):  # type: ignore[misc]
        def start(self) -> None:
            try:
                super().start()
            except ChannelError as error:
                # Celery takes it for its own end, with a traceback. A queue's broker in a cluster may be
                # down, or a person be mending rights: that is worth waiting for.
                owner._refusal = clean(str(error), limit=500, one_line=True)
                raise WorkerShutdown(1) from error

        def ensure_connected(self, conn: Any) -> Any:
            pauses = {"interval_start": 1.0, "interval_step": 1.0, "interval_max": _RECONNECT_S}
            ensure = conn.ensure_connection

            def patiently(_say: Any, *arguments: Any, **options: Any) -> Any:
                # Celery would say that it tries again each time that it does.
                return ensure(owner._say_unreachable, *arguments, **pauses, **options)

            conn.ensure_connection = patiently
            return super().ensure_connected(conn)

        def connect(self) -> Any:
            connection = super().connect()
            if connection.transport.driver_type == "memory":
                # The embedded broker is polled anyway; the loop is to see soon that it should stop.
                drain = connection.drain_events
                connection.drain_events = lambda timeout: drain(timeout=min(timeout, _LOOK_S))
            return connection

        def on_unknown_message(self, body: Any, message: Any) -> None:
            self._park(message, "no task message")

        def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
            self._park(message, f"no handler {exc}")

        def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
            self._park(message, exc)

        def on_decode_error(self, message: Any, exc: Exception) -> None:
            self._park(message, exc)

        def _park(self, message: Any, error: Exception | str) -> None:
            raw = message.body
            body = raw if isinstance(raw, bytes) else str(raw).encode()
            owner._unreadable(owner._launch_queue.name, body, error)
            message.ack_log_error(_LOG, self.connection_errors)

    return ParkingConsumer
