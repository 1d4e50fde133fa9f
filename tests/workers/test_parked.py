"""What nobody could read is kept, shown, sent on and dropped, on both brokers."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from kombu.transport import memory

from farm.broker import parked
from farm.broker.intake import Intake
from farm.broker.publisher import Publisher
from farm.broker.queues import farm_queues, node_launch_queue
from farm.model.ids import JobId, NodeId
from farm.wire import queues as names
from farm.wire.messages import Launch, ParkedMessage, StepScript, dump
from tests.waiting import wait_until

FUTURE = b'{"kind": "from-the-future", "wire": 99}'


@pytest.fixture(
    params=["memory", pytest.param("rabbitmq", marks=pytest.mark.services)],
)
def broker_url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "memory":
        memory.Transport.global_state.clear()
        memory.Channel.queues.clear()
        yield "memory://"
        return
    broker = str(request.getfixturevalue("rabbitmq"))
    yield broker
    parked.drop(broker)


def received(intake: Intake, count: int) -> list[bytes]:
    got: list[bytes] = []

    def enough() -> bool:
        got.extend(intake.drain(0.1, 10))
        intake.acknowledge()
        return len(got) >= count

    wait_until(enough, f"{count} messages")
    return got


def test_a_message_that_the_farm_cannot_read_is_kept_once_and_sent_on_when_asked(broker_url: str) -> None:
    intake = Intake(broker_url, farm_queues(), prefetch=10)
    with closing(intake):
        intake.drain(0.01, 1)
        before = time.time()
        for _ in range(3):  # a node sends it again until it is answered
            intake.park(FUTURE, by="scheduler-1", reason="this version cannot read it")
        intake.park(b"\xff no text", by="scheduler-1", reason="")
        first, second = wait_until(lambda: parked.listed(broker_url), "what is parked")
        assert (first.kind, first.wire, first.by, first.queue) == (
            "from-the-future", 99, "scheduler-1", names.REPORTS
        )  # fmt: skip
        assert first.size_bytes == len(FUTURE)
        assert before - 1 <= first.at <= time.time() + 1
        assert second.kind == ""
        assert parked.listed(broker_url) == [first, second], "to look takes nothing away"
        assert parked.replay(broker_url, {first.id}) == 1
        assert received(intake, 1) == [FUTURE]
        assert parked.listed(broker_url) == [second]
        assert parked.drop(broker_url, {"unknown"}) == 0
        assert parked.drop(broker_url) == 1
        assert parked.listed(broker_url) == []


def test_a_launch_that_a_node_could_not_read_goes_to_it_again_as_a_celery_task(broker_url: str) -> None:
    node_id = NodeId("blade")
    script = StepScript(
        job_id=JobId(1), job_uid="u", job_name="j", step="s", kind="k", template={}, parameters={}
    )
    launch = dump(Launch(script=script, orders=(), wire=99))
    message = ParkedMessage(
        queue=names.launch_queue(node_id), by="blade", reason="", body=base64.b64encode(launch).decode()
    )
    intake = Intake(broker_url, [node_launch_queue(node_id)], prefetch=10)
    with closing(intake), closing(Publisher(broker_url)) as publisher:
        intake.drain(0.01, 1)
        publisher.publish(names.PARKED, dump(message), persistent=True)
        publisher.flush(5)
        [kept] = wait_until(lambda: parked.listed(broker_url), "what is parked")
        assert (kept.kind, kept.wire) == ("launch", 99)
        assert parked.replay(broker_url) == 1
        [sent] = received(intake, 1)
        assert sent.startswith(b"[[" + launch)


def test_what_an_older_version_parked_without_an_envelope_is_read(broker_url: str) -> None:
    with (
        closing(Intake(broker_url, farm_queues(), prefetch=10)) as intake,
        closing(Publisher(broker_url)) as publisher,
    ):
        intake.drain(0.01, 1)
        publisher.publish(names.PARKED, FUTURE, persistent=True)
        publisher.flush(5)
        [kept] = wait_until(lambda: parked.listed(broker_url), "what is parked")
        assert (kept.kind, kept.queue) == ("from-the-future", names.REPORTS)
        assert parked.drop(broker_url, {kept.id}) == 1
