"""Scale rules: patience, thresholds apart, and nothing asked for that could not be meant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import UserError
from farm.flow.scaling import Watch, decide, told_of
from farm.model.scaling import ModelNow, ScaleRule, Scaling
from farm.settings import load_settings

RULE = ScaleRule(model="L40S", grow_above_s=600, shrink_below_s=30, for_s=300, most=4, command=("/bin/more",))
DEAR = ModelNow(one_more_saves_s=900, slots=2)
CHEAP = ModelNow(one_more_saves_s=0, slots=2, idle_nodes=("a",))


def asked(seen: list[tuple[float, ModelNow]], rule: ScaleRule = RULE) -> list[tuple[float, Scaling]]:
    watch, found = Watch(), []
    for now, each in seen:
        watch, wanted = decide(rule, watch, each, now)
        if wanted is not None:
            found.append((now, wanted))
    return found


def test_a_price_that_stays_above_asks_for_one_more_again_and_again() -> None:
    told = asked([(at, DEAR) for at in range(0, 1000, 50)])
    assert told == [(300, Scaling.GROW), (600, Scaling.GROW), (900, Scaling.GROW)]


def test_a_price_that_falls_back_begins_anew() -> None:
    between = replace(DEAR, one_more_saves_s=100)
    assert asked([(0, DEAR), (250, between), (300, DEAR), (550, DEAR)]) == []


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (CHEAP, [(300, Scaling.SHRINK)]),
        (replace(CHEAP, idle_nodes=()), []),
        (replace(CHEAP, slots=1), []),
        (DEAR, [(300, Scaling.GROW)]),
        (replace(DEAR, slots=4), []),
        (ModelNow(one_more_saves_s=0), []),
    ],
    ids=["idle", "all at work", "the last one", "dear", "as many as may be", "none there"],
)
def test_what_is_asked_for(seen: ModelNow, wanted: list[tuple[float, Scaling]]) -> None:
    assert asked([(0, seen), (300, seen)]) == wanted


@given(
    st.lists(
        st.tuples(st.floats(1, 200), st.floats(0, 1000), st.integers(0, 5), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_what_is_asked_for_was_true_all_the_time_since_the_call_before(
    told: list[tuple[float, float, int, bool]],
) -> None:
    now, seen = 0.0, []
    for step_s, saves_s, slots, is_idle in told:
        now += step_s
        idle = ("a",) if is_idle else ()
        seen.append((now, ModelNow(one_more_saves_s=saves_s, slots=slots, idle_nodes=idle)))
    last = float("-inf")
    for at, wanted in asked(seen):
        assert at - last >= RULE.for_s
        last = at
        spell = [each for when, each in seen if at - RULE.for_s <= when <= at]
        for each in spell:
            if wanted is Scaling.GROW:
                assert each.one_more_saves_s > 600
                assert each.slots < 4
            else:
                assert each.one_more_saves_s < 30
                assert each.slots > 1
                assert each.idle_nodes


def test_what_the_receiver_is_told() -> None:
    told = told_of("l40s", RULE, Scaling.SHRINK, CHEAP, at=5.0)
    assert told == {
        "event": "shrink",
        "at": 5.0,
        "text": "l40s: one more L40S would save 0.0 s",
        "rule": "l40s",
        "model": "L40S",
        "one_more_saves_s": 0,
        "slots": 2,
        "idle_nodes": ["a"],
    }


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shrink_below_s": 700}, "below grow_above_s"),
        ({"for_s": 1}, "for_s"),
        ({"least": 0}, "least"),
        ({"model": ""}, "model is empty"),
        ({"command": ["more"]}, "whole path"),
        ({"url": "https://x.example/"}, "one of"),
        ({"command": [], "url": "http://x.example/"}, "https"),
        ({"grow_abov_s": 1}, "grow_abov_s"),
    ],
)
def test_a_rule_that_could_not_work_is_told(change: dict[str, object], text: str) -> None:
    rule = {"model": "L40S", "grow_above_s": 600, "shrink_below_s": 30, "command": ["/bin/more"], **change}
    with pytest.raises(UserError, match=text):
        load_settings(environment={}, scale={"l40s": rule})


def test_without_prices_there_is_no_rule() -> None:
    rule = {"model": "L40S", "grow_above_s": 600, "shrink_below_s": 30, "command": ["/bin/more"]}
    with pytest.raises(UserError, match="predictive"):
        load_settings(environment={}, scale={"l40s": rule}, policy="fifo")
