"""What session hosts, and so renderers, see of the agent's own environment variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from farm.settings import Settings, inherited_environment

_LET_THROUGH = ("PATH", "HOME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "USER", "LOGNAME")
"""Variables that renderers see of the agent's own. Never the broker's address or a token."""


def renderer_environment(settings: Settings) -> dict[str, str]:
    """What session hosts, and so renderers, see of the agent's own variables."""
    environment = inherited_environment((*_LET_THROUGH, *settings.renderer_environment))
    # Last: `python` exists on machines that have none, and nothing of the system's is shadowed. An activated
    # virtual environment comes first: a Python inside a renderer (Debian's Blender) would take its library.
    own = str(Path(sys.executable).parent)
    others = [folder for folder in (environment.get("PATH") or os.defpath).split(os.pathsep) if folder != own]
    environment["PATH"] = os.pathsep.join((*others, own))
    return environment
