"""The scheduler's side of a simulation: the farm's own policies, and what they are compared with.

`PlanDesk` drives `match.plan` (fitness, fifo), `BoardDesk` the predictive policy with what it learns, or
with the hidden truth (the oracle). The other three are baselines and live nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from farm.flow import match
from farm.flow.board import Board
from farm.flow.groups import Group
from farm.flow.predict import RunTimeModel
from farm.flow.run_times import LoadTimes, Run, RunTimes, model_key, rates_of
from farm.flow.stall import Expectation, expectation
from farm.flow.weights import Weights
from farm.model.ids import JobId, NodeId, StepId
from farm.model.work import Profile, Tag
from farm.simulate import stallwatch
from farm.simulate.clock import Remedy, SimRun, Simulation
from farm.simulate.world import World, node_number

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Bare:
    """What all desks share that leave stalled runs alone."""

    looks_every_s: float | None = None

    def begin(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = simulation.world

    def ended(self, run: SimRun, now: float, *, is_complete: bool) -> None:
        return

    def gone(self, job: int, now: float) -> None:
        return

    def returned(self, job: int, count: int, now: float) -> None:
        return

    def node_is(self, node: int, now: float, *, is_up: bool) -> None:
        return

    def look(self, runs: Sequence[SimRun], idle: Sequence[int], now: float) -> Sequence[Remedy]:
        return ()

    def copied(self, run: SimRun, now: float) -> None:
        return

    def _free(self) -> list[int]:
        simulation = self.simulation
        return [n for n, run in enumerate(simulation.runs) if run is None and simulation.up[n]]

    def _able(self, job: int, node: int) -> bool:
        return bool(np.isfinite(self.world.seconds[job, self.world.node_model[node]]))


class StaticDesk(Bare):
    """Round robin at submission: each task belongs to a node from the start."""

    def begin(self, simulation: Simulation) -> None:
        super().begin(simulation)
        self._queues: list[deque[int]] = [deque() for _ in self.world.nodes]
        self._next = 0

    def arrived(self, job: int, now: float) -> None:
        nodes = [n for n in range(len(self.world.nodes)) if self._able(job, n)]
        for _ in range(int(self.world.frames[job])):
            self._queues[nodes[self._next % len(nodes)]].append(job)
            self._next += 1

    def returned(self, job: int, count: int, now: float) -> None:
        nodes = [n for n in range(len(self.world.nodes)) if self._able(job, n)]
        self._queues[nodes[self._next % len(nodes)]].append(job)
        self._next += 1

    def decide(self, now: float) -> Sequence[tuple[int, int]]:
        return [(n, self._queues[n].popleft()) for n in self._free() if self._queues[n]]


class PullDesk(Bare):
    """A free node asks for work: sticky by priority (as OpenCue does), or by tag."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def begin(self, simulation: Simulation) -> None:
        super().begin(simulation)
        self._active: list[int] = []
        devices = [node.capabilities.devices[0] for node in self.world.nodes]
        flops = np.array([device.fp32_tflops or 0.0 for device in devices])
        gbps = np.array([device.memory_bandwidth_gbps or 0.0 for device in devices])
        self._likes_compute = flops / flops.mean() > gbps / gbps.mean()

    def arrived(self, job: int, now: float) -> None:
        self._active.append(job)

    def gone(self, job: int, now: float) -> None:
        self._active.remove(job)

    def decide(self, now: float) -> Sequence[tuple[int, int]]:
        waiting = self.simulation.waiting.copy()
        chosen = []
        for node in self._free():
            able = [job for job in self._active if waiting[job] > 0 and self._able(job, node)]
            if able:
                job = self._sticky(able, node) if self._kind == "sticky" else self._by_tag(able, node)
                waiting[job] -= 1
                chosen.append((node, job))
        return chosen

    def _sticky(self, able: Sequence[int], node: int) -> int:
        last = self.simulation.last_job[node]
        return min(able, key=lambda job: (-self.world.jobs[job].priority, job != last, job))

    def _by_tag(self, able: Sequence[int], node: int) -> int:
        wanted = Tag.COMPUTE if self._likes_compute[node] else Tag.BANDWIDTH
        for tag in (wanted, Tag.UNKNOWN):
            for job in able:
                if self.world.jobs[job].tag is tag:
                    return job
        return able[0]


class PlanDesk(Bare):
    """`match.plan` with one of its scores, as the scheduler calls it."""

    def __init__(self, score: match.Score) -> None:
        self._score = score

    def begin(self, simulation: Simulation) -> None:
        super().begin(simulation)
        self._active: dict[int, Group] = {}

    def arrived(self, job: int, now: float) -> None:
        self._active[job] = replace(group_of(self.world, job), ready=int(self.world.frames[job]))

    def gone(self, job: int, now: float) -> None:
        del self._active[job]

    def decide(self, now: float) -> Sequence[tuple[int, int]]:
        simulation = self.simulation
        nodes = [self.world.nodes[n] for n in self._free()]
        if not nodes:
            return ()
        for job, group in self._active.items():
            if group.ready != simulation.waiting[job]:
                self._active[job] = replace(group, ready=int(simulation.waiting[job]))
        groups = [group for group in self._active.values() if group.ready > 0]
        plan = match.plan(groups, nodes, score=self._score, limit=len(nodes))
        return [(node_number(a.node_id), int(a.step_id)) for a in plan for _ in range(a.count)]


class Truth:
    """The oracle's run times: true means and node factors; not frames' content, noise or faults."""

    def __init__(self, world: World) -> None:
        self.steps = {str(job): job for job in range(len(world.jobs))}
        self.models = {name: at for at, name in enumerate(world.models)}
        self.median_s = world.seconds
        self.sd = np.full_like(world.seconds, world.scenario.content_sd)
        self._load = world.load_s
        self._cached_load = world.scenario.cached_load
        self._factors = {node.id: float(f) for node, f in zip(world.nodes, world.node_factor, strict=True)}

    def refresh(self) -> None:
        return

    def load_s(self, row: int) -> LoadTimes:
        cold = float(self._load[row])
        return LoadTimes(cold, 1.0, cold * self._cached_load)

    def has_run_on(self, rows: Ints) -> Bools:
        return np.ones((len(rows), self.median_s.shape[1]), np.bool_)

    def node_factor(self, node: str) -> float:
        return self._factors[NodeId(node)]


class BoardDesk(Bare):
    """The predictive policy as the scheduler runs it: board, model, prices, and what it does about stalls."""

    def __init__(
        self,
        *,
        weights: Weights | None = None,
        is_oracle: bool = False,
        explain: bool = False,
        mends: bool = True,
    ) -> None:
        """mends: whether stalled runs are copied or moved, and idle devices given copies."""
        self.looks_every_s = stallwatch.LOOK_EVERY_S if mends else None
        self._weights = weights
        self._is_oracle = is_oracle
        self._explain = explain

    def begin(self, simulation: Simulation) -> None:
        super().begin(simulation)
        self.learner = RunTimeModel()
        times: RunTimes = self.learner
        if self._is_oracle:
            times = Truth(self.world)
        for node in self.world.nodes:
            device = node.capabilities.devices[0]
            self.learner.add_model(model_key(device), rates_of(device))
        self._times = times
        self.board = Board(times, weights=self._weights, explain=self._explain)
        for node in self.world.nodes:
            self.board.put_node(node, 0.0)

    def arrived(self, job: int, now: float) -> None:
        group = group_of(self.world, job)
        if not self._is_oracle:
            self.learner.add_step(str(group.step_id), self.world.jobs[job].profile)
        self.board.put_group(replace(group, ready=int(self.world.frames[job])), now)

    def returned(self, job: int, count: int, now: float) -> None:
        self.board.add_ready(StepId(job), count)

    def gone(self, job: int, now: float) -> None:
        self.board.drop_group((StepId(job), frozenset()))

    def ended(self, run: SimRun, now: float, *, is_complete: bool) -> None:
        node_id = self.world.nodes[run.node].id
        if not self._is_oracle:
            self.learner.observe(
                Run(
                    step=str(run.job),
                    model=self.world.models[run.model],
                    node=node_id,
                    runtime_s=now - run.begin,
                    load_s=run.load_s,
                    loaded=run.loaded,
                    is_censored=not is_complete,
                    still_running=int(self.simulation.running[run.job]),
                )
            )
            self.board.learned(StepId(run.job))
        self.board.ended(node_id, "gpu", self.world.jobs[run.job].demand, StepId(run.job), JobId(run.job))

    def node_is(self, node: int, now: float, *, is_up: bool) -> None:
        node_id = self.world.nodes[node].id
        self.board.node_is(node_id, accepts=is_up)
        if not is_up:
            self.board.cooled(node_id)

    def decide(self, now: float) -> Sequence[tuple[int, int]]:
        self.board.reprice(now)
        plan = self.board.round(now, len(self.world.nodes))
        return [(node_number(a.node_id), int(a.step_id)) for a in plan for _ in range(a.count)]

    def copied(self, run: SimRun, now: float) -> None:
        self.board.copied(self.world.nodes[run.node].id, "gpu", StepId(run.job), now)

    # --- stalls -----------------------------------------------------------------------------------

    def look(self, runs: Sequence[SimRun], idle: Sequence[int], now: float) -> Sequence[Remedy]:
        return stallwatch.remedies(self.simulation, runs, idle, self._expected, now)

    def _expected(self, job: int, node: int) -> Expectation | None:
        model = self.world.models[int(self.world.node_model[node])]
        return expectation(self._times, str(job), model, self.world.nodes[node].id)


def group_of(world: World, job: int) -> Group:
    spec = world.jobs[job]
    return Group(
        step_id=StepId(job),
        job_id=JobId(job),
        demand=spec.demand,
        profile=spec.profile if spec.tag is not Tag.UNKNOWN else Profile(),
        priority=spec.priority,
        submitted_at=spec.at,
        user=spec.user,
    )
