"""What a running attempt is taken for: evidence in, verdict out.

Decided by what its processes do, never by what they say: no word in a log makes a stall, but for the wait
for a licence, which only the renderer can tell. A renderer may be silent for long (Cycles prints sample 1,
and then nothing until sample 513): silence alone is no stall either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from farm.flow.run_times import RunTimes
from farm.flow.scores import UPPER_Z
from farm.model.stalls import Evidence, StallKind, Verdict
from farm.text import duration

LATE: Final = 1.5
"""An attempt is slow beyond this many times its upper quantile."""
_UNKNOWN: Final = 2.5
_EARLY: Final = 5.0
"""How many times `after_s` an attempt may do nothing at all: before anything is known of its step's times,
and while it is within them. Waiting on purpose (for a service, for a time) is usual in steps that are no
renders."""
_BLIND: Final = 3.0
"""The same on a GPU that cannot say whether it is busy: its renderer may only wait for it."""
_FORETOLD: Final = 1.5
"""An attempt is slow whose own progress makes so many times the time at which it would be late. At a third of
a device's speed that is not quite twice: found when it begins, and not when most is done."""
_LEAST_FRACTION: Final = 0.1
"""Progress below this says little of when the end will come."""
_SWAPPING_CORES: Final = 0.5
_WAITING_CORES: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What an attempt should take on its device, of the run-time model."""

    median_s: float
    upper_s: float
    """Nine in ten take less."""
    node_factor: float = 1.0
    """How much longer than others of its device model this node was seen to take. It is not in the two above:
    a node that is always slow is slow, not usual."""


def expectation(times: RunTimes, step: str, model: str, node: str) -> Expectation | None:
    """What a task of the step takes on a device of the model; None: no run of the step has taught anything.

    Raises KeyError for a device model that `times` does not know.
    """
    row = times.steps.get(step)
    if row is None or not times.has_run_on(np.array([row])).any():
        return None
    times.refresh()
    column = times.models[model]
    render_s, load_s = float(times.median_s[row, column]), times.load_s(row).cold
    return Expectation(
        median_s=render_s + load_s,
        upper_s=render_s * math.exp(UPPER_Z * float(times.sd[row, column])) + load_s,
        node_factor=times.node_factor(node),
    )


def judge(seen: Evidence, expected: Expectation | None, *, after_s: float) -> Verdict:
    """What the attempt is taken for.

    expected: None while nothing is known of its step. after_s: patience; an attempt that does nothing for so
    long beyond its usual time is hung.
    """
    for look in (_stopped, _wedged, _swapping, _licence, _not_exiting, _hung, _slow, _silent):
        text = look(seen, expected, after_s)
        if text:
            return Verdict(kind=_KIND_OF[look], text=text)
    return Verdict(kind=StallKind.WORKING)


def remaining_s(seen: Evidence) -> float | None:
    """Seconds to go by its own progress; None: it tells none, or too little yet."""
    if seen.progress is None or not _LEAST_FRACTION <= seen.progress <= 1 or seen.progress_idle_s is None:
        return None
    # The fraction is as old as its last change: what came since is in none of it.
    reached_s = max(seen.age_s - seen.progress_idle_s, 0.0)
    return max(reached_s / seen.progress - seen.age_s, 0.0)


def _stopped(seen: Evidence, expected: Expectation | None, after_s: float) -> str:
    if seen.stopped_s < after_s:
        return ""
    count = seen.states.get("T", 0)
    return (
        f"{count} of {seen.processes} processes stopped by a signal (SIGSTOP) for {duration(seen.stopped_s)}"
    )


def _wedged(seen: Evidence, expected: Expectation | None, after_s: float) -> str:
    if seen.blocked_s >= after_s and seen.cpu_idle_s >= after_s / 2:
        return f"{seen.blocked_on or 'a process'} for {duration(seen.blocked_s)}, no CPU: dead disk or mount?"
    if seen.files_stuck_s >= after_s and seen.idle_s >= after_s / 2:
        stuck = duration(seen.files_stuck_s)
        return f"a look at its output directory has not come back for {stuck}: dead mount?"
    return ""


def _swapping(seen: Evidence, expected: Expectation | None, after_s: float) -> str:
    if seen.swapping_s < after_s or seen.cores > _SWAPPING_CORES:
        return ""
    return (
        f"{seen.swap_mib:,} MiB in swap beside {seen.memory_mib:,} MiB, {seen.page_ins_s:,.0f} pages read a "
        f"second for {duration(seen.swapping_s)}, CPU {seen.cores:.1f} cores"
    )


def _licence(seen: Evidence, expected: Expectation | None, after_s: float) -> str:
    if not seen.licence or seen.silent_s > after_s * 10 or seen.cores > _WAITING_CORES:
        return ""
    if seen.cpu_idle_s < after_s / 2:
        return ""
    return f"waits for a licence, no CPU for {duration(seen.cpu_idle_s)}: {seen.licence}"


def _not_exiting(seen: Evidence, expected: Expectation | None, after_s: float) -> str:
    least_s = after_s / 2
    if seen.idle_s < least_s or seen.files_done_s is None or seen.files_done_s < least_s:
        return ""
    closed = ", its output is closed" if seen.is_output_closed else ""
    return (
        f"every file has been there unchanged for {duration(seen.files_done_s)}, no CPU and no I/O for "
        f"{duration(seen.idle_s)}{closed}, and {seen.command or 'it'} does not exit"
    )


def _hung(seen: Evidence, expected: Expectation | None, after_s: float) -> str:
    if min(seen.idle_s, seen.silent_s) < patience_s(seen, expected, after_s):
        return ""
    is_blind = seen.on_gpu and seen.gpu_idle_s is None
    gpu = "" if not seen.on_gpu else ", the GPU cannot say" if is_blind else ", no GPU"
    last = f": {seen.last_line}" if seen.last_line else ""
    said = (
        f"last output {duration(seen.silent_s)} ago{last}"
        if seen.last_line or seen.silent_s < seen.age_s
        else "no output yet"
    )
    return f"no CPU, no I/O{gpu} for {duration(seen.idle_s)}; {said}"


def patience_s(seen: Evidence, expected: Expectation | None, after_s: float) -> float:
    """For how long an attempt may do nothing at all before it counts as hung."""
    if expected is None:
        wait_s = after_s * _UNKNOWN
    elif seen.age_s > expected.upper_s:
        wait_s = after_s
    else:
        wait_s = max(after_s * _EARLY, expected.upper_s / 2)
    return wait_s * _BLIND if seen.on_gpu and seen.gpu_idle_s is None else wait_s


def _slow(seen: Evidence, expected: Expectation | None, after_s: float) -> str:
    if expected is None:
        return ""
    limit_s = max(expected.upper_s * LATE, expected.upper_s + after_s / 2)
    left_s = remaining_s(seen)
    usual = f"nine in ten take less than {duration(expected.upper_s)} here"
    cores = f"CPU {seen.cores:.1f} cores"
    if seen.age_s > limit_s:
        done = "" if seen.progress is None else f", {seen.progress * 100:.0f} % done"
        return f"runs for {duration(seen.age_s)}, {usual}; {cores}{done}"
    is_young = seen.age_s < after_s
    if (
        left_s is not None
        and not is_young
        and seen.progress is not None
        and seen.age_s + left_s > _FORETOLD * limit_s
    ):
        whole = duration(seen.age_s + left_s)
        return f"{seen.progress * 100:.0f} % in {duration(seen.age_s)} makes {whole}, {usual}; {cores}"
    return ""


def _silent(seen: Evidence, expected: Expectation | None, after_s: float) -> str:
    if seen.silent_s < after_s / 2 or seen.idle_s >= after_s / 2:
        return ""
    gpu = ", GPU busy" if seen.gpu_idle_s is not None and seen.gpu_idle_s < after_s / 2 else ""
    return f"no output for {duration(seen.silent_s)}, and works: CPU {seen.cores:.1f} cores{gpu}"


_KIND_OF: Final = {
    _stopped: StallKind.STOPPED,
    _wedged: StallKind.WEDGED,
    _swapping: StallKind.SWAPPING,
    _licence: StallKind.LICENCE,
    _not_exiting: StallKind.NOT_EXITING,
    _hung: StallKind.HUNG,
    _slow: StallKind.SLOW,
    _silent: StallKind.SILENT,
}
