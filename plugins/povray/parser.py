"""What POV-Ray 3.7 prints, around it the markers of render.sh. Pure.

POV-Ray says nothing of a missing camera: it renders from where it stands and exits 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.model.plugin import Reading
from farm.model.states import Outcome
from plugins import markers

_LIMIT = 500
_RENDERED = re.compile(r"Rendered ([0-9]{1,12}) of ([0-9]{1,12}) pixels \(([0-9]{1,3})%\)")
_RESOLUTION = re.compile(r"Image resolution\.* ?([0-9]{1,6}) by ([0-9]{1,6})\b")
_PARSE_ERROR = re.compile(r"(?:File '.{0,400}' line [0-9]{1,9}: )?Parse Error: ")
_MISSING = re.compile(
    r"(?:File '.{0,400}' line [0-9]{1,9}: )?Possible Parse Error: Cannot find file '(.{1,300}?)'"
)
_OPTION = re.compile(r"Failed to parse command-line option|Problem with option setting")
_FATAL = re.compile(r"Fatal error in (?:parser|renderer): |Fatal Error: |Render failed\Z")
_FILE = re.compile(r"Cannot (?:access data in|open|write|create) (?:output )?file")
_MEMORY = re.compile(
    r"(?:Out of memory|std::bad_alloc|terminate called after throwing .{0,40}bad_alloc)", re.I
)


@dataclass(slots=True)
class PovrayParser:
    """One attempt's output. `frames` are the task's; none for a still."""

    frames: tuple[int, ...]
    _done: int = 0
    _fraction: float = 0.0
    _is_rendering: bool = False
    _has_failed: bool = False

    def feed(self, line: str) -> Reading | None:
        """None for a line that says nothing new."""
        line = line.strip()
        marker = markers.read(line)
        if marker is not None:
            return self._marker(marker)
        if match := _RENDERED.match(line):
            done, whole = int(match.group(1)), int(match.group(2))
            fraction = self._advance(self._done, done / whole if whole else 0.0)
            return Reading(fraction=fraction, message=match.group(), is_rendering=True)
        if match := _RESOLUTION.match(line):
            return Reading(width=int(match.group(1)), height=int(match.group(2)))
        if line.startswith("==== [Parsing...]"):
            return Reading(message="parsing the scene")
        if line.startswith("==== [Rendering...]"):
            self._is_rendering = True
            return Reading(message="rendering", is_rendering=True)
        return self._trouble(line)

    def _marker(self, marker: markers.Marker) -> Reading | None:
        if marker.key == "error":
            return self._fatal(marker.rest, Outcome.STORAGE if "is the disk full?" in marker.rest else None)
        position = markers.position(marker.rest)
        if position is None:
            return None
        if marker.key == "frame":
            message = f"frame {position.what} ({position.index} of {position.count})"
            return Reading(fraction=self._advance(position.index - 1, 0.0), message=message)
        if marker.key == "saved":
            return Reading(fraction=self._advance(position.index, 0.0))
        return None

    def _trouble(self, line: str) -> Reading | None:
        if match := _MISSING.match(line):
            return Reading(warning=f"missing file: {match.group(1)}")
        if _MEMORY.match(line):
            return self._fatal(line, Outcome.OUT_OF_MEMORY)
        if "No space left on device" in line:
            return self._fatal(line, Outcome.STORAGE)
        if _FILE.match(line):
            if self._is_rendering:
                return self._fatal(f"{line} Is the disk full?", Outcome.STORAGE)
            return self._fatal(line)
        if _PARSE_ERROR.match(line) or _OPTION.match(line):
            return self._fatal(line, is_final="Cannot open" not in line)  # another node may have the file
        if (
            _FATAL.match(line) and not self._has_failed
        ):  # the end of every failure: what was said before is better
            return self._fatal(line)
        return None

    def _advance(self, done: int, inner: float) -> float:
        """The fraction of the task. It never goes back, though radiosity counts the pixels twice."""
        self._done = done
        total = max(len(self.frames), 1)
        self._fraction = max(self._fraction, min((done + min(inner, 1.0)) / total, 1.0))
        return self._fraction

    def _fatal(self, text: str, outcome: Outcome | None = None, *, is_final: bool = False) -> Reading:
        self._has_failed = True
        return Reading(fatal=text[:_LIMIT], outcome=outcome, is_final=is_final)
