"""Any command as a job: `farm submit -- povray +Iscene.pov +K{frame} +O{output}`.

`{frame}` and `{frame:04}` stand for the frame, `{output}` for the file that the task writes; `{{` and `}}`
are braces. A placeholder stays inside its argument whatever it holds: no shell reads it. With `{output}` the
attempt writes into a private directory and may safely be started twice (staged); without, the farm cannot
know what it writes, and starts it again only when the first try is proven dead (exclusive).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.errors import UserError
from farm.model.frames import canonical, expand_pattern, has_frame, parse_frames
from farm.model.plugin import Parser, Plugin, Preview, SubmitOptions
from farm.model.work import OutputSpec, Submission
from plugins import templates
from plugins.command.parser import CommandParser
from plugins.film import with_extras
from plugins.output import IMAGE_EXTENSIONS, Target, absolute, refuse_controls, target

MAX_PADDED_FRAMES = 1024
"""The most values an OpenJD list range may have."""

_PIECE = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]|[^{}]+")
_FRAME = re.compile(r"\{frame(?::0?([0-9]{1,2})d?)?\}\Z")


@dataclass(frozen=True, slots=True)
class _Frame:
    """The frame, padded to `digits`."""

    digits: int


@dataclass(frozen=True, slots=True)
class _Output:
    """The path of the task's file."""


_Part = str | _Frame | _Output


def submission(path: Path, options: SubmitOptions) -> Submission:
    """A job that runs `path` (a program's name) with `options.arguments`, once for each frame.

    Raises UserError.
    """
    if options.chunk_size != 1:
        raise UserError("a command runs one frame a task: leave the chunk size at 1")
    program = _program(path, options.cwd)
    words = [list(_parts(word)) for word in (program, *options.arguments)]
    used = [part for word in words for part in word]
    files = _files(options, program, has_output=_Output() in used)
    frames = options.frames
    asks_frame = any(isinstance(part, _Frame) for part in used) or (
        files is not None and has_frame(files.pattern)
    )
    if frames and not asks_frame:
        raise UserError(
            "frames were given, but the command does not use them: put {frame} where the number goes"
        )
    if asks_frame and not frames:
        raise UserError("the command holds a place for the frame, but there are no frames: give --frames")

    literals = templates.Literals()
    padding = _Padding(frames)
    resolved = [_format_string(word, literals, padding, files) for word in words]
    action: dict[str, Any] = {"command": resolved[0]}
    if len(resolved) > 1:
        action["args"] = resolved[1:]
    step: dict[str, Any] = {"name": "run"}
    if frames:
        step["parameterSpace"] = padding.space()
    step["script"] = {"actions": {"onRun": action}}
    definitions = list(literals.definitions)
    parameters = dict(literals.values)
    if files is not None:
        definitions.insert(
            0, {"name": "OutputDir", "type": "PATH", "objectType": "DIRECTORY", "dataFlow": "OUT"}
        )
        parameters["OutputDir"] = files.directory
    template: dict[str, Any] = {"specificationVersion": "jobtemplate-2023-09", "name": "Command"}
    if definitions:
        template["parameterDefinitions"] = definitions
    template["steps"] = [step]
    templates.on_gpus(template, options.gpus)
    made = Submission(
        name=options.name or Path(program).name,
        template=template,
        parameters=parameters,
        settings=options.settings,
        outputs=() if files is None else (_spec(files, frames),),
        kind="command",
        hints={"frames": float(max(len(frames), 1))},
    )
    return with_extras(made, options)


def preview(made: Submission) -> Preview:
    """The command of the first task, with its file in the final directory."""
    step = made.template["steps"][0]
    task = {}
    for definition in step.get("parameterSpace", {}).get("taskParameterDefinitions", ()):
        values = definition["range"]
        task[definition["name"]] = (
            str(values[0]) if isinstance(values, list) else str(min(parse_frames(values)))
        )
    first_output = None
    if made.outputs:
        files = Target(directory=made.parameters["OutputDir"], pattern=made.outputs[0].file_pattern)
        first_output = files.file(int(task["Frame"]) if "Frame" in task else None)
    return Preview(command=templates.first_command(made, task), first_output=first_output)


def parser(frames: tuple[int, ...]) -> Parser:
    return CommandParser()


def version() -> str | None:
    """Every node runs commands."""
    return "1"


def _program(path: Path, cwd: Path) -> str:
    """A bare name is looked for on each node; a path, or a file here that is no program, becomes absolute."""
    name = str(path)
    refuse_controls(name, "the command")
    if name in ("", "."):
        raise UserError("there is no command: give one after --, such as -- povray +Iscene.pov")
    if path.name != name or (shutil.which(name) is None and (cwd / path).is_file()):
        return absolute(path, cwd)
    return name


def _parts(word: str) -> Iterator[_Part]:
    """Literal text and placeholders of one argument."""
    literal = ""
    for match in _PIECE.finditer(word):
        piece = match.group()
        if piece in ("{{", "}}"):
            literal += piece[0]
        elif piece[0] not in "{}":
            literal += piece
        else:
            if literal:
                yield literal
                literal = ""
            yield _placeholder(piece, word)
    if literal:
        yield literal


def _placeholder(piece: str, word: str) -> _Part:
    if piece == "{output}":
        return _Output()
    match = _FRAME.match(piece)
    if match is None:
        raise UserError(
            f"{piece} in the argument {word} is not known: the placeholders are {{frame}}, {{frame:04}} and "
            "{output}; write a brace that is meant as such twice"
        )
    return _Frame(int(match.group(1) or 1))


def _files(options: SubmitOptions, program: str, *, has_output: bool) -> Target | None:
    if not has_output:
        if options.output is not None:
            raise UserError(
                "--output was given, but the command does not use it: put {output} where the file goes"
            )
        return None
    if options.output is None:
        raise UserError("the command holds {output}: give --output, such as --output frames/shot_####.png")
    return target(
        options.output,
        base=options.cwd,
        cwd=options.cwd,
        stem=Path(program).stem,
        frames=options.frames,
        extensions=None,
        default_extension="",
    )


def _spec(files: Target, frames: Sequence[int]) -> OutputSpec:
    return OutputSpec(
        step="run",
        directory_parameter="OutputDir",
        file_pattern=files.pattern,
        frames_parameter="Frame" if frames else None,
        is_image=files.extension in IMAGE_EXTENSIONS,
    )


class _Padding:
    """OpenJD cannot pad numbers: each padded form is a task parameter of its own that goes with the frame."""

    def __init__(self, frames: Sequence[int]) -> None:
        self._frames = sorted(set(frames))
        self._digits: set[int] = set()

    def expression(self, digits: int) -> str:
        """A format string for the frame. Raises UserError when there are too many frames for it."""
        if all(_padded(frame, digits) == str(frame) for frame in self._frames):
            return "{{Task.Param.Frame}}"
        if len(self._frames) > MAX_PADDED_FRAMES:
            raise UserError(
                f"a command can pad the numbers of {MAX_PADDED_FRAMES} frames, not {len(self._frames):,}: "
                "use {frame} and a single # without zeros, or submit the frames in parts"
            )
        self._digits.add(digits)
        return f"{{{{Task.Param.Frame{digits}}}}}"

    def space(self) -> dict[str, Any]:
        """The step's parameter space."""
        if not self._digits:
            return {
                "taskParameterDefinitions": [
                    {"name": "Frame", "type": "INT", "range": canonical(self._frames)}
                ]
            }
        definitions: list[dict[str, Any]] = [{"name": "Frame", "type": "INT", "range": self._frames}]
        for digits in sorted(self._digits):
            texts = [_padded(frame, digits) for frame in self._frames]
            definitions.append({"name": f"Frame{digits}", "type": "STRING", "range": texts})
        names = ", ".join(definition["name"] for definition in definitions)
        return {"taskParameterDefinitions": definitions, "combination": f"({names})"}


def _padded(frame: int, digits: int) -> str:
    return expand_pattern("#" * digits, frame)


def _format_string(
    word: Sequence[_Part], literals: templates.Literals, padding: _Padding, files: Target | None
) -> str:
    texts = []
    for part in word:
        if isinstance(part, _Frame):
            texts.append(padding.expression(part.digits))
        elif isinstance(part, str):
            texts.append(literals.format_string(part, is_whole=len(word) == 1))
        elif files is not None:
            texts.append(_output_string(files, literals, padding.expression))
    return "".join(texts)


def _output_string(files: Target, literals: templates.Literals, expression: Callable[[int], str]) -> str:
    text = "{{Param.OutputDir}}/"
    for run in re.findall(r"#+|[^#]+", files.pattern):
        text += expression(len(run)) if run[0] == "#" else literals.format_string(run, is_whole=False)
    return text


PLUGIN = Plugin(
    name="command",
    extensions=(),
    parser=parser,
    submission=submission,
    preview=preview,
    version=version,
    uses_gpus=True,
)
