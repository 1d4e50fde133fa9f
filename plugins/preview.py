"""A few frames first: they render before the others, so that a mistake shows after minutes, not hours."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from farm.errors import UserError
from farm.model.frames import canonical
from farm.model.work import Submission

STEP = "preview"


def preview_frames(frames: Sequence[int]) -> tuple[int, ...]:
    """The first, the middle and the last of `frames`."""
    ordered = sorted(set(frames))
    return tuple(sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]}))


def with_preview(made: Submission, frames: Sequence[int]) -> Submission:
    """`made` with its first step's `preview_frames` in a step of their own, which is handed out before it.

    The first step takes its frames from the job parameter Frames, by a task parameter Frame. A job of no more
    than three frames stays as it is. Raises UserError for a job that has a step of that name already.
    """
    soon = preview_frames(frames)
    rest = sorted(set(frames) - set(soon))
    if not rest:
        return made
    template = copy.deepcopy(made.template)
    whole = template["steps"][0]
    template["parameterDefinitions"] = [
        *template.get("parameterDefinitions", ()),
        {"name": "OtherFrames", "type": "STRING", "minLength": 1},
    ]
    if any(step["name"] == STEP for step in template["steps"]):
        raise UserError(f"the job has a step {STEP!r} already")
    first = copy.deepcopy(whole)
    first["name"] = STEP
    for definition in first["parameterSpace"]["taskParameterDefinitions"]:
        if definition["name"] == "Frame":
            definition["range"] = canonical(soon)
            if definition["type"] == "CHUNK[INT]":  # one by one: they are to be seen soon
                definition["chunks"]["defaultTaskCount"] = 1
    for definition in whole["parameterSpace"]["taskParameterDefinitions"]:
        if definition["name"] == "Frame":
            definition["range"] = "{{Param.OtherFrames}}"
    template["steps"].insert(0, first)
    for step in template["steps"]:
        needs = step.get("dependencies", [])
        if any(need["dependsOn"] == whole["name"] for need in needs):
            step["dependencies"] = [*needs, {"dependsOn": STEP}]
    files = next(output for output in made.outputs if output.step == whole["name"])
    return replace(
        made,
        template=template,
        parameters={**made.parameters, "OtherFrames": canonical(rest)},
        outputs=(replace(files, step=STEP), *made.outputs),
    )
