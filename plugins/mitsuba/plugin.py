"""Mitsuba 3 scenes: `farm submit scene.xml`. A frame reaches the scene as the constant `$frame`.

Figures and traps of Mitsuba 3.9: any error is exit status 255; `--threads` makes it hang when it writes the
picture, so it is refused; the `llvm` variants need an LLVM that it can load, `scalar_rgb` always works.
"""

from __future__ import annotations

import re
from pathlib import Path

from farm.errors import UserError
from farm.model.plugin import SubmitOptions
from farm.model.states import Outcome
from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin


def _check(scene: Path, _options: SubmitOptions) -> None:
    with scene.open("rb") as file:
        if b"<scene" not in file.read(64 * 1024):
            raise UserError(f"{scene} is no Mitsuba scene: it has no <scene>")


PROGRAM = Program(
    name="mitsuba",
    extensions=(".xml",),
    command=("mitsuba", "-m", "scalar_rgb", ARGUMENTS, "-o", "@OUTPUT@", "@SCENE@"),
    frame_words=("-D", "frame=@FRAME@"),
    formats=(".exr",),
    refused=(
        ("-o", "--output"),
        ("--output", "--output"),
        ("-t", "the node's slots"),
        ("--threads", "the node's slots"),
    ),
    check=_check,
    lines=Lines(
        bar=re.compile(r"Rendering \[([= ]{1,200})\]"),
        message=(re.compile(r".{10,30} INFO  \[parser\.cpp:\d+\] (Loading XML file .*)"),),
        warning=(re.compile(r".{10,30} WARN  (.*)"),),
        size=re.compile(r".{10,30} INFO  \[SamplingIntegrator\] Starting render job \((\d+)x(\d+),"),
        fatal=(
            Fatal(pattern=re.compile(r"(?=.*No space left on device)(.*)"), outcome=Outcome.STORAGE),
            Fatal(pattern=re.compile(r"Caught a critical exception: (.*)")),
            Fatal(pattern=re.compile(r"(Error while loading .*)"), is_final=True),
        ),
    ),
    version_command=("mitsuba", "--help"),
    version_pattern=re.compile(r"Mitsuba version ([0-9.]+)"),
)
PLUGIN = plugin(PROGRAM)
