"""Intel GPUs through `pyzes` (Level Zero Sysman), an optional extra. Not run on hardware yet: `docs/gpus.md`.

The binding hands C functions through: each answers a code, 0 for success, and fills structs in. It raises
OSError where there is no Level Zero loader.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from farm.model.machines import Device, DeviceKind
from farm.text import clean
from workers.gpu import catalogue, peaks
from workers.gpu.provider import Sample

_LOG = logging.getLogger(__name__)
_MIB = 1024 * 1024
_MOST = 64
_ENGINE_ALL = 0
"""ZES_ENGINE_GROUP_ALL."""


def load_pyzes() -> Any:
    """The started binding. Raises whatever it raises."""
    import pyzes

    if pyzes.zesInit(0) != 0:
        raise OSError("Level Zero Sysman does not start")
    return pyzes


@dataclass(slots=True)
class _Known:
    memories: list[Any]
    engines: list[Any]
    powers: list[Any]
    temperatures: list[Any]
    bandwidth_before: tuple[int, int] | None = None
    """(bytes read and written, microseconds)"""
    activity_before: tuple[int, int] | None = None
    """(microseconds busy, microseconds)"""


class Intel:
    """See `GpuProvider`."""

    vendor = "intel"
    node_fault = ""

    def __init__(self, load: Callable[[], Any] = load_pyzes) -> None:
        self._load = load
        self._zes: Any = None
        self._is_loaded = False
        self._known: dict[str, _Known] = {}
        self.notes: tuple[str, ...] = ()

    def devices(self) -> tuple[Device, ...]:
        if not self._is_loaded:
            self._is_loaded = True
            try:
                self._zes = self._load()
            except Exception as error:  # noqa: BLE001 - OSError and others: there is no Intel GPU here
                _LOG.debug("no Intel GPUs: %s", error)
        if self._zes is None:
            return ()
        found: dict[str, Device] = {}
        known: dict[str, _Known] = {}
        index = 0
        for driver in self._list("zesDriverGet", "zes_driver_handle_t"):
            for handle in self._list("zesDeviceGet", "zes_device_handle_t", driver):
                device = self._device(index, handle)
                index += 1
                if device is None or device.id in found:
                    continue
                found[device.id] = device
                known[device.id] = _Known(
                    memories=self._list("zesDeviceEnumMemoryModules", "zes_mem_handle_t", handle),
                    engines=self._list("zesDeviceEnumEngineGroups", "zes_engine_handle_t", handle),
                    powers=self._list("zesDeviceEnumPowerDomains", "zes_pwr_handle_t", handle),
                    temperatures=self._list("zesDeviceEnumTemperatureSensors", "zes_temp_handle_t", handle),
                )
        self._known = known
        return tuple(found.values())

    def _device(self, index: int, handle: Any) -> Device | None:
        properties = self._struct("zesDeviceGetProperties", "zes_device_properties_t", handle)
        if properties is None:
            self.notes = (f"Intel GPU {index} does not tell what it is and is left out",)
            return None
        name = _text(properties.modelName) or "Intel GPU"
        model = catalogue.look_up(name, self.vendor)
        memories = self._list("zesDeviceEnumMemoryModules", "zes_mem_handle_t", handle)
        states = [s for m in memories if (s := self._struct("zesMemoryGetState", "zes_mem_state_t", m))]
        rates = [
            b.maxBandwidth
            for m in memories
            if (b := self._struct("zesMemoryGetBandwidth", "zes_mem_bandwidth_t", m)) is not None
        ]
        bandwidth = peaks.settle(
            {
                peaks.CATALOGUE: model.memory_bandwidth_gbps if model else None,
                peaks.DRIVER: sum(rates) / 1e9 if rates else None,
            }
        )
        unknown = {} if model else {"fp32_tflops": "not in the catalogue, and the driver does not tell"}
        if bandwidth.value is None:
            unknown["memory_bandwidth_gbps"] = "neither the catalogue nor the driver tells"
        sources = {"fp32_tflops": peaks.CATALOGUE} if model else {}
        if bandwidth.value is not None:
            sources["memory_bandwidth_gbps"] = bandwidth.source
        uuid = bytes(properties.core.uuid.id).hex()
        return Device(
            id=f"intel-{uuid}",
            kind=DeviceKind.GPU,
            model=name,
            fp32_tflops=model.fp32_tflops if model else None,
            memory_bandwidth_gbps=bandwidth.value,
            vram_mib=sum(s.size for s in states) // _MIB if states else None,
            source=peaks.CATALOGUE if model else peaks.DRIVER,
            vendor=self.vendor,
            driver=_text(properties.driverVersion) or None,
            architecture=model.architecture if model else None,
            ray_tracing_generation=model.ray_tracing_generation if model else None,
            tdp_w=model.tdp_w if model else None,
            backends=("oneapi",),
            telemetry=("busy", "memory", "power", "energy", "temperature"),
            # Level Zero knows no UUIDs here; its numbers follow PCI order.
            visible={"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1", "ZE_AFFINITY_MASK": str(index)},
            sources=sources,
            unknown=unknown,
        )

    def samples(self, *, with_processes: bool) -> tuple[Sample, ...]:
        return tuple(self._sample(i, known) for i, known in self._known.items())

    def _sample(self, device_id: str, known: _Known) -> Sample:
        states = [s for m in known.memories if (s := self._struct("zesMemoryGetState", "zes_mem_state_t", m))]
        total, free = sum(s.size for s in states) // _MIB, sum(s.free for s in states) // _MIB
        energies = [
            e.energy
            for p in known.powers[:1]  # the first domain is the card's
            if (e := self._struct("zesPowerGetEnergyCounter", "zes_power_energy_counter_t", p)) is not None
        ]
        degrees = [t for s in known.temperatures if (t := self._temperature(s)) is not None]
        return Sample(
            device_id=device_id,
            busy=self._busy(known),
            memory_busy=self._memory_busy(known),
            vram_total_mib=total if states else None,
            vram_used_mib=max(total - free, 0) if states else None,
            vram_free_mib=free if states else None,
            temperature_c=max(degrees, default=None),
            energy_j=energies[0] / 1e6 if energies else None,
        )

    def _busy(self, known: _Known) -> float | None:
        for engine in known.engines:
            properties = self._struct("zesEngineGetProperties", "zes_engine_properties_t", engine)
            if properties is None or properties.type != _ENGINE_ALL:
                continue
            stats = self._struct("zesEngineGetActivity", "zes_engine_stats_t", engine)
            if stats is None:
                return None
            before, known.activity_before = known.activity_before, (stats.activeTime, stats.timestamp)
            if before is None or stats.timestamp <= before[1]:
                return None
            return _share((stats.activeTime - before[0]) / (stats.timestamp - before[1]))
        return None

    def _memory_busy(self, known: _Known) -> float | None:
        """Bytes that were moved, of those that could have been."""
        told = [
            b
            for m in known.memories
            if (b := self._struct("zesMemoryGetBandwidth", "zes_mem_bandwidth_t", m)) is not None
        ]
        most = sum(b.maxBandwidth for b in told)
        if not told or not most:
            return None
        moved, at = sum(b.readCounter + b.writeCounter for b in told), told[0].timestamp
        before, known.bandwidth_before = known.bandwidth_before, (moved, at)
        if before is None or at <= before[1]:
            return None
        return _share((moved - before[0]) / ((at - before[1]) / 1e6) / most)

    def _temperature(self, sensor: Any) -> float | None:
        value = ctypes.c_double()
        degrees = value.value if self._call("zesTemperatureGetState", sensor, ctypes.byref(value)) else None
        return degrees if degrees is not None and 0 <= degrees < 200 else None

    def faults(self) -> dict[str, str]:
        return {}

    # --- the C way of asking ---

    def _list(self, function: str, kind: str, *owner: Any) -> list[Any]:
        count = ctypes.c_uint32(0)
        if not self._call(function, *owner, ctypes.byref(count), None) or not 0 < count.value <= _MOST:
            return []
        handles = (getattr(self._zes, kind) * count.value)()
        if not self._call(function, *owner, ctypes.byref(count), handles):
            return []
        return list(handles)[: count.value]

    def _struct(self, function: str, kind: str, handle: Any) -> Any:
        make = getattr(self._zes, kind, None)
        if make is None:
            return None
        struct = make()
        return struct if self._call(function, handle, ctypes.byref(struct)) else None

    def _call(self, function: str, *arguments: Any) -> bool:
        call = getattr(self._zes, function, None)
        if call is None:
            return False
        try:
            return bool(call(*arguments) == 0)
        except Exception:  # noqa: BLE001 - a binding in beta: it means "cannot say"
            return False


def _share(value: float) -> float:
    return min(max(float(value), 0.0), 1.0)


def _text(value: bytes) -> str:
    return clean(value.decode("utf-8", "replace"), limit=100, one_line=True)
