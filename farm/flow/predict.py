"""How long a task will take on a device: learnt from every run, known (with doubt) before the first one.

    log seconds = roofline(step's compute share, device model's rates) + scale(step) + level(step)
                  + residual(step, device model) + factor(node)

Each step carries a small Gaussian filter over (scale, level, residuals), once for each of a few shares that
it may have; the shares' weights are learnt along. That gives a median and any quantile for every device
model, also those never tried, from the first run on. Scene load is kept apart from rendering.

The figures named "sd" are standard deviations of natural logarithms: 0.1 is about 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from statistics import NormalDist, median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from farm.flow.refusals import VRAM_MARGIN
from farm.flow.run_times import Estimate, FarmState, LoadTimes, Rates, Run, SceneLoad, StepState
from farm.flow.shares import SHARES, normal, share_weights
from farm.model.work import Profile, Tag

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_REFERENCE: Final = (30.0, 600.0)
_CPU_REFERENCE: Final = (1.0, 40.0)
"""TFLOP/s and GB/s. Work for CPUs is made for CPUs: its usual time is theirs."""

_USUAL_S: Final = 60.0
"""A task's time on the reference device of its kind before any step is known."""
_SCALE_SD: Final = 1.0
_RESIDUAL_SD: Final[Mapping[str, float]] = {
    "measured": 0.16,
    "configured": 0.2,
    "catalogue": 0.2,
    "driver": 0.25,
}
"""How far a device model is off the roofline for one step, by where its rates come from. 0.14 over three GPUs
in Blender's 2020 sample, 0.35 in Gavel's tables (docs/matching.md)."""
_UNKNOWN_RESIDUAL_SD: Final = 0.5
_MISFIT_PRIOR_RUNS: Final = 10.0
_MOST_MISFIT_RUNS: Final = 300.0
_LEAST_MISFIT: Final = 1.0
_MOST_MISFIT: Final = 6.0
_MOST_OF_ONE: Final = 20.0
"""What a single run counts at most: a node that hangs is no misfit of the roofline."""
_RATE_SD: Final[Mapping[str, float]] = {
    "measured": 0.08,
    "configured": 0.1,
    "catalogue": 0.12,
    "driver": 0.12,
}
_UNKNOWN_RATE_SD: Final = 0.3
_ALIKE: Final = 0.1
"""Nodes measure the rates of one device model so far apart."""
_LEVEL_SD: Final = 0.2
"""Neighbouring frames are alike: their common deviation wanders slowly."""
_LEVEL_KEEP: Final = 0.95
_NOISE_SD: Final = 0.08
_NODE_SD: Final = 0.09
_NODE_DRIFT_SD: Final = 0.02
_FAR: Final = 2.5
"""Deviations beyond so many sd count for less: a paging node teaches little about the step."""
_RATE_FAR: Final = 0.5
"""The same for what a step teaches of a device model's rates."""
_LEAST_WEIGHT: Final = 1e-4
_HUNG_SHARE: Final = 0.003
"""Of all runs that hang, for what a stopped run teaches."""
_HISTORY_SD: Final = 0.25
"""How far a step's scale is off the same step's in an earlier job."""
_LOAD_PRIOR_RUNS: Final = 1.0


def _are_alike(old: Rates, new: Rates) -> bool:
    """Whether the figures differ by no more than those that two nodes measure of one device model."""
    if (old.source, old.is_cpu, old.ray_factor) != (new.source, new.is_cpu, new.ray_factor):
        return False
    pairs = (
        (old.fp32_tflops, new.fp32_tflops),
        (old.memory_bandwidth_gbps, new.memory_bandwidth_gbps),
        (old.ray_rate_mrays, new.ray_rate_mrays),
    )
    return all(
        a == b or (a is not None and b is not None and abs(a - b) <= _ALIKE * max(a, b)) for a, b in pairs
    )


class RunTimeModel:
    """The farm's model. Rows of `median_s` and `sd` are steps, columns device models."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.models: dict[str, int] = {}
        self._rates: list[Rates] = []
        self._size, self._width = 64, 8
        shares = len(SHARES)
        dims = self._width + 2
        self._log_weights = np.zeros((self._size, shares))
        self._base = np.zeros((self._size, shares, self._width))
        self._mean = np.zeros((self._size, shares, dims))
        self._covariance = np.zeros((self._size, dims, dims))
        self._runs = np.zeros((self._size, self._width), np.int64)
        self._calibration = np.ones(self._size)
        self._load = np.zeros((self._size, len(SceneLoad)))
        self._load_runs = np.zeros((self._size, len(SceneLoad)))
        self._vram = np.zeros(self._size, np.int64)
        self._is_ray_traced = np.zeros(self._size, np.bool_)
        self._still_running = np.zeros(self._size, np.int64)
        self.median_s = np.full((self._size, self._width), np.inf)
        """Of rendering alone, on a node of factor 1. `refresh` brings it up to date."""
        self.sd = np.full((self._size, self._width), 1.0)
        self._correction = np.zeros((self._width, 2))
        self._correction_variance = np.zeros((self._width, 2))
        self._residual_variance = np.zeros(self._width)
        self._nodes: dict[str, tuple[float, float]] = {}
        self._scale = [0.0, 0.0, 0.0]
        self._load_all = [0.0, 0.0, 0.0, 0.0]
        self._misfit = [0.0, 0.0]
        self._free_rows: list[int] = []
        self._behind: set[int] = set()
        """Rows whose medians `refresh` has yet to compute."""
        self._changed_steps: set[str] = set()
        self._is_farm_changed = False

    # --- what there is ----------------------------------------------------------------------------

    def add_model(self, name: str, rates: Rates) -> int:
        """The column of a device model; new rates replace its old ones for steps to come."""
        known = self.models.get(name)
        if known is not None and _are_alike(self._rates[known], rates):
            return known
        if known is None:
            known = len(self._rates)
            if known == self._width:
                self._widen()
            self.models[name] = known
            self._rates.append(rates)
        sd = _RATE_SD.get(rates.source, _UNKNOWN_RATE_SD)
        self._rates[known] = rates
        self._correction[known] = 0.0
        self._correction_variance[known] = [
            (sd if rate is not None else _UNKNOWN_RATE_SD) ** 2
            for rate in (rates.fp32_tflops, rates.memory_bandwidth_gbps)
        ]
        is_known = rates.fp32_tflops is not None and rates.memory_bandwidth_gbps is not None
        residual_sd = (
            _RESIDUAL_SD.get(rates.source, _UNKNOWN_RESIDUAL_SD) if is_known else _UNKNOWN_RESIDUAL_SD
        )
        self._residual_variance[known] = residual_sd**2
        rows = list(self.steps.values())
        if rows:
            for is_ray_traced in (False, True):
                alike = [row for row in rows if self._is_ray_traced[row] == is_ray_traced]
                self._base[alike, :, known] = self._roofline(known, is_ray_traced=is_ray_traced)
            fresh = self._runs[rows, known] == 0
            at = np.array(rows)[fresh]
            self._covariance[at, 2 + known, 2 + known] = self._residual_variance[known]
            for row in rows:
                self._behind.add(row)
        self._is_farm_changed = True
        return known

    def add_step(self, name: str, profile: Profile, *, like: str | None = None) -> int:
        """The row of a step. `like`: the same step of an earlier job, whose model it inherits."""
        known = self.steps.get(name)
        if known is not None:
            return known
        row = self._new_row(name)
        earlier = self.steps.get(like) if like is not None else None
        if earlier is not None and self._runs[earlier].any():
            self._inherit(row, earlier)
        else:
            self._log_weights[row] = np.log(share_weights(profile))
            self._is_ray_traced[row] = profile.is_ray_traced
            for column in self.models.values():
                self._base[row, :, column] = self._roofline(column, is_ray_traced=profile.is_ray_traced)
            self._mean[row] = 0.0
            count, mean, squares = self._scale
            # The population's mean and variance, with three pseudo-steps of the prior.
            prior = math.log(_USUAL_S)
            self._mean[row, :, 0] = (3 * prior + count * mean) / (3 + count)
            self._covariance[row] = 0.0
            self._covariance[row, 0, 0] = (3 * _SCALE_SD**2 + squares) / (3 + count)
            self._covariance[row, 1, 1] = _LEVEL_SD**2
            columns = np.arange(2, 2 + self._width)
            self._covariance[row, columns, columns] = self._residual_variance * self.misfit
            self._calibration[row] = 1.0
            self._runs[row] = 0
            cold, colds, warm, warms = self._load_all
            self._load[row] = (cold / colds if colds else 0.0, warm / warms if warms else 0.0, 0.0)
            self._load_runs[row] = 0.0
            self._vram[row] = 0
        self._still_running[row] = 0
        self._behind.add(row)
        return row

    def forget(self, name: str) -> None:
        """Drop a step; its row is used again."""
        row = self.steps.pop(name)
        self._free_rows.append(row)
        self._behind.discard(row)
        self._changed_steps.discard(name)
        self.median_s[row] = np.inf

    def _new_row(self, name: str) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self.steps)
            if row == self._size:
                self._lengthen()
        self.steps[name] = row
        self._changed_steps.add(name)
        return row

    def _inherit(self, row: int, earlier: int) -> None:
        for array in (
            self._base, self._mean, self._covariance, self._load, self._vram, self._calibration,
            self._is_ray_traced,
        ):  # fmt: skip
            array[row] = array[earlier]
        self._log_weights[row] = 0.7 * self._log_weights[earlier]
        self._mean[row, :, 1] = 0.0
        self._covariance[row, 1, :] = self._covariance[row, :, 1] = 0.0
        self._covariance[row, 1, 1] = _LEVEL_SD**2
        self._covariance[row, 0, 0] += _HISTORY_SD**2
        columns = np.arange(2, 2 + self._width)
        self._covariance[row, columns, columns] += 0.25 * self._residual_variance
        self._load_runs[row] = np.minimum(self._load_runs[earlier], 2.0)
        self._runs[row] = 0

    def _roofline(self, column: int, *, is_ray_traced: bool) -> Floats:
        """Log time on a device model for each share, relative to the reference device."""
        rates = self._rates[column]
        tflops, gbps = _CPU_REFERENCE if rates.is_cpu else _REFERENCE
        arithmetic = tflops / (rates.fp32_tflops or tflops)
        if is_ray_traced:
            arithmetic /= self._ray_gain(rates)
        traffic = gbps / (rates.memory_bandwidth_gbps or gbps)
        if rates.fp32_tflops is None and rates.memory_bandwidth_gbps is not None:
            arithmetic = traffic
        if rates.memory_bandwidth_gbps is None and rates.fp32_tflops is not None:
            traffic = arithmetic
        up, vp = np.exp(self._correction[column])
        log: Floats = np.log(SHARES * arithmetic * up + (1 - SHARES) * traffic * vp)
        return log

    def _ray_gain(self, rates: Rates) -> float:
        """What a FLOP of a device model gives a ray tracer; 1 is usual.

        Measured rays order the device models that have them. How many rays a usual FLOP is, is the median of
        those, so that they compare with the others, which go by data sheet.
        """
        measured = [
            each.ray_rate_mrays / (each.fp32_tflops * each.ray_factor)
            for each in self._rates
            if each.ray_rate_mrays and each.fp32_tflops and each.is_cpu == rates.is_cpu
        ]
        if not (rates.ray_rate_mrays and rates.fp32_tflops):
            return rates.ray_factor
        return rates.ray_rate_mrays / rates.fp32_tflops / median(measured)

    # --- learning ---------------------------------------------------------------------------------

    def observe(self, run: Run) -> None:
        """Learn from one ended run. Its step and device model must have been added."""
        row, column = self.steps[run.step], self.models[run.model]
        self._changed_steps.add(run.step)
        self._is_farm_changed = True
        self._still_running[row] = run.still_running
        if run.vram_peak_mib is not None:
            self._vram[row] = max(int(self._vram[row]), run.vram_peak_mib)
        if not run.is_censored:
            self._learn_load(row, run)
        render_s = run.runtime_s - min(run.load_s, run.runtime_s * 0.99)
        if render_s <= 0:
            return
        covariance, mean = self._covariance[row], self._mean[row]
        # Frames wander: what was seen a while ago says less of the next ones.
        mean[:, 1] *= _LEVEL_KEEP
        covariance[1, :] *= _LEVEL_KEEP
        covariance[:, 1] *= _LEVEL_KEEP
        covariance[1, 1] += (1 - _LEVEL_KEEP**2) * _LEVEL_SD**2
        at = 2 + column
        spread = covariance[:, 0] + covariance[:, 1] + covariance[:, at]
        state_variance = float(spread[0] + spread[1] + spread[at])
        factor, factor_variance = self._nodes.get(run.node, (0.0, _NODE_SD**2))
        noise = _NOISE_SD**2
        expected = self._base[row, :, column] + mean[:, 0] + mean[:, 1] + mean[:, at] + factor
        weights = normal(self._log_weights[row])
        seen = math.log(render_s)
        total = state_variance + factor_variance + noise
        middle = float(weights @ expected)
        between = float(weights @ (expected - middle) ** 2)
        if run.is_censored:
            taught = _censored(seen, middle, math.sqrt(total + between))
            if taught is None:
                self._behind.add(row)
                return
            seen, extra = taught
            noise += extra
            total += extra
        off = seen - expected
        is_first = not self._runs[row].any()
        z2 = (seen - middle) ** 2 / (total + between)
        if not run.is_censored and not is_first:
            rate = 0.04
            self._calibration[row] += rate * (min(z2, 9.0) - self._calibration[row])
            if not self._runs[row, column]:
                self._learn_misfit(column, (seen - middle) ** 2 - (total + between - covariance[at, at]))
        if z2 > _FAR**2:
            total += noise * (z2 / _FAR**2 - 1) * 4
        if not is_first:
            # A first run tells how long the step is, not what bounds it: that takes a second to compare with.
            log_weights = self._log_weights[row] - 0.5 * off**2 / total
            log_weights -= log_weights.max()
            self._log_weights[row] = np.maximum(log_weights, math.log(_LEAST_WEIGHT))
        gain = spread / total
        mean += off[:, None] * gain
        covariance -= np.outer(spread, gain)
        if not run.is_censored:
            self._runs[row, column] += 1
            if is_first:
                self._learn_scale(row)
        if not is_first:
            # A first run tells the step's scale; what is left for the device and the node is no news of them.
            self._learn_rates(column, weights, float(weights @ off), total)
            moved = factor_variance / total * float(weights @ off)
            self._nodes[run.node] = (
                min(max(factor + moved, -1.0), 1.5),
                factor_variance * (1 - factor_variance / total) + _NODE_DRIFT_SD**2,
            )
        self._behind.add(row)

    def _learn_load(self, row: int, run: Run) -> None:
        at = run.loaded
        before = float(self._load_runs[row, at])
        if at is SceneLoad.CACHED:
            if not before:
                # How much a cache helps differs from scene to scene: not at all, until it is seen to.
                self._load[row, at], before = self._load[row, SceneLoad.COLD], _LOAD_PRIOR_RUNS
        else:
            before = max(before, _LOAD_PRIOR_RUNS if self._load_all[2 * at + 1] else 0.0)
            self._load_all[2 * at] += run.load_s
            self._load_all[2 * at + 1] += 1
        self._load[row, at] = (self._load[row, at] * before + run.load_s) / (before + 1)
        self._load_runs[row, at] = min(before + 1, 20.0)

    def _learn_scale(self, row: int) -> None:
        scale = float(normal(self._log_weights[row]) @ self._mean[row, :, 0])
        count, mean, squares = self._scale
        count += 1
        step = scale - mean
        mean += step / count
        self._scale = [count, mean, squares + step * (scale - mean)]

    @property
    def misfit(self) -> float:
        """How far steps are off the roofline, squared, over what was expected of them before any had run."""
        count, found = self._misfit
        misfit = (_MISFIT_PRIOR_RUNS + found) / (_MISFIT_PRIOR_RUNS + count)
        return min(max(misfit, _LEAST_MISFIT), _MOST_MISFIT)

    def _learn_misfit(self, column: int, squared: float) -> None:
        """From a step's first run on a device model. squared: how far off, squared, less all other doubt."""
        count, found = self._misfit
        found += min(max(squared / self._residual_variance[column], -_MOST_OF_ONE), _MOST_OF_ONE)
        less = min(1.0, _MOST_MISFIT_RUNS / (count + 1))
        self._misfit = [(count + 1) * less, found * less]

    def _learn_rates(self, column: int, weights: Floats, off: float, total: float) -> None:
        """Part of every surprise is the device model's, and so is for steps to come."""
        share = float(weights @ SHARES)
        # What few steps are far off by tells of them: a device model follows the middle of all steps.
        off = min(max(off, -_RATE_FAR * math.sqrt(total)), _RATE_FAR * math.sqrt(total))
        correction, variances = self._correction[column], self._correction_variance[column]
        for at, part in ((0, share), (1, 1 - share)):
            variance = float(variances[at])
            correction[at] += min(max(variance * part / total * off, -0.1), 0.1)
            variances[at] = variance * (1 - variance * part * part / total)

    def refresh(self) -> None:
        """Bring `median_s` and `sd` of the steps that have learnt up to date; cheaper together than apart."""
        if not self._behind:
            return
        rows = np.array(sorted(self._behind))
        self._behind.clear()
        n = len(self._rates)
        mean, covariance = self._mean[rows], self._covariance[rows]
        weights = np.exp(self._log_weights[rows])
        weights /= weights.sum(axis=1, keepdims=True)
        # The next task comes after those that run now: the level will have wandered on by then.
        keep = _LEVEL_KEEP ** self._still_running[rows]
        level = mean[:, :, 1] * keep[:, None]
        logs = self._base[rows, :, :n] + (mean[:, :, 0] + level)[:, :, None] + mean[:, :, 2 : 2 + n]
        middle = np.einsum("rj,rjk->rk", weights, logs)
        between = np.einsum("rj,rjk->rk", weights, (logs - middle[:, None, :]) ** 2)
        wandered = keep**2 * covariance[:, 1, 1] + (1 - keep**2) * _LEVEL_SD**2
        common = covariance[:, 0, 0] + wandered + 2 * keep * covariance[:, 0, 1]
        own = np.einsum("rdd->rd", covariance)[:, 2 : 2 + n]
        own = own + 2 * (covariance[:, 0, 2 : 2 + n] + keep[:, None] * covariance[:, 1, 2 : 2 + n])
        variance = common[:, None] + own + between + _NOISE_SD**2 + _NODE_SD**2 / 4
        self.median_s[rows, :n] = np.exp(middle)
        self.sd[rows, :n] = np.sqrt(np.maximum(variance * self._calibration[rows, None], 0.03**2))

    # --- answers ----------------------------------------------------------------------------------

    def estimate(
        self,
        step: str,
        model: str,
        *,
        node: str = "",
        loaded: SceneLoad = SceneLoad.COLD,
        quantile: float = 0.9,
    ) -> Estimate:
        """Of one task. Raises KeyError for a step or device model that was not added."""
        self.refresh()
        row, column = self.steps[step], self.models[model]
        render_s = float(self.median_s[row, column]) * self.node_factor(node)
        sd = float(self.sd[row, column])
        load_s = float(self._load[row, loaded])
        return Estimate(
            median_s=render_s + load_s,
            upper_s=render_s * math.exp(NormalDist().inv_cdf(quantile) * sd) + load_s,
            load_s=load_s,
            sd=sd,
            runs=int(self._runs[row, column]),
        )

    def node_factor(self, node: str) -> float:
        """How much longer the node takes than others of its device models: 1 is as usual."""
        return math.exp(self._nodes.get(node, (0.0, 0.0))[0])

    def load_s(self, row: int) -> LoadTimes:
        """Seconds to load a step's scene; what no run of it has shown is taken to be as when cold."""
        load, runs = self._load, self._load_runs
        cold = load.item(row, 0)
        cached = min(load.item(row, 2), cold) if runs.item(row, 2) else cold
        # What a device has run just now is in its node's cache too.
        warm = min(load.item(row, 1), cached) if runs.item(row, 1) else cached
        return LoadTimes(cold, warm, cached)

    def has_run_on(self, rows: Ints) -> Bools:
        """Whether tasks of these steps have run on each device model to their end."""
        found: Bools = self._runs[rows] > 0
        return found

    def runs(self, step: str) -> dict[str, int]:
        """How many complete runs taught the model, by device model."""
        row = self.steps[step]
        return {name: int(self._runs[row, at]) for name, at in self.models.items() if self._runs[row, at]}

    def vram_mib(self, step: str, declared_mib: int) -> int:
        """What a device must have: what the job says, or the peak seen and a margin, whichever is more."""
        return max(declared_mib, math.ceil(int(self._vram[self.steps[step]]) * VRAM_MARGIN))

    def profile(self, step: str, declared: Profile) -> Profile:
        """What runs have taught of the step's shares; as declared until there are any."""
        row = self.steps[step]
        runs = self._runs[row]
        if not runs.any():
            return declared
        weights = normal(self._log_weights[row])
        share = float(weights @ SHARES)
        doubt = math.sqrt(float(weights @ (SHARES - share) ** 2))
        # 0.3 is the sd of all shares being alike likely: no knowledge.
        confidence = min(max(1 - doubt / 0.3, 0.0), 1.0)
        if confidence < 0.3 and declared.confidence > confidence:
            return declared
        tag = Tag.COMPUTE if share >= 0.6 else Tag.BANDWIDTH if share <= 0.4 else Tag.BALANCED
        return Profile(
            compute_share=round(share, 3),
            bandwidth_share=round(1 - share, 3),
            confidence=round(confidence, 3),
            source="history",
            tag=tag,
        )

    # --- state ------------------------------------------------------------------------------------

    def take_changes(self) -> tuple[dict[str, StepState], FarmState | None]:
        """What changed since the last call: for a store that keeps a row for each step."""
        steps = {name: self._step_state(name) for name in sorted(self._changed_steps)}
        farm = self.farm_state() if self._is_farm_changed else None
        self._changed_steps.clear()
        self._is_farm_changed = False
        return steps, farm

    def _step_state(self, name: str) -> StepState:
        row = self.steps[name]
        tried = [model for model, at in self.models.items() if self._covariance_touched(row, at)]
        at = [0, 1, *(2 + self.models[model] for model in tried)]
        return StepState(
            log_weights=_rounded(self._log_weights[row]),
            base={model: _rounded(self._base[row, :, column]) for model, column in self.models.items()},
            mean=[_rounded(line) for line in self._mean[row][:, at]],
            covariance=[_rounded(line, 10) for line in self._covariance[row][np.ix_(at, at)]],
            tried=tried,
            runs={m: int(self._runs[row, c]) for m, c in self.models.items() if self._runs[row, c]},
            calibration=round(float(self._calibration[row]), 6),
            load_s=_rounded(self._load[row]),
            load_runs=_rounded(self._load_runs[row]),
            vram_peak_mib=int(self._vram[row]),
            is_ray_traced=bool(self._is_ray_traced[row]),
            still_running=int(self._still_running[row]),
        )

    def _covariance_touched(self, row: int, column: int) -> bool:
        return bool(self._covariance[row, 2 + column, 0] != 0.0)

    def farm_state(self) -> FarmState:
        """What all steps share, as it is now."""
        return FarmState(
            models={
                name: {
                    **asdict(self._rates[at]),
                    "correction": _rounded(self._correction[at]),
                    "variance": _rounded(self._correction_variance[at], 10),
                }
                for name, at in self.models.items()
            },
            nodes={node: [round(f, 6), round(v, 10)] for node, (f, v) in self._nodes.items()},
            scale=[round(value, 6) for value in self._scale],
            load=[round(value, 3) for value in self._load_all],
            misfit=[round(value, 6) for value in self._misfit],
        )

    @classmethod
    def restored(cls, farm: FarmState, steps: Mapping[str, StepState]) -> RunTimeModel:
        """The model that `take_changes` told of."""
        model = cls()
        for name, kept in farm.models.items():
            rates = Rates(**{each.name: kept[each.name] for each in fields(Rates) if each.name in kept})
            column = model.add_model(name, rates)
            model._correction[column] = kept["correction"]
            model._correction_variance[column] = kept["variance"]
        model._nodes = {node: (values[0], values[1]) for node, values in farm.nodes.items()}
        model._scale = list(farm.scale)
        model._load_all = list(farm.load)
        model._misfit = list(farm.misfit)
        for name, state in steps.items():
            model.restore_step(name, state)
        model._is_farm_changed = False
        return model

    def restore_step(self, name: str, state: StepState) -> None:
        """A step that `take_changes` told of, as it was then."""
        row = self.add_step(name, Profile(is_ray_traced=state.is_ray_traced))
        self._changed_steps.discard(name)
        self._log_weights[row] = state.log_weights
        for model, base in state.base.items():
            if model in self.models:
                self._base[row, :, self.models[model]] = base
        tried = [(at, model) for at, model in enumerate(state.tried) if model in self.models]
        taken = [0, 1, *(2 + at for at, _ in tried)]
        at = [0, 1, *(2 + self.models[model] for _, model in tried)]
        self._mean[row][:, at] = np.array(state.mean)[:, taken]
        self._covariance[row][np.ix_(at, at)] = np.array(state.covariance)[np.ix_(taken, taken)]
        for model, count in state.runs.items():
            if model in self.models:
                self._runs[row, self.models[model]] = count
        self._calibration[row] = state.calibration
        # A version that knew fewer kinds of loading has told of fewer.
        self._load[row, : len(state.load_s)] = state.load_s
        self._load_runs[row, : len(state.load_runs)] = state.load_runs
        self._vram[row] = state.vram_peak_mib
        self._still_running[row] = state.still_running
        self._behind.add(row)

    # --- room -------------------------------------------------------------------------------------

    def _lengthen(self) -> None:
        for name, value in self._per_step().items():
            setattr(self, name, np.concatenate([value, np.zeros_like(value)]))
        self.median_s[self._size :] = np.inf
        self.sd[self._size :] = 1.0
        self._calibration[self._size :] = 1.0
        self._size *= 2

    def _per_step(self) -> dict[str, npt.NDArray[Any]]:
        names = (
            "_log_weights", "_base", "_mean", "_covariance", "_runs", "_calibration", "_load", "_load_runs",
            "_vram", "_is_ray_traced", "_still_running", "median_s", "sd",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def _widen(self) -> None:
        more = self._width
        for name, axes in (
            ("_base", (2,)), ("_mean", (2,)), ("_covariance", (1, 2)), ("_runs", (1,)), ("median_s", (1,)),
            ("sd", (1,)), ("_correction", (0,)), ("_correction_variance", (0,)), ("_residual_variance", (0,)),
        ):  # fmt: skip
            value = getattr(self, name)
            fill = np.inf if name == "median_s" else 0.0
            pads = [(0, more if axis in axes else 0) for axis in range(value.ndim)]
            setattr(self, name, np.pad(value, pads, constant_values=fill))
        self._width *= 2


def _censored(least: float, middle: float, sd: float) -> tuple[float, float] | None:
    """What a run stopped at log time `least` teaches: (what to take for its log time, extra variance).

    None: nothing, because it was stopped before its time, or most likely hung.
    """
    z = (least - middle) / sd
    beyond = 0.5 * math.erfc(z / math.sqrt(2))
    if z < -1 or beyond < _HUNG_SHARE:
        return None
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return middle + sd * density / beyond, (sd * 0.5) ** 2


def _rounded(values: Sequence[float] | Floats, digits: int = 6) -> list[float]:
    return [round(float(value), digits) for value in values]
