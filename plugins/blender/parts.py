"""Frames in parts: tiles or shares of the samples, a task each, put together, finished and verified."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import Any

from farm.errors import UserError
from farm.model.plugin import SubmitOptions
from farm.model.work import OutputSpec, Submission

MOST_PARTS = 256
PARTS_SUFFIX = ".parts"
"""Of the directory with the parts of frames."""
_FRAME = {"name": "Frame", "type": "INT", "range": "{{Param.Frames}}"}


def with_parts(made: Submission, options: SubmitOptions) -> Submission:
    """`made`, a step of whole frames, as four: parts, then assemble, finish (denoise, the format) and verify.

    Parts are 32-bit EXR in a directory beside the frames. Raises UserError.
    """
    columns, rows = options.tiles or (1, 1)
    count = columns * rows if options.tiles is not None else options.sample_chunks
    _check(options, columns, rows)
    template = copy.deepcopy(made.template)
    whole = template["steps"][0]
    pattern = f"{os.path.splitext(made.parameters['OutputPattern'])[0]}.exr"
    bare = os.path.splitext(pattern)[0].replace("#", "").rstrip("_-. ")
    directory = os.path.join(made.parameters["OutputDir"], bare + PARTS_SUFFIX)
    parts = copy.deepcopy(whole)
    parts["name"] = "parts"
    parts["parameterSpace"]["taskParameterDefinitions"].append(
        {"name": "Part", "type": "INT", "range": f"1-{count}"}
    )
    split = f"--tiles={columns}x{rows}" if options.tiles is not None else f"--sample-chunks={count}"
    _change(
        parts,
        {"OutputDir": "PartsDir", "OutputPattern": "PartsPattern"},
        ["--part={{Task.Param.Part}}", split],
    )
    finish = copy.deepcopy(whole)
    finish["name"] = "finish"
    finish["dependencies"] = [{"dependsOn": "assemble"}]
    _change(finish, {}, ["--finish={{Param.AssembledDir}}", "--parts-pattern={{Param.PartsPattern}}"])
    template["steps"] = [
        parts,
        _ours("assemble", "join", count, output="AssembledDir", after=("parts",)),
        finish,
        _ours(
            "verify",
            "verify",
            count,
            "--assembled-dir={{Param.AssembledDir}}",
            output="ReportDir",
            after=("assemble", "finish"),
        ),
    ]
    paths = ("PartsDir", "AssembledDir", "ReportDir")
    template["parameterDefinitions"] += [
        *({"name": name, "type": "PATH", "objectType": "DIRECTORY", "dataFlow": "OUT"} for name in paths),
        {"name": "PartsPattern", "type": "STRING"},
    ]
    report = f"{os.path.splitext(pattern)[0]}.json"
    return replace(
        made,
        template=template,
        parameters={**made.parameters, **dict.fromkeys(paths, directory), "PartsPattern": pattern},
        outputs=(
            _output("parts", "PartsDir", pattern, part_parameter="Part"),
            _output("assemble", "AssembledDir", pattern),
            replace(made.outputs[0], step="finish"),
            _output("verify", "ReportDir", report, is_image=False),
        ),
    )


def _check(options: SubmitOptions, columns: int, rows: int) -> None:
    if options.tiles is not None and options.sample_chunks != 1:
        raise UserError("a frame is split into tiles or into chunks of samples, not both")
    count = columns * rows if options.tiles is not None else options.sample_chunks
    if not 2 <= count <= MOST_PARTS or columns < 1 or rows < 1:
        raise UserError(f"{count} parts of a frame cannot be: give 2 to {MOST_PARTS}")
    if options.chunk_size != 1 or options.chunk_s is not None:
        raise UserError("a task renders several frames or a part of one, not both: leave the chunk size at 1")
    for is_asked, what in (
        (options.film is not None, "a film"),
        (options.is_preview_first, "a preview first"),
        (options.is_probed, "a probe"),
    ):
        if is_asked:
            raise UserError(f"{what} is for sequences; frames in parts are for stills")


def _change(step: dict[str, Any], names: dict[str, str], more: list[str]) -> None:
    """Let the step's command read other parameters, and add arguments."""
    action = step["script"]["actions"]["onRun"]
    for old, new in names.items():
        action["args"] = [
            text.replace(f"{{{{Param.{old}}}}}", f"{{{{Param.{new}}}}}") for text in action["args"]
        ]
    action["args"] = [*action["args"], *more]


def _ours(
    name: str, verb: str, count: int, *more: str, output: str, after: tuple[str, ...]
) -> dict[str, Any]:
    """A step of `ridgeline-assemble`."""
    return {
        "name": name,
        "dependencies": [{"dependsOn": step} for step in after],
        "parameterSpace": {"taskParameterDefinitions": [dict(_FRAME)]},
        "script": {
            "actions": {
                "onRun": {
                    "command": "ridgeline-assemble",
                    "args": [
                        verb,
                        "--frame={{Task.Param.Frame}}",
                        f"--parts={count}",
                        "--parts-dir={{Param.PartsDir}}",
                        "--pattern={{Param.PartsPattern}}",
                        f"--output-dir={{{{Param.{output}}}}}",
                        *more,
                    ],
                }
            }
        },
    }


def _output(
    step: str, directory: str, pattern: str, *, part_parameter: str | None = None, is_image: bool = True
) -> OutputSpec:
    return OutputSpec(
        step=step,
        directory_parameter=directory,
        file_pattern=pattern,
        frames_parameter="Frame",
        part_parameter=part_parameter,
        is_image=is_image,
    )
