"""The groups that wait, in arrays: how many tasks, whose, how urgent, in which order, and what may start."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from farm.flow.accounts import Accounts, Turns
from farm.flow.counts import SharedCounts
from farm.flow.groups import Group
from farm.flow.kinds import Kinds
from farm.flow.refusals import Room, scratch_gib
from farm.flow.run_times import RunTimes
from farm.flow.scores import Scores
from farm.flow.tiers import Tier, Use
from farm.flow.trials import Firsts, Trials
from farm.flow.weights import Order, PriorityMode, Weights
from farm.model.ids import JobId, NodeId, StepId
from farm.model.limits import limits_needed
from farm.model.machines import Device

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GroupKey = tuple[StepId, frozenset[NodeId]]
"""A step's tasks that avoid other nodes are another group."""
NOTHING: Final = -math.inf
"""The score of what cannot start."""


def group_key(group: Group) -> GroupKey:
    return group.step_id, group.avoid


class Waiting:
    """Groups have rows, used again when they are gone. One owner; no I/O."""

    def __init__(
        self, times: RunTimes, kinds: Kinds, accounts: Accounts, counts: SharedCounts, weights: Weights
    ) -> None:
        self._times = times
        self._kinds = kinds
        self.accounts = accounts
        self.counts = counts
        self.turns = Turns()
        self.weights = weights
        self.total = 0
        """Ready tasks of all groups."""
        self._rows: dict[GroupKey, int] = {}
        self._rows_of_step: dict[StepId, list[int]] = {}
        self._rows_of_job: dict[JobId, list[int]] = {}
        self._running_of_job: dict[JobId, int] = {}
        """Live attempts of the whole job."""
        self._groups: list[Group | None] = []
        self._free_rows: list[int] = []
        size = 64
        self.ready: Ints = np.zeros(size, np.int64)
        self.running: Ints = np.zeros(size, np.int64)
        self.left: Ints = np.zeros(size, np.int64)
        self.step: Ints = np.zeros(size, np.int64)
        """Its row in the run-time model."""
        self.demand: Ints = np.zeros(size, np.int64)
        self.account: Ints = np.zeros(size, np.int64)
        """To which the group's use is charged."""
        self.turn: Ints = np.zeros(size, np.int64)
        """Its job's number in `turns`."""
        self.priority: Floats = np.zeros(size)
        self.submitted: Floats = np.zeros(size)
        self.served: Floats = np.zeros(size)
        """When it last started a task."""
        self.best: Floats = np.ones(size)
        """The cheapest seconds anywhere, in prices."""
        self.load_s: Floats = np.zeros(size)
        """What loading its scene was taken to add to each task, when it was scored."""
        self.mean_s: Floats = np.ones(size)
        """Of a task, over the farm."""
        self.is_known: Bools = np.zeros(size, np.bool_)
        self.tier: Ints = np.zeros(size, np.int64)
        self.backlogs = 0.0
        """How many times `Weights.backlog_s` of work waits beyond the first."""
        self.work: Floats = np.zeros(size)
        """What the rank was made of: with the order `shortest`, the work left, aged."""
        self.rank: Ints = np.zeros(size, np.int64)
        """Place in the people's order, apart from priority and share."""
        self.may: Bools = np.zeros(size, np.bool_)
        """Whether one more task may start, shared counts apart."""
        self.need: Ints = np.zeros(size, np.int64)
        """What its tasks take of shared counts: the number in `counts`."""
        self.advantage: Floats = np.full((4, size), NOTHING)
        """By device model and group."""
        self.offered: Floats = np.full((4, size), NOTHING)
        """The same while one more task may start, shared counts apart, and more where it would teach."""
        self.is_unproven: Bools = np.zeros((4, size), np.bool_)
        """By device model and group: it has run none of its tasks, and may turn out slow."""
        self._firsts = Firsts()
        self._trials = Trials()
        self._only_once: dict[int, Bools] = {}
        """By group: the device models on which it may start one task, for its long wait alone."""
        self.barred: list[Floats] = []
        """By kind and group: 0, or -inf when the kind refuses the group's demand for good."""
        self._probing: set[int] = set()
        """Groups that are held back until the first of their tasks have taught something."""
        self._probed_on: dict[int, set[int]] = {}
        """The device models on which a group that nothing is known of has started tasks."""
        self._is_probing_free = False
        self._masked: set[int] = set()
        """Groups that are offered fewer device models than they have an advantage on."""
        self._of_priority: Counter[int] = Counter()
        """How many groups there are of each priority."""
        self.bucket: Ints = np.zeros(size, np.int64)
        """Groups of one bucket and tier are in a fixed order: a user's, or a job's where jobs take turns."""
        self._order: Ints = np.zeros(0, np.int64)
        """All rows by tier, bucket and rank."""
        self._tier_starts: list[int] = []
        """Where in `_order` each tier begins."""
        self._tiers: dict[int, Tier] = {}
        """By place in `_tier_starts`, as far as they were needed."""
        self.has_order = False
        """Whether the order holds for the groups that there are."""
        self._shortage: Floats | None = None
        self.demands_version = 0
        """How often rows have got other demands."""
        self.version = 0
        """How often it has changed what may start, or how much it gains where."""

    def __len__(self) -> int:
        """Rows, in use or not."""
        return len(self._groups)

    def __getitem__(self, row: int) -> Group:
        group = self._groups[row]
        assert group is not None
        return group

    def is_there(self, row: int) -> bool:
        return self._groups[row] is not None

    def keys(self) -> Iterable[GroupKey]:
        return self._rows.keys()

    def rows(self) -> Ints:
        """In use."""
        return np.array(sorted(self._rows.values()), np.int64)

    def row(self, key: GroupKey) -> int:
        return self._rows[key]

    def rows_of_step(self, step_id: StepId) -> Sequence[int]:
        return self._rows_of_step.get(step_id, ())

    # --- groups come, change and go ---------------------------------------------------------------

    def put(self, group: Group, now: float) -> tuple[bool, bool]:
        """A group that is new, or has changed: (is new, has to be scored anew)."""
        key = group_key(group)
        row = self._rows.get(key)
        if row is None:
            row = self._new_row()
            self._rows[key] = row
            self._rows_of_step.setdefault(group.step_id, []).append(row)
            self._rows_of_job.setdefault(group.job_id, []).append(row)
            self.turn[row] = self.turns.join(group.job_id)
            self.served[row] = max(now, group.submitted_at)
            self.ready[row] = self.running[row] = 0
            self.is_known[row] = False
            old = None
        else:
            old = self._groups[row]
        self._groups[row] = group
        self.total += group.ready - int(self.ready[row])
        self.ready[row] = group.ready
        self.running[row] = group.running
        self.left[row] = group.ready + group.running
        self._of_priority[group.priority] += 1
        if old is not None:
            self._forget_priority(old.priority)
        self.priority[row] = group.priority
        self.submitted[row] = group.submitted_at
        is_other = old is None or _standing(old) != _standing(group)
        if is_other:
            self.step[row] = self._times.steps[str(group.step_id)]
            self.demand[row] = self._kinds.demand_at(group.demand)
            self.account[row] = self.accounts.account_at(group.project, group.user)
            self.need[row] = self.counts.number(
                limits_needed(group.demand.amounts) if group.takes is None else group.takes
            )
            for kind, does_fit in enumerate(self._kinds.fitting(int(self.demand[row]))):
                self.barred[kind][row] = 0.0 if does_fit else NOTHING
            self._shortage = None
            self.demands_version += 1
            self.version += 1
            self.has_order = False
        if group.job_running != self._running_of_job.get(group.job_id):
            self._running_of_job[group.job_id] = group.job_running
            self._reopen_job(group.job_id)
        self.reopen(row)
        return old is None, is_other

    def drop(self, key: GroupKey) -> int:
        """It has nothing left to start. Returns the row that it had."""
        row = self._rows.pop(key)
        group = self[row]
        _remove(self._rows_of_step, group.step_id, row)
        _remove(self._rows_of_job, group.job_id, row)
        if group.job_id not in self._rows_of_job:
            self._running_of_job.pop(group.job_id, None)
            self.turns.leave(group.job_id)
        self.total -= int(self.ready[row])
        self._forget_priority(group.priority)
        self.ready[row] = 0
        self.may[row] = False
        self._masked.discard(row)
        self._probing.discard(row)
        self._probed_on.pop(row, None)
        self._trials.forget(row)
        self._firsts.forget(row)
        self._only_once.pop(row, None)
        self._groups[row] = None
        self.advantage[:, row] = self.offered[:, row] = NOTHING
        self.is_unproven[:, row] = False
        self.need[row] = 0
        self._shortage = None
        self.version += 1
        self._free_rows.append(row)
        return row

    def add_kind(self) -> None:
        """One more kind of places has come."""
        fits = self._kinds.fits[len(self.barred)]
        self.barred.append(np.where(fits[self.demand], 0.0, NOTHING))
        self.version += 1

    def add_models(self, count: int) -> None:
        """There are so many device models now."""
        while count > len(self.advantage):
            more = np.full_like(self.advantage, NOTHING)
            self.advantage = np.concatenate([self.advantage, more])
            self.offered = np.concatenate([self.offered, more])
            self.is_unproven = np.concatenate([self.is_unproven, np.zeros_like(self.is_unproven)])

    # --- tasks start, end and come back -----------------------------------------------------------

    def started(self, row: int, model: int, now: float, until: float) -> bool:
        """One of its tasks, on a device of the model. until: when it will probably end.

        Returns whether it went there to teach, or had waited long, or was one of the first there, so that the
        next one gains less by such a device.
        """
        if self.is_known[row]:
            self._probed_on.pop(row, None)
        else:
            self._probed_on.setdefault(row, set()).add(model)
            self.has_order = False  # it may have stood with this task alone
        self.ready[row] -= 1
        self.total -= 1
        self.served[row] = now
        self.copied(row)
        self.settle()
        is_less = self._trials.started(row, model, now, until)
        slow = self._only_once.pop(row, None)
        if slow is not None:
            # Its wait is over. All that are idle would be too many: that they are slow is as true as before.
            self.advantage[: len(slow), row][slow] = NOTHING
            is_less = True
        if self.is_unproven[model, row]:
            self._firsts.started(row, model, now, until)
            is_less = True
        if is_less:
            self._offer(row)
        self.reopen(row)
        return is_less

    def copied(self, row: int) -> None:
        """A second copy of a task that runs has started."""
        self.running[row] += 1
        self._running_of_job[self[row].job_id] += 1
        self._reopen_others(row)
        self.counts.take(int(self.need[row]), 1)

    def ended(self, row: int | None, job_id: JobId) -> None:
        """A task of the group; row None: the group is not there any more."""
        if job_id in self._running_of_job:
            self._running_of_job[job_id] = max(0, self._running_of_job[job_id] - 1)
        if row is not None:
            self.running[row] = max(0, int(self.running[row]) - 1)
            self.counts.take(int(self.need[row]), -1)
            self.left[row] = self.ready[row] + self.running[row]
        self._reopen_job(job_id)

    def add_ready(self, row: int, count: int) -> None:
        self.ready[row] += count
        self.total += count
        self.reopen(row)

    def charge(self, row: int, cost: float) -> None:
        """Count a start of the group, in price units: to its project, user and job."""
        group = self[row]
        self.accounts.charge(group.project, group.user, cost)
        if self.takes_turns:
            self.turns.charge(group.job_id, group.priority, cost)

    # --- what may start ---------------------------------------------------------------------------

    def weigh_by(self, weights: Weights) -> None:
        """Other weights hold from now on: what may start, and in which order, is seen anew.

        What each group gains where, and what is near-equal, is once all are `scored` again.
        """
        self.weights = weights
        self.has_order = False
        for row in self._rows.values():
            self.reopen(row)

    def reopen(self, row: int) -> None:
        """Whether one more of the group's tasks may start, as far as counts say."""
        group = self._groups[row]
        if group is None or self.ready[row] <= 0:
            may = False
        else:
            may = group.max_running is None or self._running_of_job[group.job_id] < group.max_running
            is_probed = may and not self.is_known[row] and self.running[row] >= self.weights.probe_tasks
            if is_probed:
                self._probing.add(row)
                may = self._is_probing_free
            else:
                self._probing.discard(row)
        # Contrast tells more: each probe on another device model.
        is_masked = may and not self.is_known[row] and not self._is_probing_free and row in self._probed_on
        if may == self.may[row] and not is_masked and row not in self._masked:
            return
        self.may[row] = may
        self._offer(row)
        if is_masked:
            self.offered[list(self._probed_on[row]), row] = NOTHING
            self._masked.add(row)
        else:
            self._masked.discard(row)
        self.version += 1

    def _offer(self, row: int) -> None:
        """What one more of its tasks gains, if it may start."""
        self.offered[:, row] = self.advantage[:, row] if self.may[row] else NOTHING
        gains = self._trials.gains(row)
        if gains is not None:
            self.offered[: len(gains), row] += gains
        self.offered[self._firsts.closed(row), row] = NOTHING
        self.version += 1

    def scored(self, rows: Ints, found: Scores, now: float) -> None:
        """The groups have been scored anew: rows are groups, columns device models."""
        columns, is_known = found.advantage.T, found.is_known
        n = len(columns)
        was_known = self.is_known[rows]
        self.is_known[rows] = is_known
        self.advantage[:n, rows] = columns
        self.offered[:n, rows] = np.where(self.may[rows], columns, NOTHING)
        self._trials.scored(rows, found.trial, now)
        for row in self._only_once.keys() & set(rows.tolist()):
            del self._only_once[row]
        for at in np.flatnonzero(found.only_once.any(axis=1)).tolist():
            self._only_once[int(rows[at])] = found.only_once[at]
        self.is_unproven[:n, rows] = found.is_unproven.T
        self._firsts.scored(rows, found.is_unproven, now)
        for row in sorted(self._trials.among(rows) | self._firsts.among(rows)):
            self._offer(row)
        other = set(rows[was_known != is_known].tolist())
        # Whether these are held back, or masked, hangs on more than the score.
        for row in sorted(other | (self.held_back() | self._masked).intersection(rows.tolist())):
            self.reopen(row)
        self.version += 1

    def is_open(self, row: int) -> bool:
        """Whether one more of the group's tasks may start, as far as counts say."""
        return bool(self.may[row]) and self.counts.has_room(int(self.need[row]))

    def is_few_and_unknown(self, row: int) -> bool:
        """A few tasks of a step that nothing is known of: no gain can be predicted that would be worth a
        wait, and too little is left to profit from what the first teach."""
        return bool(not self.is_known[row] and self.left[row] <= self.weights.probe_tasks)

    def are_trials(self, model: int, rows: Ints) -> Bools:
        """Whether one more task of each of these groups would be worth more on the device model for what it
        teaches."""
        found: Bools = self.offered[model].take(rows) > self.advantage[model].take(rows)
        return found

    def can_start(self, row: int, room: Room, device: Device) -> bool:
        """Whether a task of the group has room there now; what the kind refuses for good apart."""
        group = self[row]
        demand = group.demand
        if not room.holds(demand) or room.node.id in group.avoid or not room.is_free(demand, device):
            return False
        if demand.amounts:
            scratch = scratch_gib(demand)
            if scratch > 0 and (room.node.disk_free_mib or 0) < 1024 * scratch:
                return False
        return True

    def _reopen_others(self, row: int) -> None:
        """The other groups of its job, where the job may have only so many tasks at once."""
        group = self[row]
        if group.max_running is not None:
            self._reopen_job(group.job_id)

    def _reopen_job(self, job_id: JobId) -> None:
        for row in self._rows_of_job.get(job_id, ()):
            self.reopen(row)

    def settle(self) -> None:
        """Open and close the groups whose shared counts have room again, or no more."""
        if self.counts.settle():
            self.version += 1
            self._shortage = None

    def shortage(self) -> Floats | None:
        """By row: 0, or -inf while too little is left of the counts that its tasks take of; None: of none."""
        if self._shortage is None and self.counts:
            self._shortage = self.counts.room.take(self.need)
        return self._shortage

    def held_back(self) -> set[int]:
        """Groups that are, or whose next task is, held back by probing."""
        return {*self._probing, *self._probed_on}

    def free_probing(self, is_free: bool, rows: Iterable[int]) -> None:
        """Hold these back, or not."""
        self._is_probing_free = is_free
        for row in rows:
            self.reopen(row)

    # --- the people's order -----------------------------------------------------------------------

    @property
    def takes_turns(self) -> bool:
        return self.weights.priority_mode is PriorityMode.RATE

    def reorder(self, now: float, *, backlogs: float = 0.0) -> None:
        """Tier and rank of every group, as it is now: the smaller, the sooner.

        How much work is left of a step of which nothing is known is a guess, which its first task settles:
        until that runs it stands there with the one. backlogs: how many times `Weights.backlog_s` of work
        waits beyond the first. Where some does, what is learnt soon helps all the tasks after it, so that
        probes lead.
        """
        self.backlogs = backlogs
        n = len(self._groups)
        weights = self.weights
        if weights.order is Order.SUBMITTED:
            base, then = self.submitted[:n], np.zeros(n, np.int64)
        else:
            waited = np.maximum(now - self.submitted[:n], 0.0)
            tasks = np.where(self.is_known[:n] | (self.running[:n] > 0), self.left[:n], 1)
            base, then = self.best[:n] * tasks * np.exp2(-waited / weights.age_s), self.left[:n]
        if backlogs > 0:
            is_probe = ~self.is_known[:n] & (self.running[:n] < weights.probe_tasks)
            base = np.where(is_probe, base - np.ptp(base) - 1.0, base)
        self.work[:n] = base
        self.rank[np.lexsort((then, base))] = np.arange(n)
        if self.takes_turns:
            self.tier[:n], self.bucket[:n] = 0, self.turn[:n]
        else:
            self.tier[:n] = (200 - self.priority[:n]).astype(np.int64)
            self.bucket[:n] = self.account[:n] if weights.fair_share else 0
        # One number for all three: 8 bits, 27 and 28 are as many as there ever are.
        key = (self.tier[:n] << 55) | (self.bucket[:n] << 28) | self.rank[:n]
        self._order = key.argsort()
        tiers = self.tier.take(self._order)
        self._tier_starts = [0, *((tiers[1:] != tiers[:-1]).nonzero()[0] + 1).tolist()] if n else []
        self._tiers = {}
        self.has_order = True

    def tiers(self, near: Ints | None) -> Iterator[Tier]:
        """The groups by priority, the highest first. near: rows outside whose priorities nobody looks."""
        wanted = None if near is None else set(self.tier.take(near).tolist())
        for number, start in enumerate(self._tier_starts):
            if wanted is not None and int(self.tier[self._order[start]]) not in wanted:
                continue
            tier = self._tiers.get(number)
            if tier is None:
                end = self._tier_starts[number + 1] if number + 1 < len(self._tier_starts) else None
                tier = self._tiers[number] = Tier(
                    self._order[start:end],
                    bucket=self.bucket,
                    account=self.account,
                    project_of=self.accounts.project_of,
                    turn=self.turn,
                    rank=self.rank,
                )
            yield tier

    def use(self) -> Use:
        """By which buckets of a tier are compared now."""
        accounts, is_fair = self.accounts, self.weights.fair_share
        return Use(
            of_projects=accounts.project_use if is_fair and accounts.projects > 1 else None,
            of_accounts=accounts.use if is_fair and len(accounts) > 1 else None,
            of_turns=self.turns.of if self.takes_turns else None,
        )

    def key(self, row: int) -> tuple[int, float, float, float, int]:
        """The people's order as it is now: priority, use per share, the job's turn, then the rest."""
        accounts, account = self.accounts, self.account[row]
        is_fair = self.weights.fair_share
        return (
            int(self.tier[row]),
            float(accounts.project_use[accounts.project_of[account]]) if is_fair else 0.0,
            float(accounts.use[account]) if is_fair else 0.0,
            float(self.turns.of[self.turn[row]]) if self.takes_turns else 0.0,
            int(self.rank[row]),
        )

    def is_kept(self, warm: int, first: int) -> bool:
        """Whether a device stays with the group whose scene it has loaded, though another comes first."""
        mine, other = self.key(warm), self.key(first)
        if mine[:-1] != other[:-1] or self.weights.order is not Order.SHORTEST:
            return mine < other
        return bool(self.work[warm] <= self.weights.stay * self.work[first]) or mine < other

    @property
    def has_urgent(self) -> bool:
        """Whether there are groups whose priority matching does not override."""
        return max(self._of_priority, default=0) >= self.weights.urgent_from

    def is_urgent(self, row: int) -> bool:
        return bool(self.priority[row] >= self.weights.urgent_from)

    def are_urgent(self, rows: Ints | slice) -> Bools:
        found: Bools = self.priority[rows] >= self.weights.urgent_from
        return found

    def _forget_priority(self, priority: int) -> None:
        self._of_priority[priority] -= 1
        if not self._of_priority[priority]:
            del self._of_priority[priority]

    def _new_row(self) -> int:
        if self._free_rows:
            return self._free_rows.pop()
        row = len(self._groups)
        self._groups.append(None)
        if row == len(self.ready):
            for name in (
                "ready", "running", "left", "step", "demand", "account", "turn", "priority", "submitted",
                "served", "best", "load_s", "mean_s", "is_known", "tier", "bucket", "work", "rank", "may",
                "need",
            ):  # fmt: skip
                value = getattr(self, name)
                setattr(self, name, np.concatenate([value, np.zeros_like(value)]))
            more = np.full_like(self.advantage, NOTHING)
            self.advantage = np.concatenate([self.advantage, more], axis=1)
            self.offered = np.concatenate([self.offered, more], axis=1)
            self.is_unproven = np.concatenate([self.is_unproven, np.zeros_like(self.is_unproven)], axis=1)
            self.barred = [np.concatenate([each, np.zeros_like(each)]) for each in self.barred]
        return row


def _standing(group: Group) -> tuple[object, ...]:
    """What of a group does not change as its tasks start and end."""
    return group.demand, group.user, group.project, group.priority, group.takes


def _remove(rows: dict[Any, list[int]], key: object, row: int) -> None:
    rows[key].remove(row)
    if not rows[key]:
        del rows[key]
