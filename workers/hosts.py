"""A session host's process, as the agent's one selector loop sees it: lines out, lines in, death.

`HostProcess` is one that this agent has started, `TakenOverHost` one that an earlier agent has left running
and that `find_hosts` found by its socket.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.text import clean
from farm.wire.messages import FromHost, HostHolds, HostLeave, UnknownMessage, dump, load
from workers.containment import SHELL_SIGNAL_BASE
from workers.processes import start_time

_LOG = logging.getLogger(__name__)
_MOST_LINE_BYTES = 16 * 1024 * 1024
"""A host that sends a longer line is out of its mind, and killed."""
ADDRESS_SUFFIX = ".socket"
_ANSWER_S = 5.0
"""A host that says nothing for this long after a connect hangs."""
_REAP_POLL_S = 0.02


class SessionHost:
    """Owned by the thread that made it.

    `on_message(host, message)` is called for each line that can be read, `on_death(host)` once, when the
    process has ended and everything it said has been handed over. The process is then not yet reaped: see
    `reap`.
    """

    def __init__(
        self,
        host_id: int,
        pid: int,
        incoming: int,
        outgoing: int,
        selector: selectors.BaseSelector,
        on_message: Callable[[SessionHost, Any], None],
        on_death: Callable[[SessionHost], None],
    ) -> None:
        """pid: of the outermost process, which leads a session of its own. incoming, outgoing: the two ends
        of the way to the host, which are closed with it."""
        self.host_id = host_id
        self.pid = pid
        self._selector = selector
        self._on_message = on_message
        self._on_death = on_death
        self._is_dead = False
        self._partial = b""
        self._unsent = b""
        self._incoming = incoming
        self._outgoing = outgoing
        os.set_blocking(incoming, False)
        os.set_blocking(outgoing, False)
        selector.register(incoming, selectors.EVENT_READ, self._readable)
        self._is_writing = False
        self._pidfd: int | None = None
        if hasattr(os, "pidfd_open"):
            # The end of its output is no proof of death, and may come late: a child can hold the pipe.
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(pid)
                selector.register(self._pidfd, selectors.EVENT_READ, self._exited)

    def send(self, message: Any) -> None:
        """Queue one line; never blocks. A host that is dead ignores it."""
        self._unsent += dump(message) + b"\n"
        self._write()

    def leave(self) -> None:
        """Tell the host to go."""
        self.send(HostLeave())
        self._hang_up()

    def kill(self) -> None:
        """End the process and its group; containment ends the rest."""
        if not self._has_exited():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap(self, timeout_s: float) -> str:
        """Wait for the process (from any thread, after `on_death`); returns how it ended, for people."""
        raise NotImplementedError

    def _has_exited(self) -> bool:
        raise NotImplementedError

    def _write(self) -> None:
        if self._outgoing < 0:
            self._unsent = b""
            return
        try:
            while self._unsent:
                written = os.write(self._outgoing, self._unsent)
                self._unsent = self._unsent[written:]
        except BlockingIOError:
            if not self._is_writing:
                self._is_writing = True
                self._selector.register(self._outgoing, selectors.EVENT_WRITE, self._write)
            return
        except OSError:
            self._unsent = b""  # it has gone: its death is told elsewhere
        self._stop_writing()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._selector.unregister(self._outgoing)

    def _hang_up(self) -> None:
        if self._outgoing >= 0:
            self._stop_writing()
            os.close(self._outgoing)
            self._outgoing = -1

    def _readable(self) -> None:
        if not self._is_dead and not self._read_some():
            self._die()

    def _read_some(self) -> bool:
        """Read what is there; False at the end of the output."""
        try:
            data = os.read(self._incoming, 1 << 18)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        self._take_in(data)
        if len(self._partial) > _MOST_LINE_BYTES:
            _LOG.error("session host %d sent a line without end and is killed", self.host_id)
            self._partial = b""
            self.kill()
        return True

    def _take_in(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._take(line)

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
        if self._is_dead:
            return  # its output ended in the same turn: the descriptor may be somebody else's by now
        # Its last words may still be in the pipe. A grandchild that goes on writing is not listened to for
        # ever.
        for _ in range(64):
            if not (self._has_more() and self._read_some()):
                break
        self._die()

    def _has_more(self) -> bool:
        look = select.poll()
        look.register(self._incoming, select.POLLIN)
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
        self._selector.unregister(self._incoming)
        self._hang_up()
        os.close(self._incoming)
        if self._pidfd is not None:
            self._selector.unregister(self._pidfd)
            os.close(self._pidfd)


class HostProcess(SessionHost):
    """A host that this agent starts."""

    def __init__(
        self,
        host_id: int,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        selector: selectors.BaseSelector,
        on_message: Callable[[SessionHost, Any], None],
        on_death: Callable[[SessionHost], None],
    ) -> None:
        """Starts the process; raises OSError when it cannot be started."""
        from_host, its_output = os.pipe()
        its_input, to_host = os.pipe()
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=its_input,
                stdout=its_output,
                env=dict(environment),
                cwd=cwd,
                # A Ctrl-C in the agent's terminal is for the agent alone, and `kill` reaches the whole group.
                start_new_session=True,
            )
        except OSError:
            os.close(from_host)
            os.close(to_host)
            raise
        finally:
            os.close(its_input)
            os.close(its_output)
        super().__init__(host_id, self._process.pid, from_host, to_host, selector, on_message, on_death)

    def reap(self, timeout_s: float) -> str:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
            return "it closed its output and did not exit"
        return _how(code)

    def _has_exited(self) -> bool:
        return self._process.returncode is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A host of an earlier agent, connected to."""

    address: Path
    connection: socket.socket
    pid: int
    """Of its outermost process, as `SessionHost.pid`."""
    started: float
    """With the pid and this boot it names one process for ever."""
    holds: HostHolds
    more: bytes
    """What it said after that, as far as it has been read."""


class TakenOverHost(SessionHost):
    """A host that an earlier agent has started. Mostly not our child: how it ends is not told to us."""

    def __init__(
        self,
        host_id: int,
        found: Found,
        selector: selectors.BaseSelector,
        on_message: Callable[[SessionHost, Any], None],
        on_death: Callable[[SessionHost], None],
    ) -> None:
        self._started = found.started
        incoming = found.connection.detach()
        super().__init__(host_id, found.pid, incoming, os.dup(incoming), selector, on_message, on_death)
        self._more = found.more

    def listen(self) -> None:
        """Hand over what it has said already; to be called once, when the answers can be taken."""
        more, self._more = self._more, b""
        self._take_in(more)

    def reap(self, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while not self._has_exited():
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(_REAP_POLL_S)
        try:
            # An agent that was replaced in place is still its parent.
            return _how(os.waitstatus_to_exitcode(os.waitpid(self.pid, os.WNOHANG)[1]))
        except ChildProcessError:
            return "it ended"

    def _has_exited(self) -> bool:
        return start_time(self.pid) != self._started


def find_hosts(directory: Path) -> tuple[list[Found], list[int]]:
    """Those of earlier agents that listen below `directory` and answer; and the pids of those that do not.

    Sockets that nobody listens on any more are removed.
    """
    found, mute = [], []
    for address in sorted(directory.glob("*" + ADDRESS_SUFFIX)):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_ANSWER_S)
        try:
            with host_address(address) as name:
                connection.connect(name)
        except OSError:
            connection.close()
            address.unlink(missing_ok=True)
            continue
        peer, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            pid = os.getsid(peer)
            started = start_time(pid)
            holds, more = _first_words(connection)
        except (OSError, UnknownMessage) as error:
            _LOG.warning("a session host (process %d) does not answer: %s", peer, error)
            connection.close()
            mute.append(peer)
            continue
        if started is None:
            connection.close()
            continue
        found.append(
            Found(address=address, connection=connection, pid=pid, started=started, holds=holds, more=more)
        )
    return found, mute


def _first_words(connection: socket.socket) -> tuple[HostHolds, bytes]:
    data = b""
    while b"\n" not in data:
        more = connection.recv(1 << 18)
        if not more:
            raise ConnectionError("it hung up")
        data += more
    line, _, rest = data.partition(b"\n")
    holds = load(FromHost, line)
    if not isinstance(holds, HostHolds):
        raise UnknownMessage("it did not say what it holds")
    return holds, rest


@contextlib.contextmanager
def host_address(path: Path) -> Iterator[str]:
    """A name for a socket at `path` that is short enough for the kernel (108 bytes), however deep it lies."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _how(code: int) -> str:
    number = -code if code < 0 else code - SHELL_SIGNAL_BASE
    if number > 0:
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    return f"exit status {code}"
