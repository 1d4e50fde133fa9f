"""From a submission to steps and tasks: the farm's only door to the library openjd.model.

The library is imported inside functions: it costs half a second, and most commands never submit. It is also
not to be trusted with hostile input (a circle of steps raises IndexError, a huge product OverflowError, a
path that is no text TypeError), so limits are checked before it is called and all that it raises becomes a
UserError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

from farm.errors import UserError
from farm.flow.chunks import cut, packed, unpacked
from farm.flow.classify import classify
from farm.flow.order import parse_order
from farm.flow.template_text import MAX_INT, check_text, check_tree, shown
from farm.model.frames import (
    MAX_FRAME,
    MAX_FRAMES,
    canonical,
    expand_pattern,
    has_frame,
    parse_frames,
    part_name,
)
from farm.model.limits import LIMIT_PREFIX, MAX_LIMIT, check_limit_name
from farm.model.machines import Demand
from farm.model.work import (
    MAX_TASKS_PER_JOB,
    Isolation,
    JobSettings,
    OutputSpec,
    Profile,
    Submission,
    Tag,
)
from farm.text import clean

MAX_STEPS: Final = 1_000
MAX_NAME: Final = 255
MAX_RETRIES: Final = 100
MAX_PARAMETER_CHARS: Final = 2_000_000
"""Of one value; a long list of frames is text too."""
EXTENSIONS: Final = ("TASK_CHUNKING", "REDACTED_ENV_VARS", "FEATURE_BUNDLE_1", "EXPR", "WRAP_ACTIONS")
"""All that openjd-model 0.13 knows."""
PROFILE_ATTRIBUTE: Final = "attr.farm.profile"
"""A host attribute that is none: it tells the step's profile, and no node is asked for it."""
SOFTWARE_ATTRIBUTE: Final = "attr.farm.software"
"""Renderers that a step needs, beyond those of the whole job: allOf [ffmpeg]."""
PROBE_ATTRIBUTE: Final = "attr.farm.probe"
"""anyOf [yes]: the step is a short probe of those that depend on it, and keeps nothing that it writes."""

_MAX_LINES: Final = 20
_MAX_LABEL: Final = 100
_FRAME_NAMES: Final = ("Frame", "Frames")
_INT_TYPES: Final = ("INT", "CHUNK[INT]")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """A step as it will be stored."""

    name: str
    position: int
    depends_on: tuple[str, ...]
    """Names of steps of the same job."""
    demand: Demand
    profile: Profile
    isolation: Isolation
    output: OutputSpec | None
    frames: str | None
    """The frames of the whole step in canonical form; None when it has no frame parameter."""
    task_count: int
    indexes: tuple[int, ...] | None = None
    """Of the tasks; None: 0 to `task_count`."""
    chunk_target_s: float | None = None
    """Waiting tasks are cut anew, so that one takes about so long; None: they stay as they are."""
    by_frame: tuple[str, ...] = ()
    """Those of `depends_on` that are waited for frame by frame, and "#12" for job 12."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job as it will be stored."""

    name: str
    uid: str
    steps: tuple[StepPlan, ...]
    """In the template's order."""
    parameters: dict[str, tuple[str, str]]
    """Job parameter name -> (OpenJD type, value as text), defaults filled in."""
    output_directories: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """What the submitter should know, one line each."""


def plan_job(submission: Submission, *, uid: str) -> JobPlan:
    """Check a submission and lay out its steps. Nothing is stored; no path is looked at.

    Raises UserError for anything wrong with the submission; where several things are wrong with the template
    or its parameters, each has its line.
    """
    _check_name("the job's name", submission.name)
    _check_settings(submission.settings)
    _check_hints(submission.hints)
    for software in submission.software:
        _check_name("a software name", software)
    job, parameters = _create(submission.template, submission.parameters)
    _check_paths(parameters)
    outputs = _outputs_by_step(submission.outputs, job, parameters)
    space = TaskSpace._of(job, outputs)
    warnings: list[str] = []
    steps = []
    total = 0
    for position, step in enumerate(job.steps):
        count = space.count(step.name)
        total += count
        if total > MAX_TASKS_PER_JOB:
            raise UserError(
                f"the job holds more than {MAX_TASKS_PER_JOB:,} tasks (up to step '{shown(step.name)}'); "
                "use chunks of frames, or several jobs"
            )
        demand, tag, is_probe = _demand(step, submission)
        output = outputs.get(step.name)
        if output is not None:
            space.check_output(step.name)
            if is_probe:
                raise UserError(f"step '{shown(step.name)}' is a probe, and keeps no output")
        values = space.frame_values(step.name)
        steps.append(
            StepPlan(
                name=step.name,
                position=position,
                depends_on=tuple(dependency.dependsOn for dependency in step.dependencies or ()),
                demand=demand,
                profile=classify(submission.settings.tag or tag, submission.hints, submission.kind),
                isolation=_isolation(output, is_probe=is_probe),
                output=output,
                frames=None if values is None else canonical(values),
                task_count=count,
                indexes=space.first_indexes(step.name),
                chunk_target_s=space.chunk_target_s(step.name),
            )
        )
        if space.is_adaptive(step.name) and space.chunk_target_s(step.name) is None:
            warnings.append(
                f"step '{shown(step.name)}' asks for chunks of a target run time, and has other parameters "
                "or gaps in its frames: the farm makes chunks of the template's default size"
            )
    directories = dict.fromkeys(parameters[output.directory_parameter][1] for output in submission.outputs)
    return JobPlan(
        name=submission.name,
        uid=uid,
        steps=tuple(steps),
        parameters=parameters,
        output_directories=tuple(directories),
        warnings=tuple(warnings),
    )


def _isolation(output: OutputSpec | None, *, is_probe: bool) -> Isolation:
    if output is not None:
        return Isolation.STAGED
    return Isolation.PROBE if is_probe else Isolation.EXCLUSIVE


# --- the tasks of a job -------------------------------------------------------------------------------------


class TaskSpace:
    """The tasks of a job by step and index, made when asked for. Build it once per job and keep it.

    The index order is that of the library's iterator, which may change between versions of the library: what
    a task *is* must be stored as its parameter values once it has been leased.
    """

    def __init__(
        self,
        template: dict[str, Any],
        parameters: Mapping[str, tuple[str, str]],
        outputs: Iterable[OutputSpec] = (),
    ) -> None:
        """`parameters` as `JobPlan.parameters` has them. Raises UserError as `plan_job` does."""
        job, filled = _create(template, {name: text for name, (_, text) in parameters.items()})
        self._build(job, _outputs_by_step(outputs, job, filled))

    @classmethod
    def _of(cls, job: Any, outputs: Mapping[str, OutputSpec]) -> TaskSpace:
        space = cls.__new__(cls)
        space._build(job, outputs)
        return space

    def _build(self, job: Any, outputs: Mapping[str, OutputSpec]) -> None:
        self._outputs = dict(outputs)
        self._iterators = {step.name: _iterator(step) for step in job.steps}
        self._adaptive = {step.name: found for step in job.steps if (found := _adaptive(step)) is not None}
        self._counts = {
            name: len(self._adaptive[name].first) if name in self._adaptive else _length(name, iterator)
            for name, iterator in self._iterators.items()
        }
        self._definitions: dict[str, dict[str, Any]] = {
            step.name: {}
            if step.parameterSpace is None
            else dict(step.parameterSpace.taskParameterDefinitions)
            for step in job.steps
        }
        self._frame_parameters = {name: self._frame_parameter(name) for name in self._iterators}

    @property
    def steps(self) -> tuple[str, ...]:
        """Names, in the template's order."""
        return tuple(self._iterators)

    def count(self, step: str) -> int:
        """How many tasks the step has; 1 when it has no parameters."""
        return self._counts[step]

    def parameters(self, step: str, index: int) -> dict[str, tuple[str, str]]:
        """Task parameter name -> (OpenJD type, value as text), of task `index` (from 0). Raises
        IndexError."""
        if step in self._adaptive:
            adaptive = self._adaptive[step]
            return {adaptive.parameter: ("CHUNK[INT]", adaptive.text(index))}
        if not 0 <= index < self._counts[step]:
            raise IndexError(f"step {step} has {self._counts[step]} tasks, no index {index}")
        definitions = self._definitions[step]
        found = self._iterators[step][index]
        return {name: (found[name].type.value, found[name].value) for name in definitions}

    def label(self, step: str, index: int) -> str:
        """For people: "7", "1-4", "Frame=7 Tile=2". Empty for the one task of a step without parameters."""
        values = {name: _short(kind, text) for name, (kind, text) in self.parameters(step, index).items()}
        frame = values.get(self._frame_parameters[step] or "")
        if frame is not None:
            # Padded copies of the frame ("0007" beside 7) say nothing new.
            values = {n: text for n, text in values.items() if text == frame or not _is_padded(text, frame)}
        if len(values) == 1:
            told = next(iter(values.values()))
        else:
            told = " ".join(f"{name}={value}" for name, value in values.items())
        return told if len(told) <= _MAX_LABEL else told[: _MAX_LABEL - 1] + "…"

    def frames(self, step: str, index: int) -> tuple[int, ...]:
        """The frames of a task: of the output's frame parameter, else of one called Frame or Frames."""
        name = self._frame_parameters[step]
        if name is None:
            return ()
        kind, text = self.parameters(step, index)[name]
        return (int(text),) if kind == "INT" else parse_frames(text)

    def files(self, step: str, index: int) -> tuple[str, ...]:
        """Names of the files a task is expected to write, relative to its output directory."""
        output = self._outputs.get(step)
        if output is None:
            return ()
        if output.frames_parameter is None:
            return (output.file_pattern,)
        names = tuple(expand_pattern(output.file_pattern, frame) for frame in self.frames(step, index))
        if output.part_parameter is None:
            return names
        part = int(self.parameters(step, index)[output.part_parameter][1])
        return tuple(part_name(name, part) for name in names)

    def is_adaptive(self, step: str) -> bool:
        """Whether the template asks for chunks of a target run time (which we make of the default size)."""
        return any(
            definition.chunks is not None and int(definition.chunks.targetRuntimeSeconds or 0) > 0
            for definition in self._definitions[step].values()
        )

    def chunk_target_s(self, step: str) -> float | None:
        """Of a step whose waiting tasks are cut anew while it runs."""
        return self._adaptive[step].target_s if step in self._adaptive else None

    def first_indexes(self, step: str) -> tuple[int, ...] | None:
        """Of the tasks that such a step has at first; None for all others: theirs are 0 to `count`."""
        return self._adaptive[step].first if step in self._adaptive else None

    def indexes(self, step: str) -> Sequence[int]:
        """Of the step's tasks, as they are at first."""
        return self._adaptive[step].first if step in self._adaptive else range(self._counts[step])

    def frame_values(self, step: str) -> Sequence[int] | None:
        """The frames of the whole step, as the template lists them; None when it has no frame parameter."""
        name = self._frame_parameters[step]
        return None if name is None else _int_values(self._definitions[step][name])

    def frame_parameter(self, step: str) -> str | None:
        """The task parameter that holds the frames; None when the step has none."""
        return self._frame_parameters[step]

    def check_output(self, step: str) -> None:
        """Raise UserError when two tasks of the step would write the same file, or a task an impossible
        one."""
        output = self._outputs[step]
        where = f"the output of step '{shown(step)}'"
        if output.frames_parameter is None:
            if has_frame(output.file_pattern):
                raise UserError(f"{where} has # in its file name but names no frame parameter")
            if self._counts[step] > 1:
                raise UserError(f"{where}: {self._counts[step]:,} tasks would write the same file")
            return
        values = _int_values(self._definitions[step][output.frames_parameter])
        if len(values) > 1 and not has_frame(output.file_pattern):
            raise UserError(
                f"{where}: all frames would be written to '{shown(output.file_pattern)}'; "
                "put #### where the frame number goes"
            )
        told_apart = (output.frames_parameter, output.part_parameter)
        others = [name for name in self._definitions[step] if name not in told_apart]
        if len(set(values)) < len(values) or (others and self._repeats_frames(step)):
            told = f"tasks that differ in {', '.join(others)} only" if others else "tasks of the same frame"
            raise UserError(f"{where}: {told} would write the same file '{shown(output.file_pattern)}'")

    def _repeats_frames(self, step: str) -> bool:
        seen: set[int] = set()
        for index in range(self._counts[step]):
            for frame in self.frames(step, index):
                if frame in seen:
                    return True
                seen.add(frame)
        return False

    def _frame_parameter(self, step: str) -> str | None:
        output = self._outputs.get(step)
        if output is not None and output.frames_parameter is not None:
            name: str | None = output.frames_parameter
        else:
            usable = (
                name
                for name in _FRAME_NAMES
                if name in self._definitions[step] and self._definitions[step][name].type.value in _INT_TYPES
            )
            name = next(usable, None)
        if name is None:
            return None
        if any(abs(edge) > MAX_FRAME for edge in _edges(self._definitions[step][name].range)):
            raise UserError(
                f"step '{shown(step)}': frames of {name} lie between -{MAX_FRAME:,} and {MAX_FRAME:,}"
            )
        return name


def _is_padded(text: str, frame: str) -> bool:
    """`text` is the frame's number with zeros in front."""
    sign = "-" if frame.startswith("-") else ""
    digits = text.removeprefix(sign)
    return (
        text.startswith(sign)
        and digits.isdigit()
        and digits.lstrip("0") == frame.removeprefix(sign).lstrip("0")
    )


def _iterator(step: Any) -> Any:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Adaptive:
    """A step of chunks that are cut anew: see `farm.flow.chunks`."""

    parameter: str
    values: tuple[int, ...]
    """Rising."""
    is_contiguous: bool
    target_s: float
    first: tuple[int, ...]

    def text(self, index: int) -> str:
        """The value of the task parameter. Raises IndexError."""
        chunk = unpacked(index)
        if not 0 < chunk.length <= len(self.values) - chunk.first:
            raise IndexError(f"{len(self.values)} frames have no chunk {chunk.first}+{chunk.length}")
        values = self.values[chunk.first : chunk.end]
        return f"{values[0]}-{values[-1]}" if self.is_contiguous else canonical(values)


def _adaptive(step: Any) -> _Adaptive | None:
    """None for a step of fixed tasks, or with other parameters beside the frames."""
    definitions = {} if step.parameterSpace is None else step.parameterSpace.taskParameterDefinitions
    if len(definitions) != 1:
        return None
    ((name, definition),) = definitions.items()
    target_s = 0 if definition.chunks is None else int(definition.chunks.targetRuntimeSeconds or 0)
    if target_s <= 0:
        return None
    values = tuple(sorted(_int_values(definition)))
    is_contiguous = definition.chunks.rangeConstraint.value == "CONTIGUOUS"
    if is_contiguous and values[-1] - values[0] != len(values) - 1:
        return None  # chunks must not reach over the gaps, which only the library minds
    size = int(definition.chunks.defaultTaskCount)
    first = tuple(map(packed, cut(0, len(values), most=size)))
    return _Adaptive(
        parameter=name, values=values, is_contiguous=is_contiguous, target_s=float(target_s), first=first
    )


def _length(step: str, iterator: Any) -> int:
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


def _int_values(definition: Any) -> Sequence[int]:
    """Of an INT or CHUNK[INT] parameter that is known to hold no more than MAX_TASKS_PER_JOB values."""
    return [int(value) for value in definition.range]


def _edges(values: Any) -> tuple[int, int]:
    """The least and the greatest of a list or an IntRangeExpr."""
    if isinstance(values, list):
        numbers = [int(value) for value in values]
        return min(numbers), max(numbers)
    return values.start, values.end


def _short(kind: str, text: str) -> str:
    if kind == "CHUNK[INT]":
        match = re.fullmatch(r"(-?\d+)-(-?\d+)", text)
        if match is not None and match[1] == match[2]:
            return match[1]  # the library writes a chunk of one as "7-7"
    return text


# --- the template and its parameters ------------------------------------------------------------------------


def _create(template: dict[str, Any], given: Mapping[str, str]) -> tuple[Any, dict[str, tuple[str, str]]]:
    """The library's job, and all its parameters as (type, text)."""
    from openjd.model import create_job, decode_job_template, preprocess_job_parameters

    check_tree(template, "the template")
    _check_steps(template)
    _check_parameters(given)
    try:
        decoded = decode_job_template(template=template, supported_extensions=EXTENSIONS)
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
        job = create_job(job_template=decoded, job_parameter_values=values)
    except _LIBRARY_ERRORS as error:
        told = "" if not given else " with these parameters"
        raise UserError(f"the template makes no job{told}:" + _lines(error)) from error
    _check_ranges(job)
    return job, parameters


def is_environment_template(template: Mapping[str, Any]) -> bool:
    return str(template.get("specificationVersion", "")).lower().startswith("environment")


def check_job_template(template: dict[str, Any]) -> None:
    """Raise UserError for a template that no parameters could make a job of."""
    from openjd.model import decode_job_template

    check_tree(template, "the template")
    _check_steps(template)
    try:
        decode_job_template(template=template, supported_extensions=EXTENSIONS)
    except _LIBRARY_ERRORS as error:
        raise UserError("the template is no valid Open Job Description:" + _lines(error)) from error


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
            if definition.type.value not in _INT_TYPES:
                continue
            if any(abs(edge) > MAX_INT for edge in _edges(definition.range)):
                raise UserError(
                    f"step '{shown(step.name)}': a number in the range of {name} does not fit 64 bits"
                )


def _check_paths(parameters: Mapping[str, tuple[str, str]]) -> None:
    """Paths must be absolute: the farm cannot know which directory a relative one starts from.

    Those of a LIST[PATH] may be relative: the library leaves them alone on the client too, so scripts that
    take such a list say themselves what it is relative to.
    """
    for name, (kind, text) in parameters.items():
        if kind != "PATH" or text == "":
            continue
        if clean(text, one_line=True, limit=len(text)) != text:
            raise UserError(f"parameter {name}: the path holds a control character: {shown(text)}")
        if not _is_absolute(text):
            raise UserError(f"parameter {name}: '{shown(text)}' is a relative path; give the whole path")


def _is_absolute(path: str) -> bool:
    is_uri = re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path) is not None
    return is_uri or PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()


# --- outputs ------------------------------------------------------------------------------------------------


def _outputs_by_step(
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
        if not directory or not _is_absolute(directory) or "://" in directory:
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
            if defined[output.frames_parameter].type.value not in _INT_TYPES:
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
    if _is_absolute(pattern) or any(part in ("", ".", "..") for part in parts) or ":" in parts[0]:
        raise UserError(f"{told} must lie inside the output directory: no '..', no leading '/'")


def _nearest(what: str, name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    hint = f"; did you mean '{shown(close[0])}'?" if close else ""
    return f"the {what} '{shown(name)}', which the template does not have{hint}"


# --- demand -------------------------------------------------------------------------------------------------


def _demand(step: Any, submission: Submission) -> tuple[Demand, Tag | None, bool]:
    """What the step asks of a node, the profile its author wrote into it, and whether it is a probe.

    OpenJD's rules: names and attribute values compare without regard to case; gpu.memory is a least size for
    each GPU in MiB, not a pool; memory is MiB. A `max` never refuses a node that has more. Half a GPU asks
    for a whole one. OpenJD reserves one vcpu for a step that names none; here such a step takes a slot alone,
    or a farm of single-slot nodes would have to count cores.
    """
    least: dict[str, Decimal] = {}
    any_of: list[tuple[str, tuple[str, ...]]] = []
    all_of: list[tuple[str, tuple[str, ...]]] = []
    software = set(submission.software)
    tag: Tag | None = None
    is_probe = False
    required = step.hostRequirements
    for amount in (required.amounts or ()) if required else ():
        least[str(amount.name).lower()] = Decimal(amount.min if amount.min is not None else 0)
    for attribute in (required.attributes or ()) if required else ():
        name = str(attribute.name).lower()
        wanted_any = tuple(str(value).lower() for value in attribute.anyOf or ())
        wanted_all = tuple(str(value).lower() for value in attribute.allOf or ())
        if name == PROFILE_ATTRIBUTE:
            tag = _tag(step.name, {*wanted_any, *wanted_all})
            continue
        if name == PROBE_ATTRIBUTE:
            is_probe = "yes" in (*wanted_any, *wanted_all)
            continue
        if name == SOFTWARE_ATTRIBUTE:
            if wanted_any:
                raise UserError(f"step '{shown(step.name)}': {SOFTWARE_ATTRIBUTE} takes allOf, not anyOf")
            software.update(wanted_all)
            continue
        if wanted_any:
            any_of.append((name, tuple(sorted(set(wanted_any)))))
        if wanted_all:
            all_of.append((name, tuple(sorted(set(wanted_all)))))
    for limit, amount in submission.settings.limits.items():
        key = LIMIT_PREFIX + check_limit_name(limit)
        least[key] = max(least.get(key, Decimal(0)), Decimal(amount))
    vram_mib = math.ceil(least.pop("amount.worker.gpu.memory", Decimal(0)))
    gpus = math.ceil(least.pop("amount.worker.gpu", Decimal(0)))
    demand = Demand(
        pool=submission.settings.pool,
        cpus=float(least.pop("amount.worker.vcpu", Decimal(0))),
        memory_mib=math.ceil(least.pop("amount.worker.memory", Decimal(0))),
        gpus=max(gpus, 1) if vram_mib > 0 else gpus,
        vram_mib=vram_mib,
        any_of=tuple(sorted(any_of)),
        all_of=tuple(sorted(all_of)),
        amounts=tuple(sorted((name, float(value)) for name, value in least.items() if value > 0)),
        software=tuple(sorted(software)),
    )
    return demand, tag, is_probe


def _tag(step: str, values: set[str]) -> Tag:
    strange = sorted(values - {tag.value for tag in Tag})
    if strange:
        raise UserError(
            f"step '{shown(step)}': {PROFILE_ATTRIBUTE} is '{strange[0]}'; it is one of {', '.join(Tag)}"
        )
    if {Tag.COMPUTE.value, Tag.BANDWIDTH.value} <= values:
        return Tag.BALANCED
    return Tag(min(values))


# --- settings -----------------------------------------------------------------------------------------------


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise UserError(f"{what} is empty")
    if len(name) > MAX_NAME:
        raise UserError(f"{what} is {len(name):,} characters long; the most is {MAX_NAME}")
    if clean(name, one_line=True) != name:
        raise UserError(f"{what} holds a control character: '{shown(name)}'")


def _check_settings(settings: JobSettings) -> None:
    _check_range("the priority", settings.priority, 0, 100)
    _check_range("the retries of a task", settings.max_retries, 0, MAX_RETRIES)
    _check_range("the failed tasks allowed", settings.max_failed_tasks, 0, MAX_TASKS_PER_JOB)
    if settings.max_running is not None:
        _check_range("the tasks running at once", settings.max_running, 1, MAX_TASKS_PER_JOB)
    for name, amount in settings.limits.items():
        check_limit_name(name)
        _check_range(f"what a task takes of limit {shown(name)}", amount, 1, MAX_LIMIT)
    for job_id in settings.depends_on:
        _check_range("the job waited for", job_id, 1, MAX_INT)
    if settings.pool is not None:
        for pool in settings.pool.split(","):
            _check_name("the pool's name", pool)
    if settings.user:
        _check_name("the user's name", settings.user)
    if settings.order and parse_order(settings.order) != settings.order:
        raise UserError(f"the order '{shown(settings.order)}' must be written {parse_order(settings.order)}")
    if settings.project:
        _check_name("the project's name", settings.project)
    timeout_s = settings.timeout_s
    if timeout_s is not None and not (math.isfinite(timeout_s) and timeout_s > 0):
        raise UserError(f"the timeout is {timeout_s} s; give a number of seconds above 0, or none")


def _check_range(what: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{what}: {shown(str(value))} is no whole number from {least:,} to {most:,}")


def _check_hints(hints: Mapping[str, float | str]) -> None:
    if len(hints) > 100:
        raise UserError(f"there are {len(hints):,} hints; the most is 100")
    for name, value in hints.items():
        _check_name("a hint's name", name)
        if isinstance(value, str):
            if len(value) > MAX_NAME:
                raise UserError(f"the hint {name} is longer than {MAX_NAME} characters")
            check_text(value, f"the hint {name}")
        elif not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"the hint {name} is {value}, which is no finite number")
