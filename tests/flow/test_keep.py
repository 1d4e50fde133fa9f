"""Reservations, power caps and nodes kept for wide tasks: by example, and against a naive count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.errors import UserError
from farm.flow.groups import Assignment, Group
from farm.flow.keep import KeepRules, Kept, causes, drawn_w, is_wide, keep, plan_around
from farm.flow.match import fifo, plan, why
from farm.flow.predictive import Predictive
from farm.flow.refusals import fits, pool_rank
from farm.flow.weights import Weights
from farm.model.ids import JobId, NodeId, StepId
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, DeviceLoad, NodeView, Use
from farm.model.sharing import Reservation, read_reservation

FREE = Weights(slow_penalty=0.0, slow_cap=1e6, idle_in_tail=False, probe_tasks=10**6, window=1e-6)


def gpu(at: int = 0, *, slots: int = 1, tdp_w: float | None = 300.0, tflops: float = 30.0) -> Device:
    return Device(
        id=f"gpu{at}",
        kind=DeviceKind.GPU,
        model="gpu",
        slots=slots,
        fp32_tflops=tflops,
        memory_bandwidth_gbps=600,
        vram_mib=24_000,
        tdp_w=tdp_w,
    )


def node(
    name: str,
    *devices: Device,
    pools: tuple[str, ...] = ("default",),
    uses: Sequence[Use] = (),
    loads: Sequence[DeviceLoad] = (),
    cpus: int = 8,
) -> NodeView:
    has = Capabilities(cpus=cpus, memory_mib=32_000, devices=devices or (gpu(),), pools=pools)
    return NodeView(id=NodeId(name), capabilities=has, uses=tuple(uses), loads=tuple(loads))


def use(device: str = "gpu0", **changed: object) -> Use:
    return replace(Use(device_id=device, step_id=StepId(99)), **changed)  # type: ignore[arg-type]


def group(step: int, **changed: object) -> Group:
    plain = Group(step_id=StepId(step), job_id=JobId(step), demand=Demand(gpus=1), ready=9)
    return replace(plain, submitted_at=float(step), **changed)  # type: ignore[arg-type]


def by_fifo(
    groups: Sequence[Group], nodes: Sequence[NodeView], limit: int, free: Mapping[str, int]
) -> tuple[Assignment, ...]:
    return plan(groups, nodes, score=fifo, limit=limit, free=free)


def around(groups: Sequence[Group], kept: Kept) -> dict[int, list[str]]:
    """Step -> nodes of its tasks."""
    found: dict[int, list[str]] = {}
    for each in plan_around(by_fifo, groups, kept, limit=99, free={}):
        found.setdefault(int(each.step_id), []).extend([str(each.node_id)] * each.count)
    return {step: sorted(names) for step, names in found.items()}


# --- pools --------------------------------------------------------------------------------------------


def test_a_node_serves_its_pools_in_order_whatever_the_priority() -> None:
    first = node("a", pools=("hero", "default"))
    groups = [group(1, demand=Demand(gpus=1, pool="hero"), ready=1), group(2, priority=99, ready=1)]
    assert around(groups, keep(groups, [first], KeepRules())) == {1: ["a"]}
    assert around(groups[1:], keep(groups[1:], [first], KeepRules())) == {2: ["a"]}
    policy = Predictive(weights=FREE)
    (start,) = policy.plan(groups, [first], now=0.0, hour=12.0, limit=9)
    assert start.step_id == 1
    both = [replace(groups[0], ready=0), groups[1]]
    assert [a.step_id for a in policy.plan(both, [first], now=1.0, hour=12.0, limit=9)] == [2]


def test_naming_the_only_pool_is_no_way_past_the_queue() -> None:
    only = node("a")
    assert pool_rank(Demand(pool="default"), only.capabilities) == pool_rank(Demand(), only.capabilities)
    groups = [group(1, ready=1), group(2, demand=Demand(gpus=1, pool="default"), ready=1)]
    assert around(groups, keep(groups, [only], KeepRules())) == {1: ["a"]}


def test_a_job_may_name_several_pools() -> None:
    demand = Demand(gpus=1, pool="hero, night")
    assert fits(demand, node("a", pools=("night",)))
    (cause,) = why(group(1, demand=demand), [node("b")])
    assert cause.text == "b: in none of the pools 'hero', 'night'"


# --- reservations -------------------------------------------------------------------------------------

URGENT = {"priority": 95}
FIFTH = KeepRules(reservations=[Reservation(pool="default", share=0.25)])


def test_ordinary_work_leaves_the_reserved_slots_and_urgent_work_takes_them() -> None:
    farm = [node(name) for name in "abcd"]
    ordinary, urgent = group(1), group(2, ready=9, **URGENT)
    assert around([ordinary], keep([ordinary], farm, FIFTH)) == {1: ["a", "b", "c"]}
    assert around([urgent], keep([urgent], farm, FIFTH)) == {2: ["a", "b", "c", "d"]}


def test_what_urgent_work_holds_is_no_part_of_what_others_may_have() -> None:
    farm = [node("a", uses=[use(priority=95)]), *(node(name) for name in "bcd")]
    assert around([group(1)], keep([group(1)], farm, FIFTH)) == {1: ["b", "c", "d"]}
    full = [node("a", uses=[use()]), node("b", uses=[use()]), node("c", uses=[use()]), node("d")]
    kept = keep([group(1)], full, FIFTH)
    assert around([group(1)], kept) == {}
    (told,) = causes(group(1), kept, FIFTH)
    assert "keeps 1 of 4 GPU slots for priority 90 and above" in told.text
    assert causes(group(2, **URGENT), kept, FIFTH) == []
    lines = [cause.text for cause in why(group(1), kept.views, shared=[told])]
    assert "d: gpu: kept for priority 90 and above (reservation of pool default)" in lines


def test_a_part_of_a_device_s_slots_can_be_kept() -> None:
    wide = node("a", gpu(slots=4))
    assert around([group(1)], keep([group(1)], [wide], FIFTH)) == {1: ["a"] * 3}
    assert around([group(1, **URGENT)], keep([group(1, **URGENT)], [wide], FIFTH)) == {1: ["a"] * 4}


def test_a_reservation_may_be_for_a_project_or_a_user() -> None:
    rules = KeepRules(reservations=[read_reservation("default", {"share": 0.5, "projects": ["hero"]})])
    farm = [node("a"), node("b")]
    assert around([group(1, **URGENT)], keep([], farm, rules)) == {1: ["a"]}
    assert around([group(1, project="hero")], keep([], farm, rules)) == {1: ["a", "b"]}


@pytest.mark.parametrize(
    "value",
    [
        0,
        1.1,
        True,
        "half",
        {"part": 1},
        {"share": 0.1, "users": "anna"},
        {"share": 0.1, "from_priority": "x"},
    ],
)
def test_a_reservation_that_is_none_is_refused_by_name(value: object) -> None:
    with pytest.raises(UserError, match="reservation of pool 'gpu'"):
        read_reservation("gpu", value)


@st.composite
def pools_of_nodes(draw: st.DrawFn) -> list[NodeView]:
    found = []
    for name in "abcdef"[: draw(st.integers(1, 6))]:
        slots = draw(st.integers(1, 3))
        busy = draw(st.integers(0, slots))
        uses = [use(priority=draw(st.sampled_from([50, 95]))) for _ in range(busy)]
        found.append(
            node(name, gpu(slots=slots), uses=uses, pools=draw(st.sampled_from([("x",), ("y", "x")])))
        )
    return found


@given(
    nodes=pools_of_nodes(),
    share=st.floats(0.05, 1.0),
    ready=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    is_predictive=st.booleans(),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_other_work_never_starts_in_a_reserved_share_and_urgent_work_finds_every_slot(
    nodes: list[NodeView], share: float, ready: tuple[int, int], is_predictive: bool
) -> None:
    rules = KeepRules(reservations=[Reservation(pool="x", share=share)])
    groups = [group(1, ready=ready[0]), group(2, ready=ready[1], **URGENT)]
    kept = keep(groups, nodes, rules)

    def ask(
        groups: Sequence[Group], nodes: Sequence[NodeView], limit: int, free: Mapping[str, int]
    ) -> tuple[Assignment, ...]:
        if is_predictive:
            return Predictive(weights=FREE).plan(groups, nodes, now=0.0, hour=12.0, limit=limit, free=free)
        return by_fifo(groups, nodes, limit, free)

    plans = plan_around(ask, groups, kept, limit=99, free={})
    assert plans == plan_around(ask, groups, kept, limit=99, free={}), "same input, same plan"
    total = sum(device.slots for view in nodes for device in view.capabilities.devices)
    before = sum(each.priority < 90 for view in nodes for each in view.uses)
    ordinary = sum(each.count for each in plans if each.step_id == 1)
    urgent = sum(each.count for each in plans if each.step_id == 2)
    may = total - math.ceil(share * total - 1e-9)
    assert before + ordinary <= max(may, before)
    free = total - sum(len(view.uses) for view in nodes)
    assert urgent + ordinary <= free
    if urgent < ready[1]:
        assert urgent + ordinary == free, "a slot is free that urgent work could have"
    for view in nodes:
        given = sum(each.count for each in plans if each.node_id == view.id)
        assert given + len(view.uses) <= view.capabilities.slots


# --- watts --------------------------------------------------------------------------------------------


def test_devices_stay_idle_that_would_draw_more_than_the_cap() -> None:
    rules = KeepRules(power_caps_w={"default": 700.0})
    farm = [node("a", uses=[use()]), node("b"), node("c")]
    kept = keep([group(1)], farm, rules)
    assert around([group(1)], kept) == {1: ["b"]}
    (text,) = [cause.text for cause in why(group(1), kept.views) if "power_caps_w" in cause.text]
    assert text == (
        "c: gpu: pool default may draw 700 W, of which 100 W are left; 300 W more are needed (power_caps_w)"
    )


def test_the_most_work_for_a_watt_stays_open() -> None:
    rules = KeepRules(power_caps_w={"default": 350.0})
    farm = [node("a", gpu(tflops=10.0)), node("b", gpu(tflops=80.0))]
    assert around([group(1)], keep([], farm, rules)) == {1: ["b"]}


def test_idle_draw_counts_and_a_device_without_figures_is_not_capped() -> None:
    rules = KeepRules(power_caps_w={"default": 350.0})
    idle = DeviceLoad(device_id="gpu0", power_w=60.0)
    assert drawn_w(node("a", loads=[idle])) == {"gpu0": 60.0}
    assert drawn_w(node("a", loads=[idle], uses=[use()])) == {"gpu0": 300.0}
    assert around([group(1)], keep([], [node("a", loads=[idle]), node("b", loads=[idle])], rules)) == {}
    assert around([group(1)], keep([], [node("a", gpu(tdp_w=None))], rules)) == {1: ["a"]}


@given(nodes=pools_of_nodes(), cap_w=st.floats(1.0, 2_000.0), ready=st.integers(0, 12))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_plan_takes_a_pool_over_its_cap(nodes: list[NodeView], cap_w: float, ready: int) -> None:
    rules = KeepRules(power_caps_w={"x": cap_w})
    groups = [group(1, ready=ready)]
    plans = plan_around(by_fifo, groups, keep(groups, nodes, rules), limit=99, free={})
    started = {each.node_id for each in plans}
    before = sum(300.0 for view in nodes if view.uses)
    after = sum(300.0 for view in nodes if view.uses or view.id in started)
    assert after <= max(cap_w, before)


# --- wide tasks ---------------------------------------------------------------------------------------

WIDE = Demand(gpus=2)
TWO = (gpu(0), gpu(1))


def test_a_wide_task_that_waited_gets_the_node_that_will_be_free_first() -> None:
    rules = KeepRules(wide_patience_s=900.0)
    soon = node("a", *TWO, uses=[use("gpu0", since=0.0, mean_runtime_s=1_100.0)])
    late = node("b", *TWO, uses=[use("gpu1", since=0.0, mean_runtime_s=9_000.0)])
    wide, small = group(1, demand=WIDE, ready=1), group(2)
    assert is_wide(wide)
    assert not is_wide(small)
    early = keep([wide, small], [soon, late], rules, now=800.0, idle_since={StepId(1): 0.0})
    assert early.holds == {}
    kept = keep([wide, small], [soon, late], rules, now=1_000.0, idle_since={StepId(1): 0.0})
    assert set(kept.holds) == {"a"}
    assert around([wide, small], kept) == {2: ["b"]}
    (told,) = [cause for cause in why(small, kept.views) if "kept" in cause.text]
    assert told.text == "a: kept for job 1, which needs much of a node and has waited 16:40 for it"
    free = [replace(soon, uses=()), late]
    kept = keep([wide, small], free, rules, now=1_200.0, idle_since={StepId(1): 0.0})
    assert around([wide, small], kept) == {1: ["a"], 2: ["b"]}


def test_no_node_is_kept_for_what_a_limit_holds_up() -> None:
    rules = KeepRules(wide_patience_s=1.0)
    busy = node("a", *TWO, uses=[use("gpu0")])
    wide = group(1, demand=WIDE, takes=(("limit arnold", 1),))
    idle = {StepId(1): 0.0}
    assert keep([wide], [busy], rules, now=9.0, idle_since=idle, free={"limit arnold": 0}).holds == {}
    assert keep([wide], [busy], rules, now=9.0, idle_since=idle, free={"limit arnold": 1}).holds


def test_no_node_is_kept_that_work_of_a_higher_priority_waits_for() -> None:
    rules = KeepRules(wide_patience_s=1.0)
    farm = [node("a", *TWO, uses=[use("gpu0")]), node("b", *TWO, uses=[use("gpu0")], pools=("other",))]
    wide = group(1, demand=WIDE, priority=40)
    idle = {StepId(1): 0.0}
    above = group(2, demand=Demand(gpus=1, pool="default"), priority=50)
    assert set(keep([wide, above], farm, rules, now=9.0, idle_since=idle).holds) == {"b"}
    same = replace(above, priority=40)
    assert set(keep([wide, same], farm, rules, now=9.0, idle_since=idle).holds) == {"a"}


def test_at_most_half_the_nodes_are_kept() -> None:
    rules = KeepRules(wide_patience_s=1.0)
    farm = [node(name, *TWO, uses=[use("gpu0")]) for name in "abcd"]
    groups = [group(step, demand=WIDE) for step in range(1, 9)]
    idle = {g.step_id: 0.0 for g in groups}
    assert len(keep(groups, farm, rules, now=9.0, idle_since=idle).holds) == 2


def test_a_wide_task_does_not_starve_among_small_ones() -> None:
    """Small tasks of staggered ends come for ever: without a node kept for it the wide task never starts."""
    wide, small = group(1, demand=WIDE, ready=1), group(2, ready=999, priority=50)
    for rules, starts in ((KeepRules(), False), (KeepRules(wide_patience_s=30.0), True)):
        uses = {"gpu0": 10.0, "gpu1": 15.0}  # device -> when its task ends
        started = False
        for now in range(200):
            uses = {device: end for device, end in uses.items() if end > now}
            live = [use(d, since=end - 10.0, mean_runtime_s=10.0) for d, end in uses.items()]
            farm = [node("a", *TWO, uses=live)]
            kept = keep([wide, small], farm, rules, now=float(now), idle_since={StepId(1): 0.0})
            for each in plan_around(by_fifo, [small, wide], kept, limit=9, free={}):
                if each.step_id == 1:
                    started = True
                else:
                    uses[each.device_id] = now + 10.0
            if started:
                break
        assert started is starts
