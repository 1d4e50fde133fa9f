"""A snapshot as a picture of a given size: a pure function. Texts go through `shown`, never through markup.

The picture is one `Text` of exactly `height` lines, none wider than `width` cells. What does not fit is left
out in a fixed order: columns first, then panes; the connection's state is the last to go.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Span, Text

from farm.control.views import JobView
from farm.live.snapshot import Snapshot
from farm.live.view import Pane, View
from farm.model.events import Event, EventKind
from farm.model.machines import Device, DeviceKind, DeviceLoad, Node
from farm.model.states import ENDED_JOBS, JobState, NodeState
from farm.model.work import Counts, Tag
from farm.text import clean, duration, plural

Piece = tuple[str, str]
"""(text, style)"""
Line = list[Piece]

_ONE_LINE_FROM: Final = 160
"""Columns from which on a job's reason has a column; below it stands on a line of its own."""
_MONO: Final = {"head": "reverse", "focus": "bold", "lost": "bold reverse"}
_COLOUR: Final = {
    "head": "bold white on blue",
    "lost": "bold white on red",
    "focus": "bold cyan",
    "title": "dim cyan",
    "heading": "dim",
    "dim": "dim",
    "good": "green",
    "busy": "cyan",
    "warn": "yellow",
    "bad": "bold red",
}
_JOB_STYLES: Final = {
    JobState.ACTIVE: "good",
    JobState.WAITING: "busy",
    JobState.PAUSED: "warn",
    JobState.DONE: "dim",
    JobState.FAILED: "bad",
    JobState.CANCELLED: "dim",
}
_NODE_STYLES: Final = {
    NodeState.ONLINE: "good",
    NodeState.DRAINING: "warn",
    NodeState.SUSPECT: "warn",
    NodeState.OFFLINE: "bad",
}
_BAD_EVENTS: Final = frozenset(
    {
        EventKind.JOB_FAILED,
        EventKind.TASK_FAILED,
        EventKind.TASK_HELD,
        EventKind.ATTEMPT_FAILED,
        EventKind.ATTEMPT_LOST,
        EventKind.NODE_SUSPECTED,
        EventKind.NODE_OFFLINE,
        EventKind.NODE_REFUSED,
        EventKind.DEVICE_LOST,
    }
)
_TAGS: Final = {Tag.BANDWIDTH: "mem-bw", Tag.UNKNOWN: "?"}
"""Short, and never just "bandwidth": it is the memory's."""
_HOT_C: Final = 85
_DONE, _RUNNING, _FAILED, _LEFT = "█", "▒", "×", "·"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    title: str
    width: int
    """The least, in cells."""
    most: int
    """Cells it may grow to."""
    rank: int
    """The column of the highest rank is left out first."""
    is_right: bool = False


_JOB_COLUMNS: Final = (
    Column(title="ID", width=4, most=7, rank=0, is_right=True),
    Column(title="NAME", width=14, most=40, rank=1),
    Column(title="USER", width=6, most=12, rank=6),
    Column(title="PRI", width=3, most=3, rank=5, is_right=True),
    Column(title="TAG", width=8, most=8, rank=7),
    Column(title="PROGRESS", width=12, most=31, rank=2),
    Column(title="DONE", width=9, most=15, rank=8, is_right=True),
    Column(title="FAIL", width=4, most=6, rank=9, is_right=True),
    Column(title="STATE", width=9, most=9, rank=3),
    Column(title="ETA P50–P90", width=13, most=17, rank=4),
    Column(title="WHY NOTHING RUNS", width=16, most=400, rank=10),
)
_NODE_COLUMNS: Final = (
    Column(title="NODE", width=8, most=24, rank=0),
    Column(title="STATE", width=8, most=8, rank=1),
    Column(title="DEVICE", width=10, most=36, rank=3),
    Column(title="TFLOPS", width=6, most=6, rank=5, is_right=True),
    Column(title="MEM GB/S", width=8, most=8, rank=6, is_right=True),
    Column(title="USE", width=4, most=4, rank=7, is_right=True),
    Column(title="MEM", width=4, most=4, rank=8, is_right=True),
    Column(title="VRAM GB", width=7, most=9, rank=10, is_right=True),
    Column(title="°C", width=3, most=3, rank=11, is_right=True),
    Column(title="WATT", width=4, most=5, rank=12, is_right=True),
    Column(title="SLOTS", width=5, most=7, rank=9, is_right=True),
    Column(title="RUNS", width=17, most=400, rank=2),
    Column(title="SILENT", width=6, most=8, rank=4, is_right=True),
)


def render(snapshot: Snapshot, width: int, height: int, *, colour: bool, view: View | None = None) -> Text:
    """The picture, `width` × `height` cells. Never raises, whatever the names and however small the size."""
    view = view or View()
    width, height = max(width, 1), max(height, 1)
    lines = [_header(snapshot, width), *_panes(snapshot, width, height - 2, view)][: max(height - 1, 1)]
    if height > 1:
        lines += [[] for _ in range(height - 1 - len(lines))]
        lines.append(_footer(width, view))
    return _text(lines, width, _COLOUR if colour else _MONO)


def sizes(snapshot: Snapshot) -> dict[Pane, int]:
    """How many items each pane has."""
    return {
        Pane.JOBS: len(snapshot.jobs),
        Pane.NODES: len(snapshot.nodes),
        Pane.EVENTS: len(snapshot.events),
    }


# --- text ---------------------------------------------------------------------------------------------


def shown(text: str, most: int) -> str:
    """`text` on one line and safe in a terminal; not much more than `most` characters of it.

    Invisible format characters go too (joiners, variation selectors, tags): terminals disagree about their
    width, and a line that is wider than it was measured breaks the picture.
    """
    if text.isascii() and text.isprintable():
        return text[: most + 1]
    plain = clean(text, limit=2 * most + 2, one_line=True)
    return "".join(
        char for char in plain if unicodedata.category(char) != "Cf" and not "\ufe00" <= char <= "\ufe0f"
    )


def cell(text: str, width: int, *, is_right: bool = False) -> str:
    """`text` in exactly `width` cells, cut with an ellipsis, padded with blanks."""
    if width <= 0:
        return ""
    safe = shown(text, width)
    used = cell_len(safe)
    if used > width:
        return set_cell_size(set_cell_size(safe, width - 1).rstrip() + "…", width)
    padding = " " * (width - used)
    return padding + safe if is_right else safe + padding


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


def fit_columns(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that fit into `width` cells with one blank between them, each with its width.

    What is left over is shared out evenly until each column has its most.
    """
    kept = list(columns)
    while len(kept) > 1 and sum(column.width for column in kept) + len(kept) - 1 > width:
        kept.remove(max(kept, key=lambda column: column.rank))
    widths = [min(column.width, width) for column in kept]
    spare = width - sum(widths) - (len(kept) - 1)
    while spare > 0 and (growing := [i for i, c in enumerate(kept) if widths[i] < c.most]):
        share = max(spare // len(growing), 1)
        for index in growing:
            more = min(share, kept[index].most - widths[index], spare)
            widths[index] += more
            spare -= more
    return list(zip(kept, widths, strict=True))


def _row(columns: list[tuple[Column, int]], values: dict[str, Piece]) -> Line:
    line: Line = []
    for column, width in columns:
        if line:
            line.append((" ", ""))
        text, style = values.get(column.title, ("", ""))
        line.append((cell(text, width, is_right=column.is_right), style))
    return line


def _heading(columns: list[tuple[Column, int]]) -> Line:
    return [(" ".join(cell(c.title, w, is_right=c.is_right) for c, w in columns), "heading")]


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
        f"nodes {farm.nodes_online}/{farm.nodes}",
        f"slots {farm.slots_used}/{farm.slots}",
        f"running {counts.live:,}",
        f"waiting {counts.waiting + counts.ready:,}",
        *([f"held {counts.held:,}"] if counts.held else []),
        clock(farm.now, snapshot.utc_offset_s),
        f"{rate}/min",
        f"policy {farm.policy}",
    ]


def clock(at: float, utc_offset_s: float) -> str:
    """hh:mm:ss of a time in seconds since the epoch."""
    second = int(at + utc_offset_s) % 86_400
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


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


def _footer(width: int, view: View) -> Line:
    again = "smaller" if view.is_enlarged else "larger"
    text = f"q quit  j jobs  n nodes  e events  ↑↓ scroll  {view.focus.value[0]} {again}"
    return [(cell(text, width), "head")]


# --- panes --------------------------------------------------------------------------------------------


def _panes(snapshot: Snapshot, width: int, height: int, view: View) -> list[Line]:
    if height < 1:
        return []
    if view.is_enlarged or height < 9:
        return _pane(snapshot, view.focus, width, height, view)
    counts = sizes(snapshot)
    heights = share_rows(
        height, [_wanted_rows(snapshot, pane, counts[pane], width) for pane in Pane], weights=(5, 3, 2)
    )
    return [
        line
        for pane, rows in zip(Pane, heights, strict=True)
        for line in _pane(snapshot, pane, width, rows, view)
    ]


def _wanted_rows(snapshot: Snapshot, pane: Pane, count: int, width: int) -> int:
    over = 1 if pane is Pane.EVENTS else 2
    if pane is Pane.JOBS and width < _ONE_LINE_FROM:
        count += sum(1 for line in snapshot.jobs if _note(line))
    return max(count, 1) + over


def share_rows(height: int, wanted: Sequence[int], *, weights: Sequence[int]) -> list[int]:
    """`height` rows shared out by weight, none given more than it wants, but the last takes what is left.

    Each gets at least 3, so `height` must be 3 × as many.
    """
    rows = [3] * len(wanted)
    spare = height - sum(rows)
    while spare > 0:
        growing = [i for i in range(len(rows)) if rows[i] < wanted[i]]
        if not growing:
            rows[-1] += spare
            break
        whole = sum(weights[i] for i in growing)
        for index in growing:
            more = min(max(spare * weights[index] // whole, 1), wanted[index] - rows[index])
            more = min(more, height - sum(rows))
            rows[index] += more
        spare = height - sum(rows)
    return rows


def _pane(snapshot: Snapshot, pane: Pane, width: int, height: int, view: View) -> list[Line]:
    count = sizes(snapshot)[pane]
    first = min(view.scroll.get(pane, 0), max(count - 1, 0))
    if pane is Pane.EVENTS:
        columns: list[tuple[Column, int]] = []
    else:
        columns = fit_columns(_NODE_COLUMNS if pane is Pane.NODES else _job_columns(width), width)
    top = [_heading(columns)] if columns and height > 2 else []
    body: list[Line] = []
    room = height - 1 - len(top)
    at = first
    while len(body) < room and at < count:
        if pane is Pane.JOBS:
            body += _job(snapshot.jobs[at], columns, width)
        elif pane is Pane.NODES:
            body.append(_node(snapshot.nodes[at], columns))
        else:
            body.append(_event(snapshot.events[at], snapshot.utc_offset_s, width))
        at += 1
    if not count:
        body = [[(cell(f"  no {pane}", width), "dim")]]
    title = _title(pane, first, at, count, snapshot.has_more_jobs and pane is Pane.JOBS, width, view)
    lines = [title, *top, *body[:room]][:height]
    return lines + [[] for _ in range(height - len(lines))]


def _title(pane: Pane, first: int, end: int, count: int, has_more: bool, width: int, view: View) -> Line:
    mark = "▸" if view.focus is pane else " "
    more = "+" if has_more else ""
    part = (
        f" {first + 1}–{end} of {count}{more}"
        if count and (first or end < count or has_more)
        else f" {count}"
    )
    text = f"{mark}{pane.upper()}{part} "
    return [(set_cell_size(text + "─" * width, width), "focus" if view.focus is pane else "title")]


# --- jobs ---------------------------------------------------------------------------------------------


def _job_columns(width: int) -> Sequence[Column]:
    return _JOB_COLUMNS if width >= _ONE_LINE_FROM else _JOB_COLUMNS[:-1]


def _note(line: JobView) -> str:
    """Why nothing runs, why it failed, and what waits for a person."""
    held = f"{plural(line.counts.held, 'task')} held for a person to decide" if line.counts.held else ""
    return "; ".join(part for part in (held, line.waiting or line.job.reason) if part)


def eta(line: JobView) -> str:
    """ "3:07–4:10": likely, and at worst 9 times in 10."""
    if line.eta_s is None or line.job.state in ENDED_JOBS:
        return "-"
    return "–".join(duration(seconds) for seconds in line.eta_s)


def bar(counts: Counts, width: int) -> tuple[int, int, int]:
    """Cells of done, running and failed (with cancelled) in a bar of `width`; what is not nothing is seen.

    Only a bar too short for it hides a part; done is rounded down, so that a full bar means all done.
    """
    total = counts.total
    if total == 0 or width <= 0:
        return 0, 0, 0
    failed = _cells(counts.failed + counts.cancelled, total, width)
    running = min(_cells(counts.live, total, width), width - failed)
    done = min(counts.done * width // total, width - failed - running)
    return done, running, failed


def _cells(part: int, total: int, width: int) -> int:
    return max(part * width // total, 1) if part else 0


def percent(progress: float) -> str:
    """Rounded down: 100 % only when all is done."""
    return f"{int(min(max(progress, 0.0), 1.0) * 100 + 1e-9)}%"


def _job(line: JobView, columns: list[tuple[Column, int]], width: int) -> list[Line]:
    job, counts = line.job, line.counts
    style = _JOB_STYLES[job.state]
    faint = "dim" if job.state in ENDED_JOBS else ""
    note = _note(line)
    row = _row(
        columns,
        {
            "ID": (str(job.id), faint),
            "NAME": (job.name, faint),
            "USER": (job.settings.user, faint),
            "PRI": (str(job.settings.priority), faint),
            "TAG": (_TAGS.get(line.tag, line.tag), faint),
            "DONE": (f"{counts.done}/{counts.total}", faint),
            "FAIL": (str(counts.failed) if counts.failed else "", "bad"),
            "STATE": (job.state, style),
            "ETA P50–P90": (eta(line), faint),
            "WHY NOTHING RUNS": (note, "warn"),
        },
    )
    for index, (column, cells) in enumerate(columns):
        if column.title == "PROGRESS":
            # Every column but the first has its blank in front of it: column n is piece 2n.
            row[2 * index : 2 * index + 1] = _progress(line, cells)
    if note and columns[-1][0].title != "WHY NOTHING RUNS":
        return [row, [("     └ ", "dim"), (cell(note, width - 7), "warn")]]
    return [row]


def _progress(line: JobView, width: int) -> Line:
    length = width - 5
    if length < 3:
        return [(cell(percent(line.progress), width, is_right=True), "")]
    done, running, failed = bar(line.counts, length)
    return [
        (_DONE * done, "good"),
        (_RUNNING * running, "busy"),
        (_FAILED * failed, "bad"),
        (_LEFT * (length - done - running - failed), "dim"),
        (cell(percent(line.progress), 5, is_right=True), ""),
    ]


# --- nodes --------------------------------------------------------------------------------------------


def figure(value: float | None) -> str:
    """Three digits, "n/a" for None: unknown is never 0."""
    if value is None:
        return "n/a"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def share(values: Sequence[float | None]) -> str:
    """The mean of those known, in percent."""
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.0%}" if known else "n/a"


def _vram(devices: Sequence[Device], loads: Sequence[DeviceLoad]) -> str:
    """ "9/24": used of what there is, over all GPUs; "n/a" for what is not known."""
    sizes = {device.id: device.vram_mib for device in devices if device.vram_mib is not None}
    if not sizes:
        return ""
    shares = {load.device_id: load.memory_occupancy for load in loads}
    used = [share * size for i, size in sizes.items() if (share := shares.get(i)) is not None]
    told = f"{sum(used) / 1024:.0f}" if len(used) == len(devices) else "n/a"
    return f"{told}/{sum(sizes.values()) / 1024:.0f}"


def _hottest(loads: Sequence[DeviceLoad]) -> Piece:
    known = [load.temperature_c for load in loads if load.temperature_c is not None]
    return (f"{max(known):.0f}", "warn" if max(known) >= _HOT_C else "") if known else ("", "")


def _total(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known):.0f}" if known else ""


def _shown_devices(node: Node) -> tuple[Device, ...]:
    """The GPUs, or the CPU of a node that has none."""
    devices = node.capabilities.devices
    return tuple(d for d in devices if d.kind is not DeviceKind.CPU) or devices


def _node(node: Node, columns: list[tuple[Column, int]]) -> Line:
    devices = _shown_devices(node)
    ids = {device.id for device in devices}
    loads = [load for load in node.loads if load.device_id in ids]
    # The vendor says nothing that the model does not, and columns are dear.
    models = list(dict.fromkeys(device.model.removeprefix("NVIDIA ") for device in devices))
    several = f"{len(devices)}× " if len(devices) > 1 else ""
    if any(device.is_declared for device in devices):
        several = f"declared {several}"  # in front: a cut column must not hide it
    first = devices[0] if devices else None
    wrong = [load.fault or load.closed or load.complaint for load in node.loads]
    note = "; ".join(dict.fromkeys(text for text in (node.reason, *wrong) if text))
    runs: Piece = (", ".join(node.running), "") if node.running else (note or "-", "dim")
    if node.running and note:
        runs = (f"{', '.join(node.running)} ({note})", "")
    return _row(
        columns,
        {
            "NODE": (node.id, ""),
            "STATE": (node.state, _NODE_STYLES[node.state]),
            "DEVICE": (several + " + ".join(models) if models else "n/a", ""),
            "TFLOPS": (figure(first.fp32_tflops if first else None), ""),
            "MEM GB/S": (figure(first.memory_bandwidth_gbps if first else None), ""),
            "USE": (share([load.utilisation for load in loads]), ""),
            "MEM": (share([load.memory_occupancy for load in loads]), ""),
            "VRAM GB": (_vram(devices, loads), ""),
            "°C": _hottest(loads),
            "WATT": (_total([load.power_w for load in loads]), ""),
            "SLOTS": (f"{len(node.attempts)}/{node.capabilities.slots}", ""),
            "RUNS": runs,
            "SILENT": (duration(node.silent_s), "" if node.state is NodeState.ONLINE else "warn"),
        },
    )


# --- events -------------------------------------------------------------------------------------------


def event_text(event: Event) -> str:
    """What it happened to, what happened, and who asked for it."""
    told = ": ".join(part for part in (event.subject, event.text) if part)
    return f"{told} (by {event.actor})" if event.actor else told


def _event(event: Event, utc_offset_s: float, width: int) -> Line:
    style = "bad" if event.kind in _BAD_EVENTS else ""
    return [
        (f"{clock(event.at, utc_offset_s)} ", "dim"),
        (cell(event.kind, 14) + " ", style),
        (cell(event_text(event), width - 24), style),
    ]
