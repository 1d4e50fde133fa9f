"""Tasks that go where little is known, for what they teach."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.flow.trials import AT_ONCE, Firsts, Trials, trial_gains

positive = st.floats(0.01, 100.0)


def gain(here: float, doubt: float, *, ready: int = 100, worth: float = 0.5, load: float = 0.0) -> float:
    """Of a trial where a task costs `here`, beside a device model on which it is known to cost 1."""
    found = trial_gains(
        np.array([[1.0, here]]),
        np.full((1, 2), load),
        np.array([[0.1, math.hypot(0.1, doubt)]]),
        np.array([ready]),
        worth=worth,
    )
    assert found[0, 0] == 0.0
    return float(found[0, 1])


def test_a_trial_is_worth_its_cost_where_much_is_left_and_much_is_doubted() -> None:
    assert gain(1.3, 0.4) == pytest.approx(math.log(1.3))
    assert gain(1.3, 0.4, ready=0) == gain(1.3, 0.04) == gain(1.3, 0.4, worth=0.0) == 0.0
    assert 0.0 < gain(1.3, 0.4, ready=1) < gain(1.3, 0.4, ready=3) < gain(1.3, 0.4)
    assert gain(4.0, 0.2) < 1e-6
    assert gain(math.inf, 0.4) == 0.0


@given(st.floats(0.2, 20.0), st.floats(0.06, 1.5))
def test_the_gain_is_the_mean_of_what_a_lognormal_cost_falls_short_of_the_best(
    here: float, doubt: float
) -> None:
    normal = np.array([NormalDist().inv_cdf((at + 0.5) / 2_000) for at in range(2_000)])
    costs = here * np.exp(doubt * normal - doubt**2 / 2)
    short = float(np.maximum(min(1.0, here) - costs, 0.0).mean())
    told = gain(here, doubt, ready=1, worth=1.0)
    left = max(here - short, min(1.0, here))
    assert told == pytest.approx(math.log(here / left), abs=0.02)


@given(
    st.lists(st.tuples(positive, positive, st.floats(0.03, 1.5)), min_size=1, max_size=6),
    st.integers(0, 10**6),
)
def test_no_trial_makes_a_place_better_than_the_best(
    places: list[tuple[float, float, float]], ready: int
) -> None:
    cost, load, sd = (np.array([column]) for column in zip(*places, strict=True))
    gains = trial_gains(cost, load, sd, np.array([ready]), worth=0.5)
    worth = np.log(cost.min() / (cost + load)) + gains
    assert (gains >= 0).all()
    assert (worth <= 1e-9).all()


def test_few_trials_are_out_at_once_and_one_that_tells_nothing_is_made_again() -> None:
    trials = Trials()
    rows, gains = np.array([7]), np.array([[0.0, 0.3, 0.4, 0.5]])
    trials.scored(rows, gains, 0.0)
    assert trials.among(np.array([6, 7])) == {7}
    assert not trials.started(7, 0, 0.0, 10.0)
    for model in range(1, 1 + AT_ONCE):
        assert trials.started(7, model, 0.0, 10.0)
    assert trials.gains(7) is None
    assert not trials.started(7, 3, 0.0, 10.0)
    trials.scored(rows, gains, 15.0)
    assert trials.gains(7) is None
    trials.scored(rows, gains, 25.0)
    again = trials.gains(7)
    assert again is not None
    assert again.tolist() == gains[0].tolist()
    trials.forget(7)
    assert trials.among(rows) == set()
    assert trials.gains(7) is None


def test_one_first_task_is_out_until_it_has_told_or_is_late() -> None:
    firsts = Firsts()
    rows, unproven = np.array([3, 7]), np.array([[True, True], [True, True]])
    assert firsts.closed(7) == []
    firsts.started(7, 1, 0.0, 10.0)
    assert (firsts.closed(7), firsts.closed(3), firsts.among(rows)) == ([1], [], {7})
    firsts.scored(rows, unproven, 19.0)
    assert firsts.closed(7) == [1]
    firsts.scored(rows, unproven, 21.0)
    assert (firsts.closed(7), firsts.among(rows)) == ([], set())
    firsts.started(7, 0, 21.0, 31.0)
    firsts.started(7, 1, 21.0, 31.0)
    firsts.scored(rows, np.array([[True, True], [True, False]]), 21.0)
    assert (firsts.closed(7), firsts.among(rows)) == ([0], {7})
    firsts.forget(7)
    assert firsts.among(rows) == set()
