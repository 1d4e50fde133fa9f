from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import OpenImageIO as oiio  # noqa: N813
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workers.verify import Unfit, check_files


def write(path: Path, *, tile: int = 0, subimages: int = 1) -> Path:
    """A noisy 64×40 image."""
    pixels = np.random.default_rng(1).random((40, 64, 3)).astype("f4")
    spec = oiio.ImageSpec(64, 40, 3, "half" if path.suffix == ".exr" else "uint8")
    spec.tile_width = spec.tile_height = tile
    out = oiio.ImageOutput.create(str(path))
    assert out is not None
    if subimages > 1:
        assert out.open(str(path), (spec,) * subimages)
    else:
        assert out.open(str(path), spec)
    for subimage in range(subimages):
        if subimage:
            assert out.open(str(path), spec, "AppendSubimage")
        if tile:
            assert out.write_tiles(0, 64, 0, 40, 0, 1, pixels)
        else:
            assert out.write_image(pixels)
    out.close()
    return path


def check(path: Path, **more: Any) -> Any:
    return check_files(path.parent, (path.name,), is_image=True, **more)


@pytest.mark.parametrize("name", ["ä b.png", "a.exr", "a.jpg", "a.tif", "a.bmp", "a.hdr", "a.tga"])
def test_a_whole_image_is_taken_with_its_size(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name)
    (file,) = check(path, width=64, height=40)
    assert (file.path, file.width, file.height) == (name, 64, 40)
    assert file.size_bytes == path.stat().st_size


@pytest.mark.parametrize(("name", "tile"), [("a.exr", 16), ("a.tif", 16), ("a.exr", 0)])
def test_tiled_and_layered_images_are_read_whole(tmp_path: Path, name: str, tile: int) -> None:
    path = write(tmp_path / name, tile=tile, subimages=2 if tile == 0 else 1)
    check(path, width=64, height=40)


@pytest.mark.parametrize("name", ["a.png", "a.exr", "a.jpg", "a.tif", "a.bmp", "a.hdr"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 0.999), few=st.booleans())
def test_a_frame_that_is_cut_short_anywhere_is_refused(
    tmp_path: Path, name: str, share: float, few: bool
) -> None:
    whole = tmp_path / name
    data = whole.read_bytes() if whole.exists() else write(whole).read_bytes()
    length = max(1, len(data) - 1 - int(share * 20)) if few else max(1, int(share * len(data)))
    cut = tmp_path / f"cut{whole.suffix}"
    cut.write_bytes(data[:length])
    with pytest.raises(Unfit, match="cut short") as raised:
        check(cut)
    assert raised.value.is_cut_short
    assert "\n" not in str(raised.value)


def test_the_second_layer_is_looked_at_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.exr", subimages=2)
    data = bytearray(path.read_bytes())
    path.write_bytes(data[: len(data) - 20])
    with pytest.raises(Unfit, match="cut short"):
        check(path)


def test_a_border_render_has_the_size_of_its_display_window(tmp_path: Path) -> None:
    path = tmp_path / "a.exr"
    spec = oiio.ImageSpec(10, 10, 3, "half")
    spec.full_width, spec.full_height, spec.x, spec.y = 64, 40, 5, 5
    out = oiio.ImageOutput.create(str(path))
    assert out is not None
    assert out.open(str(path), spec)
    assert out.write_image(np.zeros((10, 10, 3), "f4"))
    out.close()
    check(path, width=64, height=40)
    check(path, width=10, height=10)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "missing: a.png"),
        (lambda path: path.touch(), "a.png is empty (disk full?)"),
        (lambda path: path.mkdir(), "a.png is not a regular file"),
        (lambda path: path.symlink_to("/etc/passwd"), "a.png is a symbolic link"),
        (lambda path: path.write_bytes(b"\0" * 500), "a.png is cut short or no image"),
        (write, "a.png is 64×40, expected 640×360"),
    ],
)
def test_the_reason_says_what_is_wrong(tmp_path: Path, make: Any, reason: str) -> None:
    make(tmp_path / "a.png")
    with pytest.raises(Unfit) as raised:
        check(tmp_path / "a.png", width=640, height=360)
    assert str(raised.value).startswith(reason)


def test_several_missing_files_are_counted(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match=r"missing: a\.png and 2 more"):
        check_files(tmp_path, ("a.png", "b.png", "c.png"), is_image=True)


def test_a_file_that_is_no_image_only_has_to_hold_something(tmp_path: Path) -> None:
    (tmp_path / "a.abc").write_bytes(b"x")
    (file,) = check_files(tmp_path, ("a.abc",), is_image=False)
    assert (file.size_bytes, file.width) == (1, None)
    with pytest.raises(Unfit, match="older"):
        check_files(tmp_path, ("a.abc",), is_image=False, newer_than=2**40)
