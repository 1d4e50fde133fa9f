"""When a run is late, and which idle device takes a copy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farm.flow.guard import Verdict, judge, late_after_s, remaining_s, tail_copies


def test_a_usual_run_is_fine_a_late_one_copied_a_stuck_one_ended() -> None:
    assert judge(60, 60, 0.2, is_known=True) is Verdict.FINE
    late_s = late_after_s(60, 0.2, is_known=True)
    assert judge(late_s + 1, 60, 0.2, is_known=True) is Verdict.LATE
    assert judge(2.5 * late_s + 1, 60, 0.2, is_known=True) is Verdict.STUCK


def test_more_is_forgiven_while_a_step_is_unknown() -> None:
    assert late_after_s(60, 0.2, is_known=False) > 2 * late_after_s(60, 0.2, is_known=True)


def test_what_is_late_is_taken_to_be_late_for_longer() -> None:
    left = remaining_s(np.array([0.0, 50.0, 60.0, 600.0]), np.full(4, 60.0))
    assert left[0] == 60
    assert left[1] == 10
    assert left[3] > 200


def test_the_largest_gain_is_copied_first_and_small_ones_never() -> None:
    takes = np.array([[10.0, 50.0], [10.0, 50.0], [10.0, np.inf]])
    assert tail_copies(np.array([300.0, 100.0, 12.0]), takes) == [(0, 0), (1, 1)]
    assert tail_copies(np.array([12.0]), np.array([[10.0]])) == []


@given(st.integers(0, 1000), st.integers(0, 8), st.integers(0, 6))
def test_no_device_and_no_run_is_copied_twice(seed: int, runs: int, idle: int) -> None:
    draw = np.random.default_rng(seed)
    chosen = tail_copies(draw.uniform(0, 300, runs), draw.uniform(5, 100, (runs, idle)))
    assert len({device for device, _ in chosen}) == len({run for _, run in chosen}) == len(chosen)
