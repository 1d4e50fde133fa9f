"""What the scheduler learns comes from the store and outlives the scheduler, on both databases."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from farm.control.matcher import Matcher, predictive_of
from farm.errors import UserError
from farm.flow.submit import plan_job
from farm.flow.weights import Order
from farm.model.ids import JobId, NodeId, StepId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.states import Outcome
from farm.model.work import Submission
from farm.settings import Settings, load_settings
from farm.store import forecasts, jobs, learnt, moves, nodes, policies, ready, settling, submitting
from farm.store.engine import reading, writing
from farm.wire.messages import Finished, Heartbeat
from tests.leasing import lease

SPEED = {"fast": 1.0, "slow": 4.0}


def settings(**changed: Any) -> Settings:
    return load_settings(environment={}, **changed)


def enrol(engine: sa.Engine, name: str) -> None:
    cpu = Device(
        id="cpu", kind=DeviceKind.CPU, model=name, slots=4, fp32_tflops=1.0, memory_bandwidth_gbps=20.0
    )
    has = Capabilities(cpus=8, memory_mib=8_000, devices=(cpu,))
    beat = Heartbeat(node_id=NodeId(name), session=name, boot_id=name, sequence=1, capabilities=has)
    with writing(engine) as db:
        nodes.heard(db, beat, rival_s=30)


def submit(engine: sa.Engine, frames: int) -> JobId:
    step = {
        "name": "run",
        "parameterSpace": {
            "taskParameterDefinitions": [{"name": "Frame", "type": "INT", "range": f"1-{frames}"}]
        },
        "script": {"actions": {"onRun": {"command": "x", "args": ["{{Task.Param.Frame}}"]}}},
    }
    template = {"specificationVersion": "jobtemplate-2023-09", "name": "t", "steps": [step]}
    submission = Submission(name="shot", template=template)
    with writing(engine) as db:
        return submitting.submit(db, submission, plan_job(submission, uid=str(uuid.uuid4())), actor="anna")[0]


def play(engine: sa.Engine, matcher: Matcher, seconds: float, *, saves: bool = False) -> dict[str, int]:
    """One round: match, claim, run (and save meanwhile), report, learn. How many tasks each node got."""
    with reading(engine) as db:
        views = nodes.views(db, ready.uses(db))
        plan = matcher.plan(db, ready.groups(db), views, limit=100)
    given: dict[str, int] = {}
    for assignment in plan:
        with writing(engine) as db:
            moves.lock_jobs(db, {assignment.job_id})
            leases = lease(
                db,
                assignment.step_id,
                assignment.node_id,
                assignment.count,
                device_id=assignment.device_id,
            )
            ids = [each.attempt_id for each in leases]
        with writing(engine) as db:
            if saves:
                matcher.save(db)
            runtime_s = seconds * SPEED[assignment.node_id]
            settling.finished(
                db,
                {
                    assignment.node_id: [
                        Finished(attempt_id=a, outcome=Outcome.SUCCEEDED, runtime_s=runtime_s, load_s=1.0)
                        for a in ids
                    ]
                },
            )
        given[assignment.node_id] = given.get(assignment.node_id, 0) + len(ids)
        with reading(engine) as db:
            matcher.learn(db, ids)
    return given


def estimates(matcher: Matcher, step: str) -> dict[str, float]:
    policy = matcher.predictive
    assert policy is not None
    return {name: policy.model.estimate(step, name).median_s for name in policy.model.models}


def step_of(engine: sa.Engine, job_id: JobId) -> str:
    with reading(engine) as db:
        return str(jobs.read_job(db, job_id).steps[0].id)


def test_run_times_are_learnt_kept_and_taken_up_by_the_next_leader(engine: sa.Engine) -> None:
    for name in SPEED:
        enrol(engine, name)
    step = step_of(engine, submit(engine, 40))
    first = Matcher(settings())
    for _ in range(3):
        assert play(engine, first, 30.0)
    learnt_s = estimates(first, step)
    assert learnt_s["fast"] == pytest.approx(30, rel=0.3)
    assert learnt_s["slow"] > 2 * learnt_s["fast"]
    with writing(engine) as db:
        first.save(db)
    second = Matcher(settings())
    with reading(engine) as db:
        second.take_over(db)
        views = nodes.views(db, ready.uses(db))
        second.plan(db, ready.groups(db), views, limit=0)
    assert estimates(second, step) == pytest.approx(learnt_s, rel=1e-3)
    assert play(engine, second, 30.0)


def test_a_job_of_the_same_name_begins_with_what_the_last_one_taught(engine: sa.Engine) -> None:
    for name in SPEED:
        enrol(engine, name)
    matcher = Matcher(settings())
    submit(engine, 8)
    play(engine, matcher, 500.0)
    again = step_of(engine, submit(engine, 8))
    with reading(engine) as db:
        views = nodes.views(db, ready.uses(db))
        matcher.plan(db, ready.groups(db), views, limit=0)
    assert estimates(matcher, again)["fast"] > 300


def test_what_was_learnt_goes_with_its_job(engine: sa.Engine) -> None:
    enrol(engine, "fast")
    matcher = Matcher(settings())
    job_id = submit(engine, 2)
    step = step_of(engine, job_id)
    play(engine, matcher, 5.0)
    with writing(engine) as db:
        db.execute(sa.text("DELETE FROM job WHERE id = :id"), {"id": job_id})
        matcher.save(db)
    with reading(engine) as db:
        assert learnt.read_steps(db, [StepId(int(step))]) == {}


def test_the_other_policies_learn_nothing(engine: sa.Engine) -> None:
    enrol(engine, "fast")
    matcher = Matcher(settings(policy="fifo"))
    submit(engine, 4)
    assert play(engine, matcher, 5.0) == {"fast": 4}
    assert matcher.predictive is None
    assert not matcher.is_save_due


def test_a_change_of_policy_or_weights_is_noted_once(engine: sa.Engine) -> None:
    for changed in ({}, {}, {"weights": {"window": 0.9}}, {"policy": "fifo"}):
        matcher = Matcher(settings(**changed))
        with writing(engine) as db:
            matcher.save(db)
            matcher.save(db)
    with reading(engine) as db:
        noted = [(change.policy, change.weights) for change in policies.recent(db, limit=9)]
    assert noted == [("fifo", {}), ("predictive", {"window": 0.9}), ("predictive", {})]


def test_forecasts_of_a_job_are_kept_at_its_marks_and_held_against_its_end(engine: sa.Engine) -> None:
    enrol(engine, "fast")
    matcher = Matcher(settings(policy="fifo"))
    submit(engine, 10)
    for _ in range(3):  # with 0, 4 and 8 of 10 done
        play(engine, matcher, 20.0, saves=True)
    with reading(engine) as db:
        found = forecasts.outcomes(db, limit=9)
    assert len(found) == 2, "a quarter and three quarters were passed with tasks left"
    assert all(0 < likely <= worst and actual >= 0 for likely, worst, actual in found)


def test_what_was_said_of_waiting_work_does_not_outlive_it(engine: sa.Engine) -> None:
    enrol(engine, "fast")
    matcher = Matcher(settings())
    submit(engine, 4)
    play(engine, matcher, 30.0)
    for is_over in (False, True):
        if is_over:
            matcher.nothing_waits()
        with writing(engine) as db:
            matcher.save(db)
        with reading(engine) as db:
            assert (learnt.read_farm(db).prices == {}) is is_over


def test_settings_make_the_weights_and_a_wrong_one_is_named() -> None:
    night = predictive_of(settings(weights={"window": 0.9}, off_peak={"from_hour": 19, "order": "submitted"}))
    assert night.weights_at(12.0).window == 0.9
    assert night.weights_at(20.0).order is Order.SUBMITTED
    assert night.weights_at(20.0).window == 0.9
    with pytest.raises(UserError, match="windw"):
        predictive_of(settings(weights={"windw": 1.0}))
