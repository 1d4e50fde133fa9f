"""Nuke scripts: `farm submit comp.nk --frames 1-100 -- -X Write1`. Writes where its Write nodes say.

The farm can't redirect that, so a task whose fate is unknown is not started twice (exclusive).

Not run here: there is no licence on our machines. Lines are from
    github.com/aws-deadline/deadline-cloud-for-nuke adaptor ("Writing ... took ... seconds")
    github.com/CGRU/cgru afanasy/python/parsers/nuke.py (".1" to ".9" within a frame)
    Foundry's LocalNukeRenderTask (exit status 100: no licence)
"""

from __future__ import annotations

import re

from farm.model.states import Outcome
from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin

PROGRAM = Program(
    name="nuke",
    extensions=(".nk",),
    least_gpus=0,
    command=("nuke", "-V", "2", ARGUMENTS, "-x", "@SCENE@"),
    frame_words=("-F", "@FRAME@"),
    formats=(),
    needs_frames=True,
    refused=(("-F", "--frames"), ("-x", "nothing: the farm adds it")),
    lines=Lines(
        message=(re.compile(r"(Writing .+ took [0-9.]+ seconds)"), re.compile(r"(Frame \d+ \(\d+ of \d+\))")),
        warning=(re.compile(r"(WARNING: .*)"),),
        fatal=(
            Fatal(
                pattern=re.compile(r"(.*(?:Invalid .*license key|[Ll]icense.*(?:error|failed|not found)).*)"),
                outcome=Outcome.LICENCE,
            ),
            Fatal(pattern=re.compile(r"(.*: [Rr]ead error: .*|.*: Missing input channel.*)")),
            Fatal(pattern=re.compile(r"((?:.*: )?ERROR: .*|.*Node execution error.*)")),
        ),
    ),
    licence_statuses=(100,),
    version_command=("nuke", "--version"),
    version_pattern=re.compile(r"Nuke (\d+\.\d+v\d+)"),
)
PLUGIN = plugin(PROGRAM)
