"""What belongs to a whole process: who changes it for a moment must put it back."""

from __future__ import annotations

import locale
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping

_SIGNALS = [
    (number, f"handler of {number.name}")
    for number in signal.Signals
    if number is not signal.SIGALRM  # pytest-timeout's, which lets go of it when a test has failed
]

_OTHERS = {"PYTEST_CURRENT_TEST", "OpenImageIO_ROOT"}
"""Variables that no test sets: pytest does, and OpenImageIO when it is first imported."""


def process_state() -> dict[str, object]:
    """Name to a value that can be compared and shown. It is asked around every test, and takes 0.1 ms."""
    log = logging.getLogger()
    return {
        **{f"${name}": value for name, value in os.environ.items() if name not in _OTHERS},
        **{name: signal.getsignal(number) for number, name in _SIGNALS},
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "working directory": os.getcwd(),
        "umask": _umask(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "limit of open files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "limit of a core file": resource.getrlimit(resource.RLIMIT_CORE),
        "level up to which nothing is logged": logging.root.manager.disable,
        "level of the log": log.level,
        # pytest hangs its own in for each phase of a test.
        "handlers of the log": [h for h in log.handlers if not type(h).__module__.startswith("_pytest.")],
        "locale": locale.setlocale(locale.LC_ALL),
        "sys.path": list(sys.path),
        "timeout of sockets": socket.getdefaulttimeout(),
    }


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [
        f"{name} was {before.get(name)!r}, is {after.get(name)!r}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _umask() -> bytes:
    """Asked of the kernel: `os.umask` would change it for a moment, which another thread may see."""
    with open("/proc/self/status", "rb") as status:
        return next(line.split()[1] for line in status if line.startswith(b"Umask:"))
