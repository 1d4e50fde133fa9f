"""Scale rules, of the farm's settings: when it asks for more devices of a model, or to be rid of some."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar


class Scaling(StrEnum):
    GROW = "grow"
    SHRINK = "shrink"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRule:
    """Of one device model. One of `url` and `command` is called, as a hook is."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    model: str
    """As `farm capacity` names it."""
    grow_above_s: float
    """Ask for one more while that would save more than this of the time that the waiting work takes."""
    shrink_below_s: float
    """Ask to give one back while one more would save less than this, and one is idle."""
    for_s: float = 300.0
    """A price must stay beyond the threshold for so long, and again before the next call."""
    least: int = 1
    """Slots of the model that are always kept: without any there is no price."""
    most: int | None = None
    """No more are asked for from so many slots on; None: no end."""
    url: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNow:
    """A device model on the farm now."""

    one_more_saves_s: float
    """Of the time that the waiting work takes at least; 0: nothing waits."""
    slots: int = 0
    """On nodes that take work."""
    idle_nodes: tuple[str, ...] = ()
    """Those that have such devices and run nothing."""
