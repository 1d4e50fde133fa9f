from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest
from fileseq.frameset import FrameSet
from hypothesis import given
from hypothesis import strategies as st
from openjd.model import IntRangeExpr

from farm.errors import UserError
from farm.model.frames import MAX_TEXT, canonical, describe, expand_pattern, has_frame, parse_frames

FRAME_SETS = st.lists(st.integers(-300, 300), min_size=1, max_size=80)


@st.composite
def pieces(draw: st.DrawFn) -> str:
    first = draw(st.integers(-50, 50))
    if draw(st.booleans()):
        return str(first)
    piece = f"{first}-{draw(st.integers(-50, 50))}"
    return piece + draw(st.sampled_from(["", "x1", "x2", "x7", "x1000", "y2", "y3"]))


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("7", (7,)),
        ("1-5", (1, 2, 3, 4, 5)),
        ("1-10x3", (1, 4, 7, 10)),
        ("5-1", (5, 4, 3, 2, 1)),
        ("10-1x3", (10, 7, 4, 1)),
        ("10-1x-3", (10, 7, 4, 1)),
        ("-5--1", (-5, -4, -3, -2, -1)),
        ("-2-2", (-2, -1, 0, 1, 2)),
        ("1,5,9-12", (1, 5, 9, 10, 11, 12)),
        ("1 5\t9-12\n20", (1, 5, 9, 10, 11, 12, 20)),
        ("0001-0003", (1, 2, 3)),
        ("1-10y2", (2, 4, 6, 8, 10)),
        ("1-5,3,4-7", (1, 2, 3, 4, 5, 6, 7)),
        ("5,1,3", (5, 1, 3)),
        ("1 - 3 , 9", (1, 2, 3, 9)),
        ("1 -3", (1, -3)),
        ("1-5,10-8", (1, 2, 3, 4, 5, 10, 9, 8)),
        ("1-1", (1,)),
    ],
)
def test_a_range_gives_its_frames_in_the_order_written(text: str, frames: tuple[int, ...]) -> None:
    assert parse_frames(text) == frames


def test_a_colon_is_a_step_and_never_a_stagger() -> None:
    assert parse_frames("1-10:2") == (1, 3, 5, 7, 9)
    assert parse_frames("10-1:-3") == (10, 7, 4, 1)
    assert parse_frames("-10 - 10 : 5") == (-10, -5, 0, 5, 10)


@pytest.mark.parametrize(
    ("text", "quoted", "reason"),
    [
        ("1-", "'1-'", "the last frame is missing"),
        ("4-x", "'4-x'", "the last frame is no number but 'x'"),
        ("1-b", "'1-b'", "the last frame is no number but 'b'"),
        ("1-x2", "'1-x2'", "the last frame is no number but 'x2'"),
        ("4x2", "'4x2'", "the last frame is missing before 'x2'"),
        ("a-b", "'a-b'", "'a' is no frame number"),
        ("-", "'-'", "'-' is no frame number"),
        ("1..5", "'1..5'", "behind the first frame comes '..5'"),
        ("1-5-9", "'1-5-9'", "behind the last frame only a step such as x2 can come, not '-9'"),
        ("1-10x2y3", "'1-10x2y3'", "the step is no number but '2y3'"),
        ("1-5,abc,9", "'abc'", "'abc' is no frame number"),
        ("1.5", "'1.5'", "whole numbers"),
        ("1-3x0.5", "'1-3x0.5'", "whole numbers"),
        ("1-10x0", "'1-10x0'", "step 0"),
        ("1-10x", "'1-10x'", "the step is missing"),
        ("1-10x-2", "'1-10x-2'", "write 10-1x2"),
        ("1-10y-2", "'1-10y-2'", "1 or more"),
        ("1-10y1", "'1-10y1'", "leaves no frame"),
        ("1:10", "'1:10'", "the last frame is missing before ':10'"),
        ("1,,5", "'1,,5'", "nothing beside it"),
        ("1-5,", "'1-5,'", "nothing beside it"),
        ("--1", "'--1'", "cannot be read"),
        ("1–10", "'1–10'", "cannot be read"),
        ("١-٣", "'١-٣'", "cannot be read"),
        ("1-9" + "9" * 5000, "'1-9999", "lie between"),
        ("5\x1b[2J", r"'5\x1b[2J'", "cannot be read"),
    ],
)
def test_what_is_no_range_is_refused_with_the_piece_and_the_reason(
    text: str, quoted: str, reason: str
) -> None:
    with pytest.raises(UserError) as caught:
        parse_frames(text)
    assert quoted in str(caught.value)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.text("019-xy:.,ab –٣", min_size=1))
def test_any_text_gives_frames_or_one_clear_line(text: str) -> None:
    told = ""
    try:
        frames = parse_frames(text)
    except UserError as error:
        frames, told = (), str(error)
    assert bool(frames) != bool(told)
    assert len(told) < 300
    assert len(told.splitlines()) <= 1


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_range_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="empty; write, for example, 1-100"):
        parse_frames(text)


def test_a_range_beyond_the_cap_is_refused_before_it_is_made() -> None:
    began = time.process_time()
    with pytest.raises(UserError) as caught:
        parse_frames("1-2000000000")
    assert str(caught.value) == "1-2000000000 holds 2,000,000,000 frames; the most is 1,000,000"
    assert time.process_time() - began < 0.1


def test_repeats_count_towards_the_cap() -> None:
    assert len(parse_frames("1-6,1-4", cap=10)) == 6
    with pytest.raises(UserError, match="more than 10 frames"):
        parse_frames("1-6,1-5", cap=10)
    with pytest.raises(UserError, match="more than 3 frames"):
        parse_frames("1,2,2,3", cap=3)


@pytest.mark.parametrize(
    "text", ["1," * 1_000_000, "1-" * 1_000_000, " 1 -" * 500_000, "1" + " " * 1_900_000 + "x"]
)
def test_hostile_text_takes_bounded_time(text: str) -> None:
    began = time.process_time()
    with pytest.raises(UserError):
        parse_frames(text[:MAX_TEXT])
    assert time.process_time() - began < 10


def test_longer_text_is_not_read_at_all() -> None:
    with pytest.raises(UserError, match="characters long"):
        parse_frames("1" * (MAX_TEXT + 1))


@given(st.text(alphabet=st.sampled_from("0123456789-,:xy .ab\t"), max_size=40) | st.text(max_size=40))
def test_any_text_gives_frames_or_a_user_error(text: str) -> None:
    try:
        frames = parse_frames(text, cap=10_000)
    except UserError:
        return
    assert frames
    assert len(frames) == len(set(frames)) <= 10_000


@given(st.lists(pieces(), min_size=1, max_size=6))
def test_without_colons_the_parser_agrees_with_fileseq(written: list[str]) -> None:
    text = ",".join(written)
    try:
        mine = parse_frames(text)
    except UserError:
        assert any(not list(FrameSet(piece)) for piece in written)
        return
    assert list(mine) == list(FrameSet(text))


@given(FRAME_SETS)
def test_canonical_text_is_read_back_to_the_same_set_by_both_grammars(frames: list[int]) -> None:
    text = canonical(frames)
    assert parse_frames(text) == tuple(sorted(set(frames)))
    assert list(IntRangeExpr.from_str(text)) == sorted(set(frames))


@given(FRAME_SETS)
def test_canonical_text_does_not_depend_on_order_or_repeats(frames: list[int]) -> None:
    assert (
        canonical(frames)
        == canonical(reversed(frames + frames[:3]))
        == canonical(parse_frames(canonical(frames)))
    )


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        (range(1, 11), "1-10"),
        (range(1, 10, 2), "1-9:2"),
        ([7, 3, 2, 1], "1-3,7"),
        (range(-5, 0), "-5--1"),
        ([1, 3], "1,3"),
        ([1, 2], "1-2"),
        ([1, 3, 4, 5], "1,3-5"),
        ([1, 2, 4, 6, 8], "1-2,4-8:2"),
        ([4], "4"),
        ([], ""),
    ],
)
def test_canonical_text_is_short(frames: list[int], text: str) -> None:
    assert canonical(frames) == text


def test_a_hundred_thousand_frames_are_written_quickly() -> None:
    scattered = random.Random(1).sample(range(1_000_000), 100_000)
    best = min(_seconds(scattered) for _ in range(3))
    assert best < 0.5  # 0.08 s when nothing else runs


def _seconds(frames: list[int]) -> float:
    began = time.process_time()
    canonical(frames)
    return time.process_time() - began


@pytest.mark.parametrize(
    ("pattern", "frame", "name"),
    [
        ("shot_####.png", 7, "shot_0007.png"),
        ("shot_####.png", -5, "shot_-0005.png"),
        ("shot_##.png", 12345, "shot_12345.png"),
        ("#/shot.####.exr", 3, "3/shot.0003.exr"),
        ("shot.png", 7, "shot.png"),
        ("shot_####.png", None, "shot_####.png"),
    ],
)
def test_a_pattern_is_filled_in_as_blender_does(pattern: str, frame: int | None, name: str) -> None:
    assert expand_pattern(pattern, frame) == name
    assert has_frame(pattern) is ("#" in pattern)


def test_a_range_is_described_shortly_with_its_whole_count() -> None:
    assert describe(range(1, 251)) == "1-250 (250 frames)"
    assert describe([7]) == "7 (1 frame)"
    assert describe([]) == "no frames"
    told = describe(n * n for n in range(1000))
    assert told.endswith(",… (1,000 frames)")
    assert len(told) < 70


def test_importing_the_parser_loads_no_library() -> None:
    code = "import sys, farm.model.frames; print({'fileseq', 'pydantic', 'openjd'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
