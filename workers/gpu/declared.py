"""GPUs that a file declares, to try a mixed farm without any. Every view marks them as declared."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from farm.errors import UserError
from farm.model.machines import DECLARED_MARK, Device, DeviceKind
from farm.text import clean
from workers.gpu import catalogue, peaks

_KEYS: Final = {
    "model": str,
    "vendor": str,
    "kind": str,
    "count": int,
    "slots": int,
    "vram_mib": int,
    "fp32_tflops": float,
    "memory_bandwidth_gbps": float,
    "tdp_w": float,
}
_MOST: Final = 64
_HIDES: Final = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}


def declared_devices(text: str) -> tuple[Device, ...]:
    """The devices of the node `NAME` in "FILE#NAME". Figures that the file leaves out come from the
    catalogue. Raises UserError."""
    name, place, devices = _table(text)
    found: list[Device] = []
    for number, entry in enumerate(devices, 1):
        where = f"{place}, node '{name}', device {number}"
        if not isinstance(entry, dict):
            raise UserError(f'{where}: it must be a table such as {{ model = "NVIDIA L40S" }}')
        _check(entry, where)
        for _ in range(entry.get("count", 1)):
            found.append(_device(entry, len(found), name, where))
        if len(found) > _MOST:
            raise UserError(f"{place}, node '{name}': more than {_MOST} devices")
    return tuple(found)


def _table(text: str) -> tuple[str, Path, list[Any]]:
    file, _, name = text.rpartition("#")
    if not file or not name:
        raise UserError(f"devices is '{text}'; it must be FILE#NAME, such as configs/demo-nodes.toml#gpu-mix")
    place = Path(file).expanduser()
    try:
        nodes = tomllib.loads(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"devices: cannot read {place}: {error}") from error
    if name not in nodes:
        raise UserError(f"devices: {place} has no node '{name}'; it has {', '.join(sorted(nodes)) or 'none'}")
    devices = nodes[name].get("devices") if isinstance(nodes[name], dict) else None
    if not isinstance(devices, list):
        raise UserError(f"devices: node '{name}' in {place} needs a list named devices")
    return name, place, devices


def _check(entry: Mapping[str, Any], where: str) -> None:
    for key, value in entry.items():
        if key not in _KEYS:
            raise UserError(f"{where}: unknown key '{key}'; keys are {', '.join(_KEYS)}")
        kind = _KEYS[key]
        is_right = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if not is_right or (kind is not str and not 0 < value < 10**9):
            raise UserError(
                f"{where}: {key} is {value!r}; it must be a {'name' if kind is str else 'number above 0'}"
            )
    if "model" not in entry:
        raise UserError(f"{where}: it needs a model")
    if entry.get("kind", "gpu") not in ("gpu", "mig"):
        raise UserError(f"{where}: kind is '{entry['kind']}'; it is gpu or mig")
    if entry.get("vendor", "nvidia") not in _HIDES:
        raise UserError(f"{where}: vendor is '{entry['vendor']}'; it is one of {', '.join(_HIDES)}")


def _device(entry: Mapping[str, Any], index: int, node: str, where: str) -> Device:
    vendor = entry.get("vendor", "nvidia")
    model = catalogue.look_up(entry["model"], vendor)
    kind = DeviceKind(entry.get("kind", "gpu"))
    published: dict[str, float | None] = {
        "fp32_tflops": model.fp32_tflops if model else None,
        "memory_bandwidth_gbps": model.memory_bandwidth_gbps if model else None,
        "vram_mib": model.vram_mib if model else None,
        "tdp_w": model.tdp_w if model else None,
    }
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for what, catalogued in published.items():
        if what in entry:
            values[what], sources[what] = entry[what], peaks.CONFIGURED
        elif catalogued is not None:
            values[what], sources[what] = catalogued, peaks.CATALOGUE
    if "vram_mib" not in values:
        raise UserError(f"{where}: '{entry['model']}' is not in the catalogue, so it needs vram_mib")
    prefix = "MIG" if kind is DeviceKind.MIG else "GPU"
    device_id = clean(f"{prefix}-declared-{node}-{index}", limit=100, one_line=True)
    return Device(
        id=device_id,
        kind=kind,
        model=clean(entry["model"], limit=100, one_line=True) + DECLARED_MARK,
        slots=entry.get("slots", 1),
        source=peaks.CONFIGURED,
        vendor=vendor,
        architecture=model.architecture if model else None,
        ray_tracing_generation=model.ray_tracing_generation if model else None,
        is_declared=True,
        visible={_HIDES[vendor]: device_id},
        sources=sources,
        unknown={what: "neither declared nor in the catalogue" for what in published if what not in values},
        **values,
    )
