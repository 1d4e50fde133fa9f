"""Simulated runs that stall, and devices that idle in the tail: what the farm's own rules do about them.

`farm.flow.stall` and `farm.flow.migrate` are told what a node tells of a renderer that is silent as it works.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from farm.flow import migrate
from farm.flow.migrate import ActionKind, Case, FreeDevice, Runner
from farm.flow.stall import Expectation, judge
from farm.model.ids import AttemptId
from farm.model.stalls import Evidence, StallPolicy
from farm.simulate.clock import Remedy, SimRun, Simulation
from farm.simulate.world import node_number

LOOK_EVERY_S: Final = 5.0
"""As the scheduler does (`farm.control.stallwatch`)."""
AFTER_S: Final = 120.0
"""The farm's patience: the default of `stall_after_s` in the settings."""
MOST_COPIES_AT_ONCE: Final = 10

Expected = Callable[[int, int], Expectation | None]
"""(job, node) -> what a frame of the job takes there; None: no run has told."""


def evidence(run: SimRun, now: float) -> Evidence:
    """What the run's node tells: nothing printed yet, and the CPU busy unless it hangs."""
    age_s = now - run.begin
    idle_s = age_s if run.hangs else 0.0
    return Evidence(
        attempt_id=AttemptId(str(run.frame)),
        age_s=age_s,
        processes=1,
        cores=0.0 if run.hangs else 1.0,
        cpu_idle_s=idle_s,
        io_idle_s=idle_s,
        silent_s=age_s,
    )


def remedies(
    simulation: Simulation, runs: Sequence[SimRun], idle: Sequence[int], expected: Expected, now: float
) -> list[Remedy]:
    """Of one look at everything that runs. idle: nodes that a copy could start on."""
    found: list[Remedy] = []
    left = dict.fromkeys(idle)
    well = []
    for run in runs:
        usual = expected(run.job, run.node)
        verdict = judge(evidence(run, now), usual, after_s=AFTER_S)
        left_s = None if usual is None else migrate.left_s(usual, now - run.begin)
        if not verdict.is_stall:
            well.append((run, left_s))
            continue
        case = Case(
            verdict=verdict,
            policy=StallPolicy.MIGRATE,
            can_be_copied=_can_be_copied(simulation, run),
            has_company=simulation.copies_of(run) > 1,
            model=simulation.world.models[run.model],
            age_s=now - run.begin,
            left_s=left_s,
            after_s=AFTER_S,
        )
        action = migrate.decide(case, _places(simulation, run, left, expected))
        if action.kind is ActionKind.COPY and action.place is not None:
            node = node_number(action.place.node_id)
            del left[node]
            found.append(Remedy(run, node))
        elif action.kind is ActionKind.MOVE:
            found.append(Remedy(run, None))
    if not found and left and not simulation.waiting.any():
        found += _speculations(simulation, well, left, expected, now)
    return found


def _speculations(
    simulation: Simulation,
    well: Sequence[tuple[SimRun, float | None]],
    idle: Collection[int],
    expected: Expected,
    now: float,
) -> list[Remedy]:
    runners = [
        Runner(
            index=at,
            model=simulation.world.models[run.model],
            age_s=now - run.begin,
            left_s=left_s,
            places=_places(simulation, run, idle, expected),
        )
        for at, (run, left_s) in enumerate(well)
        if left_s is not None and left_s > migrate.LEAST_GAIN_S * AFTER_S and _can_be_copied(simulation, run)
    ]
    chosen = migrate.speculate(runners, after_s=AFTER_S, limit=MOST_COPIES_AT_ONCE)
    return [Remedy(well[index][0], node_number(place.node_id)) for index, place, _ in chosen]


def _can_be_copied(simulation: Simulation, run: SimRun) -> bool:
    return simulation.copies_of(run) == 1 and simulation.copied[run.frame] < migrate.MOST_COPIES


def _places(
    simulation: Simulation, run: SimRun, idle: Collection[int], expected: Expected
) -> tuple[FreeDevice, ...]:
    world = simulation.world
    found = []
    for node in idle:
        if not simulation.is_able(run.job, node):
            continue
        usual = expected(run.job, node)
        found.append(
            FreeDevice(
                node_id=world.nodes[node].id,
                device_id="gpu",
                model=world.models[int(world.node_model[node])],
                seconds=None if usual is None else usual.median_s * usual.node_factor,
            )
        )
    return tuple(found)
