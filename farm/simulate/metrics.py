"""What a simulated run comes to, in the figures that `docs/matching.md` defines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farm.simulate.clock import Simulation

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds unless the name says otherwise. A frame's completion: from its first start to delivery."""

    sd_s: float
    """Within jobs, pooled, of completion: all frames, none removed. The headline."""
    log_sd: float
    floor_sd_s: float
    """The same frames on the farm-mean node: what content and noise alone make."""
    p50_s: float
    p95_s: float
    p99_s: float
    turnaround_s: float
    """Of jobs, mean: submitted to last frame delivered."""
    turnaround_p95_s: float
    wait_s: float
    """Of frames, mean: submitted to first start."""
    makespan_s: float
    """From the first job's submission to the last frame's delivery."""
    gpu_hours: float
    wasted: float
    """Share of GPU time in runs whose frame another run delivered, or that were ended."""
    kwh: float
    frames: int
    jobs: int
    bound_gpu_hours: float
    """What the best spread of the same work would take."""
    copies: int
    ended: int
    """Runs that were taken for hung, or ran into a time-out."""


def figures(simulation: Simulation) -> Figures:
    world = simulation.world
    completion = simulation.delivered - simulation.begun
    jobs, job_of = len(world.jobs), world.job_of
    submitted = np.array([job.at for job in world.jobs])
    finished = np.zeros(jobs)
    np.maximum.at(finished, job_of, simulation.delivered)
    turnaround = finished - submitted
    typical = world.mean_s[job_of] * world.content
    totals = simulation.totals
    return Figures(
        sd_s=pooled_sd(completion, job_of, jobs),
        log_sd=pooled_sd(np.log(np.maximum(completion, 1e-3)), job_of, jobs),
        floor_sd_s=math.hypot(
            pooled_sd(typical, job_of, jobs),
            world.scenario.noise_sd * float(np.sqrt(np.mean(typical**2))),
        ),
        p50_s=float(np.percentile(completion, 50)),
        p95_s=float(np.percentile(completion, 95)),
        p99_s=float(np.percentile(completion, 99)),
        turnaround_s=float(turnaround.mean()),
        turnaround_p95_s=float(np.percentile(turnaround, 95)),
        wait_s=float((simulation.begun - submitted[job_of]).mean()),
        makespan_s=float(simulation.delivered.max() - submitted.min()),
        gpu_hours=totals.busy_s / 3600,
        wasted=totals.wasted_s / totals.busy_s,
        kwh=totals.joules / 3.6e6,
        frames=world.total,
        jobs=jobs,
        bound_gpu_hours=world.bound_s() * len(world.nodes) / 3600,
        copies=totals.copies,
        ended=totals.kills + totals.timeouts,
    )


def pooled_sd(values: Floats, job_of: npt.NDArray[np.int64], jobs: int) -> float:
    """The standard deviation around each job's mean, all values counted."""
    means = np.bincount(job_of, values, jobs) / np.maximum(np.bincount(job_of, minlength=jobs), 1)
    return math.sqrt(float(np.mean((values - means[job_of]) ** 2)))
