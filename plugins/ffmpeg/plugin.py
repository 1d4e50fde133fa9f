"""A film of frames that are there: `farm submit frames/shot_0001.png --output shot.mp4`.

The file named is any frame of the sequence (or its pattern, shot_####.png). The film holds every frame that
is found, or those of --frames; a hole is an error, as is a film with another number of frames. Arguments are
ffmpeg's, for the film; `-framerate 25` (24 without) says how fast it plays.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from farm.errors import UserError
from farm.model.frames import canonical, expand_pattern, has_frame
from farm.model.plugin import Parser, Plugin, Preview, Reading, SubmitOptions
from farm.model.states import Outcome
from farm.model.work import Submission
from plugins import film, templates
from plugins.output import absolute, refuse_controls
from plugins.program import told_version

EXTENSIONS = (".png", ".exr", ".jpg", ".jpeg", ".tif", ".tiff", ".tga", ".bmp", ".webp", ".dpx")
_NUMBER = re.compile(r"(-?)([0-9]+)(?=[^0-9]*\Z)")
_VERSION = re.compile(r"ffmpeg version n?([0-9]+(?:\.[0-9]+)*)")
_RATES = ("-framerate", "-r")


def submission(path: Path, options: SubmitOptions) -> Submission:
    """One task that encodes the film, and counts its frames. Raises UserError."""
    if options.chunk_size != 1:
        raise UserError("a film is one task: leave the chunk size at 1")
    named = absolute(path, options.cwd)
    refuse_controls(named, "the path of the frames")
    directory, name = os.path.split(named)
    pattern = name if has_frame(name) else _pattern(name)
    frames = options.frames or _found(directory, pattern)
    missing = [frame for frame in frames if not os.path.exists(_file(directory, pattern, frame))]
    if missing:
        raise UserError(f"frame {missing[0]} is missing: {_file(directory, pattern, missing[0])}")
    film_dir, film_name = _film(directory, pattern, options)
    rate, arguments = _rate(options.arguments)
    template = film.template()
    literals = templates.Literals()
    step = template["steps"][0]
    del step["hostRequirements"]  # the whole job needs ffmpeg
    step["script"]["actions"]["onRun"]["args"] += [literals.format_string(text) for text in arguments]
    template["parameterDefinitions"] += literals.definitions
    values = film.parameters(
        frames=canonical(frames),
        source_dir=directory,
        pattern=pattern,
        film_dir=film_dir,
        film_name=film_name,
        rate=rate,
    )
    made = Submission(
        name=options.name or Path(film_name).stem,
        template={"specificationVersion": "jobtemplate-2023-09", "name": "Film", **template},
        parameters={**values, **literals.values},
        settings=options.settings,
        outputs=(film.output(film_name),),
        kind="ffmpeg",
        hints={"engine": "ffmpeg", "frames": float(len(frames))},
        software=("ffmpeg",),
    )
    return film.with_extras(made, options)


def preview(made: Submission) -> Preview:
    """`film.sh` stands for the file that the node writes it to."""
    return Preview(
        command=templates.first_command(made, {}),
        first_output=os.path.join(made.parameters["FilmDir"], made.parameters["FilmName"]),
    )


def version() -> str | None:
    """None without ffmpeg, or without ffprobe, which counts the frames."""
    return told_version(("ffmpeg", "-version"), _VERSION) if shutil.which("ffprobe") else None


@dataclass(slots=True)
class FfmpegParser:
    """What ffmpeg says besides the lines of `film.sh`, which every node reads."""

    def feed(self, line: str) -> Reading | None:
        line = line.strip()
        if "No space left on device" in line[-500:]:
            return Reading(fatal=line[:500], outcome=Outcome.STORAGE)
        if line.startswith(
            ("Unrecognized option", "Option ", "Unknown encoder", "Error splitting the argument")
        ):
            return Reading(fatal=line[:500], is_final=not line.startswith("Unknown encoder"))
        return None


def parser(frames: tuple[int, ...]) -> Parser:
    return FfmpegParser()


def _pattern(name: str) -> str:
    """The last number of the name stands for the frame: "shot_v02_0001.png" gives "shot_v02_####.png"."""
    stem, extension = os.path.splitext(name)
    match = _NUMBER.search(stem)
    if match is None or "#" in name:
        raise UserError(
            f"{name} has no number in its name: a film is made of a sequence, such as shot_0001.png"
        )
    # A dash before the number is a sign only at the start or after another mark: "shot-0001" is frame 1.
    is_sign = match.group(1) == "-" and (match.start() == 0 or stem[match.start() - 1] in "._- ")
    start = match.start() if is_sign else match.start(2)
    return stem[:start] + "#" * len(match.group(2)) + stem[match.end() :] + extension


def _found(directory: str, pattern: str) -> tuple[int, ...]:
    """The frames on disk, which must be a series. Raises UserError."""
    prefix, digits, suffix = film.split_pattern(pattern)
    number = re.compile(rf"{re.escape(prefix)}(-?[0-9]{{{digits},}}){re.escape(suffix)}\Z")
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise UserError(f"{directory} cannot be read: {error.strerror}") from error
    frames = sorted({int(match.group(1)) for name in names if (match := number.match(name))})
    if not frames:
        raise UserError(f"there is no frame {os.path.join(directory, pattern)}")
    usual = min((after - before for before, after in pairwise(frames)), default=1)
    for before, after in pairwise(frames):
        if after - before != usual:
            raise UserError(
                f"frame {before + usual} is missing between {before} and {after}: "
                "render it, or say with --frames which ones the film holds"
            )
    return tuple(frames)


def _file(directory: str, pattern: str, frame: int) -> str:
    return os.path.join(directory, expand_pattern(pattern, frame))


def _film(directory: str, pattern: str, options: SubmitOptions) -> tuple[str, str]:
    """Directory and name of the film; without --output beside the frames."""
    if options.output is None:
        return directory, film.film_name(pattern)
    base = options.output[2:].lstrip("/") if options.output.startswith("//") else None
    path = os.path.join(directory, base) if base is not None else absolute(options.output, options.cwd)
    if options.output.endswith("/") or os.path.isdir(path):
        return path.rstrip("/") or "/", film.film_name(pattern)
    name = os.path.basename(path)
    return os.path.dirname(path), name if os.path.splitext(name)[1] else f"{name}.mp4"


def _rate(arguments: Sequence[str]) -> tuple[str, list[str]]:
    rate, kept = "24", []
    rest = iter(arguments)
    for argument in rest:
        if argument in _RATES:
            rate = next(rest, "")
        elif argument == "-i":
            raise UserError("the farm sets -i itself: name the frames before --")
        else:
            kept.append(argument)
    return rate, kept


PLUGIN = Plugin(
    name="ffmpeg",
    extensions=EXTENSIONS,
    parser=parser,
    submission=submission,
    preview=preview,
    version=version,
    debian_package="ffmpeg",
)
