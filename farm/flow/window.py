"""The near-equal groups for places of one kind, in the people's order."""

from __future__ import annotations

import heapq
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from farm.flow.match import Room
from farm.flow.places import NO_ROW, Places
from farm.flow.predict import RunTimes
from farm.flow.tail import Tail
from farm.flow.waiting import NOTHING, Waiting
from farm.flow.weights import Weights
from farm.model.machines import Device

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NO_POOL: Final = 1 << 30
_FEW: Final = 6
"""Up to so many places each is looked up by itself; more are served from a sorted list."""

_Entry = tuple[int, float, float, float, int, int]
"""A group's key, and its bucket."""


def advantage_at(
    waiting: Waiting, places: Places, times: RunTimes, weights: Weights, row: int, at: int
) -> float:
    """A group's advantage on a place, its warm scene counted."""
    model = int(places.model[at])
    value = float(waiting.advantage[model, row])
    if places.last[at] != row or value == NOTHING:
        return value
    step = int(waiting.step[row])
    cold, warm = times.load_s(step)
    median = float(times.median_s[step, model])
    weight = weights.load_weight
    return value + math.log((median + weight * cold) / max(median + weight * warm, 1e-9))


class Window:
    """Groups worth at least `Weights.window` of the best one for the kind; renewed as they run out.

    tail: None where no device is left idle for others.
    """

    def __init__(
        self,
        waiting: Waiting,
        places: Places,
        times: RunTimes,
        weights: Weights,
        *,
        kind: int,
        wanted: int,
        tail: Tail | None,
    ) -> None:
        self._waiting = waiting
        self._places = places
        self._times = times
        self._weights = weights
        self._kind = kind
        self._model = places.kinds.model[kind]
        self._tail = tail
        self._is_few = wanted <= _FEW
        self._slack = math.log(weights.window)
        self.most = NOTHING
        self.is_empty = False
        self._rows: Ints = np.zeros(0, np.int64)
        self._values: Floats = np.zeros(0)
        self._heap: list[_Entry] | None = None
        self._rank = 0
        """The first of the node's pools for which there is a group."""
        self._renew()

    @property
    def near_equals(self) -> int:
        return len(self._rows)

    def _scores(self) -> Floats:
        waiting = self._waiting
        n = len(waiting)
        scores: Floats = waiting.offered[self._model, :n] + waiting.barred[self._kind][:n]
        if waiting.counts:
            scores += waiting.short_of[:n]
        return scores

    def _ranks(self, scores: Floats) -> Ints | None:
        """Which of the node's pools each group is for, the first 0; None where all are of one."""
        ranks = self._places.kinds.pool_ranks[self._kind]
        if ranks is None:
            return None
        return np.where(scores > NOTHING, ranks[self._waiting.demand[: len(scores)]], _NO_POOL)

    def _renew(self) -> None:
        self._heap = None
        self._best_two: list[int] | None = None
        self._is_used = False
        scores = self._scores()
        ranks = self._ranks(scores)
        if ranks is not None:
            # A node serves its pools in order: the next one's groups are not even compared.
            self._rank = int(ranks.min(initial=_NO_POOL))
            scores[ranks > self._rank] = NOTHING
        self.most = float(scores.max(initial=NOTHING))
        if self.most == NOTHING:
            self._rows, self.is_empty = self._rows[:0], True
            return
        waiting = self._waiting
        near = scores >= self.most + self._slack
        if waiting.urgent:
            near |= (waiting.priority[: len(scores)] >= self._weights.urgent_from) & (scores > NOTHING)
        self._rows = np.flatnonzero(near)
        self._values = scores[self._rows]

    def choose(self, at: int, room: Room, now: float) -> int | None:
        """The group to start on the place, None: none."""
        waiting, places = self._waiting, self._places
        device = places[at].device
        last = int(places.last[at])
        warm = NOTHING
        if last != NO_ROW and waiting.open[last] and waiting.barred[self._kind][last] == 0.0:
            ranks = places.kinds.pool_ranks[self._kind]
            if ranks is None or ranks[waiting.demand[last]] <= self._rank:
                warm = advantage_at(waiting, places, self._times, self._weights, last, at)
        row = None
        if not self.is_empty or warm > NOTHING:
            least = max(self.most, warm) + self._slack
            if warm == NOTHING or warm < least:
                last = NO_ROW
            row = self._first(least, room, device, last)
            if row is None and not self.is_empty:
                self._renew()
                least = max(self.most, warm) + self._slack
                row = self._first(least, room, device, last)
            if row is None:
                row = self._search(room, device)
            if row is not None and self._tail is not None and not self._tail.is_worth(at, row, now):
                row = self._search(room, device, at, now)
        return row

    def _first(self, least: float, room: Room, device: Device, last: int) -> int | None:
        """The first in order that is near enough, open and has room here."""
        waiting = self._waiting
        best = self._first_of_few(least) if self._is_few else None
        if best is None or not waiting.can_start(best, room, device):
            best = self._first_sorted(least, room, device)
        if last == NO_ROW or not waiting.can_start(last, room, device):
            return best
        return last if best is None or waiting.key(last) < waiting.key(best) else best

    def _first_of_few(self, least: float) -> int | None:
        waiting = self._waiting
        rows = self._rows
        if len(rows) > 1:
            if least > self.most + self._slack and not waiting.urgent:
                rows = rows[self._values >= least]
            if self._is_used:
                rows = rows[waiting.open[rows]]
            self._is_used = True
            tier = waiting.tier[rows]
            rows = rows[tier == tier.min(initial=1 << 40)]
            accounts = waiting.accounts
            if self._weights.fair_share and len(accounts) > 1:
                rows = _least(rows, accounts.project_use[accounts.project_of[waiting.account[rows]]])
                rows = _least(rows, accounts.use[waiting.account[rows]])
            if waiting.takes_turns:
                rows = _least(rows, waiting.turns.of[waiting.turn[rows]])
        if not len(rows):
            return None
        row = int(rows[waiting.rank[rows].argmin()]) if len(rows) > 1 else int(rows[0])
        return row if waiting.open[row] else None

    def _sort(self) -> None:
        """The rows by priority and user (or job), each in order: use moves with every start, the rest not."""
        waiting = self._waiting
        rows = self._rows
        if waiting.takes_turns:
            user = waiting.turn[rows]
        elif self._weights.fair_share and len(waiting.accounts) > 1:
            user = waiting.account[rows]
        else:
            user = np.zeros(len(rows), np.int64)
        order = np.lexsort((waiting.rank[rows], user, waiting.tier[rows]))
        rows = rows[order]
        self._sorted = rows.tolist()
        self._sorted_values = self._values[order].tolist()
        bucket = (waiting.tier[rows] << 32) + user[order]
        starts = np.flatnonzero(np.diff(bucket, prepend=-1))
        self._heads = starts.tolist()
        self._ends = [*self._heads[1:], len(rows)]
        self._heap = [(*waiting.key(self._sorted[head]), number) for number, head in enumerate(self._heads)]
        heapq.heapify(self._heap)

    def _first_sorted(self, least: float, room: Room, device: Device) -> int | None:
        waiting = self._waiting
        if self._heap is None:
            self._sort()
        heap = self._heap
        assert heap is not None
        found: int | None = None
        skipped: list[_Entry] = []
        while heap and found is None:
            entry = heap[0]
            number = entry[-1]
            head, end = self._heads[number], self._ends[number]
            while head < end and not waiting.open[self._sorted[head]]:
                head += 1
            self._heads[number] = head
            if head == end:
                heapq.heappop(heap)
                continue
            now = (*waiting.key(self._sorted[head]), number)
            if now != entry:
                heapq.heapreplace(heap, now)
                continue
            for at in range(head, end):
                row = self._sorted[at]
                if self._sorted_values[at] < least and waiting.priority[row] < self._weights.urgent_from:
                    continue
                if waiting.open[row] and waiting.can_start(row, room, device):
                    found = row
                    break
            else:
                skipped.append(heapq.heappop(heap))
        for entry in skipped:
            heapq.heappush(heap, entry)
        return found

    def _search(self, room: Room, device: Device, at: int = NO_ROW, now: float = 0.0) -> int | None:
        """Every group from the best match down: for a place that the near-equals have no use for.

        at: given, the place must be worth it in the tail.
        """
        scores = self._scores()
        ranks = self._ranks(scores)
        order = np.argsort(-scores, kind="stable") if ranks is None else np.lexsort((-scores, ranks))
        for row in order.tolist():
            if scores[row] == NOTHING:
                return None
            if not self._waiting.can_start(row, room, device):
                continue
            if at != NO_ROW and self._tail is not None and not self._tail.is_worth(at, row, now):
                continue
            return int(row)
        return None

    def runner_up(self, row: int) -> int | None:
        """The best match of the other near-equals."""
        if self._best_two is None:
            two = (
                np.argsort(-self._values, kind="stable")[:2]
                if len(self._values) < 64
                else np.argpartition(-self._values, 2)[:2]
            )
            self._best_two = self._rows[two].tolist()
        return next((int(other) for other in self._best_two if other != row), None)


def _least(rows: Ints, values: Floats) -> Ints:
    """The rows of the least value."""
    return rows[values == values.min()] if len(rows) > 1 else rows
