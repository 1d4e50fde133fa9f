"""Pictures inside the terminal: kitty's and iTerm's protocols, and sixel."""

from __future__ import annotations

import base64
import os
import re
import select
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Final

_CHUNK: Final = 4096
_KITTY_PROGRAMS: Final = frozenset({"ghostty"})
_ITERM_PROGRAMS: Final = frozenset({"iTerm.app", "WezTerm", "mintty", "rio"})
_ASK: Final = "\x1b[c"
"""Primary device attributes: every terminal answers `ESC [ ? .. c`; a 4 among the numbers says sixel."""
_ANSWER: Final = re.compile(r"\x1b\[\?([0-9;]*)c")
_ANSWER_S: Final = 0.3
_RUN: Final = re.compile(rb"(.)\1*", re.DOTALL)
_STEPS: Final = (0, 51, 102, 153, 204, 255)
"""Levels of each colour in the sixel palette, 6 * 6 * 6 colours in all."""


def protocol(environment: Mapping[str, str], device_attributes: str = "") -> str | None:
    """ "kitty", "iterm", "sixel" or None, from what the environment says and the terminal answered."""
    program = environment.get("TERM_PROGRAM", "")
    is_wrapped = "TMUX" in environment or environment.get("TERM", "").startswith(("screen", "tmux"))
    if not is_wrapped:
        if (
            "KITTY_WINDOW_ID" in environment
            or environment.get("TERM") == "xterm-kitty"
            or program in _KITTY_PROGRAMS
        ):
            return "kitty"
        if program in _ITERM_PROGRAMS or environment.get("LC_TERMINAL") == "iTerm2":
            return "iterm"
    match = _ANSWER.search(device_attributes)
    return "sixel" if match is not None and "4" in match[1].split(";") else None


def ask_terminal() -> str:
    """The terminal's own word on what it can, empty when there is none or it keeps silent."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        return ""
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    told = ""
    try:
        tty.setcbreak(number)
        sys.stdout.write(_ASK)
        sys.stdout.flush()
        until = time.monotonic() + _ANSWER_S
        while not told.endswith("c"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([number], [], [], left)[0]:
                break
            told += os.read(number, 64).decode("ascii", "replace")
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)
    return told


def kitty(png: bytes) -> Iterator[str]:
    """The picture as kitty reads it, in pieces."""
    text = base64.standard_b64encode(png).decode("ascii")
    for start in range(0, len(text), _CHUNK):
        head = "a=T,f=100," if start == 0 else ""
        more = int(start + _CHUNK < len(text))
        yield f"\x1b_G{head}m={more};{text[start : start + _CHUNK]}\x1b\\"
    yield "\n"


def iterm(png: bytes) -> Iterator[str]:
    """The picture as iTerm and its kin read it."""
    text = base64.standard_b64encode(png).decode("ascii")
    yield f"\x1b]1337;File=inline=1;size={len(png)};preserveAspectRatio=1:{text}\x07\n"


def sixel(width: int, height: int, rgb: bytes) -> Iterator[str]:
    """The picture as sixel: 216 colours, six rows at a time, runs written short.

    `rgb`: rows from the top, three bytes a pixel.
    """
    yield f'\x1bPq"1;1;{width};{height}'
    for number in range(216):
        red, green, blue = number // 36, number // 6 % 6, number % 6
        yield f"#{number};2;{red * 20};{green * 20};{blue * 20}"
    level = bytes(min(range(6), key=lambda step: abs(_STEPS[step] - value)) for value in range(256))
    reduced = rgb.translate(level)
    colours = bytes(
        red * 36 + green * 6 + blue
        for red, green, blue in zip(reduced[::3], reduced[1::3], reduced[2::3], strict=True)
    )
    for top in range(0, height, 6):
        bands: dict[int, bytearray] = {}
        for bit in range(min(6, height - top)):
            row = colours[(top + bit) * width : (top + bit + 1) * width]
            for x, colour in enumerate(row):
                band = bands.get(colour)
                if band is None:
                    band = bands[colour] = bytearray(b"?" * width)
                band[x] += 1 << bit
        yield "$".join(f"#{colour}{_runs(band)}" for colour, band in sorted(bands.items())) + "-"
    yield "\x1b\\\n"


def _runs(band: bytearray) -> str:
    def short(match: re.Match[bytes]) -> bytes:
        length = len(match[0])
        return match[0] if length < 4 else b"!%d%s" % (length, match[1])

    return _RUN.sub(short, band).decode("ascii")
