"""Heartbeats, reports and logs on their way out, with a broker that comes and goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from farm.errors import Unavailable
from farm.model.ids import AttemptId, NodeId
from farm.model.machines import Capabilities
from farm.model.states import Outcome
from farm.wire import queues
from farm.wire.messages import (
    Finished,
    FromNode,
    Heartbeat,
    LogChunk,
    Progress,
    Reports,
    Started,
    Telemetry,
    load,
)
from tests.waiting import wait_until
from workers import sender as sender_module
from workers.sender import Sender

A, B = AttemptId("a"), AttemptId("b")


class Broker:
    """Keeps what was confirmed. `is_up`: whether it takes anything."""

    def __init__(self) -> None:
        self.is_up = True
        self.kept: list[tuple[str, object, bool]] = []
        self.flushes = 0
        self.cares = 0
        self.closes = 0
        self._changed = threading.Condition()
        self._open: list[tuple[str, object, bool]] = []
        self.is_slow = False
        """Takes messages and confirms none."""
        self.sent = 0
        self.blocked = ""
        self.taken: list[object] = []

    def publish(
        self, routing_key: str, body: bytes, *, persistent: bool, celery_task: str | None = None
    ) -> None:
        if not self.is_up:
            raise Unavailable("the broker cannot be reached")
        message = body if routing_key == queues.PARKED else load(FromNode, body)
        with self._changed:
            self._open.append((routing_key, message, persistent))
            self.sent += 1
            self.taken.append(message)
            self._changed.notify_all()

    def heard(self, wanted: int, timeout_s: float) -> int:
        if not self.is_up:
            raise Unavailable("the broker was lost")
        with self._changed:
            if self.is_slow:
                self._changed.wait_for(lambda: not self.is_slow, timeout_s)
                return self.sent - len(self._open)
            opened, self._open = self._open, []
            self.kept += opened
            self.flushes += 1
            self._changed.notify_all()
            return self.sent

    def confirm(self) -> None:
        with self._changed:
            self.is_slow = False
            self._changed.notify_all()

    def heartbeat(self) -> None:
        self.cares += 1

    def close(self) -> None:
        with self._changed:
            self._open = []
            self.sent = 0
            self.closes += 1
            self._changed.notify_all()

    def until_closed(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.closes, 30), "the connection is kept"

    def of(self, kind: type) -> list[object]:
        return [message for _, message, _ in self.kept if isinstance(message, kind)]

    def until(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 30), f"the last were {self.kept[-3:]}"


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def sender(broker: Broker) -> Iterator[Sender]:
    sender = Sender(NodeId("n"), "session", lambda: broker)
    sender.start()
    yield sender
    broker.is_up = True
    assert sender.stop(5)


def end(attempt_id: AttemptId) -> Finished:
    return Finished(attempt_id=attempt_id, outcome=Outcome.SUCCEEDED)


def beat(sequence: int, capabilities: Capabilities | None = None) -> Heartbeat:
    return Heartbeat(
        node_id=NodeId("n"), session="session", boot_id="b", sequence=sequence, capabilities=capabilities
    )


def items(broker: Broker) -> list[object]:
    return [item for reports in broker.of(Reports) for item in reports.items]  # type: ignore[attr-defined]


def test_reports_go_out_durably_and_in_order(sender: Sender, broker: Broker) -> None:
    sender.reports([Started(attempt_id=A), end(A)])
    broker.until(lambda: len(items(broker)) == 2)
    assert items(broker) == [Started(attempt_id=A), end(A)]
    assert broker.kept[0][0] == queues.REPORTS
    assert broker.kept[0][2], "persistent"


def test_what_gathers_while_a_round_is_out_goes_together(sender: Sender, broker: Broker) -> None:
    for number in range(400):
        sender.reports([end(AttemptId(str(number)))])
    broker.until(lambda: len(items(broker)) == 400)
    assert len(broker.of(Reports)) < 40


def test_a_report_does_not_wait_for_the_broker_to_confirm_the_one_before(
    sender: Sender, broker: Broker
) -> None:
    broker.is_slow = True
    sender.reports([Started(attempt_id=A)])
    broker.until(lambda: len(broker.taken) == 1)
    sender.reports([Started(attempt_id=B)])
    broker.until(lambda: len(broker.taken) == 2)
    assert not broker.kept
    broker.confirm()
    broker.until(lambda: items(broker) == [Started(attempt_id=A), Started(attempt_id=B)])


def test_what_a_broker_never_confirms_goes_out_again_in_its_order(
    sender: Sender, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.is_slow = True
    sender.heartbeat(beat(1, Capabilities(cpus=3)))
    broker.until(lambda: len(broker.taken) == 1)
    sender.reports([Started(attempt_id=A), end(A)])
    broker.until(lambda: len(broker.taken) == 2)
    sender.reports([Started(attempt_id=B)])
    monkeypatch.setattr(sender_module, "FLUSH_S", 0.0)
    broker.until_closed()
    broker.confirm()
    broker.until(lambda: len(items(broker)) == 3)
    assert items(broker) == [Started(attempt_id=A), end(A), Started(attempt_id=B)]
    assert broker.of(Heartbeat) == [beat(1, Capabilities(cpus=3))]


def test_a_broker_that_takes_and_never_confirms_is_told_of_once_and_not_taken_for_back(
    sender: Sender, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender_module, "FLUSH_S", 0.02)
    monkeypatch.setattr(sender_module, "RETRY_S", (0.01,))
    caplog.set_level("INFO", logger=sender_module.__name__)
    broker.is_slow = True
    sender.reports([Started(attempt_id=A)])
    broker.until(lambda: broker.closes >= 5)
    assert caplog.text.count("work goes on") == 1
    assert "is back" not in caplog.text
    broker.confirm()
    wait_until(lambda: "the broker is back, after" in caplog.text, "a word that it is back")


def test_an_end_is_sent_again_until_it_is_accepted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "RESEND_S", 0.02)
    sender = Sender(NodeId("n"), "session", lambda: broker, waiting=[end(B)])
    sender.start()
    sender.reports([Started(attempt_id=A), end(A)])
    broker.until(lambda: items(broker).count(end(A)) >= 3 and items(broker).count(end(B)) >= 3)
    assert items(broker).count(Started(attempt_id=A)) == 1
    sender.accepted([A])
    flushes = broker.flushes
    broker.until(lambda: broker.flushes > flushes + 3)
    broker.kept.clear()
    broker.until(lambda: items(broker))
    assert end(A) not in items(broker)
    assert sender.stop(5)


def test_nothing_is_lost_while_the_broker_is_away(
    sender: Sender, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.is_up = False
    sender.heartbeat(beat(1, Capabilities(cpus=3)))
    sender.reports([Started(attempt_id=A), end(A)])
    sender.log(LogChunk(attempt_id=A, sequence=0, text="one"))
    sender.log(LogChunk(attempt_id=A, sequence=1, text="two"))
    sender.heartbeat(beat(2))
    wait_until(lambda: "to be told later" in caplog.text, "that it is told later")
    broker.is_up = True
    broker.until(lambda: broker.of(Telemetry))
    assert items(broker)[:2] == [Started(attempt_id=A), end(A)]
    beats = broker.of(Heartbeat)
    assert beats[-1] == beat(2, Capabilities(cpus=3)), "the node is introduced by a later heartbeat"
    texts = [item.text for message in broker.of(Telemetry) for item in message.items]  # type: ignore[attr-defined]
    assert texts == ["one", "two"]
    assert "1 end to be told later" in caplog.text


def test_what_a_broker_had_confirmed_is_sent_again_after_it_failed(sender: Sender, broker: Broker) -> None:
    sender.reports([end(A)])
    broker.until(lambda: items(broker) == [end(A)])
    broker.is_up = False
    sender.heartbeat(beat(1))
    broker.until_closed()
    broker.is_up = True
    broker.until(lambda: items(broker) == [end(A), end(A)])


def test_the_backlog_of_logs_is_bounded(
    sender: Sender, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "MOST_LOG_BYTES", 1000)
    broker.is_up = False
    for number in range(100):
        sender.log(LogChunk(attempt_id=A, sequence=number, text="x" * 100))
    broker.is_up = True
    broker.until(lambda: broker.of(Telemetry))
    sequences = [item.sequence for message in broker.of(Telemetry) for item in message.items]  # type: ignore[attr-defined]
    assert sequences == list(range(90, 100)), "the newest are kept"


def test_progress_keeps_only_its_newest(sender: Sender, broker: Broker) -> None:
    sender.progress(Progress(attempt_id=A, fraction=0.0))
    broker.until(lambda: broker.of(Telemetry))
    for number in range(1, 101):
        sender.progress(Progress(attempt_id=A, fraction=number / 100))
    broker.until(lambda: len(broker.of(Telemetry)) >= 2)
    assert len(broker.of(Telemetry)) == 2
    assert broker.of(Telemetry)[1].items == (Progress(attempt_id=A, fraction=1.0),)  # type: ignore[attr-defined]


def test_an_unreadable_message_is_parked(sender: Sender, broker: Broker) -> None:
    sender.park(b"???")
    broker.until(lambda: broker.kept)
    assert broker.kept == [(queues.PARKED, b"???", True)]


def test_a_sender_that_cannot_deliver_says_so_and_ends(broker: Broker) -> None:
    sender = Sender(NodeId("n"), "session", lambda: broker)
    sender.start()
    broker.is_up = False
    sender.reports([end(A)])
    assert not sender.stop(0.3)
