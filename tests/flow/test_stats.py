from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.flow.stats import Completion, calibration, eta_s, spread, within

DURATIONS = st.lists(st.floats(0.01, 1e5), min_size=1, max_size=50)


def test_the_spread_of_a_known_list() -> None:
    known = spread([1, 2, 3, 4, 10])
    assert known is not None
    assert (known.count, known.mean_s, known.p50_s) == (5, 4, 3)
    assert known.sd_s == pytest.approx(3.1623, abs=1e-4)
    assert known.p95_s == pytest.approx(8.8)
    assert known.relative == pytest.approx(0.7906, abs=1e-4)


def test_there_is_no_spread_of_nothing() -> None:
    assert spread([]) is None


def test_equal_durations_do_not_spread() -> None:
    known = spread([0.0, 0.0])
    assert known is not None
    assert known.relative == known.sd_s == 0


@given(DURATIONS)
def test_the_order_of_durations_does_not_matter(durations: list[float]) -> None:
    known = spread(durations)
    assert known == spread(durations[::-1])
    assert known is not None
    assert known.sd_s == pytest.approx(statistics.pstdev(durations), rel=1e-6, abs=1e-9)
    assert min(durations) <= known.p50_s <= known.p95_s <= max(durations)


def test_equal_tasks_take_their_time_divided_by_the_slots() -> None:
    assert eta_s(100, [10.0] * 5, 4) == (250.0, 250.0)


def test_more_slots_than_tasks_do_not_help() -> None:
    assert eta_s(2, [10.0] * 5, 50) == (10.0, 10.0)


def test_one_task_left_takes_a_mean_task_whatever_the_slots() -> None:
    estimate = eta_s(1, [1.0, 1.0, 10.0], 10)
    assert estimate is not None
    assert estimate[0] == 4.0


def test_nothing_left_takes_no_time_and_nothing_known_gives_no_estimate() -> None:
    assert eta_s(0, [], 0) == (0.0, 0.0)
    assert eta_s(5, [], 4) is None
    assert eta_s(5, [1.0], 0) is None


@given(st.integers(1, 10_000), DURATIONS, st.integers(1, 100))
def test_the_bad_case_is_never_better_than_the_likely_one(
    remaining: int, durations: list[float], slots: int
) -> None:
    estimate = eta_s(remaining, durations, slots)
    assert estimate is not None
    likely, at_worst = estimate
    assert 0 < likely <= at_worst
    more = eta_s(remaining * 2, durations, slots)
    assert more is not None
    assert more[0] >= likely


def _done(*times: tuple[int, str, float]) -> list[Completion]:
    return [Completion(step=step, place=place, seconds=seconds) for step, place, seconds in times]


def test_the_spread_within_steps_leaves_their_different_means_out() -> None:
    assert within([]) is None
    alike = within(_done((1, "a", 10.0), (1, "a", 10.0), (2, "a", 99.0)))
    assert alike is not None
    assert (alike.sd_s, alike.relative, alike.floor_sd_s) == (0, 0, 0)
    found = within(_done((1, "a", 8.0), (1, "a", 12.0), (2, "a", 98.0), (2, "a", 102.0)))
    assert found is not None
    assert found.sd_s == pytest.approx(2)
    assert found.relative == pytest.approx(math.sqrt((0.2**2 + 0.02**2) / 2))


def test_the_floor_is_what_equal_devices_would_leave() -> None:
    of_devices_only = within(_done((1, "fast", 5.0), (1, "fast", 5.0), (1, "slow", 20.0), (1, "slow", 20.0)))
    assert of_devices_only is not None
    assert of_devices_only.sd_s == pytest.approx(7.5)
    assert of_devices_only.floor_sd_s == pytest.approx(0)
    of_content_only = within(_done((1, "a", 8.0), (1, "a", 12.0), (1, "b", 8.0), (1, "b", 12.0)))
    assert of_content_only is not None
    assert of_content_only.floor_sd_s == pytest.approx(of_content_only.sd_s)


def test_calibration_counts_what_kept_within_its_forecast() -> None:
    assert calibration([]) is None
    found = calibration([(10, 20, 8), (10, 20, 10), (10, 20, 16), (10, 20, 25)])
    assert found is not None
    assert (found.count, found.within_likely, found.within_worst) == (4, 0.5, 0.75)
    assert found.median_error == pytest.approx((0.25 + 0.375) / 2)
    assert found.median_error_s == pytest.approx((2 + 6) / 2)


def test_what_took_less_than_a_second_calibrates_nothing() -> None:
    assert calibration([(60, 90, 0.05), (60, 90, 0.9)]) is None
    found = calibration([(60, 90, 0.05), (10, 20, 8)])
    assert found is not None
    assert (found.count, found.median_error_s) == (1, 2)
