"""Nodes, their devices, and what a task asks of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from farm.model.ids import AttemptId, NodeId
from farm.model.states import NodeState


class DeviceKind(StrEnum):
    CPU = "cpu"
    GPU = "gpu"
    MIG = "mig"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Something that renders. Figures that are not known are None, never 0.

    fp32_tflops: peak or measured single precision, 10^12 FLOP/s.
    memory_bandwidth_gbps: to the device's own memory, 10^9 byte/s.
    source: where the figures come from ("driver", "catalogue", "measured", "configured").
    """

    id: str
    """Unique in its node: "cpu", or the GPU's UUID."""
    kind: DeviceKind
    model: str
    slots: int = 1
    fp32_tflops: float | None = None
    memory_bandwidth_gbps: float | None = None
    vram_mib: int | None = None
    source: str = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLoad:
    """A device's use now; None is "cannot say"."""

    device_id: str
    utilisation: float | None = None
    """0 to 1, all processes."""
    memory_occupancy: float | None = None
    """0 to 1: the share of VRAM (or host memory for the CPU) in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a node says of itself when it enrols, and again when it changes."""

    os_family: str = "linux"
    cpu_arch: str = "x86_64"
    cpus: int = 1
    memory_mib: int = 0
    pools: tuple[str, ...] = ("default",)
    devices: tuple[Device, ...] = ()
    software: dict[str, str] = field(default_factory=dict)
    """Renderer name to version, such as {"blender": "3.4.1"}."""
    attributes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """OpenJD attribute name (lower case) to values, beyond the standard ones."""
    amounts: dict[str, float] = field(default_factory=dict)
    """OpenJD amount name (lower case) to quantity, beyond the standard ones."""

    @property
    def slots(self) -> int:
        return sum(device.slots for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """All that matching looks at in a task. Equal demands fit the same nodes."""

    pool: str | None = None
    cpus: float = 0
    """Cores reserved for the task; 0: it did not say, and a slot is all it takes."""
    memory_mib: int = 0
    gpus: int = 0
    vram_mib: int = 0
    """On each GPU."""
    any_of: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(attribute, values): the node has at least one of them. Names and values in lower case."""
    all_of: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(attribute, values): the node has all of them."""
    amounts: tuple[tuple[str, float], ...] = ()
    """(amount, least quantity), beyond the standard ones."""
    software: tuple[str, ...] = ()
    """Renderers the node must have, such as ("blender",)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one live attempt holds of a node."""

    device_id: str
    cpus: float = 0
    memory_mib: int = 0
    vram_mib: int = 0


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
