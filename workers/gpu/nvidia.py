"""NVIDIA GPUs through NVML: what they can do, and how they are. The one door to pynvml.

Each datum is asked for on its own: what a driver, a MIG instance, a vGPU or WSL cannot say is None, never 0.
Errors that are the state of a GPU or a node (lost, reset required, driver and library of two versions) are
faults, not missing data. NVML is started once per process, lazily, and again in a forked child: its state is
not inherited. It is never shut down, as repeated start-ups leak descriptors.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from farm.model.machines import Device, DeviceKind
from farm.text import clean
from workers.gpu import catalogue, peaks
from workers.gpu.provider import GONE, Process, Sample

_LOG = logging.getLogger(__name__)
_MIB: Final = 1024 * 1024
_MOST_GPUS: Final = 64
_MOST_INSTANCES: Final = 16

_UNINITIALIZED, _INVALID_ARGUMENT, _NOT_FOUND = 1, 2, 6
_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _MISMATCH = 9, 12, 18
_LOST: Final = {15: "lost: it has fallen off the bus", 16: "needs a reset"}
_UNKNOWN_ERROR: Final = 999
_SILENT_POLLS: Final = 10
"""Polls in a row with nothing but unknown errors after which a device is given up: so a container looks
whose devices were taken away; only its restart helps."""

_SLOWDOWNS: Final = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Clock event reasons that cost speed. The software power cap (4) is normal at full load."""
_XID_FAULTS: Final = {
    48: "double-bit memory error",
    63: "memory row remapping",
    64: "memory row remapping failed",
    74: "NVLink error",
    79: "fell off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP time-out",
    120: "GSP error",
}
"""After these the device is drained. Others (13, 31, 43, 45, ...) are mostly the application's doing."""
_EVENT_XID: Final = 8
_EVENT_DOUBLE_BIT: Final = 2
_ARCHITECTURES: Final = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
_COMPUTE_EXCLUSIVE: Final = 3
_GPM_SM, _GPM_DRAM, _GPM_PIPES = 2, 10, (4, 5, 11, 12, 13)
"""GPM metric ids; the pipes: integer, tensor, FP64, FP32, FP16."""


class _Fault(Exception):
    """The device or the driver is of no use any more."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class _Known:
    """A device of the last enumeration."""

    handle: Any
    whole: Any
    """The GPU's handle; the same as `handle` unless it is a MIG instance."""
    is_instance: bool
    clock_most_mhz: float | None = None
    power_default_w: float | None = None
    link_most_width: int | None = None
    has_gpm: bool = False
    gpm_before: Any = None
    cannot: set[str] = field(default_factory=set)
    """Functions that this device does not support: not asked again."""
    silent_polls: int = 0


def load_nvml() -> Any:
    """The binding. Raises ImportError, OSError."""
    import pynvml

    return pynvml


class Nvidia:
    """See `GpuProvider`."""

    vendor = "nvidia"

    def __init__(self, load: Callable[[], Any] = load_nvml) -> None:
        self._load = load
        self._nvml: Any = None
        self._started_by: int | None = None
        self._known: dict[str, _Known] = {}
        self._notes: tuple[str, ...] = ()
        self._node_fault = ""
        self._events: Any = None
        self._driver: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    @property
    def node_fault(self) -> str:
        return self._node_fault

    # --- what there is ---

    def devices(self) -> tuple[Device, ...]:
        if not self._is_started():
            return ()
        notes: list[str] = []
        found: list[Device] = []
        known: dict[str, _Known] = {}
        version = self._quietly("nvmlSystemGetDriverVersion")
        self._driver = clean(_as_text(version), limit=60, one_line=True) if version else None
        for index in range(min(self._count(notes), _MOST_GPUS)):
            try:
                found += self._gpu(index, known, notes)
            except _Fault as fault:
                notes.append(f"GPU {index} is {fault}")
        for before in self._known.values():
            if before.gpm_before is not None:
                self._did("nvmlGpmSampleFree", before.gpm_before)
        self._known, self._notes = known, tuple(notes)
        self._listen()
        return tuple(found)

    def _is_started(self) -> bool:
        """NVML answers in this very process."""
        if self._started_by == os.getpid():
            return self._nvml is not None
        self._started_by = os.getpid()
        self._nvml, self._events, self._known = None, None, {}
        try:
            nvml = self._load()
        except (ImportError, OSError):
            self._notes = ("nvidia-ml-py is not installed",)
            return False
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            self._take_start_error(getattr(error, "value", _UNKNOWN_ERROR), str(error))
            return False
        self._nvml = nvml
        if not str(getattr(nvml, "__file__", "pynvml.py")).endswith("pynvml.py"):
            _LOG.warning("%s shadows nvidia-ml-py: uninstall the package named pynvml", nvml.__file__)
        return True

    def _take_start_error(self, code: int, text: str) -> None:
        told = clean(text, limit=100, one_line=True)
        if code in (_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED):
            what = "no NVIDIA driver" if code == _LIBRARY_NOT_FOUND else "the NVIDIA driver is not loaded"
            self._notes = (what,)
            return
        if code == _MISMATCH:
            self._node_fault = (
                "the NVIDIA driver and its library are of different versions (upgraded?): reboot this node"
            )
            self._notes = (self._node_fault,)
        else:
            self._notes = (f"the NVIDIA driver does not start: {told}",)
        _LOG.warning("%s", self._notes[0])

    def _count(self, notes: list[str]) -> int:
        try:
            return self._ask("nvmlDeviceGetCount") or 0
        except _Fault as fault:
            notes.append(f"the NVIDIA driver {fault}")
            return 0

    def _gpu(self, index: int, known: dict[str, _Known], notes: list[str]) -> list[Device]:
        """The GPU, or its instances. Raises _Fault."""
        handle = self._ask("nvmlDeviceGetHandleByIndex", index)
        uuid = None if handle is None else self._text("nvmlDeviceGetUUID", handle)
        if uuid is None:
            notes.append(f"GPU {index} does not tell what it is and is left out")
            return []
        if uuid in known:
            notes.append(f"GPU {index} calls itself as another one does and is left out")
            return []
        whole = self._device(handle, uuid, notes)
        mode = self._ask("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != 1:
            known[uuid] = self._remember(handle, handle, whole, is_instance=False)
            return [whole]
        instances: list[Device] = []
        found: dict[str, _Known] = {}
        most = min(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0, _MOST_INSTANCES)
        for place in range(most):  # how many there may be: places may be empty
            part = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            part_id = None if part is None else self._text("nvmlDeviceGetUUID", part)
            if part_id is None or part_id in known or part_id in found:
                continue
            instance = self._instance(part, part_id, handle, whole)
            found[part_id] = self._remember(part, handle, instance, is_instance=True)
            instances.append(instance)
        known |= found  # all or none: the GPU may be lost in the middle
        if not instances:
            notes.append(
                f"GPU {index} ({whole.model}) is in MIG mode and has no instance: nothing can use it"
            )
        return instances

    def _device(self, handle: Any, uuid: str, notes: list[str]) -> Device:
        told = self._text("nvmlDeviceGetName", handle)
        name = clean(told or "NVIDIA GPU", limit=100, one_line=True)
        model = catalogue.look_up(name) if told else None
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        brand = self._ask("nvmlDeviceGetBrand", handle)
        sm_mhz = self._clock("nvmlDeviceGetMaxClockInfo", handle, "NVML_CLOCK_SM")
        memory = self._memory(handle)
        is_unified = memory is None and _is_integrated(name)
        formula = {
            "fp32_tflops": peaks.fp32_tflops(
                self._ask("nvmlDeviceGetNumGpuCores", handle), sm_mhz, brand=brand, name=name
            ),
            # An integrated GPU tells another clock here.
            "memory_bandwidth_gbps": None
            if is_unified
            else peaks.memory_bandwidth_gbps(
                self._ask("nvmlDeviceGetMemoryBusWidth", handle),
                self._clock("nvmlDeviceGetMaxClockInfo", handle, "NVML_CLOCK_MEM"),
            ),
        }
        figures = {
            what: peaks.settle(
                {peaks.CATALOGUE: getattr(model, what) if model else None, peaks.DRIVER: derived}
            )
            for what, derived in formula.items()
        }
        for what, figure in figures.items():
            if figure.doubt:
                notes.append(f"{name}: {what.replace('_', ' ')} is doubtful: {figure.doubt}")
        vram_mib = memory.total // _MIB if memory is not None else _host_memory_mib() if is_unified else None
        limit_mw = self._ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        tdp_w = limit_mw / 1000 if limit_mw else model.tdp_w if model else None
        architecture = _ARCHITECTURES.get(self._ask("nvmlDeviceGetArchitecture", handle) or 0)
        sources = {what: figure.source for what, figure in figures.items() if figure.value is not None}
        if vram_mib is not None:
            sources["vram_mib"] = peaks.DRIVER
        if tdp_w is not None:
            sources["tdp_w"] = peaks.DRIVER if limit_mw else peaks.CATALOGUE
        unknown = {
            what: "neither the catalogue nor the driver tells"
            for what, f in figures.items()
            if f.value is None
        }
        if vram_mib is None:
            unknown["vram_mib"] = "the driver does not tell"
        if is_unified:
            sources["vram_mib"] = "the host's memory"
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        return Device(
            id=uuid,
            kind=DeviceKind.GPU,
            model=name,
            fp32_tflops=figures["fp32_tflops"].value,
            memory_bandwidth_gbps=figures["memory_bandwidth_gbps"].value,
            vram_mib=vram_mib,
            source=figures["fp32_tflops"].source or peaks.DRIVER,
            vendor=self.vendor,
            pci=_pci_address_of(pci),
            driver=self._driver,
            architecture=architecture or (model.architecture if model else None),
            api=None if capability is None else f"cuda {capability[0]}.{capability[1]}",
            ray_tracing_generation=model.ray_tracing_generation if model else None,
            pcie_generation=self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_width=self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            tdp_w=tdp_w,
            is_unified=is_unified,
            # OptiX runs on Maxwell and later, without ray-tracing hardware too (slower).
            backends=("cuda",) if capability is None or capability[0] < 5 else ("cuda", "optix"),
            telemetry=self._telemetry(handle),
            visible={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": uuid},
            sources=sources,
            unknown=unknown,
        )

    def _instance(self, part: Any, uuid: str, handle: Any, whole: Device) -> Device:
        """A MIG instance: its own multiprocessors and memory, and its share of the GPU's bandwidth."""
        attributes = self._ask("nvmlDeviceGetAttributes_v2", part)
        memory = self._memory(part)
        vram_mib = memory.total // _MIB if memory is not None else None
        multiprocessors = attributes.multiprocessorCount if attributes is not None else None
        fp32 = None
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        if multiprocessors and capability is not None:
            fp32 = peaks.fp32_tflops(
                multiprocessors * peaks.cores_per_multiprocessor(tuple(capability)),
                self._clock("nvmlDeviceGetMaxClockInfo", handle, "NVML_CLOCK_SM"),
                brand=self._ask("nvmlDeviceGetBrand", handle),
                name=whole.model,
            )
        share = peaks.slice_share(vram_mib, whole.vram_mib)
        bandwidth = None
        if share is not None and whole.memory_bandwidth_gbps is not None:
            bandwidth = whole.memory_bandwidth_gbps * share
        values = {"fp32_tflops": fp32, "memory_bandwidth_gbps": bandwidth, "vram_mib": vram_mib}
        return Device(
            id=uuid,
            kind=DeviceKind.MIG,
            model=clean(
                self._text("nvmlDeviceGetName", part) or f"{whole.model} MIG", limit=100, one_line=True
            ),
            fp32_tflops=fp32,
            memory_bandwidth_gbps=bandwidth,
            vram_mib=vram_mib,
            source=peaks.DRIVER,
            vendor=self.vendor,
            parent_id=whole.id,
            pci=whole.pci,
            driver=whole.driver,
            architecture=whole.architecture,
            api=whole.api,
            ray_tracing_generation=whole.ray_tracing_generation,
            pcie_generation=whole.pcie_generation,
            pcie_width=whole.pcie_width,
            backends=whole.backends,
            telemetry=self._telemetry(part),
            # CUDA shows a process one instance, by UUID only.
            visible={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": uuid},
            sources={what: peaks.DRIVER for what, value in values.items() if value is not None},
            unknown={what: "the driver does not tell" for what, value in values.items() if value is None}
            | {"tdp_w": "an instance has no power limit of its own"},
        )

    def _telemetry(self, handle: Any) -> tuple[str, ...]:
        """What this device answers when asked how it is."""
        asked: dict[str, tuple[Any, ...]] = {
            "busy": ("nvmlDeviceGetUtilizationRates", handle),
            "power": ("nvmlDeviceGetPowerUsage", handle),
            "energy": ("nvmlDeviceGetTotalEnergyConsumption", handle),
            "temperature": ("nvmlDeviceGetTemperature", handle, 0),
            "processes": ("nvmlDeviceGetComputeRunningProcesses_v3", handle),
        }
        able = [name for name, question in asked.items() if self._ask(question[0], *question[1:]) is not None]
        if self._memory(handle) is not None:
            able.append("memory")
        if self._reasons(handle) is not None:
            able.append("slowdowns")
        if self._has_gpm(handle):
            able.append("gpm")
        return tuple(able)

    def _remember(self, handle: Any, whole: Any, device: Device, *, is_instance: bool) -> _Known:
        default_mw = self._ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        return _Known(
            handle=handle,
            whole=whole,
            is_instance=is_instance,
            clock_most_mhz=self._clock("nvmlDeviceGetMaxClockInfo", whole, "NVML_CLOCK_SM"),
            power_default_w=default_mw / 1000 if default_mw else None,
            link_most_width=device.pcie_width,
            has_gpm="gpm" in device.telemetry,
        )

    # --- how it is ---

    def samples(self, *, with_processes: bool) -> tuple[Sample, ...]:
        if not self._is_started():
            return ()
        return tuple(
            self._sample(device_id, known, with_processes) for device_id, known in self._known.items()
        )

    def _sample(self, device_id: str, known: _Known, with_processes: bool) -> Sample:
        try:
            return self._read(device_id, known, with_processes)
        except _Fault as fault:
            if fault.code == _INVALID_ARGUMENT:
                return Sample(device_id=device_id, fault=f"{GONE}: the GPU was cut up anew")
            return Sample(device_id=device_id, fault=str(fault))

    def _read(self, device_id: str, known: _Known, with_processes: bool) -> Sample:
        handle, whole = known.handle, known.whole
        memory = self._memory(handle, known, may_be_gone=known.is_instance)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle, known=known)
        reasons = self._reasons(whole, known)
        limit_mw = self._ask("nvmlDeviceGetEnforcedPowerLimit", whole, known=known)
        power_mw = self._ask("nvmlDeviceGetPowerUsage", handle, known=known)
        energy_mj = self._ask("nvmlDeviceGetTotalEnergyConsumption", handle, known=known)
        temperature = self._ask("nvmlDeviceGetTemperature", whole, 0, known=known)
        clock_mhz = self._clock("nvmlDeviceGetClockInfo", whole, "NVML_CLOCK_SM", known)
        self._count_silence(known, (memory, rates, temperature, power_mw, clock_mhz))
        processes = self._processes(handle, known) if with_processes else None
        gpm = self._gpm(known)
        used_mib = free_mib = total_mib = None
        if memory is not None:
            total_mib, used_mib = memory.total // _MIB, min(memory.used, memory.total) // _MIB
            free_mib = min(memory.free, memory.total) // _MIB
        return Sample(
            device_id=device_id,
            busy=None if rates is None else min(rates.gpu / 100, 1.0),
            memory_busy=None if rates is None else min(rates.memory / 100, 1.0),
            dram_active=gpm.get(_GPM_DRAM),
            arithmetic_active=max((gpm[pipe] for pipe in _GPM_PIPES if pipe in gpm), default=None),
            multiprocessors_active=gpm.get(_GPM_SM),
            vram_total_mib=total_mib,
            vram_used_mib=used_mib,
            vram_free_mib=free_mib,
            temperature_c=None if temperature is None else float(temperature),
            power_w=None if power_mw is None else power_mw / 1000,
            energy_j=None if energy_mj is None else energy_mj / 1000,
            clock_mhz=clock_mhz,
            clock_most_mhz=known.clock_most_mhz,
            slowdowns=tuple(text for bit, text in _SLOWDOWNS.items() if (reasons or 0) & bit),
            power_limit_share=None
            if limit_mw is None or not known.power_default_w
            else min(limit_mw / 1000 / known.power_default_w, 1.0),
            link_width=None
            if known.is_instance
            else self._ask("nvmlDeviceGetCurrPcieLinkWidth", whole, known=known),
            link_most_width=known.link_most_width,
            processes=processes,
            compute_mode=self._ask("nvmlDeviceGetComputeMode", handle, known=known),
        )

    def _count_silence(self, known: _Known, answers: tuple[Any, ...]) -> None:
        """Raises _Fault when the device has not said anything for long."""
        known.silent_polls = 0 if any(answer is not None for answer in answers) else known.silent_polls + 1
        if known.silent_polls >= _SILENT_POLLS:
            raise _Fault(
                _UNKNOWN_ERROR, "silent: the driver answers nothing (in a container: restart the container)"
            )

    def _reasons(self, handle: Any, known: _Known | None = None) -> int | None:
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle, known=known)
        if reasons is None:
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle, known=known)
        return None if reasons is None else int(reasons)

    def _processes(self, handle: Any, known: _Known) -> tuple[Process, ...] | None:
        """A path tracer is in the compute list, a rasteriser in the graphics list."""
        found: dict[int, Process] = {}
        is_known = False
        for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            listed = self._ask(f"{function}_v3", handle, known=known)
            if listed is None:
                listed = self._ask(f"{function}_v2", handle, known=known)  # drivers before 510
            is_known |= listed is not None
            for process in listed or ():
                used = process.usedGpuMemory
                found[process.pid] = Process(pid=process.pid, vram_mib=None if used is None else used // _MIB)
        return tuple(found.values()) if is_known else None

    def _has_gpm(self, handle: Any) -> bool:
        support = self._ask("nvmlGpmQueryDeviceSupport", handle)
        return bool(support is not None and support.isSupportedDevice)

    def _gpm(self, known: _Known) -> dict[int, float]:
        """Metric id to share since the last poll; empty at the first, and before Hopper."""
        if not known.has_gpm:
            return {}
        sample = self._ask("nvmlGpmSampleAlloc")
        if sample is None or not self._did("nvmlGpmSampleGet", known.handle, sample):
            known.has_gpm = False
            if sample is not None:
                self._did("nvmlGpmSampleFree", sample)
            return {}
        before, known.gpm_before = known.gpm_before, sample
        if before is None:
            return {}
        wanted = (_GPM_SM, _GPM_DRAM, *_GPM_PIPES)
        query = self._nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, len(wanted)
        query.sample1, query.sample2 = before, sample
        for at, metric in enumerate(wanted):
            query.metrics[at].metricId = metric
        is_done = self._did("nvmlGpmMetricsGet", query)
        self._did("nvmlGpmSampleFree", before)
        if not is_done:
            return {}
        told = [query.metrics[at] for at in range(len(wanted))]
        return {
            metric.metricId: min(max(metric.value / 100, 0.0), 1.0)
            for metric in told
            if metric.nvmlReturn == 0 and metric.value == metric.value
        }

    # --- events ---

    def _listen(self) -> None:
        """Register for Xids and uncorrected memory errors, on those GPUs that can report them."""
        if self._events is not None:
            self._did("nvmlEventSetFree", self._events)
        self._events = self._quietly("nvmlEventSetCreate")
        if self._events is None:
            return
        told = set()
        for known in self._known.values():
            if id(known.whole) in told:
                continue
            told.add(id(known.whole))
            able = self._quietly("nvmlDeviceGetSupportedEventTypes", known.whole)
            wanted = (able or 0) & (_EVENT_XID | _EVENT_DOUBLE_BIT)
            if wanted:
                self._quietly("nvmlDeviceRegisterEvents", known.whole, wanted, self._events)

    def faults(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if not self._is_started() or self._events is None:
            return found
        for _ in range(64):
            event = self._quietly("nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                break
            text = "double-bit memory error" if event.eventType == _EVENT_DOUBLE_BIT else ""
            if event.eventType == _EVENT_XID:
                code = int(event.eventData)
                text = f"Xid {code}: {_XID_FAULTS[code]}" if code in _XID_FAULTS else ""
                if not text:
                    _LOG.warning("the NVIDIA driver reports Xid %d: usually the application's doing", code)
            if text:
                found |= dict.fromkeys(self._parts_of(event.device), text)
        return found

    def _parts_of(self, handle: Any) -> list[str]:
        """Ids of the devices on the GPU of an event."""
        uuid = self._quietly("nvmlDeviceGetUUID", handle)
        address = _address(handle)
        return [
            device_id
            for device_id, known in self._known.items()
            if device_id == (None if uuid is None else _as_text(uuid)) or _address(known.whole) == address
        ]

    # --- asking ---

    def _quietly(self, function: str, *arguments: Any) -> Any:
        """None also for a lost GPU."""
        try:
            return self._ask(function, *arguments)
        except _Fault:
            return None

    def _did(self, function: str, *arguments: Any) -> bool:
        """Whether a call that answers nothing of use went well."""
        call = getattr(self._nvml, function, None)
        if call is None:
            return False
        try:
            call(*arguments)
        except self._nvml.NVMLError:
            return False
        return True

    def _clock(self, function: str, handle: Any, kind: str, known: _Known | None = None) -> float | None:
        clock = self._ask(function, handle, getattr(self._nvml, kind, None), known=known)
        return float(clock) if clock else None

    def _memory(self, handle: Any, known: _Known | None = None, *, may_be_gone: bool = False) -> Any:
        # Version 2 does not count the driver's own reserve as used.
        version_2 = getattr(self._nvml, "nvmlMemory_v2", None)
        memory = None
        if version_2 is not None:
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle, version_2, may_be_gone=may_be_gone)
        if memory is None:
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return memory if memory is not None and memory.total else None

    def _text(self, function: str, *arguments: Any) -> str | None:
        value = self._ask(function, *arguments)
        if not value:
            return None
        return clean(_as_text(value), limit=200, one_line=True) or None

    def _ask(
        self, function: str, *arguments: Any, known: _Known | None = None, may_be_gone: bool = False
    ) -> Any:
        """One question; None when it cannot be answered. Raises _Fault: the GPU or the driver is done for."""
        if known is not None and function in known.cannot:
            return None
        call = getattr(self._nvml, function, None)
        if call is None:
            return None  # an older binding
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            code = getattr(error, "value", _UNKNOWN_ERROR)
            if code in _LOST:
                raise _Fault(code, _LOST[code]) from error
            if code == _MISMATCH:
                self._take_start_error(code, "")
                raise _Fault(code, "of another version than its library: reboot this node") from error
            if code in (_UNINITIALIZED, _DRIVER_NOT_LOADED):
                raise _Fault(code, "lost: the driver was unloaded") from error
            if may_be_gone and code in (_INVALID_ARGUMENT, _NOT_FOUND):
                raise _Fault(_INVALID_ARGUMENT, GONE) from error
            if known is not None and code in (3, 13):  # not supported, function not found: for good
                known.cannot.add(function)
            return None
        except (UnicodeDecodeError, ValueError, MemoryError):
            # Some WSL drivers give garbage names and counts.
            return None
        except getattr(self._nvml, "NVMLLibraryMismatchError", UnicodeDecodeError):
            return None  # what the binding says of a driver too old for an unversioned function


def _pci_address_of(pci: Any) -> str | None:
    try:
        return None if pci is None else pci_address(_as_text(pci.busId))
    except UnicodeDecodeError:
        return None  # the binding decodes only when asked for the field


def pci_address(bus_id: str) -> str | None:
    """As Linux and CUDA write it: a domain of four digits, in lower case."""
    domain, _, rest = bus_id.partition(":")
    if not rest:
        return None
    return clean(f"{domain[-4:]}:{rest}".lower(), limit=20, one_line=True)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value if handle is not None else None


def _as_text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _is_integrated(name: str) -> bool:
    """A GPU that shares the host's memory and says so by its name."""
    lowered = name.lower()
    return any(word in lowered for word in ("orin", "xavier", "tegra", "thor", "gb10", "jetson"))


def _host_memory_mib() -> int | None:
    return int(psutil.virtual_memory().total // _MIB)
