"""The thread that writes journal and spool, so that a slow or full disk never stops the supervisor.

What is to be written is handed over in batches as large as the disk is slow. When the disk fails, work goes
on and ends are still sent: only the memory across a crash is lost, and that is said in the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from farm.failpoints import reach
from farm.model.ids import AttemptId
from farm.wire.messages import Finished, Started
from workers.instructions import StagePlace
from workers.journal import Journal
from workers.spool import Spool

_LOG = logging.getLogger(__name__)
_LINGER_S = 0.004
"""For more notes to come, where the last ones came within as long: waking up costs more than writing one.
What an attempt waits for does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnHost:
    """The attempt was given to this process."""

    attempt_id: AttemptId
    pid: int
    started: float | None
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    attempts: tuple[tuple[AttemptId, StagePlace | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    attempt_ids: tuple[AttemptId, ...]


Note = Received | OnHost | Started | Finished | Accepted


class Scribe:
    """Start it after `journal` and `spool` are loaded; they are its own from then on."""

    def __init__(
        self,
        journal: Journal,
        spool: Spool,
        *,
        on_recorded: Callable[[tuple[AttemptId, ...]], None],
        on_reports: Callable[[list[Started | Finished]], None],
    ) -> None:
        self._journal = journal
        self._spool = spool
        self._on_recorded = on_recorded
        self._on_reports = on_reports
        self._changed = threading.Condition()
        self._notes: list[Note] = []
        self._is_urgent = False
        self._is_stopping = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="scribe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, *notes: Note) -> None:
        """Hand over; from any thread."""
        is_urgent = any(isinstance(note, Received) for note in notes)
        with self._changed:
            if is_urgent or not self._notes:
                self._changed.notify()
            self._is_urgent |= is_urgent
            self._notes += notes

    def stop(self, timeout_s: float) -> None:
        """Write what was handed over, then end."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        taken_at = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._notes or self._is_stopping)
                if time.monotonic() - taken_at < 2 * _LINGER_S:
                    self._changed.wait_for(lambda: self._is_urgent or self._is_stopping, _LINGER_S)
                notes, self._notes, self._is_urgent = self._notes, [], False
                is_last = self._is_stopping
            taken_at = time.monotonic()
            if notes:
                self._take(notes)
            if is_last:
                self._journal.close()
                self._spool.close()
                return

    def _take(self, notes: list[Note]) -> None:
        """Write first, then say that it is written."""
        reach("agent.writing")
        try:
            self._write(notes)
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                _LOG.error("journal and spool cannot be written, work goes on without them: %s", error)
            self._is_failing = True
        reach("agent.written")
        recorded = tuple(a for note in notes if isinstance(note, Received) for a, _ in note.attempts)
        if recorded:
            self._on_recorded(recorded)
        reports = [note for note in notes if isinstance(note, Started | Finished)]
        if reports:
            self._on_reports(reports)

    def _write(self, notes: list[Note]) -> None:
        received = [attempt for note in notes if isinstance(note, Received) for attempt in note.attempts]
        ends = [note for note in notes if isinstance(note, Finished)]
        accepted = [a for note in notes if isinstance(note, Accepted) for a in note.attempt_ids]
        self._journal.received(received)
        for note in notes:
            if isinstance(note, OnHost):
                self._journal.on_host(
                    note.attempt_id, pid=note.pid, started=note.started, boot_id=note.boot_id
                )
        # The report first: a journal that knows an end whose report is lost would keep it from the farm.
        self._spool.add(ends)
        self._journal.ended(end.attempt_id for end in ends)
        self._spool.accept(accepted)
        self._journal.accepted(accepted)
