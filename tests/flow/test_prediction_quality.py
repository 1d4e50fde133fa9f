"""Prediction held against synthetic truth and public tables: a cheap part of `tests.bench.prediction`."""

from __future__ import annotations

import statistics

import pytest

from farm.simulate.world import Scenario
from tests.bench import prediction
from tests.bench.tables import TIMM_PAIRS, cross_device_errors, timm_pair


def test_after_five_frames_a_step_is_predicted_within_what_is_promised() -> None:
    cases = [case for seed in range(3) for case in prediction.one_after_another(seed)]
    found = prediction.told([case for case in cases if case.ended >= prediction.AFTER])
    assert found.count > 1_000
    assert found.error <= prediction.MOST_ERROR
    assert found.off <= prediction.MOST_OFF
    at_first = prediction.told([case for case in cases if case.ended == 1])
    assert at_first.error > found.error  # it learns


def test_in_a_farm_where_many_frames_run_at_once_the_bands_cover_what_they_say() -> None:
    farm = {"T4": 8, "L4": 8, "L40S": 8, "RTX 3090": 8, "A100": 8}
    cases = prediction.in_the_farm(Scenario(seed=1, farm=farm, load=0.8, hours=1.0))
    found = prediction.told([case for case in cases if case.ended >= prediction.AFTER])
    assert found.count > 1_000
    assert found.off <= prediction.MOST_OFF


@pytest.mark.skipif(not TIMM_PAIRS, reason="timm's public tables are not here (FARM_TEST_TABLES says where)")
@pytest.mark.parametrize("pair", TIMM_PAIRS.values(), ids=[f"{a} to {b}" for a, b in TIMM_PAIRS])
def test_one_run_on_a_gpu_tells_the_time_on_another(pair: tuple[str, str]) -> None:
    errors = cross_device_errors(timm_pair(*pair))
    assert len(errors) > 500
    assert statistics.median(errors) <= prediction.MOST_TIMM_ERROR
