"""What the devices of this machine really give: measured once, kept by model and driver.

A measurement is believed before any specification. It needs an idle device and, for NVIDIA, nothing but the
driver (`workers.gpu.cuda_rates` runs as a program of its own). Where nothing can be measured, the figures of
catalogue and driver stand, and the device says why.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from farm.model.machines import Device, DeviceKind
from farm.settings import inherited_environment
from farm.text import clean
from workers.gpu.peaks import MEASURED
from workers.gpu.provider import Sample

_LOG = logging.getLogger(__name__)
FIGURES: Final = ("fp32_tflops", "memory_bandwidth_gbps", "host_bandwidth_gbps")
LIMIT_S: Final = 30.0
"""A device that is not measured within this time is not measured."""
_BUSY: Final = 0.1
_HELD_MIB: Final = 1024
"""With more VRAM in use than this somebody works on the device."""
_DISK_BYTES: Final = 64 * 1024 * 1024

Measure = Callable[[Device], dict[str, float] | str]
"""Figures, or why there are none."""
RayRate = Callable[[bool, Mapping[str, str]], float | str]
"""As `farm.model.plugin.Plugin.ray_rate`."""
PLUGINS: Final = "ridgeline.plugins"


def with_measurements(
    devices: Sequence[Device],
    samples: Sequence[Sample],
    cache_dir: Path,
    *,
    measures: bool = True,
    again: bool = False,
    measure: Measure | None = None,
) -> tuple[Device, ...]:
    """The devices with what was measured of them, now or before.

    measures: also measure what is not known yet, if idle; again: measure everything anew.
    """
    measure = measure or measure_gpu
    path = cache_dir / "gpus.json"
    cache = _load(path)
    loads = {sample.device_id: sample for sample in samples}
    found = []
    for device in devices:
        key = cache_key(device)
        told: Mapping[str, float] | str = cache.get(key, "not measured: `farm worker benchmark` does")
        if measures and (again or key not in cache):
            told = _busy(loads.get(device.id)) or measure(device)
            if not isinstance(told, str):
                cache[key] = dict(told)
                _save(path, cache)
        found.append(_with(device, told))
    return tuple(found)


def cache_key(device: Device) -> str:
    """Alike devices under one driver are measured once. An instance is told apart by its size."""
    return f"{device.model} / {device.driver} / {device.kind} {device.vram_mib}"


def _busy(sample: Sample | None) -> str:
    if sample is None:
        return "not measured: it cannot be asked whether it is idle"
    if (sample.busy or 0.0) >= _BUSY or (sample.vram_used_mib or 0) >= _HELD_MIB or sample.fault:
        return "not measured: it was not idle"
    return ""


def _with(device: Device, told: Mapping[str, float] | str) -> Device:
    if isinstance(told, str):
        return replace(device, unknown={**device.unknown, "host_bandwidth_gbps": told})
    values: dict[str, Any] = {name: told[name] for name in FIGURES if name in told}
    return replace(
        device,
        **values,
        source=MEASURED if "fp32_tflops" in values else device.source,
        sources={**device.sources, **dict.fromkeys(values, MEASURED)},
        unknown={name: why for name, why in device.unknown.items() if name not in values},
    )


def measure_gpu(device: Device) -> dict[str, float] | str:
    """Takes a few seconds. A crash or a hang of the driver ends the program, not us."""
    if device.vendor != "nvidia" or device.kind is DeviceKind.CPU:
        return f"not measured: there is no measurement for {device.vendor or 'this vendor'} yet"
    environment = inherited_environment(("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH"))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "workers.gpu.cuda_rates"],
            env={**environment, **device.visible},
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not measured: not done within {LIMIT_S:.0f} s"
    except OSError as error:
        return f"not measured: {error}"
    return read_rates(done.stdout)


def read_rates(output: bytes) -> dict[str, float] | str:
    """What the program printed."""
    try:
        told = json.loads(output)
    except ValueError:
        return "not measured: the measurement crashed"
    if not isinstance(told, dict) or "error" in told:
        why = told.get("error") if isinstance(told, dict) else None
        return f"not measured: {clean(str(why or 'no figures'), limit=100, one_line=True)}"
    figures = {name: float(told[name]) for name in FIGURES if _is_figure(told.get(name))}
    return figures if len(figures) == len(FIGURES) else "not measured: figures are missing"


def with_ray_rates(
    devices: Sequence[Device],
    cache_dir: Path,
    environment_of: Callable[[Device], Mapping[str, str]] = lambda device: {},
    *,
    ray_rate: RayRate | None = None,
    again: bool = False,
) -> tuple[Device, ...]:
    """The devices with their ray rates, as they were measured now or before.

    ray_rate: measures what is not known; None: nothing is measured. GPUs whose other figures could not be
    measured are not tried.
    """
    path = cache_dir / "rays.json"
    cache = _load(path, ("ray_rate_mrays",))
    found = []
    for device in devices:
        key = cache_key(device)
        told: float | str = cache.get(key, {}).get("ray_rate_mrays", "")
        if told == "":
            told = "not measured: `farm worker benchmark` does, with Blender"
        is_cpu = device.kind is DeviceKind.CPU
        if device.is_declared:
            told = "nobody has seen a declared device"
        elif ray_rate is not None and (again or isinstance(told, str)):
            if is_cpu or device.sources.get("fp32_tflops") == MEASURED:
                rate = ray_rate(not is_cpu, environment_of(device))
                told = f"not measured: {rate}" if isinstance(rate, str) else rate
            else:
                told = device.unknown.get("host_bandwidth_gbps", "not measured")
            if not isinstance(told, str):
                cache[key] = {"ray_rate_mrays": told}
                _save(path, cache)
        found.append(_with_ray_rate(device, told))
    return tuple(found)


def _with_ray_rate(device: Device, told: float | str) -> Device:
    name = "ray_rate_mrays"
    if isinstance(told, str):
        return replace(device, unknown={**device.unknown, name: clean(told, limit=150, one_line=True)})
    return replace(
        device,
        ray_rate_mrays=told,
        sources={**device.sources, name: MEASURED},
        unknown={which: why for which, why in device.unknown.items() if which != name},
    )


def ray_rate_of_plugins(points: Iterable[EntryPoint] | None = None) -> RayRate | None:
    """How a renderer that is installed measures ray rates."""
    for point in entry_points(group=PLUGINS) if points is None else points:
        try:
            plugin = point.load()
            if plugin.ray_rate is not None and plugin.version() is not None:
                return plugin.ray_rate  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises, the others are asked
            _LOG.warning("%s measures nothing: %s", point.name, clean(str(error), limit=200, one_line=True))
    return None


def disk_rates(cache_dir: Path, *, again: bool = False) -> tuple[float, float] | None:
    """(written, read) 10^6 byte/s of the disk that holds `cache_dir`: measured once, and kept there."""
    path, names = cache_dir / "disk.json", ("write_mbps", "read_mbps")
    known = _load(path, names).get("disk", {})
    if not again and len(known) == len(names):
        return known["write_mbps"], known["read_mbps"]
    rates = disk_rates_mbps(cache_dir)
    if rates is not None:
        rates = round(rates[0]), round(rates[1])
        _save(path, {"disk": dict(zip(names, rates, strict=True))})
    return rates


def disk_rates_mbps(directory: Path) -> tuple[float, float] | None:
    """(written, read) 10^6 byte/s of 64 MiB in the directory; None when it cannot be written.

    The bytes read come from the disk's cache in memory where the system cannot be told to drop them.
    """
    path = directory / ".disk-rate"
    block = os.urandom(1024 * 1024)
    try:
        begin = time.perf_counter()
        with path.open("wb") as file:
            for _ in range(_DISK_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        written_s = time.perf_counter() - begin
        with path.open("rb") as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begin = time.perf_counter()
            while file.read(len(block)):
                pass
            read_s = time.perf_counter() - begin
    except OSError as error:
        _LOG.warning("the disk's rate cannot be measured: %s", error)
        return None
    finally:
        path.unlink(missing_ok=True)
    return _DISK_BYTES / written_s / 1e6, _DISK_BYTES / max(read_s, 1e-9) / 1e6


def _is_figure(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0  # type: ignore[arg-type, operator]


def _load(path: Path, names: Sequence[str] = FIGURES) -> dict[str, dict[str, float]]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # nothing was measured yet, or by something else
    if not isinstance(told, dict):
        return {}
    return {
        key: {name: float(value[name]) for name in names if _is_figure(value.get(name))}
        for key, value in told.items()
        if isinstance(value, dict)
    }


def _save(path: Path, cache: Mapping[str, Mapping[str, float]]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(cache, indent=1), encoding="utf-8")
        os.replace(fresh, path)
    except OSError as error:
        _LOG.warning("the GPUs' figures cannot be kept and will be measured again: %s", error)


def run_benchmark(
    devices: Sequence[Device],
    samples: Sequence[Sample],
    state_dir: Path,
    *,
    again: bool,
    ray_rate: RayRate | None = None,
    environment_of: Callable[[Device], Mapping[str, str]] = lambda device: {},
) -> list[str]:
    """Measure what there is; returns the lines to print. The first device may be the CPU, measured before."""
    lines = []
    cpus = [device for device in devices if device.kind is DeviceKind.CPU]
    gpus = [device for device in devices if device.kind is not DeviceKind.CPU]
    measured = [*cpus, *with_measurements(gpus, samples, state_dir, again=again)]
    for device in with_ray_rates(measured, state_dir, environment_of, ray_rate=ray_rate, again=again):
        rays = _told(device.ray_rate_mrays, "million rays/s")
        if device.ray_rate_mrays is None:
            rays += f" ({device.unknown.get('ray_rate_mrays', 'not measured')})"
        if device.kind is DeviceKind.CPU:
            lines.append(f"{device.model}: {rays}")
            continue
        told = f"{device.model}: {_told(device.fp32_tflops, 'TFLOPS')}, "
        told += f"memory {_told(device.memory_bandwidth_gbps, 'GB/s')}, "
        told += f"from the host {_told(device.host_bandwidth_gbps, 'GB/s')}"
        lines.append(f"{told} ({device.sources.get('fp32_tflops', 'no source')}), {rays}")
        if device.sources.get("host_bandwidth_gbps") != MEASURED:
            why = device.unknown.get("host_bandwidth_gbps", "not measured")
            lines.append(f"  {why}; the figures are not this machine's own")
    rates = disk_rates(state_dir, again=again)
    if rates is not None:
        lines.append(f"disk of {state_dir}: writes {rates[0]:.0f} MB/s, reads {rates[1]:.0f} MB/s")
    return lines


def _told(value: float | None, unit: str) -> str:
    return "n/a" if value is None else f"{value:.3g} {unit}"
