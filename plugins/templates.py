"""Our templates: read lazily, filled with literal arguments, and resolved for `--pretend`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.errors import UserError
from farm.model.frames import canonical
from farm.model.work import Submission
from plugins.output import refuse_controls

MAX_GPUS = 64
_EXPRESSION = re.compile(r"\{\{\s*([A-Za-z0-9_.]+)\s*\}\}")


def load(path: Path, embedded: Mapping[str, Path]) -> dict[str, Any]:
    """The template at `path`, with the text of each embedded file (by its name there) put in place.

    Inside Blender, which has no YAML, the same template lies beside as JSON (`make addon` converts it).
    """
    as_json = path.with_suffix(".json")
    template: dict[str, Any]
    if as_json.exists():
        template = json.loads(as_json.read_text(encoding="utf-8"))
    else:
        import yaml  # only a submission needs it, and it would slow down every start

        with path.open(encoding="utf-8") as file:
            template = yaml.safe_load(file)
    for step in template["steps"]:
        for script in (step["script"], *(each["script"] for each in step.get("stepEnvironments", ()))):
            for item in script.get("embeddedFiles", ()):
                item["data"] = embedded[item["name"]].read_text(encoding="utf-8")
    return template


def unchunked(template: dict[str, Any]) -> dict[str, Any]:
    """The same template with one frame a task.

    The expansion of `CHUNK[INT]` takes time and memory for each frame of the job, that of INT takes none.
    """
    for step in template["steps"]:
        for parameter in step["parameterSpace"]["taskParameterDefinitions"]:
            if parameter["type"] == "CHUNK[INT]":
                parameter["type"] = "INT"
                del parameter["chunks"]
    template["extensions"].remove("TASK_CHUNKING")
    if not template["extensions"]:
        del template["extensions"]
    template["parameterDefinitions"] = [
        p for p in template["parameterDefinitions"] if p["name"] != "ChunkSize"
    ]
    return template


def aim_at(template: dict[str, Any], target_s: float) -> None:
    """Let chunks of frames take about so long: the farm cuts them while the job runs. Raises UserError."""
    if not 1 <= target_s <= 86400:
        raise UserError(f"tasks of {target_s:g} s cannot be: give 1 s to a day")
    for step in template["steps"]:
        for parameter in step["parameterSpace"]["taskParameterDefinitions"]:
            if parameter["type"] == "CHUNK[INT]":
                parameter["chunks"]["targetRuntimeSeconds"] = round(target_s)


def on_gpus(template: dict[str, Any], count: int) -> None:
    """Give every step's tasks `count` GPUs; 0 asks for none. Raises UserError."""
    if not 0 <= count <= MAX_GPUS:
        raise UserError(f"{count} GPUs for a task cannot be: give 1 to {MAX_GPUS}")
    if count:
        for step in template["steps"]:
            needs = step.setdefault("hostRequirements", {})
            needs.setdefault("amounts", []).append({"name": "amount.worker.gpu", "min": count})


@dataclass(slots=True)
class Literals:
    """Text that must reach a command as it is.

    A format string has no escape for double braces, so such text travels as the value of a job parameter,
    which is not read again.
    """

    definitions: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)

    def format_string(self, text: str, *, is_whole: bool = True) -> str:
        """A format string that gives `text`. `is_whole`: nothing is put before or after it."""
        refuse_controls(text, "an argument")
        if "{{" not in text and "}}" not in text and (is_whole or not ("{" in text or "}" in text)):
            return text
        name = f"Literal{len(self.definitions) + 1}"
        if len(self.definitions) == 40:
            raise UserError("more than 40 arguments hold braces: put them into a script and run that")
        self.definitions.append(
            {"name": name, "type": "STRING", "userInterface": {"control": "HIDDEN"}, "default": ""}
        )
        self.values[name] = text
        return f"{{{{Param.{name}}}}}"


def first_chunk(frames: Sequence[int], chunk_size: int) -> str:
    """The text of a chunk parameter's first value; OpenJD makes all chunks of a step about equally long."""
    ordered = sorted(set(frames))
    chunks = math.ceil(len(ordered) / chunk_size)
    return canonical(ordered[: math.ceil(len(ordered) / chunks)])


def first_command(submission: Submission, task: Mapping[str, str]) -> tuple[str, ...]:
    """What the first step's script runs for the task of these parameter values, as an argument list.

    Where `plugins/keeper.py` keeps the renderer, that is the renderer's command with the task's arguments, as
    if it were started for this task alone. Embedded files are shown by their names. Raises UserError when a
    name is not known.
    """
    step = submission.template["steps"][0]
    script = step["script"]
    environments = [each["script"] for each in step.get("stepEnvironments", ())]
    names = {"Session.WorkingDirectory": "."}
    names |= {f"Task.Param.{name}": value for name, value in task.items()}
    names |= {f"Task.File.{item['name']}": item["filename"] for item in script.get("embeddedFiles", ())}
    for each in environments:
        names |= {f"Env.File.{item['name']}": item["filename"] for item in each.get("embeddedFiles", ())}
    for definition in submission.template.get("parameterDefinitions", ()):
        value = submission.parameters.get(definition["name"], definition.get("default"))
        if value is not None:
            names[f"Param.{definition['name']}"] = str(value)

    def resolve(text: str) -> str:
        return _EXPRESSION.sub(lambda match: _known(names, match.group(1)), text)

    action = script["actions"]["onRun"]
    words = [action["command"], *action.get("args", ())]
    for each in environments:
        entering = each["actions"]["onEnter"]["args"]
        words = [*entering[entering.index("--") + 1 :], *words[words.index("--") + 1 :]]
    return tuple(map(resolve, words))


def _known(names: Mapping[str, str], name: str) -> str:
    if name not in names:
        raise UserError(f"the template uses {name}, which has no value")
    return names[name]
