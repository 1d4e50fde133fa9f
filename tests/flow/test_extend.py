"""More frames for a job, and the order of its frames."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import UserError
from farm.flow.extend import extended, with_frames
from farm.flow.order import parse_order, rank
from farm.flow.submit import JobPlan, plan_job
from farm.flow.task_space import TaskSpace
from farm.model.frames import canonical
from farm.model.work import OutputSpec, Submission


def a_job(frames: str = "1-10", **changes: Any) -> Submission:
    """Render and comp frames, then a film of them."""

    def step(name: str, after: list[str], space: bool = True) -> dict[str, Any]:
        made: dict[str, Any] = {
            "name": name,
            "script": {"actions": {"onRun": {"command": "true", "args": ["{{Param.FilmFrames}}"]}}},
        }
        if space:
            made["parameterSpace"] = {
                "taskParameterDefinitions": [{"name": "Frame", "type": "INT", "range": "{{Param.Frames}}"}]
            }
        if after:
            made["dependencies"] = [{"dependsOn": name} for name in after]
        return made

    template = {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "shot",
        "parameterDefinitions": [
            {"name": "Frames", "type": "STRING"},
            {"name": "FilmFrames", "type": "STRING"},
            {"name": "Samples", "type": "INT", "default": 5},
            {"name": "OutputDir", "type": "PATH", "default": "/out"},
        ],
        "steps": [step("Render", []), step("Comp", ["Render"]), step("Film", ["Comp"], space=False)],
    }
    values: dict[str, Any] = {
        "name": "shot",
        "template": template,
        "parameters": {"Frames": frames, "FilmFrames": frames, "OutputDir": "/out"},
        "outputs": (
            OutputSpec(
                step="Render",
                directory_parameter="OutputDir",
                file_pattern="####.png",
                frames_parameter="Frame",
            ),
        ),
    }
    return Submission(**values | changes)


def planned(submission: Submission) -> JobPlan:
    return plan_job(submission, uid="u")


def test_new_frames_are_steps_of_their_own_and_the_film_waits_for_them() -> None:
    job = a_job()
    made = extended(job, planned(job).parameters, [12, 11])
    plan = planned(made.submission)
    assert {step.name: (step.frames, step.depends_on, step.position) for step in plan.steps} == {
        "Render": ("1-10", (), 0),
        "Comp": ("1-10", ("Render",), 1),
        "Film": (None, ("Comp", "Comp 2"), 2),
        "Render 2": ("11-12", (), 3),
        "Comp 2": ("11-12", ("Render 2",), 4),
    }
    assert made.clones == {"Render 2": "Render", "Comp 2": "Comp"}
    assert made.set_back == {"Film"}
    assert plan.parameters["FilmFrames"] == ("STRING", "1-12")
    assert [output.step for output in made.submission.outputs] == ["Render", "Render 2"]


def test_frames_are_appended_again_and_again() -> None:
    job = a_job()
    for number in (11, 0, 30):
        made = extended(job, planned(job).parameters, [number])
        job = made.submission
    plan = planned(job)
    assert [step.name for step in plan.steps][-2:] == ["Render 4", "Comp 4"]
    assert plan.parameters["FilmFrames"][1] == "0-11,30"


@settings(deadline=None, max_examples=20)
@given(st.sets(st.integers(-50, 50), min_size=1, max_size=20), st.sets(st.integers(51, 99), min_size=1))
def test_what_old_tasks_are_never_changes(old: set[int], fresh: set[int]) -> None:
    job = a_job(canonical(old))
    before = planned(job)
    made = extended(job, before.parameters, sorted(fresh))
    after = planned(made.submission)
    was = TaskSpace(job.template, before.parameters, job.outputs)
    now = TaskSpace(made.submission.template, after.parameters, made.submission.outputs)
    for step in was.steps:
        assert was.count(step) == now.count(step)
        for index in range(was.count(step)):
            assert was.parameters(step, index) == now.parameters(step, index)
    assert set(now.frame_values("Render 2") or ()) == fresh


@pytest.mark.parametrize(
    ("frames", "step", "told"),
    [
        ([5, 11], None, "the job has 5 (1 frame) already"),
        ([11], "Rendr", "there is no step 'Rendr'"),
        ([11], "Film", "have no frames"),
    ],
)
def test_what_cannot_be_appended(frames: list[int], step: str | None, told: str) -> None:
    job = a_job()
    with pytest.raises(UserError) as error:
        extended(job, planned(job).parameters, frames, step=step)
    assert told in str(error.value)


def test_other_frames_reach_every_parameter_that_held_the_old_ones() -> None:
    job = a_job()
    made = with_frames(job, planned(job).parameters, [3, 5, 7])
    plan = planned(made)
    assert [step.frames for step in plan.steps] == ["3-7:2", "3-7:2", None]
    assert plan.parameters["FilmFrames"][1] == "3-7:2"


@given(
    st.sets(st.integers(-20, 60), min_size=1, max_size=12),
    st.lists(st.sets(st.integers(100, 130), min_size=1, max_size=3), max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_a_job_with_appended_frames_can_be_had_for_others_again(
    frames: set[int], appended: list[set[int]]
) -> None:
    job = long = a_job()
    taken: set[int] = set()
    for more in appended:
        if fresh := more - taken:
            long = extended(long, planned(long).parameters, sorted(fresh)).submission
            taken |= fresh
    again = with_frames(long, planned(long).parameters, sorted(frames))
    short = with_frames(job, planned(job).parameters, sorted(frames))
    assert [(step.name, step.frames) for step in planned(again).steps] == [
        (step.name, step.frames) for step in planned(short).steps
    ]
    assert [step.get("dependencies") for step in again.template["steps"]] == [
        step.get("dependencies") for step in job.template["steps"]
    ]
    assert (again.outputs, again.parameters) == (job.outputs, short.parameters)


def test_steps_that_only_look_as_if_one_was_made_of_the_other_stay_two() -> None:
    job = a_job()
    template = copy.deepcopy(job.template)
    template["steps"] = [template["steps"][0], copy.deepcopy(template["steps"][0])]
    template["steps"][1] |= {"name": "Render 2", "script": {"actions": {"onRun": {"command": "false"}}}}
    two = replace(job, template=template)
    made = with_frames(two, planned(two).parameters, [3, 5])
    assert [(step.name, step.frames) for step in planned(made).steps] == [
        ("Render", "3,5"),
        ("Render 2", "3,5"),
    ]


def test_a_job_whose_frames_are_written_into_it_cannot_get_others() -> None:
    job = a_job()
    template = copy.deepcopy(job.template)
    template["steps"][0]["parameterSpace"]["taskParameterDefinitions"][0]["range"] = "1-10"
    fixed = replace(job, template=template)
    with pytest.raises(UserError, match="frames of its own"):
        with_frames(fixed, planned(fixed).parameters, [1])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("forward", [0, 1, 2, 3, 4, 5, 6]),
        ("reverse", [6, 5, 4, 3, 2, 1, 0]),
        ("first-middle-last", [0, 3, 6, 1, 2, 4, 5]),
        ("every-3", [0, 3, 6, 1, 2, 4, 5]),
        ("every-2", [0, 2, 4, 6, 1, 3, 5]),
    ],
)
def test_orders(order: str, expected: list[int]) -> None:
    assert sorted(range(7), key=lambda index: rank(order, index, 7)) == expected


@given(st.sampled_from(["forward", "reverse", "first-middle-last", "every-2", "every-7"]), st.integers(1, 60))
def test_every_task_has_a_rank_of_its_own(order: str, count: int) -> None:
    assert len({rank(order, index, count) for index in range(count)}) == count


@pytest.mark.parametrize(
    ("typed", "order"),
    [("Reverse", "reverse"), ("every 10th first", "every-10"), ("every-5", "every-5"), ("every5", "every-5")],
)
def test_orders_are_read_as_people_type_them(typed: str, order: str) -> None:
    assert parse_order(typed) == order


@pytest.mark.parametrize(
    ("typed", "told"),
    [("revers", "did you mean reverse?"), ("random", "there are forward"), ("every-1", "2 or more")],
)
def test_wrong_orders_are_told(typed: str, told: str) -> None:
    with pytest.raises(UserError, match=told.replace("?", r"\?")):
        parse_order(typed)
