from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.blender.blendfile import BlendHead, NotABlend, SceneRange, parse, read

SCENES = ((1, 250, "Shot ü"), (-3, 7, "Other"))


def blend(
    version: int = 304, *, order: str = "<", scenes: tuple[tuple[int, int, str], ...] = SCENES
) -> bytes:
    """The start of a .blend file."""
    if version >= 500:
        head, block = f"BLENDER17-01v{version:04d}".encode(), "<4siQqq"
    else:
        head, block = f"BLENDER-{'v' if order == '<' else 'V'}{version}".encode(), order + "4siQii"
    for first, last, name in scenes:
        body = struct.pack(order + "ii64s", first, last, name.encode())
        fields = (b"REND", 0, 1, len(body), 1) if version >= 500 else (b"REND", len(body), 1, 0, 1)
        head += struct.pack(block, *fields) + body
    return head + struct.pack(block, b"GLOB", 0, 0, 0, 0) + b"\0" * 100


EXPECTED = tuple(SceneRange(name=name, first=first, last=last) for first, last, name in SCENES)


@pytest.mark.parametrize("version", [304, 405, 500])
def test_the_version_and_the_frames_of_each_scene_are_read(version: int) -> None:
    assert parse(blend(version)) == BlendHead(version=divmod(version, 100), scenes=EXPECTED)


def test_big_endian_files_are_read() -> None:
    assert parse(blend(order=">")).scenes == EXPECTED


def test_gzip_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.blend"
    path.write_bytes(gzip.compress(blend()))
    assert read(path).scenes == EXPECTED


@pytest.mark.parametrize(
    "data", [b"", b"BLEND", b"garbage", b"\x1f\x8bgarbage", b"\x28\xb5\x2f\xfdgarbage", b"BLENDER-vabc"]
)
def test_what_is_no_blend_file_is_told(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.blend"
    path.write_bytes(data)
    with pytest.raises(NotABlend):
        read(path)


def test_a_cut_file_gives_what_it_has() -> None:
    whole = blend()
    assert parse(whole[:100]).scenes in ((), EXPECTED[:1])


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=300), st.binary(max_size=200).map(lambda tail: b"BLENDER-v304" + tail)))
def test_no_bytes_make_it_raise_anything_else_or_hang(data: bytes) -> None:
    try:
        parse(data)
    except NotABlend:
        pass
