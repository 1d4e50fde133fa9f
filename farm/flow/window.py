"""The near-equal groups for places of one kind, in the people's order; kept from round to round."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from farm.flow.places import NO_ROW, Places
from farm.flow.refusals import Room
from farm.flow.run_times import RunTimes
from farm.flow.tail import Tail
from farm.flow.waiting import NOTHING, Waiting
from farm.model.machines import Device

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LEAST_SAVED: Final = 0.02
"""A scene in a node's file cache counts where it saves so much of a task's time, as a logarithm."""
_FEW: Final = 64
"""Of so few near-equals it is asked first of which priorities they are."""


def advantage_at(waiting: Waiting, places: Places, times: RunTimes, row: int, at: int) -> float:
    """A group's advantage on a place, its scene counted that is loaded there, or in the node's file cache."""
    model = places[at].model
    value = float(waiting.advantage[model, row])
    if value == NOTHING:
        return value
    step = int(waiting.step[row])
    loads = times.load_s(step)
    here = places.load_s(at, row, step, waiting[row].step_id)
    if here >= loads.cold:
        return value
    median = float(times.median_s[step, model])
    cold_s, warm_s = float(waiting.load_s[row]), waiting.weights.load_weight * loads.warm
    # `cold_s` is spread over the tasks that a device takes of the group; so is what a cache leaves of it.
    here_s = warm_s + (cold_s - warm_s) * (here - loads.warm) / (loads.cold - loads.warm)
    return value + math.log((median + cold_s) / max(median + here_s, 1e-9))


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
        self._version = -1
        self.most = NOTHING
        """The best one's advantage."""
        self._buffer: Floats = np.zeros(0)
        self._scores: Floats = self._buffer
        """By row; -inf: cannot start."""
        self._near: Bools = np.zeros(0, np.bool_)
        """By row."""
        self._rows: Ints = np.zeros(0, np.int64)
        """Those that are near."""
        self._has_trials = False
        """Whether one of those would go there to teach."""
        self._rank = 0
        """The first of the node's pools for which there is a group."""
        self._ranks: list[tuple[int, Floats]] = []
        self._ranks_version = -1
        self._best_two: list[int] | None = None
        self._hopeless: tuple[object, float] | None = None
        """(state of the tail, the factor of the fastest place on which nothing is worth it)."""

    @property
    def is_empty(self) -> bool:
        return self.most == NOTHING

    @property
    def near_equals(self) -> int:
        """How many there are."""
        return len(self._rows)

    def follow(self) -> bool:
        """Take in what has changed since the last call. Returns whether anything has."""
        waiting = self._waiting
        if self._version == waiting.version:
            return False
        self._version = waiting.version
        scores = self._scores = self._in_first_pool(self._score())
        self.most = float(scores.max(initial=NOTHING))
        if self.most == NOTHING:
            self._near = np.zeros(len(scores), np.bool_)
        else:
            self._near = scores >= self.most + math.log(waiting.weights.window)
            if waiting.has_urgent:
                self._near |= waiting.are_urgent(slice(len(scores))) & (scores > NOTHING)
        self._rows = self._near.nonzero()[0]
        self._has_trials = bool(waiting.are_trials(self._model, self._rows).any())
        self._best_two = None
        return True

    def _score(self) -> Floats:
        """Of all groups by row."""
        waiting = self._waiting
        n = len(waiting)
        if len(self._buffer) < n:
            self._buffer = np.empty(2 * n)
        found = self._buffer[:n]
        np.add(waiting.offered[self._model, :n], waiting.barred[self._kind][:n], out=found)
        shortage = waiting.shortage()
        if shortage is not None:
            found += shortage[:n]
        return found

    def _in_first_pool(self, scores: Floats) -> Floats:
        """A node serves its pools in order: the scores of the first that has any, the others' not even
        compared."""
        for rank, others in self._by_rank():
            self._rank = (
                rank  # in the end the last: where there is nothing, a warm scene is of a pool that may
            )
            found: Floats = scores + others[: len(scores)]
            if found.max(initial=NOTHING) > NOTHING:
                return found
        return scores

    def _by_rank(self) -> list[tuple[int, Floats]]:
        """(which of the node's pools, by row: 0 if it is for that one, else -inf); empty where all are of
        one."""
        ranks, version = self._places.kinds.pool_ranks[self._kind], self._waiting.demands_version
        if ranks is None:
            return []
        if self._ranks_version != version:
            of_row = ranks.take(self._waiting.demand)
            self._ranks = [
                (rank, np.where(of_row == rank, 0.0, NOTHING)) for rank in np.unique(of_row).tolist()
            ]
            self._ranks_version = version
        return self._ranks

    def choose(self, at: int, room: Room, now: float, tail: Tail | None) -> int | None:
        """The group to start on the place, None: none. tail: None where no device is left idle for others."""
        kept, worth = self._kept(at)
        if tail is not None and self._is_hopeless(at, kept, now, tail):
            return None
        device = self._places[at].device
        if self.is_empty and worth == NOTHING:
            return None
        row = self._first_or_kept(worth, room, device, kept)
        if row is None and self.follow():
            row = self._first_or_kept(worth, room, device, kept)
        if row is None:
            row = self._search(room, device)
        if row is not None and tail is not None and not tail.is_worth(at, row, now):
            row = self._search(room, device, at, now, tail)
        return row

    def _kept(self, at: int) -> tuple[int, float]:
        """(the group that the place has loaded, else one whose scene its node has in its cache; its
        advantage here); NO_ROW: none that may start."""
        waiting, places = self._waiting, self._places
        last = places.last_row(at)
        if last != NO_ROW and self._may_keep(last):
            return last, advantage_at(waiting, places, self._times, last, at)
        for step_id in places.cached.steps(places[at].node_id):
            for row in waiting.rows_of_step(step_id):
                if self._may_keep(row):
                    worth = advantage_at(waiting, places, self._times, row, at)
                    if worth >= float(waiting.advantage[self._model, row]) + _LEAST_SAVED:
                        return row, worth
        return NO_ROW, NOTHING

    def _may_keep(self, row: int) -> bool:
        waiting = self._waiting
        if not waiting.is_open(row) or waiting.barred[self._kind][row] != 0.0:
            return False
        if waiting.offered[self._model, row] == NOTHING:
            return False
        ranks = self._places.kinds.pool_ranks[self._kind]
        return ranks is None or bool(ranks[waiting.demand[row]] <= self._rank)

    def _first_or_kept(self, worth: float, room: Room, device: Device, kept: int) -> int | None:
        """The first in order that is near enough, open and has room here; `kept` counts as worth `worth`."""
        waiting = self._waiting
        slack = math.log(waiting.weights.window)
        least = max(self.most, worth) + slack
        best = self._first(least, room, device)
        if worth == NOTHING or worth < least or kept == best or not waiting.can_start(kept, room, device):
            return best
        return kept if best is None or waiting.is_kept(kept, best) else best

    def _first(self, least: float, room: Room, device: Device) -> int | None:
        waiting, scores = self._waiting, self._scores
        if self.is_empty:
            return None

        def can_start(row: int) -> bool:
            if scores[row] < least and not waiting.is_urgent(row):
                return False
            return waiting.is_open(row) and waiting.can_start(row, room, device)

        def narrowed(rows: Ints) -> Ints:
            values = scores.take(rows)
            kept = values >= values.max() + slack
            if waiting.has_urgent:
                kept |= waiting.are_urgent(rows)
            return trials_lead(rows[kept])

        def trials_lead(rows: Ints) -> Ints:
            are_trials = waiting.are_trials(self._model, rows)
            return np.concatenate([rows[are_trials], rows[~are_trials]])

        # The more waits, the nearer equals of one user (or job) must be.
        slack = math.log(waiting.weights.window) / (1 + waiting.backlogs)
        narrow = narrowed if waiting.backlogs > 0 else trials_lead if self._has_trials else None
        few = self._rows if len(self._rows) <= _FEW else None
        use = waiting.use()
        for tier in waiting.tiers(few):
            row = tier.first(self._near, use, can_start, narrow)
            if row is not None:
                return row
        return None

    def _search(
        self, room: Room, device: Device, at: int = NO_ROW, now: float = 0.0, tail: Tail | None = None
    ) -> int | None:
        """Every group from the best match down: for a place that the near-equals have no use for.

        tail: given, the place must be worth it.
        """
        waiting = self._waiting
        scores = self._score()
        rows = (scores > NOTHING).nonzero()[0]
        order: list[Floats | Ints] = [-scores.take(rows)]
        ranks = self._places.kinds.pool_ranks[self._kind]
        if ranks is not None:
            order.append(ranks.take(waiting.demand.take(rows)))
        is_hopeless = tail is not None
        for row in rows[np.lexsort(order)].tolist():
            if not waiting.can_start(row, room, device):
                is_hopeless = False
            elif tail is None or tail.is_worth(at, row, now):
                return int(row)
        if is_hopeless and tail is not None:
            self._hopeless = tail.state(now), float(self._places.factor[at])
        return None

    def _is_hopeless(self, at: int, kept: int, now: float, tail: Tail) -> bool:
        """Whether nothing was worth it on a place of this kind that is no slower; what it keeps may be."""
        if kept != NO_ROW or self._hopeless is None or self._hopeless[0] != tail.state(now):
            return False
        return float(self._places.factor[at]) >= self._hopeless[1]

    def runner_up(self, row: int) -> int | None:
        """The best match of the other near-equals."""
        if self._best_two is None:
            rows, values = self._rows, self._scores.take(self._rows)
            self._best_two = []
            for _ in range(min(len(rows), 2)):
                at = int(values.argmax())
                self._best_two.append(int(rows[at]))
                values[at] = NOTHING
        return next((other for other in self._best_two if other != row), None)
