from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from farm.model.states import Outcome
from plugins.povray.parser import PovrayParser
from tests.plugins.replay import LOGS, feed, first_fatal, fractions, lines

FRAGMENTS = (
    "Rendered 5 of 0 pixels (0%)",
    "Rendered 57600 of 57600 pixels (100%)",
    "Rendered 7 of 57600 pixels (0%)",
    "Image resolution.....64 by 36 (rows 1 to 36",
    "ridgeline| frame 1 of 2: 7",
    "ridgeline| saved 5 of 2: x",
    "File 'x' line 1: Parse Error: y",
    "==== [Rendering...] ====",
    "Cannot access data in file.",
)
TEXT = st.one_of(
    st.sampled_from(FRAGMENTS),
    st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=30)), max_size=4).map("".join),
)


def test_progress_of_two_frames_grows_though_radiosity_counts_twice() -> None:
    readings = feed(PovrayParser((1, 2)), lines("povray-animation.log"))
    seen = fractions(readings)
    assert seen == sorted(seen)
    assert seen[0] == 0.0
    assert seen[-1] == 1.0
    assert 0.5 in seen
    assert any(0.0 < fraction < 0.5 for fraction in seen)
    assert not any(reading.fatal for reading in readings)


def test_the_size_that_files_must_have_is_read() -> None:
    readings = feed(PovrayParser((1, 2)), lines("povray-animation.log"))
    assert {(each.width, each.height) for each in readings if each.width} == {(160, 90)}


def test_a_mistake_in_the_scene_is_shown_with_its_line_and_is_final() -> None:
    fatal = first_fatal(feed(PovrayParser((1,)), lines("povray-parse-error.log")))
    assert fatal.fatal.startswith("File 'scene.pov' line 1: Parse Error: ")
    assert fatal.is_final


def test_a_missing_include_is_named_and_may_be_there_elsewhere() -> None:
    readings = feed(PovrayParser((1,)), lines("povray-missing-include.log"))
    assert [reading.warning for reading in readings if reading.warning] == ["missing file: gone.inc"]
    fatal = first_fatal(readings)
    assert "Cannot open include file gone.inc" in fatal.fatal
    assert not fatal.is_final


def test_a_file_that_cannot_be_written_is_a_storage_failure() -> None:
    assert first_fatal(feed(PovrayParser(()), lines("povray-full.log"))).outcome is Outcome.STORAGE


def test_loading_is_over_when_rendering_begins() -> None:
    readings = feed(PovrayParser((1, 2)), lines("povray-no-camera.log"))
    assert next(reading for reading in readings if reading.is_rendering).message == "rendering"


def test_every_recorded_log_is_read_without_an_exception() -> None:
    for log in LOGS.glob("*.log"):
        feed(PovrayParser((1, 2)), lines(log.name))


@settings(deadline=None)
@given(log=st.lists(TEXT, max_size=12), frames=st.lists(st.integers(0, 5), max_size=4))
def test_no_text_makes_the_parser_raise_or_go_back(log: list[str], frames: list[int]) -> None:
    seen = fractions(feed(PovrayParser(tuple(frames)), log))
    assert seen == sorted(seen)
    assert all(0.0 <= fraction <= 1.0 for fraction in seen)
