from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import UserError
from plugins.output import Target, extension_of, target

EXTENSIONS = (".png", ".exr")


def made(output: str, frames: tuple[int, ...] = (1, 2), cwd: Path = Path("/work dir")) -> Target:
    return target(
        output,
        base=Path("/shöw/sc"),
        cwd=cwd,
        stem="shot",
        frames=frames,
        extensions=EXTENSIONS,
        default_extension=".png",
    )


@pytest.mark.parametrize(
    ("output", "directory", "pattern"),
    [
        ("//render/####.png", "/shöw/sc/render", "####.png"),
        ("//x_##.exr", "/shöw/sc", "x_##.exr"),
        ("//../out/x_#.exr", "/shöw/out", "x_#.exr"),
        ("out/x", "/work dir/out", "x_####.png"),
        ("/a b/ü_##", "/a b", "ü_##.png"),
        ("x.PNG", "/work dir", "x_####.PNG"),
        ("shot.v02_##", "/work dir", "shot.v02_##.png"),
        ("frames/", "/work dir/frames", "shot_####.png"),
        ("//", "/shöw/sc", "shot_####.png"),
        (".hidden", "/work dir", ".hidden_####.png"),
    ],
)
def test_what_was_typed_becomes_a_directory_and_a_pattern(output: str, directory: str, pattern: str) -> None:
    assert made(output) == Target(directory=directory, pattern=pattern)


def test_one_frame_needs_no_number() -> None:
    assert made("still.exr", frames=(7,)).file(7) == "/work dir/still.exr"


def test_a_negative_frame_is_named_as_blender_names_it() -> None:
    assert made("x_####").file(-7) == "/work dir/x_-0007.png"


def test_a_directory_that_exists_gets_files_inside(tmp_path: Path) -> None:
    (tmp_path / "renders.v1").mkdir()
    assert made("renders.v1", cwd=tmp_path).file(3) == str(tmp_path / "renders.v1" / "shot_0003.png")


@pytest.mark.parametrize(
    ("output", "part"),
    [
        ("x.mp4", "not films"),
        ("x.v02", "no file format is known for '.v02'"),
        ("####/x.png", "not in the directory"),
        ("x\n.png", "cannot be passed on"),
    ],
)
def test_an_output_that_cannot_be_is_refused_with_what_to_do(output: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        made(output)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=30), st.lists(st.integers(-20, 20), min_size=2, max_size=5, unique=True))
def test_each_frame_has_a_file_of_its_own_in_an_absolute_directory(output: str, frames: list[int]) -> None:
    try:
        files = made(output, frames=tuple(frames))
    except UserError:
        return
    assert files.directory.startswith("/")
    assert "/" not in files.pattern
    assert extension_of(files.pattern) in EXTENSIONS
    assert len({files.file(frame) for frame in frames}) == len(frames)
