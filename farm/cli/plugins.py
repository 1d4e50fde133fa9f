"""The plugins that are installed here, by name and by file extension."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from farm.cli.bundle import SUFFIXES
from farm.cli.show import shown
from farm.errors import UserError
from farm.model.plugin import Plugin

GROUP: Final = "ridgeline.plugins"
COMMAND: Final = "command"


def load_plugins(points: Sequence[EntryPoint] | None = None) -> tuple[dict[str, Plugin], dict[str, str]]:
    """(plugins by name, reasons by name of those that cannot be loaded). `points` is for tests."""
    plugins: dict[str, Plugin] = {}
    broken: dict[str, str] = {}
    for point in entry_points(group=GROUP) if points is None else points:
        try:
            loaded = point.load()
        except (ImportError, AttributeError, SyntaxError) as error:
            broken[point.name] = f"{type(error).__name__}: {error}"
            continue
        if isinstance(loaded, Plugin):
            plugins[point.name] = loaded
        else:
            broken[point.name] = f"{point.value} is no Plugin"
    return plugins, broken


def plugin_for(scene: Path, plugins: dict[str, Plugin]) -> Plugin:
    """The plugin that takes this file. Raises UserError that names the nearest known extension."""
    suffix = scene.suffix.lower()
    for plugin in plugins.values():
        if suffix in plugin.extensions:
            return plugin
    known = sorted(
        {extension for plugin in plugins.values() for extension in plugin.extensions} | set(SUFFIXES)
    )
    close = get_close_matches(suffix, known, n=1)
    hint = f"did you mean {shown(scene.stem, 80)}{close[0]}? " if close else ""
    if os.access(scene, os.X_OK):
        hint = f"to run it on a node: farm submit -- {shown(str(scene), 300)}; "
    raise UserError(
        f"cannot tell what renders {shown(scene.name, 80)}: {hint}"
        f"the farm takes {' '.join(known)}, and any command after --"
    )
