"""POV-Ray scenes: stills, and animations by POV-Ray's own clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.errors import UserError
from farm.model.frames import canonical, has_frame, parse_frames
from farm.model.plugin import Parser, Plugin, Preview, SubmitOptions
from farm.model.work import OutputSpec, Submission
from plugins import templates
from plugins.film import with_extras
from plugins.output import Target, absolute, refuse_controls, target
from plugins.povray.parser import PovrayParser
from plugins.program import told_version

_HERE = Path(__file__).parent
_VERSION = re.compile(r"POV-Ray ([0-9]+(?:\.[0-9]+)+)")
_FORMATS = {
    ".png": "N",
    ".tga": "T",
    ".jpg": "J",
    ".jpeg": "J",
    ".exr": "E",
    ".bmp": "B",
    ".hdr": "H",
    ".ppm": "P",
}
"""Extension to the letter of POV-Ray's +F option."""
_NUMBERS = {
    "width": re.compile(r"(?:\+W|Width=)([0-9]+)\Z", re.IGNORECASE),
    "height": re.compile(r"(?:\+H|Height=)([0-9]+)\Z", re.IGNORECASE),
    "first": re.compile(r"(?:\+KFI|Initial_Frame=)([0-9]+)\Z", re.IGNORECASE),
    "last": re.compile(r"(?:\+KFF|Final_Frame=)([0-9]+)\Z", re.IGNORECASE),
}
_OURS = (
    (re.compile(r"\+(?:SF|EF)-?[0-9.]+\Z|(?:Subset_Start|Subset_End)_Frame=", re.IGNORECASE), "--frames"),
    (re.compile(r"[+-]O|(?:Output_File_Name|Output_to_File)=", re.IGNORECASE), "--output"),
    (re.compile(r"\+I|Input_File_Name=", re.IGNORECASE), "the scene's path"),
)
_LIBRARY = re.compile(r"(\+L|Library_Path=)(.+)\Z", re.IGNORECASE | re.DOTALL)
_FORMAT = re.compile(r"\+F([A-Z])", re.IGNORECASE)


@dataclass(slots=True)
class _Options:
    width: int = 640
    height: int = 480
    first: int | None = None
    last: int | None = None
    others: list[str] = field(default_factory=list)


def submission(path: Path, options: SubmitOptions) -> Submission:
    """A job that renders a .pov scene: the frames asked for, or one still.

    The clock is (frame - first) / (last - first) with the first and last frame of the job. To render a few
    frames of a longer animation, give its ends: `--frames 7 -- +KFI1 +KFF20`. `+W` and `+H` set the size
    (640 by 480), all other options are passed on. Relative library paths start at `options.cwd`.

    Raises UserError.
    """
    scene = Path(absolute(path, options.cwd))
    refuse_controls(str(scene), "the path of the scene")
    if not scene.is_file():
        raise UserError(f"{scene} does not exist" if not scene.exists() else f"{scene} is not a file")
    if options.chunk_size < 1:
        raise UserError(f"a chunk of {options.chunk_size} frames cannot be: give 1 or more")
    frames = options.frames
    files = target(
        options.output if options.output is not None else f"//render/{scene.stem.replace('#', '_')}.png",
        base=scene.parent,
        cwd=options.cwd,
        stem=scene.stem,
        frames=frames,
        extensions=_FORMATS,
        default_extension=".png",
    )
    prefix, digits, suffix = _split(files.pattern, frames)
    letter = _FORMATS[files.extension]
    wanted = _arguments(options.arguments, options.cwd, letter)

    template = templates.load(_HERE / "template.yaml", {"Render": _HERE / "render.sh"})
    parameters = {
        "SceneFile": str(scene),
        "OutputDir": files.directory,
        "OutputPrefix": prefix,
        "OutputDigits": str(digits),
        "OutputSuffix": suffix,
        "Format": letter,
        "Width": str(wanted.width),
        "Height": str(wanted.height),
    }
    if frames:
        first, last = _range(frames, wanted)
        parameters |= {"Frames": canonical(frames), "FirstFrame": str(first), "LastFrame": str(last)}
        if options.chunk_size == 1:
            template = templates.unchunked(template)
        else:
            parameters["ChunkSize"] = str(options.chunk_size)
    else:
        template = _still(template)
    literals = templates.Literals()
    arguments = [literals.format_string(text) for text in wanted.others]
    template["steps"][0]["script"]["actions"]["onRun"]["args"] += arguments
    template["parameterDefinitions"] += literals.definitions
    made = Submission(
        name=options.name or scene.stem,
        template=template,
        parameters=parameters | literals.values,
        settings=options.settings,
        outputs=(
            OutputSpec(
                step="render",
                directory_parameter="OutputDir",
                file_pattern=files.pattern,
                frames_parameter="Frame" if frames else None,
            ),
        ),
        kind="povray",
        hints={
            "engine": "POV-RAY",
            "width": float(wanted.width),
            "height": float(wanted.height),
            "frames": float(max(len(frames), 1)),
            "scene_mib": round(scene.stat().st_size / 2**20, 3),
        },
        software=("povray",),
    )
    return with_extras(made, options)


def preview(made: Submission) -> Preview:
    """The command of the first task; `render.sh` stands for the file that the node writes it to."""
    frames = sorted(parse_frames(made.parameters["Frames"])) if "Frames" in made.parameters else []
    chunk = templates.first_chunk(frames, int(made.parameters.get("ChunkSize", "1"))) if frames else ""
    files = Target(directory=made.parameters["OutputDir"], pattern=made.outputs[0].file_pattern)
    return Preview(
        command=templates.first_command(made, {"Frame": chunk}),
        first_output=files.file(frames[0] if frames else None),
    )


def version() -> str | None:
    """None when there is no `povray`."""
    return told_version(["povray", "--version"], _VERSION)


def parser(frames: tuple[int, ...]) -> Parser:
    return PovrayParser(frames)


def _split(pattern: str, frames: tuple[int, ...]) -> tuple[str, int, str]:
    """Prefix, digits, suffix of the file name; POV-Ray's script knows one number only."""
    if not has_frame(pattern):
        return pattern, 0, ""
    if not frames:
        raise UserError(
            f"--output {pattern} has a place for the frame, but there are no frames: give --frames"
        )
    prefix, _, rest = pattern.partition("#")
    suffix = rest.lstrip("#")
    if has_frame(suffix):
        raise UserError(f"--output {pattern}: POV-Ray's file names can hold the frame once only")
    return prefix, len(pattern) - len(prefix) - len(suffix), suffix


def _arguments(arguments: tuple[str, ...], cwd: Path, letter: str) -> _Options:
    wanted = _Options()
    for argument in arguments:
        for name, pattern in _NUMBERS.items():
            if match := pattern.match(argument):
                setattr(wanted, name, int(match.group(1)))
                break
        else:
            wanted.others.append(_other(argument, cwd, letter))
    if not (0 < wanted.width <= 65535 and 0 < wanted.height <= 65535):
        raise UserError(f"a picture of {wanted.width} x {wanted.height} pixels cannot be rendered")
    return wanted


def _other(argument: str, cwd: Path, letter: str) -> str:
    for pattern, instead in _OURS:
        if pattern.match(argument):
            raise UserError(f"the farm sets {argument} itself: use {instead}")
    match = _FORMAT.match(argument)
    if match and match.group(1).upper() != letter:
        raise UserError(
            f"{argument} does not write what the output's extension says: change --output instead"
        )
    if match := _LIBRARY.match(argument):
        return f'{match.group(1)}"{absolute(match.group(2), cwd)}"'  # quoted: POV-Ray splits at blanks
    if argument.lower().endswith(".ini") and not argument.startswith(("+", "-")):
        return absolute(argument, cwd)
    return argument


def _range(frames: tuple[int, ...], wanted: _Options) -> tuple[int, int]:
    first = min(frames) if wanted.first is None else wanted.first
    last = max(frames) if wanted.last is None else wanted.last
    if min(frames) < 0:
        raise UserError(f"POV-Ray has no frame {min(frames)}: its frames begin at 0")
    outside = [frame for frame in frames if not first <= frame <= last]
    if outside:
        raise UserError(f"frame {outside[0]} is outside +KFI{first} +KFF{last}")
    return first, last


def _still(template: dict[str, Any]) -> dict[str, Any]:
    """The same template for one picture without a frame number or a clock."""
    step = template["steps"][0]
    del step["parameterSpace"], template["extensions"]
    action = step["script"]["actions"]["onRun"]
    action["args"] = [
        "" if text == "{{Task.Param.Frame}}" else text
        for text in action["args"]
        if not text.startswith("+KF")
    ]
    gone = {"Frames", "FirstFrame", "LastFrame", "ChunkSize"}
    template["parameterDefinitions"] = [p for p in template["parameterDefinitions"] if p["name"] not in gone]
    return template


PLUGIN = Plugin(
    name="povray",
    extensions=(".pov",),
    parser=parser,
    submission=submission,
    preview=preview,
    version=version,
    debian_package="povray",
)
