"""Nodes, their devices, and what a task asks of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from farm.model.ids import AttemptId, NodeId, StepId
from farm.model.states import NodeState

DECLARED_MARK: Final = " (declared)"
"""Ends the model's name of a device that somebody wrote into a file: wherever it is shown, that is said."""
_CLASS_BORDERS: Final = (22.0, 43.0)
"""FLOP per byte."""


class DeviceKind(StrEnum):
    CPU = "cpu"
    GPU = "gpu"
    MIG = "mig"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Something that renders, whoever made it. What is not known is None, never 0; `unknown` says why."""

    id: str
    """Unique in its node: "cpu", or the GPU's or MIG instance's UUID."""
    kind: DeviceKind
    model: str
    slots: int = 1
    fp32_tflops: float | None = None
    """Single precision, 10^12 FLOP/s: measured where there is a measurement, else the sustained peak."""
    memory_bandwidth_gbps: float | None = None
    """To the device's own memory, 10^9 byte/s."""
    vram_mib: int | None = None
    source: str = "measured"
    """Where most of the figures come from: "driver", "catalogue", "measured" or "configured"."""
    vendor: str = ""
    """"nvidia", "amd", "intel"; empty for a CPU."""
    parent_id: str | None = None
    """Of a MIG instance: the GPU that it is a part of."""
    pci: str | None = None
    """As Linux writes it: "0000:17:00.0"."""
    driver: str | None = None
    architecture: str | None = None
    api: str | None = None
    """What compilers target: "cuda 8.9", "gfx1100"."""
    ray_tracing_generation: int | None = None
    """The vendor's own count (NVIDIA: 1 Turing to 4 Blackwell); 0: no ray-tracing hardware."""
    ray_rate_mrays: float | None = None
    """Measured: camera rays of Cycles against 327,680 triangles, 10^6 rays/s."""
    host_bandwidth_gbps: float | None = None
    """From the host's memory to the device, measured, 10^9 byte/s."""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    tdp_w: float | None = None
    is_unified: bool = False
    """Its memory is the host's."""
    is_declared: bool = False
    """Somebody wrote it into a file: nobody has seen it."""
    backends: tuple[str, ...] = ()
    """"cuda", "optix", "hip", "oneapi", "cpu"."""
    telemetry: tuple[str, ...] = ()
    """What it can report while it works: "busy", "memory-busy", "power", "energy", ..."""
    vram_per_task_mib: int = 0
    """Set aside for each task, where several share the device."""
    visible: dict[str, str] = field(default_factory=dict, hash=False)
    """Environment variables that let a process see this device and no other of its vendor."""
    sources: dict[str, str] = field(default_factory=dict, hash=False)
    """Field name to where its value comes from, as `source`."""
    unknown: dict[str, str] = field(default_factory=dict, hash=False)
    """Field name to why it has no value."""

    @property
    def ridge(self) -> float | None:
        """FLOP per byte at which arithmetic and memory traffic take equally long."""
        if not self.fp32_tflops or not self.memory_bandwidth_gbps:
            return None
        return 1000 * self.fp32_tflops / self.memory_bandwidth_gbps

    @property
    def device_class(self) -> str:
        """What it is strong at beside other GPUs, by its ridge: "compute", "balanced" or "bandwidth"; empty:
        not known. A quarter of the catalogue lies beyond each border."""
        if self.ridge is None or self.kind is DeviceKind.CPU:
            return ""
        low, high = _CLASS_BORDERS
        return "bandwidth" if self.ridge < low else "compute" if self.ridge > high else "balanced"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLoad:
    """A device's use now; None is "cannot say"."""

    device_id: str
    utilisation: float | None = None
    """0 to 1, all processes: the share of time in which something ran, not of what it could do."""
    memory_occupancy: float | None = None
    """0 to 1: the share of VRAM (or host memory for the CPU) in use."""
    memory_busy: float | None = None
    """0 to 1: the share of time in which its memory was read or written."""
    vram_used_mib: int | None = None
    vram_free_mib: int | None = None
    """Not used, and not the driver's own share."""
    vram_foreign_mib: int | None = None
    """Held by processes that are not the farm's."""
    temperature_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    health: float = 1.0
    """0 to 1: the share of its figures that it can be expected to give now."""
    complaint: str = ""
    """Why `health` is below 1: "throttled: hardware thermal slowdown"."""
    closed: str = ""
    """Why it takes no work for now: "compute mode is prohibited"."""
    fault: str = ""
    """Why it takes no work until somebody has looked: "lost (Xid 79)"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a node says of itself when it enrols, and again when it changes."""

    os_family: str = "linux"
    cpu_arch: str = "x86_64"
    cpus: int = 1
    memory_mib: int = 0
    pools: tuple[str, ...] = ("default",)
    """In order: work for the first one goes before work for the next."""
    devices: tuple[Device, ...] = ()
    software: dict[str, str] = field(default_factory=dict)
    """Renderer name to version, such as {"blender": "3.4.1"}."""
    attributes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """OpenJD attribute name (lower case) to values, beyond the standard ones."""
    amounts: dict[str, float] = field(default_factory=dict)
    """OpenJD amount name (lower case) to quantity, beyond the standard ones."""
    disk_write_mbps: float | None = None
    disk_read_mbps: float | None = None
    """Of the disk that holds the agent's state and scratch, measured, 10^6 byte/s."""
    user_id: int | None = None
    """That the agent and its renderers run as; None: it does not tell."""
    notes: tuple[str, ...] = ()
    """What is missing or wrong on this machine, for people: "no NVIDIA driver"."""

    @property
    def slots(self) -> int:
        return sum(device.slots for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """All that matching looks at in a task. Equal demands fit the same nodes."""

    pool: str | None = None
    """One that the node must be in, or several joined by commas of which it is in one; None: any node."""
    cpus: float = 0
    """Cores reserved for the task; 0: it did not say, and a slot is all it takes."""
    memory_mib: int = 0
    gpus: int = 0
    vram_mib: int = 0
    """On each GPU."""
    vram_seen_mib: int = 0
    """The most that tasks of the step were seen to hold on a GPU; 0: none was seen."""
    any_of: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(attribute, values): the node has at least one of them. Names and values in lower case."""
    all_of: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(attribute, values): the node has all of them."""
    amounts: tuple[tuple[str, float], ...] = ()
    """(amount, least quantity), beyond the standard ones."""
    software: tuple[str, ...] = ()
    """Renderers the node must have, such as ("blender",)."""

    @property
    def pools(self) -> tuple[str, ...]:
        return () if self.pool is None else tuple(part.strip() for part in self.pool.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one live attempt holds of a node."""

    device_id: str
    cpus: float = 0
    memory_mib: int = 0
    vram_mib: int = 0
    mean_runtime_s: float | None = None
    """Of the tasks of its step that are done; None: not known yet."""
    step_id: StepId | None = None
    since: float = 0.0
    """When it was started, or assigned until then; on the database's clock."""
    priority: int = 0
    """Of its job, as what follows."""
    user: str = ""
    project: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as matching sees it: what it has, and what live attempts hold of it."""

    id: NodeId
    capabilities: Capabilities
    accepts_work: bool = True
    refusal: str = ""
    """Why not, when `accepts_work` is False: "draining by anna", "silent for 14 s"."""
    uses: tuple[Use, ...] = ()
    loads: tuple[DeviceLoad, ...] = ()
    disk_free_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as people see it."""

    id: NodeId
    state: NodeState
    reason: str = ""
    """Why it is not simply online: "drained by anna", "another agent of this name is alive"."""
    capabilities: Capabilities = Capabilities()
    loads: tuple[DeviceLoad, ...] = ()
    disk_free_mib: int | None = None
    silent_s: float = 0.0
    """Seconds since its last heartbeat."""
    attempts: tuple[AttemptId, ...] = ()
    """Live attempts the farm has given it."""
    running: tuple[str, ...] = ()
    """For people, one per live attempt: "12 shot_010 7"."""
    agent_version: str = ""
    fails: int | None = None
    """Attempts that failed or were lost there in the last 24 hours; None: not counted."""
