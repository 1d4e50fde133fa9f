"""One try at a task on one node. The row of an attempt *is* the node's lease."""

from __future__ import annotations

from dataclasses import dataclass

from farm.model.decisions import Decision
from farm.model.ids import AttemptId, JobId, NodeId, StepId, TaskId
from farm.model.probes import Probe
from farm.model.stalls import Evidence, Origin, Stall
from farm.model.states import AttemptState, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file that was verified and put under its final name."""

    path: str
    size_bytes: int
    width: int | None = None
    height: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """What an attempt used of its device (or devices, together). None: the device cannot say."""

    device_model: str
    devices: int = 1
    seconds: float = 0.0
    """For which it held them."""
    busy: float | None = None
    """0 to 1, mean: a kernel ran."""
    memory_busy: float | None = None
    """0 to 1, mean: device memory was read or written."""
    vram_peak_mib: int | None = None
    """On one device, less what is known to be others'; None where several attempts shared it."""
    energy_j: float | None = None
    """Shared out equally where several attempts ran on a device."""
    throttled_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """What all attempts of a job used of GPUs, those that failed too. None: no device could say."""

    attempts: int = 0
    """That ran on a GPU."""
    gpu_hours: float = 0.0
    wasted_gpu_hours: float = 0.0
    """Of attempts that did not succeed."""
    energy_kwh: float | None = None
    energy_attempts: int = 0
    """Of how many attempts the energy is known."""
    vram_peak_mib: int | None = None
    busy: float | None = None
    """0 to 1, mean over time."""
    memory_busy: float | None = None
    throttled_s: float | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    id: AttemptId
    task_id: TaskId
    job_id: JobId
    step_id: StepId
    node_id: NodeId
    device_id: str
    state: AttemptState
    assigned_at: float
    started_at: float | None = None
    finished_at: float | None = None
    lease_until: float = 0.0
    outcome: Outcome | None = None
    exit_code: int | None = None
    reason: str = ""
    """One line."""
    progress: float | None = None
    message: str = ""
    """What the renderer says it does now."""
    runtime_s: float | None = None
    load_s: float | None = None
    """Of `runtime_s`, until the first frame began: the renderer's start and the scene's loading."""
    peak_memory_mib: int | None = None
    cpu_s: float | None = None
    usage: DeviceUsage | None = None
    """Of GPUs."""
    probe: Probe | None = None
    """What its first seconds on a GPU said of its demand."""
    decision: Decision | None = None
    """Why it went there; None: the policy does not say."""
    origin: Origin = Origin.MATCH
    evidence: Evidence | None = None
    """What its processes were last seen to do."""
    stall: Stall | None = None
    """What it was last taken for, where that is not simply working."""
    warnings: tuple[str, ...] = ()
    files: tuple[PublishedFile, ...] = ()
