from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.flow.migrate import (
    START_S,
    ActionKind,
    Case,
    FreeDevice,
    Runner,
    best,
    decide,
    left_s,
    pays,
    speculate,
)
from farm.flow.stall import Expectation
from farm.model.ids import NodeId
from farm.model.stalls import StallKind, StallPolicy, Verdict

HERE = FreeDevice(node_id=NodeId("b2"), device_id="cpu", model="same", seconds=60.0)


def case(kind: StallKind, policy: StallPolicy = StallPolicy.MIGRATE, **known: Any) -> Case:
    usual: dict[str, Any] = {
        "can_be_copied": True,
        "has_company": False,
        "model": "same",
        "age_s": 300.0,
        "left_s": 2_700.0,
        "idle_s": 130.0,
    }
    return Case(verdict=Verdict(kind=kind, text="seen"), policy=policy, **(usual | known))


W, C, M, K = StallPolicy.WARN, StallPolicy.COPY, StallPolicy.MIGRATE, StallPolicy.KILL
NOTHING, COPY, MOVE, KILL = ActionKind.NOTHING, ActionKind.COPY, ActionKind.MOVE, ActionKind.KILL


@pytest.mark.parametrize(
    ("kind", "policy", "staged", "exclusive"),
    [
        (StallKind.HUNG, W, NOTHING, NOTHING),
        (StallKind.HUNG, C, COPY, NOTHING),
        (StallKind.HUNG, M, MOVE, MOVE),
        (StallKind.HUNG, K, KILL, KILL),
        (StallKind.WEDGED, C, COPY, NOTHING),
        (StallKind.WEDGED, M, COPY, MOVE),
        (StallKind.STOPPED, M, COPY, MOVE),
        (StallKind.STOPPED, K, KILL, KILL),
        (StallKind.SLOW, W, NOTHING, NOTHING),
        (StallKind.SLOW, C, COPY, NOTHING),
        (StallKind.SLOW, M, COPY, MOVE),
        (StallKind.SLOW, K, NOTHING, NOTHING),
        (StallKind.SWAPPING, M, COPY, MOVE),
        (StallKind.NOT_EXITING, W, NOTHING, NOTHING),
        (StallKind.NOT_EXITING, C, ActionKind.TAKE_OUTPUT, ActionKind.TAKE_OUTPUT),
        (StallKind.LICENCE, M, NOTHING, NOTHING),
        (StallKind.SILENT, K, NOTHING, NOTHING),
        (StallKind.WORKING, K, NOTHING, NOTHING),
    ],
)
def test_what_is_done(
    kind: StallKind, policy: StallPolicy, staged: ActionKind, exclusive: ActionKind
) -> None:
    assert decide(case(kind, policy), [HERE]).kind is staged
    assert decide(case(kind, policy, can_be_copied=False), [HERE]).kind is exclusive


def test_one_that_waits_for_a_licence_is_ended_after_long_patience() -> None:
    assert decide(case(StallKind.LICENCE, idle_s=601.0), []).kind is ActionKind.END_LICENCE
    assert decide(case(StallKind.LICENCE, C, idle_s=601.0), []).kind is NOTHING


def test_lost_work_is_weighed_where_nothing_can_run_beside_it() -> None:
    slow = case(StallKind.SLOW, can_be_copied=False, age_s=1_000.0, left_s=1_050.0)
    assert decide(slow, [HERE]).kind is NOTHING
    assert decide(replace(slow, can_be_copied=True), [HERE]).kind is COPY
    assert decide(replace(slow, age_s=300.0), [HERE]).kind is MOVE


def test_a_slow_one_stays_where_nothing_is_known_or_nothing_is_won() -> None:
    assert decide(case(StallKind.SLOW, left_s=None), [HERE]).kind is NOTHING
    assert decide(case(StallKind.SLOW), [replace(HERE, seconds=None)]).kind is NOTHING
    assert decide(case(StallKind.SLOW, left_s=90.0), [HERE]).kind is NOTHING
    assert decide(case(StallKind.SLOW), []).kind is NOTHING


def test_a_dead_one_moves_whatever_is_known() -> None:
    assert decide(case(StallKind.HUNG, left_s=None), []).kind is MOVE
    assert decide(case(StallKind.WEDGED), []).kind is MOVE
    assert decide(case(StallKind.WEDGED), [replace(HERE, seconds=None)]).kind is COPY


def test_beside_a_copy_nothing_more_is_started() -> None:
    for kind in StallKind:
        assert decide(case(kind, has_company=True), [HERE]).kind is not COPY
    assert decide(case(StallKind.SLOW, has_company=True, can_be_copied=False), [HERE]).kind is NOTHING
    assert decide(case(StallKind.HUNG, has_company=True, can_be_copied=False), [HERE]).kind is MOVE


def test_another_device_model_is_preferred_when_it_is_as_fast() -> None:
    other = FreeDevice(node_id=NodeId("b3"), device_id="gpu", model="other", seconds=64.0)
    assert best([HERE, other], "same") == other
    assert best([HERE, replace(other, seconds=80.0)], "same") == HERE
    assert best([replace(HERE, seconds=None), replace(other, seconds=500.0)], "same") == replace(
        other, seconds=500.0
    )
    assert best([], "same") is None


@given(st.floats(1, 1e4), st.floats(1.05, 6), st.floats(0, 1e5))
def test_the_longer_one_is_late_the_later_it_will_be(median_s: float, factor: float, more_s: float) -> None:
    expected = Expectation(median_s=median_s, upper_s=median_s * factor)
    late_s = expected.upper_s * 2
    now, later = left_s(expected, late_s), left_s(expected, late_s + more_s)
    assert 0 <= now < math.inf
    assert later >= now * 0.98


def test_the_time_left_is_the_mean_of_the_log_normals_tail() -> None:
    expected = Expectation(median_s=60.0, upper_s=120.0)
    sd = math.log(2) / 1.2815515655446004
    source = random.Random(7)
    times = [60.0 * math.exp(source.gauss(0, sd)) for _ in range(200_000)]
    for age_s in (0.0, 30.0, 90.0):
        beyond = [time - age_s for time in times if time > age_s]
        assert left_s(expected, age_s) == pytest.approx(sum(beyond) / len(beyond), rel=0.02)


_PLACES = st.lists(
    st.builds(
        FreeDevice,
        node_id=st.sampled_from([NodeId("a"), NodeId("b"), NodeId("c")]),
        device_id=st.just("cpu"),
        model=st.just("m"),
        seconds=st.none() | st.floats(0, 1e4),
    ),
    max_size=3,
    unique_by=lambda place: place.node_id,
).map(tuple)
_RUNNERS = st.lists(st.tuples(st.none() | st.floats(0, 1e4), _PLACES), max_size=6)


@given(_RUNNERS, st.integers(0, 5))
def test_each_runner_and_each_slot_is_taken_once_and_every_copy_pays(
    found: list[tuple[float | None, tuple[FreeDevice, ...]]], limit: int
) -> None:
    runners = [
        Runner(index=i, model="m", age_s=1.0, left_s=left, places=places)
        for i, (left, places) in enumerate(found)
    ]
    chosen = speculate(runners, after_s=120.0, limit=limit)
    assert len(chosen) <= limit
    assert len({index for index, _, _ in chosen}) == len(chosen)
    assert len({place.node_id for _, place, _ in chosen}) == len(chosen)
    assert [gain for _, _, gain in chosen] == sorted((gain for _, _, gain in chosen), reverse=True)
    for index, place, gain_s in chosen:
        left = runners[index].left_s
        assert left is not None
        assert place.seconds is not None
        assert gain_s == pytest.approx(left - place.seconds - START_S)
        assert pays(case(StallKind.SLOW, left_s=left), place)
