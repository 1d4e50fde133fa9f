"""The lines of each pane: one item, one line (a job with a reason may take two). Pure.

Every text from outside goes through `cell`. What is not known is "n/a" or blank, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from farm.control.views import JobView, StalledView
from farm.flow.match import fitness
from farm.live.cells import Column, Line, Piece, cell, row
from farm.live.snapshot import TaskLine
from farm.model.attempts import Attempt
from farm.model.events import Event, EventKind
from farm.model.machines import DECLARED_MARK, Device, DeviceKind, DeviceLoad, Node
from farm.model.stalls import NO_STALLS
from farm.model.states import ENDED_JOBS, LIVE_TASKS, JobState, NodeState, TaskState
from farm.model.work import Counts, Profile, Step, Tag
from farm.text import duration, plural

ONE_LINE_FROM: Final = 160
"""Columns from which on a job's reason has a column; below it stands on a line of its own."""
_JOB_STYLES: Final = {
    JobState.ACTIVE: "good",
    JobState.WAITING: "busy",
    JobState.PAUSED: "warn",
    JobState.DONE: "dim",
    JobState.FAILED: "bad",
    JobState.CANCELLED: "dim",
}
_NODE_STYLES: Final = {
    NodeState.PENDING: "busy",
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
        EventKind.OUTAGE_SUSPECTED,
        EventKind.NODE_FAULTY,
        EventKind.NODE_REFUSED,
        EventKind.DEVICE_LOST,
    }
)
_TAGS: Final = {Tag.BANDWIDTH: "mem-bw", Tag.UNKNOWN: "?"}
"""Short, and never just "bandwidth": it is the memory's."""
_TASK_STYLES: Final = {
    TaskState.RUNNING: "good",
    TaskState.ASSIGNED: "busy",
    TaskState.CANCELLING: "warn",
    TaskState.HELD: "warn",
    TaskState.FAILED: "bad",
    TaskState.DONE: "dim",
    TaskState.CANCELLED: "dim",
}
_SLOW: Final = 1.5
"""Times the usual run time from which on a frame is marked."""
_HOT_C: Final = 85
_DONE, _RUNNING, _FAILED, _LEFT = "█", "▒", "×", "·"


_COMPUTE: Final = Profile(compute_share=1.0, bandwidth_share=0.0)
_BANDWIDTH: Final = Profile(compute_share=0.0, bandwidth_share=1.0)

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
    Column(title="SPREAD", width=6, most=6, rank=11, is_right=True),
    Column(title="WHY NOTHING RUNS", width=16, most=400, rank=10),
)
NODE_COLUMNS: Final = (
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
    Column(title="SCORE C·B", width=9, most=11, rank=13, is_right=True),
    Column(title="SLOTS", width=5, most=7, rank=9, is_right=True),
    Column(title="FAILS", width=5, most=6, rank=14, is_right=True),
    Column(title="RUNS", width=17, most=400, rank=2),
    Column(title="SILENT", width=6, most=8, rank=4, is_right=True),
)


TASK_COLUMNS: Final = (
    Column(title="FRAME", width=8, most=24, rank=0),
    Column(title="STATE", width=10, most=10, rank=1),
    Column(title="NODE/GPU", width=12, most=44, rank=2),
    Column(title="TRY", width=3, most=3, rank=6, is_right=True),
    Column(title="DONE", width=4, most=4, rank=5, is_right=True),
    Column(title="RUN", width=7, most=8, rank=3, is_right=True),
    Column(title="EXPECT", width=7, most=8, rank=7, is_right=True),
    Column(title="×", width=4, most=5, rank=8, is_right=True),
    Column(title="QUIET", width=6, most=8, rank=10, is_right=True),
    Column(title="SCORE", width=5, most=5, rank=12, is_right=True),
    Column(title="VRAM GB", width=7, most=9, rank=9, is_right=True),
    Column(title="STEP", width=8, most=16, rank=11),
    Column(title="WHAT IT SAYS", width=12, most=400, rank=4),
)

STALLED_COLUMNS: Final = (
    Column(title="JOB", width=4, most=7, rank=0, is_right=True),
    Column(title="NAME", width=12, most=40, rank=4),
    Column(title="FRAME", width=6, most=24, rank=1),
    Column(title="TAKEN FOR", width=11, most=11, rank=2),
    Column(title="FOR", width=7, most=8, rank=3, is_right=True),
    Column(title="NODE/GPU", width=10, most=44, rank=5),
    Column(title="RUN", width=7, most=8, rank=6, is_right=True),
    Column(title="QUIET", width=6, most=8, rank=7, is_right=True),
    Column(title="DONE", width=20, most=60, rank=8),
)


# --- jobs ---------------------------------------------------------------------------------------------


def job_columns(width: int) -> Sequence[Column]:
    return _JOB_COLUMNS if width >= ONE_LINE_FROM else _JOB_COLUMNS[:-1]


def note(line: JobView) -> str:
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


def _percent(share_: float | None) -> str:
    return "" if share_ is None else f"{share_:.0%}"


def percent(progress: float) -> str:
    """Rounded down: 100 % only when all is done."""
    return f"{int(min(max(progress, 0.0), 1.0) * 100 + 1e-9)}%"


def job_line(line: JobView, columns: list[tuple[Column, int]], width: int) -> list[Line]:
    job, counts = line.job, line.counts
    style = _JOB_STYLES[job.state]
    faint = "dim" if job.state in ENDED_JOBS else ""
    told = note(line)
    line_ = row(
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
            "SPREAD": (_percent(line.spread.relative if line.spread else None), faint),
            "WHY NOTHING RUNS": (told, "warn"),
        },
    )
    for index, (column, cells) in enumerate(columns):
        if column.title == "PROGRESS":
            # Every column but the first has its blank in front of it: column n is piece 2n.
            line_[2 * index : 2 * index + 1] = _progress(line, cells)
    if told and columns[-1][0].title != "WHY NOTHING RUNS":
        return [line_, [("     └ ", "dim"), (cell(told, width - 7), "warn")]]
    return [line_]


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


def node_line(node: Node, columns: list[tuple[Column, int]]) -> Line:
    devices = _shown_devices(node)
    ids = {device.id for device in devices}
    loads = [load for load in node.loads if load.device_id in ids]
    # The vendor says nothing that the model does not, and columns are dear.
    models = list(
        dict.fromkeys(device.model.removeprefix("NVIDIA ").removesuffix(DECLARED_MARK) for device in devices)
    )
    several = f"{len(devices)}× " if len(devices) > 1 else ""
    if any(device.is_declared for device in devices):
        several = f"declared {several}"  # in front: a cut column must not hide it
    first = devices[0] if devices else None
    wrong = [load.fault or load.closed or load.complaint for load in node.loads]
    note = "; ".join(dict.fromkeys(text for text in (node.reason, *wrong) if text))
    runs: Piece = (", ".join(node.running), "") if node.running else (note or "-", "dim")
    if node.running and note:
        runs = (f"{', '.join(node.running)} ({note})", "")
    return row(
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
            "SCORE C·B": (_score(first, loads), ""),
            "FAILS": _fails(node),
            "SLOTS": (f"{len(node.attempts)}/{node.capabilities.slots}", ""),
            "RUNS": runs,
            "SILENT": (duration(node.silent_s), "" if node.state is NodeState.ONLINE else "warn"),
        },
    )


def _score(device: Device | None, loads: Sequence[DeviceLoad]) -> str:
    """What the formula `fitness` sees in the first device now: TFLOP/s for compute, GB/s for bandwidth."""
    if device is None:
        return "n/a"
    load = next((load for load in loads if load.device_id == device.id), None)
    pair = (fitness(profile, device, load) for profile in (_COMPUTE, _BANDWIDTH))
    return "·".join(figure(value) for value in pair)


def _fails(node: Node) -> Piece:
    if node.fails is None:
        return ("n/a", "dim")
    return (str(node.fails), "bad") if node.fails else ("0", "")


# --- tasks --------------------------------------------------------------------------------------------


def task_line(line: TaskLine, step: Step | None, now: float, columns: list[tuple[Column, int]]) -> Line:
    """`step`: the task's, where it is known; now: seconds since the epoch on the database's clock."""
    task, attempt = line.task, line.attempt
    decision = attempt.decision if attempt is not None else None
    expected_s = step.mean_runtime_s if step is not None else None
    if decision is not None and not decision.is_guess:
        expected_s = decision.predicted_s
    run_s = task.runtime_s or (attempt.runtime_s if attempt is not None else None)
    is_live = task.state in LIVE_TASKS
    if is_live and attempt is not None and attempt.started_at is not None:
        run_s = max(now - attempt.started_at, 0.0)
    times = run_s / expected_s if run_s is not None and expected_s else None
    where = task.node_id or ""
    if attempt is not None and where:
        where = _where(attempt.node_id, attempt.device_id)
    usage = attempt.usage if attempt is not None else None
    told = task.reason or (attempt.message if attempt is not None and is_live else "")
    if is_live and attempt is not None and attempt.stall is not None and attempt.stall.is_stall:
        told, is_stalled = attempt.stall.told, True
    else:
        told, is_stalled = told or "; ".join(task.warnings), False
    return row(
        columns,
        {
            "STEP": (task.step, "dim"),
            "FRAME": (task.label or "-", ""),
            "STATE": (task.state, _TASK_STYLES.get(task.state, "")),
            "NODE/GPU": (where or "-", ""),
            "TRY": (str(task.starts), "warn" if task.failures else ""),
            "DONE": (_percent(task.progress) if is_live else "", "busy"),
            "RUN": (duration(run_s), ""),
            "EXPECT": (duration(expected_s), "dim"),
            "×": ("" if times is None else f"{times:.1f}", "warn" if (times or 0) > _SLOW else ""),
            "QUIET": (_quiet(attempt) if is_live else "", ""),
            "SCORE": ("" if decision is None else f"{decision.advantage:.2f}", "dim"),
            "VRAM GB": (_vram_of(usage.vram_peak_mib if usage else None, step), ""),
            "WHAT IT SAYS": (told, "warn" if task.reason or is_stalled else "dim"),
        },
    )


def _vram_of(peak_mib: int | None, step: Step | None) -> str:
    """ "8.2/12": the most that was seen and what was asked for."""
    asked = step.demand.vram_mib if step is not None else 0
    if peak_mib is None and not asked:
        return ""
    seen = "-" if peak_mib is None else f"{peak_mib / 1024:.1f}"
    return f"{seen}/{asked / 1024:.0f}" if asked else seen


# --- stalled ------------------------------------------------------------------------------------------


def stalled_line(line: StalledView, now: float, columns: list[tuple[Column, int]], width: int) -> list[Line]:
    """What it is taken for, and below the evidence and what was done."""
    attempt, stall = line.attempt, line.stall
    style = "bad" if stall.kind not in NO_STALLS else "dim"
    first = row(
        columns,
        {
            "JOB": (str(attempt.job_id), ""),
            "NAME": (line.job_name, ""),
            "FRAME": (line.label or "-", ""),
            "TAKEN FOR": (stall.kind, style),
            "FOR": (duration(None if stall.since is None else max(now - stall.since, 0.0)), ""),
            "NODE/GPU": (_where(attempt.node_id, attempt.device_id), ""),
            "RUN": (duration(None if attempt.started_at is None else max(now - attempt.started_at, 0.0)), ""),
            "QUIET": (_quiet(attempt), ""),
            "DONE": (stall.action or "watched", "warn" if stall.action else "dim"),
        },
    )
    told = [stall.text]
    if stall.action and columns[-1][0].title != "DONE":
        told.append(stall.action)
    return [first, *([("     └ ", "dim"), (cell(text, width - 7), "warn")] for text in told)]


def _quiet(attempt: Attempt | None) -> str:
    """For how long it has said nothing."""
    evidence = attempt.evidence if attempt is not None else None
    return "" if evidence is None else duration(evidence.silent_s)


def _where(node_id: str, device_id: str) -> str:
    return node_id if device_id == "cpu" else f"{node_id}/{device_id}"


# --- events -------------------------------------------------------------------------------------------


def event_text(event: Event) -> str:
    """What it happened to, what happened, and who asked for it."""
    told = ": ".join(part for part in (event.subject, event.text) if part)
    return f"{told} (by {event.actor})" if event.actor else told


def event_line(event: Event, utc_offset_s: float, width: int) -> Line:
    style = "bad" if event.kind in _BAD_EVENTS else ""
    return [
        (f"{clock(event.at, utc_offset_s)} ", "dim"),
        (cell(event.kind, 14) + " ", style),
        (cell(event_text(event), width - 24), style),
    ]


def clock(at: float, utc_offset_s: float) -> str:
    """hh:mm:ss of a time in seconds since the epoch."""
    second = int(at + utc_offset_s) % 86_400
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
