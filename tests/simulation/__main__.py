"""`python -m tests.simulation --seeds 1000`: every seed that breaks a promise, and what the others cost.

`--seed N --trace` tells one history line by line; `--mutant NAME` plants a known bug; `--jobs N` uses so
many processes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.farm import PROFILES, Result, run_seed
from tests.simulation.mutants import MUTANTS, hunt, planted


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--profile", choices=list(PROFILES), default="", help="of faults; else the seed says")
    parser.add_argument("--trace", action="store_true", help="tell what happens")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--mutant", metavar="NAME", help="with this known bug; part of its name will do")
    parser.add_argument("--mutants", action="store_true", help="look for every known bug, within its seeds")
    options = parser.parse_args()
    if options.mutants:
        return _hunt_all()
    chosen = [m for m in MUTANTS if options.mutant and options.mutant in m.name]
    if options.mutant and not chosen:
        parser.error(f"no mutant has {options.mutant!r} in its name: " + "; ".join(m.name for m in MUTANTS))
    with planted(chosen[0]) if chosen else contextlib.nullcontext():
        return _run(options, options.profile or (chosen[0].profile if chosen else ""))


def _hunt_all() -> int:
    survivors = 0
    for mutant in MUTANTS:
        found = hunt(mutant)
        survivors += found is None
        where = f"seed {found.seed}: {found.violation}" if found else f"SURVIVED {mutant.seeds} seeds"
        print(f"{mutant.name} ({mutant.profile}): {where}", flush=True)
    print(f"{len(MUTANTS)} mutants, {survivors} survived")
    return 1 if survivors else 0


def _run(options: argparse.Namespace, profile: str) -> int:
    if options.seed is not None:
        result = run_seed(options.seed, profile=profile, tracing=options.trace)
        print(result)
        return 1 if result.violation else 0
    seeds = range(options.first, options.first + options.seeds)
    one = partial(run_seed, profile=profile)
    begun, cpu = time.perf_counter(), time.process_time()
    gc.freeze()
    found: list[Result] = []
    if options.jobs == 1:
        for seed in seeds:
            _tell(one(seed), found)
    else:
        with ProcessPoolExecutor(options.jobs, initializer=gc.freeze) as pool:
            for result in pool.map(one, seeds, chunksize=20):
                _tell(result, found)
    took_s = time.perf_counter() - begun
    _sum_up(found, took_s, time.process_time() - cpu)
    return 1 if any(result.violation for result in found) else 0


def _tell(result: Result, found: list[Result]) -> None:
    found.append(result)
    if result.violation:
        print(f"seed {result.seed} ({result.profile}): {result.violation}", flush=True)


def _sum_up(found: list[Result], took_s: float, cpu_s: float) -> None:
    bad = [result for result in found if result.violation]
    print(f"{len(found)} seeds in {took_s:.1f} s ({cpu_s:.1f} s of CPU here), {len(bad)} violations")
    by_profile: dict[str, list[Result]] = defaultdict(list)
    for result in found:
        if not result.violation:
            by_profile[result.profile].append(result)
    for name, results in sorted(by_profile.items()):
        renders = sorted(r.renders_per_task for r in results)
        waits = sorted(r.done_after_s for r in results)
        print(
            f"  {name:<10} {len(results):>6} seeds, renders a task {sum(renders) / len(renders):.2f}"
            f" (most {renders[-1]:.2f}), all done after {sum(waits) / len(waits):.0f} s"
            f" (most {waits[-1]:.0f} s),"
            f" {sum(r.steps for r in results) // len(results)} steps,"
            f" {sum(r.simulated_s for r in results) / len(results):.0f} s simulated"
        )
    for text, count in Counter(r.violation.split(":")[0] for r in bad).most_common(10):
        print(f"  {count:>6} x {text}")


if __name__ == "__main__":
    sys.exit(main())
