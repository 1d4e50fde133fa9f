"""The thread that asks the farm again and again, so that keys and resizing never wait for the network."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from farm.errors import FarmError, UserError
from farm.live.snapshot import Get, Log, Memo, Snapshot, Throughput, Wants, fetch, remember
from farm.live.view import Action
from farm.text import plural

_PATIENCE_S: Final = 5.0
"""An answer that takes longer is missed in the header, though it is still waited for."""

Send = Callable[[str, str, Mapping[str, Any]], Any]
"""(method, path, body): as `Get`, for what changes something."""


class Feed:
    """Holds the newest snapshot. When the farm stops answering, the last picture stays, and says how long."""

    def __init__(
        self, get: Get, *, interval_s: float, notify: Callable[[], None], send: Send | None = None
    ) -> None:
        """`notify` must not block; it is called from the thread when `latest` has news, not after `stop`.

        send: asks the farm to do something; None: this view may only look.
        """
        self._get = get
        self._send = send
        self._wants = Wants()
        self._memo = Memo()
        self._actions: deque[Action] = deque()
        self._wake = threading.Event()
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
        self._wake.set()

    def want(self, wants: Wants) -> None:
        """What else to ask for from now on; never blocks."""
        if wants != self._wants:
            self._wants = wants
            self._wake.set()

    def act(self, action: Action) -> None:
        """Ask the farm to do this, and then how things stand; never blocks."""
        self._actions.append(action)
        self._wake.set()

    def hush(self) -> None:
        """The person has seen what the farm answered."""
        with self._lock:
            self._snapshot = replace(self._snapshot, answer="", has_refused=False)

    def latest(self) -> Snapshot:
        """Never blocks. Raises what the thread died of: a UserError (say, a refused token), or a bug."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            silent_s = time.monotonic() - self._answered_at
            reason = self._snapshot.lost_reason
            if not reason and silent_s > self._interval_s + _PATIENCE_S and self._thread.is_alive():
                reason = "no answer"  # yet: the server hangs, or the network swallows what is sent
            return replace(self._snapshot, lost_s=silent_s, lost_reason=reason) if reason else self._snapshot

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            while self._actions:
                self._do(self._actions.popleft())
            try:
                fresh = fetch(self._get, self._wants, self._log_of(self._wants), self._memo)
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
            self._wake.wait(self._interval_s)

    def _do(self, action: Action) -> None:
        """Whatever comes of it is said; nothing of it ends the view."""
        told, has_refused = action.done, False
        try:
            if self._send is None:
                raise UserError("this view may only look")
            answer = self._send(action.method, action.path, action.body)
            changed = answer.get("changed") if isinstance(answer, dict) else None
            if isinstance(changed, int):
                told = f"{told}: {plural(changed, 'task')}" if changed else "nothing was left to do"
        except FarmError as error:
            told, has_refused = str(error) or "the farm refuses", True
        with self._lock:
            self._snapshot = replace(self._snapshot, answer=told, has_refused=has_refused)
        self._tell()

    def _log_of(self, wants: Wants) -> Log | None:
        log = self._snapshot.log
        return log if log is not None and log.task_id == wants.task_id else None

    def _take(self, fresh: Snapshot) -> None:
        assert fresh.farm is not None
        done = {line.job.id: line.counts.done for line in fresh.jobs}
        rate = self._throughput.add(fresh.farm.now, done)
        with self._lock:
            told = replace(
                fresh,
                per_minute=rate,
                answer=self._snapshot.answer,
                has_refused=self._snapshot.has_refused,
            )
            self._snapshot = replace(told, history=remember(self._snapshot.history, told))
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
