"""Recorded output of real renderers, as the agent would feed it to a parser."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from farm.model.plugin import Parser, Reading

LOGS = Path(__file__).parent.parent / "fixtures" / "render-logs"


def lines(name: str) -> list[str]:
    """A `\\r` ends a line, too."""
    text = (LOGS / name).read_bytes().decode("utf-8", "replace")
    return re.split(r"[\r\n]+", text)


def feed(parser: Parser, log: Iterable[str]) -> list[Reading]:
    """What was learned, in order."""
    return [reading for line in log if (reading := parser.feed(line)) is not None]


def fractions(readings: Iterable[Reading]) -> list[float]:
    return [reading.fraction for reading in readings if reading.fraction is not None]


def first_fatal(readings: Iterable[Reading]) -> Reading:
    return next(reading for reading in readings if reading.fatal)
