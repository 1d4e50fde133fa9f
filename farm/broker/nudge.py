"""Waking the scheduler when somebody has changed something. A lost nudge costs a second, no more."""

from __future__ import annotations

import logging
import threading

from farm.broker.publisher import Publisher
from farm.errors import Unavailable
from farm.wire.queues import NUDGES

_LOG = logging.getLogger(__name__)
_HEARTBEAT_S = 2.0


class Nudger:
    """Call it from any thread; a thread of its own talks to the broker, and callers never wait for it."""

    def __init__(self, broker_url: str) -> None:
        self._publisher = Publisher(broker_url)
        self._wanted = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="nudge", daemon=True)
        self._thread.start()

    def __call__(self) -> None:
        self._wanted.set()

    def stop(self) -> None:
        self._is_stopping = True
        self._wanted.set()
        self._thread.join(5)

    def _run(self) -> None:
        while True:
            is_wanted = self._wanted.wait(_HEARTBEAT_S)
            if self._is_stopping:
                self._publisher.close()
                return
            self._wanted.clear()
            try:
                if is_wanted:
                    self._publisher.publish(NUDGES, b'"nudge"', persistent=False)
                else:
                    self._publisher.heartbeat()
            except Unavailable as error:
                # The scheduler looks by itself once in `idle_tick_s`.
                _LOG.debug("no nudge: %s", error)
