"""Synfig animations: `farm submit walk.sif --frames 0-119`. A still without --frames shows the first frame.

Synfig 1.5 exits 0 when it cannot write, and says DONE on a full disk: the file itself is what counts.
"""

from __future__ import annotations

import re

from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin

_HEAD = r"(?:\x1b\[[0-9;]*m)?synfig\(\d+\) \[[0-9:]+\] "

PROGRAM = Program(
    name="synfig",
    debian_package="synfig",
    extensions=(".sif", ".sifz", ".sfg"),
    command=("synfig", ARGUMENTS, "-o", "@OUTPUT@", "@SCENE@"),
    frame_words=("--time", "@FRAME@f"),
    formats=(".png", ".jpg", ".exr", ".bmp", ".ppm"),
    refused=(
        ("-o", "--output"),
        ("--output-file", "--output"),
        ("--time", "--frames"),
        ("--time=", "--frames"),
    ),
    lines=Lines(
        message=(re.compile(_HEAD + r"info: (Loading file: .*)"),),
        warning=(re.compile(_HEAD + r"warning: (.*?)(?:\x1b\[0m)?\Z"),),
        fatal=(Fatal(pattern=re.compile(r"(Unable to load file .*|Unable to create target .*)")),),
    ),
    version_command=("synfig", "--version"),
    version_pattern=re.compile(r"synfig ([0-9.]+)"),
)
PLUGIN = plugin(PROGRAM)
