"""What a farm did, as plain data: enough to play it again on a virtual clock with other nodes or weights."""

from __future__ import annotations

from dataclasses import dataclass

from farm.model.machines import DeviceKind
from farm.model.work import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDevice:
    """A device model of the farm."""

    model: str
    kind: DeviceKind
    slots: int
    """On all nodes together."""
    pools: tuple[str, ...] = ()
    fp32_tflops: float | None = None
    memory_bandwidth_gbps: float | None = None
    vram_mib: int | None = None
    watts: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A step of a job, which came when it could first start."""

    name: str
    at_s: float
    """After the recording's begin."""
    user: str
    priority: int
    profile: Profile
    """As declared: what the policies are told."""
    compute_share: float
    """As learnt: for device models that the farm did not have."""
    gpus: int
    """0 or 1: work for several GPUs is left out."""
    vram_mib: int
    pool: str
    load_s: float
    """To load the scene."""
    seconds: dict[str, float]
    """Device model -> what a task takes there, loading apart, by what was learnt."""
    content: tuple[float, ...]
    """For each task how much longer it took than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    hours: float
    devices: tuple[RecordedDevice, ...]
    steps: tuple[RecordedStep, ...]
