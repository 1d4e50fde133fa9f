"""A film at the end: the step that encodes a job's frames with ffmpeg and counts them in the film."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.errors import UserError
from farm.model.frames import has_frame, parse_frames
from farm.model.plugin import SubmitOptions
from farm.model.work import OutputSpec, Submission
from plugins import templates
from plugins.output import refuse_controls
from plugins.preview import with_preview
from plugins.probe import with_probe

STEP = "film"
EXTENSIONS = (".mp4", ".mov", ".mkv", ".webm")
SOFTWARE_ATTRIBUTE = "attr.farm.software"
"""A renderer that a step needs, where not every step of the job needs it."""

_HERE = Path(__file__).parent
_RATE = re.compile(r"[1-9][0-9]{0,6}(?:/[1-9][0-9]{0,6}|\.[0-9]{1,6})?\Z")


def template() -> dict[str, Any]:
    """`parameterDefinitions` and the one step."""
    return templates.load(_HERE / "film.yaml", {"Encode": _HERE / "film.sh"})


def parameters(
    *, frames: str, source_dir: str, pattern: str, film_dir: str, film_name: str, rate: str
) -> dict[str, str]:
    """Values for the template's parameters. `frames` is an OpenJD range, `pattern` names a frame's file.

    Raises UserError.
    """
    prefix, digits, suffix = split_pattern(pattern)
    extension = os.path.splitext(film_name)[1].lower()
    refuse_controls(film_name, "the film's name")
    if extension not in EXTENSIONS or has_frame(film_name) or os.sep in film_name:
        raise UserError(
            f"the film {film_name}: give a file name that ends with one of {' '.join(EXTENSIONS)}, without #"
        )
    if not _RATE.match(rate):
        raise UserError(f"{rate!r} frames a second cannot be: give a number, such as 24 or 24000/1001")
    return {
        "FilmFrames": frames,
        "FilmSourceDir": source_dir,
        "FilmPrefix": prefix,
        "FilmDigits": str(digits),
        "FilmSuffix": suffix,
        "FilmDir": film_dir,
        "FilmName": film_name,
        "FilmRate": rate,
    }


def output(film_name: str) -> OutputSpec:
    return OutputSpec(step=STEP, directory_parameter="FilmDir", file_pattern=film_name, is_image=False)


def with_film(made: Submission, *, rate: str = "24", name: str | None = None) -> Submission:
    """`made` with a film of its frames as the last step, in the frames' directory.

    `name` is the film's file name; None: the frames' without the number, as .mp4. The job writes its frames
    by one output, from the job parameter Frames. Raises UserError.
    """
    frames = made.parameters.get("Frames")
    if frames is None or len(made.outputs) != 1 or not has_frame(made.outputs[0].file_pattern):
        raise UserError("a film needs several frames in one sequence, which this job does not write")
    files = made.outputs[0]
    directory = made.parameters[files.directory_parameter]
    if name is None:
        name = film_name(files.file_pattern)
    values = parameters(
        frames=frames,
        source_dir=directory,
        pattern=files.file_pattern,
        film_dir=directory,
        film_name=name,
        rate=rate,
    )
    added = template()
    step = added["steps"][0]
    step["dependencies"] = [{"dependsOn": each["name"]} for each in made.template["steps"]]
    return replace(
        made,
        template={
            **made.template,
            "parameterDefinitions": [
                *made.template.get("parameterDefinitions", ()),
                *added["parameterDefinitions"],
            ],
            "steps": [*(_needing(each, made.software) for each in made.template["steps"]), step],
        },
        parameters={**made.parameters, **values},
        outputs=(*made.outputs, output(name)),
        software=(),
    )


def with_extras(
    made: Submission, options: SubmitOptions, *, probe_arguments: tuple[str, ...] = ()
) -> Submission:
    """`made` with the film, the preview and the probe that `options` ask for. Raises UserError.

    probe_arguments: what makes the renderer's command a probe; empty: there is no such thing.
    """
    whole = made
    if options.film is not None:
        made = with_film(made, rate=options.film_rate, name=options.film or None)
    if options.is_preview_first:
        if "Frames" not in whole.parameters:
            raise UserError(
                "--preview-first is for scenes; of a command --order first-middle-last does the same"
                if len(options.frames) > 1
                else "a preview needs several frames; this job renders one picture"
            )
        made = with_preview(made, parse_frames(whole.parameters["Frames"]))
    if options.is_probed:
        if not probe_arguments or "Frames" not in whole.parameters:
            raise UserError(
                "--probe is for Blender scenes; of other work the first seconds on a GPU are looked at"
            )
        made = with_probe(made, parse_frames(whole.parameters["Frames"]), probe_arguments)
    return made


def film_name(pattern: str) -> str:
    """ "shot_####.png" gives "shot.mp4", "####.png" gives "film.mp4"."""
    prefix, _, _ = split_pattern(pattern)
    return (prefix.rstrip("_-. ") or "film") + ".mp4"


def split_pattern(pattern: str) -> tuple[str, int, str]:
    """What stands before the frame's number, its least number of digits, and the rest. Raises UserError."""
    prefix, _, rest = pattern.partition("#")
    suffix = rest.lstrip("#")
    if not has_frame(pattern) or has_frame(suffix):
        raise UserError(f"{pattern}: a film's frames have one number in their names, such as shot_####.png")
    return prefix, len(pattern) - len(prefix) - len(suffix), suffix


def _needing(step: dict[str, Any], software: tuple[str, ...]) -> dict[str, Any]:
    """`step` with its own demand of what was the whole job's."""
    if not software:
        return step
    needs = dict(step.get("hostRequirements", {}))
    needs["attributes"] = [
        *needs.get("attributes", ()),
        {"name": SOFTWARE_ATTRIBUTE, "allOf": list(software)},
    ]
    return {**step, "hostRequirements": needs}
