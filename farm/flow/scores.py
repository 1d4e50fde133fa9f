"""How much each group gains by a second of each device model, at the prices that hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from farm.flow.trials import own_doubt, trial_gains
from farm.flow.weights import Weights

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

UPPER_Z: Final = 1.2816
"""The standard normal's 90 % quantile."""
_PROBE_SD: Final = 0.6
"""A step of which a prediction doubts more than this is new: its first tasks probe it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Farm:
    """What all groups are scored by."""

    price: Floats
    """Of a second of each device model."""
    slots: Floats
    """Of each device model, on nodes that take work."""
    tdp_w: Floats
    """Design power of each device model; 0: not known."""
    mean_task_s: float
    cap: float
    """A longer than average task does not start where it takes more than this times its mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One row for each group, one column for each device model."""

    advantage: Floats
    """log of what a second there gains over the best elsewhere, less what long tasks mind; -inf: never."""
    best: Floats
    """The cheapest seconds anywhere, in prices; 0: nowhere."""
    mean_s: Floats
    """Of a task, over the farm."""
    is_known: Bools
    """Whether the step's run time is known well enough."""
    trial: Floats
    """What one task would gain in advantage for what it teaches; 0: nothing."""
    is_unproven: Bools
    """Where no task has run, and one may take longer than `slow_cap` allows: one starts there at first."""
    only_once: Bools
    """Where a group may start for nothing but its long wait."""


def scores(
    farm: Farm,
    weights: Weights,
    *,
    median_s: Floats,
    sd: Floats,
    load_s: Floats,
    able: Bools,
    ready: npt.NDArray[np.int64],
    are_few: Bools,
    is_patient: Bools,
    has_run: Bools,
) -> Scores:
    """Score groups (rows) on device models (columns).

    load_s: what loading adds to each of the tasks that a device would take, of each group. are_few: groups
    with too little left to profit from what their first tasks teach. is_patient: groups that have not yet
    waited for so long that they start one task anywhere. has_run: where a task of the step has.
    """
    price, slots = farm.price, farm.slots
    doubted = np.exp(np.minimum(weights.caution * sd**2, 1.0))
    median = np.where(able, median_s * doubted, np.inf)
    best = (median * price).min(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        number = np.where(able, slots, 0.0)
        mean = number.sum(axis=1) / np.where(able, slots / median, 0.0).sum(axis=1)
        advantage = np.log(best[:, None] / (price * (median + load_s[:, None])))
        longer = np.maximum(median - mean[:, None], 0.0)
        # The last tasks of a step decide when it is done: waiting for a better device costs the job.
        last = 1 - weights.finish_ease / np.maximum(ready, 1)
        advantage -= weights.slow_penalty * last[:, None] * longer / farm.mean_task_s
        if weights.energy > 0 and farm.tdp_w.any():
            advantage -= weights.energy * excess(median, farm.tdp_w)
        # Where the doubt is large, so is the harm that a slow device may do.
        doubt = np.exp(np.minimum(UPPER_Z * sd, 1.5) - 0.26)
        slow = (median > farm.cap * mean[:, None]) & (median * np.maximum(doubt, 1.0) > farm.mean_task_s)
        is_known = sd.min(axis=1) < _PROBE_SD
        # What may turn out slow here is found out by one task first, however much waits.
        at_worst = median * np.exp(UPPER_Z * own_doubt(sd))
        is_unproven = (at_worst > weights.slow_cap * mean[:, None]) & (at_worst > farm.mean_task_s)
        is_unproven &= able & ~has_run & (is_known & is_patient)[:, None]
        # Of a few unknown tasks no gain can be predicted that would be worth waiting for.
        slow &= able & (is_known | ~are_few)[:, None]
    advantage[~able | (slow & is_patient[:, None])] = -np.inf
    trial = trial_gains(
        np.where(advantage > -np.inf, median * price, np.inf),
        load_s[:, None] * price,
        sd,
        np.where(is_known, ready, 0),
        worth=weights.trial_worth,
    )
    return Scores(
        advantage=advantage,
        best=np.where(np.isfinite(best), best, 0.0),
        mean_s=mean,
        is_known=is_known,
        trial=trial,
        is_unproven=is_unproven,
        only_once=slow & ~is_patient[:, None],
    )


def excess(seconds: Floats, tdp_w: Floats) -> Floats:
    """log of what a task of each group draws on each device model over the least; 0 where unknown."""
    joules = np.where((tdp_w > 0) & np.isfinite(seconds), seconds * tdp_w, np.nan)
    least = np.where(np.isnan(joules), np.inf, joules).min(axis=1)
    found: Floats = np.nan_to_num(np.log(joules / least[:, None]), nan=0.0)
    return found
