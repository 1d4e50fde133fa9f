"""A session host's process, as the agent's one selector loop sees it: lines out, lines in, death."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.text import clean
from farm.wire.messages import FromHost, UnknownMessage, dump, load
from workers.containment import SHELL_SIGNAL_BASE

_LOG = logging.getLogger(__name__)
_MOST_LINE_BYTES = 16 * 1024 * 1024
"""A host that sends a longer line is out of its mind, and killed."""


class HostProcess:
    """Owned by the thread that made it, and dies with that thread, by containment.

    `on_message(host, message)` is called for each line that can be read, `on_death(host)` once, when the
    process has ended and everything it said has been handed over. The process is then not yet reaped: see
    `reap`.
    """

    def __init__(
        self,
        host_id: int,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        selector: selectors.BaseSelector,
        on_message: Callable[[HostProcess, Any], None],
        on_death: Callable[[HostProcess], None],
    ) -> None:
        """Starts the process; raises OSError when it cannot be started."""
        self.host_id = host_id
        self._selector = selector
        self._on_message = on_message
        self._on_death = on_death
        self._is_dead = False
        self._partial = b""
        self._unsent = b""
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            cwd=cwd,
            # A Ctrl-C in the agent's terminal is for the agent alone, and `kill` reaches the whole group.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin.fileno()
        self._stdout = self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        selector.register(self._stdout, selectors.EVENT_READ, self._readable)
        self._is_writing = False
        self._pidfd: int | None = None
        if hasattr(os, "pidfd_open"):
            # The end of its output is no proof of death, and may come late: a child can hold the pipe.
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self._process.pid)
                selector.register(self._pidfd, selectors.EVENT_READ, self._exited)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Any) -> None:
        """Queue one line; never blocks. A host that is dead ignores it."""
        self._unsent += dump(message) + b"\n"
        self._write()

    def close_input(self) -> None:
        """Ask the host to go, once it has nothing to do."""
        self._stop_writing()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def kill(self) -> None:
        """End the process and its group; containment ends the rest."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self, timeout_s: float) -> str:
        """Wait for the process (from any thread, after `on_death`); returns how it ended, for people."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
            return "it closed its output and did not exit"
        number = -code if code < 0 else code - SHELL_SIGNAL_BASE
        if number > 0:
            try:
                return f"killed by {signal.Signals(number).name}"
            except ValueError:
                return f"killed by signal {number}"
        return f"exit status {code}"

    def _write(self) -> None:
        if self._process.stdin is None or self._process.stdin.closed:
            self._unsent = b""
            return
        try:
            while self._unsent:
                written = os.write(self._stdin, self._unsent)
                self._unsent = self._unsent[written:]
        except BlockingIOError:
            if not self._is_writing:
                self._is_writing = True
                self._selector.register(self._stdin, selectors.EVENT_WRITE, self._write)
            return
        except OSError:
            self._unsent = b""  # it has gone: its death is told elsewhere
        self._stop_writing()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._selector.unregister(self._stdin)

    def _readable(self) -> None:
        if not self._read_some():
            self._die()

    def _read_some(self) -> bool:
        """Read what is there; False at the end of the output."""
        try:
            data = os.read(self._stdout, 1 << 18)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._partial) > _MOST_LINE_BYTES:
            _LOG.error("session host %d sent a line without end and is killed", self.host_id)
            self._partial = b""
            self.kill()
        return True

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = load(FromHost, line)
        except UnknownMessage as error:
            _LOG.warning("session host %d: %s", self.host_id, clean(str(error), limit=300, one_line=True))
            return
        self._on_message(self, message)

    def _exited(self) -> None:
        # Its last words may still be in the pipe. A grandchild that goes on writing is not listened to for
        # ever.
        for _ in range(64):
            if not (self._has_more() and self._read_some()):
                break
        self._die()

    def _has_more(self) -> bool:
        look = select.poll()
        look.register(self._stdout, select.POLLIN)
        return bool(look.poll(0))

    def _die(self) -> None:
        if not self._is_dead:
            self.close()
            self._on_death(self)

    def close(self) -> None:
        """Listen to it no more."""
        if self._is_dead:
            return
        self._is_dead = True
        self._selector.unregister(self._stdout)
        self._stop_writing()
        if self._pidfd is not None:
            self._selector.unregister(self._pidfd)
            os.close(self._pidfd)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
