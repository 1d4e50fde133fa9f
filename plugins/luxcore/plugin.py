"""LuxCore scenes: `farm submit scene.cfg -- batch.haltspp=500`. With `--frames`, a `#` run in the name.

By the pyluxcore wheel, in the node's Python. A scene must say when it ends (`batch.haltspp`, `halttime`).
"""

from __future__ import annotations

import re
from pathlib import Path

from farm.errors import UserError
from farm.model.plugin import SubmitOptions
from plugins.program import ARGUMENTS, Fatal, Lines, Program, plugin

_SAMPLES = re.compile(r"\[LuxCore\]\[[0-9.]+\] Samples per pixel (\d{1,3})%")
"""LuxCore's own line."""


def _check(scene: Path, options: SubmitOptions) -> None:
    if "renderengine.type" not in scene.read_text(encoding="utf-8", errors="replace"):
        raise UserError(f"{scene} is no LuxCore configuration: it names no renderengine.type")
    strange = [argument for argument in options.arguments if "=" not in argument]
    if strange:
        raise UserError(f"{strange[0]}: LuxCore's properties are NAME=VALUE, such as batch.haltspp=500")


PROGRAM = Program(
    name="luxcore",
    extensions=(".cfg",),
    least_gpus=0,
    command=("python3", "@SCRIPT:render@", "@SCENE@", "@OUTPUT@", ARGUMENTS),
    formats=(".png", ".exr", ".jpg", ".tif", ".hdr"),
    can_animate=False,
    scripts=(("render", Path(__file__).with_name("render.py")),),
    check=_check,
    lines=Lines(
        progress=(re.compile(r"luxcore progress: ([0-9.]+)%"), _SAMPLES),
        warning=(re.compile(r"\[(?:LuxCore|SDL|LuxRays)\]\[[0-9.]+\] (WARNING: .*)"),),
        fatal=(
            Fatal(pattern=re.compile(r"luxcore error: (.*)"), is_final=True),
            Fatal(pattern=re.compile(r"((?:RuntimeError|luxrays::.*|ValueError): .*)")),
        ),
    ),
    version_command=("python3", "-c", "from importlib import metadata; print(metadata.version('pyluxcore'))"),
    version_pattern=re.compile(r"\A([0-9]+(?:\.[0-9]+)+)"),
)
PLUGIN = plugin(PROGRAM)
