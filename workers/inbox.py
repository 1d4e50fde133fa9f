"""Events from other threads, for a thread that waits on a selector."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """`put` from any thread; the rest by the one thread that waits until `descriptor` can be read."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self.descriptor, self._wake = os.pipe()
        for end in (self.descriptor, self._wake):
            os.set_blocking(end, False)
        self._is_woken = False
        """A byte is in the pipe, or has just been read: another one would tell nothing more."""

    def put(self, item: T) -> None:
        """Hand an item over; never blocks."""
        self._items.append(item)
        if self._is_woken:
            return
        self._is_woken = True
        try:
            os.write(self._wake, b"\0")
        except (BlockingIOError, OSError):
            pass  # full: it is awake; closed: it has ended

    def hear(self) -> None:
        """To be called when `descriptor` can be read, before `take`."""
        try:
            while os.read(self.descriptor, 4096):
                pass
        except BlockingIOError:
            pass
        # In this order: cleared before the read, it could stay set by a `put` whose byte the read has taken.
        self._is_woken = False

    def take(self) -> Iterator[T]:
        """What there is, and what comes meanwhile."""
        while self._items:
            yield self._items.popleft()

    def close(self) -> None:
        os.close(self.descriptor)
        wake, self._wake = self._wake, -1
        os.close(wake)
