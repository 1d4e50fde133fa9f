"""What jobs share, read from the store for a round of matching and for `farm why` alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from farm.flow import keep
from farm.flow import limits as counting
from farm.flow.groups import Cause, Group
from farm.flow.keep import KeepRules, Kept
from farm.flow.limits import Ledger
from farm.model.ids import JobId, StepId
from farm.model.limits import limits_needed
from farm.model.machines import NodeView
from farm.model.sharing import read_reservation
from farm.settings import Settings
from farm.store import limits, preempting, ready
from farm.store.engine import read_clock
from farm.text import duration, plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Empty where no rule concerns what waits: then a round pays nothing for it."""

    rules: KeepRules = field(default_factory=KeepRules)
    ledger: Ledger = field(default_factory=lambda: Ledger({}))
    user_room: Mapping[str, int] = field(default_factory=dict)
    """Of users who have a limit: how many more tasks may run."""
    idle_since: Mapping[StepId, float] = field(default_factory=dict)
    """Of wide groups: when the last of their tasks started."""
    now: float = 0.0
    asking: Collection[JobId] = ()
    """Jobs that others' tasks may be stopped for."""
    stopping: Mapping[JobId, int] = field(default_factory=dict)
    """By job, how many are."""
    loss_s: float = 0.0

    def round(
        self, groups: Sequence[Group], nodes: Sequence[NodeView]
    ) -> tuple[Sequence[Group], Mapping[str, int], Kept]:
        """(the groups with what their tasks take, how much is left of what, what is kept free)"""
        counted = counting.counted(groups, nodes, self.ledger, user_room=self.user_room)
        rules = self.rules
        if not (rules.reservations or rules.power_caps_w or self.idle_since):
            return counted.groups, counted.free, Kept(views=nodes)
        kept = keep.keep(
            counted.groups, nodes, rules, now=self.now, idle_since=self.idle_since, free=counted.free
        )
        return counted.groups, counted.free, kept

    def causes(self, group: Group, kept: Kept) -> list[Cause]:
        """Why what is shared holds a group up."""
        found = counting.causes(group, self.ledger, user_room=self.user_room)
        return found + keep.causes(group, kept, self.rules) + self._preemption(group)

    def _preemption(self, group: Group) -> list[Cause]:
        if group.job_id not in self.asking:
            return []
        count = self.stopping.get(group.job_id, 0)
        if count:
            text = f"{plural(count, 'task')} of lower priority being stopped for it"
        else:
            text = (
                f"may stop tasks of a lower priority: only staged ones that have run for less than "
                f"{duration(self.loss_s)} (preempt_loss_s)"
            )
        return [Cause(text=text, is_momentary=True)]


def read(db: sa.Connection, settings: Settings, groups: Sequence[Group]) -> Sharing:
    """What concerns these groups."""
    ledger = limits.ledger(db) if any(_needs_limits(group) for group in groups) else Ledger({})
    room: Mapping[str, int] = {}
    if settings.max_running_per_user is not None or settings.max_running_of:
        room = counting.user_room(
            limits.running_by_user(db),
            {group.user for group in groups},
            each=settings.max_running_per_user,
            named=settings.max_running_of,
        )
    rules = KeepRules(
        reservations=[read_reservation(pool, told) for pool, told in settings.reservations.items()],
        power_caps_w=settings.power_caps_w,
        wide_patience_s=settings.wide_patience_s,
    )
    idle_since: Mapping[StepId, float] = {}
    now = 0.0
    wide = [group for group in groups if group.ready > 0 and keep.is_wide(group)]
    if wide and settings.wide_patience_s is not None:
        now = read_clock(db)
        late = [group for group in wide if now - group.submitted_at >= settings.wide_patience_s]
        found = ready.idle_since(db, late)
        idle_since = {step: at for step, at in found.items() if now - at >= settings.wide_patience_s}
    return Sharing(rules=rules, ledger=ledger, user_room=room, idle_since=idle_since, now=now)


def with_preemption(db: sa.Connection, settings: Settings, found: Sharing) -> Sharing:
    """Also what is stopped for whom: a round of matching need not know it."""
    if settings.preempt_from is None:
        return found
    return replace(
        found,
        asking=preempting.asking(db, from_priority=settings.preempt_from),
        stopping=preempting.stopping(db),
        loss_s=settings.preempt_loss_s,
    )


def _needs_limits(group: Group) -> bool:
    return bool(group.demand.amounts) and bool(limits_needed(group.demand.amounts))
