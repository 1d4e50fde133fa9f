"""What jobs share, from the settings through the store to the plan, on both databases."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from farm.control import sharing
from farm.control.matcher import Matcher
from farm.control.scheduler import Scheduler
from farm.flow.groups import Assignment
from farm.flow.submit import plan_job
from farm.model.ids import AttemptId, JobId, NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.work import JobSettings, OutputSpec, Submission
from farm.settings import Settings, load_settings
from farm.store import moves, nodes, ready, settling, submitting
from farm.store.attempts import list_attempts
from farm.store.engine import reading, writing
from farm.store.tables import AttemptRow
from farm.wire.messages import Heartbeat
from tests.leasing import lease


def settings(tmp_path: Path, **changed: Any) -> Settings:
    return load_settings(environment={}, state_dir=tmp_path, broker_url="memory://", **changed)


def enrol(engine: sa.Engine, name: str, *, slots: int = 4, pools: tuple[str, ...] = ("default",)) -> None:
    cpu = Device(
        id="cpu", kind=DeviceKind.CPU, model="cpu", slots=slots, fp32_tflops=1.0, memory_bandwidth_gbps=20.0
    )
    has = Capabilities(cpus=8, memory_mib=8_000, devices=(cpu,), pools=pools)
    beat = Heartbeat(node_id=NodeId(name), session=name, boot_id=name, sequence=1, capabilities=has)
    with writing(engine) as db:
        nodes.heard(db, beat, rival_s=30)


def submit(engine: sa.Engine, *, frames: int = 9, **chosen: Any) -> JobId:
    """A job with staged output."""
    step = {
        "name": "run",
        "parameterSpace": {
            "taskParameterDefinitions": [{"name": "Frame", "type": "INT", "range": f"1-{frames}"}]
        },
        "script": {"actions": {"onRun": {"command": "x", "args": ["{{Param.Out}}"]}}},
    }
    template = {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "t",
        "parameterDefinitions": [{"name": "Out", "type": "PATH", "default": "/out"}],
        "steps": [step],
    }
    output = OutputSpec(
        step="run", directory_parameter="Out", file_pattern="####.png", frames_parameter="Frame"
    )
    made = Submission(name="shot", template=template, outputs=(output,), settings=JobSettings(**chosen))
    with writing(engine) as db:
        return submitting.submit(db, made, plan_job(made, uid=str(uuid.uuid4())), actor="anna")[0]


def plan(engine: sa.Engine, matcher: Matcher) -> tuple[Assignment, ...]:
    with reading(engine) as db:
        views = nodes.views(db, ready.uses(db))
        return matcher.plan(db, ready.groups(db), views, limit=99)


def start(engine: sa.Engine, assignments: tuple[Assignment, ...]) -> list[AttemptId]:
    """Claim, lease and start what was planned."""
    begun: list[AttemptId] = []
    for each in assignments:
        with writing(engine) as db:
            moves.lock_jobs(db, {each.job_id})
            leases = lease(db, each.step_id, each.node_id, each.count, device_id=each.device_id)
            attempts = [given.attempt_id for given in leases]
            settling.started(db, each.node_id, attempts)
            begun += attempts
    return begun


def counts(assignments: tuple[Assignment, ...]) -> Counter[int]:
    found: Counter[int] = Counter()
    for each in assignments:
        found[each.job_id] += each.count
    return found


@pytest.fixture(autouse=True)
def empty(engine: sa.Engine) -> None:
    """PostgreSQL's database is one for all tests: nothing of theirs may wait or take work."""
    with writing(engine) as db:
        db.execute(sa.text("UPDATE job SET state = 'paused', is_paused = true WHERE state = 'active'"))
        db.execute(sa.text("UPDATE node SET state = 'offline'"))


@pytest.mark.parametrize("policy", ["predictive", "fifo"])
def test_ordinary_work_leaves_what_is_reserved_and_urgent_work_finds_it(
    engine: sa.Engine, tmp_path: Path, policy: str
) -> None:
    matcher = Matcher(settings(tmp_path, reservations={"default": 0.25}, policy=policy))
    enrol(engine, "a")
    low = submit(engine, priority=50)
    first = plan(engine, matcher)
    assert counts(first) == {low: 3}
    start(engine, first)
    assert plan(engine, matcher) == ()
    high = submit(engine, priority=95)
    assert counts(plan(engine, matcher)) == {high: 1}


def test_a_user_runs_no_more_than_his_number_over_all_his_jobs(engine: sa.Engine, tmp_path: Path) -> None:
    matcher = Matcher(settings(tmp_path, max_running_per_user=2, max_running_of={"ben": 1}))
    enrol(engine, "a", slots=9)
    anna, too, ben = (submit(engine, user=user) for user in ("anna-2", "anna-2", "ben"))
    first = plan(engine, matcher)
    assert counts(first)[anna] + counts(first)[too] == 2
    assert counts(first)[ben] == 1
    start(engine, first)
    assert plan(engine, matcher) == ()


def test_a_node_serves_its_first_pool_first(engine: sa.Engine, tmp_path: Path) -> None:
    matcher = Matcher(settings(tmp_path))
    enrol(engine, "a", slots=2, pools=("hero", "default"))
    plain = submit(engine, priority=99)
    hero = submit(engine, priority=1, pool="hero,night", frames=1)
    assert counts(plan(engine, matcher)) == {hero: 1, plain: 1}


def test_tasks_make_way_only_for_a_job_that_asks_on_a_farm_that_allows_it(
    engine: sa.Engine, tmp_path: Path
) -> None:
    allowed = settings(tmp_path, preempt_from=90)
    enrol(engine, "a", slots=2)
    low = submit(engine, priority=20)
    begun = start(engine, plan(engine, Matcher(allowed)))
    assert len(begun) == 2
    scheduler = Scheduler(engine, allowed)
    scheduler._lead = None
    assert scheduler._leads()
    submit(engine, priority=95, frames=1)
    scheduler._make_way(90)
    assert _states(engine, begun) == {"running": 2}
    high = submit(engine, priority=95, frames=1, preempts=True)
    scheduler._make_way(96)
    assert _states(engine, begun) == {"running": 2}
    scheduler._make_way(90)
    assert _states(engine, begun) == {"running": 1, "cancelling": 1}
    scheduler._make_way(90)
    assert _states(engine, begun) == {"running": 1, "cancelling": 1}, "one waits: one makes way"
    with reading(engine) as db:
        groups = ready.groups(db)
        told = sharing.with_preemption(db, allowed, sharing.read(db, allowed, groups))
        (group,) = [group for group in groups if group.job_id == high]
        views = nodes.views(db, ready.uses(db))
        texts = [cause.text for cause in told.causes(group, told.round(groups, views)[2])]
        events = list_attempts(db, job_id=low)
    assert texts == ["1 task of lower priority being stopped for it"]
    assert len(events) == 2
    scheduler._end()


def _states(engine: sa.Engine, attempts: list[AttemptId]) -> Counter[str]:
    table = AttemptRow.__table__  # type: ignore[attr-defined]
    with reading(engine) as db:
        return Counter(db.scalars(sa.select(table.c.state).where(table.c.id.in_(attempts))))
