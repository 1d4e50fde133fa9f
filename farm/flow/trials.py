"""Tasks of a step on device models that have not run it: some go there to teach, and at first only one.

A step that is predicted to be slow on a device model never runs there, so that nobody finds out if the
prediction is wrong. One task costs a little; where it comes as a good surprise all that are left gain. Where
a bad surprise would be costly, the other tasks wait for what the first one tells.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

AT_ONCE: Final = 2
"""Of a group: what one teaches tells of other device models, too."""
_WAIT: Final = 2.0
"""So many times as long as predicted a trial (or a first task) is awaited: then it may be made again."""
_LEAST_DOUBT: Final = 0.05
"""Less doubt than this, as sd of the logarithm, is not worth a trial."""


def trial_gains(cost: Floats, load: Floats, sd: Floats, ready: Ints, *, worth: float) -> Floats:
    """log of how much more a task of each group (rows) is worth on each device model (columns) for what it
    teaches; 0 where it teaches too little.

    cost, load: of a task and of loading its scene, in price units; inf: it cannot run there. sd: of the
    logarithm of the seconds. worth: of what each of the `ready` tasks may gain, this much counts.

    The gain is the mean of what a log-normal cost falls short of the best one so far.
    """
    found = np.zeros_like(cost)
    doubt = own_doubt(sd)
    rows, columns = np.nonzero((doubt > _LEAST_DOUBT) & np.isfinite(cost))
    if worth <= 0 or not len(rows):
        return found
    here, doubt = cost[rows, columns], doubt[rows, columns]
    best = cost.min(axis=1)[rows]
    z = np.log(best / here) / doubt
    gain = best * _below(z + doubt / 2) - here * _below(z - doubt / 2)
    total = here + load[rows, columns]
    left = np.maximum(total - worth * ready[rows] * gain, np.minimum(best, total))
    found[rows, columns] = np.log(total / left)
    return found


def own_doubt(sd: Floats) -> Floats:
    """Of the logarithm of each group's (rows) seconds on each device model: sd beyond that of the best known.

    What is doubted of the best known device model is doubted of all: only the rest can set them apart.
    """
    found: Floats = np.sqrt(np.maximum(sd**2 - (sd**2).min(axis=1, keepdims=True), 0.0))
    return found


def _below(z: Floats) -> Floats:
    """The standard normal distribution, within 0.0002 (Page 1977)."""
    found: Floats = 0.5 * (1 + np.tanh(0.7988 * z * (1 + 0.04417 * z * z)))
    return found


class Trials:
    """What groups gain by a trial where, and which trials are out. Rows are groups, as in `Waiting`."""

    def __init__(self) -> None:
        self._gains: dict[int, Floats] = {}
        """By group: of each device model, 0 for none. Only groups that have any."""
        self._out: dict[int, dict[int, float]] = {}
        """By group and device model: until when what it teaches is awaited."""

    def scored(self, rows: Ints, gains: Floats, now: float) -> None:
        """Groups have been scored anew."""
        for row in self.among(rows):
            del self._gains[row]
        for at in np.unique(gains.nonzero()[0]).tolist():
            self._gains[int(rows[at])] = gains[at]
        for row in self._out.keys() & set(rows.tolist()):
            out = {model: until for model, until in self._out.pop(row).items() if until > now}
            if out:
                self._out[row] = out

    def started(self, row: int, model: int, now: float, until: float) -> bool:
        """A task of the group has, on a device of the model. Returns whether it was a trial."""
        gains = self._gains.get(row)
        if gains is None or not gains[model] or self.gains(row) is None:
            return False
        self._out.setdefault(row, {})[model] = now + _WAIT * (until - now)
        return True

    def gains(self, row: int) -> Floats | None:
        """By device model: what one more task of the group gains by being a trial; None: nothing."""
        gains = self._gains.get(row)
        out = self._out.get(row)
        if gains is None or out is None:
            return gains
        if len(out) >= AT_ONCE:
            return None
        gains = gains.copy()
        gains[list(out)] = 0.0
        return gains

    def among(self, rows: Ints) -> set[int]:
        """Those of these groups that have any."""
        return self._gains.keys() & set(rows.tolist())

    def forget(self, row: int) -> None:
        """The group is gone."""
        self._gains.pop(row, None)
        self._out.pop(row, None)


class Firsts:
    """Which first tasks of groups are out on device models that have not proved themselves.

    Nothing has run there, and it may turn out slow: one task finds out, more would be harmed alike.
    """

    def __init__(self) -> None:
        self._out: dict[int, dict[int, float]] = {}
        """By group and device model: until when what its first task teaches is awaited."""

    def scored(self, rows: Ints, unproven: Bools, now: float) -> None:
        """Groups have been scored anew. unproven: by row and device model."""
        for at in np.flatnonzero(np.isin(rows, list(self._out))).tolist() if self._out else ():
            row = int(rows[at])
            awaited = self._out.pop(row).items()
            out = {model: until for model, until in awaited if unproven[at, model] and until > now}
            if out:
                self._out[row] = out

    def started(self, row: int, model: int, now: float, until: float) -> None:
        """A task of the group has, on a device of a model that is unproven for it."""
        self._out.setdefault(row, {})[model] = now + _WAIT * (until - now)

    def closed(self, row: int) -> list[int]:
        """The device models on which no more of the group's tasks may start for now."""
        return list(self._out.get(row, ()))

    def among(self, rows: Ints) -> set[int]:
        """Those of these groups that have any out."""
        return self._out.keys() & set(rows.tolist()) if self._out else set()

    def forget(self, row: int) -> None:
        """The group is gone."""
        self._out.pop(row, None)
