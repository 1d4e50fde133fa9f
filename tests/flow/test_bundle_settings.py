from __future__ import annotations

from typing import Any

import pytest

from farm.errors import UserError
from farm.flow.bundle_settings import read_bundle_settings
from farm.model.work import JobSettings, OutputSpec, Tag


def test_a_bundles_values_are_split_into_parameters_and_settings() -> None:
    parameters, found = read_bundle_settings(
        [
            {"name": "Frames", "value": "1-10"},
            {"name": "Samples", "value": 64},
            {"name": "Denoise", "value": True},
            {"name": "deadline:targetTaskRunStatus", "value": "SUSPENDED"},
            {"name": "deadline:priority", "value": 70},
            {"name": "deadline:maxFailedTasksCount", "value": 3},
            {"name": "deadline:maxRetriesPerTask", "value": "5"},
            {"name": "deadline:maxWorkerCount", "value": -1},
            {"name": "acme:anything", "value": {"x": 1}},
        ]
    )
    assert parameters == {"Frames": "1-10", "Samples": "64", "Denoise": "true"}
    assert found == {
        "is_paused": True,
        "priority": 70,
        "max_failed_tasks": 3,
        "max_retries": 5,
        "max_running": None,
    }
    assert JobSettings(**found).priority == 70


def test_our_settings_beat_deadlines_whatever_the_order() -> None:
    entries = [{"name": "farm:priority", "value": 10}, {"name": "deadline:priority", "value": 70}]
    assert read_bundle_settings(entries)[1] == read_bundle_settings(entries[::-1])[1] == {"priority": 10}


def test_all_our_settings_are_understood() -> None:
    spec = {
        "step": "Render",
        "directory_parameter": "Out",
        "file_pattern": "x_####.png",
        "frames_parameter": "Frame",
    }
    values = {
        "priority": 1,
        "pool": "film",
        "paused": "yes",
        "retries": 0,
        "max_failed_tasks": 9,
        "max_running": 4,
        "profile": "compute",
        "timeout_s": 90,
        "reverse": True,
        "replace_existing": False,
        "trust_scripts": "off",
        "depends_on": [4, "5"],
        "output": spec,
    }
    _, found = read_bundle_settings(
        [{"name": f"farm:{key}", "value": value} for key, value in values.items()]
    )
    assert found.pop("outputs") == (OutputSpec(**spec),)  # type: ignore[arg-type]
    assert JobSettings(**found) == JobSettings(
        priority=1,
        pool="film",
        is_paused=True,
        max_retries=0,
        max_failed_tasks=9,
        max_running=4,
        tag=Tag.COMPUTE,
        timeout_s=90.0,
        reverse=True,
        replace_existing=False,
        trust_scripts=False,
        depends_on=(4, 5),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([{"name": "farm:priorty", "value": 1}], "did you mean farm:priority?"),
        ([{"name": "farm:qqqq", "value": 1}], "there are priority, pool"),
        ([{"name": "farm:priority", "value": "high"}], "whole number, not high"),
        ([{"name": "farm:paused", "value": "maybe"}], "true or false, not maybe"),
        ([{"name": "farm:profile", "value": "fast"}], "compute, bandwidth, balanced"),
        ([{"name": "farm:timeout_s", "value": [1]}], "number of seconds"),
        ([{"name": "farm:output", "value": "x.png"}], "must be a mapping"),
        ([{"name": "farm:output", "value": {"step": "a", "colour": 1}}], "has no colour"),
        ([{"name": "farm:output", "value": {"step": "a"}}], "needs directory_parameter"),
        ([{"name": "deadline:targetTaskRunStatus", "value": "STARTED"}], "READY or SUSPENDED"),
        ([{"name": "Frames", "value": {"a": 1}}], "must be text, a number or a list"),
        ([{"name": "Frames"}], "must have a 'name' and a 'value'"),
        ([{"name": "Frames", "value": 1}, {"name": "Frames", "value": 2}], "Frames twice"),
        (["Frames"], "must have a 'name' and a 'value'"),
        ({"Frames": 1}, "must be a list"),
    ],
)
def test_a_bundle_that_is_wrong_is_refused_with_the_name(entries: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        read_bundle_settings(entries)
    assert words in str(caught.value)
