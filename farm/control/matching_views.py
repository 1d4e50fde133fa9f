"""What the API shows of matching: profiles, spread, prices, and nodes slow for no visible reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farm.flow.stats import Calibration, Spread, Within
from farm.model.stalls import MoveCosts
from farm.model.work import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTime:
    """What a task of a step takes on a device model, by what was learnt."""

    model: str
    runs: int
    median_s: float
    upper_s: float
    """9 times in 10 not more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    step: str
    declared: Profile
    """By tag, hints or what is usual for the renderer."""
    learnt: Profile
    """By what runs have taught; as declared until they have."""
    runs: int
    load_s: float | None = None
    vram_peak_mib: int | None = None
    spread: Spread | None = None
    """Of completion times: a task's first start to its delivery."""
    within: Within | None = None
    """The same, with the floor that is left when devices are alike."""
    times: tuple[ModelTime, ...] = ()
    """Of each device model that the farm knows, the quickest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    steps: tuple[StepProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWorth:
    """What a device model is worth to the work that waits."""

    model: str
    slots: int
    price: float
    """Of a second, in parts of the whole farm's: all slots together cost 1."""
    one_more_saves_s: float
    """Of the time that the waiting work takes at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFactor:
    node: str
    factor: float
    """How much longer it takes than others of its device model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpread:
    """The spread while one policy with its weights held."""

    policy: str
    weights: dict[str, Any]
    """Those that differ from their defaults."""
    since: float
    """Seconds since the epoch on the database's clock."""
    within: Within | None
    """None: nothing looked at was done in that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingView:
    """How matching does: spread of completion, prices, predictions, and nodes slow for no visible reason."""

    policy: str
    tasks: int
    """Looked at: the newest 200 done tasks of each of the 25 jobs that changed last."""
    spread: Spread | None
    """Of completion times: a task's first start to its delivery."""
    within: Within | None
    """Around each step's own mean."""
    policies: tuple[PolicySpread, ...]
    """The policy that holds, and the one before it: before and after a change."""
    predictions: Calibration | None
    """Of tasks' run times, told when they were sent. Guesses at steps that had not run yet do not count."""
    etas: Calibration | None
    """Of jobs' ends, told as a quarter, half and three quarters of their tasks were done."""
    waiting_bound_s: float
    """In which time no schedule drains what waits."""
    models: tuple[ModelWorth, ...]
    slow_nodes: tuple[NodeFactor, ...]
    moves: MoveCosts = MoveCosts()
    """What moving stalled attempts has cost and saved, of all jobs that are kept."""
