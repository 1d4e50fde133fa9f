"""Paths of one system as another sees them: `Z:\\projects\\a` is `/mnt/projects/a` there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_DRIVE: Final = re.compile(r"[A-Za-z]:([\\/]|$)|\\\\")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@dataclass(frozen=True, slots=True)
class PathRule:
    """What lies below `source` on the system where it was submitted lies below `destination` here."""

    source: str
    destination: str

    @property
    def is_windows(self) -> bool:
        """Then case does not matter, and both slashes part names."""
        return _DRIVE.match(self.source) is not None


def path_rules(table: Mapping[str, str]) -> tuple[PathRule, ...]:
    """Of source -> destination, the longest source first: the closest rule holds."""
    rules = [PathRule(source, destination) for source, destination in table.items() if source]
    return tuple(sorted(rules, key=lambda rule: -len(rule.source)))


def map_path(path: str, rules: tuple[PathRule, ...]) -> str:
    """`path` by the first rule that holds, name by name; itself where none does."""
    for rule in rules:
        parts, below = _parts(path, rule.is_windows), _parts(rule.source, rule.is_windows)
        compared = [part.lower() for part in parts] if rule.is_windows else parts
        wanted = [part.lower() for part in below] if rule.is_windows else below
        if wanted and compared[: len(wanted)] == wanted:
            rest = parts[len(wanted) :]
            is_windows_here = _DRIVE.match(rule.destination) is not None
            joint = "\\" if is_windows_here else "/"
            start = rule.destination.rstrip("/\\") if rest else rule.destination
            return joint.join([start, *rest])
    return path


def map_parameters(
    parameters: Mapping[str, tuple[str, str]], rules: tuple[PathRule, ...]
) -> dict[str, tuple[str, str]]:
    """Parameters (OpenJD type, text) with those of PATH and LIST[PATH] mapped."""
    made = {}
    for name, (kind, text) in parameters.items():
        if kind.upper() == "PATH":
            text = map_path(text, rules)
        elif kind.upper() == "LIST[PATH]":
            text = _map_list(text, rules)
        made[name] = (kind, text)
    return made


def _map_list(text: str, rules: tuple[PathRule, ...]) -> str:
    try:
        paths = json.loads(text)
    except ValueError:
        return text
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return text
    return json.dumps([map_path(path, rules) for path in paths], ensure_ascii=False)


def _parts(path: str, is_windows: bool) -> list[str]:
    if _URI.match(path):
        return path.rstrip("/").split("/")
    return re.split(r"[\\/]+" if is_windows else "/+", path.rstrip("\\/" if is_windows else "/"))
