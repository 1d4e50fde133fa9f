"""What is done about a stalled attempt, and where a second copy of a running one pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Final

from farm.flow.stall import Expectation
from farm.model.ids import NodeId
from farm.model.stalls import StallKind, StallPolicy, Verdict
from farm.text import duration

START_S: Final = 5.0
"""From the decision to the renderer's start: message, slot, session host."""
LEAST_GAIN_S: Final = 0.25
"""In parts of the farm's patience."""
LEAST_GAIN: Final = 0.25
"""Of the new attempt's whole time: estimates are wrong by as much."""
LOST_WORK: Final = 1.0
"""What a second of work that is thrown away counts, in seconds gained, where no copy can run beside it."""
OTHER_MODEL: Final = 0.9
"""A device of another model is preferred as if it were so much faster: what stalls one may stall its like."""
MOST_COPIES: Final = 3
"""Second copies of one task in its life; at any time there is one at most."""
LICENCE_PATIENCE: Final = 5.0
"""How many times the farm's patience an attempt may hold its slot while it waits for a licence."""
_MOST_LATE_SD: Final = 2.0
_Z_90: Final = NormalDist().inv_cdf(0.9)
_DEAD: Final = frozenset({StallKind.HUNG, StallKind.STOPPED, StallKind.WEDGED})
"""They will not end by themselves, as far as can be seen."""
_MAY_END: Final = frozenset({StallKind.SLOW, StallKind.SWAPPING})


class ActionKind(StrEnum):
    NOTHING = "nothing"
    COPY = "copy"
    MOVE = "move"
    KILL = "kill"
    TAKE_OUTPUT = "take-output"
    END_LICENCE = "end-licence"


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeDevice:
    """A device with a free slot that could take the task."""

    node_id: NodeId
    device_id: str
    model: str
    seconds: float | None = None
    """For the whole task, scene load included; None: nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A stalled attempt."""

    verdict: Verdict
    policy: StallPolicy
    can_be_copied: bool
    """Its output is private, it holds no limit of the farm, and it was not copied too often."""
    has_company: bool
    """Another attempt at the task runs beside it."""
    model: str
    """Of its device."""
    age_s: float
    left_s: float | None
    """What it is expected to need yet; None cannot say."""
    idle_s: float = 0.0
    after_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    kind: ActionKind
    text: str = ""
    """One line, for people."""
    place: FreeDevice | None = None


def decide(case: Case, places: Sequence[FreeDevice]) -> Action:
    """What is done about a stall. `docs/stalls.md` has the table."""
    kind, policy = case.verdict.kind, case.policy
    nothing = Action(kind=ActionKind.NOTHING)
    if not case.verdict.is_stall or policy is StallPolicy.WARN:
        return nothing
    if kind is StallKind.NOT_EXITING:
        return Action(kind=ActionKind.TAKE_OUTPUT, text="ended, its files are taken if they are whole")
    if kind is StallKind.LICENCE:
        if policy is StallPolicy.COPY or case.idle_s < case.after_s * LICENCE_PATIENCE:
            return nothing
        return Action(kind=ActionKind.END_LICENCE, text="ended: it runs again when a licence may be free")
    if policy is StallPolicy.KILL:
        return (
            nothing if kind in _MAY_END else Action(kind=ActionKind.KILL, text="ended; that spends a retry")
        )
    if kind in _DEAD:
        return _of_dead(case, places)
    place = best(places, case.model)
    if case.has_company or place is None or not pays(case, place):
        return nothing
    told = _told(place, case)
    if case.can_be_copied:
        return Action(kind=ActionKind.COPY, text=f"second copy on {told}", place=place)
    if policy is StallPolicy.MIGRATE and pays(case, place, lost_s=case.age_s):
        return Action(kind=ActionKind.MOVE, text=f"moved: {told}")
    return nothing


def _of_dead(case: Case, places: Sequence[FreeDevice]) -> Action:
    if case.has_company:
        if case.policy is StallPolicy.COPY or case.verdict.kind is not StallKind.HUNG:
            return Action(kind=ActionKind.NOTHING)
        return Action(kind=ActionKind.MOVE, text="ended; the other attempt goes on")
    place = best(places, case.model)
    # One that hangs is ended first, which frees its slot. One that waits for a disk may not be killed before
    # that answers, and one that was stopped may be let go again: a copy beside it loses nothing.
    is_first_ended = case.verdict.kind is StallKind.HUNG and case.policy is StallPolicy.MIGRATE
    if case.can_be_copied and place is not None and not is_first_ended:
        return Action(kind=ActionKind.COPY, text=f"second copy on {_told(place, case)}", place=place)
    if case.policy is StallPolicy.COPY:
        return Action(kind=ActionKind.NOTHING)
    return Action(kind=ActionKind.MOVE, text="ended, to run on another node")


def _told(place: FreeDevice, case: Case) -> str:
    left = "never ends here" if case.verdict.kind in _DEAD else f"{duration(case.left_s)} to go here"
    if place.seconds is None:
        return f"{place.node_id} ({left})"
    return f"{place.node_id} ({left}, {duration(place.seconds + START_S)} there)"


def best(places: Sequence[FreeDevice], model: str) -> FreeDevice | None:
    """Where the task would take least, another device model preferred."""

    def cost(place: FreeDevice) -> tuple[bool, float, NodeId, str]:
        seconds = place.seconds if place.seconds is not None else 1.0
        weighed = seconds * (OTHER_MODEL if place.model != model else 1.0)
        return place.seconds is None, weighed, place.node_id, place.device_id

    return min(places, key=cost, default=None)


def pays(case: Case, place: FreeDevice, *, lost_s: float = 0.0) -> bool:
    """Whether the task is expected to end earlier there by enough, with the work lost weighed in."""
    if case.left_s is None or place.seconds is None:
        return False
    there_s = place.seconds + START_S
    gain_s = case.left_s - there_s - LOST_WORK * lost_s
    return gain_s > max(LEAST_GAIN_S * case.after_s, LEAST_GAIN * there_s)


def left_s(expected: Expectation, age_s: float) -> float:
    """What a task that has run for `age_s` is expected to need yet, without word of its progress.

    The mean of a log-normal time beyond `age_s`, less that: E[X | X > t] = m e^(s²/2) Q(z - s) / Q(z), where
    z = ln(t / m) / s, and Q is the normal distribution's upper tail (Johnson, Kotz, Balakrishnan, Continuous
    Univariate Distributions 1, 14.3). One that is later than two s is late for a reason that the model knows
    nothing of: s is then taken to be as wide as puts it there.
    """
    median_s = max(expected.median_s * expected.node_factor, 1e-6)
    sd = math.log(max(expected.upper_s / max(expected.median_s, 1e-6), 1.0001)) / _Z_90
    if age_s <= 0:
        return median_s * math.exp(sd * sd / 2)
    sd = max(sd, math.log(age_s / median_s) / _MOST_LATE_SD)
    z = math.log(age_s / median_s) / sd
    mean_s = median_s * math.exp(sd * sd / 2) * _upper_tail(z - sd) / _upper_tail(z)
    return max(mean_s - age_s, 0.0)


def _upper_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))


# --- the job's end ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A running attempt that a copy could race."""

    index: int
    """The caller's."""
    model: str
    age_s: float
    left_s: float | None
    places: tuple[FreeDevice, ...]


def speculate(
    runners: Sequence[Runner], *, after_s: float, limit: int
) -> list[tuple[int, FreeDevice, float]]:
    """Which running attempts get a second copy on an idle device: (index, place, seconds gained), most first.

    For when nothing is left to start: the copy costs a slot that would idle. Each slot is given once.
    """
    chosen: list[tuple[int, FreeDevice, float]] = []
    taken: set[tuple[NodeId, str]] = set()
    pairs = []
    for runner in runners:
        if runner.left_s is None:
            continue
        for place in runner.places:
            if place.seconds is None:
                continue
            there_s = place.seconds + START_S
            gain_s = runner.left_s - there_s
            if gain_s > max(LEAST_GAIN_S * after_s, LEAST_GAIN * there_s):
                pairs.append((gain_s, runner.index, place))
    started: set[int] = set()
    for gain_s, index, place in sorted(pairs, key=lambda p: (-p[0], p[1], p[2].node_id, p[2].device_id)):
        slot = (place.node_id, place.device_id)
        if index in started or slot in taken or len(chosen) >= limit:
            continue
        started.add(index)
        taken.add(slot)
        chosen.append((index, place, gain_s))
    return chosen
