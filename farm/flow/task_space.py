"""The tasks of a job by step and index: what each renders, how people call it, which files it writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from farm.errors import UserError
from farm.flow.chunks import cut, packed, unpacked
from farm.flow.outputs import outputs_by_step
from farm.flow.template import INT_TYPES, create_job, edges, int_values, iterator, length
from farm.flow.template_text import shown
from farm.model.frames import MAX_FRAME, canonical, expand_pattern, has_frame, parse_frames, part_name
from farm.model.work import OutputSpec

_MAX_LABEL: Final = 100
_FRAME_NAMES: Final = ("Frame", "Frames")


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
        job, filled = create_job(template, {name: text for name, (_, text) in parameters.items()})
        self._build(job, outputs_by_step(outputs, job, filled))

    @classmethod
    def of_job(cls, job: Any, outputs: Mapping[str, OutputSpec]) -> TaskSpace:
        """Of a job that the library has made; `outputs` by step."""
        space = cls.__new__(cls)
        space._build(job, outputs)
        return space

    def _build(self, job: Any, outputs: Mapping[str, OutputSpec]) -> None:
        self._outputs = dict(outputs)
        self._iterators = {step.name: iterator(step) for step in job.steps}
        self._adaptive = {step.name: found for step in job.steps if (found := _adaptive(step)) is not None}
        self._counts = {
            name: len(self._adaptive[name].first) if name in self._adaptive else length(name, iterator)
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
        return None if name is None else int_values(self._definitions[step][name])

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
        values = int_values(self._definitions[step][output.frames_parameter])
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
                if name in self._definitions[step] and self._definitions[step][name].type.value in INT_TYPES
            )
            name = next(usable, None)
        if name is None:
            return None
        if any(abs(edge) > MAX_FRAME for edge in edges(self._definitions[step][name].range)):
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
    values = tuple(sorted(int_values(definition)))
    is_contiguous = definition.chunks.rangeConstraint.value == "CONTIGUOUS"
    if is_contiguous and values[-1] - values[0] != len(values) - 1:
        return None  # chunks must not reach over the gaps, which only the library minds
    size = int(definition.chunks.defaultTaskCount)
    first = tuple(map(packed, cut(0, len(values), most=size)))
    return _Adaptive(
        parameter=name, values=values, is_contiguous=is_contiguous, target_s=float(target_s), first=first
    )


def _short(kind: str, text: str) -> str:
    if kind == "CHUNK[INT]":
        match = re.fullmatch(r"(-?\d+)-(-?\d+)", text)
        if match is not None and match[1] == match[2]:
            return match[1]  # the library writes a chunk of one as "7-7"
    return text
