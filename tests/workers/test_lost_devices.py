"""What an agent does when one of its devices fails."""

from __future__ import annotations

import pytest

from farm.model.ids import NodeId
from farm.model.states import Outcome
from farm.wire.messages import Finished, Launch
from tests.workers.test_lifecycle import Node, order, script
from workers import events, instructions
from workers import lifecycle as lc

RULES = lc.Rules(
    node_id=NodeId("n1"),
    slots={"cpu": 2, "GPU-1": 1, "GPU-2": 1},
    heartbeat_s=5.0,
    fence_s=20.0,
    kill_grace_s=2.0,
)
LOST = events.DeviceFailed(device_id="GPU-1", reason="lost: it has fallen off the bus")


def launch(*pairs: tuple[str, str]) -> events.LaunchReceived:
    orders = tuple(order(name, device_id) for name, device_id in pairs)
    return events.LaunchReceived(launch=Launch(script=script(), orders=orders))


def ends(told: list[instructions.Instruction]) -> dict[str, Finished]:
    items = [i.item for i in told if isinstance(i, instructions.Report)]
    return {item.attempt_id: item for item in items if isinstance(item, Finished)}


@pytest.fixture
def node() -> Node:
    return Node(RULES)


def test_what_runs_on_a_lost_device_is_ended_and_what_runs_elsewhere_is_not(node: Node) -> None:
    node.tell(launch(("a", "GPU-1"), ("b", "GPU-2"), ("c", "cpu")))
    for name in "abc":
        node.start(name)
    told = node.tell(LOST)
    assert [i.host_id for i in told if isinstance(i, instructions.CancelHost)] == [node.host_of("a")]
    end = ends(node.finish("a", Outcome.NODE_FAULT))["a"]
    assert end.reason == "GPU-1 of n1: lost: it has fallen off the bus"
    assert end.is_device_fault
    assert not ends(node.finish("b"))["b"].is_device_fault


def test_a_renderer_that_its_gpu_took_along_does_not_pay_with_a_retry(node: Node) -> None:
    node.tell(launch(("a", "GPU-1")))
    node.start("a")
    node.tell(LOST)
    end = ends(node.finish("a", Outcome.JOB_ERROR))["a"]
    assert (end.outcome, end.is_device_fault) == (Outcome.NODE_FAULT, True)


def test_a_frame_that_was_done_before_the_loss_stays_done(node: Node) -> None:
    node.tell(launch(("a", "GPU-1")))
    node.start("a")
    node.tell(LOST)
    assert ends(node.finish("a"))["a"].outcome is Outcome.SUCCEEDED


def test_what_waits_for_a_lost_device_is_handed_back(node: Node) -> None:
    node.tell(launch(("a", "GPU-1"), ("b", "GPU-1")))
    node.start("a")
    assert ends(node.tell(LOST))["b"].outcome is Outcome.NODE_LOST


def test_a_lost_device_takes_no_more(node: Node) -> None:
    node.tell(LOST)
    end = ends(node.tell(launch(("a", "GPU-1"))))["a"]
    assert (end.outcome, end.is_device_fault) == (Outcome.NODE_FAULT, True)
    node.tell(launch(("b", "GPU-2")))
    assert node.runs["b"] == 1


def test_the_farm_hears_of_a_loss_at_once_and_of_trembling_once_a_second(node: Node) -> None:
    beats = len(node.heartbeats())
    node.tell(events.LoadsChanged(), after_s=2.0)
    node.tell(events.Tick())
    assert len(node.heartbeats()) == beats + 1
    for _ in range(9):
        node.tell(events.LoadsChanged(), after_s=0.1)
        node.tell(events.Tick())
    assert len(node.heartbeats()) == beats + 1
    node.tell(events.Tick(), after_s=0.2)
    assert len(node.heartbeats()) == beats + 2


def test_an_attempt_on_several_gpus_holds_a_slot_of_each(node: Node) -> None:
    node.tell(launch(("a", "GPU-1,GPU-2"), ("b", "GPU-2")))
    assert (node.runs["a"], node.runs["b"]) == (1, 0)
    node.start("a")
    node.finish("a")
    assert node.runs["b"] == 1


def test_new_devices_take_work_and_those_that_are_gone_hand_theirs_back(node: Node) -> None:
    node.tell(launch(("a", "GPU-1"), ("b", "GPU-1")))
    node.start("a")
    told = node.tell(events.DevicesChanged(slots={"cpu": 2, "GPU-2": 1, "GPU-3": 1}))
    assert ends(told)["b"].outcome is Outcome.NODE_LOST
    assert [i.host_id for i in told if isinstance(i, instructions.CancelHost)] == [node.host_of("a")]
    assert node.heartbeats()[-1].is_full, "the farm hears what there is now"
    node.finish("a", Outcome.NODE_FAULT)
    node.tell(launch(("c", "GPU-3")))
    assert node.runs["c"] == 1
    assert "has no device 'GPU-1'" in ends(node.tell(launch(("d", "GPU-1"))))["d"].reason
