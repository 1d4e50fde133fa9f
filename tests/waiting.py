"""Waiting for a condition, never for a time: a time-out shows what was seen last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(look: Callable[[], T], what: str, *, timeout_s: float = 60.0, pause_s: float = 0.05) -> T:
    """Look again and again until the answer is true; returns it. Fails with the last answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}; last seen: {seen!r}")
        threading.Event().wait(pause_s)
