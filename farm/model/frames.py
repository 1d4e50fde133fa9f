"""The one frame-range parser, and the one place that knows what `#` means in a file name.

A range as a person types it is a list of pieces, separated by commas or blanks:

    7        one frame                     10-1      backwards
    1-100    both ends are rendered        -5--1     frames may be negative
    1-10x2   every second: 1 3 5 7 9       1-10y2    the others: 2 4 6 8 10
    1-10:2   the same, as Open Job Description writes a step (it never means "stagger")

The text is read by this grammar alone. It agrees with the library fileseq wherever both take a text without
`:` (tests compare them), but fileseq itself is not fed: it reads `:` as stagger, takes `1.5`, drops an empty
piece, and its time grows with the square of the number of pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from farm.errors import UserError
from farm.text import clean, plural

MAX_FRAMES: Final = 1_000_000
MAX_FRAME: Final = 2**31 - 1
"""Frame numbers lie between minus this and this: renderers count in 32 bits."""
MAX_TEXT: Final = 2_000_000
"""Characters: about 250,000 scattered frames; bounds the time that hostile text can take (about 1 s)."""

_EXAMPLES: Final = "write, for example, 1-100, 1-100x2, 10-1 or 1,5,9-12"
_NUMBER = r"-?\d+"
_PIECE: Final = re.compile(
    rf"({_NUMBER})(?:-({_NUMBER})(?:([x:y])({_NUMBER}))?)?", re.ASCII
)  # ASCII: other scripts' digits would be shown back changed
_AT_START: Final = re.compile(_NUMBER, re.ASCII)
_LOOSE_STEP: Final = re.compile(r"(?<=\d)\s*([x:y])\s*(?=-?\d)", re.ASCII)
_LOOSE_DASH: Final = re.compile(r"(?<=\d)\s*-\s+(?=-?\d)", re.ASCII)
"""`1 - 10` and `1- 10` are a range; `1 -10` is two frames."""
_BETWEEN: Final = re.compile(r"\s*,\s*|\s+")
_HASHES: Final = re.compile(r"#+")


def parse_frames(text: str, *, cap: int = MAX_FRAMES) -> tuple[int, ...]:
    """The frames of `text` in the order written; a frame that comes again later is dropped.

    Raises UserError, quoting the piece, for anything that is not a range, for a number beyond MAX_FRAME, and
    for more than `cap` frames (repeats count, and they are counted before they are made).
    """
    if len(text) > MAX_TEXT:
        raise UserError(f"the frame range is {len(text):,} characters long; the most is {MAX_TEXT:,}")
    tidy = _LOOSE_DASH.sub("-", _LOOSE_STEP.sub(r"\1", text.strip()))
    if not tidy:
        raise UserError(f"the frame range is empty; {_EXAMPLES}")
    total = 0
    frames: dict[int, None] = {}
    for piece in _BETWEEN.split(tidy):
        if len(piece) < 10 and piece.isascii() and piece.isdecimal():
            # The short way for one frame: a long list is made of little else.
            total += 1
            frames[int(piece)] = None
        else:
            series = _read(piece, tidy)
            count = _count(*series)
            total += count
            if count > cap:
                raise UserError(f"{_shown(piece)} holds {count:,} frames; the most is {cap:,}")
            if total <= cap:
                frames.update(dict.fromkeys(_expand(*series)))
        if total > cap:
            raise UserError(f"{_shown(tidy)} holds more than {cap:,} frames; the most is {cap:,}")
    return tuple(frames)


def _read(piece: str, whole: str) -> tuple[int, int, str, int]:
    match = _PIECE.fullmatch(piece)
    if match is None:
        raise UserError(_why(piece, whole))
    start, end, kind, step = match.groups()
    first = _number(start, piece)
    if end is None:
        return first, first, "x", 1
    last, stride = _number(end, piece), _number(step or "1", piece)
    told = f"{_quoted(piece)} in the frame range"
    if stride == 0:
        raise UserError(f"{told} has step 0; the step must be 1 or more")
    if stride < 0 and kind == "y":
        raise UserError(f"{told}: the step after y must be 1 or more")
    if stride < 0 and last > first:
        raise UserError(
            f"{told} steps backwards but runs forwards; write {last}-{first}x{-stride} to go backwards"
        )
    if kind == "y" and stride == 1:
        raise UserError(f"{told} leaves no frame: y1 takes every one out")
    return first, last, kind or "x", abs(stride)


def _number(text: str, piece: str) -> int:
    # int() refuses more than 4,300 digits with an error of its own; zeros in front are no reason to refuse.
    digits = text.lstrip("-").lstrip("0") or "0"
    if len(digits) > 10 or int(digits) > MAX_FRAME:
        raise UserError(
            f"{_quoted(piece)} in the frame range: frame numbers lie between -{MAX_FRAME:,} and {MAX_FRAME:,}"
        )
    return -int(digits) if text.startswith("-") else int(digits)


def _why(piece: str, whole: str) -> str:
    """What is wrong with a piece that `_PIECE` does not match, read from the left."""
    if piece == "":
        return f"the frame range {_quoted(whole)} has a comma with nothing beside it; {_EXAMPLES}"
    return f"{_quoted(piece)} in the frame range cannot be read: {_first_fault(piece)}; {_EXAMPLES}"


def _first_fault(piece: str) -> str:
    if re.search(r"[0-9]\.[0-9]", piece):
        return "frames are whole numbers"
    first = _AT_START.match(piece)
    if first is None:
        return f"{_quoted(re.split(r'(?<!^)-', piece)[0])} is no frame number"
    rest = piece[first.end() :]
    if rest[0] in "xy:":
        return f"the last frame is missing before {_quoted(rest)}"
    if rest[0] != "-":
        return f"behind the first frame comes {_quoted(rest)}, where a range has - and the last frame"
    last = _AT_START.match(rest[1:])
    if last is None:
        return (
            f"the last frame is no number but {_quoted(rest[1:])}"
            if rest[1:]
            else "the last frame is missing"
        )
    tail = rest[1 + last.end() :]
    if tail[0] not in "xy:":
        return f"behind the last frame only a step such as x2 can come, not {_quoted(tail)}"
    return f"the step is no number but {_quoted(tail[1:])}" if tail[1:] else "the step is missing"


def _quoted(piece: str) -> str:
    return f"'{_shown(piece)}'"


def _shown(piece: str) -> str:
    return clean(piece, limit=60, one_line=True)


def _count(first: int, last: int, kind: str, step: int) -> int:
    span = abs(last - first) + 1
    stepped = (span + step - 1) // step
    return span - stepped if kind == "y" else stepped


def _expand(first: int, last: int, kind: str, step: int) -> Iterable[int]:
    way = 1 if last >= first else -1
    if kind != "y":
        return range(first, last + way, way * step)
    return (first + way * at for at in range(abs(last - first) + 1) if at % step)


def canonical(frames: Iterable[int]) -> str:
    """The frames as OpenJD range text: sorted, each once, such as "1-3,7,10-20:2". Empty for no frames.

    `parse_frames` and OpenJD's IntRangeExpr read it back to the same set. The order is lost, as in OpenJD.
    """
    ordered = sorted(set(frames))
    pieces = []
    at, end = 0, len(ordered)
    while at < end:
        stop = at + 1
        if stop < end:
            step = ordered[stop] - ordered[at]
            while stop < end and ordered[stop] - ordered[stop - 1] == step:
                stop += 1
            if stop - at == 2 and step > 1:
                stop = at + 1  # two frames are no series: leave the second to what follows
        if stop - at == 1:
            pieces.append(str(ordered[at]))
        elif step == 1:
            pieces.append(f"{ordered[at]}-{ordered[stop - 1]}")
        else:
            pieces.append(f"{ordered[at]}-{ordered[stop - 1]}:{step}")
        at = stop
    return ",".join(pieces)


def describe(frames: Iterable[int], *, limit: int = 40) -> str:
    """For people: "1-250 (250 frames)". A range longer than `limit` characters is cut between two pieces."""
    chosen = set(frames)
    if not chosen:
        return "no frames"
    text = canonical(chosen)
    if len(text) > limit:
        text = text[: text.rfind(",", 0, limit)] + ",…" if "," in text[:limit] else text[:limit] + "…"
    return f"{text} ({plural(len(chosen), 'frame')})"


def has_frame(pattern: str) -> bool:
    """Whether the file name pattern has a place for the frame number."""
    return "#" in pattern


def expand_pattern(pattern: str, frame: int | None) -> str:
    """The file name of one frame: each run of `#` becomes the frame, zero-padded to the run's length.

    As Blender writes them: the sign is not counted in the width (-5 in `####` is -0005), and a number that is
    longer is not cut.
    Without a frame, or without `#`, the pattern is returned as it is.
    """
    if frame is None:
        return pattern
    sign = "-" if frame < 0 else ""
    return _HASHES.sub(lambda run: f"{sign}{abs(frame):0{len(run[0])}d}", pattern)


def part_name(name: str, part: int) -> str:
    """The file name of one part of a frame: "still_0001.exr" and 3 give "still_0001.part003.exr"."""
    bare, dot, extension = name.rpartition(".")
    return f"{bare}.part{part:03d}.{extension}" if dot else f"{name}.part{part:03d}"
