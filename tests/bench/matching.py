"""The benchmark of matching: one table on the farm's own verbs, driven by a virtual clock.

`make bench-matching` plays every suite on ten public seeds; `python -m tests.bench.matching --suites clean
--seeds 0-2` a part of it. Percentages are means over seeds of (ours / fifo) on the same world. Weights were
chosen on seeds from 20 on, which are none of the public ones. Seeds are played one after the other through
all suites, so that a run that was interrupted has whole seeds to show.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from farm.errors import UserError
from farm.flow import match
from farm.flow.weights import Weights
from farm.simulate.clock import Desk, Simulation
from farm.simulate.desks import BoardDesk, PlanDesk, PullDesk, StaticDesk
from farm.simulate.metrics import Figures, figures
from farm.simulate.world import Scenario, World
from tests.bench.tables import gavel_scenario

_ROOT = Path(__file__).resolve().parents[2]
PUBLIC_SEEDS = tuple(range(10))
DESKS: dict[str, Callable[[Weights], Desk]] = {
    "static round robin": lambda _: StaticDesk(),
    "fifo (pull)": lambda _: PlanDesk(match.fifo),
    "priority + sticky": lambda _: PullDesk("sticky"),
    "tags (pull)": lambda _: PullDesk("tags"),
    "fitness": lambda _: PlanDesk(match.fitness),
    "predictive (ours)": lambda weights: BoardDesk(weights=weights),
    "oracle": lambda weights: BoardDesk(weights=weights, is_oracle=True),
}
FIFO, OURS, ORACLE, STATIC = "fifo (pull)", "predictive (ours)", "oracle", "static round robin"
FAULTS = Scenario(load=0.6, hung=0.003, slow_per_hour=0.15, mean_hours_to_failure=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Ours over another policy, in one figure: at most `most`."""

    figure: str
    over: str
    most: float
    goal: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    what: str
    scenario: Scenario | None
    desks: tuple[str, ...]
    targets: tuple[Target, ...]
    of_suite: str = ""
    """For `over` = "right tags": the suite whose run of ours is the measure."""


SUITES: dict[str, Suite] = {
    "clean": Suite(
        what="mixed farm of 100 devices of 10 models, load 0.8",
        scenario=Scenario(load=0.8),
        desks=tuple(DESKS),
        targets=(
            Target(figure="sd_s", over=FIFO, most=0.40, goal=0.35),
            Target(figure="turnaround_s", over=FIFO, most=0.50, goal=0.45),
            Target(figure="gpu_hours", over=ORACLE, most=1.04, goal=1.03),
            Target(figure="makespan_s", over=FIFO, most=1.0),
            Target(figure="sd_s", over=STATIC, most=0.40),
            Target(figure="turnaround_s", over=STATIC, most=0.50),
        ),
    ),
    "faults-15m": Suite(
        what="0.3 % hung, slow spells, failures; time-out 15 min; load 0.6",
        scenario=replace(FAULTS, timeout_s=900.0),
        desks=(FIFO, OURS, ORACLE),
        targets=(Target(figure="sd_s", over=FIFO, most=0.43, goal=0.40),),
    ),
    "faults-1h": Suite(
        what="the same, time-out 1 h",
        scenario=replace(FAULTS, timeout_s=3600.0),
        desks=(FIFO, OURS, ORACLE),
        targets=(Target(figure="sd_s", over=FIFO, most=0.21, goal=0.20),),
    ),
    "uniform": Suite(
        what="60 L40S, load 0.8",
        scenario=Scenario(farm={"L40S": 60}, load=0.8),
        desks=(FIFO, OURS),
        targets=(
            Target(figure="gpu_hours", over=FIFO, most=1.01),
            Target(figure="makespan_s", over=FIFO, most=1.01),
        ),
    ),
    "wrong-tags": Suite(
        what="as clean, 20 % of tags wrong",
        scenario=Scenario(load=0.8, wrong_tags=0.2),
        desks=(OURS,),
        targets=(Target(figure="gpu_hours", over="right tags", most=1.015, goal=1.01),),
        of_suite="clean",
    ),
    "no-tags": Suite(
        what="as clean, no tags at all",
        scenario=Scenario(load=0.8, no_tags=1.0),
        desks=(OURS,),
        targets=(Target(figure="gpu_hours", over="right tags", most=1.03, goal=1.02),),
        of_suite="clean",
    ),
    "drain": Suite(
        what="80 jobs at once",
        scenario=Scenario(batch_jobs=80),
        desks=(FIFO, OURS, ORACLE),
        targets=(Target(figure="makespan_s", over=FIFO, most=1 / 1.30, goal=1 / 1.35),),
    ),
    "gavel": Suite(
        what="26 measured workloads on 36 K80, 36 P100, 36 V100; load 0.7",
        scenario=gavel_scenario(),
        desks=(FIFO, OURS, ORACLE),
        targets=(
            Target(figure="gpu_hours", over=FIFO, most=0.78, goal=0.76),
            Target(figure="sd_s", over=FIFO, most=0.33, goal=0.30),
        ),
    ),
}
COLUMNS = (
    ("sd_s", "SD s", "{:.1f}"),
    ("log_sd", "log SD", "{:.2f}"),
    ("p50_s", "p50 s", "{:.0f}"),
    ("p95_s", "p95 s", "{:.0f}"),
    ("p99_s", "p99 s", "{:.0f}"),
    ("turnaround_s", "turnaround s", "{:.0f}"),
    ("turnaround_p95_s", "p95 s", "{:.0f}"),
    ("wait_s", "wait s", "{:.0f}"),
    ("makespan_s", "makespan s", "{:.0f}"),
    ("gpu_hours", "GPU h", "{:.1f}"),
    ("kwh", "kWh", "{:.1f}"),
    ("wasted", "wasted", "{:.1%}"),
)


def play(work: tuple[str, str, int, Weights]) -> tuple[str, str, int, Figures, float]:
    suite, desk, seed, weights = work
    scenario = SUITES[suite].scenario
    assert scenario is not None
    begun = time.process_time()
    told = figures(Simulation(World(replace(scenario, seed=seed)), DESKS[desk](weights)).run())
    return suite, desk, seed, told, time.process_time() - begun


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.matching", description=__doc__)
    parser.add_argument("--suites", default=",".join(SUITES), help="comma separated; default: all")
    parser.add_argument("--policies", default=",".join(DESKS), help="comma separated; default: all")
    parser.add_argument("--seeds", default=f"{PUBLIC_SEEDS[0]}-{PUBLIC_SEEDS[-1]}", help="such as 0-9")
    parser.add_argument(
        "--weight",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="play ours and the oracle by another weight; may be given again",
    )
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument(
        "--results",
        type=Path,
        help="write every figure there as it comes; what it holds of this very code is not played again",
    )
    options = parser.parse_args(arguments)
    chosen = options.suites.split(",")
    unknown = [name for name in chosen if name not in SUITES]
    if unknown:
        parser.error(f"no suite {unknown[0]!r}; there are: {', '.join(SUITES)}")
    policies = options.policies.split(",")
    unknown = [name for name in policies if name not in DESKS]
    if unknown:
        parser.error(f"no policy {unknown[0]!r}; there are: {', '.join(DESKS)}")
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    try:
        weights = Weights.from_table(dict(pair.partition("=")[::2] for pair in options.weight))
    except UserError as error:
        parser.error(str(error))
    found: dict[tuple[str, str, int], Figures] = {}
    code = fingerprint(weights)
    if options.results and options.results.exists():
        kept = json.loads(options.results.read_text())
        for entry in kept["runs"] if kept["code"] == code else ():
            found[entry["suite"], entry["desk"], entry["seed"]] = Figures(**entry["figures"])
    work = [
        (suite, desk, seed, weights)
        for seed in seeds
        for suite in chosen
        if SUITES[suite].scenario is not None
        for desk in SUITES[suite].desks
        if desk in policies and (suite, desk, seed) not in found
    ]
    with multiprocessing.Pool(options.processes) as pool:
        for suite, desk, seed, told, cpu_s in pool.imap_unordered(play, work):
            found[suite, desk, seed] = told
            print(f"  played {suite}, {desk}, seed {seed}: {cpu_s:.1f} s CPU", file=sys.stderr, flush=True)
            if options.results:
                keep(options.results, code, found)
    failed = 0
    for suite in chosen:
        failed += report(suite, found, seeds)
    return 1 if failed else 0


def fingerprint(weights: Weights) -> str:
    """Of the code and weights that figures follow from: those of other code are not to be compared."""
    digest = hashlib.sha256()
    for folder in ("farm/flow", "farm/simulate", "farm/model"):
        for path in sorted((_ROOT / folder).glob("*.py")):
            digest.update(path.read_bytes())
    digest.update(repr(weights).encode())
    digest.update(repr([suite.scenario for suite in SUITES.values()]).encode())
    return digest.hexdigest()


def keep(path: Path, code: str, found: dict[tuple[str, str, int], Figures]) -> None:
    """Write all figures so far: an interrupted run goes on from there."""
    runs = [
        {"suite": suite, "desk": desk, "seed": seed, "figures": asdict(told)}
        for (suite, desk, seed), told in sorted(found.items())
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"code": code, "runs": runs}))
    partial.replace(path)


def report(name: str, found: dict[tuple[str, str, int], Figures], seeds: Sequence[int]) -> int:
    """Print a suite's table and targets; returns how many targets are missed."""
    suite = SUITES[name]
    if suite.scenario is None:
        print(f"\n## {name}: skipped, its public tables are not here")
        return 0
    desks = [desk for desk in suite.desks if any((name, desk, seed) in found for seed in seeds)]
    seeds = [seed for seed in seeds if desks and all((name, desk, seed) in found for desk in desks)]
    if not seeds:
        return 0
    some = found[name, desks[0], seeds[0]]
    print(f"\n## {name}: {suite.what}")
    bound = statistics.fmean(found[name, desks[0], s].bound_gpu_hours for s in seeds)
    floor = statistics.fmean(found[name, desks[0], s].floor_sd_s for s in seeds)
    print(
        f"seeds {seeds[0]}-{seeds[-1]}; LP bound {bound:.1f} GPU h; content floor of the SD {floor:.1f} s; "
        f"seed {seeds[0]} has {some.jobs} jobs, {some.frames:,} frames"
    )
    print(f"{'':<20}" + "".join(f"{title:>13}" for _, title, _ in COLUMNS))
    for desk in desks:
        line = f"{desk:<20}"
        for key, _, form in COLUMNS:
            mean = statistics.fmean(getattr(found[name, desk, seed], key) for seed in seeds)
            line += f"{form.format(mean):>13}"
        print(line)
    missed = 0
    for target in suite.targets:
        ratios = _ratios(name, target, found, seeds)
        if not ratios:
            continue
        mean = statistics.fmean(ratios)
        is_met = mean <= target.most
        missed += not is_met
        goal = f", goal {target.goal - 1:+.1%}" if target.goal is not None else ""
        print(
            f"  {'met   ' if is_met else 'MISSED'} {target.figure} over {target.over}: {mean - 1:+.1%} "
            f"[{min(ratios) - 1:+.1%}, {max(ratios) - 1:+.1%}], wanted {target.most - 1:+.1%} or better{goal}"
        )
    return missed


def _ratios(
    name: str, target: Target, found: dict[tuple[str, str, int], Figures], seeds: Sequence[int]
) -> list[float]:
    ratios = []
    for seed in seeds:
        other = (
            (SUITES[name].of_suite, OURS, seed) if target.over == "right tags" else (name, target.over, seed)
        )
        if other in found and (name, OURS, seed) in found:
            ours = getattr(found[name, OURS, seed], target.figure)
            ratios.append(ours / getattr(found[other], target.figure))
    return ratios


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
