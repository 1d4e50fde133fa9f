from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.model.states import Outcome
from plugins.command.parser import CommandParser
from tests.plugins.replay import LOGS, feed, fractions, lines


@pytest.mark.parametrize(
    ("line", "fraction"),
    [
        ("openjd_progress: 45", 0.45),
        ("PROGRESS: 45%", 0.45),
        ("ALF_PROGRESS 77.9167", 0.779167),
        ("ALF_PROGRESS 17%", 0.17),
        ("[PROGRESS] 45 percent", 0.45),
        ("R90000   45%", 0.45),
        ("Rendering image...: 45.5%", 0.455),
        ("Rendered 204 of 2304 pixels (8%)", 0.08),
        ("00:00:15   325MB         |    20% done - 115 rays/pixel", 0.2),
    ],
)
def test_ways_of_telling_progress_that_are_in_use_are_read(line: str, fraction: float) -> None:
    reading = CommandParser().feed(line)
    assert reading is not None
    assert reading.fraction == pytest.approx(fraction)


@pytest.mark.parametrize(
    "line", ["openjd_progress: 150", "openjd_progress: abc", "-5%", "1.000,5%", "%", "1234%"]
)
def test_what_is_no_percentage_is_left_alone(line: str) -> None:
    reading = CommandParser().feed(line)
    assert reading is None or reading.fraction is None


def test_a_stray_percentage_is_ignored_once_the_command_tells_its_progress() -> None:
    readings = feed(CommandParser(), ["PROGRESS: 10%", "disk is 93% full", "PROGRESS: 20%"])
    assert fractions(readings) == [0.1, 0.2]


def test_what_the_command_does_now_is_shown() -> None:
    messages = [
        reading.message for reading in feed(CommandParser(), ["ACTIVITY: denoising", "openjd_status: saving"])
    ]
    assert messages == ["denoising", "saving"]


@pytest.mark.parametrize(
    "line", ["openjd_fail: out of ink", "[ PARSER ERROR ] out of ink", "[ PARSER BAD RESULT ] out of ink"]
)
def test_a_command_can_say_that_it_failed(line: str) -> None:
    reading = CommandParser().feed(line)
    assert reading is not None
    assert "out of ink" in reading.fatal


def test_a_full_disk_is_the_class_of_the_failure_but_does_not_make_one() -> None:
    reading = CommandParser().feed("cp: error writing 'x': No space left on device")
    assert reading is not None
    assert reading.outcome is Outcome.STORAGE
    assert not reading.fatal


def test_every_recorded_log_is_read_without_an_exception() -> None:
    for log in LOGS.glob("*.log"):
        seen = fractions(feed(CommandParser(), lines(log.name)))
        assert seen == sorted(seen)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.text(max_size=40), st.from_regex(r"[A-Z_]{0,12}:? ?-?\d{1,4}(\.\d{1,3})? ?%")),
        max_size=12,
    )
)
def test_no_text_makes_the_parser_raise_or_go_back(log: list[str]) -> None:
    seen = fractions(feed(CommandParser(), log))
    assert seen == sorted(seen)
    assert all(0.0 <= fraction <= 1.0 for fraction in seen)
