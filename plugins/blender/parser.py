"""What Blender prints, 3.4 to 5.0, read line by line. Pure.

Three sources: the markers of our driver, the `Fra:` lines (up to 4.5; 5.0 prints none, its statistics come
through the driver), and messages. Names of objects and files stand inside all of them, so nothing is searched
for in the middle of a line that can hold a name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from farm.model.plugin import Reading
from farm.model.states import Outcome
from plugins import markers

_LIMIT = 500
"""Characters of a line that are shown to people."""

_FRAME_LINE = re.compile(r"Fra:(-?[0-9]{1,8}) Mem:")
_SAMPLE = re.compile(r"(?:Rendered ([0-9]{1,6})/([0-9]{1,6}) Tiles, )?Sample ([0-9]{1,9})/([0-9]{1,9})\b")
_EEVEE = re.compile(r"Rendering ([0-9]{1,9}) / ([0-9]{1,9}) samples\Z")
_SAVED = re.compile(r"(?:[0-9:.]+ +render +\| )?Saved: '")
_LOG_LINE = re.compile(r"[0-9]{2,}:[0-9]{2}\.[0-9]{3} +([a-z_.]{1,40}) +\| ")
"""The line head of 5.0: time since the start, the module."""
_MISSING_IMAGE = re.compile(r"ERROR Image file '(.+)' does not exist\.\Z")
_MISSING_LIBRARY = re.compile(r"(?:Warning: Unable to open|Info: Cannot find lib) ['\"](.+?)['\"](?::|$)")
_NEWER = re.compile(r"Warning: File written by newer Blender binary")

_NOT_READ = re.compile(
    r"Error: (?:Cannot read file|File format is not supported in file|Failed to read blend file|Loading \"|"
    r"Failed to load|.{1,400}: not a blend file|Cannot open file)"
)
_ENDS = re.compile(r"Error: (?:engine not found|script failed, |Cannot render\b)")
_FINAL = re.compile(r"Error: Cannot render, no camera|Can't find scene: ")
"""Nothing that a node could do better."""
_NO_SPACE = re.compile(r"No space left on device[).']*(?: cannot save: .*)?\Z")
_NOT_SAVED = re.compile(r"(?:Error: )?Render error \(.{0,200}\) cannot save: ")
_GPU_MEMORY = re.compile(
    r"(?:Error: )?(?:System is out of GPU (?:and shared host )?memory|Out of memory in |"
    r"(?:CUDA|HIP|OptiX|Metal|oneAPI) error: Out of memory|"
    r"(?:CUDA_ERROR|hipError|CUDA_ERR|OPTIX_ERROR)[A-Z_]*OUT_OF_MEMORY|"
    r"Failed to allocate .{0,80} GPU memory)",
    re.IGNORECASE,
)
_HOST_MEMORY = re.compile(r"(?:\b[A-Za-z ]{0,20}alloc(?: array)? returns null: len=|std::bad_alloc\b)")
_CRASH = re.compile(r"Writing: .{1,1000}\.crash\.txt\Z")
_NAMES = ("Read blend:", "Info: Read library:", "Info: Saved", "Blender quit")
"""Starts of lines that hold a path and no news."""


@dataclass(slots=True)
class BlenderParser:
    """One attempt's output. `frames` are the task's."""

    frames: tuple[int, ...]
    _done: int = 0
    _layers: int = 1
    _layer: int = 0
    """From 0; Cycles renders one view layer after the other."""
    _layer_fraction: float = 0.0
    _current: str = ""
    _has_driver: bool = False
    _fraction: float = 0.0
    _warned: set[str] = field(default_factory=set)

    def feed(self, line: str) -> Reading | None:
        """None for a line that says nothing new."""
        line = line.strip()
        marker = markers.read(line)
        if marker is not None:
            self._has_driver = True
            return self._marker(marker)
        if _FRAME_LINE.match(line):
            return self._statistics(line)
        if _SAVED.match(line):
            return None if self._has_driver else self._frame_done()
        if line.startswith(_NAMES):
            return None
        return self._message(line)

    def _marker(self, marker: markers.Marker) -> Reading | None:
        match marker.key:
            case "frame":
                position = markers.position(marker.rest)
                if position is None:
                    return None
                self._begin(position.what)
                return Reading(
                    fraction=self._advance(position.index - 1, 0.0),
                    message=f"frame {position.what} ({position.index} of {position.count})",
                    is_rendering=True,
                )
            case "saved":
                position = markers.position(marker.rest)
                return None if position is None else Reading(fraction=self._advance(position.index, 0.0))
            case "stats":
                return self._progress(marker.rest.split(" | "))
            case "size":
                size = markers.size(marker.rest)
                return None if size is None else Reading(width=size[0], height=size[1])
            case "layers":
                self._layers = int(marker.rest) if re.fullmatch("[1-9][0-9]{0,3}", marker.rest) else 1
                return None
            case "loaded":
                return Reading(message="scene loaded")
            case "missing":
                kind, _, path = marker.rest.partition(": ")
                return self._warn(path, f"missing {kind}: {path}")
            case "warning":
                return self._warn(marker.rest, marker.rest)
            case "error" | "refused":
                return self._fatal(marker.rest, is_final=marker.key == "refused")
            case _:
                return None

    def _statistics(self, line: str) -> Reading | None:
        parts = line.split(" | ")
        frame = line[4 : line.index(" ")]
        if not self._has_driver and frame != self._current:
            self._begin(frame)
        reading = self._progress(parts[1:])
        if reading is not None and reading.fatal:
            return reading
        message = f"frame {frame}: {parts[-1]}"[:_LIMIT]
        fraction = reading.fraction if reading is not None else None
        return Reading(fraction=fraction, message=message, is_rendering=True)

    def _progress(self, parts: list[str]) -> Reading | None:
        """The part of one frame. Samples that start again are the next view layer's."""
        last = parts[-1] if parts else ""
        if len(parts) >= 2 and parts[-2].startswith("Synchronizing"):
            return Reading(message=last[:_LIMIT])  # the name of an object, whatever it looks like
        if match := _EEVEE.match(last):
            inner = _ratio(int(match.group(1)), int(match.group(2)))
        elif match := _SAMPLE.match(last):
            tile, tiles, sample, samples = (int(group or 0) for group in match.groups())
            # The sample count starts again with each tile, and repeats its end when a tile is done.
            inner = _ratio(tile, tiles) if tiles else _ratio(sample, samples)
        elif last == "Finished":
            inner = 1.0
        elif _GPU_MEMORY.match(last):
            return self._fatal(last, Outcome.OUT_OF_MEMORY)
        else:
            return Reading(message=last[:_LIMIT]) if last else None
        if inner < self._layer_fraction:
            self._layer += 1
        self._layer_fraction = inner
        inner = (self._layer + inner) / max(self._layers, self._layer + 1)
        return Reading(fraction=self._advance(self._done, inner), message=last[:_LIMIT], is_rendering=True)

    def _message(self, line: str) -> Reading | None:
        head = _LOG_LINE.match(line)
        text = line[head.end() :] if head else line
        text = text.removeprefix("ERROR ") if head else text
        if head and (match := _MISSING_IMAGE.search(line)):
            return self._warn(match.group(1), f"missing image: {match.group(1)}")
        if match := _MISSING_LIBRARY.match(line):
            return self._warn(match.group(1), f"missing library: {match.group(1)}")
        if _NEWER.match(line):
            return self._warn("newer", line.removeprefix("Warning: "))
        if _NO_SPACE.search(line[-4000:]):
            return self._fatal(text, Outcome.STORAGE)
        if _GPU_MEMORY.match(text) or _HOST_MEMORY.search(text[:300]):
            return self._fatal(text, Outcome.OUT_OF_MEMORY)
        if _CRASH.match(line):
            return self._fatal("Blender crashed")
        if _FINAL.match(line):
            return self._fatal(line, is_final=True)
        if _NOT_READ.match(line) or _ENDS.match(line) or _NOT_SAVED.match(line):
            return self._fatal(line)
        return None

    def _frame_done(self) -> Reading:
        return Reading(fraction=self._advance(self._done + 1, 0.0), is_rendering=True)

    def _begin(self, frame: str) -> None:
        self._current = frame
        self._layer = 0
        self._layer_fraction = 0.0

    def _advance(self, done: int, inner: float) -> float:
        """The fraction of the task. It never goes back: a second layer or pass is no loss."""
        self._done = done
        total = max(len(self.frames), 1)
        self._fraction = max(self._fraction, min((done + min(inner, 1.0)) / total, 1.0))
        return self._fraction

    def _warn(self, key: str, text: str) -> Reading | None:
        """Each thing once: Blender says it for each frame, and the driver has said it before."""
        if key in self._warned or len(self._warned) >= 100:
            return None
        self._warned.add(key)
        return Reading(warning=text[:_LIMIT])

    def _fatal(self, text: str, outcome: Outcome | None = None, *, is_final: bool = False) -> Reading:
        if outcome is None and _GPU_MEMORY.search(text):
            outcome = Outcome.OUT_OF_MEMORY
        elif outcome is None and ("No space left on device" in text or "is the disk full?" in text):
            outcome = Outcome.STORAGE
        return Reading(fatal=text.removeprefix("Error: ")[:_LIMIT], outcome=outcome, is_final=is_final)


def _ratio(part: int, whole: int) -> float:
    return min(part / whole, 1.0) if whole else 0.0
