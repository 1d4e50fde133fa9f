"""One picture that shows all frames, in the order given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from farm.errors import UserError

if TYPE_CHECKING:
    from OpenImageIO import ImageBuf

TILE_WIDTH: Final = 240
GAP: Final = 4
BACKGROUND: Final = (0.08, 0.08, 0.09)


def contact_sheet(frames: Sequence[Path], into: Path, *, columns: int = 4) -> None:
    """Write `into` (PNG) with every frame scaled to TILE_WIDTH pixels, left to right, then down.

    Tiles are as tall as the first frame's shape asks. Raises UserError when a frame cannot be read, or the
    sheet not be written.
    """
    import OpenImageIO as oiio  # noqa: N813 - its customary name

    if not frames:
        raise UserError("a contact sheet needs at least one frame")
    first = oiio.ImageBuf(str(frames[0]))
    if first.has_error:
        raise UserError(f"{frames[0]} cannot be read: {first.geterror()}")
    height = max(round(TILE_WIDTH * first.spec().height / max(first.spec().width, 1)), 1)
    columns = min(columns, len(frames))
    rows = math.ceil(len(frames) / columns)
    spec = oiio.ImageSpec(columns * (TILE_WIDTH + GAP) + GAP, rows * (height + GAP) + GAP, 3, oiio.UINT8)
    sheet = oiio.ImageBuf(spec)
    oiio.ImageBufAlgo.fill(sheet, BACKGROUND)
    roi = oiio.ROI(0, TILE_WIDTH, 0, height, 0, 1, 0, 3)
    for index, path in enumerate(frames):
        tile = oiio.ImageBufAlgo.resize(_rgb(path), roi=roi)
        row, column = divmod(index, columns)
        x, y = GAP + column * (TILE_WIDTH + GAP), GAP + row * (height + GAP)
        oiio.ImageBufAlgo.paste(sheet, x, y, 0, 0, tile)
    if not sheet.write(str(into)):
        raise UserError(f"{into} cannot be written: {sheet.geterror()}")


def _rgb(path: Path) -> ImageBuf:
    """Three channels whatever the frame has. Raises UserError when it cannot be decoded."""
    import OpenImageIO as oiio  # noqa: N813

    image = oiio.ImageBuf(str(path))
    if not image.read(0, 0, True, oiio.FLOAT):
        raise UserError(f"{path} cannot be read: {image.geterror()}")
    count = image.spec().nchannels
    return oiio.ImageBufAlgo.channels(image, (0, 1, 2) if count >= 3 else (0, 0, 0))
