"""The virtual clock with the farm's own verbs: nothing lost, the same again, and better than a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from farm.flow import match
from farm.simulate.clock import Desk, Simulation
from farm.simulate.desks import BoardDesk, PlanDesk, PullDesk, StaticDesk
from farm.simulate.metrics import Figures, figures
from farm.simulate.world import Scenario, World

SMALL = Scenario(
    seed=3, farm={"T4": 4, "A10": 3, "RTX 4090": 3, "A100": 2}, load=0.8, hours=0.4, frames=(10, 40)
)
FAULTY = replace(
    SMALL, hung=0.02, timeout_s=900.0, slow_per_hour=0.5, mean_hours_to_failure=3.0, repair_s=300.0
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


def test_hung_frames_are_overtaken_long_before_their_time_out() -> None:
    slow = replace(SMALL, hung=0.02, timeout_s=3600.0)
    ours, fifo = played(slow, "predictive")[1], played(slow, "fifo")[1]
    assert ours.sd_s < 0.3 * fifo.sd_s
    assert ours.copies > 0


def test_measured_tables_take_the_place_of_drawn_speeds() -> None:
    farm = {"T4": 3, "A100": 3}
    world = World(replace(SMALL, farm=farm, times=((1.0, 0.25), (1.0, 0.0))))
    ratio = world.seconds[:, 1] / world.seconds[:, 0]
    assert set(np.round(ratio[np.isfinite(ratio)], 6)) == {0.25}
    assert np.isinf(ratio).any()
