"""How the GPUs are, read by one thread: a wedged driver can hang a call for seconds.

Once a second (twice while a young attempt is probed) every device is asked; lists of processes, which are
dear and hold the driver's lock, every ten seconds. The farm hears the digest with each heartbeat, and at once
what crosses a threshold. What attempts use is summed up on the way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from farm.flow import probe
from farm.model.attempts import DeviceUsage
from farm.model.ids import AttemptId
from farm.model.machines import Device, DeviceKind, DeviceLoad
from farm.model.probes import Probe, ProbeSample
from workers.gpu import health
from workers.gpu.provider import GONE, GpuProvider, Sample

_LOG = logging.getLogger(__name__)
PERIOD_S: Final = 1.0
PROBE_PERIOD_S: Final = 0.5
PROCESSES_S: Final = 10.0
HOLD_S: Final = 30.0
"""A complaint counts for this long after it was last seen: throttling comes and goes by the second."""
ENUMERATE_S: Final = 60.0
"""GPUs may be cut up anew under a running agent; nothing tells of new instances."""
_IDLE_SHARE: Final = 0.02
"""Of the time: a device that is busy for less does nothing for anybody."""
SILENT_S: Final = 15.0
"""A driver that has not answered for this long is taken to be wedged."""
_CONTEXT_MIB: Final = 64
"""A process that computes on a GPU takes more of its memory than this."""


@dataclass(slots=True)
class _Watched:
    """What an attempt has used so far."""

    devices: tuple[Device, ...]
    began: float
    is_probed: bool
    active_at: float | None = None
    """When one of its devices was last seen busy; None until one has said how busy it is."""
    last: dict[str, Sample] = field(default_factory=dict)
    busy_s: float = 0.0
    busy_seen_s: float = 0.0
    memory_s: float = 0.0
    memory_seen_s: float = 0.0
    vram_peak_mib: int | None = None
    energy_j: float | None = None
    throttled_s: float = 0.0
    can_throttle: bool = False
    vram_first_mib: dict[str, int] = field(default_factory=dict)
    """Of all processes on each device, when it began."""
    is_held: bool = False
    """One of the farm's processes was seen on a device, or its VRAM grew."""
    samples: list[ProbeSample] = field(default_factory=list)

    def is_young(self, now: float) -> bool:
        return self.is_probed and now - self.began < probe.PROBE_S


class Telemetry:
    """`loads`, `begin` and `end` may be called from any thread and never block for long."""

    def __init__(
        self,
        providers: Sequence[GpuProvider],
        devices: Sequence[Device],
        *,
        own_pids: Callable[[], frozenset[int] | None] = lambda: None,
        on_change: Callable[[], None] = lambda: None,
        on_fault: Callable[[str, str], None] = lambda device_id, reason: None,
        on_devices: Callable[[tuple[Device, ...]], None] = lambda devices: None,
        period_s: float = PERIOD_S,
    ) -> None:
        """devices: what the providers enumerated, as the farm knows it. on_change: something crossed a
        threshold; on_fault(device_id, reason): a device is lost; on_devices: there are others now, as the
        providers tell them; all from the telemetry's thread."""
        self._providers = providers
        self._devices = {device.id: device for device in devices if device.kind is not DeviceKind.CPU}
        self._own_pids = own_pids
        self._on_change = on_change
        self._on_fault = on_fault
        self._on_devices = on_devices
        self._enumerated_at = time.monotonic()
        self._period_s = period_s
        self._lock = threading.Lock()
        self._loads: dict[str, DeviceLoad] = {}
        self._signs: dict[str, frozenset[str]] = {}
        self._faults: dict[str, str] = {}
        self._complaints: dict[str, tuple[float, DeviceLoad]] = {}
        self._node_fault = ""
        self._foreign: dict[str, tuple[int | None, int | None]] = {}
        self._held_devices: frozenset[str] = frozenset()
        """With a process of the farm's, when the lists of processes were last read."""
        self._watched: dict[AttemptId, _Watched] = {}
        self._polled_at = time.monotonic()
        self._processes_at = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Does nothing on a machine without GPUs."""
        if self._devices and self._providers:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def loads(self) -> tuple[DeviceLoad, ...]:
        """Of every device that can be asked; of a wedged driver's devices that they are closed."""
        with self._lock:
            silent_s = time.monotonic() - self._polled_at
            if self._loads and silent_s > max(SILENT_S, 3 * self._period_s):
                return tuple(health.silent(self._devices[i], silent_s, self._faults) for i in self._loads)
            return tuple(self._loads.values())

    @property
    def node_fault(self) -> str:
        """Why this node should take no work."""
        return self._node_fault or next((p.node_fault for p in self._providers if p.node_fault), "")

    # --- attempts ---

    def begin(self, attempt_id: AttemptId, device_ids: Sequence[str], *, is_probed: bool = True) -> None:
        """The attempt's renderer is being started on these devices; the CPU is not watched."""
        devices = tuple(self._devices[i] for i in device_ids if i in self._devices)
        if devices:
            with self._lock:
                loads = {i: self._loads[i] for i in device_ids if i in self._loads}
                self._watched[attempt_id] = _Watched(
                    devices=devices,
                    began=time.monotonic(),
                    is_probed=is_probed and len(devices) == 1,
                    vram_first_mib={
                        i: load.vram_used_mib for i, load in loads.items() if load.vram_used_mib is not None
                    },
                )

    def unused_s(self, attempt_id: AttemptId) -> float:
        """For how long the attempt's devices have been seen with no sign of it: not busy, no memory taken,
        none of the farm's processes on them. 0: it has used them, or that cannot be told."""
        with self._lock:
            watched = self._watched.get(attempt_id)
            if watched is None or watched.is_held or watched.busy_s > 0 or not watched.vram_first_mib:
                return 0.0
            return watched.busy_seen_s / len(watched.devices)

    def end(self, attempt_id: AttemptId) -> tuple[DeviceUsage | None, Probe | None]:
        """The attempt has ended: what it used, and what its first seconds said."""
        with self._lock:
            watched = self._watched.pop(attempt_id, None)
        if watched is None:
            return None, None
        models = dict.fromkeys(device.model for device in watched.devices)
        usage = DeviceUsage(
            device_model=", ".join(models),
            devices=len(watched.devices),
            seconds=round(time.monotonic() - watched.began, 3),
            busy=_ratio(watched.busy_s, watched.busy_seen_s),
            memory_busy=_ratio(watched.memory_s, watched.memory_seen_s),
            vram_peak_mib=watched.vram_peak_mib,
            energy_j=None if watched.energy_j is None else round(watched.energy_j, 1),
            throttled_s=round(watched.throttled_s, 2) if watched.can_throttle else None,
        )
        if not watched.samples:
            return usage, None
        return usage, probe.read(watched.samples, watched.devices[0].model)

    def idle_s(self, attempt_id: AttemptId) -> tuple[bool, float | None]:
        """(whether the attempt has a GPU, for how long that has not been busy; None: it cannot say)."""
        with self._lock:
            watched = self._watched.get(attempt_id)
            if watched is None:
                return False, None
            now = time.monotonic()
            is_stale = now - self._polled_at > max(SILENT_S, 3 * self._period_s)
            if watched.active_at is None or is_stale:
                return True, None
            return True, max(now - watched.active_at, 0.0)

    # --- the thread ---

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s()):
            try:
                self.poll()
            except Exception:  # noqa: BLE001 - the loop's edge: a driver's oddity must not end the telemetry
                _LOG.exception("cannot read how the GPUs are")

    def _pause_s(self) -> float:
        now = time.monotonic()
        with self._lock:
            is_probing = any(watched.is_young(now) for watched in self._watched.values())
        return min(PROBE_PERIOD_S, self._period_s) if is_probing else self._period_s

    def poll(self) -> None:
        """Ask every device once, and tell what changed."""
        now = time.monotonic()
        with_processes = now - self._processes_at >= PROCESSES_S
        samples: dict[str, Sample] = {}
        told: dict[str, str] = {}
        for provider in self._providers:
            told |= provider.faults()
            for sample in provider.samples(with_processes=with_processes):
                if sample.device_id in self._devices:
                    samples[sample.device_id] = sample
        if with_processes:
            self._processes_at = now
            self._look_at_processes(samples)
        fresh = {i: reason for i, reason in told.items() if i in self._devices}
        fresh |= {i: s.fault for i, s in samples.items() if s.fault and i not in fresh}
        fresh = {i: reason for i, reason in fresh.items() if i not in self._faults}
        node_fault = next((p.node_fault for p in self._providers if p.node_fault), "")
        with self._lock:
            self._faults |= fresh
            changed = self._take(samples) or node_fault != self._node_fault
            self._node_fault = node_fault
            for watched in self._watched.values():
                _use(watched, samples, self._sharing(), time.monotonic(), self._foreign, self._held_devices)
            self._polled_at = time.monotonic()
        is_gone = any(reason.startswith(GONE) for reason in fresh.values())
        if is_gone or now - self._enumerated_at >= ENUMERATE_S:
            self._enumerate()
        for device_id, reason in fresh.items():
            _LOG.error("%s: %s", device_id, reason)
            if device_id in self._devices:
                self._on_fault(device_id, reason)
        if changed or fresh:
            self._on_change()

    def _enumerate(self) -> None:
        """Look whether there are other devices now. One that is only not found, or lost, stays listed."""
        self._enumerated_at = time.monotonic()
        found = {device.id: device for provider in self._providers for device in provider.devices()}
        gone = {i for i, reason in self._faults.items() if reason.startswith(GONE)}
        gone |= {device.parent_id for device in found.values() if device.parent_id is not None}
        missing = self._devices.keys() & gone - found.keys()
        new = found.keys() - self._devices.keys()
        if not missing and not new:
            return
        with self._lock:
            kept = {i: device for i, device in self._devices.items() if i not in missing}
            self._devices = kept | {i: found[i] for i in found if i in new}
            for device_id in missing:
                self._loads.pop(device_id, None)
                self._signs.pop(device_id, None)
                self._faults.pop(device_id, None)
        self._on_devices(tuple(self._devices.values()))

    def look_at_processes_next(self) -> None:
        """With the next poll, not only when it is due."""
        self._processes_at = float("-inf")

    def _look_at_processes(self, samples: dict[str, Sample]) -> None:
        own = self._own_pids() if any(s.processes for s in samples.values()) else frozenset[int]()
        self._foreign = {i: health.foreign_of(s, own) for i, s in samples.items()}
        self._held_devices = frozenset(
            i for i, s in samples.items() if any(p.pid in (own or ()) for p in s.processes or ())
        )

    def _take(self, samples: dict[str, Sample]) -> bool:
        """Whether a device shows other signs than before."""
        changed = False
        for device_id, sample in samples.items():
            foreign_mib, foreign_pid = self._foreign.get(device_id, (None, None))
            load = health.load_of(
                sample,
                self._devices[device_id],
                foreign_mib=foreign_mib,
                foreign_pid=foreign_pid,
                fault=self._faults.get(device_id, ""),
            )
            load = self._held(load)
            before = self._signs.get(device_id)
            signs = health.signs(load, before or frozenset())
            changed |= before is not None and signs != before
            self._loads[device_id], self._signs[device_id] = load, signs
        return changed

    def _held(self, load: DeviceLoad) -> DeviceLoad:
        """The load, with a complaint from a moment ago."""
        now = time.monotonic()
        if load.complaint:
            self._complaints[load.device_id] = (now + HOLD_S, load)
            return load
        until, last = self._complaints.get(load.device_id, (now, load))
        return replace(load, health=last.health, complaint=last.complaint) if until > now else load

    def _sharing(self) -> dict[str, int]:
        """How many watched attempts each device has."""
        counts: dict[str, int] = {}
        for watched in self._watched.values():
            for device in watched.devices:
                counts[device.id] = counts.get(device.id, 0) + 1
        return counts


def _use(
    watched: _Watched,
    samples: dict[str, Sample],
    sharing: dict[str, int],
    now: float,
    foreign: dict[str, tuple[int | None, int | None]],
    held: frozenset[str],
) -> None:
    """Add what passed since the last sample to what the attempt has used."""
    for device in watched.devices:
        sample = samples.get(device.id)
        if sample is None or sample.fault:
            continue
        before = watched.last.get(device.id)
        watched.last[device.id] = sample
        if sample.vram_used_mib is not None and sharing.get(device.id, 1) == 1:
            own_mib = max(sample.vram_used_mib - (foreign.get(device.id, (None, None))[0] or 0), 0)
            watched.vram_peak_mib = max(watched.vram_peak_mib or 0, own_mib)
        if sample.vram_used_mib is not None:
            first_mib = watched.vram_first_mib.setdefault(device.id, sample.vram_used_mib)
            watched.is_held |= sample.vram_used_mib > first_mib + _CONTEXT_MIB
        watched.is_held |= device.id in held
        is_throttled = bool(sample.slowdowns)
        watched.can_throttle |= "slowdowns" in device.telemetry
        if watched.is_young(now):
            watched.samples.append(
                ProbeSample(
                    busy=sample.busy,
                    memory_busy=sample.memory_busy,
                    dram_active=sample.dram_active,
                    arithmetic_active=sample.arithmetic_active,
                    multiprocessors_active=sample.multiprocessors_active,
                    is_disturbed=is_throttled
                    or sharing.get(device.id, 1) > 1
                    or bool(foreign.get(device.id, (None, None))[0]),
                )
            )
        passed_s = sample.read_at - (before.read_at if before is not None else watched.began)
        if passed_s <= 0:
            continue
        if sample.busy is not None:
            if sample.busy > _IDLE_SHARE or watched.active_at is None:
                watched.active_at = now
            watched.busy_s += sample.busy * passed_s
            watched.busy_seen_s += passed_s
        if sample.memory_busy is not None:
            watched.memory_s += sample.memory_busy * passed_s
            watched.memory_seen_s += passed_s
        watched.throttled_s += passed_s if is_throttled else 0.0
        joules = _joules(before, sample, passed_s)
        if joules is not None:
            watched.energy_j = (watched.energy_j or 0.0) + joules / sharing.get(device.id, 1)


def _joules(before: Sample | None, now: Sample, passed_s: float) -> float | None:
    """By the counter where there is one, else by the power."""
    counted = before.energy_j if before is not None else None
    if counted is not None and now.energy_j is not None and now.energy_j >= counted:
        return now.energy_j - counted
    return None if now.power_w is None else now.power_w * passed_s


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None
