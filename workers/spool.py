"""Ends that the farm has not accepted yet, on disk (`state_dir/spool`, JSON lines).

An end is written before it is sent, is sent again until the farm says that it has stored it, and only then
dropped: neither a broker that forgets, nor a crash of the agent or the farm, loses one. Starts are not
spooled: an agent that takes a running attempt over tells its start again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from farm.model.ids import AttemptId
from farm.wire.messages import Finished, UnknownMessage, dump, load
from workers.linefile import LineFile, line_of

_LOG = logging.getLogger(__name__)
_SLACK = 5_000
"""Superfluous lines that start a rewrite."""


class Spool:
    """Owned by one thread. What is said to it holds in memory even when writing it raises OSError."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)
        self.waiting: dict[AttemptId, Finished] = {}

    def load(self) -> None:
        """Read what earlier sessions wrote, and write it anew without what was accepted."""
        for record in self._file.read():
            if isinstance(record.get("accepted"), str):
                self.waiting.pop(AttemptId(record["accepted"]), None)
                continue
            try:
                finished: Finished = load(Finished, json.dumps(record.get("finished")))
            except UnknownMessage:
                _LOG.warning("a spooled report cannot be read and is skipped")
                continue
            self.waiting[finished.attempt_id] = finished
        self._compact()

    def add(self, reports: Iterable[Finished]) -> None:
        reports = tuple(reports)
        self.waiting |= {report.attempt_id: report for report in reports}
        self._file.append(map(_line, reports))

    def accept(self, attempt_ids: Iterable[AttemptId]) -> None:
        known = [attempt_id for attempt_id in attempt_ids if self.waiting.pop(attempt_id, None) is not None]
        self._file.append(line_of({"accepted": attempt_id}) for attempt_id in known)
        if self._file.lines > 2 * len(self.waiting) + _SLACK:
            self._compact()

    def close(self) -> None:
        self._file.close()

    def _compact(self) -> None:
        self._file.rewrite(map(_line, self.waiting.values()))


def _line(report: Finished) -> bytes:
    return b'{"finished":' + dump(report) + b"}"
