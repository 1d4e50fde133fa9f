"""The virtual clock, and processes that may be paused or killed wherever they touch the world."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """Thrown into a process that is killed: no handler of the code under test may swallow it."""


class Violation(AssertionError):
    """Something that must never be was seen."""


class Process:
    """A sequential program: a greenlet that runs until it sleeps, or is stopped at a checkpoint."""

    def __init__(self, kernel: Kernel, name: str, main: Callable[[], None]) -> None:
        self.kernel = kernel
        self.name = name
        self.is_alive = True
        self.paused_until = 0.0
        self.trouble: tuple[int, str, float] | None = None
        """(checkpoints until then, "pause" or "kill", seconds)."""
        self.on_end: Callable[[], None] = lambda: None
        self._main = main
        self._greenlet = greenlet(self._run, parent=kernel.hub)
        self._ticket = 0
        kernel.processes.append(self)
        kernel.at(0.0, self._resume, 0)

    def _run(self) -> None:
        try:
            self._main()
        except Killed:
            pass
        finally:
            self.is_alive = False
        if not self.kernel.is_over:
            self.on_end()

    def _resume(self, ticket: int) -> None:
        if not self.is_alive or ticket != self._ticket:
            return
        if self.paused_until > self.kernel.now:
            self.kernel.at(self.paused_until - self.kernel.now, self._resume, ticket)
            return
        before, self.kernel.current = self.kernel.current, self
        try:
            self._greenlet.switch()
        finally:
            self.kernel.current = before

    def sleep(self, seconds: float) -> None:
        """From inside: until `seconds` have passed, or `wake` is called."""
        self._ticket += 1
        self.kernel.at(seconds, self._resume, self._ticket)
        self.kernel.hub.switch()

    def wake(self) -> None:
        """From outside: end its sleep."""
        self.kernel.at(0.0, self._resume, self._ticket)

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`."""
        self.paused_until = max(self.paused_until, self.kernel.now + seconds)

    def kill(self) -> None:
        """SIGKILL, from outside."""
        if not self.is_alive:
            return
        before, self.kernel.current = self.kernel.current, self
        try:
            self._greenlet.throw(Killed)
        finally:
            self.kernel.current = before
        self.is_alive = False


class Kernel:
    """Time, chance and the order of everything. One seed, one history."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.draw = random.Random(seed)
        self.now = 1_000_000.0
        self.begun_at = self.now
        self.hub = getcurrent()
        self.current: Process | None = None
        self.processes: list[Process] = []
        self.is_over = False
        self.tracing = tracing
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, call, arguments))

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Let things happen until `until()` (True) or `limit_s` from now (False)."""
        end = self.now + limit_s
        while self._heap and self._heap[0][0] <= end:
            self.now, _, call, arguments = heapq.heappop(self._heap)
            self.steps += 1
            call(*arguments)
            if until():
                return True
        self.now = end
        return until()

    def sleep(self, seconds: float) -> None:
        """The current process sleeps."""
        assert self.current is not None
        self.current.sleep(seconds)

    def checkpoint(self, what: str) -> None:
        """A place where the current process may be paused or killed."""
        process = self.current
        if process is None or process.trouble is None:
            return
        left, kind, seconds = process.trouble
        if left > 0:
            process.trouble = (left - 1, kind, seconds)
            return
        process.trouble = None
        self.say(f"{process.name}: {kind} at {what} for {seconds:.1f} s")
        if kind == "kill":
            raise Killed
        process.pause(seconds)
        process.sleep(0.0)

    def new_id(self) -> str:
        number = f"{self.draw.getrandbits(128):032x}"
        return f"{number[:8]}-{number[8:12]}-4{number[13:16]}-8{number[17:20]}-{number[20:]}"

    def say(self, text: str) -> None:
        if self.tracing:
            print(f"{self.now - self.begun_at:9.3f}  {text}")

    def close(self) -> None:
        """End every process that is left."""
        self.is_over = True
        for process in self.processes:
            process.kill()
