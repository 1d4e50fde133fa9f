"""From the scene and the panel to a submission, with what is wrong told before. Knows nothing of Blender."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from farm.errors import UserError
from farm.model.frames import expand_pattern, parse_frames, part_name
from farm.model.plugin import SubmitOptions
from farm.model.work import JobSettings, Submission, Tag
from farm.text import plural
from plugins.blender.driver import FORMATS
from plugins.blender.plugin import submission as blender_submission

from .packing import mounts, only_here

SHOWN = 5
"""How many names one message lists."""
_AUTO = "AUTO"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFile:
    kind: str
    """ "image", "library", "volume" ..."""
    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneFacts:
    """What there is to know of the open scene."""

    path: str = ""
    """Of the .blend file, absolute; empty: it was never saved."""
    is_changed: bool = False
    """There are changes that are not in the file."""
    name: str = "Scene"
    first: int = 1
    last: int = 1
    step: int = 1
    has_camera: bool = True
    """Or renders without one, as the sequencer does."""
    output: str = ""
    """The scene's output as a path with `#` runs and an extension; empty: it is Blender's default."""
    file_format: str = "PNG"
    """Blender's name of it."""
    rate: str = "24"
    """Frames a second: "24", "24000/1001"."""
    blender: tuple[int, int] = (3, 4)
    missing: tuple[MissingFile, ...] = ()
    scripts: tuple[str, ...] = ()
    """What does not work when scripts are disabled: "text rig_ui.py", "driver of Cube"."""
    joins_pixels: str = ""
    """Why parts of a frame would not make the frame; empty: they do."""
    files: tuple[str, ...] = ()
    """All that the scene reads, itself included."""
    hints: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the panel says."""

    name: str = ""
    frames: str | None = None
    """A frame range as typed; None: the scene's own."""
    output: str = ""
    """Empty: the scene's own."""
    priority: int = 50
    pool: str = ""
    profile: str = _AUTO
    """AUTO, COMPUTE or BANDWIDTH."""
    device: str = "CPU"
    """CPU, GPU or SCENE."""
    chunk_size: int = 1
    chunk_s: int = 0
    """A task's run time to aim at; 0: `chunk_size` frames."""
    split: str = "NONE"
    """NONE, TILES or SAMPLES: what a still is divided into."""
    tiles: tuple[int, int] = (2, 2)
    sample_chunks: int = 4
    pack_into: str = ""
    """A directory that nodes read; empty: they read the files where they lie."""
    is_paused: bool = False
    is_preview_first: bool = False
    is_film: bool = False
    trusts_scripts: bool = False
    replaces_existing: bool = False
    in_spite: bool = False
    """Send it although there are doubts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    text: str
    """What is wrong, which one, what to do."""
    is_doubt: bool = False
    """It may be as the artist wants it: `Wish.in_spite` lets it pass."""


def problems(facts: SceneFacts, wish: Wish) -> tuple[Problem, ...]:
    """What speaks against sending the scene, the surest first."""
    found = []
    if not facts.path:
        found.append(Problem(text="the scene was never saved: save it where the nodes can read it"))
    if not facts.has_camera:
        found.append(Problem(text=f"scene {facts.name!r} has no camera: add one, and make it the active one"))
    if facts.path:
        try:
            submission(facts, wish)
        except UserError as error:
            found.append(Problem(text=str(error)))
    if wish.split != "NONE" and facts.joins_pixels:
        found.append(Problem(text=f"{facts.joins_pixels} (the still is to be rendered in parts)"))
    if facts.missing:
        names = [f"{one.kind} {one.name!r} ({one.path})" for one in facts.missing]
        found.append(
            Problem(
                text=f"{plural(len(names), 'file')} cannot be found: {_listed(names)}; "
                "see File > External Data, or tick Send Anyway",
                is_doubt=True,
            )
        )
    if facts.scripts and not wish.trusts_scripts:
        found.append(
            Problem(
                text=f"the scene needs scripts, which nodes do not run unless they are trusted: "
                f"{_listed(facts.scripts)}; tick Trust Scripts if you know them",
                is_doubt=True,
            )
        )
    return tuple(found)


def blocking(found: Iterable[Problem], wish: Wish) -> tuple[Problem, ...]:
    """Those that keep the scene from being sent."""
    return tuple(problem for problem in found if not (problem.is_doubt and wish.in_spite))


def frames_of(facts: SceneFacts, wish: Wish) -> tuple[int, ...]:
    """Raises UserError."""
    if wish.frames is not None:
        return parse_frames(wish.frames)
    if facts.last < facts.first:
        raise UserError(f"the scene ends (frame {facts.last}) before it begins (frame {facts.first})")
    return tuple(range(facts.first, facts.last + 1, max(facts.step, 1)))


def submission(facts: SceneFacts, wish: Wish) -> Submission:
    """The job. `facts.path` is set. Raises UserError when it cannot be made."""
    if not 0 <= wish.priority <= 100:
        raise UserError(f"the priority is {wish.priority}: give 0 to 100")
    scene = Path(facts.path)
    frames = frames_of(facts, wish)
    made = blender_submission(
        scene,
        SubmitOptions(
            name=wish.name.strip() or None,
            frames=frames,
            output=wish.output.strip() or facts.output or _default_output(facts, scene),
            chunk_size=1 if wish.chunk_s else wish.chunk_size,
            chunk_s=float(wish.chunk_s) or None,
            tiles=wish.tiles if wish.split == "TILES" else None,
            sample_chunks=wish.sample_chunks if wish.split == "SAMPLES" else 1,
            settings=JobSettings(
                priority=wish.priority,
                pool=wish.pool.strip() or None,
                is_paused=wish.is_paused,
                tag=None if wish.profile == _AUTO else Tag(wish.profile.lower()),
                trust_scripts=wish.trusts_scripts,
                replace_existing=wish.replaces_existing,
            ),
            arguments=("-S", facts.name),
            cwd=scene.parent,
            is_preview_first=wish.is_preview_first,
            film="" if wish.is_film else None,
            film_rate=facts.rate,
            gpus=1 if wish.device == "GPU" else 0,
        ),
    )
    hints = {**made.hints, **facts.hints, "frames": float(len(frames))}
    return replace(made, parameters={**made.parameters, "Device": wish.device}, hints=hints)


def refuse_local_files(facts: SceneFacts, farm_url: str) -> None:
    """Raises UserError when nodes on other machines cannot see what the scene reads."""
    host = urlsplit(farm_url).hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return  # its nodes are most likely on this computer
    found = only_here(facts.files, mounts())
    if found:
        raise UserError(
            f"{plural(len(found), 'file')} of the scene {'is' if len(found) == 1 else 'are'} on a disk of "
            f"this computer alone: {_listed(found)}; use a shared one, give Pack Into, or tick Send Anyway"
        )


def packed(made: Submission, scene: Path) -> Submission:
    """`made` with its scene read from where it was packed to; its output stays where it was wished."""
    return replace(made, parameters={**made.parameters, "SceneFile": str(scene)})


def first_output(made: Submission) -> str:
    """The path of the job's first frame, as people will look for it."""
    finished = [output for output in made.outputs if output.directory_parameter == "OutputDir"]
    return next(expected_files(replace(made, outputs=tuple(finished))), "")


def expected_files(made: Submission) -> Iterator[str]:
    """Every file that the job will write, the frames first."""
    for output in made.outputs:
        directory = made.parameters[output.directory_parameter]
        for frame in _step_values(made, output.step, output.frames_parameter):
            name = expand_pattern(output.file_pattern, frame)
            for part in _step_values(made, output.step, output.part_parameter):
                yield os.path.join(directory, name if part is None else part_name(name, part))


def existing_files(made: Submission) -> list[str]:
    """Those of `expected_files` that are there. Each directory is read once."""
    listed: dict[str, frozenset[str]] = {}
    found = []
    for path in expected_files(made):
        directory, name = os.path.split(path)
        if directory not in listed:
            try:
                listed[directory] = frozenset(os.listdir(directory))
            except OSError:  # not there yet, or not to be seen from this machine
                listed[directory] = frozenset()
        if name in listed[directory]:
            found.append(path)
    return found


def refuse_existing(made: Submission) -> None:
    """Raises UserError when files are in the way and are not to be replaced."""
    found = [] if made.settings.replace_existing else existing_files(made)
    if found:
        raise UserError(
            f"{plural(len(found), 'output file')} {'is' if len(found) == 1 else 'are'} there already: "
            f"{_listed(found)}; tick Replace Existing, or choose another output"
        )


def refuse_versions(facts: SceneFacts, nodes: Iterable[Any]) -> None:
    """Raises UserError when no node has a Blender that can read the scene. `nodes` are the API's."""
    versions = {
        str(node["capabilities"]["software"].get("blender", ""))
        for node in nodes
        if node["state"] == "online"
    } - {""}
    saved = f"{facts.blender[0]}.{facts.blender[1]}"
    if not versions:
        raise UserError("no node that is online has Blender; tick Send Anyway to let the job wait for one")
    if all(_version(text) < facts.blender for text in versions):
        raise UserError(
            f"the scene is of Blender {saved}, and the nodes have {', '.join(sorted(versions))}: "
            "an older Blender loses parts of it, or crashes; tick Send Anyway to try"
        )


def _version(text: str) -> tuple[int, int]:
    numbers = [int(part) for part in text.split(".")[:2] if part.isdecimal()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def _default_output(facts: SceneFacts, scene: Path) -> str:
    extension = next((suffix for suffix, names in FORMATS.items() if facts.file_format in names), ".png")
    return f"//render/{scene.stem.replace('#', '_')}_####{extension}"


def _step_values(made: Submission, step_name: str, parameter: str | None) -> tuple[int | None, ...]:
    """Of one step's frames or parts. The templates give them as a job parameter's value or as text."""
    if parameter is None:
        return (None,)
    step = next(step for step in made.template["steps"] if step["name"] == step_name)
    for definition in step["parameterSpace"]["taskParameterDefinitions"]:
        if definition["name"] == parameter:
            text = str(definition["range"])
            if text.startswith("{{Param."):
                text = made.parameters[text[len("{{Param.") : -len("}}")]]
            return parse_frames(text)
    raise UserError(f"step {step_name} has no parameter {parameter}")


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - SHOWN:,} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more
