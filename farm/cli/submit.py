"""`farm submit`: from what was typed to a submission, what it would write, and what to say about it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from farm.cli.bundle import SUFFIXES, Bundle, bundle_submission, read_bundle, read_parameters
from farm.cli.plugins import COMMAND, load_plugins, plugin_for
from farm.cli.show import shown
from farm.errors import UserError
from farm.flow.bundle_settings import read_limit_needs
from farm.flow.order import parse_order
from farm.flow.submit import plan_job
from farm.flow.task_space import TaskSpace
from farm.model.frames import describe, expand_pattern, has_frame, parse_frames, part_name
from farm.model.ids import JobId
from farm.model.plugin import Plugin, Preview, SubmitOptions
from farm.model.stalls import StallPolicy
from farm.model.work import JobSettings, Submission, Tag
from farm.text import plural

SHOWN_FILES: Final = 3
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S: Final = 365 * 86400.0
_TIME: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd]?)")
_WHOLE: Final = re.compile(r"\{\{\s*(?:Raw)?Param\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_EXPRESSION: Final = re.compile(r"\{\{\s*(.+?)\s*\}\}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was typed after `farm submit`. None: not given."""

    paths: tuple[str, ...] = ()
    rest: tuple[str, ...] | None = None
    """What stood after `--`."""
    parameters: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    frames: str | None = None
    output: str | None = None
    name: str | None = None
    priority: int | None = None
    user: str | None = None
    project: str | None = None
    is_preempting: bool = False
    pool: str | None = None
    is_paused: bool = False
    retries: int | None = None
    max_running: int | None = None
    max_failed: int | None = None
    limits: tuple[str, ...] = ()
    """`NAME` or `NAME=N` each."""
    depends_on: tuple[str, ...] = ()
    chunk_size: int | None = None
    chunk_s: str | None = None
    """A time: "300", "5m"."""
    profile: str | None = None
    is_reverse: bool = False
    order: str | None = None
    is_frame_by_frame: bool = False
    hooks: tuple[str, ...] = ()
    is_overwrite: bool = False
    is_trusting: bool = False
    timeout: str | None = None
    on_stall: str | None = None
    is_preview_first: bool = False
    is_probed: bool = False
    gpus: int | None = None
    is_cold: bool = False
    tiles: str | None = None
    """Columns x rows: "2x2"."""
    sample_chunks: int | None = None
    film: str | None = None
    """File name of a film at the end; empty: named after the frames."""
    film_rate: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    submission: Submission
    plugin: Plugin | None
    """Who shows what it would run; None: an OpenJD template."""
    notes: tuple[str, ...] = ()


def make(wish: Wish, *, cwd: Path, login: str) -> Made:
    """The submission for what was typed. Reads the scene, the bundle and its files; changes nothing.

    `cwd` is absolute. `login`: the user when none is given. Raises UserError.
    """
    chosen = chosen_settings(wish)
    if len(wish.paths) > 1:
        raise UserError(
            f"one scene a job, but there are {len(wish.paths)}: {shown(' '.join(wish.paths))}; "
            "to run a command, put -- before it: farm submit -- povray +Iscene.pov"
        )
    if not wish.paths:
        return _command(wish, chosen, cwd=cwd, login=login)
    typed = wish.paths[0]
    path = Path(os.path.normpath(cwd / Path(typed).expanduser()))
    _check_path(path, typed)
    if path.is_dir() or path.suffix.lower() in SUFFIXES:
        environments = [cwd / Path(text).expanduser() for text in wish.environments]
        bundle = read_bundle(path, given=read_parameters(wish.parameters, cwd), environments=environments)
        submission = _bundle(
            bundle, wish, chosen | _user(bundle.settings | chosen, login), path=path, cwd=cwd
        )
        # All that is wrong with a template is told here, before its files are looked for.
        plan = plan_job(submission, uid="")
        return Made(submission=submission, plugin=None, notes=bundle.notes + plan.warnings)
    plugins, broken = load_plugins()
    plugin = plugin_for(path, plugins)
    _refuse_parameters(wish)
    options = _options(wish, chosen | _user(chosen, login), cwd=cwd)
    if (options.tiles is not None or options.sample_chunks != 1) and not plugin.splits_frames:
        raise UserError(
            f"--tiles and --sample-chunks are for Blender scenes; {plugin.name} renders whole frames"
        )
    if options.chunk_s is not None and not plugin.adapts_chunks:
        raise UserError(f"--chunk-s is for Blender scenes and templates; {plugin.name} takes --chunk-size")
    if options.gpus and not plugin.uses_gpus:
        raise UserError(f"{plugin.name} does not render on GPUs: leave --gpus away")
    return Made(submission=plugin.submission(path, options), plugin=plugin, notes=_broken(broken))


def _command(wish: Wish, chosen: dict[str, Any], *, cwd: Path, login: str) -> Made:
    if not wish.rest:
        raise UserError(
            "nothing to submit: name a scene (farm submit shot.blend), a template or bundle, "
            "or give a command after -- (farm submit -- povray +Iscene.pov +O{output})"
        )
    plugins, broken = load_plugins()
    plugin = plugins.get(COMMAND)
    if plugin is None:
        raise UserError(f"the command plugin is not installed{'; '.join(('', *_broken(broken)))}")
    _refuse_parameters(wish)
    options = _options(wish, chosen | _user(chosen, login), cwd=cwd, arguments=wish.rest[1:])
    return Made(
        submission=plugin.submission(Path(wish.rest[0]), options), plugin=plugin, notes=_broken(broken)
    )


def _bundle(bundle: Bundle, wish: Wish, chosen: dict[str, Any], *, path: Path, cwd: Path) -> Submission:
    if wish.gpus is not None:
        raise UserError("--gpus is for scenes and commands; a template says itself what its steps need")
    if wish.film is not None or wish.is_preview_first or wish.is_probed:
        raise UserError(
            "a film, a preview and a probe are for scenes; a template says itself what its steps are"
        )
    given = read_parameters(wish.parameters, cwd)
    options = _options(wish, {}, cwd=cwd)
    stem = path.name if path.is_dir() else path.stem
    return bundle_submission(bundle, given, options, chosen=chosen, stem=stem or "job")


def _options(
    wish: Wish, settings: dict[str, Any], *, cwd: Path, arguments: Sequence[str] | None = None
) -> SubmitOptions:
    return SubmitOptions(
        name=wish.name,
        frames=() if wish.frames is None else parse_frames(wish.frames),
        output=wish.output,
        chunk_size=1 if wish.chunk_size is None else wish.chunk_size,
        chunk_s=None if wish.chunk_s is None else seconds(wish.chunk_s, "--chunk-s"),
        settings=JobSettings(**settings),
        arguments=tuple((wish.rest or ()) if arguments is None else arguments),
        cwd=cwd,
        is_preview_first=wish.is_preview_first,
        is_probed=wish.is_probed,
        gpus=0 if wish.gpus is None else wish.gpus,
        is_cold=wish.is_cold,
        tiles=None if wish.tiles is None else _tiles(wish.tiles),
        sample_chunks=1 if wish.sample_chunks is None else wish.sample_chunks,
        film=wish.film,
        film_rate="24" if wish.film_rate is None else wish.film_rate,
    )


def chosen_settings(wish: Wish) -> dict[str, Any]:
    """The fields of JobSettings that were typed; ranges are the farm's to check."""
    chosen: dict[str, Any] = {
        "priority": wish.priority,
        "user": wish.user,
        "project": wish.project,
        "preempts": wish.is_preempting or None,
        "pool": wish.pool,
        "max_retries": wish.retries,
        "max_running": wish.max_running,
        "max_failed_tasks": wish.max_failed,
        "limits": read_limit_needs(wish.limits, what="--limit") or None,
        "tag": None if wish.profile is None else Tag(wish.profile),
        "timeout_s": None if wish.timeout is None else seconds(wish.timeout),
        "on_stall": None if wish.on_stall is None else StallPolicy(wish.on_stall),
        "depends_on": tuple(JobId(_job_number(text)) for text in wish.depends_on) or None,
        "is_paused": wish.is_paused or None,
        "reverse": wish.is_reverse or (wish.order is None and _runs_backwards(wish.frames)) or None,
        "order": None if wish.order is None else parse_order(wish.order),
        "hooks": wish.hooks or None,
        "frame_by_frame": wish.is_frame_by_frame or None,
        "replace_existing": wish.is_overwrite or None,
        "trust_scripts": wish.is_trusting or None,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _runs_backwards(frames: str | None) -> bool:
    """Of a range as it was typed: a job keeps its frames as a set, and their order apart."""
    found = () if frames is None else parse_frames(frames)
    return len(found) > 1 and all(before > after for before, after in pairwise(found))


def _user(settings: dict[str, Any], login: str) -> dict[str, str]:
    return {} if settings.get("user") else {"user": login}


def seconds(text: str, option: str = "--timeout") -> float:
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UserError(f"{option} {shown(text, 40)}: give seconds, or minutes, hours, days: 90m, 2h, 1d")
    seconds = float(match.group(1)) * _UNITS[match.group(2)]
    if not 0 < seconds <= _LONGEST_S:
        raise UserError(f"{option} {shown(text, 40)}: give more than 0 and at most 365 days")
    return seconds


def _tiles(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"\s*([0-9]{1,3})\s*[xX]\s*([0-9]{1,3})\s*", text)
    if match is None:
        raise UserError(f"--tiles {shown(text, 40)}: give columns x rows, such as 2x2 or 4x1")
    return int(match.group(1)), int(match.group(2))


def _job_number(text: str) -> int:
    if not re.fullmatch(r"#?[0-9]{1,18}", text):
        raise UserError(f"--depends-on {shown(text, 40)}: give a job's number; `farm jobs` shows them")
    return int(text.lstrip("#"))


def _check_path(path: Path, typed: str) -> None:
    told = shown(str(path), 300)
    try:
        is_there = path.exists()
    except (OSError, ValueError) as error:
        raise UserError(f"{told} cannot be read: {error}") from error
    if is_there or (has_frame(path.name) and path.parent.is_dir()):
        return  # a pattern: the plugin looks for the files of its frames
    try:
        near = get_close_matches(path.name, os.listdir(path.parent), n=1)
    except OSError:
        near = []
    hint = f"; did you mean {shown(near[0], 100)}?" if near else ""
    if not near and not path.suffix and os.sep not in typed:
        hint = f"; to run a command, put -- before it: farm submit -- {shown(typed, 40)}"
    raise UserError(f"{told} does not exist{hint}")


def _refuse_parameters(wish: Wish) -> None:
    if wish.parameters or wish.environments:
        option = "-p" if wish.parameters else "--environment"
        hint = "; arguments for a scene's renderer stand behind --" if wish.parameters and wish.paths else ""
        raise UserError(f"{option} belongs to a template or bundle (.yaml, .json or a directory){hint}")


def _broken(broken: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"the plugin {name} cannot be loaded: {reason}" for name, reason in broken.items())


# --- what it will write -------------------------------------------------------------------------------


def job_frames(submission: Submission) -> tuple[int, ...] | None:
    """The frames of all steps together, in the order of the first; None when no step has any."""
    frames: dict[int, None] = {}
    for output in submission.outputs:
        if output.frames_parameter is not None:
            frames |= dict.fromkeys(step_frames(submission, output.step, output.frames_parameter))
    if not submission.outputs:
        for step in submission.template.get("steps", ()):
            for name in ("Frame", "Frames"):
                if name in _space(step):
                    frames |= dict.fromkeys(step_frames(submission, step["name"], name))
    return tuple(frames) or None


def step_frames(submission: Submission, step_name: str, parameter: str) -> tuple[int, ...]:
    """The values of a task parameter that holds frames. Raises UserError for a template that is wrong."""
    steps: list[dict[str, Any]] = submission.template["steps"]
    step = next((step for step in steps if step.get("name") == step_name), {})
    values = _space(step).get(parameter, {}).get("range")
    if isinstance(values, list) and all(isinstance(value, int) for value in values):
        return tuple(values)
    if isinstance(values, str):
        text = _WHOLE.sub(lambda match: _value(submission, match), values)
        if "{{" not in text:
            return parse_frames(text)
    # An expression: only the library can tell. It takes half a second to load.
    space = _task_space(submission)
    return tuple(frame for index in space.indexes(step_name) for frame in space.frames(step_name, index))


def expected_files(submission: Submission) -> Iterator[str]:
    """Every file that the job will write, as far as it is known: absolute paths."""
    for output in submission.outputs:
        folder = submission.parameters[output.directory_parameter]
        if output.frames_parameter is None:
            yield os.path.join(folder, output.file_pattern)
            continue
        for frame in step_frames(submission, output.step, output.frames_parameter):
            name = expand_pattern(output.file_pattern, frame)
            if output.part_parameter is None:
                yield os.path.join(folder, name)
                continue
            for part in step_frames(submission, output.step, output.part_parameter):
                yield os.path.join(folder, part_name(name, part))


def existing_files(submission: Submission) -> list[str]:
    """Those of `expected_files` that are there. Each directory is read once, not each file looked up."""
    listed: dict[str, set[str]] = {}
    found = []
    for path in expected_files(submission):  # text, not Path: 100,000 frames are common
        folder, name = os.path.split(path)
        if folder not in listed:
            try:
                listed[folder] = set(os.listdir(folder))
            except OSError:  # not there yet, or not to be seen from this machine
                listed[folder] = set()
        if name in listed[folder]:
            found.append(path)
    return found


def refuse_existing(found: Sequence[str]) -> None:
    """Raise UserError when there are any: the farm never writes over a file unasked."""
    if not found:
        return
    first = ", ".join(shown(path, 300) for path in islice(found, SHOWN_FILES))
    more = f" and {len(found) - SHOWN_FILES:,} more" if len(found) > SHOWN_FILES else ""
    verb = "exists" if len(found) == 1 else "exist"
    raise UserError(
        f"{plural(len(found), 'output file')} {verb} already: {first}{more}; "
        "choose another --output, or add --overwrite to move them aside when the new frame is there"
    )


def preview(made: Made) -> Preview:
    """The command of the first task and the first file. Raises UserError."""
    if made.plugin is not None:
        return made.plugin.preview(made.submission)
    first = next(expected_files(made.submission), None)
    return Preview(command=_first_command(made.submission), first_output=first)


def summary(submission: Submission) -> str:
    """ "125 frames: 1-249:2", or what else is known."""
    frames = job_frames(submission)
    return "no frames" if frames is None else describe(frames, limit=60)


def patterns(submission: Submission) -> list[str]:
    """Where the files go: directory and file pattern, one line an output."""
    return [
        os.path.join(submission.parameters[output.directory_parameter], output.file_pattern)
        for output in submission.outputs
    ]


def _space(step: Any) -> dict[str, Any]:
    space = step.get("parameterSpace") if isinstance(step, dict) else None
    listed = space.get("taskParameterDefinitions") if isinstance(space, dict) else None
    return {
        definition["name"]: definition
        for definition in (listed if isinstance(listed, list) else [])
        if isinstance(definition, dict) and "name" in definition
    }


def _value(submission: Submission, match: re.Match[str]) -> str:
    name = match.group(1)
    if name in submission.parameters:
        return submission.parameters[name]
    for definition in submission.template.get("parameterDefinitions") or ():
        if isinstance(definition, dict) and definition.get("name") == name and "default" in definition:
            return str(definition["default"])
    return match.group(0)


def _task_space(submission: Submission) -> TaskSpace:
    typed = {name: ("", text) for name, text in submission.parameters.items()}
    return TaskSpace(submission.template, typed, submission.outputs)


def _first_command(submission: Submission) -> tuple[str, ...]:
    """Of the first step's first task; `<...>` is what only the node can fill in."""
    space = _task_space(submission)
    name = space.steps[0]
    step = submission.template["steps"][0]
    task = space.parameters(name, space.indexes(name)[0]) if space.count(name) else {}
    files = (step.get("script") or {}).get("embeddedFiles") or ()
    names = {"Session.WorkingDirectory": "."}
    names |= {f"Task.Param.{key}": text for key, (_, text) in task.items()}
    names |= {f"Task.File.{file['name']}": file.get("filename") or file["name"] for file in files}

    def resolve(text: str) -> str:
        filled = _WHOLE.sub(lambda match: _value(submission, match), text)
        return _EXPRESSION.sub(lambda match: names.get(match.group(1), f"<{match.group(1)}>"), filled)

    action = ((step.get("script") or {}).get("actions") or {}).get("onRun")
    if action is None:  # written with FEATURE_BUNDLE_1's sugar
        sugar = next((key for key in ("bash", "python", "cmd", "powershell", "node") if key in step), "")
        return (sugar, "...") if sugar else ()
    return tuple(resolve(str(text)) for text in (action["command"], *(action.get("args") or ())))
