"""The predictive policy follows the store: what it is told again changes nothing, what differs does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farm.flow.groups import Assignment, Group
from farm.flow.predictive import Predictive
from farm.flow.run_times import Run, SceneLoad
from farm.flow.weights import Order, Period, Weights
from farm.model.ids import JobId, NodeId, StepId
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, NodeView, Use

GPU = Device(
    id="gpu", kind=DeviceKind.GPU, model="fast", fp32_tflops=80, memory_bandwidth_gbps=900, vram_mib=24_000
)
SLOW = replace(GPU, model="slow", fp32_tflops=20, memory_bandwidth_gbps=220)
FREE = Weights(idle_in_tail=False, slow_cap=1e6, probe_tasks=10**6)


def node(name: str, *uses: Use, devices: tuple[Device, ...] = (GPU,)) -> NodeView:
    has = Capabilities(cpus=8, memory_mib=32_000, devices=devices)
    return NodeView(id=NodeId(name), capabilities=has, uses=uses)


def group(step: int, **changed: object) -> Group:
    plain = Group(step_id=StepId(step), job_id=JobId(step), demand=Demand(gpus=1), ready=5)
    return replace(plain, submitted_at=float(step), **changed)  # type: ignore[arg-type]


def ask(
    policy: Predictive,
    groups: Sequence[Group],
    nodes: Sequence[NodeView],
    now: float = 0.0,
    free: Mapping[str, int] | None = None,
) -> list[Assignment]:
    return list(policy.plan(groups, nodes, now=now, hour=12.0, limit=99, free=free))


def use(step: int, **changed: object) -> Use:
    return replace(Use(device_id="gpu", step_id=StepId(step), since=1.0), **changed)  # type: ignore[arg-type]


def test_what_the_store_does_not_confirm_is_planned_again() -> None:
    policy = Predictive(weights=FREE)
    groups, nodes = [group(1)], [node("a"), node("b")]
    assert len(ask(policy, groups, nodes)) == 2
    assert len(ask(policy, groups, nodes, 1.0)) == 2
    assert ask(policy, [group(1, ready=3, running=2)], [node("a", use(1)), node("b", use(1))], 2.0) == []
    assert len(ask(policy, [group(1, ready=3, running=1)], [node("a"), node("b", use(1))], 3.0)) == 1


def test_groups_and_nodes_come_and_go() -> None:
    policy = Predictive(weights=FREE)
    assert ask(policy, [], [node("a")]) == []
    assert {a.step_id for a in ask(policy, [group(1)], [node("a")])} == {1}
    assert {a.step_id for a in ask(policy, [group(2)], [node("a")])} == {2}
    assert ask(policy, [group(2)], []) == []
    other = replace(GPU, model="other", fp32_tflops=5)
    assert len(ask(policy, [group(2)], [node("a", devices=(other,)), node("c")])) == 2


def test_tasks_of_one_step_that_avoid_a_node_are_a_group_of_their_own() -> None:
    policy = Predictive(weights=FREE)
    groups = [group(1, ready=0), group(1, ready=1, avoid=frozenset({NodeId("a")}))]
    plan = ask(policy, groups, [node("a"), node("b")])
    assert [(a.step_id, a.node_id, a.count) for a in plan] == [(1, "b", 1)]


def test_a_task_for_two_gpus_gets_both_of_one_node() -> None:
    two = (GPU, replace(GPU, id="gpu2"))
    policy = Predictive(weights=FREE)
    wide = group(1, demand=Demand(gpus=2), ready=1)
    plan = ask(policy, [wide, group(2)], [node("a", devices=two), node("b")])
    assert sorted((int(a.step_id), str(a.node_id), a.device_id) for a in plan) == [
        (1, "a", "gpu,gpu2"),
        (2, "b", "gpu"),
    ]


def test_wide_and_narrow_tasks_share_what_is_left_of_a_count() -> None:
    policy = Predictive(weights=FREE)
    two = (GPU, replace(GPU, id="gpu2"))
    takes = (("limit arnold", 2),)
    groups = [group(1, demand=Demand(gpus=2), ready=1, takes=takes), group(2, takes=takes)]
    farm = [node("a", devices=two), node("b"), node("c"), node("d")]
    plan = ask(policy, groups, farm, free={"limit arnold": 5})
    assert sorted((int(a.step_id), a.count) for a in plan) == [(1, 1), (2, 1)]
    assert len(ask(policy, groups, farm, 1.0, free={"limit arnold": 9})) == 4


def test_what_is_learnt_outlives_a_change_of_leader_and_unknown_runs_teach_nothing() -> None:
    policy = Predictive(weights=FREE)
    ask(policy, [group(1)], [node("a")])
    policy.learn(
        [
            Run(step="1", model="fast", node="a", runtime_s=400.0),
            Run(step="77", model="fast", node="a", runtime_s=400.0),
            Run(step="1", model="gone", node="a", runtime_s=400.0),
        ]
    )
    policy.forget()
    assert policy.model.estimate("1", "fast").median_s > 200
    assert len(ask(policy, [group(1)], [node("a")], 5.0)) == 1


def test_the_weights_of_the_hour_hold() -> None:
    night = Period(name="night", from_hour=20, to_hour=6, weights=replace(FREE, order=Order.SUBMITTED))
    policy = Predictive(weights=FREE, periods=[night])
    groups = [group(1, ready=50), group(2, ready=1)]
    day = policy.plan(groups, [node("a")], now=0.0, hour=12.0, limit=1)
    policy.forget()
    dark = policy.plan(groups, [node("a")], now=10.0, hour=23.0, limit=1)
    assert [a.step_id for a in day] == [2]
    assert [a.step_id for a in dark] == [1]
    told = policy.decision(StepId(1), NodeId("a"), "gpu")
    assert told is not None
    assert told.period == "night"


def test_a_run_is_warm_after_one_of_its_own_step_on_the_device() -> None:
    policy = Predictive()
    ran = [(1, "gpu0"), (1, "gpu1"), (1, "gpu0"), (2, "gpu0"), (1, "gpu0"), (1, "gpu1")]
    found = [
        policy.loaded(NodeId("a"), device, StepId(step), began_at=10.0 * at, load_s=5.0)
        for at, (step, device) in enumerate(ran)
    ]
    assert found == [
        SceneLoad.COLD,
        SceneLoad.CACHED,
        SceneLoad.WARM,
        SceneLoad.COLD,
        SceneLoad.CACHED,
        SceneLoad.WARM,
    ]


def test_runs_that_read_a_scene_side_by_side_are_all_cold() -> None:
    policy = Predictive()
    found = [
        policy.loaded(NodeId("a"), f"gpu{at}", StepId(1), began_at=0.5 * at, load_s=20.0) for at in range(4)
    ]
    assert found == [SceneLoad.COLD] * 4
    later = policy.loaded(NodeId("a"), "gpu9", StepId(1), began_at=60.0, load_s=2.0)
    elsewhere = policy.loaded(NodeId("b"), "gpu0", StepId(1), began_at=60.0, load_s=20.0)
    assert (later, elsewhere) == (SceneLoad.CACHED, SceneLoad.COLD)


def test_what_is_learnt_knows_how_many_of_the_step_run_still() -> None:
    def learnt_beside(others: int) -> float:
        policy = Predictive(weights=FREE)
        names = [f"n{number}" for number in range(others + 1)]
        uses = [node(name, use(1)) for name in names]
        ask(policy, [group(1, running=others + 1)], uses)
        for seconds in (40.0, 40.0, 40.0, 60.0, 60.0, 60.0):
            policy.learn([Run(step="1", model="fast", node="n0", runtime_s=seconds)])
        return policy.model.estimate("1", "fast").sd

    assert learnt_beside(12) > learnt_beside(0)


def slow_and_fast(load_s: float = 0.0) -> Predictive:
    """Steps 1 and 2 take 10 s on `fast`, 40 s on `slow`; step 1 loads its scene before, where it is cold."""
    policy = Predictive(weights=replace(FREE, idle_in_tail=True))
    ask(policy, [group(1, ready=0), group(2, ready=0)], [node("a"), node("b", devices=(SLOW,))])
    for step, model, seconds in [(1, "fast", 10.0), (2, "fast", 10.0), (2, "slow", 40.0)] * 5:
        for is_warm in (True, False):
            load = load_s if step == 1 and not is_warm else 0.0
            run = Run(step=str(step), model=model, node="", runtime_s=seconds + load, load_s=load)
            policy.learn([replace(run, loaded=SceneLoad.WARM if is_warm else SceneLoad.COLD)])
    return policy


def test_the_last_task_of_a_step_is_taken_to_run_no_longer_than_others_of_it() -> None:
    # 10 s left there and 10 s for this one are less than 40 s here.
    busy, slow = node("a", use(1, since=0.0)), node("b", devices=(SLOW,))
    assert ask(slow_and_fast(), [group(2, ready=1)], [busy, slow], 0.5) == []


def test_a_task_that_begins_later_than_it_was_given_has_its_scene_still_to_load() -> None:
    policy, slow = slow_and_fast(load_s=30.0), node("b", devices=(SLOW,))
    given = ask(policy, [group(1, ready=1)], [node("a")], 0.0)
    assert [a.node_id for a in given] == ["a"]
    # 40 s there and 10 s for this one are more than 40 s here.
    busy = node("a", use(1, since=1.5))
    assert len(ask(policy, [group(1, ready=0, running=1), group(2, ready=1)], [busy, slow], 2.0)) == 1
