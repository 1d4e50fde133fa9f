"""The farm as a whole: how it stands, how it matches, what it did, what may be asked of it."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from farm import __version__
from farm.control.desk import matching, record
from farm.control.desk.callers import Caller
from farm.control.matching_views import MatchingView
from farm.control.views import FarmView, HookView, Page
from farm.flow.recording import Recording
from farm.model.states import NodeState
from farm.settings import Settings
from farm.store import jobs, leader, nodes, stalling
from farm.store.engine import read_clock, reading


class OverviewDesk:
    """Thread-safe."""

    def __init__(self, engine: sa.Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    def farm(self, by: Caller) -> FarmView:
        with reading(self._engine) as db:
            now = read_clock(db)
            holder = leader.current(db)
            known = nodes.list_nodes(db)
            live = nodes.given(db)
            counts = jobs.open_counts(db)
        usable = [node for node in known if node.state is not NodeState.OFFLINE]
        return FarmView(
            version=__version__,
            now=now,
            policy=self._settings.policy,
            leader=holder,
            nodes=len(known),
            nodes_online=sum(node.state is NodeState.ONLINE for node in known),
            slots=sum(node.capabilities.slots for node in usable),
            slots_used=len(live),
            counts=counts,
            user=by.user,
            role=by.owner.role,
        )

    def matching(self) -> MatchingView:
        """How matching does, farm-wide."""
        with reading(self._engine) as db:
            view = matching.view(db, self._settings.policy)
            return replace(view, moves=stalling.costs(db))

    def record(self, hours: float) -> Recording:
        """What the farm did. Raises UserError when that is too much."""
        with reading(self._engine) as db:
            return record.record(db, hours)

    def list_hooks(self) -> Page[HookView]:
        """What may be asked for by name; where they lead is told to nobody."""
        return Page(
            items=tuple(
                HookView(name=name, kind=hook.kind, on=hook.on, every_job=hook.every_job)
                for name, hook in sorted(self._settings.hooks.items())
            )
        )
