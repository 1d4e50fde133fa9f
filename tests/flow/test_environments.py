"""Environments of a queue around a job's own."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import UserError
from farm.flow.environments import with_environments
from farm.flow.submit import plan_job
from farm.flow.template import check_environment_template
from farm.model.work import Submission


def environment(name: str = "Conda", **changes: Any) -> dict[str, Any]:
    return {
        "specificationVersion": "environment-2023-09",
        "parameterDefinitions": [{"name": "CondaPackages", "type": "STRING", "default": "blender"}],
        "environment": {"name": name, "variables": {"PACKAGES": "{{Param.CondaPackages}}"}},
    } | changes


def job(**changes: Any) -> dict[str, Any]:
    return {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "shot",
        "jobEnvironments": [{"name": "Own", "variables": {"A": "1"}}],
        "steps": [{"name": "Render", "script": {"actions": {"onRun": {"command": "true"}}}}],
    } | changes


def test_they_are_entered_first_in_their_order_and_bring_their_parameters() -> None:
    made = with_environments(job(), [environment("A"), environment("B")])
    assert [each["name"] for each in made["jobEnvironments"]] == ["A", "B", "Own"]
    assert [each["name"] for each in made["parameterDefinitions"]] == ["CondaPackages"]
    plan = plan_job(Submission(name="shot", template=made), uid="u")
    assert plan.parameters == {"CondaPackages": ("STRING", "blender")}


def test_the_job_s_definition_of_a_parameter_holds() -> None:
    own = {"name": "CondaPackages", "type": "STRING", "default": "povray"}
    made = with_environments(job(parameterDefinitions=[own]), [environment()])
    assert made["parameterDefinitions"] == [own]
    with pytest.raises(UserError, match="is INT in the job and STRING in the environment Conda"):
        with_environments(
            job(parameterDefinitions=[{"name": "CondaPackages", "type": "INT"}]), [environment()]
        )


def test_twice_is_once_and_the_template_given_is_left_alone() -> None:
    template = job()
    made = with_environments(template, [environment()])
    assert with_environments(made, [environment()]) == made
    assert template == job()


def test_extensions_come_along() -> None:
    made = with_environments(job(extensions=["EXPR"]), [environment(extensions=["EXPR", "WRAP_ACTIONS"])])
    assert made["extensions"] == ["EXPR", "WRAP_ACTIONS"]


def test_a_wrong_environment_is_told() -> None:
    check_environment_template(environment())
    with pytest.raises(UserError, match="environment template is no valid"):
        check_environment_template(environment(environment={"name": "Conda"}))
