"""The virtual clock with the farm's own verbs: nothing lost, the same again, and better than a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from farm.control import stallwatch as real
from farm.flow import match
from farm.flow.groups import Group
from farm.flow.predictive import Predictive
from farm.flow.run_times import Run
from farm.model.ids import StepId
from farm.model.machines import Use
from farm.settings import Settings
from farm.simulate import stallwatch as simulated
from farm.simulate.clock import Desk, SimRun, Simulation
from farm.simulate.desks import Bare, BoardDesk, PlanDesk, PullDesk, StaticDesk, group_of
from farm.simulate.metrics import Figures, figures
from farm.simulate.world import Scenario, World, node_number

SMALL = Scenario(
    seed=3, farm={"T4": 4, "A10": 3, "RTX 4090": 3, "A100": 2}, load=0.8, hours=0.4, frames=(10, 40)
)
FAULTY = replace(
    SMALL, hung=0.02, timeout_s=900.0, slow_per_hour=0.5, mean_hours_to_failure=3.0, repair_s=300.0
)
FEW = Scenario(
    farm={"T4": 2, "L4": 1, "A10": 2, "RTX 4090": 1, "A100": 1, "H100": 1},
    batch_jobs=6,
    frames=(25, 45),
    job_sd=0.5,
    load_s=(0.0, 0.0),
    vram_gib=((4, 1.0),),
    lemons=0.0,
)
DESKS: dict[str, Callable[[], Desk]] = {
    "static": StaticDesk,
    "fifo": lambda: PlanDesk(match.fifo),
    "fitness": lambda: PlanDesk(match.fitness),
    "sticky": lambda: PullDesk("sticky"),
    "tags": lambda: PullDesk("tags"),
    "predictive": BoardDesk,
    "oracle": lambda: BoardDesk(is_oracle=True),
}


def played(scenario: Scenario, desk: str) -> tuple[Simulation, Figures]:
    simulation = Simulation(World(scenario), DESKS[desk]()).run()
    return simulation, figures(simulation)


@pytest.mark.parametrize("desk", DESKS)
def test_every_frame_is_delivered_once_whatever_breaks(desk: str) -> None:
    simulation, told = played(FAULTY, desk)
    assert np.isfinite(simulation.delivered).all()
    assert (simulation.delivered > simulation.begun).all()
    assert not simulation.left.any()
    assert told.frames == len(simulation.delivered)
    assert told.gpu_hours > 0


@pytest.mark.parametrize("desk", ["fifo", "predictive"])
def test_the_same_seed_gives_the_same_run_and_another_does_not(desk: str) -> None:
    assert played(FAULTY, desk)[1] == played(FAULTY, desk)[1]
    assert played(FAULTY, desk)[1] != played(replace(FAULTY, seed=4), desk)[1]


def test_every_policy_meets_the_same_frames_and_faults() -> None:
    one, other = World(FAULTY), World(FAULTY)
    assert (one.content == other.content).all()
    assert (one.hangs == other.hangs).all()
    assert one.slow == other.slow
    assert one.failures == other.failures


def test_a_device_never_has_two_runs_and_never_one_that_does_not_fit() -> None:
    simulation, _ = played(SMALL, "predictive")
    world = simulation.world
    begun = simulation.delivered - simulation.run_s
    for node in range(len(world.nodes)):
        mine = np.flatnonzero(simulation.by_node == node)
        mine = mine[np.argsort(begun[mine])]
        assert (begun[mine][1:] >= simulation.delivered[mine][:-1] - 1e-6).all()
        model = int(world.node_model[node])
        assert np.isfinite(world.seconds[world.job_of[mine], model]).all()


def test_no_schedule_beats_the_bound() -> None:
    for desk in ("predictive", "oracle"):
        simulation, told = played(replace(SMALL, batch_jobs=12, noise_sd=0.0, node_sd=0.0, lemons=0.0), desk)
        assert told.makespan_s > simulation.world.bound_s()


def test_prediction_beats_a_queue_on_a_mixed_farm() -> None:
    ours, fifo = played(SMALL, "predictive")[1], played(SMALL, "fifo")[1]
    assert ours.sd_s < 0.7 * fifo.sd_s
    assert ours.gpu_hours < 0.95 * fifo.gpu_hours
    assert ours.makespan_s < 1.1 * fifo.makespan_s


def test_what_is_gained_hangs_little_on_how_long_frames_are() -> None:
    def gained(frame_s: float) -> float:
        """Of the spread, where jobs come one after the other and nothing is known of any."""
        ratios = []
        for seed in range(20, 26):
            world = World(replace(FEW, seed=seed, frame_s=frame_s))
            world.jobs = [replace(job, at=0.5 * frame_s * at) for at, job in enumerate(world.jobs)]
            ours = figures(Simulation(world, BoardDesk(mends=False)).run())
            ratios.append(ours.sd_s / figures(Simulation(world, PlanDesk(match.fifo)).run()).sd_s)
        return 1 - float(np.mean(ratios))

    # A task is taken for a minute's work before anything is known.
    assert gained(3.0) > gained(60.0) - 0.25


def test_hung_frames_are_overtaken_long_before_their_time_out() -> None:
    slow = replace(SMALL, hung=0.02, timeout_s=3600.0)
    ours, fifo = played(slow, "predictive")[1], played(slow, "fifo")[1]
    assert ours.sd_s < 0.3 * fifo.sd_s
    assert ours.ended > 0


def test_measured_tables_take_the_place_of_drawn_speeds() -> None:
    farm = {"T4": 3, "A100": 3}
    world = World(replace(SMALL, farm=farm, times=((1.0, 0.25), (1.0, 0.0))))
    ratio = world.seconds[:, 1] / world.seconds[:, 0]
    assert set(np.round(ratio[np.isfinite(ratio)], 6)) == {0.25}
    assert np.isinf(ratio).any()


class SchedulerDesk(Bare):
    """The predictive policy fed as the scheduler feeds it: all that waits and runs, read anew each time."""

    def begin(self, simulation: Simulation) -> None:
        super().begin(simulation)
        self.policy = Predictive()
        self.groups: dict[int, Group] = {}
        self.taught: list[Run] = []
        self.decided: list[tuple[float, list[tuple[int, int]]]] = []

    def arrived(self, job: int, now: float) -> None:
        self.groups[job] = group_of(self.world, job)

    def ended(self, run: SimRun, now: float, *, is_complete: bool) -> None:
        run_of = Run(
            step=str(run.job),
            model=self.world.models[run.model],
            node=self.world.nodes[run.node].id,
            runtime_s=now - run.begin,
            load_s=run.load_s,
            loaded=run.loaded,
            is_censored=not is_complete,
        )
        self.taught.append(run_of)

    def decide(self, now: float) -> Sequence[tuple[int, int]]:
        self.policy.learn(self.taught)
        self.taught.clear()
        simulation = self.simulation
        groups = []
        for job, group in self.groups.items():
            ready, running = int(simulation.waiting[job]), int(simulation.running[job])
            if ready:
                groups.append(replace(group, ready=ready, running=running, job_running=running))
        views = []
        for view, run in zip(self.world.nodes, simulation.runs, strict=True):
            use = () if run is None else (Use(device_id="gpu", step_id=StepId(run.job), since=run.begin),)
            views.append(replace(view, uses=use))
        plan = self.policy.plan(groups, views, now=now, hour=12.0, limit=len(views))
        chosen = [(node_number(a.node_id), int(a.step_id)) for a in plan for _ in range(a.count)]
        self.decided.append((now, sorted(chosen)))
        return chosen


class WatchedDesk(BoardDesk):
    """The simulation's own, with what it decides while every job that has come has tasks waiting."""

    def begin(self, simulation: Simulation) -> None:
        super().begin(simulation)
        self.decided: list[tuple[float, list[tuple[int, int]]]] = []

    def decide(self, now: float) -> Sequence[tuple[int, int]]:
        simulation = self.simulation
        came = [job for job, spec in enumerate(self.world.jobs) if spec.at <= now]
        all_wait = all(simulation.waiting[job] > 0 for job in came)
        chosen = super().decide(now)
        if all_wait and len(self.decided) == self.asked:
            self.decided.append((now, sorted(chosen)))
        self.asked += 1
        return chosen

    asked = 0


@pytest.mark.parametrize("seed", range(4))
def test_the_simulation_decides_as_the_scheduler_does(seed: int) -> None:
    # What runs has its due end in the tail; then the board hears less of a step with nothing left to start.
    scenario = replace(SMALL, seed=seed, batch_jobs=8, frames=(25, 60), frame_s=20.0)
    world = World(scenario)
    world.jobs = [replace(job, at=5.0 * number) for number, job in enumerate(world.jobs)]
    scheduler, watched = SchedulerDesk(), WatchedDesk(mends=False)
    Simulation(world, scheduler).run()
    Simulation(world, watched).run()
    count = len(watched.decided)
    assert count > 50
    assert scheduler.decided[:count] == watched.decided


def test_stalls_are_looked_for_as_the_scheduler_does() -> None:
    assert simulated.LOOK_EVERY_S == real.LOOK_EVERY_S
    assert simulated.MOST_COPIES_AT_ONCE == real.MOST_ACTIONS
    assert Settings().stall_after_s == simulated.AFTER_S
