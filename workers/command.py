"""One command run directly: spawned, listened to, stopped, and its end told. The host's fast path."""

from __future__ import annotations

import errno
import math
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Protocol

from farm.model.states import Outcome
from workers.endings import Ending
from workers.evidence import Sampler
from workers.output import Output

GRACE_S = 2.0
"""Between SIGTERM and SIGKILL."""
_KILL_LIMIT_S = 10.0
_DRAIN_S = 0.5
"""How long the main process's descendants may go on writing after it has ended."""
_CHUNK = 65536
_DRAIN_CHUNKS = 64
_NO_PIDFD_POLL_S = 0.01
_NOT_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these, and what it starts would do so too."""
_MOMENT_S = 0.005
"""So long may a start wait for the end, to be told with it."""
BRIEF_S = 0.05
"""Where the last task of a step was as short as this, the next one's start may wait a moment."""


class Control(Protocol):
    """The agent's side of a running attempt."""

    @property
    def descriptor(self) -> int:
        """Readable when the agent has said something."""
        ...

    @property
    def stop(self) -> tuple[Outcome, str] | None:
        """The agent wants the attempt ended: class and reason."""
        ...

    def receive(self) -> None:
        """Read what the agent has said. Ends this process, and all below it, when the agent is gone."""
        ...


def run_command(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: str,
    output: Output,
    control: Control,
    sampler: Sampler,
    timeout_s: float | None,
    when_lasting: Callable[[], None] = lambda: None,
) -> Ending:
    """Run `argv` to its end, or until it is stopped. Its descendants may still live when this returns.

    directory: where it runs; this process's working directory from then on. Raises OSError when that is gone.
    when_lasting: called once, if the command lives longer than a moment.
    """
    command = os.path.basename(argv[0]) or argv[0]
    os.chdir(directory)
    pipe, its_output = os.pipe()
    try:
        try:
            pid = _spawn(argv, environment, its_output)
        finally:
            os.close(its_output)
    except (OSError, ValueError) as error:
        os.close(pipe)
        refusal = _refusal(argv[0], error)
        return Ending(command=command, refusal=refusal, is_final=refusal[0] is Outcome.JOB_ERROR)
    try:
        return _Running(pid, pipe, output, control, sampler, timeout_s, when_lasting).to_the_end(command)
    finally:
        os.close(pipe)


def _spawn(argv: Sequence[str], environment: Mapping[str, str], output: int) -> int:
    """Start `argv` in a session of its own, in this process's directory; returns its pid.

    Not `subprocess`, which does more work in Python than the kernel has with the new process. Raises OSError
    and ValueError for the same reasons; the search goes along this process's own PATH.
    """
    return os.posix_spawnp(
        argv[0],
        list(argv),
        environment,
        file_actions=(
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ),
        setsid=True,
        setsigdef=_NOT_IGNORED,
    )


class _State(Enum):
    RUNNING = auto()
    STOPPING = auto()
    """SIGTERM was sent."""
    KILLED = auto()
    """SIGKILL was sent."""
    ENDED = auto()
    """Collected; its descendants may still write."""


class _Running:
    """The loop around one process. `_until` is when the state it is in ends by itself."""

    def __init__(
        self,
        pid: int,
        pipe: int,
        output: Output,
        control: Control,
        sampler: Sampler,
        timeout_s: float | None,
        when_lasting: Callable[[], None],
    ) -> None:
        now = time.monotonic()
        self._pid = pid
        self._exit_code: int | None = None
        self._pipe = pipe
        self._output = output
        self._control = control
        self._timeout_s = timeout_s
        self._state = _State.RUNNING
        self._until = math.inf if timeout_s is None else now + timeout_s
        self._when_lasting = when_lasting
        self._lasting_at = now + _MOMENT_S
        self._is_timed_out = False
        self._is_open = True
        self._largest_mib = 0
        self._sampler = sampler

    def to_the_end(self, command: str) -> Ending:
        poller = select.poll()
        poller.register(self._control.descriptor, select.POLLIN)
        poller.register(self._pipe, select.POLLIN)
        pidfd = _pidfd_open(self._pid)
        if pidfd is not None:
            poller.register(pidfd, select.POLLIN)
        try:
            while (wait_s := self._advance(time.monotonic())) is not None:
                if pidfd is None:
                    wait_s = min(wait_s, _NO_PIDFD_POLL_S)
                timeout_ms = math.ceil(wait_s * 1000)
                for descriptor, _ in poller.poll(timeout_ms):
                    if descriptor == self._pipe:
                        self._read()
                        if not self._is_open:
                            poller.unregister(self._pipe)
                    elif descriptor == pidfd:
                        self._collect()
                        poller.unregister(pidfd)
                    else:
                        self._control.receive()
                if pidfd is None:
                    self._collect()
        finally:
            if pidfd is not None:
                os.close(pidfd)
        if self._is_open:
            self._drain()
        return self._ending(command)

    def _advance(self, now: float) -> float | None:
        """Do what is due; the answer is how many seconds until something is due again, None: it is over."""
        is_due = now >= self._until
        if self._state is _State.RUNNING and (is_due or self._control.stop is not None):
            self._is_timed_out = self._control.stop is None
            self._signal(signal.SIGTERM)
            self._state, self._until = _State.STOPPING, now + GRACE_S
        elif self._state is _State.STOPPING and is_due:
            self._signal(signal.SIGKILL)
            self._state, self._until = _State.KILLED, now + _KILL_LIMIT_S
        elif (self._state is _State.KILLED and is_due) or (
            self._state is _State.ENDED and (is_due or not self._is_open)
        ):
            return None
        if now >= self._lasting_at:
            self._lasting_at = math.inf
            self._when_lasting()
        waits = [self._sampler.tick(now), self._until - now, self._lasting_at - now]
        output_wait = self._output.tick(now)
        if output_wait is not None:
            waits.append(output_wait)
        return max(0.0, min(waits))

    def _signal(self, number: int) -> None:
        """To the whole group: the main process has not been collected, so the number is still its own."""
        try:
            os.killpg(self._pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def _read(self) -> None:
        data = os.read(self._pipe, _CHUNK)
        if data:
            self._output.feed(data)
        else:
            self._is_open = False
            self._sampler.is_output_closed = True

    def _collect(self) -> None:
        if self._state is _State.ENDED:
            return
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid == 0:
            return
        self._exit_code = os.waitstatus_to_exitcode(status)
        self._largest_mib = usage.ru_maxrss // 1024
        was_left_alone = self._state is _State.RUNNING
        self._state, self._until = _State.ENDED, time.monotonic() + (_DRAIN_S if was_left_alone else 0)

    def _drain(self) -> None:
        """Take what is in the pipe now. A bound, because a descendant may still write."""
        os.set_blocking(self._pipe, False)
        try:
            for _ in range(_DRAIN_CHUNKS):
                if not self._is_open:
                    break
                self._read()
        except BlockingIOError:
            pass

    def _ending(self, command: str) -> Ending:
        host_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        largest_mib = self._largest_mib if self._largest_mib > host_mib else 0
        return Ending(
            command=command,
            exit_code=self._exit_code,
            stop=self._control.stop,
            timeout_s=self._timeout_s if self._is_timed_out else None,
            peak_memory_mib=max(self._sampler.peak_mib, largest_mib) or None,
        )


def _pidfd_open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # a kernel before 5.3, or a sandbox without it
        return None


def _refusal(command: str, error: OSError | ValueError) -> tuple[Outcome, str]:
    """Why the command could not be started: the node's fault unless no node could start it."""
    if isinstance(error, ValueError):
        return Outcome.JOB_ERROR, f"{command!r} cannot be run: {error}"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Outcome.NODE_FAULT, f"command not found: {command}"
    if error.errno == errno.E2BIG:
        return Outcome.JOB_ERROR, f"{command} cannot be run: its arguments are too long"
    return Outcome.NODE_FAULT, f"{command} cannot be run: {error.strerror}"
