"""Tell the person at the desk that something has ended: a desktop notification, else the terminal's bell."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final

from farm.settings import TERMINAL_VARIABLES, inherited_environment
from farm.text import clean

_OSC9: Final = frozenset({"iTerm.app", "WezTerm", "ghostty", "rio", "WarpTerminal"})
"""Values of TERM_PROGRAM whose terminals show OSC 9 as a notification."""
_TIMEOUT_S: Final = 5.0
_LONGEST: Final = 200


def way(environment: Mapping[str, str], *, is_terminal: bool, has_notify_send: bool) -> str:
    """ "notify-send", "osc9", "bell" or "none"."""
    has_desktop = any(
        environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS")
    )
    if has_notify_send and has_desktop:
        return "notify-send"
    if not is_terminal:
        return "none"
    is_wrapped = "TMUX" in environment or environment.get("TERM", "").startswith(("screen", "tmux"))
    is_known = (
        environment.get("TERM_PROGRAM") in _OSC9
        or "KITTY_WINDOW_ID" in environment
        or "WT_SESSION" in environment
    )
    return "osc9" if is_known and not is_wrapped else "bell"


def notify(title: str, text: str, *, run: Callable[..., object] = subprocess.run) -> str:
    """Show both; returns the way that was taken. Never fails: who waits for frames must not lose the wait."""
    program = shutil.which("notify-send")
    environment = inherited_environment(TERMINAL_VARIABLES)
    title, text = (clean(part, limit=_LONGEST, one_line=True) for part in (title, text))
    chosen = way(environment, is_terminal=sys.stderr.isatty(), has_notify_send=program is not None)
    if chosen == "notify-send" and program is not None:
        try:
            # After `--` nothing is an option. Notification servers may read markup in the text.
            escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            run(
                [program, "--app-name=Ridgeline", "--", title, escaped],
                check=True,
                timeout=_TIMEOUT_S,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            return chosen
        except (OSError, subprocess.SubprocessError):
            chosen = "bell" if sys.stderr.isatty() else "none"
    if chosen == "osc9":
        sys.stderr.write(f"\x1b]9;{title}: {text}\x07")
    elif chosen == "bell":
        sys.stderr.write("\a")
    sys.stderr.flush()
    return chosen
