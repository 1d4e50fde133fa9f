"""Live VRAM, closed devices and degraded ones in matching."""

from __future__ import annotations

from typing import Any

import pytest

from farm.flow.groups import Group
from farm.flow.match import fitness, plan
from farm.flow.refusals import VRAM_RESERVE_MIB, RefusalKind, refusals, vram_held_mib
from farm.model.ids import JobId, NodeId, StepId
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, DeviceLoad, NodeView, Use
from farm.model.work import Profile

CPU = Device(id="cpu", kind=DeviceKind.CPU, model="EPYC", slots=2)


def gpu(name: str, **other: Any) -> Device:
    figures: dict[str, Any] = {"fp32_tflops": 80.0, "memory_bandwidth_gbps": 1000.0, "vram_mib": 24000}
    return Device(id=name, kind=DeviceKind.GPU, model="RTX", **{**figures, **other})


def node(*gpus: Device, loads: tuple[DeviceLoad, ...] = (), uses: tuple[Use, ...] = ()) -> NodeView:
    return NodeView(
        id=NodeId("n"), capabilities=Capabilities(cpus=8, devices=(CPU, *gpus)), loads=loads, uses=uses
    )


def kinds(demand: Demand, view: NodeView) -> list[RefusalKind]:
    return [refusal.kind for refusal in refusals(demand, view)]


def used(name: str, mib: int, **other: Any) -> DeviceLoad:
    return DeviceLoad(device_id=name, vram_used_mib=mib, **other)


def test_a_card_that_a_foreign_process_fills_is_not_given_more() -> None:
    demand = Demand(gpus=1, vram_mib=8000)
    assert kinds(demand, node(gpu("a"), loads=(used("a", 1000),))) == []
    (refusal,) = refusals(demand, node(gpu("a"), loads=(used("a", 20000),)))
    assert refusal.kind is RefusalKind.VRAM_BUSY
    assert refusal.is_momentary
    assert refusal.text == "free VRAM 4,000 MiB < 8,000 MiB needed"


def test_what_live_attempts_hold_is_not_counted_twice() -> None:
    two = gpu("a", slots=2)
    uses = (Use(device_id="a", vram_mib=10000),)
    demand = Demand(gpus=1, vram_mib=12000)
    for mib in (0, 5000, 10000):  # as the attempt fills what is reserved for it
        assert kinds(demand, node(two, uses=uses, loads=(used("a", mib),))) == []
    full = node(two, uses=uses, loads=(used("a", 14000, vram_foreign_mib=4000),))
    assert kinds(demand, full) == [RefusalKind.VRAM_BUSY]
    not_yet = node(two, uses=uses, loads=(used("a", 4000, vram_foreign_mib=4000),))
    assert kinds(demand, not_yet) == [RefusalKind.VRAM_BUSY], "foreign use counts before ours has grown"


def test_the_peak_that_was_seen_counts_with_a_margin() -> None:
    demand = Demand(gpus=1, vram_seen_mib=10000)
    assert vram_held_mib(demand) == 11500 + VRAM_RESERVE_MIB
    assert kinds(demand, node(gpu("a"), loads=(used("a", 12000),))) == []
    assert kinds(demand, node(gpu("a"), loads=(used("a", 13000),))) == [RefusalKind.VRAM_BUSY]


def test_an_empty_card_may_always_try() -> None:
    demand = Demand(gpus=1, vram_seen_mib=23500)
    assert kinds(demand, node(gpu("a"), loads=(used("a", 500),))) == []


def test_vram_set_aside_for_each_task_packs_a_card() -> None:
    packed = gpu("a", slots=8, vram_per_task_mib=6000)
    group = Group(step_id=StepId(1), job_id=JobId(1), demand=Demand(gpus=1), ready=10)
    (assignment,) = plan([group], [node(packed)], score=fitness, limit=10)
    assert assignment.count == 4


def test_the_driver_s_own_share_is_not_free() -> None:
    load = used("a", 100, vram_free_mib=23400)
    assert kinds(Demand(gpus=1, vram_mib=23450), node(gpu("a"), loads=(load,))) == [RefusalKind.VRAM_BUSY]


@pytest.mark.parametrize("how", [{"fault": "lost: it has fallen off the bus"}, {"closed": "PROHIBITED"}])
def test_a_closed_device_gets_nothing_and_says_why(how: dict[str, Any]) -> None:
    load = DeviceLoad(device_id="a", **how)
    (refusal,) = refusals(Demand(gpus=1), node(gpu("a"), loads=(load,)))
    assert refusal.kind is RefusalKind.DEVICE_CLOSED
    assert refusal.is_momentary
    assert refusal.text == f"RTX: {next(iter(how.values()))}"
    group = Group(step_id=StepId(1), job_id=JobId(1), demand=Demand(gpus=1), ready=5)
    (assignment,) = plan([group], [node(gpu("a"), gpu("b"), loads=(load,))], score=fitness, limit=10)
    assert (assignment.device_id, assignment.count) == ("b", 1)
    assert kinds(Demand(), node(gpu("a"), loads=(load,))) == [], "the CPU goes on"


def test_a_throttled_device_loses_score() -> None:
    group = Group(
        step_id=StepId(1),
        job_id=JobId(1),
        demand=Demand(gpus=1),
        profile=Profile(compute_share=0.9, bandwidth_share=0.1),
        ready=1,
    )
    hot = DeviceLoad(device_id="fast", health=0.4, complaint="throttled: hardware thermal slowdown")
    fast, slow = gpu("fast"), gpu("slow", fp32_tflops=50.0)
    assert plan([group], [node(fast, slow)], score=fitness, limit=1)[0].device_id == "fast"
    assert plan([group], [node(fast, slow, loads=(hot,))], score=fitness, limit=1)[0].device_id == "slow"
