"""Which scenes nodes have in their file caches, and that tasks go where theirs is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.flow.cached import Cached, Scenes
from farm.flow.groups import Group
from farm.flow.predictive import Predictive
from farm.flow.run_times import Run, SceneLoad
from farm.flow.weights import Weights
from farm.model.ids import NodeId, StepId
from tests.flow.test_predictive import FREE, ask, group, node, use

NODES = [NodeId(name) for name in "abc"]


def test_steps_that_followed_each_other_read_one_scene() -> None:
    scenes = Scenes()
    scenes.join(StepId(2), StepId(1))
    scenes.join(StepId(3), StepId(2))
    assert {scenes.of(StepId(at)) for at in (1, 2, 3)} == {StepId(1)}
    assert list(scenes.steps(StepId(1))) == [3, 2, 1]
    scenes.forget(StepId(3))
    assert scenes.of(StepId(3)) == 3
    assert list(scenes.steps(StepId(1))) == [2, 1]
    assert list(scenes.steps(StepId(7))) == [7]


@given(
    st.lists(st.tuples(st.sampled_from(NODES), st.integers(1, 6)), max_size=40),
    st.integers(0, 4),
)
def test_a_node_has_the_scenes_that_it_read_last(reads: list[tuple[NodeId, int]], most: int) -> None:
    cached = Cached(Scenes())
    for at, (node_id, step) in enumerate(reads):
        cached.read(node_id, StepId(step), float(at), most=most)
    for node_id in NODES:
        mine = [step for name, step in reads if name == node_id]
        last = list(dict.fromkeys(reversed(mine)))[:most]
        assert list(cached.steps(node_id)) == last
        assert {step for step in range(1, 7) if cached.holds(node_id, StepId(step))} == set(last)
        assert not any(cached.holds(node_id, StepId(step), by=-1.0) for step in last)
    for step in range(1, 7):
        assert list(cached.nodes(StepId(step))) == [
            name for name in dict.fromkeys(name for name, _ in reads) if cached.holds(name, StepId(step))
        ]


def read_before(*, cached_s: float, weights: Weights = FREE) -> Predictive:
    """Node a has rendered a frame of step 1, node b one of step 2; of both a cold load takes 60 s."""
    policy = Predictive(weights=weights)
    ask(policy, [group(1, ready=1)], [node("a")])
    ask(policy, [group(2, ready=1)], [node("a", use(1)), node("b")], 1.0)
    for step in "12":
        for load_s, loaded in [(60.0, SceneLoad.COLD)] * 5 + [(cached_s, SceneLoad.CACHED)] * 20:
            run = Run(step=step, model="fast", node="", runtime_s=20.0 + load_s, load_s=load_s, loaded=loaded)
            policy.learn([run])
    assert ask(policy, [], [node("a"), node("b")], 100.0) == []
    return policy


def again(step: int, before: int, **changed: object) -> Group:
    """Another job of a scene that was rendered before."""
    return group(step, like=str(before), ready=1, **changed)


@pytest.mark.parametrize(
    ("cached_s", "weights", "chosen", "load_s"),
    [
        (5.0, FREE, 4, 7.5),
        (60.0, FREE, 3, 60.0),
        (5.0, replace(FREE, cached_scenes=0), 3, 60.0),
        (5.0, replace(FREE, load_weight=0.0), 3, 60.0),
    ],
    ids=["loads faster", "no faster", "no cache", "loading does not count"],
)
def test_a_near_equal_goes_where_its_scene_was_read(
    cached_s: float, weights: Weights, chosen: int, load_s: float
) -> None:
    policy = read_before(cached_s=cached_s, weights=weights)
    plan = ask(policy, [again(3, 1), again(4, 2)], [node("a", use(9)), node("b")], 101.0)
    assert [(a.step_id, a.node_id) for a in plan] == [(chosen, "b")]
    told = policy.decision(StepId(chosen), NodeId("b"), "gpu")
    assert told is not None
    assert told.load_s == pytest.approx(load_s, rel=0.25)


def test_what_a_node_has_read_does_not_override_an_urgent_priority() -> None:
    policy = read_before(cached_s=5.0)
    groups = [again(3, 1, priority=FREE.urgent_from), again(4, 2)]
    plan = ask(policy, groups, [node("a", use(9)), node("b")], 101.0)
    assert [(a.step_id, a.node_id) for a in plan] == [(3, "b")]


def test_a_node_that_was_away_has_read_nothing() -> None:
    policy = read_before(cached_s=5.0)
    ask(policy, [], [node("a")], 101.0)
    plan = ask(policy, [again(3, 1), again(4, 2)], [node("a", use(9)), node("b")], 102.0)
    assert [(a.step_id, a.node_id) for a in plan] == [(3, "b")]
