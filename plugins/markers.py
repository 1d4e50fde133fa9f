"""The lines that our own scripts print around a renderer: `ridgeline| KEY REST`.

Written by `blender/driver.py` and `povray/render.sh`, read here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "ridgeline| "

_LINE = re.compile(r"ridgeline\| ([a-z]+)(?: (.*))?\Z", re.DOTALL)
_FRAME = re.compile(r"([0-9]{1,7}) of ([0-9]{1,7})(?:: (.{1,200}))?\Z", re.DOTALL)
_SIZE = re.compile(r"([0-9]{1,6}) ([0-9]{1,6})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    key: str
    rest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """`2 of 5: 7`: the second of five frames, which is frame 7."""

    index: int
    """From 1."""
    count: int
    what: str = ""


def read(line: str) -> Marker | None:
    """The marker on this line; None for any other line."""
    match = _LINE.match(line) if line.startswith(PREFIX) else None
    return Marker(key=match.group(1), rest=match.group(2) or "") if match else None


def position(rest: str) -> Position | None:
    match = _FRAME.match(rest)
    if match is None:
        return None
    index, count = int(match.group(1)), int(match.group(2))
    return Position(index=index, count=count, what=match.group(3) or "") if 1 <= index <= count else None


def size(rest: str) -> tuple[int, int] | None:
    """Width and height in pixels."""
    match = _SIZE.match(rest)
    return (int(match.group(1)), int(match.group(2))) if match else None
