"""What a step's run time is made of, judged before any of it has run.

Three sources, the surest first: what the user says, what the client knows of the scene (hints), what is
usual for the renderer. Measured run times will replace all three (the profile says where it comes from).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from farm.flow.rays import is_ray_tracer
from farm.model.work import Profile, Tag

_TAGGED: Final[Mapping[Tag, tuple[float, float]]] = {
    Tag.COMPUTE: (0.85, 0.15),
    Tag.BANDWIDTH: (0.15, 0.85),
    Tag.BALANCED: (0.5, 0.5),
    Tag.LATENCY: (0.2, 0.2),
}
"""(compute share, bandwidth share) that a tag stands for."""

_PRIORS: Final[Mapping[str, tuple[float, float]]] = {
    "cycles": (0.7, 0.3),
    "eevee": (0.4, 0.6),
    "workbench": (0.3, 0.7),
    "blender": (0.65, 0.35),
    "povray": (0.85, 0.15),
    "ffmpeg": (0.3, 0.7),
    "mitsuba": (0.7, 0.3),
    "luxcore": (0.7, 0.3),
    "arnold": (0.7, 0.3),
    "renderman": (0.7, 0.3),
    "vray": (0.7, 0.3),
    "redshift": (0.6, 0.4),
    "houdini": (0.65, 0.35),
    "nuke": (0.3, 0.7),
    "synfig": (0.3, 0.7),
}
"""By engine, else by the kind of job. Educated guesses: a path tracer is mostly arithmetic, a rasteriser
mostly memory traffic. They carry low confidence."""

# CPU seconds, Blender 3.4 Cycles, measured with generated scenes on one machine; only ratios between them
# matter.
_S_PER_SAMPLE_PIXEL: Final = 0.0405 / (240 * 135)
"""Arithmetic: 24 to 192 samples and 120x68 to 480x270 lie within 10 % of this line."""
_S_PER_FRAME: Final = 0.1
"""What each half costs a frame in any case."""
_S_PER_TEXTURE_MIB: Final = 0.0061
"""Loading and sampling 16 MiB to 1 GiB of textures; does not grow with samples."""
_S_PER_MILLION_TRIANGLES: Final = 1.5
"""Subdividing and building the search tree, 0.13 to 2.1 million triangles."""
_S_PER_VOLUME: Final = 1.0
"""Not measured: a volume grid is mostly memory traffic."""
_USUAL_PIXELS: Final = 1920 * 1080

_PRIOR_CONFIDENCE: Final = 0.1
_HALF_KNOWN_CONFIDENCE: Final = 0.2
"""Arithmetic or memory traffic is known, the other is guessed."""
_HINT_CONFIDENCE: Final = 0.4
"""Scene features predict a class of run time right 6 to 8 times in 10, not more."""


def classify(tag: Tag | None, hints: Mapping[str, float | str], kind: str) -> Profile:
    """The profile of a step.

    `hints` may hold "engine", "samples", "width", "height", "texture_mib", "triangles" and "volumes" (a
    count); others, and values that are no positive finite numbers, are ignored. `kind` is the plugin that
    made the job.
    """
    engine = str(hints.get("engine", "")).lower()
    return replace(_shares(tag, hints, kind, engine), is_ray_traced=is_ray_tracer(engine, kind))


def _shares(tag: Tag | None, hints: Mapping[str, float | str], kind: str, engine: str) -> Profile:
    if tag is not None and tag is not Tag.UNKNOWN:
        compute, bandwidth = _TAGGED[tag]
        return Profile(
            compute_share=compute, bandwidth_share=bandwidth, confidence=1.0, source="user", tag=tag
        )
    prior = next((share for name, share in _PRIORS.items() if name in engine), None) or _PRIORS.get(
        kind.lower()
    )
    arithmetic = _arithmetic_s(hints)
    traffic = _traffic_s(hints)
    if arithmetic is not None and traffic is not None:
        return _profile(arithmetic, traffic, _HINT_CONFIDENCE, "hint")
    if prior is None:
        return Profile()
    compute, bandwidth = prior
    # One half known: a long one moves the prior towards itself, a short one towards the other.
    if arithmetic is not None:
        return _profile(arithmetic, bandwidth / compute * _usual_s(), _HALF_KNOWN_CONFIDENCE, "hint")
    if traffic is not None:
        return _profile(compute / bandwidth * _usual_s(), traffic, _HALF_KNOWN_CONFIDENCE, "hint")
    return _profile(compute, bandwidth, _PRIOR_CONFIDENCE, "prior")


def _usual_s() -> float:
    """What 32 samples of a full HD frame cost: the scale of an ordinary frame."""
    return 32 * _USUAL_PIXELS * _S_PER_SAMPLE_PIXEL


def _arithmetic_s(hints: Mapping[str, float | str]) -> float | None:
    samples = _number(hints, "samples")
    if samples is None:
        return None
    width, height = _number(hints, "width"), _number(hints, "height")
    pixels = width * height if width is not None and height is not None else _USUAL_PIXELS
    return samples * pixels * _S_PER_SAMPLE_PIXEL + _S_PER_FRAME


def _traffic_s(hints: Mapping[str, float | str]) -> float | None:
    costs = {
        "texture_mib": _S_PER_TEXTURE_MIB,
        "triangles": _S_PER_MILLION_TRIANGLES / 1e6,
        "volumes": _S_PER_VOLUME,
    }
    known = [amount * cost for name, cost in costs.items() if (amount := _number(hints, name)) is not None]
    return sum(known) + _S_PER_FRAME if known else None


def _number(hints: Mapping[str, float | str], name: str) -> float | None:
    try:
        value = float(hints[name])
    except (KeyError, TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _profile(compute: float, bandwidth: float, confidence: float, source: str) -> Profile:
    total = compute + bandwidth
    if total <= 0 or not math.isfinite(total):
        return Profile()
    share = round(compute / total, 3)
    tag = Tag.COMPUTE if share >= 0.6 else Tag.BANDWIDTH if share <= 0.4 else Tag.BALANCED
    return Profile(
        compute_share=share,
        bandwidth_share=round(1 - share, 3),
        confidence=confidence,
        source=source,
        tag=tag,
    )
