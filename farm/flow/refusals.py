"""What a node refuses, for good or for now, and what room it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import Final

from farm.model.limits import LIMIT_PREFIX
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, DeviceLoad, NodeView

DISK_SCRATCH: Final = "amount.worker.disk.scratch"
"""OpenJD's amount of free disk, in GiB."""


class RefusalKind(StrEnum):
    NOT_ACCEPTING = "not-accepting"
    POOL = "pool"
    SOFTWARE = "software"
    ATTRIBUTE = "attribute"
    AMOUNT = "amount"
    DISK = "disk"
    CPUS = "cpus"
    MEMORY = "memory"
    DEVICE = "device"
    DEVICE_CLOSED = "device-closed"
    VRAM = "vram"
    CPUS_BUSY = "cpus-busy"
    MEMORY_BUSY = "memory-busy"
    VRAM_BUSY = "vram-busy"
    SLOTS_BUSY = "slots-busy"


_MOMENTARY: Final = frozenset(
    {
        RefusalKind.NOT_ACCEPTING,
        RefusalKind.DISK,
        RefusalKind.DEVICE_CLOSED,
        RefusalKind.CPUS_BUSY,
        RefusalKind.MEMORY_BUSY,
        RefusalKind.VRAM_BUSY,
        RefusalKind.SLOTS_BUSY,
    }
)
BUSY: Final = _MOMENTARY - {RefusalKind.NOT_ACCEPTING, RefusalKind.DISK, RefusalKind.DEVICE_CLOSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One reason why a node cannot take a task."""

    kind: RefusalKind
    text: str
    """One line: "VRAM 24,000 MiB < 31,000 MiB needed"."""

    @property
    def is_momentary(self) -> bool:
        """It may pass without anybody changing the node or the job."""
        return self.kind in _MOMENTARY


# --- VRAM and health ----------------------------------------------------------------------------------------

VRAM_MARGIN: Final = 1.15
VRAM_RESERVE_MIB: Final = 256
"""What is kept free beside a task: contexts and fragments."""
_EMPTY_ENOUGH: Final = 0.9
"""Of a device's VRAM: with so much of it free a task may always try, whatever was seen elsewhere."""


def vram_held_mib(demand: Demand) -> int:
    """What a task is expected to hold on each of its GPUs: declared, or seen of its step before."""
    seen = demand.vram_seen_mib
    return max(demand.vram_mib, ceil(seen * VRAM_MARGIN) + VRAM_RESERVE_MIB if seen else 0)


def vram_needed_mib(demand: Demand, device: Device) -> int:
    """Free VRAM without which the device does not get one more task."""
    most = max(demand.vram_mib, int(_EMPTY_ENOUGH * (device.vram_mib or 0)))
    return max(min(vram_held_mib(demand), most), device.vram_per_task_mib)


def _free_vram_mib(device: Device, reserved_mib: int, load: DeviceLoad | None) -> int:
    """What is free of a device's VRAM: neither reserved for live attempts, nor in use now.

    Attempts may not have filled yet what is reserved for them, and processes that are not ours hold more.
    """
    total = device.vram_mib or 0
    free = total - reserved_mib
    if load is None or load.vram_used_mib is None:
        return free
    if load.vram_free_mib is not None:
        total = min(total, load.vram_used_mib + load.vram_free_mib)  # less what the driver keeps for itself
    free = total - max(reserved_mib, load.vram_used_mib)
    if load.vram_foreign_mib is not None:
        free = min(free, total - reserved_mib - load.vram_foreign_mib)
    return free


# --- refusals -----------------------------------------------------------------------------------------------


def refusals(demand: Demand, node: NodeView) -> Iterator[Refusal]:
    """Every reason why the node cannot take one task of this demand now, permanent ones first."""
    yield from standing(demand, node)
    yield from _passing(demand, node, Room.of(node))


def fits(demand: Demand, node: NodeView) -> bool:
    """Whether the node can take one task of this demand now."""
    return next(refusals(demand, node), None) is None


def eligible_devices(demand: Demand, node: NodeView) -> tuple[Device, ...]:
    """The node's devices that can ever serve the demand, used or not.

    GPU work needs GPUs with enough VRAM (work for several GPUs cannot use MIG instances: a process sees only
    one). Other work runs on the CPU, and takes a GPU's slot only on a node that offers none for the CPU.
    """
    devices = node.capabilities.devices
    if demand.gpus > 0:
        kinds = (DeviceKind.GPU, DeviceKind.MIG) if demand.gpus == 1 else (DeviceKind.GPU,)
        able = tuple(d for d in devices if d.kind in kinds and (d.vram_mib or 0) >= demand.vram_mib)
        return able if len(able) >= demand.gpus else ()
    of_cpu = tuple(d for d in devices if d.kind is DeviceKind.CPU and d.slots > 0)
    return of_cpu or devices


def standing(demand: Demand, node: NodeView) -> Iterator[Refusal]:
    """Reasons that stay until somebody changes the node or the job."""
    has = node.capabilities
    if demand.pool is not None and not is_in_pool(demand, has):
        told = "', '".join(demand.pools)
        text = f"in none of the pools '{told}'" if len(demand.pools) > 1 else f"not in pool '{told}'"
        yield Refusal(kind=RefusalKind.POOL, text=text)
    for name in demand.software:
        if name not in has.software:
            yield Refusal(kind=RefusalKind.SOFTWARE, text=f"has no {name}")
    if demand.any_of or demand.all_of:
        yield from _attribute_refusals(demand, node)
    for name, least in demand.amounts:
        if name == DISK_SCRATCH or name.startswith(LIMIT_PREFIX):
            continue
        amount = has.amounts.get(name)
        if amount is None:
            if least > 0:
                yield Refusal(kind=RefusalKind.AMOUNT, text=f"has no {name}")
        elif amount < least:
            yield Refusal(kind=RefusalKind.AMOUNT, text=f"{name} {amount:g} < {least:g} needed")
    if has.cpus < demand.cpus:
        yield Refusal(kind=RefusalKind.CPUS, text=f"CPUs {has.cpus:,} < {demand.cpus:g} needed")
    if has.memory_mib < demand.memory_mib:
        yield Refusal(kind=RefusalKind.MEMORY, text=_less("memory", has.memory_mib, demand.memory_mib))
    yield from _device_refusals(demand, node)


def is_in_pool(demand: Demand, has: Capabilities) -> bool:
    """Whether a node that has this is in one of the pools that the demand names, or it names none."""
    return demand.pool is None or any(pool in has.pools for pool in demand.pools)


def pool_rank(demand: Demand, has: Capabilities) -> int:
    """Which of the node's pools the demand is for, 0 the first; for none in particular: as for its last."""
    mine = demand.pools
    last = max(len(has.pools) - 1, 0)
    return next((at for at, pool in enumerate(has.pools) if pool in mine), last) if mine else last


def _attribute_refusals(demand: Demand, node: NodeView) -> Iterator[Refusal]:
    has = node.capabilities

    def values(name: str) -> frozenset[str]:
        if name == "attr.worker.os.family":
            return frozenset({has.os_family.lower()})
        if name == "attr.worker.cpu.arch":
            return frozenset({has.cpu_arch.lower()})
        return frozenset(value.lower() for value in has.attributes.get(name, ()))

    for name, wanted in demand.any_of:
        if not values(name).intersection(wanted):
            what = " or ".join(wanted)
            yield Refusal(kind=RefusalKind.ATTRIBUTE, text=f"{name} is {_listed(values(name))}, not {what}")
    for name, wanted in demand.all_of:
        missing = [value for value in wanted if value not in values(name)]
        if missing:
            what = " and ".join(missing)
            yield Refusal(kind=RefusalKind.ATTRIBUTE, text=f"{name} is {_listed(values(name))}, not {what}")


def _listed(values: frozenset[str]) -> str:
    return ", ".join(sorted(values)) or "not set"


def _device_refusals(demand: Demand, node: NodeView) -> Iterator[Refusal]:
    devices = node.capabilities.devices
    if demand.gpus <= 0:
        if not any(device.slots > 0 for device in devices):
            yield Refusal(kind=RefusalKind.DEVICE, text="offers no slot")
        return
    kinds = (DeviceKind.GPU, DeviceKind.MIG) if demand.gpus == 1 else (DeviceKind.GPU,)
    gpus = [device for device in devices if device.kind in kinds]
    if len(gpus) < demand.gpus:
        told = f"GPUs {len(gpus)} < {demand.gpus} needed" if gpus else "has no GPU"
        yield Refusal(kind=RefusalKind.DEVICE, text=told)
        return
    if not eligible_devices(demand, node):
        # The size that decides: that of the last of the GPUs needed, the largest first.
        sizes = sorted((device.vram_mib for device in gpus if device.vram_mib is not None), reverse=True)
        if len(sizes) < demand.gpus:
            told = f"VRAM is not known, {demand.vram_mib:,} MiB needed"
        else:
            told = _less("VRAM", sizes[demand.gpus - 1], demand.vram_mib)
        yield Refusal(kind=RefusalKind.VRAM, text=told)
    elif sum(device.slots > 0 for device in eligible_devices(demand, node)) < demand.gpus:
        yield Refusal(kind=RefusalKind.DEVICE, text="offers no slot on its GPUs")


def _less(what: str, has_mib: float, needed_mib: float) -> str:
    return f"{what} {has_mib:,.0f} MiB < {needed_mib:,.0f} MiB needed"


@dataclass(slots=True)
class Room:
    """What is free on a node. `plan` counts it down as it gives slots out."""

    node: NodeView
    cpus: float
    memory_mib: int
    slots: dict[str, int]
    vram_mib: dict[str, int]
    """By device, as `slots`; 0 when the device's VRAM is not known."""
    free_slots: int = 0
    free_gpu_slots: int = 0
    gpu_ids: frozenset[str] = frozenset()
    most_vram_mib: int = 0
    """The most that any of its devices had free when the round began."""
    closed: dict[str, str] = field(default_factory=dict)
    """Device id to why it takes no work: lost, prohibited."""
    per_task_mib: dict[str, int] = field(default_factory=dict)
    """Device id to the VRAM that each task there is given at least."""

    @classmethod
    def of(cls, node: NodeView) -> Room:
        has = node.capabilities
        room = cls(
            node=node,
            cpus=has.cpus - sum(use.cpus for use in node.uses),
            memory_mib=has.memory_mib - sum(use.memory_mib for use in node.uses),
            slots={device.id: device.slots for device in has.devices},
            vram_mib={},
            closed={
                load.device_id: load.fault or load.closed for load in node.loads if load.fault or load.closed
            },
        )
        reserved = dict.fromkeys(room.slots, 0)
        room.per_task_mib = {device.id: device.vram_per_task_mib for device in has.devices}
        for device_id in room.closed:
            room.slots[device_id] = 0
        for use in node.uses:
            for device_id in use.device_id.split(","):
                if device_id in reserved:  # else: a device that has gone since
                    room.slots[device_id] -= 1
                    reserved[device_id] += max(use.vram_mib, room.per_task_mib[device_id])
        loads = {load.device_id: load for load in node.loads}
        for device in has.devices:
            room.vram_mib[device.id] = _free_vram_mib(device, reserved[device.id], loads.get(device.id))
        gpus = [device.id for device in has.devices if device.kind is not DeviceKind.CPU]
        room.gpu_ids = frozenset(gpus)
        room.free_slots = sum(max(free, 0) for free in room.slots.values())
        room.free_gpu_slots = sum(max(room.slots[device_id], 0) for device_id in gpus)
        room.most_vram_mib = max(room.vram_mib.values(), default=0)
        return room

    def may_take(self, demand: Demand) -> bool:
        """False only when one task cannot start here now. Cheap: it spares most of a round's full checks."""
        if self.cpus < demand.cpus or self.memory_mib < demand.memory_mib:
            return False
        if demand.gpus > 0 and (self.free_gpu_slots < demand.gpus or self.most_vram_mib < demand.vram_mib):
            return False
        has = self.node.capabilities
        if demand.pool is not None and not is_in_pool(demand, has):
            return False
        return all(name in has.software for name in demand.software)

    def take(self, demand: Demand, devices: Sequence[Device]) -> None:
        self.cpus -= demand.cpus
        self.memory_mib -= demand.memory_mib
        for device in devices:
            self.slots[device.id] -= 1
            self.vram_mib[device.id] -= self.vram_of(demand, device.id)
            self.free_slots -= 1
            self.free_gpu_slots -= device.id in self.gpu_ids

    def give_back(self, demand: Demand, device_ids: Sequence[str]) -> None:
        """One task of this demand has ended there."""
        self.cpus += demand.cpus
        self.memory_mib += demand.memory_mib
        for device_id in device_ids:
            self.slots[device_id] += 1
            self.vram_mib[device_id] += self.vram_of(demand, device_id)
            self.free_slots += 1
            self.free_gpu_slots += device_id in self.gpu_ids

    def vram_of(self, demand: Demand, device_id: str) -> int:
        """What a task of this demand is expected to hold there."""
        return max(vram_held_mib(demand), self.per_task_mib[device_id])

    def holds(self, demand: Demand) -> bool:
        """Whether CPUs and memory are left; devices apart."""
        return self.cpus >= demand.cpus and self.memory_mib >= demand.memory_mib

    def is_free(self, demand: Demand, device: Device) -> bool:
        if self.slots[device.id] < 1:
            return False
        return demand.gpus == 0 or self.vram_mib[device.id] >= vram_needed_mib(demand, device)


def _passing(demand: Demand, node: NodeView, room: Room) -> Iterator[Refusal]:
    """Reasons that may pass. Those that a standing refusal already gives are left out."""
    has = node.capabilities
    if not node.accepts_work:
        yield Refusal(kind=RefusalKind.NOT_ACCEPTING, text=node.refusal or "takes no work")
    scratch = scratch_gib(demand)
    if scratch > 0:
        free_gib = 0.0 if node.disk_free_mib is None else node.disk_free_mib / 1024
        if free_gib < scratch:
            told = "is not known" if node.disk_free_mib is None else f"{free_gib:,.0f} GiB"
            yield Refusal(kind=RefusalKind.DISK, text=f"free disk {told} < {scratch:,.0f} GiB needed")
    if room.cpus < demand.cpus <= has.cpus:
        told = f"{max(room.cpus, 0):g} of {has.cpus} CPUs free < {demand.cpus:g} needed"
        yield Refusal(kind=RefusalKind.CPUS_BUSY, text=told)
    if room.memory_mib < demand.memory_mib <= has.memory_mib:
        told = _less("free memory", max(room.memory_mib, 0), demand.memory_mib)
        yield Refusal(kind=RefusalKind.MEMORY_BUSY, text=told)
    able = [device for device in eligible_devices(demand, node) if device.slots > 0]
    needed = max(demand.gpus, 1)
    if len(able) < needed:
        return  # refused for good
    usable = [device for device in able if device.id not in room.closed]
    if len(usable) < needed:
        for device in able:
            if device.id in room.closed:
                told = f"{device.model}: {room.closed[device.id]}"
                yield Refusal(kind=RefusalKind.DEVICE_CLOSED, text=told)
        return
    able = usable
    open_ = [device for device in able if room.slots[device.id] > 0]
    if len(open_) < needed:
        slots = sum(device.slots for device in able)
        told = f"all {slots} slots busy" if slots > 1 else "its slot is busy"
        yield Refusal(kind=RefusalKind.SLOTS_BUSY, text=told)
    elif sum(room.is_free(demand, device) for device in open_) < needed:
        most = sorted((room.vram_mib[device.id] for device in open_), reverse=True)[needed - 1]
        least = min(vram_needed_mib(demand, device) for device in open_)
        yield Refusal(kind=RefusalKind.VRAM_BUSY, text=_less("free VRAM", max(most, 0), least))


def scratch_gib(demand: Demand) -> float:
    return dict(demand.amounts).get(DISK_SCRATCH, 0.0) if demand.amounts else 0.0
