"""The farm's side of the wire, for tests of the agent: hears one node, answers it, keeps all it heard."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kombu import Connection, Consumer, Queue

from farm.broker.app import transport_options
from farm.broker.publisher import Publisher
from farm.broker.queues import EXCHANGE, node_control_queue, node_launch_queue
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.work import Isolation
from farm.wire import queues
from farm.wire.messages import (
    Finished,
    FromNode,
    Heartbeat,
    HeartbeatAnswer,
    Launch,
    LogChunk,
    Order,
    Progress,
    Reports,
    ReportsAccepted,
    Started,
    StepScript,
    dump,
    load,
)


def new_ids(count: int) -> tuple[AttemptId, ...]:
    return tuple(AttemptId(str(uuid.uuid4())) for _ in range(count))


def launch(
    *attempt_ids: AttemptId,
    do: str = "succeed",
    log: Path | None = None,
    isolation: Isolation = Isolation.STAGED,
) -> Launch:
    parameters = {"Do": ("STRING", do)} | ({"Log": ("STRING", str(log))} if log is not None else {})
    script = StepScript(
        job_id=JobId(1),
        job_uid="job",
        job_name="job",
        step="step",
        kind="openjd",
        template={"specificationVersion": "jobtemplate-2023-09"},
        parameters=parameters,
        isolation=isolation,
    )
    orders = tuple(
        Order(attempt_id=attempt_id, task_id=TaskId(1), label="1", parameters={})
        for attempt_id in attempt_ids
    )
    return Launch(script=script, orders=orders)


class FakeFarm:
    """Single-threaded: it hears only inside `until`. Its own queue is bound to the farm's routing keys."""

    def __init__(self, broker_url: str, node_id: str) -> None:
        self.node_id = NodeId(node_id)
        self.answers = True
        self.accepts = True
        self.heartbeats: list[Heartbeat] = []
        self.started: list[AttemptId] = []
        self.ends: list[Finished] = []
        self.logs: dict[AttemptId, dict[int, str]] = {}
        self.progress: list[Progress] = []
        self.kept: set[AttemptId] = set()
        self._connection = Connection(broker_url, transport_options=transport_options(broker_url))
        channel = self._connection.channel()
        keys = (queues.REPORTS, queues.HEARTBEATS, queues.TELEMETRY)
        name = f"test.{uuid.uuid4()}"
        self._own = [
            Queue(f"{name}.{key}", EXCHANGE, routing_key=key, durable=False, auto_delete=True, exclusive=True)
            for key in keys
        ]
        self._node_queues = [
            queue(channel) for queue in (node_launch_queue(self.node_id), node_control_queue(self.node_id))
        ]
        for queue in self._node_queues:
            queue.declare()
        self._consumer = Consumer(
            channel, queues=self._own, on_message=self._hear, accept=["json"], no_ack=True
        )
        self._consumer.consume()
        self._publisher = Publisher(broker_url)

    def close(self) -> None:
        self._consumer.cancel()  # it may hear, and answer, until then
        self._publisher.close()
        for queue in self._node_queues:
            queue.delete()
        self._connection.close()

    def send_launch(self, message: Launch) -> None:
        key = queues.launch_queue(self.node_id)
        self._publisher.publish(key, dump(message), persistent=True, celery_task=queues.LAUNCH_HANDLER)
        self._publisher.flush(5)

    def send(self, message: Any) -> None:
        self._publisher.publish(queues.control_queue(self.node_id), dump(message), persistent=False)
        self._publisher.flush(5)

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> None:
        """Hear the node until the condition holds; else fail, and say what was heard."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not within {timeout_s:.0f} s: {what}; started {self.started[-5:]}, "
                    f"ends {self.ends[-5:]}, last heartbeat {self.heartbeats[-1:]}"
                )
            try:
                self._connection.drain_events(timeout=0.05)
            except TimeoutError:
                pass

    def end_of(self, attempt_id: AttemptId, timeout_s: float = 60.0) -> Finished:
        self.until(lambda: any(end.attempt_id == attempt_id for end in self.ends), "an end", timeout_s)
        return next(end for end in self.ends if end.attempt_id == attempt_id)

    def _hear(self, message: Any) -> None:
        body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
        heard = load(FromNode, body)
        if heard.node_id != self.node_id:
            return  # another test's
        if isinstance(heard, Heartbeat):
            self.heartbeats.append(heard)
            if self.answers:
                self.send(HeartbeatAnswer(sequence=heard.sequence, keep=heard.attempts))
        elif isinstance(heard, Reports):
            for item in heard.items:
                if isinstance(item, Started):
                    self.started.append(item.attempt_id)
                else:
                    self.ends.append(item)
            ends = tuple(item.attempt_id for item in heard.items if isinstance(item, Finished))
            if ends and self.accepts:
                self.send(ReportsAccepted(attempt_ids=ends))
        else:
            for item in heard.items:
                if isinstance(item, LogChunk):
                    self.logs.setdefault(item.attempt_id, {})[item.sequence] = item.text
                else:
                    self.progress.append(item)

    def log_of(self, attempt_id: AttemptId) -> str:
        chunks = self.logs.get(attempt_id, {})
        return "".join(chunks[number] for number in sorted(chunks))
