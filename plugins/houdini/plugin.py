"""USD by Karma or another Hydra delegate with husk, and Houdini files with hython.

    farm submit shot.usd --frames 1-100 -- --renderer BRAY_HdKarma
    farm submit shot.hip --frames 1-100 -- /out/mantra1

Not run here: there is no licence on our machines. Lines and traps are from
    github.com/aws-deadline/deadline-cloud-for-houdini/pull/141 (husk's log, ALF_PROGRESS with --verbose a)
    github.com/CGRU/cgru afanasy/python/parsers/mantra.py, hbatch.py ("Peak Memory Usage", ABC_PROGRESS)
    github.com/Autodesk/arnold-usd/issues/1174 and 1950 (husk before 20.5 exits 0 when a delegate failed)
    github.com/healkeiser/fxhoudinimcp/pull/35 (node.render() returns although the node failed)
"""

from __future__ import annotations

import re
from pathlib import Path

from farm.errors import UserError
from farm.model.plugin import Plugin, SubmitOptions
from farm.model.states import Outcome
from farm.model.work import Submission
from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin, submission
from plugins.program import preview as preview_program

LINES = Lines(
    progress=(re.compile(r"ALF_PROGRESS ([0-9.]{1,9})%?\Z"), re.compile(r"ABC_PROGRESS (\d{1,3})")),
    message=(
        re.compile(r"(?:\[[0-9:]+\] )?(Generating Image: .*|Loading .*\.usd.*|Creating karma scene)"),
        re.compile(r"(RopNode\.render: frame.*)"),
    ),
    warning=(re.compile(r"(?:\[[0-9:]+\] )?(Warning: .*)"),),
    fatal=(
        Fatal(
            pattern=re.compile(r"(No licenses could be found to run this application.*)"),
            outcome=Outcome.LICENCE,
        ),
        Fatal(pattern=re.compile(r"(?:\[[0-9:]+\] )?((?:Fatal error|Error|ERROR): .*)")),
        Fatal(pattern=re.compile(r"ridgeline-houdini error: (.*)")),
    ),
)
FORMATS = (".exr", ".png", ".jpg", ".tif")


def _one_node(_scene: Path, options: SubmitOptions) -> None:
    if len(options.arguments) != 1 or not options.arguments[0].startswith("/"):
        raise UserError("name the node that renders, and nothing else: farm submit shot.hip -- /out/mantra1")


HUSK = Program(
    name="houdini",
    extensions=(".usd", ".usda", ".usdc", ".usdz"),
    least_gpus=0,
    command=("husk", "--verbose", "a", ARGUMENTS, "--output", "@OUTPUT@", "@SCENE@"),
    frame_words=("--frame", "@FRAME@"),
    formats=FORMATS,
    refused=(("--output", "--output"), ("-o", "--output"), ("--frame", "--frames"), ("-f", "--frames")),
    lines=LINES,
    version_command=("husk", "--version"),
    version_pattern=re.compile(r"(\d+\.\d+\.\d+)"),
)
HYTHON = Program(
    name="houdini",
    extensions=(".hip", ".hiplc", ".hipnc"),
    least_gpus=0,
    command=("hython", "@SCRIPT:render@", "@SCENE@", "@FRAME@", "@OUTPUT@", ARGUMENTS),
    formats=FORMATS,
    needs_frames=True,
    scripts=(("render", Path(__file__).with_name("render.py")),),
    check=_one_node,
    lines=LINES,
)


def submit(path: Path, options: SubmitOptions) -> Submission:
    """By the file's extension. Raises UserError."""
    return submission(HYTHON if path.suffix.lower() in HYTHON.extensions else HUSK, path, options)


PLUGIN = Plugin(
    name=HUSK.name,
    licence_statuses=(3,),
    extensions=(*HUSK.extensions, *HYTHON.extensions),
    parser=plugin(HUSK).parser,
    submission=submit,
    preview=preview_program,
    version=plugin(HUSK).version,
    uses_gpus=True,
)
