"""Keeps a renderer running between the tasks of a session: load once, render many. Standard library only.

    keeper.py start DIRECTORY -- COMMAND ...        when the environment is entered: starts the keeper alone
    keeper.py run DIRECTORY FILE -- ARGUMENT ...    a task: what it says is the renderer's
    keeper.py stop DIRECTORY                        when the environment is exited

The keeper starts COMMAND for the first task and hands it one task after the other. COMMAND finds a socket in
the variable RIDGELINE_KEEPER (a descriptor's number), and answers each request there: a line of JSON with the
task's standard output and error beside it as descriptors, answered with {"status": 0, "watch": [files that it
has read]}. Output goes straight to the task that asked. COMMAND is ended and started anew, for the task at
hand, when FILE or a watched file is another than when it was read, or when it has grown far beyond its first
size. A COMMAND that ends takes the task at hand along, and no other; a task that is killed takes COMMAND
along.

A template carries this file as text, where double braces would be read as expressions: none may stand here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

VARIABLE = "RIDGELINE_KEEPER"
MOST_WATCHED = 2000
_SOCKET = "keeper.socket"
_MOST_BYTES = 1 << 20
_POLL_S = 1.0
_GROWTH = 2.0
_GROWTH_MIB = 1024
"""A renderer that holds more than both, over what it held after its first task, is started anew."""
_STOP_S = 4.0


class Renderer:
    """COMMAND, started for `path`."""

    def __init__(self, command: Sequence[str], path: str, output: int, error: int) -> None:
        """Raises OSError when it cannot be started."""
        self._started = time.time()
        self._stamps = dict([(path, stamp(path))])
        self._first_mib: int | None = None
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error,
                env=dict(os.environ, **dict([(VARIABLE, str(theirs.fileno()))])),
                pass_fds=(theirs.fileno(),),
            )

    def staleness(self) -> str:
        """Why it must not render another task; empty: it may."""
        if self.process.poll() is not None:
            return "the renderer has ended"
        for path, was in self._stamps.items():
            if stamp(path) != was:
                return f"{path} has changed"
        size_mib = resident_mib(self.process.pid)
        first_mib = self._first_mib or size_mib
        if size_mib > max(first_mib * _GROWTH, first_mib + _GROWTH_MIB):
            return f"it has grown from {first_mib} to {size_mib} MiB"
        return ""

    def ask(self, arguments: Sequence[str], output: int, error: int) -> None:
        send(self.socket, dict(arguments=list(arguments)), [output, error])

    def answered(self, watch: Iterable[str]) -> None:
        """A task is done; `watch` is what has been read."""
        self._first_mib = self._first_mib or resident_mib(self.process.pid)
        for path in list(watch)[:MOST_WATCHED]:
            if path not in self._stamps:
                found = stamp(path)
                # One that was written since the start may have been read before.
                is_old = found is None or found[0] < self._started * 1e9
                self._stamps[path] = found if is_old else (0, 0, 0)

    def end(self) -> int:
        """Kill it if it lives; returns its exit status, negative for a signal."""
        self.process.kill()
        status = self.process.wait()
        self.socket.close()
        return status


def stamp(path: str) -> tuple[int, int, int] | None:
    """What changes with a file: time, size, number. None: it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def resident_mib(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    except (OSError, IndexError, ValueError):
        return 0


class Parent:
    """Notices that the session host is gone. The first parent is `start`, which ends at once."""

    def __init__(self) -> None:
        self._starter = self._now = os.getppid()

    def is_gone(self) -> bool:
        parent = os.getppid()
        if parent == self._now:
            return False
        was_starter = self._now == self._starter
        self._now = parent
        return not was_starter


def keep(listener: socket.socket, command: Sequence[str]) -> None:
    """Serve tasks until `stop`, or until the session host is gone."""
    parent = Parent()
    renderer: Renderer | None = None
    try:
        while not parent.is_gone():
            if not is_readable(listener, _POLL_S):
                continue
            client, _ = listener.accept()
            with client:
                request, descriptors = receive(client)
                try:
                    if request is None or request.get("stop"):
                        return
                    renderer, status = serve(renderer, command, request, client, descriptors, parent)
                    send(client, dict(status=status))
                except OSError as error:
                    send(client, dict(status=127, error=str(error)))
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
    finally:
        if renderer is not None:
            renderer.end()


def serve(
    renderer: Renderer | None,
    command: Sequence[str],
    request: Any,
    client: socket.socket,
    descriptors: Sequence[int],
    parent: Parent,
) -> tuple[Renderer | None, int]:
    """Let the renderer do one task; returns it, if it still lives, and the task's exit status."""
    output, error = descriptors
    if renderer is not None and (stale := renderer.staleness()):
        renderer.end()
        renderer = None
        os.write(output, f"ridgeline| fresh {stale}\n".encode("utf-8", "replace"))
    if renderer is None:
        renderer = Renderer(command, request["path"], output, error)
    renderer.ask(request["arguments"], output, error)
    while not is_readable(renderer.socket, _POLL_S, client):
        if parent.is_gone():
            break
    answer = receive(renderer.socket)[0] if is_readable(renderer.socket, 0) else None
    if answer is None:
        # Dead, or the task was killed: the half-done work must not meet the next one.
        if is_readable(client, 0):
            renderer.end()
            return None, -signal.SIGTERM
        with contextlib.suppress(subprocess.TimeoutExpired):
            renderer.process.wait(_STOP_S)
        return None, renderer.end()
    renderer.answered(answer.get("watch", ()))
    return renderer, int(answer["status"])


def is_readable(one: socket.socket, timeout_s: float, other: socket.socket | None = None) -> bool:
    """Whether one of them has something to read, or its other end is gone."""
    return bool(select.select([one] if other is None else [one, other], [], [], timeout_s)[0])


def receive(source: socket.socket) -> tuple[Any, list[int]]:
    """A line of JSON, and the descriptors that came with it; None when the other end is gone."""
    data: bytes = b""
    descriptors: list[int] = []
    with contextlib.suppress(ConnectionError):  # it went without reading what it was sent
        data, descriptors, _flags, _address = socket.recv_fds(source, _MOST_BYTES, 2)
        while data and not data.endswith(b"\n"):
            more = source.recv(_MOST_BYTES)
            data = data + more if more else b""
    return (json.loads(data) if data else None), descriptors


def send(target: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """A line of JSON; nothing when the other end is gone, which is noticed where its answer is read."""
    data = json.dumps(message).encode() + b"\n"
    with contextlib.suppress(OSError):
        sent = socket.send_fds(target, [data], descriptors) if descriptors else 0
        target.sendall(data[sent:])


def start(directory: str, command: Sequence[str]) -> None:
    os.chdir(directory)  # names of sockets are short
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o077)
    listener.bind(_SOCKET)
    os.umask(mask)
    listener.listen()
    subprocess.Popen(
        [
            *(sys.executable, "-IS", os.path.abspath(__file__)),
            *("keep", directory, str(listener.fileno()), "--", *command),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(listener.fileno(),),
        start_new_session=True,
    )


def ask(directory: str, request: Any, descriptors: Sequence[int]) -> Any:
    """The keeper's answer; None when it is gone. Raises OSError."""
    os.chdir(directory)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as keeper:
        keeper.connect(_SOCKET)
        send(keeper, request, descriptors)
        return receive(keeper)[0]


def run(directory: str, path: str, arguments: Sequence[str]) -> int:
    """The task's exit status: as a shell tells it, 139 for a segmentation fault."""
    try:
        answer = ask(directory, dict(path=path, arguments=list(arguments)), [1, 2])
    except OSError:
        answer = None
    if answer is None:
        print("Error: the keeper of the renderer has ended", flush=True)
        return 1
    if "error" in answer:
        print(answer["error"], flush=True)
    status = int(answer["status"])
    return status if status >= 0 else 128 - status


def stop(directory: str) -> None:
    with contextlib.suppress(OSError):
        ask(directory, dict(stop=True), [])


def main(argv: Sequence[str]) -> NoReturn:
    split = argv.index("--") if "--" in argv else len(argv)
    verb, directory, *more = argv[:split]
    rest = argv[split + 1 :]
    status = 0
    if verb == "start":
        start(directory, rest)
    elif verb == "keep":
        keep(socket.socket(fileno=int(more[0])), rest)
    elif verb == "run":
        status = run(directory, more[0], rest)
    elif verb == "stop":
        stop(directory)
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
