"""Which renderers this machine has: what their plugins say, and what they said to the agent before."""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from farm.text import clean
from workers.benchmark import PLUGINS

_LOG = logging.getLogger(__name__)
VERSION_TIMEOUT_S = 20.0
"""A renderer that does not tell its version within this time is taken as absent."""
_KEPT = "software.json"


def remembered(state_dir: Path) -> dict[str, str] | None:
    """What `remember` kept, None when there is nothing that can be read."""
    try:
        kept = json.loads((state_dir / _KEPT).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or not all(isinstance(version, str) for version in kept.values()):
        return None
    return kept


def remember(state_dir: Path, software: dict[str, str]) -> None:
    """Keep it for an agent that has renderers to take over, and no time to ask."""
    try:
        fresh = state_dir / (_KEPT + ".new")
        fresh.write_text(json.dumps(software), encoding="utf-8")
        os.replace(fresh, state_dir / _KEPT)
    except OSError as error:
        _LOG.warning("the renderers' versions cannot be kept for the next start: %s", error)


def software_versions(
    points: Iterable[EntryPoint] | None = None, *, timeout_s: float = VERSION_TIMEOUT_S
) -> dict[str, str]:
    """Renderer name to version, as the plugins tell; asked in parallel.

    A plugin that fails or takes too long counts as absent, with a line in the log: one broken plugin must not
    keep a node from rendering with the others.
    """
    found: dict[str, str] = {}
    threads: list[tuple[str, threading.Thread]] = []
    for point in entry_points(group=PLUGINS) if points is None else points:
        # Daemon threads: one that hangs must not keep the agent from ending.
        thread = threading.Thread(target=_ask_version, args=(point, found), daemon=True)
        thread.start()
        threads.append((point.name, thread))
    deadline = time.monotonic() + timeout_s
    for name, thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
        if thread.is_alive():
            _LOG.warning("%s does not tell its version and is taken as absent", name)
    return dict(found)


def _ask_version(point: EntryPoint, found: dict[str, str]) -> None:
    try:
        version = point.load().version()
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises, the node goes on without it
        _LOG.warning("%s is taken as absent: %s", point.name, clean(str(error), limit=200, one_line=True))
        return
    if version:
        found[point.name] = clean(str(version), limit=60, one_line=True)


def bpy_shim(
    software: dict[str, str],
    directory: Path,
    *,
    points: Iterable[EntryPoint] | None = None,
    which: Callable[[str], str | None] = shutil.which,
) -> Path | None:
    """Where only the `bpy` wheel renders: a directory for PATH with a `blender` made from it, else None."""
    if "blender" not in software or which("blender") is not None:
        return None
    for point in entry_points(group=PLUGINS, name="blender") if points is None else points:
        try:
            runner = importlib.import_module(point.module.rpartition(".")[0] + ".bpy_runner")
            directory.mkdir(parents=True, exist_ok=True)
            runner.shim(directory)
        except (ImportError, AttributeError, OSError) as error:
            _LOG.warning("no blender command can be made from the bpy wheel: %s", error)
            return None
        return directory
    return None
