"""Asks for devices, or to be rid of some, by the prices that the leader has set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from farm.flow.run_times import FarmState, model_key
from farm.flow.scaling import Watch, decide, told_of
from farm.model.events import EventKind
from farm.model.machines import Node
from farm.model.scaling import ModelNow, ScaleRule, Scaling
from farm.model.states import NodeState
from farm.store import events, hooks, learnt, nodes
from farm.store.engine import read_clock, writing

_LOOK_S: Final = 5.0
EVENTS: Final[Mapping[Scaling, EventKind]] = {
    Scaling.GROW: EventKind.GROWTH_ASKED,
    Scaling.SHRINK: EventKind.SHRINKING_ASKED,
}


class Scaler:
    """Several may run at once, in as many processes: what one has asked for another does not ask again."""

    def __init__(
        self,
        engine: sa.Engine,
        rules: Mapping[str, ScaleRule],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._rules = rules
        self._clock = clock
        self._watches = dict.fromkeys(rules, Watch())
        self._looked_at = -_LOOK_S

    def round(self) -> list[tuple[str, ScaleRule, dict[str, Any]]]:
        """What is to be asked for now: (rule's name, rule, what its receiver is told)."""
        now = self._clock()
        if not self._rules or now - self._looked_at < _LOOK_S:
            return []
        self._looked_at = now
        asked = []
        with writing(self._engine) as db:
            hooks.alone(db)
            farm, known = learnt.read_farm(db), nodes.list_nodes(db)
            at = read_clock(db)
            for name, rule in self._rules.items():
                seen = model_now(rule.model, farm, known)
                self._watches[name], wanted = decide(rule, self._watches[name], seen, now)
                if wanted is None or events.happened_since(
                    db, EVENTS[wanted], actor=_actor(name), since=at - rule.for_s / 2
                ):
                    continue
                told = told_of(name, rule, wanted, seen, at=at)
                events.happened(db, EVENTS[wanted], told["text"], actor=_actor(name))
                asked.append((name, rule, told))
        return asked


def _actor(name: str) -> str:
    return f"scale {name}"


def model_now(model: str, farm: FarmState, known: list[Node]) -> ModelNow:
    """Slots and idle nodes count while the nodes are online and take work."""
    _, price = farm.prices.get(model, (0.0, 0.0))
    slots, idle = 0, []
    for node in known:
        mine = sum(each.slots for each in node.capabilities.devices if model_key(each) == model)
        if mine and node.state is NodeState.ONLINE:
            slots += mine
            if not node.attempts:
                idle.append(str(node.id))
    return ModelNow(one_more_saves_s=price * farm.bound_s, slots=slots, idle_nodes=tuple(idle))
