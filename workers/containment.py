"""No renderer outlives its attempt: how a session host is started, and how it ends what is left.

Best: the host lives in a PID namespace of its own, below a process 1 that collects orphans (`become_init`):
the death of either, or of the host's parent, ends everything in there, `setsid` and double forks included.
Where the system allows no namespace, the host is a *subreaper*: orphans become its children and it finds
them, but when it is itself killed with SIGKILL they live on, and the agent ends them by their environment tag
(`workers/processes.py`).
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PROBE_TIMEOUT_S = 10.0
_FIRST_WAIT_S = 0.0005
_LONGEST_WAIT_S = 0.05
SHELL_SIGNAL_BASE = 128
"""Process 1 tells by an exit status above this that a signal ended the host."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

HOST_MODULE = "workers.session_host"


class Containment(StrEnum):
    """How a host's processes are held together."""

    PID_NAMESPACE = "pid-namespace"
    USER_NAMESPACE = "user-namespace"
    """A PID namespace inside a user namespace: needs no privilege."""
    SUBREAPER = "subreaper"


# `setpriv --pdeathsig` ends the outer process with the thread that started it (only where the host is not to
# outlive its agent), `--kill-child` ends process 1
# of the namespace with the outer process. Entering a user namespace raises capabilities and so clears the
# death signal: it is set again inside. The capabilities are for the mount of /proc, and dropped after it.
# Slave: a file system that is mounted while the host lives appears inside too (where mounts are shared).
_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
_NAMESPACE = (
    *("unshare", "--pid", "--fork", "--kill-child"),
    *("--mount-proc", "--propagation", "slave", "--"),
)


def _prefix(containment: Containment, *, ends_with_parent: bool) -> list[str]:
    tie = _WITH_PARENT if ends_with_parent else ()
    match containment:
        case Containment.PID_NAMESPACE:
            return [*tie, *_NAMESPACE]
        case Containment.USER_NAMESPACE:
            return [
                *("unshare", "--user", "--map-current-user", "--keep-caps", "--"),
                *tie,
                *_NAMESPACE,
                *("setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--"),
            ]
        case Containment.SUBREAPER:
            return []


@functools.cache
def probe() -> Containment:
    """The best containment that works here. Tries each once; the answer is kept for the process's life."""
    for containment in (Containment.PID_NAMESPACE, Containment.USER_NAMESPACE):
        prefix = _prefix(containment, ends_with_parent=True)
        if shutil.which("setpriv") is None or shutil.which("unshare") is None:
            break
        if containment is Containment.PID_NAMESPACE and os.geteuid() != 0:
            continue
        try:
            # Process 1 of its own /proc, or it is no containment.
            done = subprocess.run(
                [*prefix, "sh", "-c", 'test "$$" = 1 && test -d /proc/1 && exec readlink /proc/self'],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.strip() == b"1":
            return containment
    return Containment.SUBREAPER


def host_command(
    python: str, containment: Containment | None = None, *, address: Path | None = None
) -> list[str]:
    """The argument list that starts a session host, contained as well as this system can (see `probe`).

    address: the socket where it waits for the next agent when this one is gone. Without one the host dies
    with the *thread* that starts it: the parent-death signal comes when that ends.
    """
    prefix = _prefix(containment or probe(), ends_with_parent=address is None)
    return [*prefix, python, "-m", HOST_MODULE, *(() if address is None else (str(address),))]


_is_alone = False
"""Whether all processes of this PID namespace but process 1 and this one are the host's to end."""


def become_init() -> None:
    """Where this is process 1: let a child be the host, and collect orphans until it ends. Call it first.

    An orphan that nobody collects looks alive to a script that asks for its number, and waits for its end.
    The host itself cannot do it: a library that waits for a process of its own would find nothing.
    """
    global _is_alone
    if os.getpid() != 1:
        return
    host = os.fork()
    if host == 0:
        _is_alone = True
        return
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)  # the host alone speaks with the agent
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == host:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else SHELL_SIGNAL_BASE - code)


def become_reaper() -> None:
    """Called by a host when it starts: make orphans of its renderers its own children."""
    if not _is_alone:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Every process that the host answers for, itself excepted."""
    if _is_alone:
        try:
            os.kill(-1, 0)  # asks whether there is any, for a tenth of what looking through /proc costs
        except ProcessLookupError:
            return []
        except PermissionError:
            pass
        ours = ("1", str(os.getpid()))
        return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name not in ours]
    found = []
    parents = [os.getpid()]
    while parents:
        children = _children(parents.pop())
        found += children
        parents += children
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except OSError:  # gone meanwhile
        pass
    return found


def is_busy() -> bool:
    """Whether a descendant computes, or waits for a disk."""
    for pid in descendants():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:  # gone meanwhile
            continue
        if stat.rpartition(")")[2].split()[0] in "RD":
            return True
    return False


def reap() -> None:
    """Collect dead children. Not while somebody else waits for a child: it would find nothing."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def family(roots: Collection[int]) -> set[int]:
    """Those of `roots` that live, and all below them."""
    if not roots:
        return set()
    found: set[int] = set()
    waiting = list(set(descendants()).intersection(roots))
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += _children(pid)
    return found


def cpu_s() -> float:
    """CPU seconds of the host's living descendants, and of what they waited for."""
    ticks = 0
    for pid in descendants():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
        except (OSError, IndexError, ValueError):  # gone meanwhile
            continue
    return ticks / _TICKS_PER_S


def kill_leftovers(limit_s: float = 10.0, *, spare: Collection[int] = ()) -> str:
    """End every descendant and wait until none is left. Empty, or one line about what cannot be killed.

    spare: these processes and all below them may live. Whoever still waits for a child of this process loses
    its exit status.
    """
    deadline = time.monotonic() + limit_s
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            # A descendant that is no child of ours has a living ancestor that is, unless process 1 took it.
            if not _is_alone or not descendants():
                return ""
        if spare and not _kill_others(spare):
            return ""
        if not spare:
            _kill_all()
        if time.monotonic() > deadline:
            return _describe_survivor(spare)
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


def _kill_all() -> None:
    if _is_alone:
        try:
            os.kill(-1, signal.SIGKILL)  # all of this namespace, but process 1 and this one
        except ProcessLookupError:
            pass
        return
    for pid in descendants():
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def _kill_others(spare: Collection[int]) -> int:
    """Kill all but the families of `spare`; returns how many there were."""
    others = set(descendants()) - family(spare)
    for pid in others:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    return len(others)


def _describe_survivor(spare: Collection[int]) -> str:
    for pid in set(descendants()) - family(spare):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        state = rest.split()[0]
        if state not in "ZX":
            return f"process {pid} ({name}) cannot be killed (state {state})"
    return "a process cannot be killed"
