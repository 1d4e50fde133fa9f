"""Shadow prices: bounds that hold, and prices that say what a device is worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.flow.prices import shadow_prices


def test_one_group_on_one_device_model_takes_its_time() -> None:
    found = shadow_prices(np.array([[10.0]]), np.array([6.0]), np.array([3.0]))
    assert found.bound_s == pytest.approx(20)
    assert found.spread_s == pytest.approx(20)


def test_each_group_goes_where_it_is_relatively_best() -> None:
    # By hand: the first group on the first device, the second on the second, both busy for 100 s.
    found = shadow_prices(np.array([[1.0, 4.0], [4.0, 1.0]]), np.array([100.0, 100.0]), np.array([1.0, 1.0]))
    assert found.bound_s == pytest.approx(100, rel=0.01)
    assert found.per_second == pytest.approx([0.5, 0.5], rel=0.05)


def test_a_device_model_that_nobody_can_use_is_cheap() -> None:
    found = shadow_prices(np.array([[1.0, np.inf]]), np.array([10.0]), np.array([1.0, 1.0]))
    assert found.per_second[1] < 0.01 * found.per_second[0]


def test_without_work_or_devices_there_are_no_prices() -> None:
    assert shadow_prices(np.array([[1.0]]), np.array([0.0]), np.array([2.0])).bound_s == 0
    assert shadow_prices(np.array([[1.0]]), np.array([5.0]), np.array([0.0])).bound_s == 0
    assert shadow_prices(np.array([[np.inf]]), np.array([5.0]), np.array([1.0])).bound_s == 0


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_the_bound_is_below_what_can_be_done_and_close_to_it(seed: int, groups: int, models: int) -> None:
    draw = np.random.default_rng(seed)
    seconds = np.exp(draw.normal(4, 1, (groups, 1)) + draw.normal(0, 0.6, (groups, models)))
    seconds[draw.random((groups, models)) < 0.1] = np.inf
    tasks = draw.integers(1, 300, groups).astype(float)
    devices = draw.integers(1, 50, models).astype(float)
    found = shadow_prices(seconds, tasks, devices)
    assert found.bound_s <= found.spread_s * (1 + 1e-9)
    assert found.gap < 0.08
    if found.bound_s:
        assert devices @ found.per_second == pytest.approx(1)
        # The dual in the open: these prices themselves prove the bound.
        able = np.isfinite(seconds).any(axis=1)
        assert (found.per_second * seconds[able]).min(axis=1) @ tasks[able] <= found.bound_s * (1 + 1e-9)


def test_old_prices_are_a_good_start() -> None:
    draw = np.random.default_rng(1)
    seconds = np.exp(draw.normal(4, 1, (60, 1)) + draw.normal(0, 0.6, (60, 10)))
    tasks, devices = draw.integers(50, 300, 60).astype(float), draw.integers(1, 20, 10).astype(float)
    first = shadow_prices(seconds, tasks, devices)
    again = shadow_prices(seconds * np.exp(draw.normal(0, 0.05, seconds.shape)), tasks, devices,
                          start=first.per_second, rounds=40)  # fmt: skip
    assert again.gap < 0.06


def test_one_more_device_saves_what_its_price_says() -> None:
    draw = np.random.default_rng(2)
    seconds = np.exp(draw.normal(4, 1, (30, 1)) + draw.normal(0, 0.6, (30, 4)))
    tasks, devices = draw.integers(50, 300, 30).astype(float), np.array([40.0, 30.0, 20.0, 10.0])
    found = shadow_prices(seconds, tasks, devices, rounds=1500)
    for model in range(4):
        more = devices.copy()
        more[model] += 1
        saved_s = found.bound_s - shadow_prices(seconds, tasks, more, rounds=1500).bound_s
        assert saved_s == pytest.approx(found.per_second[model] * found.bound_s, rel=0.15)
