"""The tail: less waits than there are devices, so that a slow one had better stay idle."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from farm.flow.places import Places
from farm.flow.run_times import RunTimes
from farm.flow.waiting import Waiting

_SLACK_S: Final = 2.0
"""When a busy device will be free is a guess; one that is free takes the task at once."""
_BETTER: Final = 0.95
"""A device is better where a task takes less than this share of its time here."""


class Tail:
    """Whether a device does any good in it. No I/O."""

    def __init__(self, waiting: Waiting, places: Places, times: RunTimes) -> None:
        self._waiting = waiting
        self._places = places
        self._times = times
        self._state: object = None
        self._known: dict[int, tuple[float, float]] = {}
        """In this state, by row: (seconds up to which a device is worth it, seconds from which it is not)."""

    def state(self, now: float) -> object:
        """As long as it is the same, so is what is worth it."""
        return now, self._waiting.total, self._waiting.version, self._places.version

    def is_worth(self, at: int, row: int, now: float) -> bool:
        """Whether the better devices would not have done all that waits before the group's task ends here.

        What a device is not worth, no slower one is: so each group is asked of few.
        """
        state = self.state(now)
        if self._state != state:
            self._state = state
            self._known.clear()
        here = self._seconds(at, row)
        worth_to, not_from = self._known.get(row, (0.0, math.inf))
        if here <= worth_to or here >= not_from:
            return here <= worth_to
        is_worth = self._is_worth(here, row, now)
        self._known[row] = (here, not_from) if is_worth else (worth_to, here)
        return is_worth

    def _seconds(self, at: int, row: int) -> float:
        step, places = int(self._waiting.step[row]), self._places
        median = float(self._times.median_s[step, places[at].model])
        load_s = places.load_s(at, row, step, self._waiting[row].step_id)
        return median * float(places.factor[at]) + load_s

    def _is_worth(self, here: float, row: int, now: float) -> bool:
        waiting, places = self._waiting, self._places
        step = int(waiting.step[row])
        median = self._times.median_s[step][places.model] * places.factor
        able = np.array(list(places.kinds.fitting(int(waiting.demand[row]))))[places.kind]
        takes = median + places.loads_s(row, step, waiting[row].step_id)
        better = np.flatnonzero((takes < _BETTER * here) & places.accepts & able)
        group = waiting[row]
        if group.avoid:
            shunned = [other for node in group.avoid for other in places.of_node.get(node, ())]
            better = better[~np.isin(better, shunned)]
        if waiting.is_few_and_unknown(row):
            # Nothing is known that would be worth waiting for; one that is free now is no wait.
            better = better[places.until[better] == 0]
        if not len(better):
            return True
        until = places.until[better]
        since = places.since[better]
        # Longer than predicted already: it may take as long again as it is late.
        late = np.where(until > 0, np.maximum(now - until, 0.0), 0.0)
        wait = np.where(
            until > 0, np.maximum(until - now, 0.15 * np.maximum(until - since, 0.0) + 0.5 * late), 0.0
        )
        slack = np.where(until > 0, _SLACK_S, 0.0)
        could = np.floor(np.maximum(here - wait - slack, 0.0) / takes[better])
        soon = 0
        for other, tasks in zip(better.tolist(), could.tolist(), strict=True):
            if soon >= waiting.total:
                break
            place = places[other]
            # One that is free and cannot start it (no memory left, say) is no reason to wait.
            is_free = other in places.free[place.kind]
            if not is_free or waiting.can_start(row, places.rooms[place.node_id], place.device):
                soon += int(tasks)
        return soon < waiting.total
