"""The table of known GPU models: exact lookups by name."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PATH = Path(__file__).with_name("catalogue.toml")
_VENDOR_WORDS = re.compile(r"\b(?:nvidia|amd|intel|advanced micro devices)\b|\((?:r|tm|c)\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model's published figures."""

    name: str
    vendor: str
    architecture: str
    fp32_tflops: float
    """10^12 FLOP/s that rendering code can hope for: half of the vendor's figure where that counts pairs."""
    memory_bandwidth_gbps: float
    vram_mib: int
    ray_tracing_generation: int
    tdp_w: float
    pcie_generation: int | None
    pcie_width: int | None


def key(name: str) -> str:
    """What spellings of one model have in common: no vendor, no signs, no case, no trailing "Graphics"."""
    bare = _VENDOR_WORDS.sub(" ", name).lower()
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\bgraphics\s*\Z", "", bare.strip()))


def look_up(name: str, vendor: str = "nvidia") -> Model | None:
    """The model of exactly this name, never of a name that only begins alike."""
    return models().get((vendor, key(name)))


@cache
def models() -> dict[tuple[str, str], Model]:
    """Every model by vendor and `key`."""
    found: dict[tuple[str, str], Model] = {}
    for entry in tomllib.loads(_PATH.read_text(encoding="utf-8"))["gpu"]:
        pcie = re.fullmatch(r"(\d+)(?:\.\d+)?x(\d+)", entry["pcie"])
        found[entry["vendor"], key(entry["name"])] = Model(
            name=entry["name"],
            vendor=entry["vendor"],
            architecture=entry["arch"],
            fp32_tflops=entry["fp32_tflops"] * (0.5 if entry.get("dual_issue") else 1.0),
            memory_bandwidth_gbps=float(entry["mem_bw_gbs"]),
            vram_mib=round(entry["vram_gb"] * 1024),
            ray_tracing_generation=entry["rt_gen"],
            tdp_w=float(entry["tdp_w"]),
            pcie_generation=int(pcie[1]) if pcie else None,
            pcie_width=int(pcie[2]) if pcie else None,
        )
    return found
