"""Steps that need no OpenJD session: one command, plain parameters, nothing to enter or to write.

A pure reading of the template. What this module does not understand, it leaves to `workers/session.py`, so
it never has to be complete; it has to give the same command line where it answers at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TEMPLATE_KEYS = frozenset(
    {"$schema", "specificationVersion", "name", "description", "parameterDefinitions", "steps", "extensions"}
)
_STEP_KEYS = frozenset(
    {"name", "description", "script", "parameterSpace", "hostRequirements", "dependencies"}
)
_ACTION_KEYS = frozenset({"command", "args", "timeout"})
_EXTENSIONS = frozenset({"TASK_CHUNKING", "REDACTED_ENV_VARS", "FEATURE_BUNDLE_1"})
"""Those that change nothing in how a command and its arguments are filled in. EXPR does."""
_WORKING_DIRECTORY = "Session.WorkingDirectory"

Parameters = Mapping[str, tuple[str, str]]
"""Name -> (OpenJD type, value as text)."""


@dataclass(frozen=True, slots=True)
class Reference:
    """`{{ name }}` in a format string."""

    name: str


FormatString = tuple[str | Reference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAction:
    """A step's command line, parsed once and filled for each task."""

    words: tuple[FormatString, ...]
    """The command, then its arguments."""
    timeout_s: float | None = None


def plain_action(template: Mapping[str, Any], step: str) -> PlainAction | None:
    """The command of `step`, or None when it takes an OpenJD session to run it."""
    if not template.keys() <= _TEMPLATE_KEYS or not set(template.get("extensions") or ()) <= _EXTENSIONS:
        return None
    found = next((entry for entry in template.get("steps", ()) if entry.get("name") == step), None)
    if found is None or not found.keys() <= _STEP_KEYS:
        return None
    script = found.get("script")
    if not isinstance(script, Mapping) or script.keys() != {"actions"}:
        return None
    actions = script["actions"]
    if not isinstance(actions, Mapping) or actions.keys() != {"onRun"}:
        return None
    action = actions["onRun"]
    if not isinstance(action, Mapping) or not action.keys() <= _ACTION_KEYS or "command" not in action:
        return None
    timeout = action.get("timeout")
    if timeout is not None and (not isinstance(timeout, int) or isinstance(timeout, bool) or timeout < 1):
        return None
    known = _known_names(template, found)
    words = []
    for text in (action["command"], *(action.get("args") or ())):
        parsed = _parse(text, known) if isinstance(text, str) else None
        if parsed is None:
            return None
        words.append(parsed)
    return PlainAction(words=tuple(words), timeout_s=timeout)


def fill(action: PlainAction, job: Parameters, task: Parameters, working_directory: str) -> list[str] | None:
    """The argument list of one task; None when a value is missing (the session says so better)."""
    table = {_WORKING_DIRECTORY: working_directory}
    for prefix, values in (("", job), ("Task.", task)):
        for name, (_, text) in values.items():
            table[f"{prefix}Param.{name}"] = table[f"{prefix}RawParam.{name}"] = text
    try:
        return [
            "".join(table[part.name] if isinstance(part, Reference) else part for part in word)
            for word in action.words
        ]
    except KeyError:
        return None


def _known_names(template: Mapping[str, Any], step: Mapping[str, Any]) -> frozenset[str]:
    names = {_WORKING_DIRECTORY}
    space = step.get("parameterSpace") or {}
    for prefix, definitions in (
        ("", template.get("parameterDefinitions") or ()),
        ("Task.", space.get("taskParameterDefinitions") or ()),
    ):
        for definition in definitions:
            names.add(f"{prefix}Param.{definition['name']}")
            names.add(f"{prefix}RawParam.{definition['name']}")
    return frozenset(names)


def _parse(text: str, known: frozenset[str]) -> FormatString | None:
    """Split at `{{ }}`; None when braces do not pair up or a name is not in `known`."""
    parts: list[str | Reference] = []
    rest = text
    while rest:
        before, opened, after = rest.partition("{{")
        if "}}" in before:
            return None
        if before:
            parts.append(before)
        if not opened:
            break
        inside, closed, rest = after.partition("}}")
        name = inside.strip()
        if not closed or name not in known:
            return None
        parts.append(Reference(name))
    return tuple(parts)
