"""In which order a step's tasks are handed out."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final

from farm.errors import UserError
from farm.text import clean

FORWARD: Final = "forward"
REVERSE: Final = "reverse"
ENDS_FIRST: Final = "first-middle-last"
_EVERY: Final = re.compile(r"every[- ]?([0-9]{1,7})(?:st|nd|rd|th)?(?:[- ]first)?")
_NAMES: Final = (FORWARD, REVERSE, ENDS_FIRST, "every-10")


def parse_order(text: str) -> str:
    """`forward`, `reverse`, `first-middle-last` or `every-N` (every Nth first, then the others).

    Raises UserError that names the nearest.
    """
    told = text.strip().lower()
    if told in (FORWARD, REVERSE, ENDS_FIRST):
        return told
    match = _EVERY.fullmatch(told)
    if match is not None and int(match[1]) >= 2:
        return f"every-{int(match[1])}"
    if match is not None:
        raise UserError(f"the order {told}: every Nth first needs an N of 2 or more")
    near = get_close_matches(told, _NAMES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_NAMES)}"
    raise UserError(f"there is no order '{clean(text, limit=40, one_line=True)}'; {hint}")


def every(order: str) -> int | None:
    """The N of `every-N`; None for another order."""
    return int(order.removeprefix("every-")) if order.startswith("every-") else None


def rank(order: str, index: int, count: int) -> int:
    """Lower goes first. `order` as `parse_order` writes it. The store says the same in SQL."""
    if order == REVERSE:
        return count - 1 - index
    stride = every(order)
    is_first = index in (0, count // 2, count - 1) if order == ENDS_FIRST else stride and index % stride == 0
    return index - count if is_first else index
