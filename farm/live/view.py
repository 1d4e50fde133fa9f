"""What the person looks at: the pane in focus, how far each is scrolled; and what the keys do. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final


class Pane(StrEnum):
    JOBS = "jobs"
    NODES = "nodes"
    EVENTS = "events"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    focus: Pane = Pane.JOBS
    is_enlarged: bool = False
    """The pane in focus fills the screen."""
    scroll: Mapping[Pane, int] = field(default_factory=dict)
    """Items that are scrolled away above; 0 when missing."""


QUIT: Final = "q"
PAGE: Final = 10
"""Items that page-up and page-down move by."""
_PANES: Final = {"j": Pane.JOBS, "n": Pane.NODES, "e": Pane.EVENTS}
_MOVES: Final = {"up": -1, "down": 1, "page-up": -PAGE, "page-down": PAGE}
_SEQUENCES: Final = {b"A": "up", b"B": "down", b"5~": "page-up", b"6~": "page-down"}
_KEY: Final = re.compile(rb"\x1b[\[O]([0-9;]*[A-Za-z~])|([^\x1b])|\x1b(?![\[O]|$)", re.DOTALL)


def keys(typed: bytes) -> tuple[list[str], bytes]:
    """The keys in what a terminal sent, and the beginning of one that has not come whole."""
    found = []
    at = 0
    while (match := _KEY.match(typed, at)) is not None:
        at = match.end()
        sequence, char = match.groups()
        if sequence is not None:
            found.append(_SEQUENCES.get(sequence, ""))
        elif char is not None:
            found.append(char.decode("latin-1").lower())
    rest = typed[at:]
    # An escape key pressed alone looks like a beginning too; a long one is no key at all.
    return [key for key in found if key], rest if len(rest) < 16 else b""


def pressed(view: View, key: str, sizes: Mapping[Pane, int]) -> View:
    """The view after a key; one that means nothing changes nothing. `sizes` is each pane's number of items.

    A pane's key brings it into focus, once more enlarges it, and once more makes it small again.
    """
    if key in _PANES:
        pane = _PANES[key]
        return replace(view, focus=pane, is_enlarged=view.focus is pane and not view.is_enlarged)
    if key in _MOVES:
        most = max(sizes.get(view.focus, 0) - 1, 0)
        at = min(max(view.scroll.get(view.focus, 0) + _MOVES[key], 0), most)
        return replace(view, scroll={**view.scroll, view.focus: at})
    return view
