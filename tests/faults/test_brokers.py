"""What a broker may do to a real farm but die: block, lose a part of itself, double, delay, replay."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kombu import Connection, Queue
from kombu.message import Message

from farm.wire import queues as names
from tests.e2e.marked_jobs import MarkedJob
from tests.e2e.services import PrivateRabbit
from tests.faults.conftest import ON_A_NODE, BreakableFarm
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.services, pytest.mark.e2e]
NewJob = Callable[[int], MarkedJob]

FRAMES = 16
WHY = "low on memory or disk"


def test_f13_the_broker_has_no_room_and_takes_nothing(
    farm: BreakableFarm, new_job: NewJob, rabbit: PrivateRabbit
) -> None:
    """Publishers are blocked for longer than a lease: renderers go on, nothing hangs, the log says why."""
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit("seconds", "3")
    wait_until(lambda: len(job.renderers()) >= 2, "two renderers")
    rabbit.control("set_disk_free_limit", "1000000GB")
    try:
        for name in ("agent0", "scheduler0"):
            wait_until(lambda n=name: WHY in farm.log(n), f"{name} says why", timeout_s=60)  # type: ignore[misc]
        assert farm.get("/farm")["leader"], "people are answered"
        farm.farm("jobs")
    finally:
        rabbit.control("set_disk_free_limit", "50MB")
    job.check_done(most_starts=FRAMES, timeout_s=180)


# --- F24, F26: messages again, late, in another order ----------------------------------------------------


@contextmanager
def in_background(work: Callable[[], None]) -> Iterator[None]:
    """Do it again and again meanwhile."""
    stop = threading.Event()
    failed: list[Exception] = []

    def run() -> None:
        try:
            while not stop.wait(0.02):
                work()
        except Exception as error:  # noqa: BLE001 - told by the thread that asserts
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    assert not failed, failed


class Tap:
    """Gets a copy of every message that the farm sends through these routing keys."""

    def __init__(self, connection: Connection, keys: list[str]) -> None:
        self._channel = connection.channel()
        self.taken: list[tuple[str, Message]] = []
        self._queues = {}
        for key in keys:
            queue = Queue(f"tap.{key}", routing_key=key, exchange=names.EXCHANGE, durable=True)(self._channel)
            self._channel.queue_declare(queue=queue.name, durable=True)
            self._channel.queue_bind(queue=queue.name, exchange=names.EXCHANGE, routing_key=key)
            self._queues[key] = queue
        self._producer = connection.Producer(self._channel)

    def take(self) -> None:
        """What came since the last time."""
        for key, queue in self._queues.items():
            while (message := queue.get(no_ack=True)) is not None:
                self.taken.append((key, message))

    def send_again(self, key: str, message: Message) -> None:
        """Straight into the queue of that name, past the tap."""
        self._producer.publish(
            message.body,
            exchange="",
            routing_key=key,
            headers=message.headers,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            correlation_id=message.properties.get("correlation_id"),
        )


def all_keys(farm: BreakableFarm) -> list[str]:
    nodes = [node["id"] for node in farm.get("/nodes")["items"]]
    launches, controls = map(names.launch_queue, nodes), map(names.control_queue, nodes)
    return [names.REPORTS, names.HEARTBEATS, *launches, *controls]


def test_f24_every_message_comes_twice_late_and_in_another_order(
    farm: BreakableFarm, new_job: NewJob, draw: random.Random
) -> None:
    farm.start_all(agents=2)
    with Connection(farm.broker_url) as connection:
        tap = Tap(connection, all_keys(farm))

        def double() -> None:
            tap.take()
            draw.shuffle(tap.taken)
            while tap.taken and draw.random() < 0.7:
                tap.send_again(*tap.taken.pop())

        with in_background(double):
            job = new_job(FRAMES).submit()
            job.check_done(most_starts=FRAMES, timeout_s=120)


def test_f26_old_messages_change_nothing_when_all_is_done(farm: BreakableFarm, new_job: NewJob) -> None:
    """Every launch and every report of a job once more, after its end."""
    farm.start_all(agents=2)
    job = new_job(FRAMES)
    with Connection(farm.broker_url) as connection:
        tap = Tap(connection, all_keys(farm))
        with in_background(tap.take):
            job.submit()
            job.check_done(most_starts=FRAMES, timeout_s=120)
        tap.take()
        before = farm.attempts(job.id)
        files = {path: path.stat().st_ino for path in sorted(job.output.iterdir())}
        assert {key.partition(".")[0] for key, _ in tap.taken} == {"farm", "node", "ctl"}, "all was recorded"
        for key, message in tap.taken:
            tap.send_again(key, message)
        # What comes after them in the same queues has been heard: so have they.
        after = MarkedJob(farm, Path(f"{job.output}-after"), 4).submit()
        after.check_done(most_starts=4, timeout_s=120)
    assert farm.attempts(job.id) == before
    job.check_done(most_starts=FRAMES)
    assert {path: path.stat().st_ino for path in sorted(job.output.iterdir())} == files


# --- F14: a cluster ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[PrivateRabbit, PrivateRabbit]]:
    """Two brokers that are one, of the test's own."""
    first, second = (PrivateRabbit(tmp_path / name, denies=False) for name in ("first", "second"))
    try:
        first.create()
        first.start()
        second.create(beside=first)
        second.start()
        second.join(first)
        yield first, second
    finally:
        second.remove()
        first.remove()


def test_f14_a_cluster_loses_the_broker_that_holds_the_queues(
    farm: BreakableFarm, new_job: NewJob, cluster: tuple[PrivateRabbit, PrivateRabbit]
) -> None:
    """A queue is one broker's: who is connected to another one waits for its return, and loses nothing."""
    first, second = cluster
    farm.broker_url = first.add_vhost()
    farm.start_all(agents=2)  # which makes the queues on the first
    for name in ("scheduler0", "agent1"):
        farm.kill(name, signal.SIGTERM)
        farm.processes[name].wait(60)
        farm.broker_of[name] = farm.broker_url.replace(f":{first.port}/", f":{second.port}/")
        farm.start_again(name)
    job = new_job(FRAMES).submit("seconds", "1")
    farm.wait_for_done(job.id, 2)
    first.kill()
    time.sleep(5)  # longer than a lease
    first.start()
    job.check_done(most_starts=FRAMES + 2 * ON_A_NODE, timeout_s=180)
