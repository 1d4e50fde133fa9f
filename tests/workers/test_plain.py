from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.plain import fill, plain_action

TASK = {"Frame": ("INT", "-7"), "Camera": ("STRING", "left eye")}
JOB = {"Name": ("STRING", 'a "b" $c'), "Scene": ("PATH", "/s/ä ö.blend"), "Gain": ("FLOAT", "1.50")}
NAMES = (
    "Param.Name",
    "RawParam.Scene",
    "Param.Scene",
    "Param.Gain",
    "Task.Param.Frame",
    "Task.RawParam.Camera",
)


def template(command: str, args: tuple[str, ...], **action: Any) -> dict[str, Any]:
    return {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "job",
        "parameterDefinitions": [{"name": name, "type": kind} for name, (kind, _) in JOB.items()],
        "steps": [
            {
                "name": "render",
                "parameterSpace": {
                    "taskParameterDefinitions": [
                        {"name": "Frame", "type": "INT", "range": [-7]},
                        {"name": "Camera", "type": "STRING", "range": ["left eye"]},
                    ]
                },
                "script": {"actions": {"onRun": {"command": command, "args": list(args), **action}}},
            }
        ],
    }


def words(job: dict[str, Any]) -> list[str] | None:
    action = plain_action(job, "render")
    return None if action is None else fill(action, JOB, TASK, "/work dir")


def test_a_command_is_filled_with_job_and_task_parameters() -> None:
    job = template(
        "blender", ("-b", "{{Param.Scene}}", "-o", "{{ RawParam.Scene }}/#", "{{Task.Param.Frame}}..x", "{ {")
    )
    assert words(job) == ["blender", "-b", "/s/ä ö.blend", "-o", "/s/ä ö.blend/#", "-7..x", "{ {"]


def test_the_working_directory_and_the_timeout_are_understood() -> None:
    job = template("{{Session.WorkingDirectory}}/run", (), timeout=90)
    assert words(job) == ["/work dir/run"]
    action = plain_action(job, "render")
    assert action is not None
    assert action.timeout_s == 90


@pytest.mark.parametrize(
    "change",
    [
        lambda job: job.update(jobEnvironments=[{"name": "e", "variables": {"A": "1"}}]),
        lambda job: job["steps"][0].update(stepEnvironments=[{"name": "e", "variables": {"A": "1"}}]),
        lambda job: job["steps"][0].update(let=["x = 1"]),
        lambda job: job["steps"][0]["script"].update(let=["x = 1"]),
        lambda job: job["steps"][0]["script"].update(
            embeddedFiles=[{"name": "F", "type": "TEXT", "data": "x"}]
        ),
        lambda job: job.update(extensions=["EXPR"]),
        lambda job: job.update(extensions=["FROM_THE_FUTURE"]),
        lambda job: job["steps"][0]["script"]["actions"]["onRun"].update(
            cancelation={"mode": "NOTIFY_THEN_TERMINATE"}
        ),
        lambda job: job["steps"][0]["script"]["actions"]["onRun"].update(timeout="{{Param.Name}}"),
        lambda job: job["steps"][0].update(name="other"),
        lambda job: job["steps"][0].update(bash={"script": "x"}),
    ],
)
def test_what_takes_a_session_is_left_to_the_session(change: Any) -> None:
    job = template("true", ())
    assert words(job) == ["true"]
    change(job)
    assert words(job) is None


@pytest.mark.parametrize(
    "text", ["{{Param.Nope}}", "{{Task.File.Run}}", "{{Param.Name", "a}}b", "{{ }}", "{{1+1}}"]
)
def test_a_format_string_that_is_not_plain_is_left_to_the_session(text: str) -> None:
    assert words(template("true", (text,))) is None


def test_a_missing_value_is_left_to_the_session() -> None:
    action = plain_action(template("true", ("{{Task.Param.Frame}}",)), "render")
    assert action is not None
    assert fill(action, JOB, {}, "/") is None


piece = st.one_of(
    st.sampled_from(NAMES).map(lambda name: f"{{{{{name}}}}}"),
    st.sampled_from(NAMES).map(lambda name: f"{{{{  {name} }}}}"),
    st.text(st.sampled_from("ab {}$'\"\\ä"), max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(piece, max_size=4).map("".join), min_size=1, max_size=3))
def test_the_command_line_is_the_one_that_the_openjd_libraries_make(args: list[str]) -> None:
    from openjd.model import (
        ParameterValue,
        ParameterValueType,
        SymbolTable,
        create_job,
        decode_job_template,
        preprocess_job_parameters,
    )

    job = template("render", tuple(args))
    ours = words(job)
    if ours is None:
        return
    decoded = decode_job_template(template=job)
    values = preprocess_job_parameters(
        job_template=decoded,
        job_parameter_values={name: text for name, (_, text) in JOB.items()},
        job_template_dir=Path(),
        current_working_dir=Path(),
        allow_job_template_dir_walk_up=True,
    )
    table = SymbolTable()
    task = {
        name: ParameterValue(type=ParameterValueType(kind), value=text) for name, (kind, text) in TASK.items()
    }
    for prefix, known in (("", values), ("Task.", task)):
        for name, value in known.items():
            table[f"{prefix}Param.{name}"] = table[f"{prefix}RawParam.{name}"] = value.value
    action = create_job(job_template=decoded, job_parameter_values=values).steps[0].script.actions.onRun
    theirs = [action.command.resolve(symtab=table), *(arg.resolve(symtab=table) for arg in action.args or ())]
    assert ours == theirs
