"""What a device's sample means: its load, and whether that is worth telling at once. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from farm.model.machines import Device, DeviceLoad
from workers.gpu.provider import Sample

HOT_C: Final = 85.0
COOL_C: Final = 80.0
"""Below this a device that was hot no longer is."""
NEARLY_FULL: Final = 0.95
ROOM_AGAIN: Final = 0.90
BUSY: Final = 0.10
IDLE: Final = 0.03
_WORKING: Final = 0.5
"""Utilisation from which on a link's width is telling: an idle link is narrow to save power."""
_FULL_POWER: Final = 0.9
_LEAST_HEALTH: Final = 0.1
_THROTTLED: Final = 0.5
"""Health of a throttled device that does not tell its clock."""
_NARROW: Final = 0.9
"""What a link of a quarter of its width leaves: textures travel slower, the rendering itself does not."""
_PROHIBITED, _EXCLUSIVE = 2, 3


def load_of(
    sample: Sample,
    device: Device,
    *,
    foreign_mib: int | None = None,
    foreign_pid: int | None = None,
    fault: str = "",
) -> DeviceLoad:
    """A sample as the farm hears of it.

    foreign_mib: VRAM that processes hold which are not the farm's; foreign_pid: one of those; None: not
    known. fault: what is known against the device from before.
    """
    fault = fault or sample.fault
    total = sample.vram_total_mib or device.vram_mib
    occupancy = None
    if sample.vram_used_mib is not None and total:
        occupancy = min(sample.vram_used_mib / total, 1.0)
    health, complaint = _health(sample)
    return DeviceLoad(
        device_id=sample.device_id,
        utilisation=sample.busy if sample.busy is not None else sample.multiprocessors_active,
        memory_occupancy=occupancy,
        memory_busy=sample.memory_busy if sample.memory_busy is not None else sample.dram_active,
        vram_used_mib=sample.vram_used_mib,
        vram_free_mib=sample.vram_free_mib,
        vram_foreign_mib=foreign_mib,
        temperature_c=sample.temperature_c,
        power_w=sample.power_w,
        clock_mhz=sample.clock_mhz,
        health=health,
        complaint=complaint,
        closed=_closed(sample, foreign_pid),
        fault=fault,
    )


def _health(sample: Sample) -> tuple[float, str]:
    """(0 to 1, why not 1)"""
    health = 1.0
    complaints = []
    if sample.slowdowns:
        share = _THROTTLED
        if sample.clock_mhz and sample.clock_most_mhz:
            # A laptop's clock may exceed its "most".
            share = min(sample.clock_mhz / sample.clock_most_mhz, 1.0)
        health *= share
        complaints.append(f"throttled: {', '.join(sample.slowdowns)}")
    limit = sample.power_limit_share
    if limit is not None and limit < _FULL_POWER:
        health *= limit ** (1 / 3)  # power grows with about the cube of the clock
        complaints.append(f"power limit {limit:.0%} of what it is made for")
    lanes, most = sample.link_width, sample.link_most_width
    if lanes and most and lanes * 4 <= most and (sample.busy or 0.0) >= _WORKING:
        health *= _NARROW
        complaints.append(f"PCIe x{lanes} of x{most}: seated badly?")
    return max(round(health, 3), _LEAST_HEALTH), "; ".join(complaints)


def _closed(sample: Sample, foreign_pid: int | None) -> str:
    if sample.compute_mode == _PROHIBITED:
        return "compute mode is PROHIBITED (nvidia-smi -c DEFAULT opens it)"
    if sample.compute_mode == _EXCLUSIVE and foreign_pid is not None:
        return f"compute mode is EXCLUSIVE, and process {foreign_pid} has it"
    return ""


def signs(load: DeviceLoad, before: frozenset[str] = frozenset()) -> frozenset[str]:
    """What the farm should hear of at once when it changes. `before` gives each sign its hysteresis."""
    found = set()
    if load.temperature_c is not None and load.temperature_c >= (COOL_C if "hot" in before else HOT_C):
        found.add("hot")
    limit = ROOM_AGAIN if "VRAM nearly full" in before else NEARLY_FULL
    if load.memory_occupancy is not None and load.memory_occupancy >= limit:
        found.add("VRAM nearly full")
    if load.utilisation is not None and load.utilisation >= (IDLE if "busy" in before else BUSY):
        found.add("busy")
    if load.complaint:
        found.add("throttled" if load.complaint.startswith("throttled") else "degraded")
    if load.closed:
        found.add("closed")
    if load.fault:
        found.add("lost")
    return frozenset(found)


def foreign_of(sample: Sample, own_pids: frozenset[int] | None) -> tuple[int | None, int | None]:
    """(MiB of VRAM, a process) of others on the device. own_pids None: it cannot be told whose they are."""
    if sample.processes is None or own_pids is None:
        return None, None
    others = [process for process in sample.processes if process.pid not in own_pids]
    if not others:
        return 0, None
    sizes = [process.vram_mib for process in others if process.vram_mib is not None]
    return (sum(sizes) if len(sizes) == len(others) else None), others[0].pid


def silent(device: Device, seconds: float, faults: Mapping[str, str]) -> DeviceLoad:
    """The load of a device whose driver does not answer any more."""
    return DeviceLoad(
        device_id=device.id,
        closed=f"its driver has not answered for {seconds:.0f} s",
        fault=faults.get(device.id, ""),
    )
