"""What commands print: tables that fit the terminal, JSON for scripts, progress on standard error.

Text that people made (names, paths, reasons, renderers' messages) reaches the terminal through `cell` only.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from farm.model.states import TaskState
from farm.model.work import Counts
from farm.text import clean, duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_PIPE_WIDTH: Final = 200
"""Columns when standard output is no terminal and COLUMNS is not set."""
_STYLES: Final = {
    "done": "green",
    "succeeded": "green",
    "online": "green",
    "ok": "green",
    "active": "cyan",
    "running": "cyan",
    "assigned": "cyan",
    "failed": "red",
    "lost": "red",
    "offline": "red",
    "error": "bold red",
    "held": "yellow",
    "warning": "yellow",
    "cancelling": "yellow",
    "suspect": "yellow",
    "draining": "yellow",
    "paused": "yellow",
    "cancelled": "dim",
    "superseded": "dim",
}


def console(*, is_error: bool = False) -> Console:
    """Colour only on a terminal and without NO_COLOR; no markup, no emoji, no highlighting."""
    from rich.console import Console

    stream = sys.stderr if is_error else sys.stdout
    return Console(
        file=stream,
        width=width() if not is_error else None,
        markup=False,
        emoji=False,
        highlight=False,
    )


def put(what: RenderableType) -> None:
    """Print it; into a file or pipe without the blanks that fill a line up."""
    out = console()
    if out.is_terminal:
        out.print(what)
        return
    with out.capture() as captured:
        out.print(what)
    sys.stdout.write("".join(f"{text.rstrip()}\n" for text in captured.get().splitlines()))


def width() -> int:
    """Columns to print in."""
    return max(shutil.get_terminal_size(fallback=(_PIPE_WIDTH, 24)).columns, 20)


def cell(text: object, style: str = "", *, limit: int = 2_000) -> Text:
    """Text that people made, on one line, without markup, cut with an ellipsis where a column ends."""
    from rich.text import Text

    return Text(clean(str(text), one_line=True, limit=limit), style=style, no_wrap=True, overflow="ellipsis")


def shown(text: str, limit: int = 200) -> str:
    """Text that people made, for the middle of a message."""
    return clean(text, one_line=True, limit=limit)


def state(name: str) -> Text:
    return cell(name, _STYLES.get(name, ""))


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    is_right: bool = False
    shrinks: bool = False
    """Gives up width first, down to `least`."""
    least: int = 6


def table(columns: Sequence[Column], rows: Iterable[Sequence[Text | str]], *, empty: str) -> None:
    """Print rows below a heading, or `empty` when there are none. Plain strings are our own words."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", collapse_padding=True)
    for column in columns:
        grid.add_column(
            column.title,
            justify="right" if column.is_right else "left",
            no_wrap=not column.shrinks,
            overflow="ellipsis",
            min_width=column.least if column.shrinks else None,
        )
    for row in rows:
        grid.add_row(*row)
    if grid.row_count == 0:
        print(empty)
    else:
        put(grid)


def facts(pairs: Iterable[tuple[str, Text | str]]) -> None:
    """Print names and values below each other; long values wrap. Pairs with an empty value are left out."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if str(value):
            grid.add_row(name, words(value) if isinstance(value, str) else value)
    put(grid)


def words(text: str, style: str = "") -> Text:
    """As `cell`, but wrapped where the column ends instead of cut."""
    from rich.text import Text

    return Text(clean(text, one_line=True), style=style, overflow="fold")


def line(text: str) -> None:
    """Print one line; `text` may hold what people typed."""
    print(clean(text, one_line=True))


def note(text: str) -> None:
    """One line on standard error."""
    print(clean(text, one_line=True), file=sys.stderr, flush=True)


def data(value: Any) -> None:
    """Compact JSON in one line; everything beyond ASCII is escaped, so that it is safe in any terminal."""
    print(json.dumps(value, separators=(",", ":"), sort_keys=True))


def counted(counts: Counts) -> Text:
    """ "12/250", and what went wrong: "12/250, 3 failed"."""
    from rich.text import Text

    text = Text(f"{counts.done:,}/{counts.total:,}", no_wrap=True)
    for bad, style in ((TaskState.FAILED, "red"), (TaskState.HELD, "yellow")):
        if number := getattr(counts, bad):
            text.append(f", {number:,} {bad}", style=style)
    return text


def every_count(counts: Counts) -> str:
    """All that are not 0: "12 done, 2 running, 236 ready"."""
    order = ("done", "failed", "cancelled", "held", "running", "assigned", "cancelling", "ready", "waiting")
    told = [f"{getattr(counts, name):,} {name}" for name in order if getattr(counts, name)]
    return ", ".join(told) or "none"


def eta(seconds: tuple[float, float] | None) -> str:
    """ "12:30-15:10": likely, and at worst nine times in ten."""
    if seconds is None:
        return "-"
    likely, worst = map(duration, seconds)
    return likely if likely == worst else f"{likely}-{worst}"


def when(at: float, now: float) -> str:
    """Local time: "14:03" today, else "30 Nov 14:03"."""
    local, today = time.localtime(at), time.localtime(now)
    is_today = (local.tm_year, local.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M" if is_today else "%d %b %H:%M", local)


def percent(share: float | None) -> str:
    """ "42 %"; "n/a" for None: not known is not 0."""
    return "n/a" if share is None else f"{share * 100:.0f} %"
