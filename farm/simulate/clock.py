"""The virtual clock: arrivals, starts, ends, faults, and a policy that decides at every one of them.

A `Desk` stands for the scheduler's side (groups, policy, what it learns), the `Simulation` for the world
(nodes, frames, faults). Nothing here decides where a frame goes or when a run is late.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from farm.flow.run_times import SceneLoad
from farm.simulate.world import World


@dataclass(slots=True)
class SimRun:
    """A run of a frame on a node."""

    frame: int
    job: int
    node: int
    model: int
    begin: float
    load_s: float
    loaded: SceneLoad
    hangs: bool
    is_alive: bool = True


class Remedy(NamedTuple):
    """What is done about a run: a second copy on `node`; None: it is ended, to run again."""

    run: SimRun
    node: int | None


class Desk(Protocol):
    """The scheduler's side of a simulation."""

    looks_every_s: float | None
    """How often it is asked what is to be done about runs that stall; None: never."""

    def begin(self, simulation: Simulation) -> None: ...

    def arrived(self, job: int, now: float) -> None: ...

    def returned(self, job: int, count: int, now: float) -> None:
        """Tasks that are ready again; negative: some that were, are done meanwhile."""

    def ended(self, run: SimRun, now: float, *, is_complete: bool) -> None:
        """A run is over and its node free."""

    def gone(self, job: int, now: float) -> None:
        """All its tasks are done."""

    def node_is(self, node: int, now: float, *, is_up: bool) -> None: ...

    def decide(self, now: float) -> Sequence[tuple[int, int]]:
        """(node, job) for each task to be started now."""

    def look(self, runs: Sequence[SimRun], idle: Sequence[int], now: float) -> Sequence[Remedy]:
        """What is done about runs that stall, and with idle nodes in the tail."""

    def copied(self, run: SimRun, now: float) -> None:
        """A copy that the desk chose has started on the run's node."""


@dataclass(slots=True)
class Totals:
    busy_s: float = 0.0
    wasted_s: float = 0.0
    load_s: float = 0.0
    joules: float = 0.0
    starts: int = 0
    copies: int = 0
    kills: int = 0
    timeouts: int = 0


class Simulation:
    """One run of a world under one desk."""

    def __init__(self, world: World, desk: Desk) -> None:
        self.world = world
        self.desk = desk
        self.now = 0.0
        self.totals = Totals()
        self._events: list[tuple[float, int, str, Any]] = []
        self._count = 0
        nodes, frames, jobs = len(world.nodes), world.total, len(world.jobs)
        self.up = np.ones(nodes, bool)
        self.runs: list[SimRun | None] = [None] * nodes
        self.last_job = np.full(nodes, -1)
        self._cached: list[deque[int]] = [deque(maxlen=world.scenario.cached_scenes) for _ in world.nodes]
        """By node: the jobs whose files it has in its cache."""
        self._next = np.zeros(jobs, int)
        self._again: list[list[int]] = [[] for _ in range(jobs)]
        self.waiting = np.zeros(jobs, int)
        self.running = np.zeros(jobs, int)
        self.left = world.frames.copy()
        self._tries = np.zeros(frames, int)
        self._done = np.zeros(frames, bool)
        self._copies = np.zeros(frames, int)
        self.copied = np.zeros(frames, int)
        """Second copies in a frame's life."""
        self.begun = np.full(frames, np.nan)
        self.delivered = np.full(frames, np.nan)
        self.by_node = np.full(frames, -1)
        self.run_s = np.full(frames, np.nan)
        """Of the accepted run."""
        self._undone = frames

    def run(self) -> Simulation:
        """Until every frame is delivered."""
        world = self.world
        for job, spec in enumerate(world.jobs):
            self._push(spec.at, "arrived", job)
        for at, node in world.failures:
            self._push(at, "failed", node)
        self.desk.begin(self)
        if self.desk.looks_every_s is not None:
            self._push(self.desk.looks_every_s, "look", self.desk.looks_every_s)
        while self._undone:
            at, _, kind, what = heapq.heappop(self._events)
            self.now = at
            self._happen(kind, what)
            while self._events and self._events[0][0] <= at + 1e-9:
                _, _, kind, what = heapq.heappop(self._events)
                self._happen(kind, what)
            self._decide()
        return self

    def _push(self, at: float, kind: str, what: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, kind, what))

    def _happen(self, kind: str, what: Any) -> None:
        if kind == "arrived":
            self.waiting[what] = self.world.frames[what]
            self.desk.arrived(what, self.now)
        elif kind == "ended":
            if what.is_alive:
                self._deliver(what)
        elif kind == "timed out":
            if what.is_alive:
                self.totals.timeouts += 1
                self._give_up(what)
        elif kind == "failed":
            self._fail(what)
        elif kind == "noticed":
            self._return(what)
        elif kind == "repaired":
            self.up[what] = True
            self.desk.node_is(what, self.now, is_up=True)
        elif kind == "look":
            self._look()
            self._push(self.now + what, "look", what)

    def _decide(self) -> None:
        for node, job in self.desk.decide(self.now):
            self._start(node, self._pop(job))

    def copies_of(self, run: SimRun) -> int:
        """How many runs of its frame there are now."""
        return int(self._copies[run.frame])

    def is_able(self, job: int, node: int) -> bool:
        """Whether the node's memory does for the job."""
        return bool(np.isfinite(self.world.seconds[job, self.world.node_model[node]]))

    def _pop(self, job: int) -> int:
        self.waiting[job] -= 1
        if self._again[job]:
            return self._again[job].pop()
        frame = int(self.world.first[job] + self._next[job])
        self._next[job] += 1
        return frame

    def _start(self, node: int, frame: int) -> None:
        world = self.world
        job, model = int(world.job_of[frame]), int(world.node_model[node])
        attempt = min(int(self._tries[frame]), world.noise.shape[1] - 1)
        self._tries[frame] += 1
        self._copies[frame] += 1
        loaded = self._read(node, job)
        load_s = float(world.load_s[job])
        if loaded is SceneLoad.WARM:
            load_s = min(1.0, load_s)
        elif loaded is SceneLoad.CACHED:
            load_s *= world.scenario.cached_load
        work_s = float(
            world.content[frame]
            * world.seconds[job, model]
            * world.node_factor[node]
            * world.noise[frame, attempt]
        )
        run = SimRun(
            frame=frame,
            job=job,
            node=node,
            model=model,
            begin=self.now,
            load_s=load_s,
            loaded=loaded,
            hangs=bool(world.hangs[frame, attempt]),
        )
        if run.hangs:
            self._push(self.now + world.scenario.timeout_s, "timed out", run)
        else:
            self._push(world.runs_until(node, work_s + load_s, self.now), "ended", run)
        self.runs[node] = run
        self.running[job] += 1
        if math.isnan(self.begun[frame]):
            self.begun[frame] = self.now
        self.totals.starts += 1
        self.totals.load_s += load_s

    def _read(self, node: int, job: int) -> SceneLoad:
        """How a node comes by a job's scene; it has read it then."""
        was, self.last_job[node] = int(self.last_job[node]), job
        is_cached = job in self._cached[node]
        if is_cached:
            self._cached[node].remove(job)
        self._cached[node].append(job)
        return SceneLoad.WARM if was == job else SceneLoad.CACHED if is_cached else SceneLoad.COLD

    def _stop(self, run: SimRun, *, is_useful: bool) -> None:
        took_s = self.now - run.begin
        run.is_alive = False
        self.runs[run.node] = None
        self.running[run.job] -= 1
        self._copies[run.frame] -= 1
        self.totals.busy_s += took_s
        self.totals.joules += took_s * float(self.world.watts[run.model])
        if not is_useful:
            self.totals.wasted_s += took_s

    def _deliver(self, run: SimRun) -> None:
        frame, job = run.frame, run.job
        self._stop(run, is_useful=not self._done[frame])
        self.desk.ended(run, self.now, is_complete=True)
        if self._done[frame]:
            return
        self._done[frame] = True
        self._undone -= 1
        self.delivered[frame] = self.now
        self.by_node[frame] = run.node
        self.run_s[frame] = self.now - run.begin
        self.left[job] -= 1
        if frame in self._again[job]:
            self._again[job].remove(frame)
            self.waiting[job] -= 1
            self.desk.returned(job, -1, self.now)
        if self._copies[frame]:
            for other in self.runs:
                if other is not None and other.frame == frame:
                    self._stop(other, is_useful=False)
                    self.desk.ended(other, self.now, is_complete=False)
        if not self.left[job]:
            self.desk.gone(job, self.now)

    def _give_up(self, run: SimRun) -> None:
        self._stop(run, is_useful=False)
        self.desk.ended(run, self.now, is_complete=False)
        self._return(run)

    def _return(self, run: SimRun) -> None:
        frame, job = run.frame, run.job
        if not self._done[frame] and not self._copies[frame] and frame not in self._again[job]:
            self._again[job].append(frame)
            self.waiting[job] += 1
            self.desk.returned(job, 1, self.now)

    def _fail(self, node: int) -> None:
        self.up[node] = False
        self._push(self.now + self.world.scenario.repair_s, "repaired", node)
        run = self.runs[node]
        if run is not None:
            self._stop(run, is_useful=False)
            self.desk.ended(run, self.now, is_complete=False)
            self._push(self.now + self.world.scenario.silence_s, "noticed", run)
        self.last_job[node] = -1
        self._cached[node].clear()
        self.desk.node_is(node, self.now, is_up=False)

    def _look(self) -> None:
        runs = [run for run in self.runs if run is not None]
        idle = [n for n, run in enumerate(self.runs) if run is None and self.up[n]]
        for run, node in self.desk.look(runs, idle, self.now):
            if node is None:
                self.totals.kills += 1
                self._give_up(run)
                continue
            self.totals.copies += 1
            self.copied[run.frame] += 1
            self._start(node, run.frame)
            made = self.runs[node]
            assert made is not None
            self.desk.copied(made, self.now)
