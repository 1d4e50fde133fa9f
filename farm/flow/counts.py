"""What is left of the counts that all share, such as limits, as a round gives tasks out.

`limits` reads them from the live attempts; here they are only counted along between two readings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Needs = tuple[tuple[str, int], ...]
"""(shared count, what one more task takes of it)."""


class SharedCounts:
    """The counts, and which groups (by row) take of which. No I/O."""

    def __init__(self, free: Mapping[str, int]) -> None:
        self._free = dict(free)
        self._used: dict[str, int] = {}
        self._needs: dict[int, Needs] = {}
        """By row; rows that need nothing are left out."""
        self._rows: dict[Needs, dict[int, None]] = {}
        self._has_room: dict[Needs, bool] = {}
        self._is_settled = True

    def __bool__(self) -> bool:
        """Whether any group takes of them."""
        return bool(self._needs)

    def set_free(self, free: Mapping[str, int]) -> None:
        """How much is left of each, counted anew."""
        if any(self._used.values()) or self._free != free:
            self._free, self._used = dict(free), {}
            self._is_settled = False

    def put(self, row: int, needs: Needs) -> None:
        """What one more task of the group takes; of a group that is gone: nothing."""
        before = self._needs.pop(row, None)
        if before is not None:
            del self._rows[before][row]
        if needs:
            self._needs[row] = needs
            self._rows.setdefault(needs, {})[row] = None
            self._has_room.setdefault(needs, self._left_for(needs))

    def has_room(self, row: int) -> bool:
        needs = self._needs.get(row)
        return needs is None or self._has_room[needs]

    def take(self, row: int, tasks: int) -> None:
        """So many of the group's tasks have started; negative: ended."""
        for name, needed in self._needs.get(row, ()):
            self._used[name] = self._used.get(name, 0) + needed * tasks
            self._is_settled = False

    def settle(self, changed: Callable[[Sequence[int], bool], None]) -> None:
        """Tell of the groups that have room again, or no more: (rows, whether they have), all of a kind at
        once."""
        if self._is_settled:
            return
        self._is_settled = True
        for needs, rows in self._rows.items():
            has_room = self._left_for(needs)
            if has_room != self._has_room[needs]:
                self._has_room[needs] = has_room
                changed(list(rows), has_room)

    def _left_for(self, needs: Needs) -> bool:
        return all(
            name not in self._free or self._used.get(name, 0) + needed <= self._free[name]
            for name, needed in needs
        )
