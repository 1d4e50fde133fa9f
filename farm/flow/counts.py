"""What is left of the counts that all share, such as limits, as a round gives tasks out.

`limits` reads them from the live attempts; here they are only counted along between two readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Needs = tuple[tuple[str, int], ...]
"""(shared count, what one more task takes of it)."""


class SharedCounts:
    """The counts, and all needs that groups have had, by number; 0 is to need nothing. No I/O."""

    def __init__(self, free: Mapping[str, int]) -> None:
        self._free = dict(free)
        self._used: dict[str, int] = {}
        self._numbers: dict[Needs, int] = {(): 0}
        self._needs: list[Needs] = [()]
        self._of_name: dict[str, list[int]] = {}
        """By count: the needs that take of it."""
        self.room: Floats = np.zeros(8)
        """By needs: 0, or -inf while too little is left."""
        self._touched: dict[str, None] = {}
        """Counts that have changed since `settle`."""

    def __bool__(self) -> bool:
        """Whether anybody ever needed any."""
        return len(self._needs) > 1

    def set_free(self, free: Mapping[str, int]) -> None:
        """How much is left of each, counted anew."""
        if any(self._used.values()) or self._free != free:
            self._free, self._used = dict(free), {}
            self._touched = dict.fromkeys(self._of_name)

    def number(self, needs: Needs) -> int:
        found = self._numbers.get(needs)
        if found is None:
            found = self._numbers[needs] = len(self._needs)
            self._needs.append(needs)
            if found == len(self.room):
                self.room = np.concatenate([self.room, np.zeros_like(self.room)])
            self.room[found] = self._room_for(needs)
            for name, _ in needs:
                self._of_name.setdefault(name, []).append(found)
        return found

    def has_room(self, number: int) -> bool:
        """As of the last `settle`."""
        return number == 0 or bool(self.room[number] == 0.0)

    def take(self, number: int, tasks: int) -> None:
        """So many tasks with these needs have started; negative: ended."""
        for name, needed in self._needs[number]:
            self._used[name] = self._used.get(name, 0) + needed * tasks
            self._touched[name] = None

    def settle(self) -> bool:
        """Take in what was taken and given back; returns whether any needs have room again, or no more."""
        if not self._touched:
            return False
        has_changed = False
        for number in {number for name in self._touched for number in self._of_name.get(name, ())}:
            room = self._room_for(self._needs[number])
            has_changed |= room != self.room[number]
            self.room[number] = room
        self._touched.clear()
        return has_changed

    def _room_for(self, needs: Needs) -> float:
        does_fit = all(
            name not in self._free or self._used.get(name, 0) + needed <= self._free[name]
            for name, needed in needs
        )
        return 0.0 if does_fit else -math.inf
