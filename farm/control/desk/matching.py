"""What matching has learnt and how it does, read from the store for people."""

from __future__ import annotations

import math
from typing import Final

import sqlalchemy as sa

from farm.control.matching_views import (
    MatchingView,
    ModelTime,
    ModelWorth,
    NodeFactor,
    PolicySpread,
    ProfileView,
    StepProfile,
)
from farm.flow.predict import RunTimeModel
from farm.flow.run_times import FarmState, model_key
from farm.flow.stats import Completion, calibration, spread, within
from farm.model.ids import JobId
from farm.model.machines import Node
from farm.store import attempts, forecasts, jobs, learnt, nodes, policies

_JOBS_LOOKED_AT: Final = 25
_TASKS_OF_EACH: Final = 200
_FORECASTS_LOOKED_AT: Final = 500
_SLOW: Final = 1.15
_SLOW_NODES_TOLD: Final = 20


def profile(db: sa.Connection, job_id: JobId) -> ProfileView:
    """What is known of what the job's steps demand, and how long they take where. Raises NotFound."""
    job = jobs.read_job(db, job_id)
    states = learnt.read_steps(db, [step.id for step in job.steps])
    model = RunTimeModel.restored(learnt.read_farm(db), states)
    done = attempts.newest_done(db, job_id)
    profiles = []
    for step in job.steps:
        name, state = str(step.id), states.get(str(step.id))
        mine = [each for each in done if each.step_id == step.id]
        runs = model.runs(name) if state is not None else {}
        told = {of: model.estimate(name, of) for of in state.base if of in model.models} if state else {}
        profiles.append(
            StepProfile(
                step=step.name,
                declared=step.profile,
                learnt=model.profile(name, step.profile) if state is not None else step.profile,
                runs=sum(runs.values()),
                load_s=state.load_s[0] if state is not None and state.load_runs[0] else None,
                vram_peak_mib=state.vram_peak_mib or None if state is not None else None,
                spread=spread([each.completion_s for each in mine]),
                within=within([_completion(each) for each in mine]),
                times=tuple(
                    ModelTime(model=of, runs=runs.get(of, 0), median_s=each.median_s, upper_s=each.upper_s)
                    for of, each in sorted(told.items(), key=lambda pair: pair[1].median_s)
                ),
            )
        )
    return ProfileView(steps=tuple(profiles))


def view(db: sa.Connection, policy: str) -> MatchingView:
    """How matching does, farm-wide."""
    farm = learnt.read_farm(db)
    done = [
        each
        for job_id in jobs.newest_jobs(db, limit=_JOBS_LOOKED_AT)
        for each in attempts.newest_done(db, job_id, limit=_TASKS_OF_EACH)
    ]
    predicted = [
        (d.predicted_s, d.upper_s, each.runtime_s) for each in done if (d := each.decision) and not d.is_guess
    ]
    return MatchingView(
        policy=policy,
        tasks=len(done),
        spread=spread([each.completion_s for each in done]),
        within=within([_completion(each) for each in done]),
        policies=_policies(db, done),
        predictions=calibration(predicted),
        etas=calibration(forecasts.outcomes(db, limit=_FORECASTS_LOOKED_AT)),
        waiting_bound_s=farm.bound_s,
        models=tuple(
            ModelWorth(model=name, slots=int(slots), price=price, one_more_saves_s=price * farm.bound_s)
            for name, (slots, price) in sorted(farm.prices.items(), key=lambda pair: -pair[1][1])
        ),
        slow_nodes=_slow_nodes(farm, nodes.list_nodes(db)),
    )


def _completion(done: attempts.Done) -> Completion:
    place = done.decision.model if done.decision is not None else done.node_id
    return Completion(step=done.step_id, place=place, seconds=done.completion_s)


def _policies(db: sa.Connection, done: list[attempts.Done]) -> tuple[PolicySpread, ...]:
    told = []
    until = math.inf
    for change in policies.recent(db, limit=2):
        mine = [_completion(each) for each in done if change.at <= each.finished_at < until]
        told.append(
            PolicySpread(policy=change.policy, weights=change.weights, since=change.at, within=within(mine))
        )
        until = change.at
    return tuple(told)


def _slow_nodes(farm: FarmState, known: list[Node]) -> tuple[NodeFactor, ...]:
    """Those that surely take longer than others of their device models. A lone one has nothing to differ
    from."""
    models = {str(node.id): {model_key(device) for device in node.capabilities.devices} for node in known}
    found = []
    for node, (log, variance) in farm.nodes.items():
        is_alone = not any(
            models.get(node, set()) & others for other, others in models.items() if other != node
        )
        if not is_alone and log - 2 * math.sqrt(variance) > 0 and math.exp(log) > _SLOW:
            found.append(NodeFactor(node=node, factor=math.exp(log)))
    found.sort(key=lambda each: (-each.factor, each.node))
    return tuple(found[:_SLOW_NODES_TOLD])
