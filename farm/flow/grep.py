"""Looking for a text in renderers' output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_LINE: Final = 2_000


def matching_lines(log: str, text: str) -> Iterator[tuple[int, str]]:
    """(line number from 1, line) of those that hold `text`, whatever the case; lines cut at MAX_LINE.

    Of a line that was written over (a progress bar ends its lines with a lone CR) each state counts as a
    line of its own when one looks for it, but has the number of the whole line.
    """
    wanted = text.casefold()
    for number, line in enumerate(log.split("\n"), 1):
        if wanted not in line.casefold():
            continue
        for state in line.split("\r"):
            if wanted in state.casefold():
                yield number, state[:MAX_LINE]
