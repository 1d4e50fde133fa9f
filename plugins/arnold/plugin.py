"""Arnold scenes by kick: `farm submit shot.####.ass --frames 1-100`, one file for each frame.

Kick writes a picture although it aborted, and renders with watermarks without a licence: its words decide.

Not run here: there is no licence on our machines. Lines are from
    github.com/Autodesk/arnold-usd/issues/1633 and 1875 (line head, aborts, "writing file")
    help.autodesk.com, Arnold user guide, "How to Read a Render Log" ("% done", rays/pixel)
    github.com/aws-deadline/deadline-cloud-for-maya pull requests 214 and 234 (licence lines)
"""

from __future__ import annotations

import re

from farm.model.states import Outcome
from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin

_HEAD = r"(?:\d\d:\d\d:\d\d +\d+MB)? *"

PROGRAM = Program(
    name="arnold",
    extensions=(".ass",),
    least_gpus=0,
    command=("kick", "-nstdin", "-dw", "-dp", "-v", "4", ARGUMENTS, "-i", "@SCENE@", "-o", "@OUTPUT@"),
    formats=(".exr", ".tif", ".png", ".jpg"),
    refused=(("-i", "the scene's path"), ("-o", "--output")),
    can_animate=False,
    lines=Lines(
        progress=(re.compile(_HEAD + r"\| +(\d{1,3})% done\b"),),
        message=(re.compile(_HEAD + r"\| +(\[driver_\w+\] writing file .*|starting \d+ bucket workers.*)"),),
        warning=(
            re.compile(
                _HEAD
                + r"WARNING \| +(?!render terminating|\[kick\] render aborted|rendering with watermarks)(.*)"
            ),
        ),
        fatal=(
            Fatal(
                pattern=re.compile(
                    _HEAD + r"(?:\w+ +)?\| +(aborting render because .*abort_on_license_fail.*)"
                ),
                outcome=Outcome.LICENCE,
            ),
            Fatal(
                pattern=re.compile(
                    _HEAD + r"(?:\w+ +)?\| +(rendering with watermarks because of failed authorization.*)"
                ),
                outcome=Outcome.LICENCE,
            ),
            Fatal(pattern=re.compile(_HEAD + r"(?:WARNING|ERROR) +\| +(\[kick\] render aborted.*)")),
            Fatal(pattern=re.compile(_HEAD + r"ERROR +\| +(.*)")),
        ),
    ),
    version_command=("kick", "--version"),
    version_pattern=re.compile(r"Arnold ([0-9.]+)"),
)
PLUGIN = plugin(PROGRAM)
