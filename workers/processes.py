"""Processes by pid, start time and boot id; and the search for those that belong to an attempt.

The one place of the agent that reads /proc. On other systems everything here says "unknown" or "none".
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from farm.model.ids import AttemptId

TAG = "FARM_ATTEMPT_ID"
"""The environment variable that every process of an attempt carries."""
_PROC = Path("/proc")


def boot_id() -> str:
    """This boot's random name; empty where the system has none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def boottime() -> float:
    """Seconds since boot, suspended time included; monotonic time where the system has no such clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def start_time(pid: int) -> float | None:
    """When the process started, in clock ticks since boot; None when there is no such process."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name (field 2) is in brackets and may hold anything, blanks and brackets too.
    fields = stat.rpartition(b")")[2].split()
    is_dead = fields[0] in (b"Z", b"X")
    return None if is_dead else float(fields[19])


def tagged(attempt_ids: Collection[AttemptId]) -> list[tuple[int, float]]:
    """(pid, start time) of every process whose environment names one of the attempts."""
    wanted = {f"{TAG}={attempt_id}".encode() for attempt_id in attempt_ids}
    found: list[tuple[int, float]] = []
    try:
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    except OSError:
        return found
    for pid in pids:
        if pid == os.getpid():
            continue
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue  # another user's, or gone
        if wanted.isdisjoint(environment.split(b"\0")):
            continue
        started = start_time(pid)
        if started is not None:
            found.append((pid, started))
    return found


def kill_tagged(attempt_ids: Collection[AttemptId], *, timeout_s: float = 5.0) -> int:
    """Kill every process of the attempts, those born meanwhile too; returns how many are left (0 but for
    processes that the kernel cannot end, such as one that waits for a dead file server)."""
    if not attempt_ids:
        return 0
    deadline = time.monotonic() + timeout_s
    while left := tagged(attempt_ids):
        for pid, started in left:
            kill_one(pid, started)
        if time.monotonic() >= deadline:
            return len(left)
        time.sleep(0.02)
    return 0


def kill_one(pid: int, started: float | None) -> None:
    """Kill the process if it is still the one that started then."""
    if started is not None and start_time(pid) == started:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel gives the first PID namespace this number."""


def descendants() -> frozenset[int] | None:
    """Pids of this process and all below it, as the host counts them; None in a container.

    Drivers tell the host's pids. A process in a PID namespace of its own cannot know which are its own.
    """
    try:
        if os.readlink(_PROC / "self/ns/pid") != _INITIAL_PID_NAMESPACE:
            return None
    except OSError:
        return None
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                # "pid (name) state ppid": the name may hold anything, also blanks and brackets.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
            except (OSError, IndexError, ValueError):
                continue  # it has ended meanwhile
    found = {os.getpid()}
    waiting = [os.getpid()]
    while waiting:
        children = [pid for pid in parents.get(waiting.pop(), []) if pid not in found]
        found.update(children)
        waiting += children
    return frozenset(found)
