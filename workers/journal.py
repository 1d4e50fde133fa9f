"""What this node was asked to do, kept across crashes of its agent (`state_dir/journal`, JSON lines).

It answers two questions after a restart: was this attempt ever received here (then a doubled launch message
starts nothing), and which attempts had no end when the agent died. Those whose session host lives on are
taken over; the others are reported as lost at once, instead of waiting for their leases to run out.

Lines are written before an attempt starts, but not fsynced. A crash of the agent loses none, because the
kernel has them. After a power cut the last ones may be missing: then the machine's boot id has changed, no
renderer lives, the farm's lease runs out, and a doubled start of a staged attempt is harmless. An fsync for
each of a few hundred launches a second would cost more than all else that the agent does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.model.ids import AttemptId
from workers.instructions import StagePlace
from workers.lifecycle import REMEMBERED
from workers.linefile import LineFile, line_of

_SLACK = 20_000
"""Superfluous lines that start a rewrite."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One attempt as the journal knows it."""

    stage: StagePlace | None = None
    pid: int | None = None
    """Of its session host."""
    started: float | None = None
    """The host's start time, clock ticks since boot; with pid and boot id it names one process for ever."""
    boot_id: str = ""
    has_ended: bool = False


class Journal:
    """Owned by one thread. What is said to it holds in memory even when writing it raises OSError."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)
        self.entries: dict[AttemptId, Entry] = {}
        """What the farm has not accepted the end of."""
        self.accepted_ids: OrderedDict[AttemptId, None] = OrderedDict()
        """The last ones that it has, oldest first."""

    def load(self) -> None:
        """Read what earlier sessions wrote, and write it anew without what is superfluous."""
        for record in self._file.read():
            self._take(record)
        self._compact()

    def received(self, attempts: Iterable[tuple[AttemptId, StagePlace | None]]) -> None:
        records: list[dict[str, Any]] = []
        for attempt_id, stage in attempts:
            record: dict[str, Any] = {"received": attempt_id}
            if stage is not None:
                record |= {"directory": stage.directory, "job": stage.job_uid}
            records.append(record)
        self._write(records)

    def on_host(self, attempt_id: AttemptId, *, pid: int, started: float | None, boot_id: str) -> None:
        self._write([{"host": attempt_id, "pid": pid, "started": started, "boot": boot_id}])

    def ended(self, attempt_ids: Iterable[AttemptId]) -> None:
        self._write([{"ended": attempt_id} for attempt_id in attempt_ids])

    def accepted(self, attempt_ids: Iterable[AttemptId]) -> None:
        self._write([{"accepted": attempt_id} for attempt_id in attempt_ids])

    def close(self) -> None:
        self._file.close()

    def _write(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            self._take(record)
        self._file.append(map(line_of, records))
        if self._file.lines > 3 * len(self.entries) + len(self.accepted_ids) + _SLACK:
            self._compact()

    def _take(self, record: dict[str, Any]) -> None:
        match record:
            case {"received": str(attempt_id)}:
                entry = self._entry(attempt_id)
                if isinstance(record.get("directory"), str) and isinstance(record.get("job"), str):
                    entry.stage = StagePlace(directory=record["directory"], job_uid=record["job"])
            case {"host": str(attempt_id), "pid": int(pid)}:
                entry = self._entry(attempt_id)
                entry.pid = pid
                entry.started = record.get("started")
                entry.boot_id = str(record.get("boot", ""))
            case {"ended": str(attempt_id)}:
                self._entry(attempt_id).has_ended = True
            case {"accepted": str(attempt_id)}:
                self.entries.pop(AttemptId(attempt_id), None)
                self.accepted_ids[AttemptId(attempt_id)] = None
                if len(self.accepted_ids) > REMEMBERED:
                    self.accepted_ids.popitem(last=False)

    def _entry(self, attempt_id: str) -> Entry:
        return self.entries.setdefault(AttemptId(attempt_id), Entry())

    def _compact(self) -> None:
        records: list[dict[str, Any]] = [{"accepted": attempt_id} for attempt_id in self.accepted_ids]
        for attempt_id, entry in self.entries.items():
            record: dict[str, Any] = {"received": attempt_id}
            if entry.stage is not None:
                record |= {"directory": entry.stage.directory, "job": entry.stage.job_uid}
            records.append(record)
            if entry.pid is not None:
                records.append(
                    {"host": attempt_id, "pid": entry.pid, "started": entry.started, "boot": entry.boot_id}
                )
            if entry.has_ended:
                records.append({"ended": attempt_id})
        self._file.rewrite(map(line_of, records))
