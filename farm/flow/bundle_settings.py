"""Settings in the files of a bundle: `farm:*` and `deadline:*` among its parameter values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final

from farm.errors import UserError
from farm.flow.order import parse_order
from farm.flow.template_text import shown
from farm.model.limits import check_limit_name
from farm.model.work import OutputSpec, Tag

_OURS: Final[Mapping[str, str]] = {
    "priority": "priority",
    "pool": "pool",
    "project": "project",
    "preempt": "preempts",
    "paused": "is_paused",
    "retries": "max_retries",
    "max_failed_tasks": "max_failed_tasks",
    "max_running": "max_running",
    "limits": "limits",
    "profile": "tag",
    "timeout_s": "timeout_s",
    "reverse": "reverse",
    "order": "order",
    "frame_by_frame": "frame_by_frame",
    "replace_existing": "replace_existing",
    "trust_scripts": "trust_scripts",
    "depends_on": "depends_on",
    "keep_sessions": "keep_sessions",
}
"""`farm:NAME` -> field of JobSettings. `farm:output` is told apart."""
_DEADLINES: Final[Mapping[str, str]] = {
    "priority": "priority",
    "maxFailedTasksCount": "max_failed_tasks",
    "maxRetriesPerTask": "max_retries",
    "maxWorkerCount": "max_running",
}
_OUTPUT: Final = "output"


def read_bundle_settings(parameter_values: list[dict[str, Any]]) -> tuple[dict[str, str], dict[str, Any]]:
    """Split a bundle's `parameterValues` into job parameters (as text) and settings.

    The settings are fields of JobSettings, and "outputs" (a tuple of OutputSpec) from `farm:output`.
    `farm:*` beats `deadline:*`; names with other prefixes belong to other applications and are skipped.
    Raises UserError.
    """
    parameters: dict[str, str] = {}
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    seen: set[str] = set()
    if not isinstance(parameter_values, list):
        raise UserError("parameterValues must be a list of entries with 'name' and 'value'")
    for entry in parameter_values:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or "value" not in entry:
            raise UserError(
                f"each of parameterValues must have a 'name' and a 'value', unlike {shown(repr(entry))}"
            )
        name, value = entry["name"], entry["value"]
        if name in seen:
            raise UserError(f"parameterValues gives {shown(name)} twice")
        seen.add(name)
        prefix, colon, key = name.partition(":")
        if not colon:
            parameters[name] = _parameter_text(name, value)
        elif prefix == "farm" and key == _OUTPUT:
            ours["outputs"] = _read_outputs(value)
        elif prefix == "farm":
            if key not in _OURS:
                names = [*_OURS, _OUTPUT]
                close = get_close_matches(key, names, n=1, cutoff=0.4)
                known = f"did you mean farm:{close[0]}?" if close else f"there are {', '.join(names)}"
                raise UserError(f"there is no setting {shown(name)}; {known}")
            ours[_OURS[key]] = _setting(name, _OURS[key], value)
        elif name == "deadline:targetTaskRunStatus":
            if value not in ("READY", "SUSPENDED"):
                raise UserError(f"{name} is READY or SUSPENDED, not {shown(str(value))}")
            theirs["is_paused"] = value == "SUSPENDED"
        elif prefix == "deadline" and key in _DEADLINES:
            theirs[_DEADLINES[key]] = _setting(name, _DEADLINES[key], value)
    return parameters, theirs | ours


def _parameter_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False, default=str)
    raise UserError(f"parameter {shown(name)} must be text, a number or a list, not {type(value).__name__}")


def _setting(name: str, field: str, value: Any) -> Any:
    """The value of a JobSettings field from what a file may hold; ranges are `plan_job`'s business."""
    if field in (
        "frame_by_frame",
        "is_paused",
        "preempts",
        "reverse",
        "replace_existing",
        "trust_scripts",
        "keep_sessions",
    ):
        return _as_bool(name, value)
    if field == "limits":
        return _limits(name, value)
    if field in ("pool", "project"):
        if not isinstance(value, str):
            raise UserError(f"{name} must be text, not {shown(str(value))}")
        return value if field == "project" else value or None
    if field == "order":
        return parse_order(str(value))
    if field == "tag":
        if value not in [tag.value for tag in Tag]:
            raise UserError(f"{name} is one of {', '.join(Tag)}, not {shown(str(value))}")
        return Tag(value)
    if field == "timeout_s":
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"{name} must be a number of seconds, not {shown(str(value))}") from None
    if field == "depends_on":
        return tuple(_as_int(name, each) for each in (value if isinstance(value, list) else [value]))
    number = _as_int(name, value)
    # Deadline writes -1 for "as many as there are".
    return None if field == "max_running" and number == -1 else number


def _limits(name: str, value: Any) -> dict[str, int]:
    """`{arnold: 1}`, or a list of names, or one name."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list):
        return read_limit_needs([str(each) for each in value], what=name)
    if not isinstance(value, dict):
        raise UserError(f"{name} is a mapping such as {{arnold: 1}}, or a list of names")
    return {check_limit_name(str(limit)): _as_int(name, amount) for limit, amount in value.items()}


def read_limit_needs(texts: Iterable[str], *, what: str) -> dict[str, int]:
    """`NAME` or `NAME=N` each, as people type them; 1 when no number is given. Raises UserError."""
    needs: dict[str, int] = {}
    for text in texts:
        name, is_given, amount = text.partition("=")
        name = check_limit_name(name)
        if name in needs:
            raise UserError(f"{what} gives {name} twice")
        needs[name] = _as_int(f"{what} {shown(name)}", amount) if is_given else 1
    return needs


def _as_int(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
        return int(value)
    raise UserError(f"{name} must be a whole number, not {shown(str(value))}")


def _as_bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    told = str(value).strip().lower()
    if told in ("true", "yes", "on", "1"):
        return True
    if told in ("false", "no", "off", "0"):
        return False
    raise UserError(f"{name} is true or false, not {shown(str(value))}")


def _read_outputs(value: Any) -> tuple[OutputSpec, ...]:
    known = {field.name for field in fields(OutputSpec)}
    outputs = []
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, dict):
            raise UserError("farm:output must be a mapping (or a list of them) with step, file_pattern, ...")
        for key in entry:
            if key not in known:
                raise UserError(f"farm:output has no {shown(str(key))}; it has {', '.join(sorted(known))}")
        for key in ("step", "directory_parameter", "file_pattern"):
            if not isinstance(entry.get(key), str):
                raise UserError(f"farm:output needs {key}, as text")
        for key in ("frames_parameter", "part_parameter"):
            if entry.get(key) is not None and not isinstance(entry[key], str):
                raise UserError(f"farm:output: {key} must be text")
        outputs.append(
            OutputSpec(
                step=entry["step"],
                directory_parameter=entry["directory_parameter"],
                file_pattern=entry["file_pattern"],
                frames_parameter=entry.get("frames_parameter"),
                part_parameter=entry.get("part_parameter"),
                is_image=_as_bool("farm:output is_image", entry.get("is_image", True)),
            )
        )
    return tuple(outputs)
