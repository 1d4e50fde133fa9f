"""The thread that speaks to the farm, on a broker connection of its own.

Heartbeats go first, then reports, then (with what time is left) logs and progress. Ends are sent again every
`RESEND_S` and after each reconnect, until the farm accepts them. While the broker is away, heartbeats and
progress keep only their newest, and log text is kept up to `MOST_LOG_BYTES`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from farm.errors import Unavailable
from farm.failpoints import reach
from farm.model.ids import AttemptId, NodeId
from farm.text import clean, duration, plural
from farm.trouble import Trouble
from farm.wire import queues
from farm.wire.messages import Finished, Heartbeat, LogChunk, Progress, Reports, Started, Telemetry, dump

_LOG = logging.getLogger(__name__)
RESEND_S = 10.0
BATCH_S = 0.01
BUSY_BATCH_S = 0.025
MANY = 5
"""Least time between two rounds, the longer one after a round of `MANY` reports: what gathers meanwhile goes
out together. A round does not wait until the one before is confirmed, which can take the sync of a disk."""
TELEMETRY_S = 0.2
"""Least time between two rounds of progress and logs."""
FLUSH_S = 5.0
"""A broker that does not confirm for this long is taken as lost."""
IDLE_S = 3.0
"""An idle connection is looked after this often (it is given up by the broker after 10 s of silence)."""
RETRY_S = (0.2, 0.5, 1.0, 2.0)
MOST_ITEMS = 200
"""Reports in one message."""
MOST_LOG_BYTES = 4 * 1024 * 1024
_ROUND_LOG_BYTES = 256 * 1024


class Publishes(Protocol):
    """The part of `farm.broker.publisher.Publisher` that is used here."""

    def publish(
        self, routing_key: str, body: bytes, *, persistent: bool, celery_task: str | None = None
    ) -> None: ...
    @property
    def sent(self) -> int: ...
    @property
    def blocked(self) -> str: ...
    def heard(self, wanted: int, timeout_s: float) -> int: ...
    def heartbeat(self) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class _Round:
    """What one round takes along."""

    heartbeat: Heartbeat | None = None
    reports: list[Started | Finished] = field(default_factory=list)
    parked: list[bytes] = field(default_factory=list)
    logs: list[LogChunk] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    sent_at: float = 0.0
    mark: int = 0
    """It is confirmed when so many messages of the connection are."""

    @property
    def is_empty(self) -> bool:
        return not (self.heartbeat or self.reports or self.parked or self.logs or self.progress)


class Sender:
    """All methods may be called from any thread; none blocks."""

    def __init__(
        self,
        node_id: NodeId,
        session: str,
        make_publisher: Callable[[], Publishes],
        waiting: Iterable[Finished] = (),
    ) -> None:
        """waiting: ends that an earlier session could not deliver."""
        self._node_id = node_id
        self._session = session
        self._make_publisher = make_publisher
        self._changed = threading.Condition()
        self._heartbeat: Heartbeat | None = None
        self._fresh: list[Started | Finished] = []
        self._unaccepted: dict[AttemptId, Finished] = {end.attempt_id: end for end in waiting}
        self._resend_at: dict[AttemptId, float] = dict.fromkeys(self._unaccepted, 0.0)
        self._parked: list[bytes] = []
        self._progress: dict[AttemptId, Progress] = {}
        self._logs: deque[LogChunk] = deque()
        self._log_bytes = 0
        self._telemetry_at = 0.0
        self._is_stopping = False
        self._stop_by = 0.0
        self._out: deque[_Round] = deque()
        """Rounds that the broker has not confirmed yet, oldest first."""
        self._trouble = Trouble()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        with self._changed:
            older = self._heartbeat
            if older is not None and heartbeat.capabilities is None and older.capabilities is not None:
                # The one that it replaces was to introduce the node: that must not get lost.
                heartbeat = _with_capabilities(heartbeat, older)
            self._heartbeat = heartbeat
            self._changed.notify()

    def reports(self, items: Iterable[Started | Finished]) -> None:
        with self._changed:
            for item in items:
                self._fresh.append(item)
                if isinstance(item, Finished):
                    self._unaccepted[item.attempt_id] = item
            self._changed.notify()

    def resend(self, attempt_id: AttemptId) -> None:
        """Send the end again now, if it is not accepted."""
        with self._changed:
            if attempt_id in self._resend_at:
                self._resend_at[attempt_id] = 0.0
                self._changed.notify()

    def accepted(self, attempt_ids: Iterable[AttemptId]) -> None:
        with self._changed:
            for attempt_id in attempt_ids:
                self._unaccepted.pop(attempt_id, None)
                self._resend_at.pop(attempt_id, None)

    def progress(self, progress: Progress) -> None:
        with self._changed:
            is_first = not self._progress and not self._logs
            self._progress[progress.attempt_id] = progress
            if is_first:
                self._changed.notify()

    def log(self, chunk: LogChunk) -> None:
        with self._changed:
            is_first = not self._progress and not self._logs
            self._keep_log(chunk, newest=True)
            if is_first:
                self._changed.notify()

    def park(self, body: bytes) -> None:
        """Keep a message that this version cannot read (a ParkedMessage), for a newer one or a person."""
        with self._changed:
            self._parked.append(body)
            self._changed.notify()

    def stop(self, timeout_s: float) -> bool:
        """Send what there is, then end. False when the broker did not take all in time."""
        with self._changed:
            self._is_stopping = True
            self._stop_by = time.monotonic() + timeout_s
            self._changed.notify()
        self._thread.join(timeout_s + 1.0)
        with self._changed:
            return not self._fresh and not self._out

    # --- its thread ---

    def _run(self) -> None:
        publisher = self._make_publisher()
        failures = 0
        while (batch := self._next_round()) is not None:
            next_at = time.monotonic() + (BUSY_BATCH_S if len(batch.reports) >= MANY else BATCH_S)
            try:
                if not batch.is_empty:
                    self._send(publisher, batch)
                elif not self._out:
                    publisher.heartbeat()
                self._hear(publisher, next_at)
                failures = 0
            except Unavailable as error:
                self._put_back()
                self._say_away(error)
                publisher.close()
                if self._pause(RETRY_S[min(failures, len(RETRY_S) - 1)]):
                    break
                failures += 1
                continue
            self._pause(next_at - time.monotonic())
        publisher.close()

    def _next_round(self) -> _Round | None:
        """Wait for something to do; None to end, an empty round when only the connection wants care or
        what is out has to be confirmed."""
        with self._changed:
            give_up_at = time.monotonic() + IDLE_S
            while True:
                now = time.monotonic()
                if self._is_stopping and now >= self._stop_by:
                    return None
                batch = self._take(now)
                if not batch.is_empty or self._out:
                    return batch
                if self._is_stopping:
                    return None
                if now >= give_up_at:
                    return batch
                wake_at = give_up_at
                if self._progress or self._logs:
                    wake_at = min(wake_at, self._telemetry_at)
                if self._resend_at:
                    wake_at = min(wake_at, min(self._resend_at.values()))
                self._changed.wait(max(wake_at - now, 0.001))

    def _take(self, now: float) -> _Round:
        batch = _Round(heartbeat=self._heartbeat)
        self._heartbeat = None
        batch.reports, self._fresh = self._fresh, []
        fresh = {item.attempt_id for item in batch.reports}
        for item in batch.reports:
            if item.attempt_id in self._unaccepted:
                self._resend_at[item.attempt_id] = now + RESEND_S
        for attempt_id, due in self._resend_at.items():
            if due <= now and attempt_id not in fresh:
                batch.reports.append(self._unaccepted[attempt_id])
                self._resend_at[attempt_id] = now + RESEND_S
        batch.parked, self._parked = self._parked, []
        has_end = any(isinstance(item, Finished) for item in batch.reports)
        if now >= self._telemetry_at or has_end or self._is_stopping:
            batch.progress = list(self._progress.values())
            self._progress.clear()
            taken = 0
            while self._logs and taken < _ROUND_LOG_BYTES:
                chunk = self._logs.popleft()
                batch.logs.append(chunk)
                taken += len(chunk.text)
            self._log_bytes -= taken
            if batch.progress or batch.logs:
                self._telemetry_at = now + TELEMETRY_S
        return batch

    def _send(self, publisher: Publishes, batch: _Round) -> None:
        """Hand a round to the broker. Raises Unavailable."""
        batch.sent_at = time.monotonic()
        self._out.append(batch)
        if batch.heartbeat is not None:
            publisher.publish(queues.HEARTBEATS, dump(batch.heartbeat), persistent=False)
        for first in range(0, len(batch.reports), MOST_ITEMS):
            reports = Reports(
                node_id=self._node_id,
                session=self._session,
                items=tuple(batch.reports[first : first + MOST_ITEMS]),
            )
            publisher.publish(queues.REPORTS, dump(reports), persistent=True)
        for body in batch.parked:
            publisher.publish(queues.PARKED, body, persistent=True)
        if batch.logs or batch.progress:
            telemetry = Telemetry(node_id=self._node_id, items=(*batch.logs, *batch.progress))
            publisher.publish(queues.TELEMETRY, dump(telemetry), persistent=False)
        batch.mark = publisher.sent

    def _hear(self, publisher: Publishes, until: float) -> None:
        """Take out the rounds that the broker confirms by then. Raises Unavailable when it takes too long."""
        if not self._out:
            return
        heard = publisher.heard(self._out[-1].mark, max(until - time.monotonic(), 0.0))
        while self._out and self._out[0].mark <= heard:
            self._say_if_back()
            if self._out.popleft().reports:
                reach("agent.reported")
        if self._out and time.monotonic() - self._out[0].sent_at > FLUSH_S:
            why = publisher.blocked or f"no confirm for {len(self._out)} rounds"
            raise Unavailable(f"the broker did not confirm within {FLUSH_S:.0f} s: {why}")

    def _put_back(self) -> None:
        """What the broker has not confirmed goes out again, in the order in which it went."""
        with self._changed:
            while self._out:
                self._put_back_round(self._out.pop())
            # What was confirmed to a broker that then failed may be lost with it.
            for attempt_id in self._resend_at:
                self._resend_at[attempt_id] = 0.0

    def _put_back_round(self, batch: _Round) -> None:
        if batch.heartbeat is not None:
            if self._heartbeat is None:
                self._heartbeat = batch.heartbeat
            elif self._heartbeat.capabilities is None:
                self._heartbeat = _with_capabilities(self._heartbeat, batch.heartbeat)
        known = {item.attempt_id for item in self._fresh if isinstance(item, Finished)}
        self._fresh[:0] = [
            item
            for item in batch.reports
            if isinstance(item, Started)
            or (item.attempt_id in self._unaccepted and item.attempt_id not in known)
        ]
        self._parked[:0] = batch.parked
        for chunk in reversed(batch.logs):
            self._keep_log(chunk, newest=False)

    def _keep_log(self, chunk: LogChunk, *, newest: bool) -> None:
        """Keep it, and drop the oldest text when there is too much."""
        if newest:
            self._logs.append(chunk)
        else:
            self._logs.appendleft(chunk)
        self._log_bytes += len(chunk.text)
        while self._log_bytes > MOST_LOG_BYTES and len(self._logs) > 1:
            self._log_bytes -= len(self._logs.popleft().text)

    def _say_away(self, error: Unavailable) -> None:
        text = clean(str(error), limit=300, one_line=True)
        if self._trouble.is_news(text, time.monotonic()):
            with self._changed:
                waiting = len(self._unaccepted)
            _LOG.warning("%s; work goes on, %s to be told later", text, plural(waiting, "end"))

    def _say_if_back(self) -> None:
        lasted_s = self._trouble.lasted_s(time.monotonic())
        if lasted_s is not None:
            _LOG.info("the broker is back, after %s", duration(lasted_s))

    def _pause(self, seconds: float) -> bool:
        """Wait; True when it is time to give up."""
        if seconds > 0:
            with self._changed:
                if not self._is_stopping:
                    self._changed.wait_for(lambda: self._is_stopping, seconds)
                    return False
            time.sleep(min(seconds, 0.05))
        with self._changed:
            return self._is_stopping and time.monotonic() >= self._stop_by


def _with_capabilities(heartbeat: Heartbeat, older: Heartbeat) -> Heartbeat:
    return replace(heartbeat, capabilities=older.capabilities)
