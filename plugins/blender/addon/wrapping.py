"""How much text fits into a panel: Blender cuts longer labels in the middle. Knows nothing of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

_CHARACTER_PX = 6.5
"""Of Blender's own font, on average, unscaled."""
_MARGINS_PX = 70
"""What stands left and right of a line: the tabs, the panel's edge, an icon."""
_LEAST = 12
_THUMBNAIL_PX = 110


def characters(region_px: int, scale: float) -> int:
    """That fit into a line of a region so wide; `scale` is that of the interface (1.0 to 4.0)."""
    return max(int((region_px / scale - _MARGINS_PX) / _CHARACTER_PX), _LEAST)


def thumbnails(region_px: int, scale: float) -> int:
    """How many fit beside each other, three at most."""
    return max(1, min(3, int((region_px / scale - _MARGINS_PX / 2) / _THUMBNAIL_PX)))


def lines_of(text: str, width: int) -> Iterator[str]:
    """`text` over as many lines of `width` characters as it needs; paths are broken where they must be."""
    for paragraph in text.split("\n"):
        yield from textwrap.wrap(paragraph, width, break_on_hyphens=False)
