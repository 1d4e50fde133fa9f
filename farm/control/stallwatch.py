"""Running attempts judged by what their nodes tell, and what is done about those that stall.

Part of the scheduler's loop: `look` reads, decides with `farm.flow.stall` and `farm.flow.migrate`, and
writes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from farm.control import sharing
from farm.flow import migrate
from farm.flow.migrate import Action, ActionKind, Case, FreeDevice
from farm.flow.refusals import Room, eligible_devices, standing
from farm.flow.run_times import model_key
from farm.flow.stall import Expectation, judge, remaining_s
from farm.model.ids import AttemptId, NodeId, StepId
from farm.model.limits import limits_needed
from farm.model.machines import Demand, NodeView
from farm.model.stalls import Origin, StallKind, StallPolicy, Verdict
from farm.model.states import Outcome
from farm.model.work import Isolation
from farm.settings import Settings
from farm.store import moves, nodes, ready, stalling
from farm.store.stalling import Running, Waiting

_LOG = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 5.0
STALE_S: Final = 30.0
"""Evidence older than this says nothing of now."""
REWRITE_S: Final = 30.0
"""A verdict that stays the same is written again after this, with its figures of now."""
MOST_ACTIONS: Final = 10
"""In one look: what stalls in crowds is no attempt's own trouble."""
_LEAST_RUNS: Final = 3
_WIDE: Final = 2.0
"""Without a run-time model: nine in ten are taken to take less than so many times the mean."""
_CROWD: Final = 3
"""Nodes that wait for a disk together, and are half of those that work: it is the file server."""
_SICK: Final = 0.7
"""A device that gives less of its figures than this gets no copies, and its waiting tasks move away."""
_WAITED_S: Final = 15.0
"""A task may wait on a busy device for so long while another one that fits is free."""

RunTimes = Callable[[StepId, NodeId, str], Expectation | None]
"""(step, node, device) -> what a task of the step takes there; None: nothing is known."""
Transaction = Callable[[], contextlib.AbstractContextManager[sa.Connection]]


@dataclass(frozen=True, slots=True)
class _Step:
    """Something to be done about an attempt."""

    seen: Running
    action: Action
    reason: str
    origin: Origin = Origin.COPY
    left_s: float | None = None


class StallWatch:
    """Owned by the scheduler's thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        run_times: RunTimes,
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._run_times = run_times
        self._clock = clock
        self._new_id = new_id
        self._looked_at = float("-inf")
        self._written: dict[AttemptId, float] = {}

    @property
    def is_due(self) -> bool:
        return self._clock() - self._looked_at >= min(LOOK_EVERY_S, self._settings.stall_after_s / 4)

    def look(self, read: Transaction, lead: Transaction, *, heard_for_s: float) -> int:
        """Judge everything that runs; returns how many attempts something was done about.

        heard_for_s: for how long nodes could be heard without a break. What was told before such a break says
        nothing of now, and after it every node gets its time to tell what has begun and ended meanwhile.
        """
        suspect_s = self._settings.suspect_s
        if heard_for_s < suspect_s:
            return 0
        self._looked_at = now = self._clock()
        with read() as db:
            running = [seen for seen in stalling.running(db) if seen.told_s <= min(STALE_S, heard_for_s)]
            waiting = stalling.waiting(db, older_s=_WAITED_S, heard_s=suspect_s)
            judged = [(seen, self._verdict(seen)) for seen in running]
            changed = [(seen, verdict) for seen, verdict in judged if self._is_news(seen, verdict, now)]
            self._written = {seen.id: self._written.get(seen.id, 0.0) for seen in running}
            self._written |= {seen.id: now for seen, _ in changed}
            steps = self._steps(db, judged)
            rooms = _Rooms(db, self._settings, self._run_times) if waiting else None
        moved = [each for each in waiting if rooms is not None and rooms.is_better_off_elsewhere(each)]
        if not (changed or steps or moved):
            return 0
        with lead() as db:
            moves.lock_jobs(db, {step.seen.job_id for step in steps} | {each.job_id for each in moved})
            stalling.judged(db, changed)
            for step in steps:
                self._take(db, step)
            stalling.take_back(db, moved)
        return len(steps) + len(moved)

    def _verdict(self, seen: Running) -> Verdict:
        return judge(seen.evidence, self._expected(seen), after_s=self._settings.stall_after_s)

    def _expected(self, seen: Running) -> Expectation | None:
        known = self._run_times(seen.step_id, seen.node_id, seen.device_id)
        if known is None and seen.runtime_mean_s is not None and seen.runtime_count >= _LEAST_RUNS:
            return Expectation(median_s=seen.runtime_mean_s, upper_s=seen.runtime_mean_s * _WIDE)
        return known

    def _is_news(self, seen: Running, verdict: Verdict, now: float) -> bool:
        if verdict.kind is not seen.verdict.kind:
            return True
        return verdict.kind is not StallKind.WORKING and now - self._written.get(seen.id, 0.0) >= REWRITE_S

    # --- what to do -------------------------------------------------------------------------------

    def _steps(self, db: sa.Connection, judged: Sequence[tuple[Running, Verdict]]) -> list[_Step]:
        stalled = [
            (seen, v) for seen, v in judged if v.is_stall and self._policy(seen) is not StallPolicy.WARN
        ]
        if _is_crowd(judged):
            _LOG.warning("many nodes wait for a disk: the file server is to blame, nothing is moved")
            stalled = [(seen, v) for seen, v in stalled if v.kind is not StallKind.WEDGED]
        steady = [seen for seen, v in judged if not v.is_stall and self._may_be_copied(seen)]
        speculates = self._settings.speculate and bool(steady) and not ready.groups(db)
        if not stalled and not speculates:
            return []
        rooms = _Rooms(db, self._settings, self._run_times)
        steps: list[_Step] = []
        for seen, verdict in stalled[: 4 * MOST_ACTIONS]:
            left_s = self._left_s(seen)
            case = Case(
                verdict=verdict,
                policy=self._policy(seen),
                can_be_copied=_can_be_copied(seen),
                has_company=seen.copies > 0,
                model=rooms.model_of(seen.node_id, seen.device_id),
                age_s=seen.evidence.age_s,
                left_s=left_s,
                idle_s=seen.evidence.cpu_idle_s,
                after_s=self._settings.stall_after_s,
            )
            action = migrate.decide(case, rooms.places(seen))
            if action.kind is ActionKind.NOTHING or len(steps) >= MOST_ACTIONS:
                continue
            if action.place is not None:
                rooms.take(action.place, seen.demand)
            is_slow = verdict.kind in (StallKind.SLOW, StallKind.SWAPPING)
            reason = f"{verdict.kind}: {verdict.text}"
            steps.append(_Step(seen=seen, action=action, reason=reason, left_s=left_s if is_slow else None))
        if speculates and not steps:
            steps += self._speculations(steady, rooms)
        return steps

    def _policy(self, seen: Running) -> StallPolicy:
        return seen.settings.on_stall or self._settings.on_stall

    def _may_be_copied(self, seen: Running) -> bool:
        return _can_be_copied(seen) and self._policy(seen) in (StallPolicy.COPY, StallPolicy.MIGRATE)

    def _left_s(self, seen: Running) -> float | None:
        by_progress = remaining_s(seen.evidence)
        if by_progress is not None:
            return by_progress
        expected = self._expected(seen)
        return None if expected is None else migrate.left_s(expected, seen.evidence.age_s)

    def _speculations(self, running: Sequence[Running], rooms: _Rooms) -> list[_Step]:
        """Second copies on devices that would idle, at the end of all work."""
        runners = [
            migrate.Runner(
                index=at,
                model=rooms.model_of(seen.node_id, seen.device_id),
                age_s=seen.evidence.age_s,
                left_s=self._left_s(seen),
                places=rooms.places(seen),
            )
            for at, seen in enumerate(running)
        ]
        steps = []
        after_s = self._settings.stall_after_s
        for index, place, gain_s in migrate.speculate(runners, after_s=after_s, limit=MOST_ACTIONS):
            seen = running[index]
            text = f"second copy on {place.node_id}, expected to end {gain_s:.0f} s earlier"
            action = Action(kind=ActionKind.COPY, text=text, place=place)
            steps.append(
                _Step(
                    seen=seen,
                    action=action,
                    reason="the last tasks",
                    origin=Origin.SPECULATION,
                    left_s=self._left_s(seen),
                )
            )
        return steps

    def _take(self, db: sa.Connection, step: _Step) -> None:
        seen, action = step.seen, step.action
        done = True
        match action.kind:
            case ActionKind.COPY:
                place = action.place
                done = place is not None and stalling.copy(
                    db,
                    seen,
                    AttemptId(self._new_id()),
                    node_id=place.node_id,
                    device_id=place.device_id,
                    origin=step.origin,
                    reason=f"{step.reason}; {action.text}",
                    lease_s=self._settings.lease_s,
                    left_s=step.left_s,
                )
            case ActionKind.MOVE:
                done = stalling.ask_to_end(db, seen, Outcome.STALLED, step.reason)
            case ActionKind.TAKE_OUTPUT:
                done = stalling.ask_to_end(db, seen, Outcome.STALLED, step.reason, takes_output=True)
            case ActionKind.KILL:
                reason = f"stalled, and its job says kill: {step.reason}"
                done = stalling.ask_to_end(db, seen, Outcome.JOB_ERROR, reason)
            case ActionKind.END_LICENCE:
                done = stalling.ask_to_end(db, seen, Outcome.LICENCE, step.reason)
        if done:
            stalling.acted(db, seen, action.text)


def _can_be_copied(seen: Running) -> bool:
    """A second attempt harms nobody, and there is none yet."""
    return (
        seen.owns
        and seen.isolation is not Isolation.EXCLUSIVE
        and seen.copies == 0
        and seen.copied < migrate.MOST_COPIES
        and seen.demand.gpus <= 1
        and not limits_needed(seen.demand.amounts)
    )


def _is_crowd(judged: Sequence[tuple[Running, Verdict]]) -> bool:
    wedged = {seen.node_id for seen, verdict in judged if verdict.kind is StallKind.WEDGED}
    return len(wedged) >= _CROWD and 2 * len(wedged) >= len({seen.node_id for seen, _ in judged})


class _Rooms:
    """What is free on the farm now, less what is kept: reserved slots, watts."""

    def __init__(self, db: sa.Connection, settings: Settings, run_times: RunTimes) -> None:
        self._run_times = run_times
        views = nodes.views(db, ready.uses(db))
        kept = sharing.read(db, settings, ()).round((), views)[2]
        self._rooms = {view.id: Room.of(view) for view in kept.views}

    def model_of(self, node_id: NodeId, device_id: str) -> str:
        room = self._rooms.get(node_id)
        first = device_id.split(",")[0]
        devices = room.node.capabilities.devices if room is not None else ()
        return next((model_key(device) for device in devices if device.id == first), "")

    def places(self, seen: Running | Waiting) -> tuple[FreeDevice, ...]:
        """Where a task could start now; its own node and those that it avoids apart."""
        found = []
        for node_id, room in self._rooms.items():
            view = room.node
            if node_id == seen.node_id or node_id in seen.avoids or not view.accepts_work:
                continue
            if not room.holds(seen.demand) or next(standing(seen.demand, view), None) is not None:
                continue
            for device in eligible_devices(seen.demand, view):
                if not _is_well(view, device.id) or not room.is_free(seen.demand, device):
                    continue
                expected = self._run_times(seen.step_id, node_id, device.id)
                mean_s = seen.runtime_mean_s if seen.runtime_count >= _LEAST_RUNS else None
                found.append(
                    FreeDevice(
                        node_id=node_id,
                        device_id=device.id,
                        model=model_key(device),
                        seconds=mean_s if expected is None else expected.median_s * expected.node_factor,
                    )
                )
        return tuple(found)

    def take(self, place: FreeDevice, demand: Demand) -> None:
        room = self._rooms[place.node_id]
        room.take(demand, [d for d in room.node.capabilities.devices if d.id == place.device_id])

    def is_better_off_elsewhere(self, waiting: Waiting) -> bool:
        """Whether a task that waits on its device could start at once on another; takes that place."""
        room = self._rooms.get(waiting.node_id)
        if room is None:
            return False
        places = self.places(waiting)
        is_ill = not room.node.accepts_work or not _is_well(room.node, waiting.device_id)
        if not places or not (is_ill or waiting.is_behind_others):
            return False
        place = migrate.best(places, "")
        if place is not None:
            self.take(place, waiting.demand)
        return place is not None


def _is_well(view: NodeView, device_id: str) -> bool:
    loads = {load.device_id: load for load in view.loads}
    parts = [loads[part] for part in device_id.split(",") if part in loads]
    return all(load.health >= _SICK and not load.fault and not load.closed for load in parts)
