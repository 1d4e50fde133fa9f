"""How busy CPU and disk are, sampled by a thread of its own: a dead file server can hang a call."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import psutil

from farm.model.machines import DeviceLoad

_LOG = logging.getLogger(__name__)


def cpu_load() -> DeviceLoad:
    """Of all processes, since the last call (0 at the first)."""
    return DeviceLoad(
        device_id="cpu",
        utilisation=min(psutil.cpu_percent(interval=None) / 100, 1.0),
        memory_occupancy=min(psutil.virtual_memory().percent / 100, 1.0),
    )


def disk_free_mib(path: Path) -> int | None:
    try:
        return int(psutil.disk_usage(str(path)).free // (1024 * 1024))
    except OSError:
        return None


class Gauges:
    """`loads` and `disk_free_mib` never block; they know nothing when the last sample is too old."""

    def __init__(self, state_dir: Path, *, period_s: float) -> None:
        self._state_dir = state_dir
        self._period_s = period_s
        self._sampled_at = float("-inf")
        self._loads: tuple[DeviceLoad, ...] = ()
        self._disk_free_mib: int | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gauges", daemon=True)

    def start(self) -> None:
        psutil.cpu_percent(interval=None)  # the first call has nothing to compare with
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def loads(self) -> tuple[DeviceLoad, ...]:
        return self._loads if self._is_fresh else ()

    @property
    def disk_free_mib(self) -> int | None:
        return self._disk_free_mib if self._is_fresh else None

    @property
    def _is_fresh(self) -> bool:
        return time.monotonic() - self._sampled_at <= 3 * self._period_s

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s if self._loads else 0.1):
            try:
                self._loads = (cpu_load(),)
                self._disk_free_mib = disk_free_mib(self._state_dir)
            except (OSError, psutil.Error) as error:
                _LOG.warning("cannot read how busy the machine is: %s", error)
                continue
            self._sampled_at = time.monotonic()
