"""The outputs that a submission declares, checked against its template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from farm.errors import UserError
from farm.flow.template import INT_TYPES, MAX_NAME, is_absolute
from farm.flow.template_text import shown
from farm.model.work import OutputSpec
from farm.text import clean


def outputs_by_step(
    outputs: Iterable[OutputSpec], job: Any, parameters: Mapping[str, tuple[str, str]]
) -> dict[str, OutputSpec]:
    by_step: dict[str, OutputSpec] = {}
    steps = {step.name: step for step in job.steps}
    for output in outputs:
        where = f"the output of step '{shown(output.step)}'"
        if output.step not in steps:
            raise UserError(f"an output names {_nearest('step', output.step, steps)}")
        if output.step in by_step:
            raise UserError(f"{where} is given twice")
        if output.directory_parameter not in parameters:
            told = _nearest("job parameter", output.directory_parameter, parameters)
            raise UserError(f"{where} names {told}")
        kind, directory = parameters[output.directory_parameter]
        if kind != "PATH":
            raise UserError(f"{where}: job parameter {output.directory_parameter} is {kind}, not PATH")
        if not directory or not is_absolute(directory) or "://" in directory:
            raise UserError(
                f"{where}: the directory '{shown(directory)}' (job parameter {output.directory_parameter}) "
                "is no absolute path"
            )
        _check_pattern(where, output.file_pattern)
        if output.frames_parameter is not None:
            space = steps[output.step].parameterSpace
            defined = {} if space is None else space.taskParameterDefinitions
            if output.frames_parameter not in defined:
                told = _nearest("task parameter", output.frames_parameter, defined)
                raise UserError(f"{where} names {told}")
            if defined[output.frames_parameter].type.value not in INT_TYPES:
                raise UserError(f"{where}: task parameter {output.frames_parameter} holds no whole numbers")
            part = output.part_parameter
            if part is not None and (part not in defined or defined[part].type.value != "INT"):
                raise UserError(f"{where}: there is no task parameter {shown(part)} of whole numbers")
        by_step[output.step] = output
    return by_step


def _check_pattern(where: str, pattern: str) -> None:
    told = f"{where}: the file name '{shown(pattern)}'"
    if not pattern.strip() or len(pattern) > MAX_NAME:
        raise UserError(f"{told} must have 1 to {MAX_NAME} characters")
    if clean(pattern, one_line=True) != pattern:
        raise UserError(f"{told} holds a control character")
    parts = re.split(r"[/\\]", pattern)
    if is_absolute(pattern) or any(part in ("", ".", "..") for part in parts) or ":" in parts[0]:
        raise UserError(f"{told} must lie inside the output directory: no '..', no leading '/'")


def _nearest(what: str, name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    hint = f"; did you mean '{shown(close[0])}'?" if close else ""
    return f"the {what} '{shown(name)}', which the template does not have{hint}"
