"""Redshift proxies by redshiftCmdLine: `farm submit shot.####.rs --frames 1-100`, one file for each frame.

Its exit status is 0 when the licence fails.

Not run here: there is no licence on our machines. Lines are from
    github.com/CGRU/cgru afanasy/python/parsers/redshift.py and pull request 497 (blocks, licence errors)
    github.com/aws-deadline/deadline-cloud-for-maya/pull/480 ("Maxon licensing error", exit status 0)
    github.com/aws-deadline/deadline-cloud-for-cinema-4d/issues/239 (driver too old)
"""

from __future__ import annotations

import re

from farm.model.states import Outcome
from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin

_HEAD = r"(?:\w+ ?: +)?(?:\[Redshift\] *)?"

PROGRAM = Program(
    name="redshift",
    extensions=(".rs",),
    least_gpus=1,
    command=("redshiftCmdLine", "@SCENE@", ARGUMENTS, "-oip", "@DIR@"),
    formats=(".exr", ".png", ".jpg", ".tif"),
    refused=(("-oip", "--output"),),
    can_animate=False,
    lines=Lines(
        progress=(re.compile(_HEAD + r"Block (\d+)/(\d+) \(\d+,\d+\) rendered by GPU \d+"),),
        message=(
            re.compile(_HEAD + r"(Rendering frame \d+.*|Frame done.*|Loading .*)"),
            re.compile(_HEAD + r"(Saving: .*|Total triangles: +\d+)"),
        ),
        warning=(re.compile(_HEAD + r"(?:Warning|WARNING): (.*)"),),
        fatal=(
            Fatal(
                pattern=re.compile(_HEAD + r"((?:License error:|Maxon licensing error:).*)"),
                outcome=Outcome.LICENCE,
            ),
            Fatal(
                pattern=re.compile(
                    _HEAD
                    + r"(Rendering was internally aborted.*|Frame rendering aborted.*|Error an illegal .*)"
                )
            ),
            Fatal(pattern=re.compile(_HEAD + r"(No devices found.*)"), outcome=Outcome.NODE_FAULT),
            Fatal(
                pattern=re.compile(
                    r"Redshift Error: (Please make sure you have NVIDIA.*|Failed to load module binary.*)"
                ),
                outcome=Outcome.NODE_FAULT,
            ),
        ),
    ),
    version_command=("redshiftCmdLine", "--version"),
    version_pattern=re.compile(r"Redshift (?:Version )?([0-9.]+)"),
)
PLUGIN = plugin(PROGRAM)
