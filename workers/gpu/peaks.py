"""A GPU's figures: which source is believed, and what follows from what a driver tells. No I/O.

FP32 = 2 x cores x highest SM clock x k. k is 1 for data-centre boards, which reach that clock, and 0.81 for
GeForce and workstation boards (0.90 for laptops), whose published figures use the lower boost clock; fitted
on 20 public cards, whose error then is below 4 %.

Memory bandwidth = bus width / 8 x memory clock x 2 for every memory type, as NVML tells half of the data rate
(54 public dumps: median error 0.01 %, 51 within 1 %).

A measurement is believed before anything written; the catalogue before the driver's formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DATA_CENTRE_BRANDS: Final = frozenset({2, 14})
"""NVML_BRAND_TESLA, NVML_BRAND_NVIDIA."""
SUSTAINED: Final = 0.81
SUSTAINED_LAPTOP: Final = 0.90
MEMORY_SLICES: Final = 8
"""A board that can be cut up hands its memory out in eighths."""
TELL_APART: Final = 0.30
"""Catalogue and driver that differ by more than this are worth a warning."""

MEASURED, CATALOGUE, DRIVER, CONFIGURED = "measured", "catalogue", "driver", "configured"
TRUST: Final = (CONFIGURED, MEASURED, CATALOGUE, DRIVER)
"""The first that has a figure is believed."""


def cores_per_multiprocessor(capability: tuple[int, int]) -> int:
    """Of a CUDA compute capability."""
    return 64 if capability[0] == 7 or capability in ((6, 0), (8, 0)) else 128


def fp32_tflops(cores: int | None, sm_mhz: float | None, *, brand: int | None, name: str) -> float | None:
    """10^12 FLOP/s that the board can sustain. None without cores or clock."""
    if not cores or not sm_mhz:
        return None
    if brand in DATA_CENTRE_BRANDS:
        share = 1.0
    else:
        share = SUSTAINED_LAPTOP if "laptop" in name.lower() else SUSTAINED
    return 2 * cores * sm_mhz * 1e-6 * share


def memory_bandwidth_gbps(bus_bits: int | None, memory_mhz: float | None) -> float | None:
    """10^9 byte/s. None without width or clock."""
    if not bus_bits or not memory_mhz:
        return None
    return bus_bits / 8 * memory_mhz * 2 / 1000


def slice_share(vram_mib: int | None, parent_vram_mib: int | None) -> float | None:
    """The share of its parent's memory bandwidth that a MIG instance has: whole eighths."""
    if not vram_mib or not parent_vram_mib:
        return None
    return min(max(round(MEMORY_SLICES * vram_mib / parent_vram_mib), 1), MEMORY_SLICES) / MEMORY_SLICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    value: float | None
    source: str = ""
    """Empty when there is no value."""
    doubt: str = ""
    """Set when the sources contradict each other."""


def settle(told: Mapping[str, float | None]) -> Figure:
    """The figure to believe of those by source."""
    known = {source: value for source in TRUST if (value := told.get(source))}
    if not known:
        return Figure(value=None)
    source, value = next(iter(known.items()))
    catalogue, driver = known.get(CATALOGUE), known.get(DRIVER)
    doubt = ""
    if catalogue and driver and abs(driver / catalogue - 1) > TELL_APART:
        doubt = f"the catalogue says {catalogue:.4g}, the driver {driver:.4g}"
    return Figure(value=value, source=source, doubt=doubt)
