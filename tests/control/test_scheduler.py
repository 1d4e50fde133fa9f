"""The scheduler's loop over real SQLite and the embedded broker, with a node played by the test."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from kombu.transport import memory

from farm.broker.intake import Intake
from farm.broker.publisher import Publisher
from farm.broker.queues import node_control_queue, node_launch_queue
from farm.control.scheduler import Scheduler, sort_messages
from farm.errors import Unavailable
from farm.flow.submit import plan_job
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.states import JobState, Outcome
from farm.model.work import Submission
from farm.settings import Settings, load_settings
from farm.store import events, jobs, logs, submitting
from farm.store.engine import open_engine, reading, writing
from farm.wire import queues as names
from farm.wire.messages import (
    Finished,
    Heartbeat,
    Launch,
    LogChunk,
    Order,
    Reports,
    Started,
    Telemetry,
    dump,
    load,
)
from tests.waiting import wait_until

NODE = NodeId("blade")


class PlayedNode:
    """Speaks for a node: announces itself, takes launches, and reports what the test tells it to."""

    def __init__(self) -> None:
        self._publisher = Publisher("memory://")
        self._intake = Intake("memory://", [node_launch_queue(NODE), node_control_queue(NODE)], prefetch=100)
        self._intake.drain(0.001, 1)
        self.control: list[dict[str, Any]] = []
        self._sequence = 0

    def beat(self, *attempts: AttemptId, node_id: NodeId = NODE) -> None:
        self._sequence += 1
        cpu = Device(id="cpu", kind=DeviceKind.CPU, model="test", slots=2)
        self.say(
            names.HEARTBEATS,
            Heartbeat(
                node_id=node_id,
                session="s1",
                boot_id="b1",
                sequence=self._sequence,
                attempts=attempts,
                capabilities=Capabilities(cpus=2, memory_mib=1000, devices=(cpu,)),
            ),
        )

    def say(self, queue: str, message: Any) -> None:
        self.say_raw(queue, dump(message))

    def say_raw(self, queue: str, body: bytes) -> None:
        self._publisher.publish(queue, body, persistent=True)

    def report(self, *items: Started | Finished) -> None:
        self.say(names.REPORTS, Reports(node_id=NODE, session="s1", items=items))

    def take(self) -> list[Launch]:
        launches = []
        for body in self._intake.drain(0.01, 100):
            message = json.loads(body)
            if isinstance(message, list):
                launches.append(load(Launch, json.dumps(message[0][0])))
            else:
                self.control.append(message)
        self._intake.acknowledge()
        return launches

    def close(self) -> None:
        self._publisher.close()
        self._intake.close()


@pytest.fixture
def settings(sqlite_url: str, tmp_path: Path) -> Settings:
    return load_settings(
        environment={}, database_url=sqlite_url, state_dir=tmp_path / "state", idle_tick_s=0.05
    )


@pytest.fixture
def hasty(settings: Settings) -> Settings:
    """Gives silent nodes up within a second or two."""
    short = {"lease_s": 1.0, "heartbeat_s": 0.2, "fence_s": 0.4, "kill_grace_s": 0.2}
    return settings.model_copy(update=short)


@pytest.fixture
def engine(settings: Settings) -> Iterator[sa.Engine]:
    opened = open_engine(settings.database)
    yield opened
    opened.dispose()


Running = Callable[[Settings], AbstractContextManager[PlayedNode]]


@pytest.fixture
def running(engine: sa.Engine) -> Running:
    """A node, and a scheduler that runs with the given settings."""

    @contextmanager
    def run(settings: Settings) -> Iterator[PlayedNode]:
        memory.Transport.global_state.clear()
        memory.Channel.queues.clear()
        stop = threading.Event()
        thread = threading.Thread(target=Scheduler(engine, settings).run, args=(stop,))
        thread.start()
        played = PlayedNode()
        # A message to a queue that nobody has declared yet is lost.
        wait_until(lambda: names.NUDGES in memory.Channel.queues, "a scheduler that listens")
        yield played
        stop.set()
        thread.join(10)
        assert not thread.is_alive()
        played.close()

    return run


@pytest.fixture
def node(running: Running, settings: Settings) -> Iterator[PlayedNode]:
    """A node, and a running scheduler."""
    with running(settings) as played:
        yield played


def submit(engine: sa.Engine, frames: str = "1-2") -> JobId:
    template = {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "t",
        "steps": [
            {
                "name": "run",
                "parameterSpace": {
                    "taskParameterDefinitions": [{"name": "Frame", "type": "INT", "range": frames}]
                },
                "script": {"actions": {"onRun": {"command": "x", "args": ["{{Task.Param.Frame}}"]}}},
            }
        ],
    }
    submission = Submission(name="t", template=template)
    plan = plan_job(submission, uid=str(uuid.uuid4()))
    with writing(engine) as db:
        return submitting.submit(db, submission, plan, actor="anna")[0]


def launched(node: PlayedNode, count: int) -> list[AttemptId]:
    """Attempt ids of `count` launches."""
    got: list[AttemptId] = []

    def enough() -> bool:
        for launch in node.take():
            got.extend(order.attempt_id for order in launch.orders)
        return len(got) >= count

    wait_until(enough, f"{count} launches")
    return got


def state(engine: sa.Engine, job_id: JobId) -> JobState:
    with reading(engine) as db:
        return jobs.read_job(db, job_id).state


def done(attempt_id: AttemptId) -> Finished:
    return Finished(attempt_id=attempt_id, outcome=Outcome.SUCCEEDED, runtime_s=1.0)


def test_a_job_goes_to_a_node_and_its_end_is_told(engine: sa.Engine, node: PlayedNode) -> None:
    job_id = submit(engine)
    node.beat()
    attempts = launched(node, 2)
    node.report(*(done(a) for a in attempts))
    wait_until(lambda: state(engine, job_id) is JobState.DONE, "the job done")

    def accepted() -> set[str]:
        node.take()
        told = [m["attempt_ids"] for m in node.control if m["kind"] == "reports-accepted"]
        return {a for ids in told for a in ids}

    wait_until(lambda: accepted() == set(attempts), "both ends accepted")


def test_a_report_told_twice_counts_once(engine: sa.Engine, node: PlayedNode) -> None:
    job_id = submit(engine)
    node.beat()
    attempts = launched(node, 2)
    for _ in range(3):
        node.report(*(done(a) for a in attempts))
    wait_until(lambda: state(engine, job_id) is JobState.DONE, "the job done")
    with reading(engine) as db:
        job = jobs.read_job(db, job_id)
        assert job.counts.done == 2
        assert job.steps[0].mean_runtime_s == 1.0


def test_what_cannot_be_read_is_parked_and_the_rest_goes_on(engine: sa.Engine, node: PlayedNode) -> None:
    job_id = submit(engine)
    node.say_raw(names.REPORTS, b'{"kind": "from-the-future", "wire": 99}')
    node.say_raw(names.REPORTS, b"\xff not json")
    node.beat()
    attempts = launched(node, 2)
    node.report(*(done(a) for a in attempts))
    wait_until(lambda: state(engine, job_id) is JobState.DONE, "the job done")
    assert memory.Channel.queues[names.PARKED].qsize() == 2


def test_two_agents_of_one_name_both_hear_what_is_said_to_each(node: PlayedNode) -> None:
    """They take from one queue in turn: the first must hear its answers, the second that it is refused."""

    def rival(sequence: int) -> None:
        beat = Heartbeat(node_id=NODE, session="s2", boot_id="b2", sequence=sequence)
        node.say(names.HEARTBEATS, beat)

    def answers() -> list[bool]:
        node.take()
        return [bool(said["refused"]) for said in node.control if said["kind"] == "heartbeat-answer"]

    node.beat()
    wait_until(answers, "the first one is taken")
    for sequence in range(4):
        before = len(answers())
        rival(sequence)
        wait_until(lambda n=before: len(answers()) > n + 1, "the second one is refused")  # type: ignore[misc]
        before = len(answers())
        node.beat()
        wait_until(lambda n=before: len(answers()) > n, "the first one is answered")  # type: ignore[misc]
    for dealt in (answers()[0::2], answers()[1::2]):
        assert {True, False} == set(dealt)


def test_what_the_database_refuses_does_not_keep_the_rest_out(
    engine: sa.Engine, node: PlayedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farm.control import scheduler

    real = logs.append

    def refuse(db: sa.Connection, node_id: NodeId, chunks: list[LogChunk]) -> None:
        if any(chunk.text == "poison" for chunk in chunks):
            db.exec_driver_sql("INSERT INTO nowhere VALUES (1)")
        real(db, node_id, chunks)

    monkeypatch.setattr(logs, "append", refuse)
    # OperationalError means "try again" elsewhere; a refused value is another error.
    monkeypatch.setattr(scheduler, "DBAPIError", (sa.exc.DBAPIError, Unavailable))
    job_id = submit(engine)
    node.beat()
    attempts = launched(node, 2)
    poison = LogChunk(attempt_id=attempts[0], sequence=0, text="poison")
    node.say(names.TELEMETRY, Telemetry(node_id=NODE, items=(poison,)))
    node.report(*(done(a) for a in attempts))
    wait_until(lambda: state(engine, job_id) is JobState.DONE, "the job done")


def test_messages_are_sorted_and_of_heartbeats_only_the_newest_counts() -> None:
    beats = [
        dump(Heartbeat(node_id=NODE, session="s", boot_id="b", sequence=sequence)) for sequence in (1, 2)
    ]
    heard = sort_messages([*beats, b'"nudge"', b"nonsense"])
    assert heard.heartbeats[NODE].sequence == 2
    assert heard.is_nudged
    assert heard.unreadable == [b"nonsense"]


def test_of_two_heartbeats_in_one_batch_the_later_one_counts_in_whatever_order() -> None:
    beats = [Heartbeat(node_id=NODE, session="s", boot_id="b", sequence=n) for n in (7, 5, 6)]
    heard = sort_messages([dump(beat) for beat in beats])
    assert heard.heartbeats[NODE].sequence == 7


def test_the_silence_of_most_nodes_is_taken_for_an_outage_and_that_of_one_is_not(
    engine: sa.Engine, hasty: Settings, running: Running
) -> None:
    with running(hasty) as node:
        submit(engine)
        node.beat()
        launched(node, 2)

        def told(kind: EventKind) -> bool:
            with reading(engine) as db:
                return any(event.kind is kind for event in events.read(db, after=0, limit=1000))

        def states() -> set[str]:
            with reading(engine) as db:
                return set(db.scalars(sa.text("SELECT state FROM task")))

        # The only node that works is silent: nobody could take its tasks.
        wait_until(lambda: told(EventKind.OUTAGE_SUSPECTED), "an outage")
        assert states() == {"assigned"}

        def others_are_heard() -> bool:
            for other in ("blade2", "blade3"):
                node.beat(node_id=NodeId(other))
            return told(EventKind.OUTAGE_ENDED)

        wait_until(others_are_heard, "the end of the outage")

        def given_up() -> bool:
            others_are_heard()
            return states() == {"held"}

        wait_until(given_up, "that the silent node's leases are given up")


def test_chunks_grow_to_the_target_and_shrink_towards_the_end(engine: sa.Engine, node: PlayedNode) -> None:
    space: dict[str, Any] = {"name": "Frame", "type": "CHUNK[INT]", "range": "1-80"}
    space["chunks"] = {"defaultTaskCount": 1, "rangeConstraint": "CONTIGUOUS", "targetRuntimeSeconds": 20}
    template = {
        "specificationVersion": "jobtemplate-2023-09",
        "extensions": ["TASK_CHUNKING"],
        "name": "t",
        "steps": [
            {
                "name": "run",
                "parameterSpace": {"taskParameterDefinitions": [space]},
                "script": {"actions": {"onRun": {"command": "x", "args": ["{{Task.Param.Frame}}"]}}},
            }
        ],
    }
    submission = Submission(name="t", template=template)
    with writing(engine) as db:
        job_id, _ = submitting.submit(db, submission, plan_job(submission, uid="u"), actor="anna")
    node.beat()
    rendered: list[tuple[int, ...]] = []
    waiting: list[Order] = []

    def tasks() -> int:
        with reading(engine) as db:
            return jobs.read_job(db, job_id).counts.total

    def render(order: Order) -> None:
        """A second to load, 2 s a frame."""
        rendered.append(order.frames)
        runtime_s = 1.0 + 2.0 * len(order.frames)
        node.report(
            Finished(attempt_id=order.attempt_id, outcome=Outcome.SUCCEEDED, runtime_s=runtime_s, load_s=1.0)
        )

    def some_work() -> bool:
        waiting.extend(order for launch in node.take() for order in launch.orders)
        return bool(waiting) or state(engine, job_id) is JobState.DONE

    before = tasks()
    while state(engine, job_id) is not JobState.DONE:
        wait_until(some_work, "another launch")
        for order in waiting:
            render(order)
        waiting.clear()
        if len(rendered) >= 2:
            # As a real renderer would, give the scheduler time before the rest is handed out.
            wait_until(lambda: tasks() != before, "the waiting chunks are cut anew")
    lengths = [len(frames) for frames in rendered]
    assert sorted(frame for frames in rendered for frame in frames) == list(range(1, 81))
    assert lengths[0] == 1
    assert 4 <= max(lengths) <= 10, lengths
    assert lengths[-1] < max(lengths), lengths
    assert len(rendered) == tasks() < 40
