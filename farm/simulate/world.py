"""What a simulated farm is made of: nodes, jobs, and a hidden truth that no policy sees.

A `Scenario` is plain data and a seed; `World` is drawn from it. All randomness is drawn here, before the
first event, so that every policy meets the same frames, faults and slow spells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from farm.errors import UserError
from farm.flow.classify import classify
from farm.flow.prices import shadow_prices
from farm.flow.recording import RecordedStep, Recording
from farm.model.ids import NodeId
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, NodeView
from farm.model.work import Profile, Tag
from farm.text import clean

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

REFERENCE: Final = (31.2, 600.0)
"""TFLOP/s and GB/s of the device on which a frame's seconds are stated (an A10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    fp32_tflops: float
    memory_bandwidth_gbps: float
    vram_gib: float
    watts: float
    kind: DeviceKind = DeviceKind.GPU
    pools: tuple[str, ...] = ()


DEVICES: Final[Mapping[str, DeviceModel]] = {
    name: DeviceModel(fp32_tflops=flops, memory_bandwidth_gbps=gbps, vram_gib=gib, watts=watts)
    for name, flops, gbps, gib, watts in (
        ("K80", 4.1, 240, 12, 150),
        ("T4", 8.1, 320, 16, 70),
        ("V100", 15.7, 900, 16, 300),
        ("P100", 9.5, 732, 16, 250),
        ("A10", 31.2, 600, 24, 150),
        ("A40", 37.4, 696, 48, 300),
        ("L4", 30.3, 300, 24, 72),
        ("L40S", 91.6, 864, 48, 350),
        ("RTX 3090", 35.6, 936, 24, 350),
        ("RTX 4090", 82.6, 1008, 24, 450),
        ("A100", 19.5, 2039, 80, 400),
        ("H100", 67.0, 3350, 80, 700),
        ("H200", 67.0, 4800, 141, 700),
    )
}
"""Peak figures from the vendors' data sheets."""

MIXED_FARM: Final[Mapping[str, int]] = {
    "T4": 16, "A10": 10, "A40": 10, "L4": 10, "L40S": 10, "RTX 3090": 14, "RTX 4090": 14, "A100": 8,
    "H100": 4, "H200": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that a simulated run follows from. Times in seconds unless the name says otherwise."""

    seed: int = 0
    farm: Mapping[str, int] = field(default_factory=lambda: dict(MIXED_FARM))
    """Device model -> how many nodes with one of it."""
    more: Mapping[str, int] = field(default_factory=dict)
    """Further nodes, with the jobs of the farm without them: "would four more help?"."""
    load: float = 0.8
    """Work offered over what the best possible spread could do; jobs arrive at random."""
    hours: float = 2.0
    """Of arrivals."""
    batch_jobs: int = 0
    """So many jobs at once at the start, instead of arrivals."""
    mix: tuple[float, float, float] = (0.5, 0.35, 0.15)
    """Jobs bound by arithmetic, by memory traffic, by both."""
    frames: tuple[int, int] = (50, 300)
    frame_s: float = 60.0
    """Median over jobs, on the reference device."""
    job_sd: float = 0.8
    content_sd: float = 0.2
    """From frame to frame; neighbours are alike (correlation 0.95)."""
    noise_sd: float = 0.05
    affinity_sd: float = 0.15
    """What no roofline knows: each job's own liking for each device model."""
    rate_sd: float = 0.12
    """How far real rates are off the data sheet."""
    measured_sd: float | None = 0.03
    """How well agents measure them at enrolment; None: they do not, and data sheets are all there is."""
    node_sd: float = 0.04
    lemons: float = 0.03
    """Share of nodes that are slow for no visible reason, by `lemon_factor`."""
    lemon_factor: float = 1.7
    wrong_tags: float = 0.0
    no_tags: float = 0.0
    """Share of jobs without a tag."""
    load_s: tuple[float, float] = (5.0, 20.0)
    """Scene load when a device begins another job's frames; one second otherwise."""
    cached_load: float = 1.0
    """Of that, what is left where the node has the scene's files in its cache: 1, its disk is as fast."""
    cached_scenes: int = 4
    """A node's cache holds the files of so many scenes, those that it read last."""
    vram_gib: tuple[tuple[int, float], ...] = ((8, 0.62), (14, 0.2), (20, 0.13), (40, 0.05))
    hung: float = 0.0
    """Share of runs that hang for good."""
    timeout_s: float = 3600.0
    """After which an operator's time-out ends a run: the only protection the baselines have."""
    slow_per_hour: float = 0.0
    slow_factor: tuple[float, float] = (2.0, 4.0)
    slow_s: tuple[float, float] = (300.0, 1800.0)
    mean_hours_to_failure: float = 0.0
    repair_s: float = 1200.0
    silence_s: float = 60.0
    """Until a dead node's work is given to others."""
    priorities: tuple[int, ...] = (50,)
    users: int = 1
    times: tuple[tuple[float, ...], ...] = ()
    """Measured instead of drawn: each row a workload's relative seconds on the farm's device models in their
    order (0: it does not run there). Jobs draw a row; shares, rates and affinity are then its own."""
    recording: Recording | None = None
    """Recorded instead of drawn: nodes (a slot each), jobs (a step each) and what each task took."""

    @classmethod
    def recorded(cls, recording: Recording) -> Scenario:
        """What was recorded, as it was: nothing is drawn on top."""
        return cls(
            recording=recording,
            farm={device.model: device.slots for device in recording.devices},
            hours=recording.hours,
            noise_sd=0.0,
            node_sd=0.0,
            lemons=0.0,
            rate_sd=0.0,
            measured_sd=0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    at: float
    frames: int
    demand: Demand
    profile: Profile
    tag: Tag
    priority: int = 50
    user: str = ""


class World:
    """Drawn from a scenario. Rows are jobs (a step each), columns device models."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        draw = self._stream("rates")
        self.models = [*scenario.farm, *(name for name in scenario.more if name not in scenario.farm)]
        count = len(self.models)
        self._offered = np.array([scenario.farm.get(name, 0) for name in self.models], float)
        self.number = self._offered + np.array([scenario.more.get(name, 0) for name in self.models], float)
        known = device_models(scenario.recording)
        specs = [known[name] for name in self.models]
        flops = np.array([spec.fp32_tflops for spec in specs])
        gbps = np.array([spec.memory_bandwidth_gbps for spec in specs])
        self.watts = np.array([spec.watts for spec in specs], float)
        vram = np.array([spec.vram_gib for spec in specs])
        luck = draw.normal(size=(count, 4))  # a row for each device model: further ones change none before
        self._true_flops = flops * np.exp(scenario.rate_sd * luck[:, 0])
        self._true_gbps = gbps * np.exp(scenario.rate_sd * luck[:, 1])
        told_flops, told_gbps, source = flops, gbps, "catalogue"
        if scenario.measured_sd is not None:
            told_flops = self._true_flops * np.exp(scenario.measured_sd * luck[:, 2])
            told_gbps = self._true_gbps * np.exp(scenario.measured_sd * luck[:, 3])
            source = "measured"
        of_node = np.repeat(np.arange(count), self._offered.astype(int))
        more = np.repeat(np.arange(count), (self.number - self._offered).astype(int))
        shuffled = of_node[self._stream("order").permutation(len(of_node))]
        self.node_model: Ints = np.concatenate([shuffled, more])
        nodes = len(self.node_model)
        self.node_factor = np.exp(self._stream("factors").normal(0, scenario.node_sd, nodes))
        self.node_factor[self._stream("lemons").random(nodes) < scenario.lemons] *= scenario.lemon_factor
        pools = sorted({pool for spec in specs for pool in spec.pools})
        self.nodes = [
            NodeView(
                id=NodeId(f"n{at:04d}"),
                capabilities=Capabilities(
                    cpus=16,
                    memory_mib=131_072,
                    pools=_sim_pools(specs[model], pools),
                    devices=(
                        Device(
                            id="gpu",
                            kind=specs[model].kind,
                            model=self.models[model],
                            fp32_tflops=float(told_flops[model]),
                            memory_bandwidth_gbps=float(told_gbps[model]),
                            vram_mib=int(vram[model] * 1024),
                            source=source,
                        ),
                    ),
                ),
            )
            for at, model in enumerate(self.node_model)
        ]
        self.vram_gib = vram
        drawn = self._draw_jobs()
        self.jobs = [each["job"] for each in drawn]
        self.frames: Ints = np.array([job.frames for job in self.jobs], np.int64)
        self.first: Ints = np.concatenate([[0], np.cumsum(self.frames)]).astype(np.int64)
        self.total = int(self.first[-1])
        self.job_of: Ints = np.repeat(np.arange(len(self.jobs)), self.frames)
        self.content = np.concatenate([each["content"] for each in drawn]) if drawn else np.zeros(0)
        self.load_s = np.array([each["load_s"] for each in drawn])
        self.seconds = np.array([each["seconds"] for each in drawn]).reshape(len(drawn), count)
        """Mean of a frame by job and device model; inf: its VRAM does not do."""
        with np.errstate(divide="ignore"):
            rate = np.where(np.isfinite(self.seconds), self.number / self.seconds, 0.0)
        there = np.where(np.isfinite(self.seconds), self.number, 0.0)
        self.mean_s = there.sum(axis=1) / rate.sum(axis=1)
        """Of a frame on the farm-mean node."""
        self._draw_faults(nodes)

    def _stream(self, what: str, number: int = 0) -> np.random.Generator:
        """Randomness of its own for each thing: more nodes must not change the jobs."""
        return np.random.default_rng([1000 + self.scenario.seed, *what.encode(), number])

    def _draw_jobs(self) -> list[dict[str, Any]]:
        scenario = self.scenario
        if scenario.recording is not None:
            return [self._recorded(step, scenario.recording) for step in scenario.recording.steps]
        if scenario.batch_jobs:
            return [self._draw_job("job", 0.0, at) for at in range(scenario.batch_jobs)]
        # The rate of arrivals follows from how long the best spread of a sample takes.
        sample = [self._draw_job("sample", 0.0, at) for at in range(60)]
        seconds = np.array([each["seconds"] for each in sample])
        frames = np.array([each["job"].frames for each in sample], float)
        per_second = len(sample) / shadow_prices(seconds, frames, self._offered).bound_s * scenario.load
        jobs: list[dict[str, Any]] = []
        draw = self._stream("arrivals")
        at = 0.0
        while True:
            at += draw.exponential(1 / per_second)
            if at > scenario.hours * 3600:
                return jobs
            jobs.append(self._draw_job("job", at, len(jobs)))

    def _draw_job(self, stream: str, at: float, number: int) -> dict[str, Any]:
        scenario = self.scenario
        draw = self._stream(stream, number)
        kind = int(draw.choice(3, p=scenario.mix))
        share = float((draw.beta(12, 2), draw.beta(2, 10), draw.uniform(0.3, 0.7))[kind])
        frames = int(draw.integers(scenario.frames[0], scenario.frames[1] + 1))
        scale = scenario.frame_s * math.exp(draw.normal(0, scenario.job_sd))
        steps = draw.normal(size=frames)
        wander = np.empty(frames)
        wander[0] = steps[0]
        for frame in range(1, frames):
            wander[frame] = 0.95 * wander[frame - 1] + math.sqrt(1 - 0.95**2) * steps[frame]
        content = np.exp(scenario.content_sd * wander - 0.5 * scenario.content_sd**2)
        sizes, odds = zip(*scenario.vram_gib, strict=True)
        need_gib = int(draw.choice(sizes, p=odds))
        load_s = float(draw.uniform(*scenario.load_s))
        priority = int(draw.choice(scenario.priorities))
        is_wrong, is_untagged = draw.random() < scenario.wrong_tags, draw.random() < scenario.no_tags
        row = int(draw.integers(max(len(scenario.times), 1)))
        affinity = np.exp(draw.normal(0, scenario.affinity_sd, len(self.models)))
        if scenario.times:
            relative = np.array(scenario.times[row])
            with np.errstate(divide="ignore"):
                seconds = np.where(relative > 0, scale * relative, np.inf)
            # What a user would guess of a measured workload: where it is fast tells what binds it.
            share = _guessed_share(relative, self._true_flops, self._true_gbps)
            need_gib = 0
        else:
            arithmetic = share * REFERENCE[0] / self._true_flops
            traffic = (1 - share) * REFERENCE[1] / self._true_gbps
            seconds = scale * (arithmetic + traffic) * affinity
            seconds = np.where(need_gib <= self.vram_gib, seconds, np.inf)
        is_compute = (share >= 0.5) != is_wrong
        tag = Tag.COMPUTE if is_compute else Tag.BANDWIDTH
        if is_untagged:
            tag = Tag.UNKNOWN
        return {
            "job": SimJob(
                at=at,
                frames=frames,
                demand=Demand(gpus=1, vram_mib=need_gib * 1024),
                profile=classify(tag, {}, ""),
                tag=tag,
                priority=priority,
                user=f"user{number % scenario.users}",
            ),
            "content": content,
            "load_s": load_s,
            "seconds": seconds,
        }

    def _recorded(self, step: RecordedStep, recording: Recording) -> dict[str, Any]:
        known = device_models(recording)
        kind = DeviceKind.GPU if step.gpus else DeviceKind.CPU

        def alike(model: str) -> bool:
            return (known[model].kind is DeviceKind.CPU) == (kind is DeviceKind.CPU)

        def roofline(model: str) -> float:
            spec = known[model]
            arithmetic = step.compute_share * REFERENCE[0] / spec.fp32_tflops
            return arithmetic + (1 - step.compute_share) * REFERENCE[1] / spec.memory_bandwidth_gbps

        scales = [math.log(value / roofline(of)) for of, value in step.seconds.items() if alike(of)]
        scale = math.exp(sum(scales) / len(scales)) if scales else math.inf

        def seconds_on(model: str) -> float:
            spec = known[model]
            is_able = alike(model) and spec.vram_gib * 1024 >= step.vram_mib
            # What is added is in every pool.
            is_able = is_able and (not step.pool or not spec.pools or step.pool in spec.pools)
            return step.seconds.get(model, scale * roofline(model)) if is_able else math.inf

        seconds = np.array([seconds_on(model) for model in self.models])
        if not np.isfinite(seconds).any():
            raise UserError(f"no device of the simulated farm can run step '{clean(step.name, limit=60)}'")
        return {
            "job": SimJob(
                at=step.at_s,
                frames=len(step.content),
                demand=Demand(gpus=step.gpus, vram_mib=step.vram_mib, pool=f"{step.pool}/{kind}"),
                profile=step.profile,
                tag=step.profile.tag,
                priority=step.priority,
                user=step.user,
            ),
            "content": np.array(step.content),
            "load_s": step.load_s,
            "seconds": seconds,
        }

    def _draw_faults(self, nodes: int) -> None:
        scenario = self.scenario
        tries = 4
        self.noise = np.exp(self._stream("noise").normal(0, scenario.noise_sd, (self.total, tries)))
        self.hangs = self._stream("hangs").random((self.total, tries)) < scenario.hung
        self.slow: list[list[tuple[float, float, float]]] = [[] for _ in range(nodes)]
        """By node: (from, to, factor)."""
        self.failures: list[tuple[float, int]] = []
        end = (scenario.hours + 30) * 3600
        for node in range(nodes):
            draw = self._stream("node", node)
            if scenario.slow_per_hour > 0:
                at = draw.exponential(3600 / scenario.slow_per_hour)
                while at < end:
                    lasts = draw.uniform(*scenario.slow_s)
                    self.slow[node].append((at, at + lasts, draw.uniform(*scenario.slow_factor)))
                    at += lasts + draw.exponential(3600 / scenario.slow_per_hour)
            if scenario.mean_hours_to_failure > 0:
                at = draw.exponential(3600 * scenario.mean_hours_to_failure)
                while at < end:
                    self.failures.append((at, node))
                    at += scenario.repair_s + draw.exponential(3600 * scenario.mean_hours_to_failure)

    def runs_until(self, node: int, work_s: float, begin: float) -> float:
        """When work of so many seconds at full speed, begun then, is done on a node with its slow spells."""
        now = begin
        for start, end, factor in self.slow[node]:
            if end <= now:
                continue
            if start > now:
                if now + work_s <= start:
                    return now + work_s
                work_s -= start - now
                now = start
            if now + work_s * factor <= end:
                return now + work_s * factor
            work_s -= (end - now) / factor
            now = end
        return now + work_s

    def bound_s(self) -> float:
        """No schedule drains all jobs sooner, even if all were there at once (noise, load and tail apart)."""
        weight = np.bincount(self.job_of, self.content, len(self.jobs)).astype(float)
        return shadow_prices(self.seconds, weight, self.number, rounds=600).bound_s


def node_number(node_id: NodeId) -> int:
    """Its index in `World.nodes`."""
    return int(node_id[1:])


def device_models(recording: Recording | None) -> dict[str, DeviceModel]:
    """Those that a simulated farm may have, by name: the data sheets', and the recorded farm's own."""
    known = dict(DEVICES)
    for device in recording.devices if recording is not None else ():
        known[device.model] = DeviceModel(
            fp32_tflops=device.fp32_tflops or REFERENCE[0],
            memory_bandwidth_gbps=device.memory_bandwidth_gbps or REFERENCE[1],
            vram_gib=(device.vram_mib or 0) / 1024,
            watts=device.watts or 0.0,
            kind=device.kind,
            pools=device.pools,
        )
    return known


def _sim_pools(spec: DeviceModel, every: Sequence[str]) -> tuple[str, ...]:
    """Work for CPUs must find CPUs only: here a node has one device. What is added is in every pool."""
    kind = DeviceKind.CPU if spec.kind is DeviceKind.CPU else DeviceKind.GPU
    return tuple(f"{pool}/{kind}" for pool in ("", *(spec.pools or every)))


def _guessed_share(relative: Floats, flops: Floats, gbps: Floats) -> float:
    known = relative > 0
    if known.sum() < 2:
        return 0.5
    at = np.flatnonzero(known)
    ridge = flops[at] / gbps[at]
    most, least = at[int(ridge.argmax())], at[int(ridge.argmin())]
    ratio = math.log(relative[least] / relative[most])
    by_flops, by_gbps = math.log(flops[most] / flops[least]), math.log(gbps[most] / gbps[least])
    if by_flops == by_gbps:
        return 0.5
    return min(max((ratio - by_gbps) / (by_flops - by_gbps), 0.0), 1.0)
