"""Text for people: the one `clean()` before a terminal or log line, the one duration and size formatter."""

from __future__ import annotations

import unicodedata

_KEPT_CONTROLS = frozenset("\n\t")
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str, *, limit: int = 10_000, one_line: bool = False) -> str:
    """`text` made safe to show in a terminal (facts: kubectl CVE-2021-25743 and kin).

    C0 and C1 controls, surrogates and line separators are shown as escapes, bidirectional controls are
    dropped, and the length is capped at `limit` characters. With `one_line`, line ends are shown too.
    """
    kept = []
    for char in text[:limit]:
        if char in _BIDI:
            continue
        category = unicodedata.category(char)
        if category in ("Cc", "Cs", "Zl", "Zp") and (one_line or char not in _KEPT_CONTROLS):
            code = ord(char)
            kept.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
        else:
            kept.append(char)
    if len(text) > limit:
        kept.append("…")
    return "".join(kept)


def duration(seconds: float | None) -> str:
    """Short and fixed in meaning: "0.4 s", "42 s", "3:07", "2:03:07", "3 d 02 h"; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours == 0:
        return f"{minute}:{second:02d}"
    if hours < 48:
        return f"{hours}:{minute:02d}:{second:02d}"
    days, hour = divmod(hours, 24)
    return f"{days} d {hour:02d} h"


def size(size_bytes: float | None) -> str:
    """Binary units: "512 B", "1.5 MiB"; "-" for None."""
    if size_bytes is None:
        return "-"
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def plural(count: int, noun: str) -> str:
    """ "1 frame", "12 frames"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
