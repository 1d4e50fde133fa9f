"""The front desk: what people ask of the farm, answered for the API's routes; one module a subject.

Every method opens its own transaction. What changes something takes the caller, checks his rights, writes
the audit row in the same transaction, and wakes the scheduler afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import sqlalchemy as sa

from farm.control.desk.access import AccessDesk
from farm.control.desk.events import EventDesk
from farm.control.desk.job_views import JobViews
from farm.control.desk.jobs import JobDesk
from farm.control.desk.joining import JoiningDesk
from farm.control.desk.limits import LimitDesk
from farm.control.desk.nodes import NodeDesk
from farm.control.desk.overview import OverviewDesk
from farm.control.desk.submissions import SubmissionDesk
from farm.control.desk.tasks import TaskDesk
from farm.control.desk.why import WhyDesk
from farm.control.spaces import Spaces
from farm.settings import Settings

_LOG = logging.getLogger(__name__)


class Desk:
    """Thread-safe. `nudge` wakes the scheduler, best effort: without it the next tick finds the work."""

    def __init__(
        self, engine: sa.Engine, settings: Settings, spaces: Spaces, *, nudge: Callable[[], None]
    ) -> None:
        """Raises UserError for a queue environment that cannot be read."""
        self._nudge = nudge
        views = JobViews(engine, settings)
        self.access = AccessDesk(engine)
        self.submissions = SubmissionDesk(engine, settings, spaces, views, wake=self._wake)
        self.jobs = JobDesk(engine, settings, spaces, views, wake=self._wake)
        self.tasks = TaskDesk(engine, spaces)
        self.why = WhyDesk(engine, settings)
        self.limits = LimitDesk(engine, wake=self._wake)
        self.nodes = NodeDesk(engine, spaces, wake=self._wake)
        self.joining = JoiningDesk(engine, settings)
        self.events = EventDesk(engine)
        self.overview = OverviewDesk(engine, settings)

    def _wake(self) -> None:
        try:
            self._nudge()
        except Exception:  # noqa: BLE001 - whatever the broker does, the change is stored and the tick finds it
            _LOG.warning("the scheduler could not be woken; its next tick will do", exc_info=True)
