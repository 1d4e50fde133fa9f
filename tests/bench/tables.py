"""Public tables of measured speeds, where they are present; they are not part of this project.

Looked for in `FARM_TEST_TABLES`, else in `../shared/data/scheduling` beside the checkout: `gavel/`
(MIT, Stanford FutureData) and `timm/` (Apache-2.0, Hugging Face).
"""

from __future__ import annotations

import ast
import csv
import json
import math
import os
from pathlib import Path

import numpy as np

from farm.flow.predict import RunTimeModel
from farm.flow.run_times import Rates, Run
from farm.model.work import Profile, Tag
from farm.simulate.world import Scenario

_HERE = Path(__file__).resolve().parents[2]
TABLES = Path(os.environ.get("FARM_TEST_TABLES", _HERE.parent / "shared" / "data" / "scheduling"))

TIMM_PAIRS = {
    ("RTX 3090", "RTX 4090"): (
        "benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv",
        "benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv",
    ),
    ("RTX 4090", "RTX 5090"): (
        "benchmark-infer-amp-nchw-pt291-cu128-4090.csv",
        "benchmark-infer-amp-nchw-pt291-cu130-5090.csv",
    ),
    ("RTX 4090", "RTX PRO 6000"): (
        "benchmark-infer-amp-nchw-pt291-cu128-4090.csv",
        "benchmark-infer-amp-nchw-pt291-cu130-pro6000maxq.csv",
    ),
}
"""Measured with the same software on both GPUs; empty where the tables are not present."""
if not (TABLES / "timm").is_dir():
    TIMM_PAIRS = {}


def gavel_times() -> tuple[tuple[float, ...], ...]:
    """Seconds a step on K80, P100, V100 of the single-GPU workloads measured on all three, scaled."""
    path = TABLES / "gavel" / "simulation_throughputs.json"
    if not path.is_file():
        return ()
    table = json.loads(path.read_text())
    rates: dict[str, dict[str, float]] = {}
    for device in ("k80", "p100", "v100"):
        for key, row in table[device].items():
            job, workers = ast.literal_eval(key)
            if workers == 1 and row["null"] > 0:
                rates.setdefault(job, {})[device] = row["null"]
    found = []
    for job in sorted(rates):
        if len(rates[job]) == 3:
            times = np.array([1 / rates[job][device] for device in ("k80", "p100", "v100")])
            found.append(tuple(float(t) for t in times / math.exp(np.log(times).mean())))
    return tuple(found)


def gavel_scenario() -> Scenario | None:
    times = gavel_times()
    if not times:
        return None
    return Scenario(
        farm={"K80": 36, "P100": 36, "V100": 36}, load=0.7, times=times, measured_sd=None, rate_sd=0.0
    )


def timm_pair(first: str, second: str) -> list[tuple[float, float, float, float]]:
    """(seconds an image on the first GPU, on the second, GMACs, million activations) by model."""
    tables = []
    for name in (first, second):
        rows = {}
        with (TABLES / "timm" / name).open(newline="") as lines:
            for row in csv.DictReader(lines):
                try:
                    seconds = float(row["infer_step_time"]) / float(row["infer_batch_size"])
                    work = float(row["infer_gmacs"]), float(row["infer_macts"])
                except (KeyError, TypeError, ValueError):
                    continue
                if seconds > 0 and min(work) > 0:
                    rows[row["model"], row["infer_img_size"]] = (seconds, *work)
        tables.append(rows)
    return [
        (tables[0][key][0], tables[1][key][0], tables[0][key][1], tables[0][key][2])
        for key in tables[0]
        if key in tables[1]
    ]


def cross_device_errors(pairs: list[tuple[float, float, float, float]]) -> list[float]:
    """Relative errors of predicting the second GPU's time from one run on the first.

    Half of the models teach what the farm learns anyway (device corrections, and how GMACs and activations
    make a profile); the other half are predicted, each after a single run on the first GPU.
    """
    order = np.random.default_rng(0).permutation(len(pairs))
    half = len(pairs) // 2
    taught, asked = [pairs[i] for i in order[:half]], [pairs[i] for i in order[half:]]
    split = _fit_split(taught)
    model = RunTimeModel()
    # Rates measured on half of the models: the effective ones of the pair.
    flops, gbps = _effective_ratios(taught, split)
    model.add_model("first", Rates(fp32_tflops=30.0, memory_bandwidth_gbps=600.0, source="measured"))
    model.add_model(
        "second", Rates(fp32_tflops=30.0 * flops, memory_bandwidth_gbps=600.0 * gbps, source="measured")
    )
    errors = []
    for number, (on_first, on_second, gmacs, macts) in enumerate(asked):
        share = _share(split, gmacs, macts)
        step = str(number)
        model.add_step(
            step,
            Profile(
                compute_share=share,
                bandwidth_share=1 - share,
                confidence=1.0,
                source="probe",
                tag=_tag(share),
            ),
        )
        model.observe(Run(step=step, model="first", node="a", runtime_s=on_first * 1e3))
        told = model.estimate(step, "second").median_s / 1e3
        errors.append(abs(told / on_second - 1))
        # The farm goes on learning: this model's run on the second GPU, too.
        model.observe(Run(step=step, model="second", node="b", runtime_s=on_second * 1e3))
    return errors


def _tag(share: float) -> Tag:
    return Tag.COMPUTE if share >= 0.6 else Tag.BANDWIDTH if share <= 0.4 else Tag.BALANCED


def _fit_split(pairs: list[tuple[float, float, float, float]]) -> tuple[float, float]:
    """Seconds a GMAC and a million activations on the first GPU."""
    return _fit(np.array([[g / t, m / t] for t, _, g, m in pairs]))


def _fit(matrix: np.ndarray) -> tuple[float, float]:
    """The two factors, none negative, whose products with the columns add up to 1 as nearly as can be."""
    best, rest = (0.0, 0.0), math.inf
    for columns in ((0,), (1,), (0, 1)):
        found, *_ = np.linalg.lstsq(matrix[:, columns], np.ones(len(matrix)), rcond=None)
        off = float(((matrix[:, columns] @ found - 1) ** 2).sum())
        if (found >= 0).all() and off < rest:
            full = np.zeros(2)
            full[list(columns)] = found
            best, rest = (float(full[0]), float(full[1])), off
    return best


def _share(split: tuple[float, float], gmacs: float, macts: float) -> float:
    compute, traffic = split[0] * gmacs, split[1] * macts
    return compute / (compute + traffic)


def _effective_ratios(
    pairs: list[tuple[float, float, float, float]], split: tuple[float, float]
) -> tuple[float, float]:
    matrix = np.array(
        [[_share(split, g, m) * t / u, (1 - _share(split, g, m)) * t / u] for t, u, g, m in pairs]
    )
    arithmetic, traffic = _fit(matrix)
    return 1 / max(arithmetic, 0.05), 1 / max(traffic, 0.05)
