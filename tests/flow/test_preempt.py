"""Which tasks make way: only for who asks, only what loses little, never more than needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.flow.groups import Group
from farm.flow.preempt import MOST_STARTS, Victim, make_way
from farm.model.ids import AttemptId, JobId, NodeId, StepId, TaskId
from farm.model.machines import Capabilities, Device, DeviceKind, NodeView, Use

ASKS = JobId(1)


def node(name: str, busy: int, slots: int = 1, **changed: Any) -> NodeView:
    cpu = Device(id="cpu", kind=DeviceKind.CPU, model="cpu", slots=slots)
    has = Capabilities(cpus=8, memory_mib=32_000, devices=(cpu,))
    view = NodeView(id=NodeId(name), capabilities=has, uses=(Use(device_id="cpu"),) * busy)
    return replace(view, **changed)


def victim(name: str, **changed: Any) -> Victim:
    plain = Victim(
        id=AttemptId(f"on-{name}-{changed.get('ran_s', 10.0)}"),
        task_id=TaskId(1),
        job_id=JobId(9),
        node_id=NodeId(name),
        device_id="cpu",
        priority=50,
        ran_s=10.0,
        starts=1,
    )
    return replace(plain, **changed)


def urgent(**changed: Any) -> Group:
    plain = Group(step_id=StepId(1), job_id=ASKS, ready=1, priority=95)
    return replace(plain, **changed)


def stopped(
    groups: Sequence[Group], nodes: Sequence[NodeView], victims: Sequence[Victim], **changed: Any
) -> list[str]:
    told: dict[str, Any] = {
        "asking": {ASKS}, "from_priority": 90, "loss_s": 60.0, "stopping": {}, "free": {}, **changed
    }  # fmt: skip
    return [str(way.victim.node_id) for way in make_way(groups, nodes, victims, **told)]


def test_the_task_makes_way_that_loses_least() -> None:
    farm = [node(name, 1) for name in "abc"]
    running = [victim("a", ran_s=50.0), victim("b", ran_s=5.0), victim("c", priority=70, ran_s=1.0)]
    assert stopped([urgent()], farm, running) == ["b"]
    assert stopped([urgent(ready=9)], farm, running) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ({"job_id": JobId(2)}, {}),
        ({"priority": 89}, {}),
        ({"ready": 0}, {}),
        ({"max_running": 1, "job_running": 1}, {}),
        ({"takes": (("limit arnold", 1),)}, {"free": {"limit arnold": 0}}),
        ({"avoid": frozenset({NodeId("a")})}, {}),
        ({}, {"stopping": {ASKS: 1}}),
        ({}, {"loss_s": 9.0}),
    ],
)
def test_nobody_makes_way(group: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    assert stopped([urgent()], [node("a", 1)], [victim("a")]) == ["a"]
    assert stopped([urgent(**group)], [node("a", 1)], [victim("a")], **told) == []


def test_no_task_of_the_same_priority_and_none_that_was_started_often_makes_way() -> None:
    assert stopped([urgent()], [node("a", 1)], [victim("a", priority=95)]) == []
    assert stopped([urgent()], [node("a", 1)], [victim("a", starts=MOST_STARTS)]) == []


def test_nobody_makes_way_while_there_is_room_or_where_it_would_not_help() -> None:
    assert stopped([urgent()], [node("a", 1), node("b", 0)], [victim("a")]) == []
    drained = node("a", 1, accepts_work=False)
    assert stopped([urgent()], [drained], [victim("a")]) == []


@given(
    ready=st.integers(0, 6),
    slots=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    ages=st.lists(st.floats(0, 120), min_size=15, max_size=15),
    priorities=st.lists(st.integers(0, 100), min_size=15, max_size=15),
    going=st.integers(0, 3),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_never_more_make_way_than_wait_and_never_one_that_loses_much(
    ready: int, slots: list[int], ages: list[float], priorities: list[int], going: int
) -> None:
    farm = [node(f"n{at}", count, count) for at, count in enumerate(slots)]
    running = [
        victim(
            f"n{at}",
            id=AttemptId(f"{at}-{slot}"),
            ran_s=ages[3 * at + slot],
            priority=priorities[3 * at + slot],
        )
        for at, count in enumerate(slots)
        for slot in range(count)
    ]
    ways = make_way(
        [urgent(ready=ready)],
        farm,
        running,
        asking={ASKS},
        from_priority=90,
        loss_s=60.0,
        stopping={ASKS: going},
        free={},
    )
    may = [v for v in running if v.ran_s <= 60.0 and v.priority < 95]
    assert len({way.victim.id for way in ways}) == len(ways) == min(max(ready - going, 0), len(may))
    chosen = {way.victim.id for way in ways}
    assert chosen <= {v.id for v in may}
    spared = [(v.priority, v.ran_s) for v in may if v.id not in chosen]
    taken = [(way.victim.priority, way.victim.ran_s) for way in ways]
    assert not spared or not taken or max(taken) <= min(spared)
