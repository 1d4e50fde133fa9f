from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.text import clean, duration, plural, size


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")))
def test_cleaned_text_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = clean(text, one_line=True)
    assert all(unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") for char in shown)
    assert shown.encode().decode() == shown


@given(st.text(max_size=200))
def test_cleaning_twice_changes_nothing(text: str) -> None:
    assert clean(clean(text, one_line=True), one_line=True) == clean(text, one_line=True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jhidden", r"\x1b[2Jhidden"),
        ("a\x00b", r"a\x00b"),
        ("\x9b31m", r"\x9b31m"),
        ("shot\u202egnp.exe", "shotgnp.exe"),
        ("a\u2028b", r"a\u2028b"),
        ("Füße 漢字 🎬", "Füße 漢字 🎬"),
    ],
)
def test_controls_are_shown_and_bidirectional_marks_dropped(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_line_ends_are_kept_unless_one_line_is_wanted() -> None:
    assert clean("a\nb\tc") == "a\nb\tc"
    assert clean("a\nb\tc", one_line=True) == r"a\x0ab\x09c"


def test_long_text_is_cut_with_a_mark() -> None:
    assert clean("x" * 20, limit=5) == "xxxxx…"
    assert clean("x" * 5, limit=5) == "xxxxx"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (-3, "0.0 s"),
        (0.42, "0.4 s"),
        (42, "42 s"),
        (59.6, "1:00"),
        (187, "3:07"),
        (3599.7, "1:00:00"),
        (7387, "2:03:07"),
        (48 * 3600, "2 d 00 h"),
        (74 * 3600, "3 d 02 h"),
    ],
)
def test_a_duration_reads_the_same_everywhere(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (512, "512 B"),
        (1536, "1.5 KiB"),
        (3 * 2**20, "3.0 MiB"),
        (5 * 2**40, "5.0 TiB"),
    ],
)
def test_a_size_is_in_binary_units(size_bytes: int | None, shown: str) -> None:
    assert size(size_bytes) == shown


def test_one_is_singular() -> None:
    assert [plural(count, "frame") for count in (0, 1, 1200)] == ["0 frames", "1 frame", "1,200 frames"]
