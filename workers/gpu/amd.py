"""AMD GPUs through `amdsmi`, an optional extra. Not run on hardware yet: `docs/gpus.md` says what that means.

`amdsmi` prints and raises KeyError where there is no ROCm, and its errors share no base worth naming: so
whatever it raises means "cannot say".
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from farm.model.machines import Device, DeviceKind
from farm.text import clean
from workers.gpu import catalogue, peaks
from workers.gpu.provider import Process, Sample

_LOG = logging.getLogger(__name__)


def load_amdsmi() -> Any:
    """The started binding. Raises whatever it raises."""
    with contextlib.redirect_stdout(io.StringIO()):
        import amdsmi

        amdsmi.amdsmi_init()
    return amdsmi


@dataclass(frozen=True, slots=True)
class _Known:
    handle: Any
    clock_most_mhz: float | None


class Amd:
    """See `GpuProvider`."""

    vendor = "amd"
    node_fault = ""

    def __init__(self, load: Callable[[], Any] = load_amdsmi) -> None:
        self._load = load
        self._smi: Any = None
        self._is_loaded = False
        self._known: dict[str, _Known] = {}
        self.notes: tuple[str, ...] = ()

    def devices(self) -> tuple[Device, ...]:
        if not self._is_loaded:
            self._is_loaded = True
            try:
                self._smi = self._load()
            except Exception as error:  # noqa: BLE001 - KeyError, OSError, its own: there is no AMD here
                _LOG.debug("no AMD GPUs: %s", error)
        if self._smi is None:
            return ()
        handles = self._ask("amdsmi_get_processor_handles") or []
        found: dict[str, Device] = {}
        known: dict[str, _Known] = {}
        for index, handle in enumerate(handles):
            device = self._device(index, handle)
            if device is None or device.id in found:
                continue
            found[device.id] = device
            known[device.id] = _Known(handle=handle, clock_most_mhz=self._clock(handle, "max_clk"))
        self._known = known
        return tuple(found.values())

    def _device(self, index: int, handle: Any) -> Device | None:
        asic = self._ask("amdsmi_get_gpu_asic_info", handle) or {}
        vram = self._ask("amdsmi_get_gpu_vram_info", handle) or {}
        uuid = self._ask("amdsmi_get_gpu_device_uuid", handle)
        bdf = self._ask("amdsmi_get_gpu_device_bdf", handle)
        if not uuid:
            self.notes = (f"AMD GPU {index} does not tell what it is and is left out",)
            return None
        name = clean(str(asic.get("market_name") or "AMD GPU"), limit=100, one_line=True)
        model = catalogue.look_up(name, self.vendor)
        bandwidth = peaks.settle(
            {
                peaks.CATALOGUE: model.memory_bandwidth_gbps if model else None,
                peaks.DRIVER: _positive(vram.get("vram_max_bandwidth")),
            }
        )
        driver = (self._ask("amdsmi_get_gpu_driver_info", handle) or {}).get("driver_version")
        vram_mib = _positive(vram.get("vram_size"))
        unknown = {} if model else {"fp32_tflops": "not in the catalogue, and the driver does not tell"}
        if bandwidth.value is None:
            unknown["memory_bandwidth_gbps"] = "neither the catalogue nor the driver tells"
        sources = {"fp32_tflops": peaks.CATALOGUE, "tdp_w": peaks.CATALOGUE} if model else {}
        if bandwidth.value is not None:
            sources["memory_bandwidth_gbps"] = bandwidth.source
        return Device(
            id=clean(str(uuid), limit=80, one_line=True),
            kind=DeviceKind.GPU,
            model=name,
            fp32_tflops=model.fp32_tflops if model else None,
            memory_bandwidth_gbps=bandwidth.value,
            vram_mib=None if vram_mib is None else int(vram_mib),
            source=peaks.CATALOGUE if model else peaks.DRIVER,
            vendor=self.vendor,
            pci=None if not bdf else clean(str(bdf).lower(), limit=20, one_line=True),
            driver=None if not driver else clean(str(driver), limit=60, one_line=True),
            architecture=model.architecture if model else None,
            api=clean(str(asic.get("target_graphics_version") or ""), limit=20, one_line=True) or None,
            ray_tracing_generation=model.ray_tracing_generation if model else None,
            tdp_w=model.tdp_w if model else None,
            backends=("hip",),
            telemetry=tuple(
                name
                for name, function in (
                    ("busy", "amdsmi_get_gpu_activity"),
                    ("memory", "amdsmi_get_gpu_vram_usage"),
                    ("power", "amdsmi_get_power_info"),
                    ("energy", "amdsmi_get_energy_count"),
                    ("processes", "amdsmi_get_gpu_process_list"),
                )
                if self._ask(function, handle) is not None
            ),
            # ROCr hides all others first; what is left is HIP's number 0.
            visible={"ROCR_VISIBLE_DEVICES": _rocr_name(asic, index), "HIP_VISIBLE_DEVICES": "0"},
            sources=sources,
            unknown=unknown,
        )

    def samples(self, *, with_processes: bool) -> tuple[Sample, ...]:
        return tuple(self._sample(i, known, with_processes) for i, known in self._known.items())

    def _sample(self, device_id: str, known: _Known, with_processes: bool) -> Sample:
        handle = known.handle
        activity = self._ask("amdsmi_get_gpu_activity", handle) or {}
        usage = self._ask("amdsmi_get_gpu_vram_usage", handle) or {}
        power = self._ask("amdsmi_get_power_info", handle) or {}
        energy = self._ask("amdsmi_get_energy_count", handle) or {}
        total, used = _number(usage.get("vram_total")), _number(usage.get("vram_used"))
        watts = _positive(power.get("current_socket_power")) or _positive(power.get("average_socket_power"))
        counter, unit_uj = (
            _number(energy.get("energy_accumulator")),
            _number(energy.get("counter_resolution")),
        )
        sensor = getattr(self._smi, "AmdSmiTemperatureType", None)
        metric = getattr(self._smi, "AmdSmiTemperatureMetric", None)
        temperature = None
        if sensor is not None and metric is not None:
            temperature = _number(self._ask("amdsmi_get_temp_metric", handle, sensor.HOTSPOT, metric.CURRENT))
        return Sample(
            device_id=device_id,
            busy=_percent(activity.get("gfx_activity")),
            memory_busy=_percent(activity.get("umc_activity")),
            vram_total_mib=None if total is None else int(total),
            vram_used_mib=None if used is None else int(used),
            vram_free_mib=None if total is None or used is None else max(int(total - used), 0),
            temperature_c=temperature,
            power_w=watts,
            energy_j=None if counter is None or unit_uj is None else counter * unit_uj / 1e6,
            clock_mhz=self._clock(handle, "clk"),
            clock_most_mhz=known.clock_most_mhz,
            processes=self._processes(handle) if with_processes else None,
        )

    def _processes(self, handle: Any) -> tuple[Process, ...] | None:
        listed = self._ask("amdsmi_get_gpu_process_list", handle)
        if not isinstance(listed, list):
            return None
        found = []
        for entry in listed:
            if isinstance(entry, dict) and isinstance(entry.get("pid"), int):
                used = _number((entry.get("memory_usage") or {}).get("vram_mem"))
                vram_mib = None if used is None else int(used // (1024 * 1024))
                found.append(Process(pid=entry["pid"], vram_mib=vram_mib))
        return tuple(found)

    def _clock(self, handle: Any, which: str) -> float | None:
        kind = getattr(self._smi, "AmdSmiClkType", None)
        if kind is None:
            return None
        return _positive((self._ask("amdsmi_get_clock_info", handle, kind.GFX) or {}).get(which))

    def faults(self) -> dict[str, str]:
        return {}

    def _ask(self, function: str, *arguments: Any) -> Any:
        call = getattr(self._smi, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except Exception:  # noqa: BLE001 - see the top: it means "cannot say"
            return None


def _rocr_name(asic: dict[str, Any], index: int) -> str:
    """ROCr's name of the device: by its serial, which survives a reboot, else its number."""
    serial = str(asic.get("asic_serial") or "").lower().removeprefix("0x")
    is_serial = serial and serial.strip("0") and all(c in "0123456789abcdef" for c in serial)
    return f"GPU-{serial}" if is_serial else str(index)


def _number(value: Any) -> float | None:
    """A finite number, not below 0; amdsmi says "N/A" where it cannot say."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < 2**63 else None


def _positive(value: Any) -> float | None:
    return _number(value) or None


def _percent(value: Any) -> float | None:
    number = _number(value)
    return None if number is None else min(number / 100, 1.0)
