"""Events from other threads wake the one that waits, each of them."""

from __future__ import annotations

import os
import select
import threading

import pytest

from workers import inbox as inbox_module
from workers.inbox import Inbox

SENDERS, EACH = 4, 5_000


def is_woken(inbox: Inbox[int], timeout_s: float = 10.0) -> bool:
    poller = select.poll()
    poller.register(inbox.descriptor, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def test_no_event_is_left_lying_while_the_loop_waits() -> None:
    inbox: Inbox[int] = Inbox()

    def send() -> None:
        for number in range(EACH):
            inbox.put(number)

    threads = [threading.Thread(target=send) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    taken = 0
    while taken < SENDERS * EACH:
        assert is_woken(inbox), f"nobody woke the loop after {taken} events"
        inbox.hear()
        taken += len(list(inbox.take()))
    for thread in threads:
        thread.join()
    inbox.close()
    inbox.put(1)  # whoever is late does no harm


def test_an_event_that_comes_while_the_loop_wakes_does_not_silence_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inbox: Inbox[int] = Inbox()
    late = [2]

    def read(descriptor: int, size: int) -> bytes:
        if late:
            inbox.put(late.pop())
        return os.read(descriptor, size)

    monkeypatch.setattr(inbox_module, "os", type("os", (), {"read": staticmethod(read), "write": os.write}))
    inbox.put(1)
    inbox.hear()
    assert list(inbox.take()) == [1, 2]
    inbox.put(3)
    assert is_woken(inbox, 0)
    monkeypatch.undo()
    inbox.close()
