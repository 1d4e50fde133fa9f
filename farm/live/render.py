"""A snapshot as a picture of a given size: a pure function. Texts go through `cell`, never through markup.

The picture is one `Text` of exactly `height` lines, none wider than `width` cells. What does not fit is left
out in a fixed order: columns first, then panes; the connection's state is the last to go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Span, Text

from farm.live.cells import Column, Line, cell, fit_columns, heading, share_rows, shown, sparkline
from farm.live.lists import Lists, lists
from farm.live.panes import (
    NODE_COLUMNS,
    ONE_LINE_FROM,
    STALLED_COLUMNS,
    TASK_COLUMNS,
    clock,
    event_line,
    job_columns,
    job_line,
    node_line,
    note,
    stalled_line,
    task_line,
)
from farm.live.snapshot import Snapshot
from farm.live.view import OVERVIEW, Pane, View, place
from farm.text import duration

_MONO: Final = {"head": "reverse", "focus": "bold", "lost": "bold reverse", "chosen": "bold", "ask": "bold"}
_COLOUR: Final = {
    "head": "bold white on blue",
    "lost": "bold white on red",
    "ask": "bold black on yellow",
    "chosen": "reverse",
    "focus": "bold cyan",
    "title": "dim cyan",
    "heading": "dim",
    "dim": "dim",
    "good": "green",
    "busy": "cyan",
    "warn": "yellow",
    "bad": "bold red",
}
_SPARKS_FROM: Final = 16
"""Lines of the screen from which on one of them shows what was."""
_SPARK: Final = 10
"""Cells of each sparkline, at 80 columns."""
_MARK: Final = "▸"
_MOST_OF_A_LINE: Final = 4_000
"""Characters of a line of output that are shown."""
HELP: Final = (
    ("j n e", "jobs, nodes, events: into focus; again: larger"),
    ("↑ ↓ PgUp PgDn Home End", "move the cursor"),
    ("Enter or t", "the tasks of a job"),
    ("Enter or l", "the output of a task"),
    ("Esc", "back; or takes the filter away"),
    ("s", "what is stalled, and why it is taken for that"),
    ("/", "filter the pane: state=failed and user=anna"),
    ("", "(`farm fields` tells the fields); of output: a text"),
    ("o", "order the pane by the next field"),
    ("p", "pause or resume the job"),
    ("c", "cancel the job, or the task"),
    ("r", "try again what failed or was cancelled"),
    ("+", "set the job's priority"),
    ("d", "drain the node, or let it work again"),
    ("?", "this page"),
    ("q or Ctrl-C", "quit; nothing on the farm changes"),
    ("", "Everything that changes the farm asks first."),
)


def render(snapshot: Snapshot, width: int, height: int, *, colour: bool, view: View | None = None) -> Text:
    """The picture, `width` × `height` cells. Never raises, whatever the names and however small the size."""
    view = view or View()
    width, height = max(width, 1), max(height, 1)
    listed = lists(snapshot, view)
    top = [_header(snapshot, width)]
    if _rows_above(height) > 1:
        top.append(_sparks(snapshot, width))
    body = _panes(snapshot, listed, width, height - 1 - _rows_above(height), view)
    lines = [*top, *body][: max(height - 1, 1)]
    if height > 1:
        lines += [[] for _ in range(height - 1 - len(lines))]
        lines.append(_footer(snapshot, width, view))
    return _text(lines, width, _COLOUR if colour else _MONO)


def _rows_above(height: int) -> int:
    """Of the header: with the sparklines where there is room for them."""
    return 2 if height >= _SPARKS_FROM else 1


def _text(lines: Sequence[Line], width: int, theme: dict[str, str]) -> Text:
    plain: list[str] = []
    spans: list[Span] = []
    at = 0
    for number, line in enumerate(lines):
        if number:
            plain.append("\n")
            at += 1
        whole = "".join(text for text, _ in line)
        if cell_len(whole) > width:
            whole = set_cell_size(whole, width)
        plain.append(whole)
        end = at + len(whole)
        for text, style in line:
            if text and at < end and style in theme:
                spans.append(Span(at, min(at + len(text), end), theme[style]))
            at += len(text)
        at = end
    return Text("".join(plain), spans=spans, no_wrap=True, overflow="crop", end="")


# --- header and footer --------------------------------------------------------------------------------


def connection(snapshot: Snapshot) -> str:
    """ "connected", "connecting…", or since when and why there is no answer."""
    if snapshot.lost_reason:
        return f"LOST for {duration(snapshot.lost_s or 0)}: {snapshot.lost_reason}"
    return "connected" if snapshot.farm is not None else "connecting…"


def facts(snapshot: Snapshot) -> list[str]:
    """What the header says of the farm, the most important first."""
    farm = snapshot.farm
    if farm is None:
        return []
    counts = farm.counts
    rate = "n/a" if snapshot.per_minute is None else f"{snapshot.per_minute:.3g}"
    return [
        *(["no scheduler leads"] if farm.leader is None else []),
        *([f"STALLED {len(snapshot.stalled):,}"] if snapshot.stalled else []),
        f"nodes {farm.nodes_online}/{farm.nodes}",
        f"slots {farm.slots_used}/{farm.slots}",
        f"running {counts.live:,}",
        f"waiting {counts.waiting + counts.ready:,}",
        *([f"held {counts.held:,}"] if counts.held else []),
        clock(farm.now, snapshot.utc_offset_s),
        f"{rate}/min",
        f"policy {farm.policy}",
    ]


def _header(snapshot: Snapshot, width: int) -> Line:
    is_lost = bool(snapshot.lost_reason)
    state = shown(connection(snapshot), width)
    state = cell(state, min(cell_len(state), width if snapshot.farm is None else max(width // 2, 11)))
    left = ""
    for fact in ("Ridgeline", *facts(snapshot)):
        longer = f"{left} · {fact}" if left else fact
        if cell_len(longer) + 2 + cell_len(state) > width:
            break
        left = longer
    gap = max(width - cell_len(left) - cell_len(state), 0)
    return [(left + " " * gap, "head"), (state, "lost" if is_lost else "head")]


def _sparks(snapshot: Snapshot, width: int) -> Line:
    """Use of the devices, tasks done a minute, and spread of the frames' times, as they went lately."""
    history = snapshot.history
    length = max(_SPARK * width // 80, 3)
    told: Line = []
    for name, values, top, style, text in (
        ("use", history.use, 1.0, "good", "{:.0%}"),
        ("done/min", history.per_minute, None, "busy", "{:.3g}"),
        ("spread", history.spread, 1.0, "warn", "{:.0%}"),
    ):
        last = values[-1] if values else None
        told += [
            (f"{'  ' if told else ''}{name} ", "dim"),
            (sparkline(values, length, top=top), style),
            (f" {'n/a' if last is None else text.format(last)}", ""),
        ]
    return told


def _footer(snapshot: Snapshot, width: int, view: View) -> Line:
    if view.typing is not None:
        what = view.typing.what
        if what == "priority":
            what = f"priority of {view.typing.target.name} (now {view.typing.target.priority})"
        # The end of what is typed is where the person looks.
        room = max(width - 2, 1)
        text = shown(f"{what}: {view.typing.text}", 2 * (width + len(view.typing.text)))
        while cell_len(text) > room:
            text = text[1:]
        return [(cell(f"{text}▏", width), "ask")]
    if view.asking is not None:
        room = max(width - len(" ? y/n"), 1)
        return [(cell(shown(view.asking.question, width), room).rstrip() + " ? y/n", "ask")]
    if view.said or snapshot.answer:
        style = "lost" if snapshot.has_refused and not view.said else "ask"
        return [(cell(view.said or snapshot.answer, width), style)]
    return [(cell(_keys_of(view), width), "head")]


def _keys_of(view: View) -> str:
    if view.focus is Pane.LOG:
        return "q quit  Esc back  ↑↓ PgUp PgDn scroll  End newest  / lines with a text  ? help"
    if view.focus is Pane.TASKS:
        return "q quit  Esc back  Enter output  / filter  o order  r again  c cancel  ? help"
    if view.focus is Pane.NODES:
        return "q quit  j jobs  n larger  / filter  o order  d drain  s stalled  ? help"
    if view.focus in OVERVIEW:
        return "q quit  Enter tasks  / filter  o order  p pause  c cancel  r again  ? help"
    if view.focus is Pane.STALLED:
        return "q quit  Esc back  Enter output  t tasks  / filter  o order  c cancel  ? help"
    return "q quit  Esc back  ? help"


# --- panes --------------------------------------------------------------------------------------------


def _panes(snapshot: Snapshot, listed: Lists, width: int, height: int, view: View) -> list[Line]:
    if height < 1:
        return []
    if view.focus not in OVERVIEW or view.is_enlarged or height < 9:
        return _pane(snapshot, listed, view.focus, width, height, view)
    heights = share_rows(height, [_wanted_rows(listed, pane, width) for pane in OVERVIEW], weights=(5, 3, 2))
    return [
        line
        for pane, rows in zip(OVERVIEW, heights, strict=True)
        for line in _pane(snapshot, listed, pane, width, rows, view)
    ]


def _wanted_rows(listed: Lists, pane: Pane, width: int) -> int:
    over = 1 if pane is Pane.EVENTS else 2
    count = len(listed.ids[pane])
    if pane is Pane.JOBS and width < ONE_LINE_FROM:
        count += sum(1 for line in listed.jobs if note(line))
    return max(count, 1) + over


def _pane(snapshot: Snapshot, listed: Lists, pane: Pane, width: int, height: int, view: View) -> list[Line]:
    if pane is Pane.HELP:
        return _fill([_rule(" KEYS ", width, "focus"), *_help(width)], height)
    if pane is Pane.LOG:
        return _fill(_log(snapshot, listed, width, height, view), height)
    inner = max(width - 1, 1)  # the cursor's mark stands before each line
    columns, draw = _drawing(snapshot, listed, pane, inner)
    top: list[Line] = [[(" ", ""), *heading(columns)]] if columns and height > 2 else []
    room = height - 1 - len(top)
    count = len(listed.ids.get(pane, ()))
    at = place(view, pane, listed.ids.get(pane, ()))
    first, body, end = _window(draw, count, at, room, is_chosen=view.focus is pane)
    if not count:
        body = [[(cell(f"  {_nothing(snapshot, pane, view)}", width), "dim")]]
    title = _title(snapshot, listed, pane, first, end, count, width, view)
    return _fill([title, *top, *body[: max(room, 0)]], height)


def _nothing(snapshot: Snapshot, pane: Pane, view: View) -> str:
    """Why a pane is empty: what was not answered yet is not taken for nothing."""
    if snapshot.farm is None or (pane is Pane.TASKS and snapshot.job_id != view.job_id):
        return "not known: the farm does not answer" if snapshot.lost_reason else "asking…"
    return "nothing is stalled" if pane is Pane.STALLED else f"no {pane}"


def _window(
    draw: Callable[[int], list[Line]], count: int, cursor: int, room: int, *, is_chosen: bool
) -> tuple[int, list[Line], int]:
    """(first item, lines, item after the last): as many items as there is room for, the cursor's among them.

    It stands in the middle where there is more above and below.
    """
    if count == 0 or room <= 0:
        return 0, [], 0
    first = last = cursor
    drawn = {cursor: draw(cursor)}
    used = len(drawn[cursor])
    while True:
        # Above first while the cursor is not in the middle yet, then below, then above again at the end.
        above = sum(len(drawn[i]) for i in range(first, cursor))
        goes_up = first > 0 and (above < room // 2 or last + 1 >= count)
        at = first - 1 if goes_up else last + 1
        if at < 0 or at >= count:
            break
        if used >= room:
            break
        drawn[at] = draw(at)
        used += len(drawn[at])
        if used > room and goes_up:
            break
        first, last = min(first, at), max(last, at)  # the last one's second line may be cut off
    lines: list[Line] = []
    for index in range(first, last + 1):
        is_here = is_chosen and index == cursor
        for number, line in enumerate(drawn[index]):
            if is_here:
                mark = _MARK if number == 0 else " "
                lines.append([(mark, "focus"), ("".join(text for text, _ in line), "chosen")])
            else:
                lines.append([(" ", ""), *line])
    return first, lines, last + 1


def _drawing(
    snapshot: Snapshot, listed: Lists, pane: Pane, width: int
) -> tuple[list[tuple[Column, int]], Callable[[int], list[Line]]]:
    """The columns of a pane, and what draws its item of a number."""
    if pane is Pane.JOBS:
        columns = fit_columns(job_columns(width + 1), width)
        return columns, lambda at: job_line(listed.jobs[at], columns, width)
    if pane is Pane.NODES:
        columns = fit_columns(NODE_COLUMNS, width)
        return columns, lambda at: [node_line(listed.nodes[at], columns)]
    if pane is Pane.TASKS:
        columns = fit_columns(TASK_COLUMNS, width)
        now = snapshot.farm.now if snapshot.farm is not None else 0.0
        steps = {
            step.id: step
            for line in snapshot.jobs
            if line.job.id == snapshot.job_id
            for step in line.job.steps
        }
        return columns, lambda at: [
            task_line(listed.tasks[at], steps.get(listed.tasks[at].task.step_id), now, columns)
        ]
    if pane is Pane.STALLED:
        columns = fit_columns(STALLED_COLUMNS, width)
        now = snapshot.farm.now if snapshot.farm is not None else 0.0
        return columns, lambda at: stalled_line(listed.stalled[at], now, columns, width)
    return [], lambda at: [event_line(listed.events[at], snapshot.utc_offset_s, width)]


def _title(
    snapshot: Snapshot, listed: Lists, pane: Pane, first: int, end: int, count: int, width: int, view: View
) -> Line:
    has_more = pane is Pane.JOBS and snapshot.has_more_jobs
    more = "+" if has_more else ""
    part = (
        f" {first + 1}–{end} of {count}{more}"
        if count and (first or end < count or has_more)
        else f" {count}"
    )
    of = ""
    if pane is Pane.TASKS:
        job = next((line.job for line in snapshot.jobs if line.job.id == view.job_id), None)
        of = f" of job {view.job_id}{'' if job is None else f' {job.name}'}"
    told = f"{_MARK if view.focus is pane else ' '}{pane.upper()}{part}"
    if view.filters.get(pane):
        told += f" · only {view.filters[pane]}"
    if view.sorts.get(pane):
        told += f" · by {view.sorts[pane]}"
    told += of
    if pane in listed.wrong:
        return [(cell(f"{_MARK}{pane.upper()}: {listed.wrong[pane]}", width), "bad")]
    return _rule(f"{shown(told, width)} ", width, "focus" if view.focus is pane else "title")


def _rule(text: str, width: int, style: str) -> Line:
    return [(set_cell_size(text + "─" * width, width), style)]


def _help(width: int) -> list[Line]:
    return [
        [("  ", ""), (cell(key, 23), "focus"), (cell(text, max(width - 25, 0)), "")] for key, text in HELP
    ]


def _log(snapshot: Snapshot, listed: Lists, width: int, height: int, view: View) -> list[Line]:
    log = snapshot.log if snapshot.log is not None and snapshot.log.task_id == view.task_id else None
    attempt = log.attempt if log is not None else None
    wanted = view.filters.get(Pane.LOG, "")
    told = f"{_MARK}OUTPUT{f' · only lines with {wanted} ·' if wanted else ''} of {view.task_name}"
    if attempt is not None:
        told += f" on {attempt.node_id}: {attempt.state}"
        told += f", {attempt.reason}" if attempt.reason else ""
    lines = listed.log
    room = max(height - 1, 0)
    up = min(view.cursor.get(Pane.LOG, 0), _most_up(lines, width, room))
    if up:
        told += f" · {up:,} lines above its end"
    end = len(lines) - up
    body: list[Line] = []
    for text in reversed(lines[max(end - room, 0) : end]):
        body[:0] = [[(cell(piece, width), "")] for piece in _wrapped(text, width)]
        if len(body) >= room:
            break
    body = body[max(len(body) - room, 0) :]
    if not body:
        empty = "it has not said anything yet" if attempt is not None else "no attempt was made yet"
        if wanted and attempt is not None:
            empty = "no line of its output holds this text"
        body = [[(cell(f"  {'reading…' if log is None else empty}", width), "dim")]]
    return [_rule(f"{shown(told, width)} ", width, "focus"), *body]


def within_log(view: View, listed: Lists, width: int, height: int) -> View:
    """With the output scrolled no further up than to its beginning, on a screen of this size."""
    most = _most_up(listed.log, width, max(height - 1 - _rows_above(height) - 1, 0))
    return replace(view, cursor={**view.cursor, Pane.LOG: min(view.cursor.get(Pane.LOG, 0), most)})


def _most_up(lines: Sequence[str], width: int, room: int) -> int:
    """How many lines are below the pane when it shows the first ones, as many as it has room for."""
    used = 0
    for count, text in enumerate(lines):
        used += len(_wrapped(text, width))
        if used > room:
            return len(lines) - max(count, 1)
    return 0


def _wrapped(text: str, width: int) -> list[str]:
    """A line of output as lines of the screen."""
    safe = shown(text.replace("\t", "    "), _MOST_OF_A_LINE)
    return chop_cells(safe, max(width, 2)) or [""]


def _fill(lines: list[Line], height: int) -> list[Line]:
    return lines[:height] + [[] for _ in range(height - len(lines))]
