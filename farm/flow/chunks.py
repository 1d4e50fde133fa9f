"""Chunks of a target run time: how many frames a task gets, decided anew while the step runs.

The tasks of such a step have no fixed places in its frames: a task's index says itself where its chunk begins
and how long it is (`packed`). So waiting tasks can be cut anew, and a task that was ever handed out never is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

_LENGTH_BITS: Final = 11
MOST_FRAMES: Final = (1 << _LENGTH_BITS) - 1
"""Of one chunk: an index has 31 bits, and a step up to a million frames."""
_SHARES: Final = 2.0
"""Each slot comes back so often for what is left, so that chunks shrink towards the end: guided
self-scheduling (Polychronopoulos and Kuck, 1987)."""
_MOST_GROWTH: Final = 4.0
"""Over the longest chunk seen: a few short frames say little about the others."""
_WORTH: Final = 1.25
"""Waiting tasks are cut anew when their number changes by so much."""
LEAST_RUNS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    first: int
    """Its first frame's place in the step's frames, from 0."""
    length: int

    @property
    def end(self) -> int:
        return self.first + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRun:
    """A chunk that was rendered."""

    length: int
    runtime_s: float
    load_s: float = 0.0
    """Of it, paid once whatever the length."""


def packed(chunk: Chunk) -> int:
    """The index of the task that renders it; larger for a later one."""
    return chunk.first << _LENGTH_BITS | chunk.length


def unpacked(index: int) -> Chunk:
    return Chunk(first=index >> _LENGTH_BITS, length=index & MOST_FRAMES)


def cut(first: int, end: int, *, most: int) -> list[Chunk]:
    """Chunks of `most` frames over the places `first` to `end`, the last one of what is left."""
    most = min(max(most, 1), MOST_FRAMES)
    return [Chunk(first=at, length=min(most, end - at)) for at in range(first, end, most)]


def wanted_length(runs: Sequence[ChunkRun], *, target_s: float) -> int | None:
    """How many frames fill the target, by what was rendered; None: too little was."""
    if len(runs) < LEAST_RUNS:
        return None
    frame_s = median(max(run.runtime_s - run.load_s, 1e-3) / run.length for run in runs)
    load_s = median(run.load_s for run in runs)
    fits = (target_s - load_s) / frame_s
    longest = max(run.length for run in runs)
    return max(1, min(math.floor(fits), math.floor(longest * _MOST_GROWTH), MOST_FRAMES))


def recut(
    waiting: Sequence[Chunk], runs: Sequence[ChunkRun], *, target_s: float, slots: int
) -> list[Chunk] | None:
    """The waiting chunks cut anew, over the same frames; None: leave them as they are."""
    length = wanted_length(runs, target_s=target_s)
    if length is None or not waiting:
        return None
    made: list[Chunk] = []
    left = sum(chunk.length for chunk in waiting)
    for first, end in _stretches(waiting):
        while first < end:
            # A share of all that is left, not only of this stretch: chunks shrink towards the job's end.
            share = math.ceil(left / (_SHARES * max(slots, 1)))
            made.append(Chunk(first=first, length=min(length, share, end - first)))
            first, left = made[-1].end, left - made[-1].length
    if max(len(made), len(waiting)) < min(len(made), len(waiting)) * _WORTH:
        return None
    return made


def _stretches(chunks: Sequence[Chunk]) -> list[tuple[int, int]]:
    """Where chunks lie one behind the other: (first place, behind the last)."""
    found: list[tuple[int, int]] = []
    for chunk in sorted(chunks, key=lambda each: each.first):
        if found and found[-1][1] == chunk.first:
            found[-1] = (found[-1][0], chunk.end)
        else:
            found.append((chunk.first, chunk.end))
    return found
