"""Run times as plain data: what teaches a model of them, what it has learnt, and what is asked of it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from farm.flow.rays import ray_factor
from farm.model.machines import Device, DeviceKind

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a device model does; None is not known. FLOP/s in 10^12, byte/s in 10^9."""

    fp32_tflops: float | None
    memory_bandwidth_gbps: float | None
    source: str = "catalogue"
    is_cpu: bool = False
    ray_factor: float = 1.0
    """What one of its FLOPs gives a ray tracer, by its data sheet; 1 is usual."""
    ray_rate_mrays: float | None = None
    """Measured; 10^6 rays/s."""


class SceneLoad(enum.IntEnum):
    """How a run comes by its scene."""

    COLD = 0
    WARM = 1
    """The device's run before was the same step's."""
    CACHED = 2
    """The node had read the scene's files for another run lately."""


class LoadTimes(NamedTuple):
    """Seconds to load a step's scene."""

    cold: float
    warm: float
    cached: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One ended attempt, as the model learns from it."""

    step: str
    model: str
    node: str
    runtime_s: float
    """Load and rendering together."""
    load_s: float = 0.0
    loaded: SceneLoad = SceneLoad.COLD
    is_censored: bool = False
    """It was stopped before its end: it would have taken longer."""
    vram_peak_mib: int | None = None
    still_running: int = 0
    """Other runs of the step when it ended: so much later the next task to start comes than this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A task's time on a device, in seconds."""

    median_s: float
    """Rendering and loading."""
    upper_s: float
    """The quantile asked for."""
    load_s: float
    sd: float
    """Of the logarithm of the rendering time."""
    runs: int
    """Of this step on this device model."""


def model_key(device: Device) -> str:
    """What tells device models apart."""
    return f"{device.kind}:{device.model}" if device.kind is DeviceKind.MIG else device.model


def rates_of(device: Device) -> Rates:
    return Rates(
        fp32_tflops=device.fp32_tflops,
        memory_bandwidth_gbps=device.memory_bandwidth_gbps,
        source=device.source,
        is_cpu=device.kind is DeviceKind.CPU,
        ray_factor=ray_factor(device),
        ray_rate_mrays=device.ray_rate_mrays,
    )


@dataclass(slots=True, kw_only=True)
class StepState:
    """All that is known of a step, as plain data. Only device models that were tried have residuals."""

    log_weights: list[float]
    base: dict[str, list[float]]
    """Device model -> log roofline for each share, as it was when the step began."""
    mean: list[list[float]]
    """For each share: scale, level, then a residual for each of `tried`."""
    covariance: list[list[float]]
    tried: list[str]
    runs: dict[str, int]
    calibration: float = 1.0
    load_s: list[float] = field(default_factory=lambda: [0.0] * len(SceneLoad))
    """Mean load by `SceneLoad`."""
    load_runs: list[float] = field(default_factory=lambda: [0.0] * len(SceneLoad))
    vram_peak_mib: int = 0
    is_ray_traced: bool = False
    still_running: int = 0
    """When its last run ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseState:
    """What projects and users have used of the farm, in price units over their share."""

    at: float | None = None
    """When it was counted, on the database's clock: it halves with time from there."""
    projects: dict[str, float] = field(default_factory=dict)
    users: Sequence[tuple[str, str, float]] = ()
    """(project, user, use)."""


@dataclass(slots=True, kw_only=True)
class FarmState:
    """What all steps share, as plain data."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Device model -> its Rates and what was learnt of them: log corrections and their variances."""
    nodes: dict[str, list[float]] = field(default_factory=dict)
    """Node -> [log factor, variance]."""
    scale: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Of steps so far: count, mean of log scale, sum of squared deviations."""
    load: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    """Cold sum, cold count, warm sum, warm count; seconds."""
    misfit: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Of the roofline, squared, over what was expected of it: count, sum."""
    prices: dict[str, list[float]] = field(default_factory=dict)
    """Device model -> [slots that take work, price of a second in parts of the whole farm's]. For people."""
    bound_s: float = 0.0
    """In which time no schedule drains what waited when the prices were set."""
    use: dict[str, Any] = field(default_factory=dict)
    """A UseState, as plain data."""


class RunTimes(Protocol):
    """What the board asks of a run-time model; `RunTimeModel` is one."""

    steps: dict[str, int]
    models: dict[str, int]
    median_s: Floats
    sd: Floats

    def refresh(self) -> None: ...

    def load_s(self, row: int) -> LoadTimes: ...

    def has_run_on(self, rows: Ints) -> Bools: ...

    def node_factor(self, node: str) -> float: ...
