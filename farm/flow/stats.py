"""How long tasks take, how widely that spreads, and when the rest will be done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A task that is done."""

    step: int
    place: str
    """What it ran on: the device model, where it is known."""
    seconds: float
    """From its first start to delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """How widely completion times spread around their own step's mean: that steps differ is no spread."""

    count: int
    sd_s: float
    relative: float
    """Of each step's mean: 0.5 is a usual deviation by half of it."""
    floor_sd_s: float
    """What would be left if devices were alike: frames differ in content."""


def within(completions: Sequence[Completion]) -> Within | None:
    """The pooled spread around each step's mean; None when there are no completions.

    The floor takes from each time what its device model's mean in that step differs from the step's mean.
    """
    if not completions:
        return None
    by_step: dict[int, list[float]] = {}
    by_place: dict[tuple[int, str], list[float]] = {}
    for each in completions:
        by_step.setdefault(each.step, []).append(each.seconds)
        by_place.setdefault((each.step, each.place), []).append(each.seconds)
    means = {step: fmean(times) for step, times in by_step.items()}
    place_means = {key: fmean(times) for key, times in by_place.items()}
    squares = relative_squares = floor_squares = 0.0
    for each in completions:
        mean = means[each.step]
        off = each.seconds - mean
        squares += off**2
        relative_squares += (off / mean) ** 2 if mean > 0 else 0.0
        here = place_means[each.step, each.place]
        floor_squares += (each.seconds * mean / here - mean) ** 2 if here > 0 else 0.0
    count = len(completions)
    return Within(
        count=count,
        sd_s=math.sqrt(squares / count),
        relative=math.sqrt(relative_squares / count),
        floor_sd_s=math.sqrt(floor_squares / count),
    )


CALIBRATED_FROM_S: Final = 1.0
"""What takes less is mostly the start of a process, which nobody predicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How predictions did: (likely, at worst 9 times in 10) held against what came."""

    count: int
    """Cases of `CALIBRATED_FROM_S` or longer; shorter ones are not held against anything."""
    within_likely: float
    """Share of cases that took no longer than likely; 0.5 is right."""
    within_worst: float
    """Share that took no longer than at worst; 0.9 is right."""
    median_error: float
    """|likely / actual - 1|, the middle one."""
    median_error_s: float
    """|likely - actual|, the middle one."""


def calibration(cases: Sequence[tuple[float, float, float]]) -> Calibration | None:
    """Of (likely, at worst, actual) seconds; None when no case is long enough."""
    known = [case for case in cases if case[2] >= CALIBRATED_FROM_S]
    if not known:
        return None
    return Calibration(
        count=len(known),
        within_likely=sum(actual <= likely for likely, _, actual in known) / len(known),
        within_worst=sum(actual <= worst for _, worst, actual in known) / len(known),
        median_error=_quantile(sorted(abs(likely / actual - 1) for likely, _, actual in known), 0.5),
        median_error_s=_quantile(sorted(abs(likely - actual) for likely, _, actual in known), 0.5),
    )


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
