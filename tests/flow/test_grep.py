"""Lines that hold a text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farm.flow.grep import MAX_LINE, matching_lines


def test_lines_are_counted_from_1_and_case_does_not_matter() -> None:
    log = "Loading\nERROR: no camera\nok\nerror again"
    assert list(matching_lines(log, "error")) == [(2, "ERROR: no camera"), (4, "error again")]


def test_a_progress_bar_is_not_one_endless_line() -> None:
    log = "start\n10 %\r20 % warning\r30 %\nend"
    assert list(matching_lines(log, "warning")) == [(2, "20 % warning")]


def test_long_lines_are_cut() -> None:
    ((_, line),) = matching_lines("x" * 10_000, "xx")
    assert len(line) == MAX_LINE


@given(st.text(max_size=80), st.text(min_size=1, max_size=3))
def test_every_line_found_holds_the_text(log: str, text: str) -> None:
    for number, line in matching_lines(log, text):
        assert text.casefold() in line.casefold()
        assert line in log.split("\n")[number - 1]
