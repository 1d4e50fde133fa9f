"""What an attempt's processes are doing: looked at once a second, told to the agent every few.

Everything here reads /proc, which answers at once whatever state a process is in; output directories, whose
server may be dead, are looked at by a thread of their own. What the figures mean is for the farm to say
(`farm/flow/stall.py`). On systems without /proc nothing is seen, and nothing is told.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from farm.model.ids import AttemptId
from farm.model.stalls import Evidence
from workers import containment
from workers.endings import Readings

FIRST_S: Final = 0.25
EVERY_S: Final = 1.0
TELL_EVERY_S: Final = 2.0
WINDOW_S: Final = 30.0
BUSY_CORES: Final = 0.03
"""CPU time a second above which an attempt counts as busy: three clock ticks, more than an idle loop's."""
BUSY_BYTES_S: Final = 1024
"""Read or written a second; a line that says that it waits is less."""
QUIET_S: Final = 5.0
"""After so long without CPU the threads are looked at one by one, and where they wait."""
FILES_AFTER_S: Final = 5.0
"""After so long of doing nothing it is looked whether the output files are there."""
_MOST_THREADS: Final = 64
_PAGE_MIB: Final = os.sysconf("SC_PAGE_SIZE") / 2**20
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SWAPS: Final = 20.0
"""Pages from disk a second."""
_SWAPPED_MIB: Final = 64
FILE_SERVER_WAITS: Final = (
    "nfs", "rpc_wait", "cifs", "smb2", "wait_for_response", "request_wait_answer", "fuse", "autofs_wait",
    "ceph", "gpfs", "lustre", "ptlrpc", "p9_client", "afs",
)  # fmt: skip
"""Beginnings of kernel functions in which a thread waits for a file server, be it interruptibly."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one time."""

    pid: int
    name: str
    state: str
    ticks: int
    """CPU time of itself and of its children that were collected."""
    faults: int
    """Pages that it, or they, had to have read from disk."""
    memory_mib: float
    io_bytes: int


def read_process(pid: int, proc: Path = Path("/proc")) -> Process | None:
    """None when it is gone."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, rest = stat.rpartition(")")
    words = rest.split()
    io_bytes = 0
    try:
        for line in (proc / str(pid) / "io").read_text().splitlines()[:2]:  # rchar, wchar
            io_bytes += int(line.partition(":")[2])
    except (OSError, ValueError):
        pass  # it changed its user, or is dead: what it did is in none of our figures
    return Process(
        pid=pid,
        name=head.partition("(")[2],
        state="T" if words[0] == "t" else words[0],
        ticks=sum(map(int, words[11:15])),
        faults=int(words[9]) + int(words[10]),
        memory_mib=int(words[21]) * _PAGE_MIB,
        io_bytes=io_bytes,
    )


def swap_mib(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    kib = 0
    for pid in pids:
        try:
            for line in (proc / str(pid) / "status").read_text().splitlines():
                if line.startswith("VmSwap:"):
                    kib += int(line.split()[1])
        except (OSError, ValueError):
            continue
    return kib // 1024


def _has_swap(proc: Path = Path("/proc")) -> bool:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("SwapTotal:") and line.split()[1] != "0" for line in lines)


def waits_of(pid: int, proc: Path = Path("/proc")) -> list[tuple[str, str, str]]:
    """(thread id, state, kernel function or "") of each thread that waits uninterruptibly, or for a file
    server, or runs."""
    found = []
    try:
        threads = os.listdir(proc / str(pid) / "task")[:_MOST_THREADS]
    except OSError:
        return []
    for thread in threads:
        task = proc / str(pid) / "task" / thread
        try:
            state = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            wait = (task / "wchan").read_text().strip("0\n") if state in "SD" else ""
        except OSError:
            continue
        if state in "RD" or wait.startswith(FILE_SERVER_WAITS):
            found.append((thread, state, wait))
    return found


class FileWatch:
    """Whether the expected files are there: a thread that may hang on a dead server without harm."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._sizes: tuple[int, ...] = ()
        self._same_since: float | None = None
        self._asked_at: float | None = None
        self._wake = threading.Event()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def ask(self, now: float) -> None:
        """Look once more, in the background."""
        if self._asked_at is not None or not self._paths:
            return  # the last look has not come back
        self._asked_at = now
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="file-watch", daemon=True)
            self._thread.start()
        self._wake.set()

    def forget(self) -> None:
        """It works again: what was there may change."""
        self._same_since, self._sizes = None, ()

    def done_s(self, now: float) -> float | None:
        since = self._same_since
        return None if since is None else max(now - since, 0.0)

    def stuck_s(self, now: float) -> float:
        asked_at = self._asked_at
        return 0.0 if asked_at is None else max(now - asked_at, 0.0)

    def close(self) -> None:
        self._is_over = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._is_over:
                return
            sizes = tuple(_size(path) for path in self._paths)
            if 0 in sizes:
                self._same_since = None
            elif sizes != self._sizes or self._same_since is None:
                self._same_since = time.monotonic()
            self._sizes = sizes
            self._asked_at = None


def _size(path: Path) -> int:
    """0 when it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class _Sum:
    """All processes at one time."""

    at: float
    ticks: int
    io_bytes: int
    faults: int
    memory_mib: float


@dataclass(slots=True)
class Sampler:
    """Owned by the host's loop: call `tick` whenever that wakes.

    `peak_mib` is the most that was seen to be held together. The kernel's own figure (`ru_maxrss`) starts at
    the host's size, because a process begins as a copy of its parent.
    """

    attempt_id: AttemptId
    readings: Readings
    tell: Callable[[Evidence], None]
    files: FileWatch
    began: float = field(default_factory=time.monotonic)
    is_output_closed: bool = False
    peak_mib: int = 0
    _next: float = 0.0
    _tell_at: float = 0.0
    _before: _Sum | None = None
    _window: deque[_Sum] = field(default_factory=deque)
    _cpu_at: float = 0.0
    _io_at: float = 0.0
    _stopped_at: float | None = None
    _swapping_at: float | None = None
    _blocked: dict[tuple[int, str, str], float] = field(default_factory=dict)
    """Threads that wait, and since when."""
    _blocked_on: str = ""
    _swap_mib: int = 0
    _has_swap: bool | None = None
    _collected_ticks: int = field(default_factory=lambda: _collected_ticks())

    def __post_init__(self) -> None:
        self._next = self.began + FIRST_S
        self._tell_at = self.began + TELL_EVERY_S
        self._cpu_at = self._io_at = self.began

    @classmethod
    def silent(cls) -> Sampler:
        """For processes that are no attempt's: nobody is told."""
        return cls(
            attempt_id=AttemptId(""), readings=Readings(), tell=lambda evidence: None, files=FileWatch(())
        )

    def tick(self, now: float) -> float:
        """Look when it is time; the answer is how many seconds until the next look."""
        if now >= self._next:
            self._next = now + EVERY_S
            processes = [p for pid in containment.descendants() if (p := read_process(pid)) is not None]
            self.look(processes, now)
            if now >= self._tell_at and processes:
                self._tell_at = now + TELL_EVERY_S
                self.tell(self.evidence(processes, now))
        return self._next - now

    def look(self, processes: Sequence[Process], now: float) -> None:
        """Take one sample in."""
        seen = _Sum(
            at=now,
            ticks=sum(p.ticks for p in processes) + _collected_ticks() - self._collected_ticks,
            io_bytes=sum(p.io_bytes for p in processes),
            faults=sum(p.faults for p in processes),
            memory_mib=sum(p.memory_mib for p in processes),
        )
        self.peak_mib = max(self.peak_mib, int(seen.memory_mib))
        before = self._before
        self._before = seen
        self._window.append(seen)
        while len(self._window) > 2 and now - self._window[1].at >= WINDOW_S:
            self._window.popleft()
        if before is None or now <= before.at:
            return
        passed_s = now - before.at
        # A process that waits for its turn on a crowded machine works, though it gets next to nothing done.
        if (seen.ticks - before.ticks) / _TICKS >= BUSY_CORES * passed_s or any(
            p.state == "R" for p in processes
        ):
            self._cpu_at = now
        if seen.io_bytes - before.io_bytes >= BUSY_BYTES_S * passed_s:
            self._io_at = now
        idle_s = now - max(self._cpu_at, self._io_at)
        is_stopped = idle_s > 0 and any(p.state == "T" for p in processes)
        self._stopped_at = (self._stopped_at or now) if is_stopped else None
        if self._has_swap is None:
            self._has_swap = _has_swap()
        if self._has_swap:
            self._look_at_swap(processes, (seen.faults - before.faults) / passed_s, now)
        self._look_at_waits(processes, now)
        if idle_s >= FILES_AFTER_S:
            self.files.ask(now)
        else:
            self.files.forget()

    def _look_at_swap(self, processes: Sequence[Process], faults_s: float, now: float) -> None:
        self._swap_mib = swap_mib(p.pid for p in processes)
        is_swapping = self._swap_mib >= _SWAPPED_MIB and faults_s >= _SWAPS
        self._swapping_at = (self._swapping_at or now) if is_swapping else None

    def _look_at_waits(self, processes: Sequence[Process], now: float) -> None:
        """Threads that wait in the kernel, once nothing has used the CPU for a while."""
        if now - self._cpu_at < QUIET_S and not self._blocked:
            return
        waiting: dict[tuple[int, str, str], float] = {}
        self._blocked_on = ""
        for process in processes:
            for thread, state, wait in waits_of(process.pid):
                if state == "R":
                    self._cpu_at = now
                    continue
                key = (process.pid, thread, wait)
                waiting[key] = self._blocked.get(key, now)
                if waiting[key] == min(waiting.values()):
                    self._blocked_on = f"{process.name} in {wait or 'the kernel'}"
        self._blocked = waiting if now - max(self._cpu_at, self._io_at) >= QUIET_S else {}

    def evidence(self, processes: Sequence[Process], now: float) -> Evidence:
        """What was seen, summed up."""
        first, last = self._window[0], self._window[-1]
        passed_s = max(last.at - first.at, EVERY_S)
        states: dict[str, int] = {}
        for process in processes:
            states[process.state] = states.get(process.state, 0) + 1
        said = self.readings
        silent_since = max(said.output_at or self.began, self.began)
        return Evidence(
            attempt_id=self.attempt_id,
            age_s=_s(now - self.began),
            processes=len(processes),
            states=states,
            command=max(processes, key=lambda p: (p.ticks, p.pid)).name,
            cpu_s=round(last.ticks / _TICKS, 2),
            cores=round(max(last.ticks - first.ticks, 0) / _TICKS / passed_s, 3),
            io_bytes_s=round(max(last.io_bytes - first.io_bytes, 0) / passed_s, 1),
            memory_mib=int(last.memory_mib),
            memory_growth_mib=int(last.memory_mib - first.memory_mib),
            swap_mib=self._swap_mib,
            page_ins_s=round(max(last.faults - first.faults, 0) / passed_s, 1),
            cpu_idle_s=_s(now - self._cpu_at),
            io_idle_s=_s(now - self._io_at),
            silent_s=_s(now - silent_since),
            last_line=said.last_line,
            progress=said.fraction,
            progress_idle_s=None if said.progress_at is None else _s(now - said.progress_at),
            is_output_closed=self.is_output_closed,
            stopped_s=_s(now - self._stopped_at) if self._stopped_at is not None else 0.0,
            blocked_s=_s(now - min(self._blocked.values())) if self._blocked else 0.0,
            blocked_on=self._blocked_on if self._blocked else "",
            swapping_s=_s(now - self._swapping_at) if self._swapping_at is not None else 0.0,
            files_done_s=self.files.done_s(now),
            files_stuck_s=_s(self.files.stuck_s(now)),
            licence=said.licence,
        )


def _s(seconds: float) -> float:
    return round(max(seconds, 0.0), 1)


def _collected_ticks() -> int:
    """CPU time of the host's own children that it has collected."""
    times = os.times()
    return int((times.children_user + times.children_system) * _TICKS)
