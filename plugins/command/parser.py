"""The output of any command: what programs say about their progress, in the ways that are in use. Pure.

A line of a convention (`openjd_progress: 45`, CGRU's `PROGRESS: 45%`, Houdini's `ALF_PROGRESS 45%`) is
believed before a percentage found somewhere, and once one was seen, those are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.model.plugin import Reading
from farm.model.states import Outcome
from plugins import licences

_LIMIT = 500
_TOLD = re.compile(
    r"(?:openjd_progress: |(?:\[?PROGRESS\]?:?|ALF_PROGRESS|R90000) {1,4})([0-9]{1,3}(?:\.[0-9]{1,9})?)"
    r"(?: ?%| percent)?\s*\Z"
)
_STATUS = re.compile(r"(?:openjd_status|ACTIVITY): (.+)", re.DOTALL)
_FAIL = re.compile(r"openjd_fail: (.+)", re.DOTALL)
_BAD = re.compile(r"\[ PARSER (?:ERROR|BAD RESULT) \]")
_PERCENT = re.compile(r"(?<![0-9.,-])([0-9]{1,3}(?:\.[0-9]{1,9})?) ?%")
_NO_SPACE = re.compile(r"No space left on device")


@dataclass(slots=True)
class CommandParser:
    """One attempt's output."""

    _fraction: float = 0.0
    _is_told: bool = False

    def feed(self, line: str) -> Reading | None:
        """None for a line that says nothing new."""
        line = line.strip()
        if match := _TOLD.match(line):
            self._is_told = True
            return self._progress(match.group(1), "")
        if match := _STATUS.match(line):
            status = match.group(1)[:_LIMIT]
            return Reading(message=status, is_waiting_for_licence=licences.waits(status))
        if match := _FAIL.match(line):
            return Reading(fatal=match.group(1)[:_LIMIT])
        if _BAD.search(line[:_LIMIT]):
            return Reading(fatal=line[:_LIMIT])
        if _NO_SPACE.search(line[-_LIMIT:]):
            return Reading(outcome=Outcome.STORAGE, message=line[:_LIMIT])  # the command may have got over it
        if not self._is_told and (match := _PERCENT.search(line[-_LIMIT:])):
            return self._progress(match.group(1), line[:_LIMIT])
        return Reading(message=line[:_LIMIT], is_waiting_for_licence=True) if licences.waits(line) else None

    def _progress(self, percent: str, message: str) -> Reading | None:
        """Never goes back: many programs count to 100 % once for each phase."""
        fraction = float(percent) / 100
        if fraction > 1:
            return None
        self._fraction = max(self._fraction, fraction)
        return Reading(fraction=self._fraction, message=message, is_rendering=True)
