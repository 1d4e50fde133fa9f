"""What a device does for a ray tracer, where ray-tracing hardware does part of the work."""

from __future__ import annotations

from typing import Final

from farm.model.machines import Device, DeviceKind

_TRACERS: Final = (
    "cycles", "luxcore", "arnold", "redshift", "vray", "v-ray", "octane", "renderman", "mitsuba", "pov",
)  # fmt: skip
_BY_GENERATION: Final = (0.5, 0.8, 1.0, 1.15, 1.3)
"""A ray tracer's gain from a FLOP, by the vendor's count of ray-tracing generations; the second one is usual.
Guesses: rates that were measured replace them, and run times correct them."""
_USUAL_GENERATION: Final = 2


def is_ray_tracer(engine: str, kind: str) -> bool:
    """Whether it traces rays, by the scene's engine, else by the plugin that made the job."""
    name = (engine or kind).lower()
    return any(tracer in name for tracer in _TRACERS)


def ray_factor(device: Device) -> float:
    """What a FLOP of the device gives a ray tracer, over one of a GPU of the usual generation. 1 for CPUs
    (compared among themselves) and for a GPU of which the generation is not known."""
    if device.kind is DeviceKind.CPU:
        return 1.0
    generation = device.ray_tracing_generation
    if generation is None:
        generation = _USUAL_GENERATION
    return _BY_GENERATION[min(max(generation, 0), len(_BY_GENERATION) - 1)]
