"""A crowd of played nodes on real schedulers, broker and database, with faults all along (F41).

Small in `make test-faults`. As large as it was meant, for an hour or two:
FARM_TEST_CROWD=500x100000 pytest -m faults -s --timeout 20000 tests/faults/test_crowd.py
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil
import pytest
import sqlalchemy as sa
from kombu import Connection, Consumer
from kombu.message import Message

from farm.broker.publisher import Publisher
from farm.broker.queues import node_control_queue, node_launch_queue
from farm.flow.report import MAX_BAD_NODES
from farm.model.ids import AttemptId, NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.states import Outcome
from farm.wire import queues as names
from farm.wire.messages import (
    Control,
    Finished,
    Heartbeat,
    HeartbeatAnswer,
    Launch,
    Reports,
    ReportsAccepted,
    SayHello,
    Started,
    Stop,
    dump,
    load,
)
from tests.faults.conftest import BreakableFarm
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.services, pytest.mark.e2e]

NODES, FRAMES = map(int, os.environ.get("FARM_TEST_CROWD", "40x1500").split("x"))
HEARTBEAT_S = 2.0
RESEND_S = 3.0
KILL_EVERY_S = 10.0
BREAKS_EACH_S = 15.0
"""The mean time between a node's faults: of time, not of rounds, of which a fast machine makes more."""
CPU = Device(id="cpu", kind=DeviceKind.CPU, model="played", slots=1)


@dataclass
class Played:
    """A node: what it was given, what it runs, and the ends that the farm has not accepted yet."""

    id: NodeId
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    sequence: int = 0
    beats_at: float = 0.0
    silent_until: float = 0.0
    breaks_at: float = 0.0
    """0: not drawn yet."""
    waiting: list[AttemptId] = field(default_factory=list)
    running: dict[AttemptId, float] = field(default_factory=dict)
    """And when it ends."""
    ends: dict[AttemptId, tuple[Finished, float]] = field(default_factory=dict)
    """And when they are told next."""
    is_full: bool = True

    @property
    def held(self) -> tuple[AttemptId, ...]:
        return (*self.running, *self.waiting)


class Fleet:
    """All nodes, in one thread, on one connection."""

    def __init__(self, broker_url: str, draw: random.Random) -> None:
        self._url = broker_url
        self._draw = draw
        self._publisher = Publisher(broker_url)
        self.nodes = {NodeId(f"n{number:03d}"): Played(NodeId(f"n{number:03d}")) for number in range(NODES)}
        self.most_at_once = 0
        self.failed: Exception | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Fleet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(30)
        self._publisher.close()

    def _run(self) -> None:
        try:
            with Connection(self._url) as connection:
                channel = connection.channel()
                wanted = [queue(n) for n in self.nodes for queue in (node_launch_queue, node_control_queue)]
                with Consumer(channel, wanted, on_message=self._hear, no_ack=True, accept=None):
                    while not self._is_over.is_set():
                        try:
                            connection.drain_events(timeout=0.02)
                        except TimeoutError:
                            pass
                        for node in self.nodes.values():
                            self._tick(node, time.monotonic())
                        self._publisher.flush(30.0)
        except Exception as error:  # noqa: BLE001 - told by the test's own thread
            self.failed = error

    def _hear(self, message: Message) -> None:
        kind, _, node_id = message.delivery_info["routing_key"].partition(".")
        node = self.nodes[NodeId(node_id)]
        body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
        if time.monotonic() < node.silent_until and self._draw.random() < 0.5:
            return  # lost with the link
        if f"{kind}." == names.LAUNCH_PREFIX:
            launch: Launch = load(Launch, json.dumps(json.loads(body)[0][0]).encode())
            for order in launch.orders:
                if order.attempt_id not in node.held and order.attempt_id not in node.ends:
                    node.waiting.append(order.attempt_id)
            return
        match load(Control, body):
            case HeartbeatAnswer(stop=attempts) | Stop(attempt_ids=attempts):
                self._end(node, attempts, Outcome.CANCELLED, "the farm said so")
            case ReportsAccepted(attempt_ids=attempts):
                for attempt_id in attempts:
                    node.ends.pop(attempt_id, None)
            case SayHello():
                node.is_full, node.beats_at = True, 0.0

    def _end(self, node: Played, attempts: Iterable[AttemptId], outcome: Outcome, reason: str = "") -> None:
        for attempt_id in attempts:
            node.running.pop(attempt_id, None)
            if attempt_id in node.waiting:
                node.waiting.remove(attempt_id)
            end = Finished(attempt_id=attempt_id, outcome=outcome, reason=reason, runtime_s=0.2)
            node.ends.setdefault(attempt_id, (end, 0.0))

    def _tick(self, node: Played, now: float) -> None:
        self._break(node, now)
        told: list[Started | Finished] = []
        for attempt_id in [a for a, until in node.running.items() if until <= now]:
            self._end(node, [attempt_id], Outcome.SUCCEEDED)
        while node.waiting and len(node.running) < CPU.slots:
            attempt_id = node.waiting.pop(0)
            node.running[attempt_id] = now + self._draw.uniform(0.05, 0.4)
            told.append(Started(attempt_id=attempt_id))
        self.most_at_once = max(self.most_at_once, len(node.running))
        if now < node.silent_until:
            return
        for attempt_id, (end, due) in node.ends.items():
            if due <= now:
                told.append(end)
                node.ends[attempt_id] = end, now + RESEND_S
        if now >= node.beats_at:
            node.beats_at = now + HEARTBEAT_S
            node.sequence += 1
            has = Capabilities(cpus=1, memory_mib=1_000, devices=(CPU,)) if node.is_full else None
            node.is_full = False
            beat = Heartbeat(
                node_id=node.id, session=node.session, boot_id="b", sequence=node.sequence,
                attempts=node.held, capabilities=has,
            )  # fmt: skip
            self._publisher.publish(names.HEARTBEATS, dump(beat), persistent=False)
        if told and self._draw.random() < 0.95:  # else it is lost
            body = dump(Reports(node_id=node.id, session=node.session, items=tuple(told)))
            for _ in range(1 if self._draw.random() < 0.9 else 2):
                self._publisher.publish(names.REPORTS, body, persistent=True)

    def _break(self, node: Played, now: float) -> None:
        """Once in a while it falls silent, for less or more than its lease, or is started anew."""
        if now < node.silent_until or now < node.breaks_at:
            return
        is_first, node.breaks_at = not node.breaks_at, now + self._draw.expovariate(1 / BREAKS_EACH_S)
        if is_first:
            return
        if self._draw.random() < 0.5:
            node.silent_until = now + self._draw.uniform(1, 12)
            return
        node.session, node.sequence, node.is_full, node.beats_at = uuid.uuid4().hex, 0, True, 0.0
        self._end(node, node.held, Outcome.NODE_LOST, "the agent was restarted")


@pytest.mark.timeout(900)
def test_f41_a_crowd_with_faults_all_along(farm: BreakableFarm, draw: random.Random) -> None:
    """Nodes fall silent and start anew, messages are lost and doubled, schedulers killed: each frame once."""
    farm.extra |= {"FARM_HEARTBEAT_S": str(HEARTBEAT_S), "FARM_LEASE_S": "8", "FARM_FENCE_S": "4"}
    farm.start_all(agents=0, schedulers=2)
    with Fleet(farm.broker_url, draw) as fleet:
        wait_until(lambda: len(farm.nodes_online()) == NODES, "the nodes are online", timeout_s=120)
        where = ("--frames", f"1-{FRAMES}", "--output", "/nowhere/#.dat")
        job_id = farm.submit(*where, "--", "/bin/true", "{output}")
        began = time.monotonic()
        sizes: list[int] = []
        killed_at = began

        def is_over() -> bool:
            nonlocal killed_at
            assert fleet.failed is None, fleet.failed
            if time.monotonic() - killed_at > KILL_EVERY_S:
                killed_at = time.monotonic()
                name = draw.choice(["scheduler0", "scheduler1"])
                sizes.append(psutil.Process(farm.processes[name].pid).memory_info().rss)
                farm.kill(name)
                farm.start_again(name)
            view = farm.try_get(f"/jobs/{job_id}")
            return view is not None and view["job"]["state"] in ("done", "failed")

        wait_until(is_over, "the job's end", timeout_s=20_000, pause_s=0.5)
        took_s = time.monotonic() - began
        engine = sa.create_engine(farm.database_url.replace("postgresql:", "postgresql+psycopg:"))

        def live() -> int:
            with engine.connect() as db:
                return int(db.scalar(sa.text(
                    "SELECT count(*) FROM attempt WHERE state IN ('assigned', 'running', 'cancelling')"
                )))  # fmt: skip

        # Of two copies of a last frame the loser is still being told to stop.
        wait_until(lambda: live() == 0, "nothing runs for a job that is over", timeout_s=60)
    with engine.connect() as db:
        counted = db.execute(sa.text("SELECT state, count(*) FROM task GROUP BY state"))
        states: dict[str, int] = {row[0]: row[1] for row in counted}
        won = db.execute(sa.text(
            "SELECT count(*), count(DISTINCT task_id) FROM attempt WHERE state = 'succeeded'"
        )).one()  # fmt: skip
        given_up = [(str(row[0]), int(row[1])) for row in db.execute(sa.text(
            "SELECT task.reason, count(DISTINCT attempt.node_id) FROM task"
            " JOIN attempt ON attempt.task_id = task.id"
            " WHERE task.state = 'failed' AND attempt.state = 'lost' AND attempt.started_at IS NOT NULL"
            " GROUP BY task.id, task.reason"
        ))]  # fmt: skip
        starts = db.scalar(sa.text("SELECT sum(starts) FROM task"))
        spent = db.scalar(sa.text("SELECT sum(failures) FROM task"))
    engine.dispose()
    print(f"{FRAMES} frames on {NODES} nodes in {took_s:.0f} s, {starts / FRAMES:.3f} starts for each")
    # A task under which several nodes fell silent, one after the other, may be the cause: it is given up.
    assert all(nodes >= MAX_BAD_NODES for _, nodes in given_up), given_up
    assert all("different nodes" in reason for reason, _ in given_up), given_up
    done = FRAMES - len(given_up)
    assert states == {"done": done} | ({"failed": len(given_up)} if given_up else {})
    assert done >= FRAMES * 0.99
    assert tuple(won) == (done, done)
    assert spent == 0
    assert starts <= FRAMES * 1.5
    assert fleet.most_at_once <= CPU.slots
    assert all(size < 400e6 for size in sizes), sizes
