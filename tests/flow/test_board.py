"""The predictive policy, by example and against a naive oracle."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.flow.board import Board
from farm.flow.groups import Group
from farm.flow.predict import RunTimeModel
from farm.flow.refusals import fits
from farm.flow.run_times import Run, SceneLoad, UseState
from farm.flow.scores import excess
from farm.flow.waiting import group_key
from farm.flow.weights import Order, Weights
from farm.model.ids import JobId, NodeId, StepId
from farm.model.limits import LIMIT_PREFIX
from farm.model.machines import Capabilities, Demand, DeviceLoad, NodeView, Use
from farm.model.work import Profile
from tests.flow.boards import (
    BANDWIDTH,
    COMPUTE,
    EVERYTHING,
    FAST,
    GPU,
    MODELS,
    SLOW,
    WIDE,
    board,
    device,
    group,
    known,
    node,
    where,
)


def test_each_group_gets_the_device_that_it_is_relatively_best_on() -> None:
    groups = [group(1, profile=COMPUTE, ready=9), group(2, profile=BANDWIDTH, ready=9)]
    plan = board([node("f"), node("w", WIDE)], groups).round(0.0, 9)
    assert where(plan) == {1: ["f"], 2: ["w"]}


def test_a_group_that_only_one_device_can_take_does_not_keep_it_from_working() -> None:
    groups = [group(1, demand=replace(GPU, vram_mib=40_000), ready=5), group(2, ready=5)]
    big = device("big", 80, 600, vram_mib=80_000)
    plan = board([node("a"), node("b", big)], groups, weights=EVERYTHING).round(0.0, 9)
    assert where(plan) == {1: ["b"], 2: ["a"]}


def test_a_long_task_does_not_start_where_it_would_take_a_multiple() -> None:
    groups = [group(1, profile=COMPUTE, ready=50), group(2, profile=COMPUTE, ready=50)]
    nodes = [*(node(f"f{at}") for at in range(8)), node("s", SLOW)]
    made = board(nodes, groups, runs=known(1, 600) + known(2, 5))
    assert "s" not in where(made.round(0.0, 99)).get(1, [])


def test_the_cap_is_lifted_for_one_task_when_a_group_has_waited_long_enough() -> None:
    slow = [node(f"s{at}", SLOW) for at in range(3)]
    nodes = [*(node(f"f{at}", accepts_work=at > 0) for at in range(8)), *slow]
    patient = Weights(idle_in_tail=False, cap_patience_s=100.0, backlog_s=1e6)
    made = board(nodes, [group(1, profile=COMPUTE, ready=50)], runs=known(1, 600), weights=patient)
    assert not {view.id for view in slow} & {*where(made.round(0.0, 99))[1]}
    for now in (1000.0, 2000.0):  # it waits for the fast ones again in between
        made.reprice(now, force=True)
        assert len(where(made.round(now, 99))[1]) == 1
        made.reprice(now + 50, force=True)
        assert not made.round(now + 50, 99)


def test_in_the_tail_a_slow_device_is_left_idle_when_the_fast_one_will_be_done_sooner() -> None:
    nodes = [node("f"), node("s", SLOW)]
    groups = [group(1, profile=COMPUTE, ready=1)]
    made = board(nodes, groups, runs=known(1, 10), weights=Weights(slow_cap=1e6))
    made.busy(NodeId("f"), "gpu", StepId(1), since=-8.0)
    busy = replace(nodes[0], uses=(Use(device_id="gpu"),))
    made.put_node(busy, 0.0)
    assert made.round(0.0, 9) == ()
    eager = board([busy, nodes[1]], groups, runs=known(1, 10), weights=EVERYTHING)
    assert where(eager.round(0.0, 9)) == {1: ["s"]}


@pytest.mark.parametrize("runs", [[], known(1, 600)], ids=["unknown", "known"])
def test_a_few_tasks_that_nothing_is_known_of_wait_for_no_better_device(runs: list[Run]) -> None:
    nodes = [node("f", uses=(Use(device_id="gpu", step_id=StepId(9), since=0.0),)), node("s", SLOW)]
    few = board(nodes, [group(1, profile=COMPUTE, ready=2)], runs=runs, weights=Weights())
    assert few.round(1.0, 9) == () if runs else where(few.round(1.0, 9)) == {1: ["s"]}
    many = board(nodes, [group(1, profile=COMPUTE, ready=200)], runs=runs, weights=Weights(backlog_s=1e9))
    assert many.round(1.0, 9) == ()


@pytest.mark.parametrize(
    ("profile", "before", "best"), [(COMPUTE, BANDWIDTH, "f"), (BANDWIDTH, COMPUTE, "w")]
)
@pytest.mark.parametrize("seconds", [None, 0.5, 5.0, 500.0])
def test_a_single_task_goes_where_it_is_done_soonest_though_the_prices_are_those_of_other_work(
    profile: Profile, before: Profile, best: str, seconds: float | None
) -> None:
    other = group(2, profile=before, ready=9)
    made = board([node("f"), node("s", SLOW), node("w", WIDE)], [other])
    made.drop_group(group_key(other))
    model = made.model
    assert isinstance(model, RunTimeModel)
    model.add_step("1", profile)
    if seconds is not None:
        model.observe(known(1, seconds)[0])
    made.put_group(group(1, profile=profile), 1.0)
    assert where(made.round(1.0, 9)) == {1: [best]}


@pytest.mark.parametrize(
    ("fast", "avoid"),
    [
        (node("f"), frozenset({NodeId("f")})),
        (node("f", uses=(Use(device_id="", cpus=8, memory_mib=32_000),)), frozenset()),
    ],
    ids=["the task failed there", "another device's tasks hold its memory"],
)
def test_no_device_waits_for_a_better_one_that_cannot_take_the_task(
    fast: NodeView, avoid: frozenset[NodeId]
) -> None:
    groups = [group(1, profile=COMPUTE, avoid=avoid, demand=replace(GPU, cpus=1, memory_mib=1000))]
    nodes = [fast, node("s", SLOW)]
    made = board(nodes, groups, runs=known(1, 10), weights=Weights(slow_cap=1e6))
    assert where(made.round(0.0, 9)) == {1: ["s"]}


def test_a_device_goes_on_with_the_scene_that_it_has_loaded() -> None:
    groups = [group(1, ready=5), group(2, ready=5, submitted_at=0.0)]
    loads = [replace(run, load_s=60.0, runtime_s=70.0) for s in (1, 2) for run in known(s, 10)]
    loads += [replace(run, loaded=SceneLoad.WARM, load_s=0.0) for s in (1, 2) for run in known(s, 10)]
    made = board([node("f")], groups, runs=loads, weights=replace(EVERYTHING, order=Order.SUBMITTED))
    assert where(made.round(0.0, 1)) == {2: ["f"]}
    made.ended(NodeId("f"), "gpu", GPU, StepId(2), JobId(2))
    made.put_group(replace(groups[1], ready=4, submitted_at=9.0, priority=49), 1.0)
    assert where(made.round(1.0, 1)) == {2: ["f"]}


def loading(step: int, seconds: float, load_s: float) -> list[Run]:
    """Runs that teach how long the step's tasks take, and its scene to load."""
    cold = [replace(run, load_s=load_s, runtime_s=seconds + load_s) for run in known(step, seconds)]
    return cold + [replace(run, loaded=SceneLoad.WARM, load_s=0.0) for run in known(step, seconds)]


@pytest.mark.parametrize(("left", "chosen"), [(9, 1), (1, 2)])
def test_a_device_stays_with_its_scene_unless_another_has_much_less_left(left: int, chosen: int) -> None:
    groups = [group(1, ready=13), group(2, ready=left)]
    runs = loading(1, 60.0, 5.0) + loading(2, 60.0, 5.0)
    made = board([node("f")], groups[:1], runs=runs[: len(runs) // 2], weights=EVERYTHING)
    assert where(made.round(0.0, 1)) == {1: ["f"]}
    made.ended(NodeId("f"), "gpu", GPU, StepId(1), JobId(1))
    model = made.model
    assert isinstance(model, RunTimeModel)
    model.add_step("2", Profile())
    for run in runs[len(runs) // 2 :]:
        model.observe(run)
    made.put_group(groups[1], 1.0)
    made.reprice(1.0, force=True)
    assert where(made.round(1.0, 1)) == {chosen: ["f"]}


def test_a_scene_is_loaded_for_many_tasks_rather_than_for_the_last_few() -> None:
    nodes = [node("f")]
    runs = loading(1, 10.0, 20.0) + loading(2, 10.0, 20.0)
    many = [group(1, ready=60), group(2, ready=50)]
    assert where(board(nodes, many, runs=runs, weights=EVERYTHING).round(0.0, 1)) == {2: ["f"]}
    few = [group(1, ready=60), group(2, ready=5, running=40, job_running=40)]
    assert where(board(nodes, few, runs=runs, weights=EVERYTHING).round(0.0, 1)) == {1: ["f"]}
    blind = replace(EVERYTHING, load_weight=0.0)
    assert where(board(nodes, few, runs=runs, weights=blind).round(0.0, 1)) == {2: ["f"]}


@pytest.mark.parametrize("places", [1, 9], ids=["looked up", "sorted"])
def test_the_more_waits_the_nearer_equals_must_be_but_not_of_another_priority(places: int) -> None:
    nodes = [node("w", WIDE), *(node(f"f{at}", accepts_work=False) for at in range(3))]
    nodes += [node(f"w{at}", WIDE) for at in range(1, places)]
    runs = known(1, 40) + known(1, 12.5, "wide") + known(2, 40) + known(2, 10, "wide")
    longer, wider = group(1, ready=90), group(2, ready=400)
    calm = replace(EVERYTHING, slow_penalty=0.0, backlog_s=1e9)

    def first(*groups: Group, weights: Weights) -> int:
        made = board(nodes, groups, runs=runs, weights=weights)
        nodes_up = [replace(view, accepts_work=True) for view in nodes]
        for view in nodes_up:
            made.put_node(view, 0.0)
        made.reprice(0.0, force=True)
        for view in nodes:
            made.put_node(view, 0.0)
        return made.round(0.0, 1)[0].step_id

    assert first(longer, wider, weights=calm) == 1
    assert first(longer, wider, weights=replace(calm, backlog_s=1.0)) == 2
    higher = replace(longer, priority=51)
    assert first(higher, wider, weights=replace(calm, backlog_s=1.0)) == 1


def test_among_near_equals_priority_comes_first_then_the_shortest_work() -> None:
    nodes = [node("f")]
    groups = [group(1, ready=50), group(2, ready=2), group(3, ready=50, priority=60)]
    runs = known(1, 10) + known(2, 10) + known(3, 10)
    assert where(board(nodes, groups, runs=runs).round(0.0, 1)) == {3: ["f"]}
    assert where(board(nodes, groups[:2], runs=runs[:12]).round(0.0, 1)) == {2: ["f"]}
    oldest = Weights(order=Order.SUBMITTED)
    assert where(board(nodes, groups[:2], runs=runs[:12], weights=oldest).round(0.0, 1)) == {1: ["f"]}


def test_the_first_tasks_of_an_unknown_step_lead_while_much_waits() -> None:
    nodes, groups = [node("f")], [group(1, ready=2), group(2, ready=50)]
    runs = known(1, 10)
    little = replace(EVERYTHING, backlog_s=1e6)
    assert where(board(nodes, groups, runs=runs, weights=little).round(0.0, 1)) == {1: ["f"]}
    much = replace(EVERYTHING, backlog_s=60.0)
    assert where(board(nodes, groups, runs=runs, weights=much).round(0.0, 1)) == {2: ["f"]}
    first = [replace(groups[0], priority=51), groups[1]]
    assert where(board(nodes, first, runs=runs, weights=much).round(0.0, 1)) == {1: ["f"]}


def test_matching_overrides_priority_only_beyond_the_window_and_an_urgent_one_never() -> None:
    nodes = [node("w", WIDE), *(node(f"f{at}", accepts_work=True) for at in range(3))]
    nodes[1:] = [replace(view, uses=(Use(device_id="gpu"),)) for view in nodes[1:]]
    runs = known(1, 40) + known(1, 160, "wide") + known(2, 40) + known(2, 10, "wide")
    high, low = group(1, ready=99, priority=80, profile=COMPUTE), group(2, ready=400, profile=BANDWIDTH)
    usual = replace(EVERYTHING, slow_penalty=0.0)
    assert where(board(nodes, [high, low], runs=runs, weights=usual).round(0.0, 1)) == {2: ["w"]}
    wide = replace(usual, window=0.02)
    assert where(board(nodes, [high, low], runs=runs, weights=wide).round(0.0, 1)) == {1: ["w"]}
    urgent = replace(high, priority=95)
    assert where(board(nodes, [urgent, low], runs=runs, weights=usual).round(0.0, 1)) == {1: ["w"]}


def test_an_unknown_step_is_probed_by_a_few_tasks_while_others_want_the_devices() -> None:
    nodes = [node(f"f{at}") for at in range(20)]
    groups = [group(1, ready=99, submitted_at=0.0), group(2, ready=99)]
    weights = Weights(probe_tasks=3, idle_in_tail=False, order=Order.SUBMITTED)
    made = board(nodes, groups, weights=weights, runs=known(2, 60))
    plan = where(made.round(0.0, 99))
    assert (len(plan[1]), len(plan[2])) == (3, 17)
    alone = board(nodes, groups[:1], weights=weights)
    assert len(where(alone.round(0.0, 99))[1]) == 20


def test_of_an_unknown_step_the_first_task_leads_and_tells_how_much_is_left() -> None:
    nodes, short, unknown = [node("a"), node("b"), node("c")], group(1, ready=50), group(2, ready=20)
    made = board(nodes, [short, unknown], runs=known(1, 2))
    assert where(made.round(0.0, 1)) == {2: ["a"]}
    # Until it has told, the least work goes on, by what is thought of either.
    assert where(made.round(0.5, 2)) == {1: ["b", "c"]}
    as_they_came = board(nodes, [short, unknown], runs=known(1, 2), weights=Weights(order=Order.SUBMITTED))
    assert where(as_they_came.round(0.0, 1)) == {1: ["a"]}


def test_a_task_goes_where_little_is_known_for_what_it_teaches_if_enough_are_left() -> None:
    nodes = [node("f"), node("w1", WIDE), node("w2", WIDE)]
    nodes[0] = replace(nodes[0], uses=(Use(device_id="gpu"),))
    runs = known(1, 40) + known(2, 40) + known(2, 20, "wide")
    groups = [group(1, ready=400, submitted_at=0.0), group(2, ready=400)]
    weights = replace(EVERYTHING, order=Order.SUBMITTED, slow_penalty=0.0, window=0.99)
    made = board(nodes, groups, runs=runs, weights=weights)
    assert where(made.round(0.0, 9)) == {1: ["w1"], 2: ["w2"]}
    decision = made.decision(StepId(1), NodeId("w1"), "gpu")
    assert decision is not None
    assert decision.is_trial
    assert "to learn how long it takes on this model" in decision.why()
    never = board(nodes, groups, runs=runs, weights=replace(weights, trial_worth=0.0))
    assert where(never.round(0.0, 9)) == {2: ["w1", "w2"]}
    few = [replace(groups[0], ready=2), groups[1]]
    assert where(board(nodes, few, runs=runs, weights=weights).round(0.0, 9)) == {2: ["w1", "w2"]}


def test_among_the_near_equals_of_one_user_and_priority_a_trial_comes_first() -> None:
    busy = replace(node("f"), uses=(Use(device_id="gpu"),))
    nodes = [busy, node("w1", WIDE), node("w2", WIDE)]
    runs = known(1, 40) + known(2, 40) + known(2, 20, "wide")
    to_try, tried = group(1, ready=400), group(2, ready=300)
    weights = replace(EVERYTHING, slow_penalty=0.0)

    def plan(*groups: Group, trial_worth: float = 0.5, used: float = 0.0) -> dict[int, list[str]]:
        made = board(nodes, groups, runs=runs, weights=replace(weights, trial_worth=trial_worth))
        made.set_use(UseState(at=0.0, users=[("", "anna", used)]))
        return where(made.round(0.0, 9))

    assert plan(to_try, tried) == {1: ["w1"], 2: ["w2"]}
    assert plan(to_try, tried, trial_worth=0.0) == {2: ["w1", "w2"]}
    # It takes no turn of another user, nor of what is more urgent.
    assert plan(replace(to_try, priority=40), tried) == {2: ["w1", "w2"]}
    assert plan(replace(to_try, user="anna"), replace(tried, user="ben"), used=99.0) == {2: ["w1", "w2"]}


def test_one_task_goes_at_first_where_a_step_has_not_run_and_may_be_slow() -> None:
    """All that are idle would be too many to find out."""
    odd = replace(FAST, model="odd", fp32_tflops=None, memory_bandwidth_gbps=None, source="driver")
    nodes = [*(node(f"f{at}") for at in range(4)), *(node(f"o{at}", odd) for at in range(6))]
    runs, groups = known(1, 90), [group(1, ready=400)]
    weights = Weights(idle_in_tail=False)

    def on_odd(made: Board, now: float) -> int:
        return sum(name.startswith("o") for name in where(made.round(now, 99)).get(1, []))

    made = board(nodes, groups, runs=runs, weights=weights)
    assert on_odd(made, 0.0) == 1
    made.ended(NodeId("o0"), "gpu", GPU, StepId(1), JobId(1))
    made.learned(StepId(1))
    # That one was stopped, say: it has told nothing.
    assert on_odd(made, 1.0) == 0
    assert isinstance(made.model, RunTimeModel)
    made.model.observe(known(1, 90, "odd")[0])
    made.learned(StepId(1))
    assert on_odd(made, 2.0) == 6
    # What is not told in time is asked again.
    late = board(nodes, groups, runs=runs, weights=weights)
    assert (on_odd(late, 0.0), on_odd(late, 100.0)) == (1, 0)
    late.reprice(900.0)
    assert on_odd(late, 900.0) == 1
    # Where nothing is too slow no care is needed, nor where a task is short beside the others.
    assert on_odd(board(nodes, groups, runs=runs, weights=replace(weights, slow_cap=99.0)), 0.0) == 6
    beside = [*groups, group(2, ready=400, demand=replace(GPU, vram_mib=99_000))]
    big = node("b", device("big", 80, 600, vram_mib=99_000), accepts_work=True)
    short = board([*nodes, big], beside, runs=runs + known(2, 9_000), weights=weights)
    assert on_odd(short, 0.0) == 6


def test_what_is_guessed_of_others_makes_no_task_short() -> None:
    """A long task starts on no device that takes a multiple of its usual time, whatever waits beside it."""
    slow = device("slow", 8.0, 90.0)
    nodes, runs = [node("a"), node("b", slow)], known(1, 4) + known(1, 40, "slow")
    alone = board(nodes, [group(1, ready=50)], runs=runs)
    beside = board(nodes, [group(1, ready=50), group(2, ready=50)], runs=runs)
    assert where(alone.round(0.0, 9)) == {1: ["a"]}
    assert "b" not in where(beside.round(0.0, 9)).get(1, [])
    # Nor until prices are set anew, where its first runs have only just told.
    unknown = board(nodes, [group(1, ready=50), group(2, ready=50)])
    for run in runs:
        unknown.model.observe(run)  # type: ignore[attr-defined]
    unknown.learned(StepId(1))
    assert "b" not in where(unknown.round(0.0, 9)).get(1, [])


def test_shares_decide_between_users_by_what_they_used() -> None:
    nodes = [node(f"f{at}") for at in range(12)]
    groups = [group(1, ready=99, user="anna"), group(2, ready=99, user="ben")]
    runs = known(1, 10) + known(2, 10)
    even = where(board(nodes, groups, runs=runs, weights=EVERYTHING).round(0.0, 99))
    assert (len(even[1]), len(even[2])) == (6, 6)
    shares = {"anna": 2.0, "ben": 1.0}
    uneven = where(board(nodes, groups, runs=runs, shares=shares, weights=EVERYTHING).round(0.0, 99))
    assert (len(uneven[1]), len(uneven[2])) == (8, 4)


def test_a_limit_of_the_farm_delays_and_is_given_back() -> None:
    nodes = [node(f"f{at}") for at in range(9)]
    licensed = replace(GPU, amounts=((f"{LIMIT_PREFIX}arnold", 1),))
    groups = [group(1, demand=licensed, ready=9), group(2, demand=licensed, ready=9)]
    made = board(nodes, groups, limits={"arnold": 3}, weights=EVERYTHING)
    plan = made.round(0.0, 99)
    assert sum(each.count for each in plan) == 3
    assert made.round(1.0, 99) == ()
    first = plan[0]
    made.ended(first.node_id, "gpu", licensed, first.step_id, first.job_id)
    assert sum(each.count for each in made.round(2.0, 99)) == 1


def test_a_throttled_device_is_taken_for_as_slow_as_it_is() -> None:
    hot = replace(node("a"), loads=(DeviceLoad(device_id="gpu", health=0.3),))
    made = board([hot, node("b")], [group(1, ready=1)], runs=known(1, 100), weights=EVERYTHING)
    assert where(made.round(0.0, 1)) == {1: ["b"]}


def test_a_throttled_device_leaves_a_single_task_to_a_lesser_one_that_is_well() -> None:
    lesser = device("lesser", 40, 400)
    well, hot = node("a"), replace(node("a"), loads=(DeviceLoad(device_id="gpu", health=0.2),))
    tasks = [group(1, profile=COMPUTE)]
    runs = known(1, 0.02, times=1)
    assert where(board([well, node("b", lesser)], tasks, runs=runs).round(1.0, 5)) == {1: ["a"]}
    assert where(board([hot, node("b", lesser)], tasks, runs=runs).round(1.0, 5)) == {1: ["b"]}


def test_of_equals_the_device_that_draws_least_goes_first() -> None:
    thirsty = replace(FAST, model="thirsty", tdp_w=450.0)
    frugal = replace(FAST, model="frugal", tdp_w=250.0)
    farm = [node("a", thirsty), node("b", frugal)]
    made = board(farm, [group(1)], weights=EVERYTHING)
    assert where(made.round(0.0, 1)) == {1: ["b"]}
    blind = board(farm, [group(1)], weights=replace(EVERYTHING, energy=0.0))
    assert where(blind.round(0.0, 1)) == {1: ["a"]}
    seconds = np.array([[10.0, 10.0], [10.0, np.inf]])
    both, one = excess(seconds, np.array([450.0, 250.0]))
    assert both.tolist() == pytest.approx([math.log(450 / 250), 0.0])
    assert one.tolist() == [0.0, 0.0]


def test_every_decision_can_be_explained() -> None:
    made = board([node("f"), node("w", WIDE)], [group(1, ready=1, profile=COMPUTE), group(2, ready=1)])
    plan = made.round(5.0, 9)
    assert len(plan) == 2
    for each in plan:
        decision = made.decision(each.step_id, each.node_id, each.device_id)
        assert decision is not None
        assert decision.predicted_s > 0
        assert 0 < decision.advantage <= 1
        assert "suit" in decision.why()


@pytest.mark.parametrize("change", ["drain", "gone", "capabilities"])
def test_a_node_that_changes_is_taken_as_it_now_is(change: str) -> None:
    made = board([node("f"), node("w", WIDE)], [group(1, ready=9)], weights=EVERYTHING)
    if change == "drain":
        made.put_node(replace(node("f"), accepts_work=False), 0.0)
    elif change == "gone":
        made.drop_node(NodeId("f"))
    else:
        other = Capabilities(cpus=8, memory_mib=32_000, devices=(replace(FAST, vram_mib=1),))
        made.put_node(NodeView(id=NodeId("f"), capabilities=other), 0.0)
        made.put_group(group(1, ready=9, demand=replace(GPU, vram_mib=8_000)), 0.0)
    assert where(made.round(0.0, 9)) == {1: ["w"]}


# --- against a naive oracle -----------------------------------------------------------------------------


@st.composite
def farms(draw: st.DrawFn) -> tuple[list[Group], list[NodeView], dict[str, int]]:
    nodes = []
    for at in range(draw(st.integers(1, 5))):
        devices = tuple(
            replace(device(*draw(st.sampled_from(MODELS))), id=f"d{number}",
                    slots=draw(st.sampled_from([1, 1, 2])), vram_mib=draw(st.sampled_from([8_000, 24_000])))
            for number in range(draw(st.integers(1, 2)))
        )  # fmt: skip
        nodes.append(
            NodeView(
                id=NodeId(f"n{at}"),
                capabilities=Capabilities(
                    cpus=draw(st.integers(2, 8)),
                    memory_mib=16_000,
                    devices=devices,
                    pools=draw(st.sampled_from([("default",), ("default", "film")])),
                ),
                accepts_work=draw(st.sampled_from([True, True, True, False])),
            )
        )
    groups = []
    caps = {JobId(job): draw(st.none() | st.integers(0, 3)) for job in (1, 2, 3)}
    for step in range(draw(st.integers(0, 6))):
        job = JobId(draw(st.integers(1, 3)))
        demand = Demand(
            gpus=1,
            vram_mib=draw(st.sampled_from([0, 6_000, 12_000])),
            cpus=draw(st.sampled_from([0, 0, 2, 3.5])),
            pool=draw(st.sampled_from([None, None, "film"])),
            amounts=draw(st.sampled_from([(), (), ((f"{LIMIT_PREFIX}lic", 1.0),)])),
        )
        groups.append(
            Group(
                step_id=StepId(step),
                job_id=job,
                demand=demand,
                profile=draw(st.sampled_from([COMPUTE, BANDWIDTH, Profile()])),
                ready=draw(st.integers(0, 6)),
                max_running=caps[job],
                priority=draw(st.sampled_from([50, 50, 95])),
                submitted_at=float(draw(st.integers(0, 3))),
                user=draw(st.sampled_from(["anna", "ben"])),
                avoid=draw(st.sampled_from([frozenset(), frozenset({NodeId("n0")})])),
            )
        )
    return groups, nodes, {"lic": draw(st.integers(0, 3))}


@given(farms(), st.integers(0, 12))
@settings(max_examples=150, deadline=None)
def test_a_round_never_gives_what_is_not_there_and_leaves_nothing_that_fits(
    farm: tuple[list[Group], list[NodeView], dict[str, int]], most: int
) -> None:
    groups, nodes, limits = farm
    made = board(nodes, groups, limits=limits, weights=EVERYTHING)
    plan = made.round(10.0, most)
    by_step = {each.step_id: each for each in groups}
    started: Counter[StepId] = Counter()
    by_job: Counter[JobId] = Counter()
    licences = 0
    for each in plan:
        want = by_step[each.step_id]
        assert each.count > 0
        assert each.node_id not in want.avoid
        for _ in range(each.count):
            view = next(n for n in nodes if n.id == each.node_id)
            only = tuple(d for d in view.capabilities.devices if d.id == each.device_id)
            assert fits(want.demand, replace(view, capabilities=replace(view.capabilities, devices=only)))
            use = Use(device_id=each.device_id, cpus=want.demand.cpus, vram_mib=want.demand.vram_mib)
            nodes = [replace(n, uses=(*n.uses, use)) if n.id == each.node_id else n for n in nodes]
        started[each.step_id] += each.count
        by_job[want.job_id] += each.count
        licences += each.count * bool(want.demand.amounts)
    # The same once more by plain sums, which share no code with what decides.
    for view in nodes:
        mine = [(each, by_step[each.step_id].demand) for each in plan if each.node_id == view.id]
        has = view.capabilities
        assert view.accepts_work or not mine
        assert sum(each.count * demand.cpus for each, demand in mine) <= has.cpus
        assert all(demand.pool is None or demand.pool in has.pools for _, demand in mine)
        for each_device in has.devices:
            on = [(each.count, demand) for each, demand in mine if each.device_id == each_device.id]
            assert sum(count for count, _ in on) <= each_device.slots
            assert sum(count * demand.vram_mib for count, demand in on) <= (each_device.vram_mib or 0)
    assert sum(started.values()) <= most
    assert licences <= limits["lic"]
    for want in groups:
        assert started[want.step_id] <= want.ready
        assert want.max_running is None or by_job[want.job_id] <= want.max_running
    if sum(started.values()) < most:
        for want in groups:
            may = want.max_running is None or by_job[want.job_id] < want.max_running
            may = may and (not want.demand.amounts or licences < limits["lic"])
            if may and started[want.step_id] < want.ready:
                assert not [n.id for n in nodes if n.id not in want.avoid and fits(want.demand, n)]


@given(farms(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_same_farm_gives_the_same_round_again(
    farm: tuple[list[Group], list[NodeView], dict[str, int]], random: object
) -> None:
    groups, nodes, limits = farm
    first = board(nodes, groups, limits=limits).round(10.0, 99)
    assert board(nodes, groups, limits=limits).round(10.0, 99) == first


@given(farms())
@settings(max_examples=60, deadline=None)
def test_what_is_kept_up_to_date_is_what_would_be_built_anew(
    farm: tuple[list[Group], list[NodeView], dict[str, int]],
) -> None:
    groups, nodes, limits = farm
    kept = board(nodes, groups, limits=limits, weights=EVERYTHING)
    plan = kept.round(10.0, 99)
    by_step = {each.step_id: each for each in groups}
    for each in plan:
        want = by_step[each.step_id]
        for _ in range(each.count):
            kept.ended(each.node_id, each.device_id, want.demand, each.step_id, want.job_id)
            kept.add_ready(each.step_id, 1)
    fresh = board(nodes, groups, limits=limits, weights=EVERYTHING)
    assert kept.waiting == fresh.waiting == sum(each.ready for each in groups)
    assert [kept.ready(group_key(each)) for each in groups] == [
        fresh.ready(group_key(each)) for each in groups
    ]
    assert kept.free_places() == fresh.free_places()
