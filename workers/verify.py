"""Is a rendered file whole? An exit status of 0 proves nothing: on a full disk renderers write empty files.

Images are decoded to the last pixel. OpenImageIO is imported when the first image is looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farm.errors import FarmError
from farm.model.attempts import PublishedFile

_ROWS = 256
"""Scanlines decoded at once: a bound on memory."""
_ENDS = {
    ".png": b"\x00\x00\x00\x00IEND\xaeB`\x82",
    ".jpg": b"\xff\xd9",
    ".jpeg": b"\xff\xd9",
}
"""Decoders accept a file without its last bytes in these formats."""


class Unfit(FarmError):
    """A file is missing or not whole. The text is one line for people."""

    def __init__(self, reason: str, *, is_cut_short: bool = False) -> None:
        """is_cut_short: nothing, or too little, was written: the disk may be full."""
        super().__init__(reason)
        self.is_cut_short = is_cut_short


def check_files(
    directory: Path,
    names: Sequence[str],
    *,
    is_image: bool,
    width: int | None = None,
    height: int | None = None,
    newer_than: float | None = None,
) -> tuple[PublishedFile, ...]:
    """Look at each of `names` (relative to `directory`); the answer has these names as paths.

    width, height: pixels the images must have, None: any. newer_than: seconds since the epoch on the file
    server's clock; an older file was not written by this attempt. Raises Unfit for the first bad one.
    """
    missing = [name for name in names if not os.path.lexists(directory / name)]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Unfit(f"missing: {missing[0]}{others}", is_cut_short=True)
    return tuple(_check(directory, name, is_image, width, height, newer_than) for name in names)


def _check(
    directory: Path,
    name: str,
    is_image: bool,
    width: int | None,
    height: int | None,
    newer_than: float | None,
) -> PublishedFile:
    path = directory / name
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        raise Unfit(f"{name} is {kind}")
    if status.st_size == 0:
        raise Unfit(f"{name} is empty (disk full?)", is_cut_short=True)
    if newer_than is not None and status.st_mtime < newer_than:
        raise Unfit(f"{name} is older than this attempt: nothing was written", is_cut_short=True)
    if not is_image:
        return PublishedFile(path=name, size_bytes=status.st_size)
    found_width, found_height, full_width, full_height = _decode(path, name)
    expected = (width or found_width, height or found_height)
    if expected not in ((found_width, found_height), (full_width, full_height)):
        raise Unfit(f"{name} is {found_width}×{found_height}, expected {expected[0]}×{expected[1]}")
    return PublishedFile(path=name, size_bytes=status.st_size, width=found_width, height=found_height)


def _decode(path: Path, name: str) -> tuple[int, int, int, int]:
    """Read every pixel; the data window's and the display window's width and height of the first subimage."""
    import OpenImageIO as oiio  # noqa: N813  half a second, and not every attempt has images

    oiio.attribute("threads", 1)  # the machine's cores are for renderers
    image = oiio.ImageInput.open(os.fspath(path))
    if image is None:
        raise Unfit(f"{name} is cut short or no image: {_first_line(oiio.geterror())}", is_cut_short=True)
    try:
        first = image.spec()
        dimensions = (first.width, first.height, first.full_width, first.full_height)
        subimage = 0
        while image.seek_subimage(subimage, 0):
            if not _read_all(image):
                raise Unfit(f"{name} is cut short: {_first_line(image.geterror())}", is_cut_short=True)
            subimage += 1
    finally:
        image.close()
    end = _ENDS.get(path.suffix.lower())
    if end is not None and not _ends_with(path, end):
        raise Unfit(f"{name} is cut short: its last bytes are missing", is_cut_short=True)
    return dimensions


def _read_all(image: Any) -> bool:
    """Decode the current subimage, some rows at a time, in the file's own pixel type."""
    spec = image.spec()
    if spec.deep:
        return image.read_native_deep_image(image.current_subimage(), 0) is not None
    rows = spec.tile_height or _ROWS
    depth = spec.tile_depth or 1
    for z in range(spec.z, spec.z + spec.depth, depth):
        for y in range(spec.y, spec.y + spec.height, rows):
            end = min(y + rows, spec.y + spec.height)
            if spec.tile_width:
                block = image.read_tiles(
                    spec.x,
                    spec.x + spec.width,
                    y,
                    end,
                    z,
                    min(z + depth, spec.z + spec.depth),
                    0,
                    spec.nchannels,
                    spec.format,
                )
            else:
                block = image.read_scanlines(y, end, z, 0, spec.nchannels, spec.format)
            if block is None:
                return False
    return True


def _ends_with(path: Path, end: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(-min(len(end), path.stat().st_size), os.SEEK_END)
        return file.read() == end


def _first_line(error: str) -> str:
    return error.strip().partition("\n")[0] or "it cannot be decoded"
