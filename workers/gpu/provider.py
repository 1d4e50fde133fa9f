"""What the agent asks of a vendor's GPUs, whoever the vendor is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final, Protocol

from farm.model.machines import Device

GONE: Final = "gone"
"""How the fault of a device begins that is there no more, such as an instance of a GPU that was cut anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that has memory on a device."""

    pid: int
    """As the driver numbers it: the host's, also in a container."""
    vram_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One device at one moment. None: it cannot say. Shares are 0 to 1."""

    device_id: str
    busy: float | None = None
    """The share of time in which at least one kernel ran: no share of what the device could do."""
    memory_busy: float | None = None
    """The share of time in which its memory was read or written."""
    dram_active: float | None = None
    """Of the peak memory bandwidth (GPM; about 0.8 is all that code reaches)."""
    arithmetic_active: float | None = None
    """Of the busiest arithmetic pipe (GPM)."""
    multiprocessors_active: float | None = None
    """GPM."""
    vram_total_mib: int | None = None
    vram_used_mib: int | None = None
    """By processes; the driver's own share is not counted where it is known apart."""
    vram_free_mib: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    """A counter: only differences mean anything."""
    clock_mhz: float | None = None
    clock_most_mhz: float | None = None
    slowdowns: tuple[str, ...] = ()
    """What holds the clock down, of those that should not: heat, power brake, hardware."""
    power_limit_share: float | None = None
    """Of the power that the board is made for, what it may take now."""
    link_width: int | None = None
    """PCIe lanes in use."""
    link_most_width: int | None = None
    processes: tuple[Process, ...] | None = None
    """None: not asked this time, or the driver does not tell."""
    compute_mode: int | None = None
    """NVML's: 0 default, 2 prohibited, 3 exclusive to one process."""
    fault: str = ""
    """Why the device is of no use: "lost"."""
    read_at: float = field(default_factory=time.monotonic, compare=False)
    """CLOCK_MONOTONIC."""


class GpuProvider(Protocol):
    """One vendor's GPUs. Used by one thread at a time; never raises for what a driver or a GPU does."""

    vendor: str

    def devices(self) -> tuple[Device, ...]:
        """What there is now, MIG instances in place of the GPUs that are cut up."""
        ...

    def samples(self, *, with_processes: bool) -> tuple[Sample, ...]:
        """How the devices of the last `devices` are. Lists of processes are dear, so they are asked for."""
        ...

    def faults(self) -> dict[str, str]:
        """Device id to what its driver reported since the last call that it cannot go on after: an Xid."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What is missing or wrong, for people: "no NVIDIA driver"."""
        ...

    @property
    def node_fault(self) -> str:
        """Why the whole node should take no work: its driver needs a reboot. Empty: nothing is wrong."""
        ...
