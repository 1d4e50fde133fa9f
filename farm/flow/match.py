"""Which node gets which group's tasks, and why others do not.

Refusals first: every reason why a node cannot take a task. Then a score orders the free devices that are
left. A score is a plain function (`Score`), so that a policy can be swapped for another.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil
from typing import Final

from farm.flow.rays import ray_factor
from farm.model.ids import JobId, NodeId, StepId
from farm.model.limits import LIMIT_PREFIX
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, DeviceLoad, NodeView, Use
from farm.model.work import Profile
from farm.text import plural

DISK_SCRATCH: Final = "amount.worker.disk.scratch"
"""OpenJD's amount of free disk, in GiB."""

Score = Callable[[Profile, Device, DeviceLoad | None], float | None]
"""Higher is better; compared only between devices for one profile. None: the figures needed are not known."""


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
_BUSY: Final = _MOMENTARY - {RefusalKind.NOT_ACCEPTING, RefusalKind.DISK, RefusalKind.DEVICE_CLOSED}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The tasks of one step that demand the same: what is matched, whatever their number."""

    step_id: StepId
    job_id: JobId
    demand: Demand = Demand()
    profile: Profile = Profile()
    ready: int = 0
    """Tasks that could start now."""
    running: int = 0
    """Live attempts of this group."""
    max_running: int | None = None
    """Of the whole job."""
    job_running: int = 0
    """Live attempts of the whole job."""
    priority: int = 50
    submitted_at: float = 0.0
    mean_runtime_s: float | None = None
    """Of its tasks that are done; None: not known yet."""
    runtimes: int = 0
    """How many that is the mean of."""
    avoid: frozenset[NodeId] = frozenset()
    """Nodes where this group's tasks have failed for the node's own reasons."""
    holds: tuple[str, ...] = ()
    """Why its tasks are not ready, for people: "waits for job 12", "paused by anna". Only `why` reads it."""
    user: str = ""
    """Whose share of the farm it uses."""
    project: str = ""
    """Within whose share the user has theirs; empty: none."""
    takes: tuple[tuple[str, int], ...] | None = None
    """(shared count, what one more task takes of it), as `limits.counted` found; None: nobody has looked."""
    like: str = ""
    """Names the same step in earlier jobs, whose run times it is expected to have; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """`count` tasks of a group for one device of one node."""

    step_id: StepId
    job_id: JobId
    node_id: NodeId
    device_id: str
    """For a demand of several GPUs their ids, joined by commas (as CUDA_VISIBLE_DEVICES takes them)."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason why a group's tasks wait, over all nodes that it holds for."""

    text: str
    """One line: "3 nodes: VRAM 24,000 MiB < 31,000 MiB needed"."""
    node_ids: tuple[NodeId, ...] = ()
    is_momentary: bool = False

    @property
    def count(self) -> int:
        """How many nodes."""
        return len(self.node_ids)


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


def with_health(score: float | None, load: DeviceLoad | None) -> float | None:
    """A throttled or otherwise degraded device is worth what it gives now."""
    return score if score is None or load is None else score * min(max(load.health, 0.0), 1.0)


# --- scores -------------------------------------------------------------------------------------------------


def fitness(profile: Profile, device: Device, load: DeviceLoad | None) -> float | None:
    """The articles' published formula, the plain baseline.

    A compute-heavy profile scores FLOPS x (1 - utilisation), in TFLOP/s; a bandwidth-heavy one memory
    bandwidth x (1 - memory occupancy) - transfer cost, in GB/s. For a ray tracer FLOPS count by the device's
    ray-tracing generation. A use that the device cannot report costs nothing (`unknowns` tells), a missing
    FLOPS or bandwidth figure gives None.
    """
    if profile.compute_share >= profile.bandwidth_share:
        if device.fp32_tflops is None:
            return None
        tflops = device.fp32_tflops * (ray_factor(device) if profile.is_ray_traced else 1.0)
        return tflops * (1 - _share(load.utilisation if load else None))
    if device.memory_bandwidth_gbps is None:
        return None
    free = 1 - _share(load.memory_occupancy if load else None)
    return device.memory_bandwidth_gbps * free - _transfer_cost_gbps(device)


def fifo(profile: Profile, device: Device, load: DeviceLoad | None) -> float | None:
    """No preference: the oldest task to any free device."""
    return 0.0


def unknowns(profile: Profile, device: Device, load: DeviceLoad | None) -> tuple[str, ...]:
    """Which figures `fitness` had to do without for this device, for people."""
    if profile.compute_share >= profile.bandwidth_share:
        pairs = (("FLOPS", device.fp32_tflops), ("utilisation", load.utilisation if load else None))
    else:
        pairs = (
            ("memory bandwidth", device.memory_bandwidth_gbps),
            ("memory occupancy", load.memory_occupancy if load else None),
        )
    return tuple(name for name, figure in pairs if figure is None)


def _share(figure: float | None) -> float:
    return 0.0 if figure is None else min(max(figure, 0.0), 1.0)


def _transfer_cost_gbps(device: Device) -> float:
    """The articles give no figure. 2 % of the bandwidth for a device with memory of its own (the scene has
    to be copied there), as in the simulation that the design rests on; nothing for the CPU."""
    if device.kind is DeviceKind.CPU or device.memory_bandwidth_gbps is None:
        return 0.0
    return 0.02 * device.memory_bandwidth_gbps


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


# --- plan ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Place:
    """A device of a node (or several, for a demand of several GPUs: then the best ones, chosen when
    taken)."""

    score: float
    is_guess: bool
    room: Room
    devices: tuple[Device, ...]
    """One; or all eligible ones, the best first."""

    def free_devices(self, demand: Demand) -> tuple[Device, ...]:
        """What one task would take now; empty when there is no room."""
        if not self.room.holds(demand):
            return ()
        if len(self.devices) == 1:
            return self.devices if self.room.is_free(demand, self.devices[0]) else ()
        needed = max(demand.gpus, 1)
        free = [device for device in self.devices if self.room.is_free(demand, device)]
        return tuple(free[:needed]) if len(free) >= needed else ()

    def key(self) -> tuple[float, bool, float, NodeId, str]:
        """Best first: score; a known one before a guessed one; the emptier device; then by name."""
        total = sum(device.slots for device in self.devices)
        free = sum(self.room.slots[device.id] for device in self.devices)
        return -self.score, self.is_guess, 1 - free / total, self.room.node.id, self.devices[0].id


def plan(
    groups: Sequence[Group],
    nodes: Sequence[NodeView],
    *,
    score: Score,
    limit: int,
    free: Mapping[str, int] | None = None,
) -> tuple[Assignment, ...]:
    """Which tasks start where now: at most `limit` of them. Deterministic.

    Groups are served whole, by priority, then age, then step id; each gets its best-scoring free slots. A
    node in several pools serves groups of the first one before those of the next, whatever their priority. No
    node's slots, CPUs, memory or VRAM, no job's `max_running` and none of the shared counts (`free`: how much
    is left of each) are exceeded.
    """
    rooms = [Room.of(node) for node in nodes if node.accepts_work]
    rooms = [room for room in rooms if room.free_slots > 0]
    ranks = 1
    if any(group.demand.pool is not None for group in groups):
        ranks = max((len(room.node.capabilities.pools) for room in rooms), default=1)
    turn = _Turn(free=dict(free or {}), left=limit, score=score)
    ordered = sorted(groups, key=lambda g: (-g.priority, g.submitted_at, g.step_id))
    for rank in range(max(ranks, 1)):
        turn.serve(ordered, rooms, rank if ranks > 1 else None)
    return tuple(turn.plans)


@dataclass(slots=True)
class _Turn:
    """What `plan` has given out so far, and what is left."""

    free: dict[str, int]
    left: int
    score: Score
    plans: list[Assignment] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)
    """By place in the order of groups."""
    given: dict[JobId, int] = field(default_factory=lambda: defaultdict(int))

    def serve(self, groups: Sequence[Group], rooms: Sequence[Room], rank: int | None) -> None:
        """Serve the groups in order: on nodes of which it is the pool of this rank, None: on any."""
        places: dict[tuple[Demand, Profile], list[_Place]] = {}
        full: set[Demand] = set()  # nothing left that fits: room only shrinks, so this holds to the end
        for at, group in enumerate(groups):
            if self.left <= 0 or not rooms:
                break
            wanted = self._wanted(at, group)
            if wanted <= 0 or group.demand in full:
                continue
            # CPUs and memory are counted down per task anyway: groups that differ in nothing else share
            # their places.
            base = replace(group.demand, cpus=0, memory_mib=0)
            key = (base, group.profile)
            if key not in places:
                places[key] = _places(base, group.profile, rooms, self.score, rank)
            taken, is_full = _fill(group, places[key], wanted)
            if is_full:
                full.add(group.demand)
            if not taken:
                continue
            self._take(at, group, taken)
            rooms = [room for room in rooms if room.free_slots > 0]

    def _wanted(self, at: int, group: Group) -> int:
        wanted = min(group.ready - self.started.get(at, 0), self.left)
        if group.max_running is not None:
            wanted = min(wanted, group.max_running - group.job_running - self.given[group.job_id])
        for name, needed in group.takes or ():
            wanted = min(wanted, self.free.get(name, wanted * needed) // needed)
        return wanted

    def _take(self, at: int, group: Group, taken: Mapping[tuple[NodeId, str], int]) -> None:
        for (node_id, device_id), count in taken.items():
            self.plans.append(
                Assignment(
                    step_id=group.step_id,
                    job_id=group.job_id,
                    node_id=node_id,
                    device_id=device_id,
                    count=count,
                )
            )
            self.started[at] = self.started.get(at, 0) + count
            self.given[group.job_id] += count
            self.left -= count
            for name, needed in group.takes or ():
                if name in self.free:
                    self.free[name] -= count * needed


def _places(
    demand: Demand, profile: Profile, rooms: Sequence[Room], score: Score, rank: int | None
) -> list[_Place]:
    """Where tasks of this demand and profile can start now (what has no room now gets none in this round).

    rank: only on nodes to which it is for their pool of this rank.
    """
    found: list[tuple[float | None, Room, tuple[Device, ...]]] = []
    scratch_mib = 1024 * scratch_gib(demand)
    for room in rooms:
        node = room.node
        if not room.may_take(demand):
            continue
        if rank is not None and pool_rank(demand, node.capabilities) != rank:
            continue
        if next(standing(demand, node), None) is not None or scratch_mib > (node.disk_free_mib or 0):
            continue
        loads = {load.device_id: load for load in node.loads}
        scored = [
            (with_health(score(profile, device, loads.get(device.id)), loads.get(device.id)), device)
            for device in eligible_devices(demand, node)
            if device.slots > 0
        ]
        if demand.gpus > 1:
            # The slowest of several GPUs is waited for: the place is worth what the last one chosen is.
            scored.sort(key=lambda pair: (pair[0] is None, -(pair[0] or 0.0), pair[1].id))
            found.append((scored[demand.gpus - 1][0], room, tuple(device for _, device in scored)))
        else:
            found.extend((value, room, (device,)) for value, device in scored)
    known = [value for value, _, _ in found if value is not None]
    mean = sum(known) / len(known) if known else 0.0
    return [
        _Place(score=mean if value is None else value, is_guess=value is None, room=room, devices=devices)
        for value, room, devices in found
    ]


def scratch_gib(demand: Demand) -> float:
    return dict(demand.amounts).get(DISK_SCRATCH, 0.0) if demand.amounts else 0.0


def _fill(group: Group, places: Sequence[_Place], wanted: int) -> tuple[dict[tuple[NodeId, str], int], bool]:
    """Take up to `wanted` slots, best first: (tasks by node and device, whether no room for the demand is
    left)."""
    demand = group.demand
    heap = [
        (place.key(), at)
        for at, place in enumerate(places)
        if place.room.node.id not in group.avoid and place.free_devices(demand)
    ]
    if not heap:
        return {}, not group.avoid
    heapq.heapify(heap)
    taken: dict[tuple[NodeId, str], int] = {}
    while heap and wanted > 0:
        _, at = heapq.heappop(heap)
        place = places[at]
        devices = place.free_devices(demand)
        if not devices:
            continue  # another device of the node took the last CPUs or memory
        place.room.take(demand, devices)
        slot = (place.room.node.id, ",".join(device.id for device in devices))
        taken[slot] = taken.get(slot, 0) + 1
        wanted -= 1
        if place.free_devices(demand):
            heapq.heappush(heap, (place.key(), at))
    return taken, False


# --- after a plan ---


def left_of(
    free: Mapping[str, int], plans: Sequence[Assignment], groups: Sequence[Group]
) -> Mapping[str, int]:
    """What is left of the shared counts after these assignments."""
    if not free or not plans:
        return free
    takes = {group.step_id: group.takes or () for group in groups}
    left = dict(free)
    for assignment in plans:
        for name, needed in takes[assignment.step_id]:
            if name in left:
                left[name] -= needed * assignment.count
    return left


def without(groups: Sequence[Group], plans: Sequence[Assignment]) -> Sequence[Group]:
    """The groups less the tasks of these assignments."""
    if not plans:
        return groups
    given: dict[StepId, int] = defaultdict(int)
    for assignment in plans:
        given[assignment.step_id] += assignment.count
    found = []
    for group in groups:
        count = min(given[group.step_id], group.ready)
        if count:
            given[group.step_id] -= count
            group = replace(
                group,
                ready=group.ready - count,
                running=group.running + count,
                job_running=group.job_running + count,
            )
        found.append(group)
    return found


def used(
    nodes: Sequence[NodeView], plans: Sequence[Assignment], groups: Sequence[Group]
) -> Sequence[NodeView]:
    """The nodes with what these assignments take of them."""
    demands = {group.step_id: group.demand for group in groups}
    uses: dict[NodeId, list[Use]] = defaultdict(list)
    for assignment in plans:
        demand = demands[assignment.step_id]
        use = Use(
            device_id=assignment.device_id,
            cpus=demand.cpus,
            memory_mib=demand.memory_mib,
            vram_mib=vram_held_mib(demand),
        )
        uses[assignment.node_id] += [use] * assignment.count
    return [replace(n, uses=(*n.uses, *uses[n.id])) if n.id in uses else n for n in nodes]


def merged(plan: Sequence[Assignment]) -> tuple[Assignment, ...]:
    """The same plan with one assignment for each step on a device, in the order of their first ones."""
    counts: dict[Assignment, int] = {}
    for assignment in plan:
        place = replace(assignment, count=0)
        counts[place] = counts.get(place, 0) + assignment.count
    return tuple(replace(place, count=count) for place, count in counts.items())


# --- why ----------------------------------------------------------------------------------------------------


def why(group: Group, nodes: Sequence[NodeView], *, shared: Sequence[Cause] = ()) -> tuple[Cause, ...]:
    """Why the group's tasks wait: one cause a line, those of most nodes first. Empty when none waits.

    shared: what holds it up whatever the node, such as a limit. A node that refuses for good, or takes no
    work at all, is told only by that: the rest would not help.
    """
    causes = [Cause(text=text, is_momentary=True) for text in group.holds]
    if group.ready <= 0:
        return tuple(causes)
    if group.max_running is not None and group.job_running >= group.max_running:
        text = (
            f"max running {group.max_running} reached: waits for one of its tasks to end, or for "
            f"`farm change {group.job_id} --max-running N`"
        )
        causes.append(Cause(text=text, is_momentary=True))
    causes += shared
    is_held_up = bool(shared)
    if not nodes:
        return (*causes, Cause(text="no node has enrolled yet", is_momentary=True))
    by_reason: dict[tuple[bool, bool, str], list[NodeId]] = defaultdict(list)
    for node in nodes:
        if node.id in group.avoid:
            by_reason[False, False, "avoided, tasks of this step failed there"].append(node.id)
            continue
        found = tuple(refusals(group.demand, node))
        decisive = [refusal for refusal in found if not refusal.is_momentary]
        decisive = decisive or [refusal for refusal in found if refusal.kind is RefusalKind.NOT_ACCEPTING]
        for refusal in decisive or found:
            is_busy = refusal.kind in _BUSY
            by_reason[refusal.is_momentary, is_busy, refusal.text].append(node.id)
        if not found and not is_held_up:
            by_reason[True, False, "fits and has room: starts with the next match"].append(node.id)
    told = []
    for (is_momentary, is_busy, text), ids in by_reason.items():
        who = str(ids[0]) if len(ids) == 1 else plural(len(ids), "node")
        line = f"{who}: fits, but {text}" if is_busy else f"{who}: {text}"
        told.append(Cause(text=line, node_ids=tuple(ids), is_momentary=is_momentary))
    told.sort(key=lambda cause: (-cause.count, cause.text))
    return (*causes, *told)
