"""Text of an exact width: what every line of the picture is made of. Nothing here knows the farm."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size

from farm.text import clean

Piece = tuple[str, str]
"""(text, style)"""
Line = list[Piece]
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    title: str
    width: int
    """The least, in cells."""
    most: int
    """Cells it may grow to."""
    rank: int
    """The column of the highest rank is left out first."""
    is_right: bool = False


def shown(text: str, most: int) -> str:
    """`text` on one line and safe in a terminal; not much more than `most` characters of it.

    Invisible format characters go too (joiners, variation selectors, tags): terminals disagree about their
    width, and a line that is wider than it was measured breaks the picture.
    """
    if text.isascii() and text.isprintable():
        return text[: most + 1]
    plain = clean(text, limit=2 * most + 2, one_line=True)
    return "".join(
        char for char in plain if unicodedata.category(char) != "Cf" and not "\ufe00" <= char <= "\ufe0f"
    )


def cell(text: str, width: int, *, is_right: bool = False) -> str:
    """`text` in exactly `width` cells, cut with an ellipsis, padded with blanks."""
    if width <= 0:
        return ""
    safe = shown(text, width)
    used = cell_len(safe)
    if used > width:
        return set_cell_size(set_cell_size(safe, width - 1).rstrip() + "…", width)
    padding = " " * (width - used)
    return padding + safe if is_right else safe + padding


def fit_columns(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that fit into `width` cells with one blank between them, each with its width.

    What is left over is shared out evenly until each column has its most.
    """
    kept = list(columns)
    while len(kept) > 1 and sum(column.width for column in kept) + len(kept) - 1 > width:
        kept.remove(max(kept, key=lambda column: column.rank))
    widths = [min(column.width, width) for column in kept]
    spare = width - sum(widths) - (len(kept) - 1)
    while spare > 0 and (growing := [i for i, c in enumerate(kept) if widths[i] < c.most]):
        share = max(spare // len(growing), 1)
        for index in growing:
            more = min(share, kept[index].most - widths[index], spare)
            widths[index] += more
            spare -= more
    return list(zip(kept, widths, strict=True))


def row(columns: list[tuple[Column, int]], values: dict[str, Piece]) -> Line:
    """One line of a table; a value that is missing stays blank."""
    line: Line = []
    for column, width in columns:
        if line:
            line.append((" ", ""))
        text, style = values.get(column.title, ("", ""))
        line.append((cell(text, width, is_right=column.is_right), style))
    return line


def heading(columns: list[tuple[Column, int]]) -> Line:
    return [(" ".join(cell(c.title, w, is_right=c.is_right) for c, w in columns), "heading")]


def sparkline(values: Sequence[float | None], width: int, *, top: float | None = None) -> str:
    """The newest `width` values as bars from 0 to `top` (None: the greatest); blank for what is not known."""
    newest = list(values)[-width:] if width > 0 else []
    known = [value for value in newest if value is not None]
    scale = top or max(known, default=0.0)
    told = ""
    for value in newest:
        if value is None:
            told += " "
        elif scale <= 0 or value <= 0:
            told += _BARS[0]
        else:
            told += _BARS[min(int(value / scale * len(_BARS)), len(_BARS) - 1)]
    return told.rjust(max(width, 0))


def share_rows(height: int, wanted: Sequence[int], *, weights: Sequence[int]) -> list[int]:
    """`height` rows shared out by weight, none given more than it wants, but the last takes what is left.

    Each gets at least 3, so `height` must be 3 × as many.
    """
    rows = [3] * len(wanted)
    spare = height - sum(rows)
    while spare > 0:
        growing = [i for i in range(len(rows)) if rows[i] < wanted[i]]
        if not growing:
            rows[-1] += spare
            break
        whole = sum(weights[i] for i in growing)
        for index in growing:
            more = min(max(spare * weights[index] // whole, 1), wanted[index] - rows[index])
            more = min(more, height - sum(rows))
            rows[index] += more
        spare = height - sum(rows)
    return rows
