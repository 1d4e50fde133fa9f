"""The light probe: what a device showed in the first seconds of an attempt, and what that was taken for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.model.work import Tag


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSample:
    """A device during the first seconds of an attempt, shares 0 to 1; None: it cannot say."""

    busy: float | None = None
    memory_busy: float | None = None
    dram_active: float | None = None
    arithmetic_active: float | None = None
    multiprocessors_active: float | None = None
    is_disturbed: bool = False
    """It was throttled, or somebody else's process worked on it too."""


class Tier(StrEnum):
    COUNTERS = "counters"
    BUSY_TIME = "busy-time"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a probe found."""

    tag: Tag
    compute_share: float | None = None
    bandwidth_share: float | None = None
    """Of memory bandwidth; None where nothing could be told."""
    confidence: float = 0.0
    tier: Tier = Tier.NONE
    busy_samples: int = 0
    device_model: str = ""
    """What the shares are relative to."""
    reason: str = ""
    """Why nothing could be told."""
