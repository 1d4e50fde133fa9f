"""Maya scenes by `Render`: `farm submit shot.ma --frames 1-100 -- -r arnold -proj /show/shot`.

Not run here: there is no licence on our machines. The lines are from public logs and other farms' parsers:
    github.com/CGRU/cgru afanasy/python/parsers/maya.py (percent, "Finished Rendering")
    github.com/aws-deadline/deadline-cloud-for-maya adaptor and pull requests 214, 234, 480 (licences)
    github.com/AcademySoftwareFoundation/OpenCue/issues/1342 (exit 0 without a file)
"""

from __future__ import annotations

import re

from farm.model.states import Outcome
from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin

PROGRAM = Program(
    name="maya",
    extensions=(".ma", ".mb"),
    least_gpus=0,
    command=("Render", ARGUMENTS, "-rd", "@DIR@", "-im", "@STEM@", "@SCENE@"),
    frame_words=("-s", "@FRAME@", "-e", "@FRAME@"),
    formats=(".exr", ".png", ".jpg", ".tif", ".tga"),
    needs_frames=True,
    refused=(
        ("-rd", "--output"),
        ("-im", "--output"),
        ("-s", "--frames"),
        ("-e", "--frames"),
        ("-b", "--frames"),
    ),
    lines=Lines(
        progress=(
            re.compile(r"\[PROGRESS\] (\d{1,3}) percent"),
            re.compile(r"\[PROGRESS\] Percentage of rendering done: (\d{1,3})"),
            re.compile(r"\d\d:\d\d:\d\d +\d+MB +\| +(\d{1,3})% done"),
            re.compile(r"V-Ray: +(\d{1,3}) ?%"),
        ),
        message=(re.compile(r"(Finished Rendering .*)"), re.compile(r"(Rendering current frame.*)")),
        warning=(re.compile(r"(Warning: (?:file|Errors|Could not|Unable).*)"),),
        fatal=(
            Fatal(
                pattern=re.compile(r"(.*(?:FLEXnet|[Ll]icens\w+) .*(?:[Ee]rror|[Ff]ailed|could not).*)"),
                outcome=Outcome.LICENCE,
            ),
            Fatal(
                pattern=re.compile(r"(.*aborting render because .*abort_on_license_fail.*)"),
                outcome=Outcome.LICENCE,
            ),
            Fatal(pattern=re.compile(r"(\[Redshift\] Maxon licensing error: .*)"), outcome=Outcome.LICENCE),
            Fatal(
                pattern=re.compile(r"(.*This scene does not have any renderable cameras.*)"), is_final=True
            ),
            Fatal(pattern=re.compile(r"(.*Cannot load scene.*|Error: Scene .* failed to (?:load|render).*)")),
            Fatal(
                pattern=re.compile(r"(.*Frame aborted.*|.*\(kFailure\).*|.*Maya exited with status 210.*)")
            ),
        ),
    ),
    version_command=("Render", "-v"),
    version_pattern=re.compile(r"Maya (\d{4}(?:\.\d+)?)"),
)
PLUGIN = plugin(PROGRAM)
