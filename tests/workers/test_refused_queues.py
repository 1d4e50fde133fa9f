"""A broker that answers and refuses the node's queues: said in one line, and all is well when it gives in."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kombu import Connection, Queue

from farm.broker.queues import node_control_queue, node_launch_queue
from farm.model.ids import NodeId
from farm.settings import Settings
from tests.waiting import wait_until
from workers.celery_worker import CeleryWorker

pytestmark = pytest.mark.services
NODE = NodeId("blade.8")


class Counted(CeleryWorker):
    tries = 0

    def _work(self) -> None:
        self.tries += 1
        super()._work()


@pytest.mark.parametrize("queue", [node_control_queue(NODE), node_launch_queue(NODE)], ids=lambda q: q.name)
def test_a_refused_queue_is_told_once_and_asked_for_until_it_is_had(
    queue: Queue, rabbitmq: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    connected: list[Any] = []
    worker = Counted(
        Settings(broker_url=rabbitmq, node_name=NODE),
        on_launch=connected.append,
        on_control=connected.append,
        on_unreadable=lambda *parts: connected.append(parts),
        on_connected=lambda: connected.append("connected"),
    )
    with Connection(rabbitmq) as connection:
        # To declare it ends the channel, as where a cluster's broker that holds the queue is down.
        connection.channel().queue_delete(queue.name)
        connection.channel().queue_declare(queue.name, durable=True, auto_delete=False)
        worker.start()
        try:
            wait_until(lambda: worker.tries >= 3, "it has tried twice", timeout_s=60)
            (told,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert "PRECONDITION_FAILED" in told.getMessage()
            assert queue.name in told.getMessage()
            assert not told.exc_info
            assert connected == []

            connection.channel().queue_delete(queue.name)
            wait_until(lambda: connected, "it has its queues", timeout_s=60)
        finally:
            worker.ask_to_stop()
            assert worker.join(30)
    assert connected == ["connected"]
