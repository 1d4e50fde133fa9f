"""The people's order: groups of one priority, by whose turn it is, then by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LOOK: Final = 64
"""Groups of a bucket to look at first; four times as many each time after."""


class Use(NamedTuple):
    """By what buckets are compared, one after the other: the least is first. None: not by this."""

    of_projects: Floats | None
    of_accounts: Floats | None
    of_turns: Floats | None


class Tier:
    """Groups of one priority: a bucket for each user (or job, where those take turns), its groups in order.

    Use moves with every start, the order within a bucket does not: to find the first is to compare buckets.
    """

    def __init__(
        self, rows: Ints, *, bucket: Ints, account: Ints, project_of: Ints, turn: Ints, rank: Ints
    ) -> None:
        """rows: by bucket, then by rank. All else by row, `project_of` by account."""
        self._rows = rows
        self._rank = rank.take(rows)
        buckets = bucket.take(rows)
        starts = np.concatenate([[0], (buckets[1:] != buckets[:-1]).nonzero()[0] + 1])
        self._starts: list[int] = starts.tolist()
        self._ends = [*self._starts[1:], len(rows)]
        self._number = np.repeat(np.arange(len(starts)), np.diff([*self._starts, len(rows)]))
        """By place in `rows`: the bucket."""
        heads = rows.take(starts)
        self._accounts = account.take(heads)
        self._projects = project_of.take(self._accounts)
        self._turns = turn.take(heads)
        self._all = np.arange(len(starts))

    def first(
        self,
        near: Bools,
        use: Use,
        can_start: Callable[[int], bool],
        narrow: Callable[[Ints], Ints] | None = None,
    ) -> int | None:
        """The first row of those that are near (by row) and can start.

        narrow: which of a bucket's near rows count, and in which order; None: all, in theirs.
        """
        buckets = self._least_used(self._all, use)
        if len(buckets) == 1:
            # As a rule the user whose turn it is has a near group.
            row = self._first_in(int(buckets[0]), near, can_start, narrow)
            if row is not None:
                return row
        buckets = self._with_any(near)
        while len(buckets):
            tied = self._least_used(buckets, use)
            # Of users with the very same use the one whose first group comes first.
            for bucket in self._by_rank(tied, near):
                row = self._first_in(bucket, near, can_start, narrow)
                if row is not None:
                    return row
            buckets = buckets[~np.isin(buckets, tied)]
        return None

    def _least_used(self, buckets: Ints, use: Use) -> Ints:
        if len(buckets) > 1 and use.of_projects is not None:
            buckets = _least(buckets, use.of_projects.take(self._projects.take(buckets)))
        if len(buckets) > 1 and use.of_accounts is not None:
            accounts = self._accounts if buckets is self._all else self._accounts.take(buckets)
            buckets = _least(buckets, use.of_accounts.take(accounts))
        if len(buckets) > 1 and use.of_turns is not None:
            buckets = _least(buckets, use.of_turns.take(self._turns.take(buckets)))
        return buckets

    def _with_any(self, near: Bools) -> Ints:
        """The buckets that have a near group."""
        has_any = np.zeros(len(self._all), np.bool_)
        has_any[self._number[near.take(self._rows)]] = True
        return has_any.nonzero()[0]

    def _by_rank(self, buckets: Ints, near: Bools) -> Iterator[int]:
        if len(buckets) == 1:
            yield int(buckets[0])
            return
        is_asked = np.zeros(len(self._all), np.bool_)
        is_asked[buckets] = True
        at = (near.take(self._rows) & is_asked.take(self._number)).nonzero()[0]
        at = at[self._rank.take(at).argsort()]
        yield from dict.fromkeys(self._number.take(at).tolist())

    def _first_in(
        self,
        bucket: int,
        near: Bools,
        can_start: Callable[[int], bool],
        narrow: Callable[[Ints], Ints] | None,
    ) -> int | None:
        at, end, look = self._starts[bucket], self._ends[bucket], _LOOK
        if narrow is not None:
            look = end - at
        while at < end:
            rows = self._rows[at : min(at + look, end)]
            rows = rows[near.take(rows)]
            if narrow is not None and len(rows):
                rows = narrow(rows)
            for row in rows.tolist():
                if can_start(row):
                    return int(row)
            at, look = at + look, 4 * look
        return None


def _least(of: Ints, values: Floats) -> Ints:
    """Those of the least value."""
    at = int(values.argmin())
    same = values == values[at]
    return of[same] if np.count_nonzero(same) > 1 else of[at : at + 1]
