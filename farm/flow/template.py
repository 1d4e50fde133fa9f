"""From an Open Job Description template to the library's job: the farm's only door to openjd.model.

The library is imported inside functions: it costs half a second, and most commands never submit. It is also
not to be trusted with hostile input (a circle of steps raises IndexError, a huge product OverflowError, a
path that is no text TypeError), so limits are checked before it is called and all that it raises becomes a
UserError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

from farm.errors import UserError
from farm.flow.template_text import MAX_INT, check_text, check_tree, shown
from farm.model.frames import MAX_FRAMES
from farm.model.work import MAX_TASKS_PER_JOB
from farm.text import clean

MAX_STEPS: Final = 1_000
MAX_NAME: Final = 255
MAX_PARAMETER_CHARS: Final = 2_000_000
"""Of one value; a long list of frames is text too."""
EXTENSIONS: Final = ("TASK_CHUNKING", "REDACTED_ENV_VARS", "FEATURE_BUNDLE_1", "EXPR", "WRAP_ACTIONS")
"""All that openjd-model 0.13 knows."""
_MAX_LINES: Final = 20
INT_TYPES: Final = ("INT", "CHUNK[INT]")
# What the library is known to raise on bad input, beside its own errors (which are ValueErrors).
_LIBRARY_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)


def create_job(template: dict[str, Any], given: Mapping[str, str]) -> tuple[Any, dict[str, tuple[str, str]]]:
    """The library's job, and all its parameters as (type, text)."""
    from openjd.model import create_job as instantiate
    from openjd.model import preprocess_job_parameters

    check_tree(template, "the template")
    _check_steps(template)
    _check_parameters(given)
    try:
        decoded = _decoded(json.dumps(template))
    except _LIBRARY_ERRORS as error:
        raise UserError("the template is no valid Open Job Description:" + _lines(error)) from error
    try:
        # Empty directories: the paths belong to other machines and are left as they are.
        values = preprocess_job_parameters(
            job_template=decoded,
            job_parameter_values=dict(given),
            job_template_dir=Path(),
            current_working_dir=Path(),
            allow_job_template_dir_walk_up=True,
        )
        parameters = {
            name: (value.type.value, _as_text(name, value.type.value, value.value))
            for name, value in values.items()
        }
    except _LIBRARY_ERRORS as error:
        raise UserError("the job's parameters do not fit its template:" + _lines(error)) from error
    try:
        job = instantiate(job_template=decoded, job_parameter_values=values)
    except _LIBRARY_ERRORS as error:
        told = "" if not given else " with these parameters"
        raise UserError(f"the template makes no job{told}:" + _lines(error)) from error
    _check_ranges(job)
    return job, parameters


@lru_cache(maxsize=64)
def _decoded(template: str) -> Any:
    """The library's reading of a template: most of the making of a job, and one template makes many jobs."""
    from openjd.model import decode_job_template

    return decode_job_template(template=json.loads(template), supported_extensions=EXTENSIONS)


def check_job_template(template: dict[str, Any]) -> None:
    """Raise UserError for a template that no parameters could make a job of."""
    from openjd.model import decode_job_template

    check_tree(template, "the template")
    _check_steps(template)
    try:
        decode_job_template(template=template, supported_extensions=EXTENSIONS)
    except _LIBRARY_ERRORS as error:
        raise UserError("the template is no valid Open Job Description:" + _lines(error)) from error


def is_environment_template(template: Mapping[str, Any]) -> bool:
    return str(template.get("specificationVersion", "")).lower().startswith("environment")


def check_environment_template(template: dict[str, Any]) -> None:
    """Raise UserError for an environment template that is wrong."""
    from openjd.model import decode_environment_template

    check_tree(template, "the environment template")
    try:
        decode_environment_template(template=template, supported_extensions=EXTENSIONS)
    except _LIBRARY_ERRORS as error:
        raise UserError(
            "the environment template is no valid Open Job Description:" + _lines(error)
        ) from error


def iterator(step: Any) -> Any:
    """The library's iterator over a step's tasks, chunks of a fixed size."""
    from openjd.model import StepParameterSpaceIterator

    definitions = {} if step.parameterSpace is None else step.parameterSpace.taskParameterDefinitions
    size = None
    for name, definition in definitions.items():
        if definition.chunks is None:
            continue
        size = int(definition.chunks.defaultTaskCount)
        # Chunks are made by writing the whole range out: 80 MB for a million frames.
        held = _range_length(definition.range)
        if held > MAX_FRAMES:
            raise UserError(
                f"step '{shown(step.name)}': {name} holds {held:,} frames; the most is {MAX_FRAMES:,}"
            )
    return StepParameterSpaceIterator(space=step.parameterSpace, chunks_task_count_override=size)


def length(step: str, iterator: Any) -> int:
    try:
        count = len(iterator)
    except OverflowError:  # beyond what len() can say
        count = MAX_INT
    if count > MAX_TASKS_PER_JOB:
        told = f"{count:,}" if count < MAX_INT else f"more than {10**18:,}"
        raise UserError(
            f"step '{shown(step)}' holds {told} tasks; the most is {MAX_TASKS_PER_JOB:,}: "
            "use chunks of frames, or several jobs"
        )
    return count


def _range_length(values: Any) -> int:
    try:
        return len(values)
    except OverflowError:
        return MAX_INT


def int_values(definition: Any) -> Sequence[int]:
    """Of an INT or CHUNK[INT] parameter that is known to hold no more than MAX_TASKS_PER_JOB values."""
    return [int(value) for value in definition.range]


def edges(values: Any) -> tuple[int, int]:
    """The least and the greatest of a list or an IntRangeExpr."""
    if isinstance(values, list):
        numbers = [int(value) for value in values]
        return min(numbers), max(numbers)
    return values.start, values.end


def _lines(error: Exception) -> str:
    """The library's text, one line for each thing that is wrong."""
    if isinstance(error, OverflowError):
        return "\n  a number or a range in it is too large"
    if not isinstance(error, ValueError):
        told = clean(str(error), limit=200, one_line=True)
        return f"\n  it cannot be read ({type(error).__name__}: {told})"
    text = re.sub(r":\n\t", ": ", str(error))
    lines = [line for line in text.splitlines() if not re.fullmatch(r"\d+ validation errors? for \w+", line)]
    kept = [clean(line.strip(), limit=400, one_line=True) for line in lines[:_MAX_LINES] if line.strip()]
    if len(lines) > _MAX_LINES:
        kept.append(f"and {len(lines) - _MAX_LINES:,} more")
    if any(re.search(r"-> range\b", line) for line in kept):
        kept.append("(a range is text like 1-10, 1-9:2 or 1,5,9-12: rising, and no number twice)")
    return "".join(f"\n  {line}" for line in kept)


def _as_text(name: str, kind: str, value: Any) -> str:
    """A parameter's value as text that the library reads back to the same value."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, list):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = str(value)
    if kind == "INT" and abs(int(text)) > MAX_INT:
        raise ValueError(f"Value for parameter {name} does not fit 64 bits.")
    if kind == "FLOAT" and not math.isfinite(float(text)):
        raise ValueError(f"Value ({text}) for parameter {name} is no finite number.")
    return text


def _check_steps(template: dict[str, Any]) -> None:
    """Limits and the circle test, before the library sees the template. Malformed parts are left to it."""
    steps = template.get("steps")
    if not isinstance(steps, list):
        return
    if len(steps) > MAX_STEPS:
        raise UserError(f"the template has {len(steps):,} steps; the most is {MAX_STEPS:,}")
    needs: dict[str, list[str]] = {}
    for step in steps:
        if isinstance(step, dict) and isinstance(step.get("name"), str):
            listed = step.get("dependencies")
            needs[step["name"]] = [
                entry["dependsOn"]
                for entry in (listed if isinstance(listed, list) else [])
                if isinstance(entry, dict) and isinstance(entry.get("dependsOn"), str)
            ]
    circle = _circle(needs)
    if circle:
        raise UserError(
            "the template's steps wait for each other in a circle: " + " -> ".join(map(shown, circle))
        )


def _circle(needs: Mapping[str, list[str]]) -> list[str]:
    """Names of a circle, the first again at the end; empty when there is none. No recursion: 1,000 steps in
    a row."""
    done: set[str] = set()
    for start in needs:
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, is_leaving = stack.pop()
            if is_leaving:
                done.add(path.pop())
            elif name in path:
                return [*path[path.index(name) :], name]
            elif name in needs and name not in done:
                path.append(name)
                stack.append((name, True))
                stack.extend((other, False) for other in needs[name])
    return []


def _check_parameters(given: Mapping[str, str]) -> None:
    for name, text in given.items():
        if not isinstance(text, str):
            raise UserError(f"parameter {shown(str(name))} must be text, not {type(text).__name__}")
        if len(text) > MAX_PARAMETER_CHARS:
            raise UserError(
                f"parameter {shown(name)} is {len(text):,} characters long; "
                f"the most is {MAX_PARAMETER_CHARS:,}"
            )
        check_text(text, f"parameter {shown(name)}")


def _check_ranges(job: Any) -> None:
    for step in job.steps:
        if step.parameterSpace is None:
            continue
        for name, definition in step.parameterSpace.taskParameterDefinitions.items():
            if definition.type.value not in INT_TYPES:
                continue
            if any(abs(edge) > MAX_INT for edge in edges(definition.range)):
                raise UserError(
                    f"step '{shown(step.name)}': a number in the range of {name} does not fit 64 bits"
                )


def check_paths(parameters: Mapping[str, tuple[str, str]]) -> None:
    """Paths must be absolute: the farm cannot know which directory a relative one starts from.

    Those of a LIST[PATH] may be relative: the library leaves them alone on the client too, so scripts that
    take such a list say themselves what it is relative to.
    """
    for name, (kind, text) in parameters.items():
        if kind != "PATH" or text == "":
            continue
        if clean(text, one_line=True, limit=len(text)) != text:
            raise UserError(f"parameter {name}: the path holds a control character: {shown(text)}")
        if not is_absolute(text):
            raise UserError(f"parameter {name}: '{shown(text)}' is a relative path; give the whole path")


def is_absolute(path: str) -> bool:
    is_uri = re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path) is not None
    return is_uri or PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()
