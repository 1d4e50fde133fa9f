"""Errands: removing what is not needed any more, which may hang on a dead file server."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from farm.errors import FarmError
from farm.model.ids import AttemptId
from farm.model.paths import PathRule, map_path
from farm.text import clean
from farm.wire.messages import TidyJob
from workers import staging
from workers.instructions import StagePlace

_LOG = logging.getLogger(__name__)


class Errands:
    """Slow file work, two at a time. Nothing waits for it, and it may be lost."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"errands-{number}", daemon=True) for number in (1, 2)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, errand: Callable[[], None]) -> None:
        self._queue.put(errand)

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _run(self) -> None:
        while (errand := self._queue.get()) is not None:
            try:
                errand()
            except (OSError, FarmError) as error:
                _LOG.warning("tidying up failed: %s", clean(str(error), one_line=True))


def tidy(message: TidyJob, rules: tuple[PathRule, ...]) -> None:
    for directory in message.directories:
        staging.tidy_job(Path(map_path(directory, rules)), message.job_uid)


def remove_stage(stage: StagePlace, attempt_id: AttemptId) -> None:
    staging.remove_stage(Path(stage.directory), stage.job_uid, attempt_id)
