from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farm.model.frames import canonical, expand_pattern
from plugins.blender.driver import FORMATS, Refusal, file_name, frames_of

FRAMES = st.one_of(st.integers(-120, 120), st.integers(-1048574, 1048574))


@settings(deadline=None)
@given(st.lists(st.integers(-300, 300), min_size=1, max_size=20))
def test_the_driver_reads_frames_as_the_farm_writes_them(frames: list[int]) -> None:
    assert frames_of(canonical(frames)) == sorted(set(frames))


@settings(deadline=None)
@given(st.text(alphabet="##a_.-{} ü", min_size=1, max_size=12), FRAMES)
@example("shot_####.png", -7)
def test_the_driver_names_files_as_the_farm_expects_them(pattern: str, frame: int) -> None:
    assert file_name(pattern, frame) == expand_pattern(pattern, frame)


@pytest.mark.parametrize("text", ["", "x", "1-", "1x2", "1048575", "-1048575--1048575", "1,,2"])
def test_frames_that_blender_cannot_render_are_refused(text: str) -> None:
    with pytest.raises(Refusal):
        frames_of(text)


def test_every_format_has_a_name() -> None:
    assert all(names for names in FORMATS.values())
