"""A probe first: one frame at full resolution with few samples, which tells what the frames cost most.

Low resolution would change how caches and memory are used; few samples do not. Nothing of it is kept but what
the node measured meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from farm.errors import UserError
from farm.model.frames import canonical
from farm.model.work import Submission

STEP = "probe"
PROBE_ATTRIBUTE = "attr.farm.probe"
"""Tells the farm that the step keeps nothing, and whom it tells what it showed: those that depend on it."""


def with_probe(made: Submission, frames: Sequence[int], arguments: Sequence[str]) -> Submission:
    """`made` with its first step's middle frame in a step of their own before it.

    The first step takes its frames by a task parameter Frame. `arguments` are added to its command, and make
    it a probe; it writes into the session's directory, which is thrown away. Raises UserError for a job that
    has a step of that name already.
    """
    template = copy.deepcopy(made.template)
    steps = template["steps"]
    if any(step["name"] == STEP for step in steps):
        raise UserError(f"the job has a step {STEP!r} already")
    files = next(output for output in made.outputs if output.step == steps[0]["name"])
    probe = copy.deepcopy(steps[0])
    probe["name"] = STEP
    ordered = sorted(set(frames))
    for definition in probe["parameterSpace"]["taskParameterDefinitions"]:
        if definition["name"] == "Frame":
            definition["range"] = canonical((ordered[len(ordered) // 2],))
    action = probe["script"]["actions"]["onRun"]
    final = f"{{{{Param.{files.directory_parameter}}}}}"
    action["args"] = [
        *(text.replace(final, "{{Session.WorkingDirectory}}") for text in action["args"]),
        *arguments,
    ]
    needs = dict(probe.get("hostRequirements", {}))
    needs["attributes"] = [*needs.get("attributes", ()), {"name": PROBE_ATTRIBUTE, "anyOf": ["yes"]}]
    probe["hostRequirements"] = needs
    for step in steps:
        step["dependencies"] = [*step.get("dependencies", ()), {"dependsOn": STEP}]
    # Last: the job's own first step stays the one whose command people are shown.
    return replace(made, template={**template, "steps": [*steps, probe]})
