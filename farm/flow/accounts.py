"""Who has used how much of the farm: by project and user for their shares, by job for priority as a rate.

Use is counted in price units (a second of a device costs what the work that waits would give for it), over
the share, and halves with time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from farm.flow.run_times import UseState
from farm.model.ids import JobId

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Accounts:
    """One account for each user in each project. One owner; no I/O."""

    def __init__(self, shares: Mapping[str, float], project_shares: Mapping[str, float]) -> None:
        self._shares = dict(shares)
        self._project_shares = dict(project_shares)
        self._accounts: dict[tuple[str, str], int] = {}
        """By project and user."""
        self._projects: dict[str, int] = {}
        self.project_of: Ints = np.zeros(16, np.int64)
        """Of each account."""
        self.project_use: Floats = np.zeros(16)
        """Of each project, in price units over its share, decayed."""
        self.use: Floats = np.zeros(16)
        """Of each account, in price units over the user's share, decayed."""
        self._decayed_at: float | None = None

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def projects(self) -> int:
        """How many there are; work of no project counts as one."""
        return len(self._projects)

    def account_at(self, project: str, user: str) -> int:
        at = self._accounts.get((project, user))
        if at is None:
            at = self._accounts[project, user] = len(self._accounts)
            if at == len(self.use):
                self.use = np.concatenate([self.use, np.zeros_like(self.use)])
                self.project_of = np.concatenate([self.project_of, np.zeros_like(self.project_of)])
            of = self._projects.setdefault(project, len(self._projects))
            if of == len(self.project_use):
                self.project_use = np.concatenate([self.project_use, np.zeros_like(self.project_use)])
            self.project_of[at] = of
        return at

    def charge(self, project: str, user: str, cost: float) -> None:
        """The user has had so much, in price units."""
        at = self._accounts[project, user]
        self.use[at] += cost / self._shares.get(user, 1.0)
        self.project_use[self.project_of[at]] += cost / self._project_shares.get(project, 1.0)

    def decay(self, now: float, half_life_s: float) -> None:
        if self._decayed_at is not None:
            less = 0.5 ** (max(now - self._decayed_at, 0.0) / half_life_s)
            self.use *= less
            self.project_use *= less
        self._decayed_at = now

    def state(self) -> UseState:
        """What everybody has used, for the next scheduler."""
        names = {at: project for project, at in self._projects.items()}
        return UseState(
            at=self._decayed_at,
            projects={name: float(f"{self.project_use[at]:.6g}") for at, name in names.items()},
            users=[
                (project, user, float(f"{self.use[at]:.6g}"))
                for (project, user), at in self._accounts.items()
                if self.use[at] > 0
            ],
        )

    def take_over(self, state: UseState) -> None:
        """Go on with what another scheduler has counted."""
        for project, user, used in state.users:
            self.use[self.account_at(project, user)] = used
        for project, used in state.projects.items():
            if project in self._projects:
                self.project_use[self._projects[project]] = used
        self._decayed_at = state.at


class Turns:
    """What each job has had, in price units over its priority: the least is next, if priority is a rate."""

    def __init__(self) -> None:
        self._numbers: dict[JobId, int] = {}
        self._free: list[int] = []
        self._turns: Floats = np.zeros(16)
        self._floor = 0.0
        """The turn of the job that started last: those that come later have had theirs until then."""

    @property
    def of(self) -> Floats:
        """By number."""
        return self._turns

    def join(self, job_id: JobId) -> int:
        """The job's number. One that is new stands as if all had come now."""
        at = self._numbers.get(job_id)
        if at is None:
            at = self._free.pop() if self._free else len(self._numbers)
            self._numbers[job_id] = at
            if at == len(self._turns):
                self._turns = np.concatenate([self._turns, np.zeros_like(self._turns)])
            self._turns[at] = self._floor
        return at

    def leave(self, job_id: JobId) -> None:
        self._free.append(self._numbers.pop(job_id))

    def charge(self, job_id: JobId, priority: int, cost: float) -> None:
        at = self._numbers[job_id]
        self._floor = max(self._floor, float(self._turns[at]))
        self._turns[at] += cost / max(priority, 1)
