"""The near-equal groups for places of one kind, in the people's order; kept from round to round."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt

from farm.flow.match import Room
from farm.flow.places import NO_ROW, Places
from farm.flow.predict import RunTimes
from farm.flow.tail import Tail
from farm.flow.waiting import NOTHING, Waiting
from farm.model.machines import Device

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NO_POOL: Final = 1 << 30


def advantage_at(waiting: Waiting, places: Places, times: RunTimes, row: int, at: int) -> float:
    """A group's advantage on a place, its warm scene counted."""
    model = places[at].model
    value = float(waiting.advantage[model, row])
    if places.last[at] != row or value == NOTHING:
        return value
    step = int(waiting.step[row])
    _, warm = times.load_s(step)
    median = float(times.median_s[step, model])
    cold_s, warm_s = float(waiting.load_s[row]), waiting.weights.load_weight * warm
    return value + math.log((median + cold_s) / max(median + warm_s, 1e-9))


class Window:
    """Groups worth at least `Weights.window` of the best one for the kind.

    `follow` takes in what has changed since; between two calls the window stands, however many of its groups
    run out.
    """

    def __init__(self, waiting: Waiting, places: Places, times: RunTimes, *, kind: int) -> None:
        self._waiting = waiting
        self._places = places
        self._times = times
        self._kind = kind
        self._model = places.kinds.model[kind]
        self.most = NOTHING
        """The best one's advantage."""
        self._rows: Ints = np.zeros(0, np.int64)
        """The near-equals, in the people's order."""
        self._values: Floats = np.zeros(0)
        """What each is worth."""
        self._tiers: list[_Tier] = []
        """As far as they were needed."""
        self._in_tiers = 0
        """How many of the rows are in them."""
        self._best_two: list[int] | None = None
        self._wide: Ints = self._rows
        """All groups worth at least `_floor`, in the people's order: near-equals, and what may become some as
        the best ones run out or shared counts come free."""
        self._is_wide: Bools = np.zeros(0, np.bool_)
        """By row."""
        self._floor = NOTHING
        self._rank = 0
        """The first of the node's pools for which there is a group."""
        self._epoch, self._changes, self._flips = -1, 0, 0
        """How much of what happened is in it."""

    @property
    def is_empty(self) -> bool:
        return self.most == NOTHING

    @property
    def near_equals(self) -> int:
        return len(self._rows)

    # --- what has changed -------------------------------------------------------------------------

    def follow(self) -> bool:
        """Take in what has changed since the last call. Returns whether anything has."""
        waiting = self._waiting
        if self._epoch != waiting.epoch:
            self._scan()
            return True
        is_same = self._changes == len(waiting.changes) and self._flips == waiting.flips
        if is_same:
            return False
        if self._take_in(waiting.changes[self._changes :]):
            self._note()
            self._narrow()
        else:
            self._scan()
        return True

    def _note(self) -> None:
        waiting = self._waiting
        self._epoch, self._changes, self._flips = waiting.epoch, len(waiting.changes), waiting.flips

    def _take_in(self, changed: Collection[int]) -> bool:
        """Widen by the groups that have become worth it; False: all have to be seen anew."""
        waiting = self._waiting
        ranks = self._places.kinds.pool_ranks[self._kind]
        if ranks is not None and self._flips != waiting.flips:
            return False
        for row in dict.fromkeys(changed):
            value = waiting.offered[self._model, row] + waiting.barred[self._kind][row]
            if value == NOTHING or self._is_wide[row]:
                continue
            if ranks is not None and ranks[waiting.demand[row]] != self._rank:
                if ranks[waiting.demand[row]] < self._rank:
                    return False
                continue
            if value >= self._floor or waiting.is_urgent(row):
                positions = waiting.position.take(self._wide)
                at = int(positions.searchsorted(waiting.position[row]))
                self._wide = np.concatenate([self._wide[:at], [row], self._wide[at:]])
                self._is_wide[row] = True
        return True

    def _scan(self) -> None:
        """See all groups anew."""
        self._note()
        waiting = self._waiting
        scores = self._scores()
        allowed = scores + waiting.short_of[: len(scores)] if waiting.counts else scores
        ranks = self._ranks(allowed)
        if ranks is not None:
            # A node serves its pools in order: the next one's groups are not even compared.
            self._rank = int(ranks.min(initial=_NO_POOL))
            scores = np.where(self._ranks_of_all(len(scores)) == self._rank, scores, NOTHING)
            allowed = scores + waiting.short_of[: len(scores)] if waiting.counts else scores
        most = float(allowed.max(initial=NOTHING))
        self._floor = most + 2 * math.log(waiting.weights.window)
        wide = scores >= self._floor if most > NOTHING else scores > NOTHING
        if waiting.has_urgent:
            wide |= waiting.are_urgent(slice(len(scores))) & (scores > NOTHING)
        self._is_wide = wide
        self._wide = waiting.order[wide.take(waiting.order)]
        self._narrow()

    def _narrow(self) -> None:
        """Find the near-equals among the wide ones."""
        waiting = self._waiting
        wide = self._wide
        values = waiting.offered[self._model].take(wide)
        if waiting.counts:
            values += waiting.short_of.take(wide)
        self.most = float(values.max(initial=NOTHING))
        least = self.most + math.log(waiting.weights.window)
        if self._floor > NOTHING and least < self._floor:
            self._scan()  # raises the floor to what is left, or to nothing
            return
        near = values >= least if self.most > NOTHING else np.zeros(len(values), np.bool_)
        if waiting.has_urgent:
            near |= waiting.are_urgent(wide) & (values > NOTHING)
        at = near.nonzero()[0]
        self._rows, self._values = wide.take(at), values.take(at)
        self._tiers, self._in_tiers = [], 0
        self._best_two = None

    def _scores(self) -> Floats:
        """Of all groups by row, whatever is short."""
        waiting = self._waiting
        n = len(waiting)
        found: Floats = waiting.offered[self._model, :n] + waiting.barred[self._kind][:n]
        return found

    def _ranks_of_all(self, count: int) -> Ints:
        ranks = self._places.kinds.pool_ranks[self._kind]
        assert ranks is not None
        return ranks.take(self._waiting.demand[:count])

    def _ranks(self, scores: Floats) -> Ints | None:
        """Which of the node's pools each group is for, the first 0; None where all are of one."""
        if self._places.kinds.pool_ranks[self._kind] is None:
            return None
        return np.where(scores > NOTHING, self._ranks_of_all(len(scores)), _NO_POOL)

    # --- the choice -------------------------------------------------------------------------------

    def choose(self, at: int, room: Room, now: float, tail: Tail | None) -> int | None:
        """The group to start on the place, None: none. tail: None where no device is left idle for others."""
        waiting, places = self._waiting, self._places
        device = places[at].device
        last = int(places.last[at])
        warm = NOTHING
        if last != NO_ROW and waiting.open[last] and waiting.barred[self._kind][last] == 0.0:
            ranks = places.kinds.pool_ranks[self._kind]
            if ranks is None or ranks[waiting.demand[last]] <= self._rank:
                warm = advantage_at(waiting, places, self._times, last, at)
        if self.is_empty and warm == NOTHING:
            return None
        row = self._first_or_last(warm, room, device, last)
        if row is None and self.follow():
            row = self._first_or_last(warm, room, device, last)
        if row is None:
            row = self._search(room, device)
        if row is not None and tail is not None and not tail.is_worth(at, row, now):
            row = self._search(room, device, at, now, tail)
        return row

    def _first_or_last(self, warm: float, room: Room, device: Device, last: int) -> int | None:
        """The first in order that is near enough, open and has room here; `last` counts as worth `warm`."""
        waiting = self._waiting
        slack = math.log(waiting.weights.window)
        least = max(self.most, warm) + slack
        best = self._first(least, room, device)
        if warm == NOTHING or warm < least or last == best or not waiting.can_start(last, room, device):
            return best
        return last if best is None or waiting.is_kept(last, best) else best

    def _first(self, least: float, room: Room, device: Device) -> int | None:
        number = 0
        while True:
            if number == len(self._tiers):
                if self._in_tiers == len(self._rows):
                    return None
                self._tiers.append(self._next_tier())
            found = self._tiers[number].first(least, room, device)
            if found is not None:
                return found
            number += 1

    def _next_tier(self) -> _Tier:
        waiting = self._waiting
        rows = self._rows[self._in_tiers :]
        tiers = waiting.tier.take(rows)
        end = int(tiers.searchsorted(tiers[0], side="right"))
        tier = _Tier(waiting, rows[:end], self._values[self._in_tiers : self._in_tiers + end])
        self._in_tiers += end
        return tier

    def _search(
        self, room: Room, device: Device, at: int = NO_ROW, now: float = 0.0, tail: Tail | None = None
    ) -> int | None:
        """Every group from the best match down: for a place that the near-equals have no use for.

        tail: given, the place must be worth it.
        """
        waiting = self._waiting
        scores = self._scores()
        if waiting.counts:
            scores += waiting.short_of[: len(scores)]
        ranks = self._ranks(scores)
        order = np.argsort(-scores, kind="stable") if ranks is None else np.lexsort((-scores, ranks))
        for row in order.tolist():
            if scores[row] == NOTHING:
                return None
            if not waiting.can_start(row, room, device):
                continue
            if tail is not None and not tail.is_worth(at, row, now):
                continue
            return int(row)
        return None

    def runner_up(self, row: int) -> int | None:
        """The best match of the other near-equals."""
        if self._best_two is None:
            values = self._values.copy()
            self._best_two = []
            for _ in range(min(2, len(values))):
                at = int(values.argmax())
                values[at] = NOTHING
                self._best_two.append(int(self._rows[at]))
        return next((other for other in self._best_two if other != row), None)


class _Tier:
    """Near-equals of one priority: a bucket for each user (or job, where those take turns), its groups in
    order. Use moves with every start, the order within a bucket does not."""

    def __init__(self, waiting: Waiting, rows: Ints, values: Floats) -> None:
        self._waiting = waiting
        self._rows = rows
        self._values = values
        buckets = waiting.bucket.take(rows)
        starts = np.concatenate([[0], (buckets[1:] != buckets[:-1]).nonzero()[0] + 1])
        self._heads: list[int] = starts.tolist()
        """By bucket: its first group that was open when last seen."""
        self._ends = [*self._heads[1:], len(rows)]
        heads = rows.take(starts)
        self._accounts = waiting.account.take(heads)
        self._projects = waiting.accounts.project_of.take(self._accounts)
        self._turns = waiting.turn.take(heads)
        self._ranks = waiting.rank.take(heads)
        """Of the heads."""
        self._left: Ints = np.arange(len(starts))
        """Buckets that have an open group."""
        self._nearest: list[float] = [NOTHING] * len(starts)
        """By bucket: what a group must be worth besides. The more waits, the nearer equals must be."""
        if waiting.backlogs > 0:
            nearer = math.log(waiting.weights.window) / (1 + waiting.backlogs)
            self._nearest = (np.maximum.reduceat(values, starts) + nearer).tolist()

    def first(self, least: float, room: Room, device: Device) -> int | None:
        """The first group that is worth `least` (or urgent), open, and has room."""
        waiting = self._waiting
        buckets = self._left
        while len(buckets):
            bucket = self._next(buckets)
            head, end = self._heads[bucket], self._ends[bucket]
            while head < end and not waiting.open[self._rows[head]]:
                head += 1
            if head > self._heads[bucket]:
                self._heads[bucket] = head
                if head < end:
                    self._ranks[bucket] = waiting.rank[self._rows[head]]
                    continue  # another may come first now
                self._left = self._left[self._left != bucket]
            else:
                for at in range(head, end):
                    row = int(self._rows[at])
                    enough = max(least, self._nearest[bucket])
                    if self._values[at] < enough and not waiting.is_urgent(row):
                        continue
                    if waiting.open[row] and waiting.can_start(row, room, device):
                        return row
            buckets = buckets[buckets != bucket]
        return None

    def _next(self, buckets: Ints) -> int:
        """The one whose turn it is: least use of its project, then of its user, then its job's turn, then by
        order."""
        waiting = self._waiting
        accounts = waiting.accounts
        if len(buckets) > 1 and waiting.weights.fair_share:
            if accounts.projects > 1:
                buckets = _least(buckets, accounts.project_use.take(self._projects.take(buckets)))
            buckets = _least(buckets, accounts.use.take(self._accounts.take(buckets)))
        if len(buckets) > 1 and waiting.takes_turns:
            buckets = _least(buckets, waiting.turns.of.take(self._turns.take(buckets)))
        if len(buckets) > 1:
            return int(buckets[self._ranks.take(buckets).argmin()])
        return int(buckets[0])


def _least(of: Ints, values: Floats) -> Ints:
    """Those of the least value."""
    at = int(values.argmin())
    same = values == values[at]
    return of[same] if np.count_nonzero(same) > 1 else of[at : at + 1]
