"""The policy in force, fed from the store: what the scheduler asks where tasks should go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace

import sqlalchemy as sa

from farm.control import sharing
from farm.flow import match
from farm.flow.ahead import queue_ahead
from farm.flow.groups import Assignment, Group, merged
from farm.flow.keep import plan_around
from farm.flow.predict import RunTimeModel
from farm.flow.predictive import Predictive
from farm.flow.run_times import Run, UseState
from farm.flow.stall import Expectation, expectation
from farm.flow.stats import eta_s
from farm.flow.weights import Period, Weights, weights_at
from farm.model.decisions import Decision
from farm.model.ids import AttemptId, JobId, NodeId, StepId
from farm.model.machines import NodeView
from farm.settings import Settings
from farm.store import attempts, forecasts, learnt, policies
from farm.store.engine import read_clock

_SAVE_EVERY_S = 5.0
_STEPS_KEPT = 20_000
_FORECASTS_KNOWN = 10_000
_RUNS_A_BATCH = 8
"""Of one step on one device: of very short tasks more would teach nothing new."""
_AHEAD = 4.0
"""With so many tasks for each slot of the farm no slot waits for the next round."""
SCORES: dict[str, match.Score] = {"fitness": match.fitness, "fifo": match.fifo}


def _weights_of(settings: Settings) -> tuple[Weights, list[Period]]:
    """(those that hold always, the periods with others). Raises UserError for a wrong weight."""
    always = Weights.from_table(settings.weights)
    off_peak = dict(settings.off_peak)
    if not off_peak:
        return always, []
    hours = {key: float(off_peak.pop(key)) for key in ("from_hour", "to_hour") if key in off_peak}
    night = Period(
        name="off-peak",
        from_hour=hours.get("from_hour", 20.0),
        to_hour=hours.get("to_hour", 8.0),
        weights=Weights.from_table(off_peak, always),
    )
    return always, [night]


def _hour(now: float) -> float:
    """Of the day, local time, 0 to 24."""
    local = time.localtime(now)
    return local.tm_hour + local.tm_min / 60


def weights_now(settings: Settings, now: float) -> Weights | None:
    """Those in force; None: the policy has none."""
    if settings.policy != "predictive":
        return None
    always, periods = _weights_of(settings)
    return weights_at(_hour(now), always, periods)[1]


def predictive_of(settings: Settings, model: RunTimeModel | None = None) -> Predictive:
    """The predictive policy as the settings want it. Raises UserError for a wrong weight."""
    always, periods = _weights_of(settings)
    return Predictive(
        model,
        weights=always,
        periods=periods,
        shares=settings.shares,
        project_shares=settings.project_shares,
    )


def _tasks_per_slot(views: Sequence[NodeView], plan: Sequence[Assignment]) -> float:
    held = sum(len(view.uses) for view in views) + sum(each.count for each in plan)
    return held / max(1, sum(view.capabilities.slots for view in views))


class Matcher:
    """Owned by the scheduler's thread. `fitness` and `fifo` learn nothing."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self.predictive = predictive_of(settings) if settings.policy == "predictive" else None
        self._saved_at = self._clock()
        self._is_policy_told = False
        self._has_work = False
        self.is_ahead = False
        """The last plan let many tasks queue behind others: no slot waits for the next one."""
        self._prices: tuple[dict[str, list[float]], float] = ({}, 0.0)
        """As they were saved last."""
        self._forecast: set[tuple[JobId, int]] = set()
        """Jobs and marks of which a forecast is kept."""

    def take_over(self, db: sa.Connection) -> None:
        """This scheduler begins to lead: take up what the one before has learnt."""
        self._is_policy_told = False
        if self.predictive is not None:
            farm = learnt.read_farm(db)
            self.predictive = predictive_of(self._settings, RunTimeModel.restored(farm, {}))
            self.predictive.board.set_use(UseState(**farm.use))

    def plan(
        self, db: sa.Connection, groups: Sequence[Group], views: Sequence[NodeView], *, limit: int
    ) -> tuple[Assignment, ...]:
        """Which tasks start where now, short ones that queue behind others among them."""
        self._has_work = True
        now = read_clock(db)
        groups, free, kept = sharing.read(db, self._settings, groups).round(groups, views)

        def policy(
            groups: Sequence[Group], views: Sequence[NodeView], limit: int, free: Mapping[str, int]
        ) -> tuple[Assignment, ...]:
            return self._plan(db, groups, views, now=now, limit=limit, free=free)

        plan = plan_around(policy, groups, kept, limit=limit, free=free)
        ahead = queue_ahead(groups, kept.views, plan, limit=limit, now=now)
        self.is_ahead = bool(ahead) and _tasks_per_slot(kept.views, plan + ahead) >= _AHEAD
        return merged(plan + ahead)

    def _plan(
        self,
        db: sa.Connection,
        groups: Sequence[Group],
        views: Sequence[NodeView],
        *,
        now: float,
        limit: int,
        free: Mapping[str, int],
    ) -> tuple[Assignment, ...]:
        policy = self.predictive
        if policy is None:
            score = SCORES[self._settings.policy]
            return match.plan(groups, views, score=score, limit=limit, free=free)
        groups = self._with_history(db, policy.model, groups)
        return policy.plan(groups, views, now=now, hour=_hour(now), limit=limit, free=free)

    def nothing_waits(self) -> None:
        """Instead of a plan: what was said of waiting work does not hold any more."""
        self._has_work = self.is_ahead = False

    @staticmethod
    def _with_history(db: sa.Connection, model: RunTimeModel, groups: Sequence[Group]) -> Sequence[Group]:
        """Take up what was learnt of steps that are new here: of themselves, else of the same step before."""
        new = [g.step_id for g in groups if g.demand.gpus <= 1 and str(g.step_id) not in model.steps]
        if not new:
            return groups
        own = learnt.read_steps(db, new)
        like = learnt.earlier(db, new)
        first = {earlier for step_id, earlier in like.items() if str(step_id) not in own}
        before = [step_id for step_id in first if str(step_id) not in model.steps]
        for name, state in {**own, **learnt.read_steps(db, before)}.items():
            model.restore_step(name, state)
        return [replace(g, like=str(like[g.step_id])) if g.step_id in like else g for g in groups]

    def decision(self, assignment: Assignment) -> Decision | None:
        """Why the last plan made this assignment; None: the policy does not say."""
        if self.predictive is None:
            return None
        return self.predictive.decision(assignment.step_id, assignment.node_id, assignment.device_id)

    def expected(self, step_id: StepId, node_id: NodeId, device_id: str) -> Expectation | None:
        """What a task of the step takes there; None: no run of the step has taught anything yet."""
        policy = self.predictive
        name = policy.model_of(node_id, device_id) if policy is not None else None
        if policy is None or name is None:
            return None
        return expectation(policy.model, str(step_id), name, node_id)

    def learn(self, db: sa.Connection, attempt_ids: Collection[AttemptId]) -> None:
        """From attempts that have ended; call it after the transaction that says so."""
        policy = self.predictive
        if policy is None or not attempt_ids:
            return
        runs = []
        taught: Counter[tuple[int, str, str]] = Counter()
        for ended in learnt.ended(db, attempt_ids):
            model = policy.model_of(ended.node_id, ended.device_id)
            loaded = policy.loaded(
                ended.node_id,
                ended.device_id,
                ended.step_id,
                began_at=ended.started_at,
                load_s=ended.load_s,
            )
            place = (ended.step_id, ended.node_id, ended.device_id)
            taught[place] += 1
            if model is None or taught[place] > _RUNS_A_BATCH:
                continue
            runs.append(
                Run(
                    step=str(ended.step_id),
                    model=model,
                    node=ended.node_id,
                    runtime_s=ended.runtime_s,
                    load_s=ended.load_s,
                    loaded=loaded,
                    is_censored=not ended.is_complete,
                    vram_peak_mib=ended.vram_peak_mib,
                )
            )
        policy.learn(runs)

    @property
    def is_save_due(self) -> bool:
        return self._clock() - self._saved_at >= _SAVE_EVERY_S

    def save(self, db: sa.Connection) -> None:
        """Keep what was learnt since the last time, when jobs are expected to end, and which policy holds.

        A crash costs a few seconds of learning, no more.
        """
        self._saved_at = self._clock()
        if not self._is_policy_told:
            settings = self._settings
            changed = {**settings.weights, **({"off_peak": settings.off_peak} if settings.off_peak else {})}
            policies.note(db, settings.policy, changed if settings.policy == "predictive" else {})
            self._is_policy_told = True
        self._keep_forecasts(db)
        if self.predictive is not None:
            self._keep_learnt(db, self.predictive)

    def _keep_forecasts(self, db: sa.Connection) -> None:
        for due in forecasts.due(db, self._forecast):
            runtimes_s = attempts.newest_runtimes_s(db, due.job_id)
            expected = eta_s(due.left, runtimes_s, due.live)
            if expected is not None and due.left:
                forecasts.keep(db, due.job_id, due.mark, *expected)
                self._forecast.add((due.job_id, due.mark))
        if len(self._forecast) > _FORECASTS_KNOWN:
            self._forecast.clear()  # the store knows them

    def _keep_learnt(self, db: sa.Connection, policy: Predictive) -> None:
        steps, farm = policy.model.take_changes()
        prices = policy.board.prices_now() if self._has_work else ({}, 0.0)
        if farm is None and prices != self._prices:
            farm = policy.model.farm_state()
        if farm is not None:
            farm.prices, farm.bound_s = self._prices = prices
            farm.use = asdict(policy.board.use_now())
        learnt.write(db, farm, steps)
        policy.prune(keep=_STEPS_KEPT)
