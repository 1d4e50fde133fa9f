"""What jobs share, read from the store for a round of matching and for `farm why` alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from farm.flow import limits as counting
from farm.flow.limits import Counted, Ledger
from farm.flow.match import Cause, Group
from farm.model.limits import limits_needed
from farm.model.machines import NodeView
from farm.settings import Settings
from farm.store import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Empty where no rule concerns what waits: then a round pays nothing for it."""

    ledger: Ledger = field(default_factory=lambda: Ledger({}))
    user_room: Mapping[str, int] = field(default_factory=dict)
    """Of users who have a limit: how many more tasks may run."""

    def counted(self, groups: Sequence[Group], nodes: Sequence[NodeView]) -> Counted:
        return counting.counted(groups, nodes, self.ledger, user_room=self.user_room)

    def causes(self, group: Group) -> list[Cause]:
        """Why what is shared holds a group up."""
        return counting.causes(group, self.ledger, user_room=self.user_room)


def read(db: sa.Connection, settings: Settings, groups: Sequence[Group]) -> Sharing:
    """What concerns these groups."""
    ledger = limits.ledger(db) if any(needs_limits(group) for group in groups) else Ledger({})
    room: Mapping[str, int] = {}
    if settings.max_running_per_user is not None or settings.max_running_of:
        room = counting.user_room(
            limits.running_by_user(db),
            {group.user for group in groups},
            each=settings.max_running_per_user,
            named=settings.max_running_of,
        )
    return Sharing(ledger=ledger, user_room=room)


def needs_limits(group: Group) -> bool:
    return bool(group.demand.amounts) and bool(limits_needed(group.demand.amounts))
