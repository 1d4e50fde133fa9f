"""What this machine offers: its devices, memory and renderers, asked for once when the agent starts."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import replace

import psutil

from farm.model.machines import Capabilities, Device, DeviceKind
from farm.settings import Settings
from farm.text import clean
from workers.benchmark import disk_rates, with_measurements, with_ray_rates
from workers.cpu_benchmark import cpu_model, measured, usable_cpus
from workers.gpu import health
from workers.gpu.amd import Amd
from workers.gpu.declared import declared_devices
from workers.gpu.intel import Intel
from workers.gpu.nvidia import Nvidia
from workers.gpu.provider import GpuProvider

_LOG = logging.getLogger(__name__)
_CPUS_PER_SLOT = 2


def default_slots(cpus: int) -> int:
    """Attempts at once on the CPU unless `slots` is set: one for every two CPUs, at least one.

    Most renderers use every core they find; two CPUs a slot keeps small frames in parallel without thrashing.
    """
    return max(1, cpus // _CPUS_PER_SLOT)


def providers(settings: Settings) -> tuple[GpuProvider, ...]:
    """Who to ask for GPUs: every vendor, or nobody when the devices are declared."""
    return () if settings.devices else (Nvidia(), Amd(), Intel())


def capabilities(
    settings: Settings, providers: Sequence[GpuProvider], software: dict[str, str]
) -> Capabilities:
    """This machine, measured: what was not measured before takes a few seconds for each device.

    Raises UserError when `settings.devices` names nothing that can be read.
    """
    cpus = usable_cpus()
    figures = measured(settings.state_dir, cpus)
    cpu = Device(
        id="cpu",
        kind=DeviceKind.CPU,
        model=clean(cpu_model(), limit=100, one_line=True),
        slots=settings.slots or default_slots(cpus),
        fp32_tflops=figures.fp32_tflops,
        memory_bandwidth_gbps=figures.memory_bandwidth_gbps,
        source="measured",
        backends=("cpu",),
        telemetry=("busy", "memory"),
        sources={"fp32_tflops": "measured", "memory_bandwidth_gbps": "measured"},
    )
    gpus = [device for provider in providers for device in provider.devices()]
    samples = [sample for provider in providers for sample in provider.samples(with_processes=False)]
    gpus = [_shared(d, settings) for d in with_measurements(gpus, samples, settings.state_dir)]
    if settings.devices:
        gpus = list(declared_devices(settings.devices))
    written, read = disk_rates(settings.state_dir) or (None, None)
    return Capabilities(
        os_family={"Darwin": "macos"}.get(platform.system(), platform.system().lower()),
        cpu_arch={"amd64": "x86_64", "aarch64": "arm64"}.get(
            platform.machine().lower(), platform.machine().lower()
        ),
        cpus=cpus,
        memory_mib=int(psutil.virtual_memory().total // (1024 * 1024)),
        pools=settings.pools,
        devices=with_ray_rates((cpu, *gpus), settings.state_dir),
        software=software,
        disk_write_mbps=written,
        disk_read_mbps=read,
        attributes=dict(settings.attributes),
        amounts=dict(settings.amounts),
        user_id=os.getuid(),
        notes=tuple(note for provider in providers for note in provider.notes),
    )


def with_gpus(before: Capabilities, gpus: Sequence[Device], settings: Settings) -> Capabilities:
    """The machine with other GPUs than before; those it had already stay as they are."""
    known = {device.id: device for device in before.devices}
    cpu = tuple(device for device in before.devices if device.kind is DeviceKind.CPU)
    fresh = with_measurements(gpus, (), settings.state_dir, measures=False)
    fresh = with_ray_rates(fresh, settings.state_dir)
    return replace(before, devices=(*cpu, *(known.get(d.id) or _shared(d, settings) for d in fresh)))


def look_at_gpus(
    settings: Settings,
) -> tuple[tuple[Device, ...], tuple[str, ...], tuple[str, ...], str]:
    """(devices, one line for each that is of no use, notes, why the node would be drained)."""
    asked = providers(settings)
    devices = tuple(device for provider in asked for device in provider.devices())
    if settings.devices:
        devices = declared_devices(settings.devices)
    known = {device.id: device for device in devices}
    loads = [
        health.load_of(sample, known[sample.device_id])
        for provider in asked
        for sample in provider.samples(with_processes=False)
    ]
    faults = tuple(
        f"{known[load.device_id].model}: {load.fault or load.closed or load.complaint}"
        for load in loads
        if load.fault or load.closed or load.complaint
    )
    notes = tuple(note for provider in asked for note in provider.notes)
    return devices, faults, notes, next((p.node_fault for p in asked if p.node_fault), "")


def _shared(device: Device, settings: Settings) -> Device:
    """With as many slots as the node's settings give a GPU."""
    return replace(device, slots=settings.gpu_slots, vram_per_task_mib=settings.gpu_task_vram_mib)
