"""Named places where a test lets a process die, stop, wait or fail (docs/failpoints.md lists them).

Off unless FARM_TEST_FAILPOINTS is set when a program starts: then a place costs a look at an empty dict.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from farm.errors import Unavailable, UserError

_LOG = logging.getLogger(__name__)

NAMES: Final = frozenset(
    {
        "scheduler.taken",
        "scheduler.settled",
        "scheduler.acknowledged",
        "scheduler.expiring",
        "scheduler.matched",
        "scheduler.leased",
        "scheduler.sending",
        "scheduler.sent",
        "desk.submitting",
        "desk.submitted",
        "agent.launch-taken",
        "agent.writing",
        "agent.written",
        "agent.reported",
    }
)
_ACTIONS: Final = ("kill", "stop", "fail", "sleep")


@dataclass(slots=True)
class _Point:
    action: str
    seconds: float = 0.0
    at: int = 0
    """The time it is reached that counts; 0: every time."""
    reached: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


_armed: dict[str, _Point] = {}


def reach(name: str) -> None:
    """The code has come to this place. Raises Unavailable where a test wants it to fail."""
    if _armed:
        _act(name)


def arm(text: str) -> None:
    """Read "scheduler.sent=kill@3;desk.submitting=sleep(2)": what happens where, at which time (all of them).

    kill: SIGKILL to this process. stop: SIGSTOP. sleep(S): so many seconds. fail: as if the other side were
    away.
    Raises UserError for what it cannot read.
    """
    _armed.clear()
    for part in filter(None, text.split(";")):
        name, _, what = part.partition("=")
        action, _, at = what.partition("@")
        seconds = 0.0
        if action.startswith("sleep(") and action.endswith(")"):
            action, seconds = "sleep", _number(action[6:-1], part)
        if name not in NAMES:
            raise UserError(f"there is no failpoint {name!r}; there are {', '.join(sorted(NAMES))}")
        if action not in _ACTIONS:
            raise UserError(f"a failpoint cannot {action!r}; it can {', '.join(_ACTIONS)}")
        _armed[name] = _Point(action=action, seconds=seconds, at=int(_number(at, part)) if at else 0)


def _number(text: str, part: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"{text!r} in the failpoint {part!r} is no number") from error


def _act(name: str) -> None:
    point = _armed.get(name)
    if point is None:
        return
    with point.lock:
        point.reached += 1
        if point.at not in (0, point.reached):
            return
    _LOG.warning("failpoint %s: %s", name, point.action)
    match point.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(point.seconds)
        case "fail":
            raise Unavailable(f"failpoint {name}")
