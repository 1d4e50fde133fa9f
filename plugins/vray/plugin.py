"""V-Ray Standalone: `farm submit shot.vrscene --frames 1-100`.

Not run here: there is no licence on our machines. Lines are from
    github.com/ynput/OpenPype/pull/5420 (line head, "Successfully written image file")
    github.com/hypothetical-inc/GafferDeadline (percent; joined with that head by us, not seen as one line)
"""

from __future__ import annotations

import re

from farm.model.states import Outcome
from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin

_HEAD = r"(?:\[\d{4}/\w{3}/\d+\|[0-9:]+\] \[\d+ MB\] )?"

PROGRAM = Program(
    name="vray",
    extensions=(".vrscene",),
    least_gpus=0,
    command=("vray", "-display=0", "-verboseLevel=3", ARGUMENTS, "-imgFile=@OUTPUT@", "-sceneFile=@SCENE@"),
    frame_words=("-frames=@FRAME@",),
    formats=(".exr", ".png", ".jpg", ".tif"),
    refused=(("-imgFile=", "--output"), ("-sceneFile=", "the scene's path"), ("-frames=", "--frames")),
    lines=Lines(
        progress=(re.compile(_HEAD + r"Rendering image.*?: +(\d{1,3}(?:\.\d+)?)%"),),
        message=(re.compile(_HEAD + r"(Successfully written image file .*|Starting frame \d+.*)"),),
        warning=(re.compile(_HEAD + r"warning: (.*)"),),
        fatal=(
            Fatal(
                pattern=re.compile(_HEAD + r"((?:error: )?Could not obtain a license.*)"),
                outcome=Outcome.LICENCE,
            ),
            Fatal(pattern=re.compile(_HEAD + r"(?:V-Ray )?error: (.*)")),
        ),
    ),
    version_command=("vray", "-version"),
    version_pattern=re.compile(r"V-Ray Standalone, version ([0-9.]+)"),
)
PLUGIN = plugin(PROGRAM)
