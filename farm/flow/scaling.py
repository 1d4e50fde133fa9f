"""When to ask for another device of a model, or to give one back: by price, with patience.

A price between the two thresholds asks for nothing; one beyond a threshold does so after it has stayed there
for the rule's time. Utilisation is not looked at: a farm may be full of work that no more devices would end
sooner, or half empty with a job that waits for one model.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from farm.flow.hooks import check_hook
from farm.model.hooks import Hook
from farm.model.scaling import ModelNow, ScaleRule, Scaling
from farm.text import clean, duration

LEAST_S: Final = 30.0
"""Prices are set every 20 s: less patience would follow single ones."""
_NODES_TOLD: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a rule has seen so far."""

    towards: Scaling | None = None
    since: float = 0.0


def decide(rule: ScaleRule, watch: Watch, seen: ModelNow, now: float) -> tuple[Watch, Scaling | None]:
    """(the watch from now on, what to ask for now). `now`: seconds of any clock that only goes forward."""
    wanted = _wanted(rule, seen)
    if wanted is not watch.towards:
        return Watch(towards=wanted, since=now), None
    if wanted is None or now - watch.since < rule.for_s:
        return watch, None
    return Watch(towards=wanted, since=now), wanted


def _wanted(rule: ScaleRule, seen: ModelNow) -> Scaling | None:
    if seen.one_more_saves_s > rule.grow_above_s:
        return Scaling.GROW if rule.most is None or seen.slots < rule.most else None
    if seen.one_more_saves_s < rule.shrink_below_s and seen.slots > rule.least and seen.idle_nodes:
        return Scaling.SHRINK
    return None


def told_of(name: str, rule: ScaleRule, asked: Scaling, seen: ModelNow, *, at: float) -> dict[str, Any]:
    """What the receiver is told, as JSON."""
    saves = duration(seen.one_more_saves_s)
    return {
        "event": str(asked),
        "at": at,
        "text": f"{name}: one more {clean(rule.model, limit=255, one_line=True)} would save {saves}",
        "rule": name,
        "model": rule.model,
        "one_more_saves_s": round(seen.one_more_saves_s, 3),
        "slots": seen.slots,
        "idle_nodes": list(seen.idle_nodes[:_NODES_TOLD]),
    }


def receiver(rule: ScaleRule) -> Hook:
    return Hook(url=rule.url, command=rule.command)


def check_rule(name: str, rule: ScaleRule, *, hosts: Collection[str]) -> None:
    """Raise ValueError for a rule that could not work, or should not."""
    if not 0 <= rule.shrink_below_s < rule.grow_above_s:
        raise ValueError(f"scale {name}: shrink_below_s must be at least 0 and below grow_above_s")
    if not rule.for_s >= LEAST_S:
        raise ValueError(f"scale {name}: for_s must be at least {LEAST_S:g}")
    if rule.least < 1 or (rule.most is not None and rule.most < rule.least):
        raise ValueError(f"scale {name}: least must be at least 1, and most not below it")
    if not rule.model:
        raise ValueError(f"scale {name}: model is empty; farm capacity names those of the farm")
    try:
        check_hook(name, receiver(rule), hosts=hosts)
    except ValueError as error:
        raise ValueError(f"scale {name}: give a url or a command that a hook may have ({error})") from None
