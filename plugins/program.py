"""Renderers that are started once for each frame, with an argument list: most of them.

A plugin for one says what its files are called, how it is started, and what its lines mean (`Lines`); the
rest is here. `docs/plugins.md` has an example.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.errors import UserError
from farm.model.frames import canonical, expand_pattern, has_frame, parse_frames
from farm.model.plugin import Plugin, Preview, Reading, SubmitOptions
from farm.model.states import Outcome
from farm.model.work import OutputSpec, Submission
from plugins import licences, markers, templates
from plugins.film import with_extras
from plugins.output import Target, absolute, refuse_controls, target

_HERE = Path(__file__).parent
_LIMIT = 500
"""Characters of a line that are shown to people."""
_READ = 2000
"""Characters of a line that are looked at: patterns may go back and forth in it."""
ARGUMENTS = "@ARGUMENTS@"
"""Where, among the words of a command, the artist's own arguments go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """A line that means failure, whatever the exit status says."""

    pattern: re.Pattern[str]
    outcome: Outcome | None = None
    is_final: bool = False
    """Trying again cannot help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """What a renderer prints. Patterns are matched from the start of the line, without blanks around it."""

    progress: tuple[re.Pattern[str], ...] = ()
    """One group: percent of the frame. Two groups: so many of so many."""
    bar: re.Pattern[str] | None = None
    """One group: a progress bar, filled from the left with `=`, such as "=====    "."""
    message: tuple[re.Pattern[str], ...] = ()
    """What it does now; the first group, or all of it, is shown."""
    warning: tuple[re.Pattern[str], ...] = ()
    """As `message`; kept with the task."""
    fatal: tuple[Fatal, ...] = ()
    size: re.Pattern[str] | None = None
    """Two groups: width and height of the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A renderer."""

    name: str
    extensions: tuple[str, ...]
    """Of its scenes, in lower case with the dot."""
    command: tuple[str, ...]
    """The words that start it, with the tokens of `run_program.py`, and ARGUMENTS."""
    lines: Lines = Lines()
    formats: tuple[str, ...] = (".png",)
    """Extensions that it can write, the usual one first; empty: it writes where the scene says."""
    frame_words: tuple[str, ...] = ()
    """Inserted before ARGUMENTS when there are frames."""
    needs_frames: bool = False
    """A scene of it is an animation: without --frames nobody knows which."""
    can_animate: bool = True
    """It takes a frame number, or reads a scene for each frame."""
    scripts: tuple[tuple[str, Path], ...] = ()
    """(name, file) of what travels with the job; `@SCRIPT:name@` is a word that becomes its path."""
    refused: tuple[tuple[str, str], ...] = ()
    """(argument, what to use instead): options that the farm sets itself."""
    version_command: tuple[str, ...] = ()
    version_pattern: re.Pattern[str] = re.compile(r"([0-9]+(?:\.[0-9]+)+)")
    debian_package: str = ""
    """What `apt install` brings it on Debian; empty: its maker brings it."""
    licence_statuses: tuple[int, ...] = ()
    """Exit statuses that mean that there was no licence."""
    least_gpus: int | None = None
    """GPUs that each task has, when nothing else is asked for; None: it renders on processors alone."""
    check: Callable[[Path, SubmitOptions], None] | None = None
    """Raises UserError for what it cannot do."""

    @property
    def is_redirected(self) -> bool:
        return bool(self.formats)


def plugin(program: Program) -> Plugin:
    """The plugin for `program`."""
    return Plugin(
        name=program.name,
        extensions=program.extensions,
        parser=lambda frames: ProgramParser(program.lines, frames),
        submission=lambda path, options: submission(program, path, options),
        preview=preview,
        version=lambda: told_version(program.version_command, program.version_pattern),
        debian_package=program.debian_package,
        licence_statuses=program.licence_statuses,
        uses_gpus=program.least_gpus is not None,
    )


def told_version(words: Sequence[str], pattern: re.Pattern[str]) -> str | None:
    """What a program says of itself, by the first group of `pattern`; None when it is not there."""
    if not words or shutil.which(words[0]) is None:
        return None
    try:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = pattern.search(done.stdout.decode("utf-8", "replace"))
    return match.group(1) if match is not None else None


# --- the job ------------------------------------------------------------------------------------------


def submission(program: Program, path: Path, options: SubmitOptions) -> Submission:
    """A job of one task a frame (or chunk of frames), or of one still. Raises UserError.

    A scene whose file name holds a `#` run is one file for each frame.
    """
    scene = absolute(path, options.cwd)
    refuse_controls(scene, "the path of the scene")
    frames = options.frames
    if options.chunk_size < 1:
        raise UserError(f"a chunk of {options.chunk_size} frames cannot be: give 1 or more")
    if frames and not program.can_animate and not has_frame(scene):
        raise UserError(f"{program.name} renders one picture of a scene: leave --frames away")
    if not frames and (program.needs_frames or has_frame(Path(scene).name)):
        raise UserError(f"{Path(scene).name} does not tell its frames: give --frames, such as 1-250")
    first = expand_pattern(scene, frames[0]) if frames else scene
    if not Path(first).is_file():
        raise UserError(f"{first} is not a file" if Path(first).exists() else f"{first} does not exist")
    if program.check is not None:
        program.check(Path(first), options)
    files = _files(program, scene, options)
    template = _template(program, options, frames)
    literals = templates.Literals()
    args = template["steps"][0]["script"]["actions"]["onRun"]["args"]
    for argument in options.arguments:
        _refuse(program, argument)
        args.insert(args.index(ARGUMENTS), literals.format_string(argument))
    args.remove(ARGUMENTS)
    template["parameterDefinitions"] += literals.definitions
    templates.on_gpus(template, max(options.gpus, program.least_gpus or 0))
    parameters = {"SceneFile": scene, **literals.values}
    if frames:
        parameters["Frames"] = canonical(frames)
        if options.chunk_size > 1:
            parameters["ChunkSize"] = str(options.chunk_size)
    if files is not None:
        parameters |= {"OutputDir": files.directory, "OutputPattern": files.pattern}
    made = Submission(
        name=options.name or Path(scene).stem.rstrip("#._-") or program.name,
        template=template,
        parameters=parameters,
        settings=options.settings,
        outputs=() if files is None else (_spec(files, frames),),
        kind=program.name,
        hints={
            "engine": program.name,
            "frames": float(max(len(frames), 1)),
            "scene_mib": round(Path(first).stat().st_size / 2**20, 3),
        },
        software=(program.name,),
    )
    return with_extras(made, options)


def preview(made: Submission) -> Preview:
    """What the first task runs: the renderer's own command, as `run_program.py` starts it."""
    frames = sorted(parse_frames(made.parameters["Frames"])) if "Frames" in made.parameters else []
    chunk = templates.first_chunk(frames, int(made.parameters.get("ChunkSize", "1"))) if frames else ""
    first = None
    if made.outputs:
        files = Target(directory=made.parameters["OutputDir"], pattern=made.parameters["OutputPattern"])
        first = files.file(frames[0] if frames else None)
    return Preview(command=templates.first_command(made, {"Frame": chunk}), first_output=first)


def _files(program: Program, scene: str, options: SubmitOptions) -> Target | None:
    if not program.is_redirected:
        if options.output is not None:
            raise UserError(f"{program.name} writes where the scene says: leave --output away")
        return None
    path = Path(scene)
    stem = path.stem.replace("#", "").rstrip("._-") or program.name
    return target(
        options.output if options.output is not None else f"//render/{stem}{program.formats[0]}",
        base=path.parent,
        cwd=options.cwd,
        stem=stem,
        frames=options.frames,
        extensions=program.formats,
        default_extension=program.formats[0],
    )


def _spec(files: Target, frames: Sequence[int]) -> OutputSpec:
    return OutputSpec(
        step="render",
        directory_parameter="OutputDir",
        file_pattern=files.pattern,
        frames_parameter="Frame" if frames else None,
        is_image=files.extension not in (".pdf", ".svg", ".ps", ".eps"),
    )


def _refuse(program: Program, argument: str) -> None:
    for option, instead in program.refused:
        if argument == option or (option.endswith("=") and argument.startswith(option)):
            raise UserError(f"the farm sets {argument} itself: use {instead}")


def _template(program: Program, options: SubmitOptions, frames: Sequence[int]) -> dict[str, Any]:
    """`program.yaml` with the program's command, for frames or for a still."""
    template = templates.load(_HERE / "program.yaml", {"Run": _HERE / "run_program.py"})
    step = template["steps"][0]
    script = step["script"]
    words = list(program.command)
    if frames:
        at = words.index(ARGUMENTS)
        words[at:at] = program.frame_words
    for name, path in program.scripts:
        embedded = f"Script{name.capitalize()}"
        script["embeddedFiles"].append(
            {
                "name": embedded,
                "filename": path.name,
                "type": "TEXT",
                "data": path.read_text(encoding="utf-8"),
            }
        )
        words = [f"{{{{Task.File.{embedded}}}}}" if word == f"@SCRIPT:{name}@" else word for word in words]
    args = script["actions"]["onRun"]["args"]
    gone = set()
    if not program.is_redirected:
        gone |= {"OutputDir", "OutputPattern"}
    if not frames:
        gone |= {"Frames", "ChunkSize"}
        del step["parameterSpace"], template["extensions"]
        args = [text for text in args if "Task.Param.Frame" not in text]
    args = [text for text in args if not any(f"{{{{Param.{name}}}}}" in text for name in gone)]
    script["actions"]["onRun"]["args"] = [*args, *words]
    template["parameterDefinitions"] = [p for p in template["parameterDefinitions"] if p["name"] not in gone]
    if frames and options.chunk_size == 1:
        template = templates.unchunked(template)
    return template


# --- what it prints -----------------------------------------------------------------------------------


@dataclass(slots=True)
class ProgramParser:
    """One attempt's output: the markers of `run_program.py`, and the program's own lines."""

    lines: Lines
    frames: tuple[int, ...] = ()
    _done: int = 0
    _count: int = 1
    _fraction: float = 0.0
    _warned: set[str] = field(default_factory=set)

    def feed(self, line: str) -> Reading | None:
        """None for a line that says nothing new."""
        line = line.strip()[:_READ]
        marker = markers.read(line)
        if marker is not None:
            return self._marker(marker)
        for fatal in self.lines.fatal:
            if match := fatal.pattern.match(line):
                return Reading(fatal=_shown(match), outcome=fatal.outcome, is_final=fatal.is_final)
        for pattern in self.lines.warning:
            if match := pattern.match(line):
                return self._warn(_shown(match))
        if (inner := self._inner(line)) is not None:
            return Reading(fraction=self._advance(inner), message=line[:_LIMIT], is_rendering=True)
        if self.lines.size is not None and (match := self.lines.size.match(line)):
            return Reading(width=int(match.group(1)), height=int(match.group(2)))
        for pattern in self.lines.message:
            if match := pattern.match(line):
                return Reading(message=_shown(match))
        return Reading(message=line[:_LIMIT], is_waiting_for_licence=True) if licences.waits(line) else None

    def _marker(self, marker: markers.Marker) -> Reading | None:
        if marker.key == "error":
            is_full = "is the disk full?" in marker.rest
            return Reading(fatal=marker.rest[:_LIMIT], outcome=Outcome.STORAGE if is_full else None)
        position = markers.position(marker.rest)
        if position is None or marker.key not in ("frame", "saved"):
            return None
        self._count = position.count
        self._done = position.index - (marker.key == "frame")
        is_new = marker.key == "frame"
        message = f"frame {position.what} ({position.index} of {position.count})" if is_new else ""
        return Reading(fraction=self._advance(0.0), message=message, is_rendering=True)

    def _inner(self, line: str) -> float | None:
        """The part of the present frame."""
        for pattern in self.lines.progress:
            if match := pattern.match(line):
                numbers = [float(group) for group in match.groups()[:2]]
                part, whole = numbers if len(numbers) == 2 else (numbers[0], 100.0)
                return part / whole if whole else 0.0
        if self.lines.bar is not None and (match := self.lines.bar.match(line)):
            bar = match.group(1)
            return bar.count("=") / len(bar) if bar else 0.0
        return None

    def _advance(self, inner: float) -> float:
        """Never goes back: many programs count to 100 % once for each pass."""
        done = (self._done + min(inner, 1.0)) / max(self._count, 1)
        self._fraction = max(self._fraction, min(done, 1.0))
        return self._fraction

    def _warn(self, text: str) -> Reading | None:
        """Each text once."""
        if text in self._warned or len(self._warned) >= 100:
            return None
        self._warned.add(text)
        return Reading(warning=text)


def _shown(match: re.Match[str]) -> str:
    return (match.group(1) if match.lastindex else match.string)[:_LIMIT]
