"""Whether two pictures are the same."""

from __future__ import annotations

from pathlib import Path

import OpenImageIO


def check_equal(one: Path, other: Path) -> None:
    """Every pixel."""
    first, second = OpenImageIO.ImageBuf(str(one)), OpenImageIO.ImageBuf(str(other))
    assert first.read(force=True), first.geterror()
    assert second.read(force=True), second.geterror()
    found = OpenImageIO.ImageBufAlgo.compare(first, second, 0, 0)
    assert not found.error, (one, other, found.nfail, found.maxerror)


def check_different(one: Path, other: Path) -> None:
    first, second = OpenImageIO.ImageBuf(str(one)), OpenImageIO.ImageBuf(str(other))
    assert OpenImageIO.ImageBufAlgo.compare(first, second, 0.01, 0.01).maxerror > 0.1
