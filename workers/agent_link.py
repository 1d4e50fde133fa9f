"""A session host's way to its agent: the pipes it was born with, and a socket for the agent that comes next.

An agent may crash, be killed or be replaced by a newer version while renderers run. The host outlives it: the
attempt goes on, what the agent would have been told is kept, and whoever connects to the host's socket gets
it all (`HostHolds`, then the attempt's output from its first line). There is one agent of a state directory
at a time, by its lock: a new connection takes the place of the old one.

The agent says how long the attempt may go on without hearing more (`HostKeep`, seconds of CLOCK_BOOTTIME,
which agent and host share). When that time is over the host ends the attempt itself, be the agent dead or
stopped.
"""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from farm.model.ids import AttemptId
from farm.model.states import Outcome
from farm.wire.messages import (
    Finished,
    HostCancel,
    HostHolds,
    HostKeep,
    HostLeave,
    HostOutput,
    HostRendered,
    HostRun,
    HostVerdict,
    Progress,
    ToHost,
    UnknownMessage,
    dump,
    load,
)
from workers.hosts import host_address
from workers.processes import boottime

_log = logging.getLogger(__name__)

_CHUNK = 1 << 16
"""Bytes. Small enough for the allocator to use the same memory again."""
_MOST_LINE_BYTES = 64 * 1024 * 1024
KEPT_TEXT = 1024 * 1024
"""Characters of output that are kept for the next agent: all of it, as `workers.output` caps what is sent."""
KEPT_ENDS = 16
"""Ends that are told again: the last ones may not have reached the spool of the agent that died."""
MOST_UNSENT_BYTES = 4 * 1024 * 1024
"""What waits for an agent that does not read; beyond it, output is dropped, never the rest."""
_ACCEPT_AGAIN_S = 0.1
_LOOK_S = 1.0
"""How often to look whether the time is over that the agent gave."""


class AgentLink:
    """`send` may be called from any thread, the rest by the host's main thread only."""

    def __init__(
        self, incoming: int, outgoing: int, *, address: Path | None, when_gone: Callable[[], NoReturn]
    ) -> None:
        """incoming, outgoing: the pipes of the first agent, closed with it. address: where to listen for the
        next one; None: the host goes with its agent. when_gone: called when no agent is there or to come."""
        self._when_gone = when_gone
        self._lock = threading.RLock()
        self._epoll = select.epoll()
        self._incoming = self._outgoing = -1
        self._partial = b""
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._wants_room = False
        self._waiting: deque[HostRun | HostCancel] = deque()
        self._stop: tuple[Outcome, str] | None = None
        self.takes_output = False
        """With `stop`: accept its files if they are whole."""
        self._run: HostRun | None = None
        self._until = math.inf
        self._hold_s = 0.0
        """How long the end of an attempt is kept for the next agent."""
        self._sequence = 0
        self._kept: deque[HostOutput] = deque()
        self._kept_text = 0
        self._progress: Progress | None = None
        self._rendered: HostRendered | None = None
        """A question that the agent has not answered yet."""
        self._verdict: HostVerdict | None = None
        self._ended: deque[Finished] = deque(maxlen=KEPT_ENDS)
        self._connect(incoming, outgoing)
        self._is_listening = address is not None
        if address is not None:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with host_address(address) as name:
                listener.bind(name)
            listener.listen(1)
            threading.Thread(target=self._accept, args=(listener,), name="next-agent", daemon=True).start()

    # --- the running attempt's view: `workers.command.Control` ---

    @property
    def descriptor(self) -> int:
        """Readable when there is something to receive; the same whichever agent is there."""
        return self._epoll.fileno()

    @property
    def stop(self) -> tuple[Outcome, str] | None:
        if self._stop is None and self._run is not None and boottime() >= self._until:
            self.receive(0)  # it may have been said while nobody read
            if self._stop is None and boottime() >= self._until:
                self._stop = (Outcome.NODE_LOST, "fenced: the node's agent was silent for too long")
        return self._stop

    def receive(self, timeout_s: float | None = None) -> None:
        """Wait for something and take it in. Does not return when no agent is left to wait for."""
        for descriptor, _ in self._epoll.poll(timeout_s):
            with self._lock:
                if descriptor == self._incoming:
                    self._read()
                elif descriptor == self._outgoing:
                    self._flush()

    def wait(self, timeout_s: float) -> bool:
        """Whether the agent says something within this time."""
        if self._waiting:
            return True
        poller = select.poll()
        poller.register(self.descriptor, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def verdict_on(self, attempt_id: AttemptId) -> str:
        """Wait for what the agent says of a rendered attempt: why it has failed, or nothing."""
        while self._verdict is None or self._verdict.attempt_id != attempt_id:
            if self.stop is not None:
                return ""  # the caller looks at that by itself
            self.receive(_LOOK_S)
        self._rendered = None
        return self._verdict.refusal

    def next_run(self) -> HostRun:
        """Wait for the next attempt. A cancel that comes before it was meant for one that has ended."""
        while True:
            while not self._waiting:
                self._wait()
            message = self._waiting.popleft()
            if isinstance(message, HostRun):
                break
        with self._lock:
            self._run = message
            self._until = math.inf if message.until is None else message.until
            self._hold_s = self._until - boottime()
            self._sequence = self._kept_text = 0
            self._kept.clear()
            self._progress = self._rendered = self._verdict = self._stop = None
            self.takes_output = False
        while self._waiting and isinstance(cancel := self._waiting[0], HostCancel):
            self._waiting.popleft()
            self._take(cancel)
        return message

    def hold_back(self, message: Any) -> None:
        """Send it with the next message, or with `flush`: one that nobody waits for yet."""
        with self._lock:
            self._add(message)

    def flush(self) -> None:
        """Send what was held back."""
        with self._lock:
            self._flush()

    def send(self, message: Any) -> None:
        """Tell the agent, or keep it for the next one. Never waits for an agent that does not read."""
        with self._lock:
            match message:
                case HostOutput():
                    message = replace(message, sequence=self._sequence)
                    self._sequence += 1
                    self._kept.append(message)
                    self._kept_text += len(message.text)
                    while self._kept_text > KEPT_TEXT and len(self._kept) > 1:
                        self._kept_text -= len(self._kept.popleft().text)
                case Progress():
                    self._progress = message
                case HostRendered():
                    self._rendered = message
                case Finished():
                    self._ended.append(message)
                    self._run = None
            self._tell(message)

    # --- one agent ---

    def _wait(self) -> None:
        """Between attempts: what ended is held until the agent has certainly taken it."""
        with self._lock:
            is_alone = self._incoming < 0
        if not is_alone:
            self.receive()
            return
        left_s = self._until - boottime()
        if left_s <= 0 or not self._ended:
            self._when_gone()
        self.receive(min(left_s, _LOOK_S))

    def _take(self, cancel: HostCancel) -> None:
        """The first wish counts."""
        if self._stop is None:
            self._stop, self.takes_output = (cancel.outcome, cancel.reason), cancel.takes_output

    def _read(self) -> None:
        try:
            data = os.read(self._incoming, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._partial) > _MOST_LINE_BYTES:
            self._disconnect()
            if not self._is_listening:
                self._when_gone()
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            try:
                message = load(ToHost, line)
            except UnknownMessage as error:
                _log.error("%s", error)
                continue
            match message:
                case HostKeep(until=until):
                    self._until = until
                case HostVerdict():
                    self._verdict = message
                case HostLeave():
                    self._when_gone()
                case HostCancel() if not self._waiting:
                    self._take(message)
                case HostRun() | HostCancel():
                    self._waiting.append(message)

    def _tell(self, message: Any) -> None:
        self._add(message)
        self._flush()

    def _add(self, message: Any) -> None:
        line = dump(message) + b"\n"
        is_full = self._unsent_bytes + len(line) > MOST_UNSENT_BYTES
        if self._outgoing < 0 or (is_full and isinstance(message, HostOutput)):
            return
        self._unsent.append(line)
        self._unsent_bytes += len(line)

    def _flush(self) -> None:
        """Write what the agent takes now; the rest when it reads again."""
        try:
            while self._unsent:
                data = b"".join(self._unsent)
                rest = data[os.write(self._outgoing, data) :]
                self._unsent[:] = [rest] if rest else []
                self._unsent_bytes = len(rest)
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # it has gone: the end of our input says so too, and is acted upon
            self._unsent_bytes = 0
        wants_room = bool(self._unsent)
        if wants_room and not self._wants_room:
            self._epoll.register(self._outgoing, select.EPOLLOUT)
        elif self._wants_room and not wants_room:
            self._epoll.unregister(self._outgoing)
        self._wants_room = wants_room

    def _connect(self, incoming: int, outgoing: int) -> None:
        for descriptor in (incoming, outgoing):
            os.set_blocking(descriptor, False)
        self._incoming, self._outgoing = incoming, outgoing
        self._epoll.register(incoming, select.EPOLLIN)

    def _disconnect(self) -> None:
        if self._incoming < 0:
            return
        self._epoll.unregister(self._incoming)
        os.close(self._incoming)
        self._incoming = -1
        self._partial = b""
        if self._wants_room:
            self._epoll.unregister(self._outgoing)
            self._wants_room = False
        os.close(self._outgoing)
        self._outgoing = -1
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._run is None:
            self._until = boottime() + self._hold_s

    # --- the next agent, in a thread of its own ---

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # no descriptors left, most likely
                time.sleep(_ACCEPT_AGAIN_S)
                continue
            with self._lock:
                self._disconnect()
                incoming = connection.detach()
                self._connect(incoming, os.dup(incoming))
                for message in self._all_that_is_held():
                    self._tell(message)

    def _all_that_is_held(self) -> list[Any]:
        messages: list[Any] = [HostHolds(run=self._run, ended=tuple(self._ended), until=self._deadline())]
        if self._run is not None:
            messages += self._kept
            messages += [message for message in (self._progress, self._rendered) if message is not None]
        return messages

    def _deadline(self) -> float | None:
        return self._until if math.isfinite(self._until) else None
