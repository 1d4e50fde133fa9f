"""SVG drawings by Inkscape: `farm submit title.svg --output title.png -- --export-dpi=300`.

With `--frames`, a `#` run in the file's name stands for the frame: one drawing for each. Inkscape 1.2 exits 0
for a missing file, a bad directory and a full disk: its words and the file are what counts.
"""

from __future__ import annotations

import re

from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin

PROGRAM = Program(
    name="inkscape",
    debian_package="inkscape",
    extensions=(".svg", ".svgz"),
    command=("inkscape", ARGUMENTS, "--export-filename=@OUTPUT@", "@SCENE@"),
    formats=(".png", ".pdf", ".ps", ".eps"),
    can_animate=False,
    refused=(("-o", "--output"), ("--export-filename=", "--output"), ("--export-filename", "--output")),
    lines=Lines(
        warning=(re.compile(r"\*\* \(inkscape:\d+\): WARNING \*\*: [0-9:.]+: (.*image.*)"),),
        fatal=(
            Fatal(
                pattern=re.compile(
                    r"(ink_file_open: .* cannot be opened!|InkscapeApplication::document_open: .*)"
                )
            ),
        ),
    ),
    version_command=("inkscape", "--version"),
    version_pattern=re.compile(r"Inkscape ([0-9.]+)"),
)
PLUGIN = plugin(PROGRAM)
