"""RenderMan by prman: `farm submit shot.####.rib --frames 1-100`, one file for each frame.

A RIB names its own pictures, which the farm cannot redirect: a task whose fate is unknown is not started
twice.

Not run here: there is no licence on our machines. Lines are from
    github.com/prman-pixar/RenderManForBlender/issues/172 (R12001 {ERROR}), 601 (100 % is not always printed)
    github.com/CGRU/cgru afanasy/python/parsers/prman.py (R90000, memory)
"""

from __future__ import annotations

import re

from farm.model.states import Outcome
from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin

PROGRAM = Program(
    name="renderman",
    extensions=(".rib",),
    least_gpus=0,
    command=("prman", "-Progress", ARGUMENTS, "@SCENE@"),
    formats=(),
    can_animate=False,
    lines=Lines(
        progress=(re.compile(r"R90000 +(\d{1,3})%"), re.compile(r"(\d{1,3})%\Z")),
        warning=(re.compile(r"([A-Z]\d{5} \{WARNING\} +.*)"),),
        fatal=(
            Fatal(
                pattern=re.compile(
                    r"(.*(?:[Ll]icense|LICENSE).*(?:[Ee]rror|ERROR|[Ff]ail|not found|expired).*)"
                ),
                outcome=Outcome.LICENCE,
            ),
            Fatal(pattern=re.compile(r"([A-Z]\d{5} \{(?:ERROR|SEVERE)\} +.*)")),
            Fatal(pattern=re.compile(r"(rman Error.*)")),
        ),
    ),
    version_command=("prman", "-version"),
    version_pattern=re.compile(r"(?:RenderMan|prman).*?(\d+\.\d+)"),
)
PLUGIN = plugin(PROGRAM)
