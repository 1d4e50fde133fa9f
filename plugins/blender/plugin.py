"""Blender scenes. Nothing is imported here that would slow the command line's start."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.errors import UserError
from farm.model.frames import canonical, parse_frames
from farm.model.plugin import Parser, Plugin, Preview, SubmitOptions
from farm.model.work import OutputSpec, Submission
from plugins import keeper, templates
from plugins.blender import blendfile, bpy_runner
from plugins.blender.driver import FORMATS, MAX_FRAME
from plugins.blender.hints import hints
from plugins.blender.parser import BlenderParser
from plugins.blender.parts import with_parts
from plugins.film import with_extras
from plugins.output import Target, absolute, refuse_controls, target

_HERE = Path(__file__).parent
_VERSION = re.compile(r"Blender ([0-9]+(?:\.[0-9]+)+)")
_OURS = {
    **dict.fromkeys(("-o", "--render-output", "-F", "--render-format", "-x", "--use-extension"), "--output"),
    **dict.fromkeys(("-f", "--render-frame", "-a", "--render-anim"), "--frames"),
    **dict.fromkeys(("-s", "--frame-start", "-e", "--frame-end", "-j", "--frame-jump"), "--frames"),
    **dict.fromkeys(("-y", "--enable-autoexec", "-Y", "--disable-autoexec"), "--trust-scripts"),
    "--cycles-device": "--gpus",
}
"""Options of Blender's that the farm sets itself, and the farm's option for it."""


def submission(path: Path, options: SubmitOptions) -> Submission:
    """A job that renders the frames of a .blend file.

    `options.arguments` are Blender's own (`-E CYCLES -t 4 -S Name`), and after `--` those of Cycles
    (`--cycles-device CUDA`). Without frames, the scene's own range is taken. Raises UserError.
    """
    scene = Path(absolute(path, options.cwd))
    refuse_controls(str(scene), "the path of the scene")
    head = _head(scene)
    before, after, scene_name = _arguments(options.arguments)
    frames = options.frames or _own_range(scene, head, scene_name)
    outside = [frame for frame in frames if abs(frame) > MAX_FRAME]
    if outside:
        raise UserError(f"Blender has no frame {outside[0]}: frames go from -{MAX_FRAME} to {MAX_FRAME}")
    if options.chunk_size < 1:
        raise UserError(f"a chunk of {options.chunk_size} frames cannot be: give 1 or more")
    files = _target(scene, options, frames)

    literals = templates.Literals()
    template = _template(
        [literals.format_string(text) for text in before], [literals.format_string(text) for text in after]
    )
    parameters = {
        "SceneFile": str(scene),
        "Frames": canonical(frames),
        "OutputDir": files.directory,
        "OutputPattern": files.pattern,
        "SceneName": scene_name,
        "SceneScripts": "enable" if options.settings.trust_scripts else "disable",
    }
    if options.chunk_size == 1 and options.chunk_s is None:
        template = templates.unchunked(template)
    else:
        parameters["ChunkSize"] = str(options.chunk_size)
    if options.chunk_s is not None:
        templates.aim_at(template, options.chunk_s)
    template["parameterDefinitions"] += literals.definitions
    templates.on_gpus(template, options.gpus)
    if options.gpus:
        parameters["Device"] = "GPU"
    made = Submission(
        name=options.name or scene.stem,
        template=template,
        parameters=parameters | literals.values,
        settings=replace(options.settings, keep_sessions=not options.is_cold),
        outputs=(
            OutputSpec(
                step="render",
                directory_parameter="OutputDir",
                file_pattern=files.pattern,
                frames_parameter="Frame",
            ),
        ),
        kind="blender",
        hints=hints(size_bytes=scene.stat().st_size, head=head, frames=len(frames)),
        software=("blender",),
    )
    if options.tiles is not None or options.sample_chunks != 1:
        return with_parts(made, options)
    return with_extras(made, options, probe_arguments=("--probe",))


def preview(made: Submission) -> Preview:
    """The command of the first task; `driver.py` stands for the file that the node writes it to."""
    frames = sorted(parse_frames(made.parameters["Frames"]))
    chunk = templates.first_chunk(frames, int(made.parameters.get("ChunkSize", "1")))
    files = Target(directory=made.parameters["OutputDir"], pattern=made.parameters["OutputPattern"])
    return Preview(
        command=templates.first_command(made, {"Frame": chunk, "Part": "1"}),
        first_output=files.file(frames[0]),
    )


def version() -> str | None:
    """Of `blender`, else of the bpy wheel; None when neither is there."""
    program = shutil.which("blender")
    if program is not None:
        try:
            done = subprocess.run(
                [program, "--version"], capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            return bpy_runner.bpy_version()
        match = _VERSION.search(done.stdout.decode("utf-8", "replace"))
        if match is not None:
            return match.group(1)
    return bpy_runner.bpy_version()


def ray_rate(is_gpu: bool, environment: Mapping[str, str]) -> float | str:
    from plugins.blender import ray_rate as measured

    return measured.ray_rate(is_gpu, environment)


def parser(frames: tuple[int, ...]) -> Parser:
    return BlenderParser(frames)


def _head(scene: Path) -> blendfile.BlendHead:
    if not scene.exists():
        raise UserError(f"{scene} does not exist")
    if not scene.is_file():
        raise UserError(f"{scene} is not a file")
    try:
        return blendfile.read(scene)
    except blendfile.NotABlend as error:
        raise UserError(f"{scene} is not a Blender scene: {error}") from error
    except OSError as error:
        raise UserError(f"{scene} cannot be read: {error.strerror}") from error


def _own_range(scene: Path, head: blendfile.BlendHead, scene_name: str) -> tuple[int, ...]:
    chosen = [one for one in head.scenes if one.name == scene_name] if scene_name else list(head.scenes[:1])
    if not chosen or chosen[0].last < chosen[0].first:
        raise UserError(
            f"{scene.name} does not tell its frames without Blender: give --frames, such as 1-250"
        )
    first, last = chosen[0].first, chosen[0].last
    if last - first > 2 * MAX_FRAME:
        raise UserError(f"{scene.name} says that it has the frames {first} to {last}: give --frames")
    return tuple(range(first, last + 1))


def _target(scene: Path, options: SubmitOptions, frames: tuple[int, ...]) -> Target:
    output = options.output
    if output is None:
        output = f"//render/{scene.stem.replace('#', '_')}_####.png"
    return target(
        output,
        base=scene.parent,
        cwd=options.cwd,
        stem=scene.stem,
        frames=frames,
        extensions=FORMATS,
        default_extension=".png",
    )


def _arguments(arguments: tuple[str, ...]) -> tuple[list[str], list[str], str]:
    """Blender's own, those after `--`, and the scene's name (Blender goes on without it, our driver not)."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    kept: list[str] = []
    scene_name = ""
    rest = iter(arguments[:split])
    for argument in rest:
        if argument in ("-S", "--scene"):
            name = next(rest, "")
            if not name:
                raise UserError(f"{argument} needs the name of a scene")
            scene_name = name
            kept += [argument, name]
        elif argument in _OURS:
            raise UserError(f"the farm sets {argument} itself: use {_OURS[argument]}")
        elif argument.lower().endswith(".blend"):
            raise UserError(f"a job renders one scene; {argument} would replace it")
        else:
            kept.append(argument)
    return kept, list(arguments[split + 1 :]), scene_name


def _template(before: list[str], after: list[str]) -> dict[str, Any]:
    """`before` acts on the loaded scene; `after` stands first after `--`, so that ours win over it."""
    keeping = Path(keeper.__file__)
    embedded = {"Driver": _HERE / "driver.py", "Keeper": keeping, "Ask": keeping}
    template = templates.load(_HERE / "template.yaml", embedded)
    action = template["steps"][0]["stepEnvironments"][0]["script"]["actions"]["onEnter"]
    args = action["args"]
    loaded = args.index("{{Param.SceneFile}}") + 1
    action["args"] = [*args[:loaded], *before, *args[loaded:], *after]
    return template


PLUGIN = Plugin(
    name="blender",
    extensions=(".blend",),
    parser=parser,
    submission=submission,
    preview=preview,
    version=version,
    debian_package="blender",
    splits_frames=True,
    adapts_chunks=True,
    uses_gpus=True,
    ray_rate=ray_rate,
)
