"""Templates and submissions for the tests of what is submitted."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import UserError
from farm.flow.submit import JobPlan, plan_job
from farm.model.work import OutputSpec, Submission

ON_RUN = {"actions": {"onRun": {"command": "true"}}}


def step(
    name: str = "Render", *after: str, space: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "script": ON_RUN, **more}
    if after:
        made["dependencies"] = [{"dependsOn": other} for other in after]
    if space is not None:
        made["parameterSpace"] = {"taskParameterDefinitions": space}
    return made


def frame(text: Any = "{{Param.Frames}}", name: str = "Frame") -> dict[str, Any]:
    return {"name": name, "type": "INT", "range": text}


def chunks(text: str, size: int, constraint: str = "CONTIGUOUS", target_s: int = 0) -> dict[str, Any]:
    return {
        "name": "Frames",
        "type": "CHUNK[INT]",
        "range": text,
        "chunks": {
            "defaultTaskCount": size,
            "rangeConstraint": constraint,
            "targetRuntimeSeconds": target_s,
        },
    }


def template(*steps: dict[str, Any], parameters: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "specificationVersion": "jobtemplate-2023-09",
        "extensions": ["TASK_CHUNKING"],
        "name": "a job",
        "parameterDefinitions": parameters
        or [
            {"name": "Frames", "type": "STRING", "default": "1-10"},
            {"name": "OutputDir", "type": "PATH", "default": "/renders"},
            {"name": "Samples", "type": "INT", "default": 32, "minValue": 1, "maxValue": 4096},
        ],
        "steps": list(steps) or [step(space=[frame()])],
    }


def planned(source: dict[str, Any], **more: Any) -> JobPlan:
    return plan_job(Submission(**{"name": "shot", "template": source} | more), uid="uid")


def refused(source: dict[str, Any], **more: Any) -> str:
    with pytest.raises(UserError) as caught:
        planned(source, **more)
    return str(caught.value)


def output(**more: Any) -> OutputSpec:
    plain = {
        "step": "Render",
        "directory_parameter": "OutputDir",
        "file_pattern": "shot_####.png",
        "frames_parameter": "Frame",
    }
    return OutputSpec(**plain | more)
