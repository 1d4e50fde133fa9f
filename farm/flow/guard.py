"""What to do about a run that takes longer than it should, and with a device that has nothing to do.

Judged by the run-time model alone, as plain figures: elapsed seconds against the median and the doubt of
this step on this very device. A second copy comes before a kill: whichever is whole first wins.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LATE_SDS: Final = 3.0
"""Beyond so many sd of its logarithm, and `LATE_S`, a run is late: 1 in 700 by chance."""
LATE_S: Final = 20.0
KILL_AFTER: Final = 2.5
"""Times the point at which it was late."""
LEAST_SD: Final = 0.2
UNKNOWN_SD: Final = 0.8
"""Before a step has had enough runs."""
COPY_GAIN: Final = 0.2
COPY_GAIN_S: Final = 5.0
_COPY_MARGIN: Final = 1.15


class Verdict(StrEnum):
    FINE = "fine"
    LATE = "late"
    """Start a second copy elsewhere."""
    STUCK = "stuck"
    """End it."""


def late_after_s(median_s: float, sd: float, *, is_known: bool) -> float:
    """After how many seconds a run is late."""
    doubt = max(sd, LEAST_SD) if is_known else max(sd, UNKNOWN_SD)
    return median_s * math.exp(min(LATE_SDS * doubt, 4.0)) + LATE_S


def judge(elapsed_s: float, median_s: float, sd: float, *, is_known: bool) -> Verdict:
    """Of one run: fine, late or stuck. `median_s` is that of its device, scene load included."""
    late_s = late_after_s(median_s, sd, is_known=is_known)
    if elapsed_s > KILL_AFTER * late_s:
        return Verdict.STUCK
    return Verdict.LATE if elapsed_s > late_s else Verdict.FINE


def remaining_s(elapsed_s: Floats, median_s: Floats) -> Floats:
    """How much longer runs will take by what they have taken; one that is late may be late for long."""
    left_s = median_s - elapsed_s
    late_s = 0.15 * median_s + np.maximum(0.0, 0.5 * (elapsed_s - median_s))
    remaining: Floats = np.where(left_s >= 0.15 * median_s, left_s, late_s)
    return remaining


def tail_copies(remaining_s: Floats, takes_s: Floats) -> list[tuple[int, int]]:
    """Second copies for idle devices: (device, run), the largest gains first, one for each.

    remaining_s: of each run. takes_s: rows are runs, columns idle devices: how long a device would take for
    the run's task; inf: it cannot.
    """
    gain = remaining_s[:, None] - _COPY_MARGIN * takes_s
    worth = gain > np.maximum(COPY_GAIN_S, COPY_GAIN * takes_s)
    runs, devices = np.nonzero(worth)
    best_first = np.argsort(-gain[runs, devices], kind="stable")
    chosen: list[tuple[int, int]] = []
    taken_runs: set[int] = set()
    taken_devices: set[int] = set()
    for at in best_first:
        run, device = int(runs[at]), int(devices[at])
        if run not in taken_runs and device not in taken_devices:
            taken_runs.add(run)
            taken_devices.add(device)
            chosen.append((device, run))
    return chosen
