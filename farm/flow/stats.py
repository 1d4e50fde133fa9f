"""How long tasks take, how widely that spreads, and when the rest will be done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

_P90_SIGMAS = 1.2816
"""The 90th percentile of a normal distribution, in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of a set of durations in seconds. `sd_s` is the population's: all tasks are there, it is no sample."""

    count: int
    mean_s: float
    sd_s: float
    p50_s: float
    p95_s: float
    p99_s: float = 0.0

    @property
    def relative(self) -> float:
        """Standard deviation / mean; 0 when the mean is 0."""
        return self.sd_s / self.mean_s if self.mean_s > 0 else 0.0


def spread(durations: Sequence[float]) -> Spread | None:
    """The spread of `durations` (seconds), None when there are none."""
    if not durations:
        return None
    ordered = sorted(durations)
    mean = fmean(ordered)
    return Spread(
        count=len(ordered),
        mean_s=mean,
        sd_s=pstdev(ordered, mean),
        p50_s=_quantile(ordered, 0.5),
        p95_s=_quantile(ordered, 0.95),
        p99_s=_quantile(ordered, 0.99),
    )


def within(durations: Sequence[tuple[int, float]]) -> float:
    """The standard deviation around each group's own mean, pooled, of (group, seconds) of each task."""
    by_group: dict[int, list[float]] = {}
    for group, seconds in durations:
        by_group.setdefault(group, []).append(seconds)
    total = sum(pstdev(each) ** 2 * len(each) for each in by_group.values())
    return math.sqrt(total / len(durations)) if durations else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest values, linearly."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def eta_s(remaining: int, durations: Sequence[float], slots: int) -> tuple[float, float] | None:
    """Seconds until `remaining` tasks are done on `slots` slots: (likely, at worst 9 times in 10).

    None when nothing is known: no durations yet, or no slot works on it. The estimate takes the tasks to be
    alike and independent: `remaining` durations' sum spread over the slots, but never less than one task's
    own time.
    """
    known = spread(durations)
    if remaining <= 0:
        return 0.0, 0.0
    if known is None or slots <= 0:
        return None
    busy = min(slots, remaining)
    work = remaining * known.mean_s
    margin = _P90_SIGMAS * known.sd_s * math.sqrt(remaining)
    likely = max(work / busy, known.p50_s)
    one_at_worst = max(known.p95_s, known.mean_s + _P90_SIGMAS * known.sd_s)
    return likely, max((work + margin) / busy, one_at_worst, likely)
