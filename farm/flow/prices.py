"""Shadow prices: what a second of each device model is worth to the work that waits.

The linear programme: spread all waiting tasks over the device models so that the last model ends soonest.
Its dual has one price for each device model, and

    waiting time bound = max over prices of  sum over groups  tasks x min over models (price x seconds)
                         subject to           sum over models  devices x price = 1

so that any prices give a true lower bound of the time that the work must take. The maximum is found by
softened prices (multiplicative updates while the softness shrinks): no solver is needed, warm starts are
cheap, and the gap between bound and the time of the spread found says how good they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_FLOOR = 1e-4
"""Of the dearest price: a device model that nobody needs is cheap, not free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    per_second: Floats
    """One for each device model; the sum over all devices is 1."""
    bound_s: float
    """No schedule drains the waiting work sooner (load times and tail apart)."""
    spread_s: float
    """How long it takes when spread as the prices say."""

    @property
    def gap(self) -> float:
        """0.01: the prices are at most 1 % off the best."""
        return self.spread_s / self.bound_s - 1 if self.bound_s > 0 else 0.0


def shadow_prices(
    seconds: Floats, tasks: Floats, devices: Floats, *, start: Floats | None = None, rounds: int = 250
) -> Prices:
    """Prices for `tasks` of each group (rows of `seconds`, inf: cannot) on `devices` of each model (columns).

    start: prices of the time before; then few `rounds` are enough. Groups that no device can take count
    for nothing.
    """
    count = len(devices)
    there = devices > 0
    able = np.isfinite(seconds) & there
    rows = able.any(axis=1) & (tasks > 0)
    if not there.any() or not rows.any():
        even = np.where(there, 1.0 / max(float(devices.sum()), 1.0), 0.0)
        return Prices(per_second=even, bound_s=0.0, spread_s=0.0)
    columns = np.flatnonzero(there)
    time = np.where(able, seconds, np.inf)[np.ix_(rows, columns)]
    work = time * tasks[rows][:, None]
    number = devices[columns].astype(float)
    if len(columns) == 1:
        drained_s = float(work.sum() / number[0])
        return Prices(per_second=np.where(there, 1 / number[0], 0.0), bound_s=drained_s, spread_s=drained_s)
    finite = np.isfinite(work)
    logs = np.log(np.where(finite, work, 1.0))
    logs[~finite] = 60.0
    work = np.where(finite, work, 0.0)
    log_price = np.zeros(len(columns)) if start is None else np.log(np.maximum(start[columns], 1e-12))
    log_price -= np.log(number @ np.exp(log_price))
    hot, cold = (0.5, 0.015) if start is None else (0.06, 0.015)
    best_bound, best_price, best_spread = 0.0, np.exp(log_price), np.inf
    average = np.zeros_like(log_price)
    averaged = 0
    load_sum = np.zeros_like(log_price)
    for turn in range(rounds):
        softness = hot * (cold / hot) ** (turn / max(rounds - 1, 1))
        cost = logs + log_price
        least = cost.min(axis=1)
        part = np.exp((least[:, None] - cost) / softness)
        part /= part.sum(axis=1, keepdims=True)
        load = np.einsum("gk,gk->k", part, work) / number
        bound = float(np.exp(least).sum())
        spread = float(load.max())
        if bound > best_bound:
            best_bound, best_price = bound, np.exp(log_price)
        best_spread = min(best_spread, spread)
        if turn >= rounds // 2:
            average += log_price
            averaged += 1
            load_sum += load
            best_spread = min(best_spread, float(load_sum.max()) / averaged)
        mean = float(number @ load) / float(number.sum())
        log_price = log_price + min(softness * 2.0, 0.25) * np.log(np.maximum(load / mean, 1e-3))
        log_price = np.maximum(log_price, log_price.max() + np.log(_FLOOR))
        log_price -= np.log(number @ np.exp(log_price))
    if averaged:
        price = np.exp(average / averaged)
        price /= number @ price
        bound = float((price * time * tasks[rows][:, None]).min(axis=1).sum())
        # The mean of the last turns is steadier than the best single one, at hardly any loss.
        if bound > 0.995 * best_bound:
            best_price = price
        best_bound = max(best_bound, bound)
    per_second = np.zeros(count)
    per_second[columns] = best_price
    return Prices(per_second=per_second, bound_s=best_bound, spread_s=max(best_spread, best_bound))
