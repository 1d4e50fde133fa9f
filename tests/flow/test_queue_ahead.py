"""Short tasks may wait on a busy node, and nothing else may."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.flow.ahead import AHEAD_S, MOST_AHEAD, SHORT_S, queue_ahead
from farm.flow.groups import Assignment, Group
from farm.model.ids import JobId, NodeId, StepId
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, NodeView, Use

CPU = Device(id="cpu", kind=DeviceKind.CPU, model="x", slots=2)
BUSY = NodeView(
    id=NodeId("n1"),
    capabilities=Capabilities(cpus=2, memory_mib=1000, devices=(CPU,)),
    uses=(Use(device_id="cpu", mean_runtime_s=SHORT_S / 5),) * 2,
)
SHORT = Group(step_id=StepId(1), job_id=JobId(1), ready=100, mean_runtime_s=SHORT_S / 5, runtimes=999)


def count(assignments: tuple[Assignment, ...]) -> int:
    return sum(assignment.count for assignment in assignments)


@pytest.mark.parametrize(
    ("mean_runtime_s", "ahead"),
    [(0.2, 10), (AHEAD_S / MOST_AHEAD, MOST_AHEAD), (0.001, MOST_AHEAD)],
)
def test_short_tasks_queue_on_a_busy_device_up_to_the_limit(mean_runtime_s: float, ahead: int) -> None:
    short = replace(SHORT, mean_runtime_s=mean_runtime_s)
    assert count(queue_ahead([short], [BUSY], (), limit=500)) == 2 * ahead
    queued = replace(BUSY, uses=BUSY.uses[:1] * (2 + 2 * ahead))
    assert queue_ahead([short], [queued], (), limit=500) == ()


@given(
    slots=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    queued=st.lists(st.integers(0, 40), min_size=5, max_size=5),
    ready=st.integers(1, 300),
)
def test_queues_are_filled_to_one_length(slots: list[int], queued: list[int], ready: int) -> None:
    nodes = [
        replace(
            BUSY,
            id=NodeId(f"n{i}"),
            capabilities=replace(BUSY.capabilities, devices=(replace(CPU, slots=n),)),
            uses=BUSY.uses[:1] * (n + q),
        )
        for i, (n, q) in enumerate(zip(slots, queued, strict=False))
    ]
    plan = queue_ahead([replace(SHORT, ready=ready)], nodes, (), limit=500)
    given_to = {a.node_id: a.count for a in plan}
    depth = {
        node.id: (given_to.get(node.id, 0) + q) / n for node, n, q in zip(nodes, slots, queued, strict=False)
    }
    longest = max((depth[node_id] for node_id in given_to), default=0.0)
    assert all(depth[node.id] > longest - 1.001 for node in nodes)
    room = sum(max(0, n * MOST_AHEAD - q) for n, q in zip(slots, queued, strict=False))
    assert count(plan) == min(ready, room)


def test_the_first_tasks_to_end_may_be_the_shortest() -> None:
    assert count(queue_ahead([replace(SHORT, runtimes=3)], [BUSY], (), limit=500)) == 12
    long = replace(BUSY, uses=(replace(BUSY.uses[0], since=50.0),) * 2)
    assert queue_ahead([SHORT], [long], (), limit=500, now=50.0 + 2 * AHEAD_S) != ()
    assert queue_ahead([SHORT], [long], (), limit=500, now=50.1 + 2 * AHEAD_S) == ()


def test_what_was_planned_in_the_same_round_counts() -> None:
    planned = Assignment(step_id=StepId(1), job_id=JobId(1), node_id=NodeId("n1"), device_id="cpu", count=99)
    assert queue_ahead([SHORT], [BUSY], (planned,), limit=500) == ()


def test_long_unknown_and_demanding_tasks_do_not_queue() -> None:
    for group in (
        replace(SHORT, mean_runtime_s=SHORT_S * 2),
        replace(SHORT, mean_runtime_s=None),
        replace(SHORT, demand=Demand(cpus=1)),
        replace(SHORT, demand=Demand(memory_mib=10)),
        replace(SHORT, max_running=5),
    ):
        assert queue_ahead([group], [BUSY], (), limit=500) == ()


def test_no_short_task_queues_behind_one_that_may_be_long() -> None:
    for mean_runtime_s in (None, SHORT_S * 2):
        long = Use(device_id="cpu", mean_runtime_s=mean_runtime_s)
        assert queue_ahead([SHORT], [replace(BUSY, uses=(BUSY.uses[0], long))], (), limit=500) == ()
        planned = Assignment(
            step_id=StepId(2), job_id=JobId(2), node_id=NodeId("n1"), device_id="cpu", count=1
        )
        group = Group(step_id=StepId(2), job_id=JobId(2), ready=1, mean_runtime_s=mean_runtime_s)
        half = replace(BUSY, uses=BUSY.uses[:1])
        assert queue_ahead([SHORT, group], [half], (planned,), limit=500) == ()


def test_nothing_queues_past_a_group_that_comes_first_and_waits() -> None:
    urgent = replace(SHORT, step_id=StepId(2), priority=90, mean_runtime_s=600.0)
    assert queue_ahead([SHORT, urgent], [BUSY], (), limit=500) == ()


def test_a_node_that_refuses_gets_no_queue() -> None:
    draining = replace(BUSY, accepts_work=False, refusal="draining")
    assert queue_ahead([SHORT], [draining], (), limit=500) == ()
    assert queue_ahead([replace(SHORT, demand=Demand(software=("maya",)))], [BUSY], (), limit=500) == ()
