"""Which frames wait for which."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import UserError
from farm.flow.by_frame import by_frame
from farm.flow.submit import plan_job
from farm.flow.task_space import TaskSpace
from farm.model.ids import JobId, StepId
from farm.model.states import JobState
from farm.model.work import Job, JobSettings, Step, Submission
from tests.edges.cli_farm import a_job
from tests.flow.test_extend import a_job as three_steps


def told(submission: Submission, **others: tuple[Job, TaskSpace]) -> dict[tuple[str, int], set[str]]:
    plan = plan_job(submission, uid="u")
    space = TaskSpace(submission.template, plan.parameters, submission.outputs)
    jobs = {JobId(int(name.removeprefix("j"))): pair for name, pair in others.items()}
    after, needs = by_frame(plan, space, jobs)
    assert [step.depends_on for step in after.steps] == [step.depends_on for step in plan.steps]
    found: dict[tuple[str, int], set[str]] = {}
    for need in needs:
        where = need.needs_job_id or ""
        found.setdefault((need.step, need.index), set()).add(f"{where}{need.needs_step}{need.needs_index}")
    return found


def another(frames: str) -> tuple[Job, TaskSpace]:
    submission = three_steps(frames)
    plan = plan_job(submission, uid="u")
    steps = tuple(
        Step(
            id=StepId(step.position),
            job_id=JobId(3),
            name=step.name,
            position=step.position,
            depends_on=step.depends_on,
        )
        for step in plan.steps
    )
    job = a_job(id=JobId(3), steps=steps, state=JobState.ACTIVE, settings=JobSettings())
    return job, TaskSpace(submission.template, plan.parameters, submission.outputs)


def test_a_step_waits_for_the_same_frame_of_the_step_before_it() -> None:
    submission = three_steps("1-3")
    plan, _ = by_frame(
        plan_job(submission, uid="u"),
        TaskSpace(submission.template, plan_job(submission, uid="u").parameters),
        {},
    )
    assert [step.by_frame for step in plan.steps] == [(), ("Render",), ()]
    assert told(submission) == {("Comp", index): {f"Render{index}"} for index in range(3)}


def test_first_steps_wait_for_the_last_steps_with_frames_of_another_job() -> None:
    found = told(three_steps("2-3"), j3=another("1-5"))
    assert {key: value for key, value in found.items() if key[0] == "Render"} == {
        ("Render", 0): {"3Comp1"},
        ("Render", 1): {"3Comp2"},
    }


def test_a_frame_that_nothing_before_it_has_is_told() -> None:
    with pytest.raises(UserError, match=r"job 3 does not have 6-7 \(2 frames\)"):
        told(three_steps("4-7"), j3=another("1-5"))


def test_a_job_in_which_nothing_waits_is_told() -> None:
    alone = three_steps("1-3")
    template = {**alone.template, "steps": alone.template["steps"][:1]}
    with pytest.raises(UserError, match="nothing waits frame by frame"):
        told(Submission(name="x", template=template, parameters=alone.parameters))


def test_chunks_that_are_cut_anew_can_neither_wait_nor_be_waited_for() -> None:
    frame: dict[str, Any] = {"name": "Frame", "type": "CHUNK[INT]", "range": "1-9"}
    frame["chunks"] = {"defaultTaskCount": 2, "rangeConstraint": "CONTIGUOUS", "targetRuntimeSeconds": 60}
    script = {"actions": {"onRun": {"command": "x", "args": ["{{Task.Param.Frame}}"]}}}
    space = {"taskParameterDefinitions": [frame]}
    template = {
        "specificationVersion": "jobtemplate-2023-09",
        "extensions": ["TASK_CHUNKING"],
        "name": "t",
        "steps": [{"name": "Render", "parameterSpace": space, "script": script}],
    }
    timed = Submission(name="t", template=template)
    with pytest.raises(UserError, match="target run time"):
        told(timed)
    plan = plan_job(timed, uid="u")
    steps = (Step(id=1, job_id=JobId(3), name="Render", position=0),)  # type: ignore[arg-type]
    job = a_job(id=JobId(3), steps=steps, state=JobState.ACTIVE, settings=JobSettings())
    with pytest.raises(UserError, match="wait for the whole"):
        told(three_steps("1-3"), j3=(job, TaskSpace(template, plan.parameters)))
