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

from tests.e2e.farm_under_test import ON_A_NODE
from tests.e2e.marked_jobs import MarkedJob
from tests.e2e.services import PrivateRabbit
from tests.faults.conftest import BreakableFarm
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.services, pytest.mark.e2e]
NewJob = Callable[[int], MarkedJob]

FRAMES = 16
WHY = "low on memory or disk"
_AGAIN = "x-sent-again"


def test_f13_the_broker_has_no_room_and_takes_nothing(
    farm: BreakableFarm, new_job: NewJob, rabbit: PrivateRabbit, tmp_path: Path
) -> None:
    """Publishers are blocked for longer than a lease: renderers go on, nothing hangs, the log says why."""
    farm.start_all(agents=2, slots=2)
    unwanted = MarkedJob(farm, tmp_path / "unwanted", 1).submit("seconds", "300")
    wait_until(unwanted.renderers, "one that will be cancelled")
    job = new_job(FRAMES).submit("seconds", "3")
    wait_until(lambda: len(job.renderers()) >= 2, "two renderers")
    rabbit.control("set_disk_free_limit", "1000000GB")
    try:
        # The broker blocks whoever wants to send: the scheduler owes this to a node.
        farm.farm("cancel", str(unwanted.id))
        for name in ("agent0", "scheduler0"):
            wait_until(lambda n=name: WHY in farm.log(n), f"{name} says why", timeout_s=60)  # type: ignore[misc]
        # A wait for confirms is longer than this farm's hurried lease: it leads on and off.
        wait_until(lambda: farm.get("/farm")["leader"], "people are answered")
        farm.farm("jobs")
    finally:
        rabbit.control("set_disk_free_limit", "50MB")
    job.check_done(most_starts=FRAMES, timeout_s=180)
    assert farm.wait_for_job(unwanted.id) == "cancelled"
    unwanted.check_nothing_left(0)


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
    """Gets a copy of every message that the farm and its nodes publish.

    From the broker's own trace: what goes straight to a node's queue passes no exchange that could be tapped.
    """

    def __init__(self, connection: Connection, rabbit: PrivateRabbit) -> None:
        rabbit.control("trace_on", "-p", connection.virtual_host)
        channel = connection.channel()
        self.taken: list[tuple[str, Message]] = []
        self._queue = Queue("tap", durable=True)(channel)
        channel.queue_declare(queue="tap", durable=True)
        channel.queue_bind(queue="tap", exchange="amq.rabbitmq.trace", routing_key="publish.#")
        self._producer = connection.Producer(channel)

    def take(self) -> None:
        """What came since the last time."""
        while (message := self._queue.get(no_ack=True)) is not None:
            if _AGAIN not in message.headers["properties"].get("headers", {}):
                (key,) = message.headers["routing_keys"]
                self.taken.append((key, message))

    def send_again(self, key: str, message: Message) -> None:
        """Straight into the queue of that name."""
        before = message.headers["properties"]
        self._producer.publish(
            message.body,
            exchange="",
            routing_key=key,
            headers={**before.get("headers", {}), _AGAIN: True},
            content_type=before["content_type"],
            content_encoding=before["content_encoding"],
            correlation_id=before.get("correlation_id"),
        )


def kinds(tap: Tap) -> set[str]:
    """Of what it has taken: "farm" is to the farm, "node" and "ctl" to nodes."""
    return {key.partition(".")[0] for key, _ in tap.taken}


def test_f24_every_message_comes_twice_late_and_in_another_order(
    farm: BreakableFarm, new_job: NewJob, rabbit: PrivateRabbit, draw: random.Random
) -> None:
    farm.start_all(agents=2)
    doubled: set[str] = set()
    with Connection(farm.broker_url) as connection:
        tap = Tap(connection, rabbit)

        def double() -> None:
            tap.take()
            doubled.update(kinds(tap))
            draw.shuffle(tap.taken)
            while tap.taken and draw.random() < 0.7:
                tap.send_again(*tap.taken.pop())

        with in_background(double):
            job = new_job(FRAMES).submit()
            job.check_done(most_starts=FRAMES, timeout_s=120)
    assert doubled == {"farm", "node", "ctl"}, "of every kind"


def test_f26_old_messages_change_nothing_when_all_is_done(
    farm: BreakableFarm, new_job: NewJob, rabbit: PrivateRabbit
) -> None:
    """Every launch and every report of a job once more, after its end."""
    farm.start_all(agents=2)
    job = new_job(FRAMES)
    with Connection(farm.broker_url) as connection:
        tap = Tap(connection, rabbit)
        with in_background(tap.take):
            job.submit()
            job.check_done(most_starts=FRAMES, timeout_s=120)
        tap.take()
        before = farm.attempts(job.id)
        files = {path: path.stat().st_ino for path in sorted(job.output.iterdir())}
        assert kinds(tap) == {"farm", "node", "ctl"}, "all was recorded"
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
    said = farm.log("agent1")
    assert said.count("the broker refuses this node's queues") == 1, said
    assert "Traceback" not in said, said
