"""The thread that asks the farm again and again, so that keys and resizing never wait for the network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from farm.errors import FarmError, UserError
from farm.live.snapshot import Get, Snapshot, Throughput, fetch


class Feed:
    """Holds the newest snapshot. When the farm stops answering, the last picture stays, and says how long."""

    def __init__(self, get: Get, *, interval_s: float, notify: Callable[[], None]) -> None:
        """`notify` must not block; it is called from the thread when `latest` has news, not after `stop`."""
        self._get = get
        self._interval_s = interval_s
        self._notify = notify
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._snapshot = Snapshot()
        self._answered_at = time.monotonic()
        self._failure: BaseException | None = None
        self._throughput = Throughput()
        # A daemon: a request that hangs must not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name="live-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()

    def latest(self) -> Snapshot:
        """Never blocks. Raises what the thread died of: a UserError (say, a refused token), or a bug."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if not self._snapshot.lost_reason:
                return self._snapshot
            return replace(self._snapshot, lost_s=time.monotonic() - self._answered_at)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                fresh = fetch(self._get)
            except UserError as error:
                self._fail(error)
                return
            except FarmError as error:
                with self._lock:
                    self._snapshot = replace(self._snapshot, lost_reason=str(error) or "no answer")
            except Exception as error:  # noqa: BLE001 - the screen's thread must end on it, and show it
                self._fail(error)
                return
            else:
                self._take(fresh)
            self._tell()
            self._stopped.wait(self._interval_s)

    def _take(self, fresh: Snapshot) -> None:
        assert fresh.farm is not None
        done = {line.job.id: line.counts.done for line in fresh.jobs}
        rate = self._throughput.add(fresh.farm.now, done)
        with self._lock:
            self._snapshot = replace(fresh, per_minute=rate)
            self._answered_at = time.monotonic()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error
        self._tell()

    def _tell(self) -> None:
        # Under the lock: whoever has called `stop` may close what `notify` writes to.
        with self._lock:
            if not self._stopped.is_set():
                self._notify()
