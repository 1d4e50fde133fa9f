"""What the predictive policy costs: `python -m tests.bench.matching_cost`.

10,000 nodes of 30 device models, 1,000,000 waiting tasks in 10,000 groups of 100 users, with limits, max
running, VRAM and pools that refuse. The board is kept up to date, never rebuilt; prices are set apart.
CPU time of the one thread (on a busy machine more than on an idle one: caches are shared); a round starts at
most 500 tasks, as the scheduler's do. What ended is taken in as it comes, and stated apart.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from farm.flow.board import Board
from farm.flow.groups import Assignment, Group
from farm.flow.predict import RunTimeModel
from farm.flow.run_times import Rates, model_key
from farm.model.ids import JobId, NodeId, StepId
from farm.model.limits import LIMIT_PREFIX
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, NodeView
from farm.model.work import Profile, Tag

MODELS = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.matching_cost", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    begun = time.thread_time()
    board, groups = build(options.nodes, options.groups, options.tasks)
    tell("built (once)", time.thread_time() - begun)
    begun = time.thread_time()
    board.reprice(0.0, force=True)
    tell("prices from nothing, off the hot path", time.thread_time() - begun)
    begun = time.thread_time()
    cold = board.round(1.0, options.nodes)
    tell(f"cold round: {count(cold):,} tasks started", time.thread_time() - begun)
    draw = np.random.default_rng(1)
    running = [(a, groups[int(a.step_id)]) for a in cold for _ in range(a.count)]
    for ending in (1, 100, 500):
        times, taking_in = [], []
        now = 2.0
        for _ in range(options.rounds if ending > 1 else 2 * options.rounds):
            now += 0.5
            chosen = draw.choice(len(running), size=ending, replace=False)
            begun = time.thread_time()
            for at in chosen:
                assignment, group = running[at]
                board.ended(
                    assignment.node_id, assignment.device_id, group.demand, group.step_id, group.job_id
                )
                board.learned(group.step_id)
            taking_in.append(time.thread_time() - begun)
            begun = time.thread_time()
            plan = board.round(now, 500)
            times.append(time.thread_time() - begun)
            started = [(a, groups[int(a.step_id)]) for a in plan for _ in range(a.count)]
            for at, new in zip(chosen, started, strict=False):
                running[at] = new
            dropped = sorted(chosen[len(started) :], reverse=True)
            for at in dropped:
                running.pop(int(at))
        told = f"round, {ending:,} ended, {len(started):,} started"
        tell(told, statistics.median(times), float(np.quantile(times, 0.99)))
        tell("  taking in what ended", statistics.median(taking_in), float(np.quantile(taking_in, 0.99)))
    picks = []
    for at in draw.choice(len(running), size=min(1_000, len(running)), replace=False):
        assignment, group = running[at]
        board.ended(assignment.node_id, assignment.device_id, group.demand, group.step_id, group.job_id)
        begun = time.thread_time()
        board.round(now, 1)
        picks.append(time.thread_time() - begun)
    tell("single pick, nothing learnt", statistics.median(picks), float(np.quantile(picks, 0.99)))
    begun = time.thread_time()
    board.reprice(now + 60, force=True)
    tell("prices set anew, off the hot path", time.thread_time() - begun)
    idle(options.nodes)
    print(f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB at most")


def idle(nodes: int) -> None:
    """The tail: less waits than there are devices, which slow ones had better leave to others."""
    board, groups = build(nodes // 5, 200, 20_000)
    board.reprice(0.0, force=True)
    for at, group in enumerate(groups):
        board.put_group(replace(group, ready=30 if at < 10 else 0, max_running=None), 0.0)
    begun = time.thread_time()
    started = count(board.round(1.0, 500))
    tell(f"tail: {started:,} of 300 started on {nodes // 5:,} devices", time.thread_time() - begun)
    times = []
    for at in range(20):
        begun = time.thread_time()
        board.round(1.5 + at / 100, 500)
        times.append(time.thread_time() - begun)
    tell("  round that leaves the others idle", statistics.median(times), max(times))


def count(plan: Sequence[Assignment]) -> int:
    return sum(each.count for each in plan)


def tell(what: str, seconds: float, p99_s: float | None = None) -> None:
    def shown(value: float) -> str:
        return f"{value * 1e6:.0f} µs" if value < 1e-3 else f"{value * 1e3:.1f} ms"

    print(f"{what:<48}{shown(seconds):>12}" + (f"  p99 {shown(p99_s)}" if p99_s else ""), flush=True)


def build(nodes: int, groups: int, tasks: int) -> tuple[Board, list[Group]]:
    draw = np.random.default_rng(0)
    model = RunTimeModel()
    devices = []
    for at in range(MODELS):
        rates = Rates(
            fp32_tflops=float(np.exp(draw.uniform(2, 4.5))),
            memory_bandwidth_gbps=float(np.exp(draw.uniform(5.7, 8.5))),
            source="measured",
        )
        vram_mib = int(draw.choice([16, 24, 48, 80])) * 1024
        device = Device(
            id="gpu",
            kind=DeviceKind.GPU,
            model=f"model {at}",
            fp32_tflops=rates.fp32_tflops,
            memory_bandwidth_gbps=rates.memory_bandwidth_gbps,
            vram_mib=vram_mib,
        )
        model.add_model(model_key(device), rates)
        devices.append(device)
    shares = {f"user {at}": 1.0 + at % 3 for at in range(100)}
    board = Board(model, shares=shares, limits={"arnold": 2_000, "houdini": 500})
    for at in range(nodes):
        has = Capabilities(
            cpus=32,
            memory_mib=131_072,
            pools=("default", "film") if at % 4 == 0 else ("default",),
            devices=(devices[int(draw.integers(MODELS))],),
        )
        board.put_node(NodeView(id=NodeId(f"node{at:05d}"), capabilities=has), 0.0)
    made = []
    waiting = draw.multinomial(tasks, np.full(groups, 1 / groups))
    for at in range(groups):
        share = float(draw.uniform(0.1, 0.9))
        tag = Tag.COMPUTE if share > 0.6 else Tag.BANDWIDTH if share < 0.4 else Tag.BALANCED
        profile = Profile(
            compute_share=share, bandwidth_share=1 - share, confidence=1.0, source="user", tag=tag
        )
        limit = draw.choice(["", "", "", "", "arnold", "houdini"])
        demand = Demand(
            gpus=1,
            vram_mib=int(draw.choice([0, 8, 20, 40])) * 1024,
            cpus=float(draw.choice([0, 4])),
            memory_mib=int(draw.choice([0, 16_384])),
            pool="film" if at % 20 == 0 else None,
            amounts=((f"{LIMIT_PREFIX}{limit}", 1.0),) if limit else (),
        )
        model.add_step(str(at), profile)
        row = model.steps[str(at)]
        model._mean[row, :, 0] += draw.normal(0, 1)  # as if runs had taught its scale
        model._covariance[row, 0, 0] = 0.01
        group = Group(
            step_id=StepId(at),
            job_id=JobId(at // 2),
            demand=demand,
            profile=profile,
            ready=int(waiting[at]),
            max_running=50 if at % 10 < 2 else None,
            priority=int(draw.choice([40, 50, 50, 60])),
            submitted_at=-math.floor(float(draw.uniform(0, 7200))),
            user=f"user {draw.integers(100)}",
        )
        made.append(group)
    model.refresh()
    for group in made:
        board.put_group(group, 0.0)
    return board, made


if __name__ == "__main__":
    main()
