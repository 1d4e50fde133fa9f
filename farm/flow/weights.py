"""The one table of weights by which the predictive policy decides, and when which of them holds.

`docs/matching.md` shows the same table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from farm.errors import UserError


class Order(StrEnum):
    """Which of nearly equal matches comes first, after priority and share."""

    SHORTEST = "shortest"
    """The group with the least work left, which ages: waiting halves its work again and again."""
    SUBMITTED = "submitted"
    """The oldest job."""


class PriorityMode(StrEnum):
    RANK = "rank"
    """Among near-equals nothing of a lower priority starts before what is higher."""
    RATE = "rate"
    """Of a user's jobs one of priority 100 gets twice what one of 50 gets; nobody waits for ever."""


def _weight(default: Any, what: str) -> Any:
    return field(default=default, metadata={"what": what})


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    order: Order = _weight(
        Order.SHORTEST, "which near-equal comes first: `shortest` work left (aged), or first `submitted`"
    )
    priority_mode: PriorityMode = _weight(
        PriorityMode.RANK, "`rank`: higher priority first; `rate`: priority is a share of the farm"
    )
    window: float = _weight(
        0.75,
        "matches worth at least this share of the best one are near-equal: among them priority, share and "
        "order decide. Matching overrides priority only where obeying it would waste more than 1 - window",
    )
    urgent_from: int = _weight(90, "from this priority on matching overrides priority never")
    slow_penalty: float = _weight(
        3.0, "how much a long task minds a slow device, per average task time that it takes longer there"
    )
    caution: float = _weight(
        0.5, "how much doubt counts against a device: 0.5 takes expected seconds, more avoids the unknown"
    )
    finish_ease: float = _weight(
        0.9,
        "how much less the last task of a step minds a slow device (its last two half of that, and so on)",
    )
    slow_cap: float = _weight(
        1.7,
        "a longer than average task does not start where it takes more than this times its farm-wide mean",
    )
    cap_patience_s: float = _weight(
        3600.0, "a group that started nothing for so long starts one task anywhere"
    )
    backlog_s: float = _weight(
        1200.0,
        "as waiting work takes the farm longer than this, throughput counts: the cap opens, the window "
        "narrows among those of one priority and share, first tasks of unknown steps lead",
    )
    stay: float = _weight(
        4.0,
        "a device leaves the scene that it has loaded for a near-equal only if that has less than 1/stay of "
        "the work left",
    )
    age_s: float = _weight(1200.0, "waiting this long halves the work left in the order, and so on")
    probe_tasks: int = _weight(
        6,
        "of a step that nothing is known of so many start before the first is done, more only on devices "
        "that would be idle else",
    )
    trial_worth: float = _weight(
        0.5,
        "a task may go to a device model of which little is known, for what that teaches: so much of what "
        "each task that is left may gain by it counts; 0: never",
    )
    idle_in_tail: bool = _weight(
        True, "leave a slow device idle when better ones will have done all that waits before it would"
    )
    fair_share: bool = _weight(True, "users with less use (in price units) per share come first")
    share_half_life_s: float = _weight(4 * 3600.0, "use counts half after so long")
    reprice_s: float = _weight(20.0, "prices are set anew this often, and when jobs come or go")
    energy: float = _weight(
        0.02,
        "how much watt-seconds count against a device, by their logarithm over the least: 0.02 breaks ties, "
        "more trades time for energy",
    )
    load_weight: float = _weight(0.5, "how much loading a scene counts: 0 ignores warm devices")
    cached_scenes: int = _weight(
        4, "a node is taken to have the files of so many scenes in its cache, those that it read last"
    )

    @classmethod
    def from_table(cls, table: Mapping[str, Any], base: Weights | None = None) -> Weights:
        """Those of a settings table over `base`. Raises UserError that names the wrong key."""
        known = {f.name: f for f in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key not in known:
                raise UserError(f"unknown weight {key!r}; weights are: {', '.join(sorted(known))}")
            default: Any = known[key].default
            try:
                kind: Any = type(default)
                if isinstance(default, bool) and not isinstance(value, bool):
                    raise ValueError
                values[key] = kind(value)
            except (TypeError, ValueError):
                raise UserError(f"weight {key!r} cannot be {value!r}") from None
        weights = replace(base or cls(), **values)
        if not 0 < weights.window <= 1:
            raise UserError(f"weight 'window' must be above 0 and at most 1, not {weights.window:g}")
        for key in ("age_s", "slow_cap", "cap_patience_s", "backlog_s", "share_half_life_s", "reprice_s"):
            if not getattr(weights, key) > 0:
                raise UserError(f"weight {key!r} must be above 0")
        return weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Hours of the day in which other weights hold; may pass midnight."""

    name: str
    from_hour: float
    to_hour: float
    weights: Weights

    def holds(self, hour: float) -> bool:
        if self.from_hour <= self.to_hour:
            return self.from_hour <= hour < self.to_hour
        return hour >= self.from_hour or hour < self.to_hour


def weights_at(hour: float, always: Weights, periods: Sequence[Period]) -> tuple[str, Weights]:
    """(name of the period, its weights) at an hour of the day (0 to 24); the first period that holds."""
    for period in periods:
        if period.holds(hour):
            return period.name, period.weights
    return "always", always
