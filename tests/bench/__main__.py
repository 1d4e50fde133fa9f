"""Run the benchmarks named on the command line, or all: `python -m tests.bench dispatch submit`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.bench.warm import bench_warm
from tests.conftest import drop_postgres_database, new_postgres_database
from tests.e2e.farm_under_test import FarmUnderTest
from tests.e2e.services import add_vhost, remove_vhost
from tests.waiting import wait_until

TASKS = 2_000


def bench_start() -> None:
    """Start of the command line, against a bare interpreter."""

    def median_s(*command: str) -> float:
        times = []
        for _ in range(9):
            begun = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    bare_s = median_s(sys.executable, "-c", "pass")
    help_s = median_s(sys.executable, "-m", "farm.main", "--help")
    tell("farm --help", f"{help_s:.3f} s", f"{help_s / bare_s:.1f} x a bare interpreter ({bare_s:.3f} s)")


def bench_submit() -> None:
    """100,000 frames in one job, on both databases: time of the command, memory of the server."""
    for kind in ("SQLite", "PostgreSQL"):
        with farm(kind, agents=0) as under_test:
            server = psutil.Process(under_test.processes["server"].pid)
            under_test.submit("--paused", "--frames", "1-10", "--", "/bin/true", "{frame}")
            before = server.memory_info().rss
            begun = time.perf_counter()
            job_id = under_test.submit("--paused", "--frames", "1-100000", "--", "/bin/true", "{frame}")
            took_s = time.perf_counter() - begun
            after = server.memory_info().rss
            assert under_test.job(job_id)["counts"]["ready"] == 100_000
        tell(
            f"submit 100,000 frames, {kind}",
            f"{took_s:.2f} s",
            f"server {after / 1e6:.0f} MB, {(after - before) / 1e6:+.0f} MB",
        )


def bench_dispatch() -> None:
    """Tasks of /bin/true through RabbitMQ and PostgreSQL, against `xargs -P4` of the same."""
    with farm("PostgreSQL", agents=2, slots=8) as under_test:
        warm = under_test.submit("--frames", "1-200", "--", "/bin/true", "{frame}")
        assert under_test.wait_for_job(warm) == "done"
        floor = xargs_rate()
        job_id = under_test.submit("--paused", "--frames", f"1-{TASKS}", "--", "/bin/true", "{frame}")
        processes = [psutil.Process(p.pid) for p in under_test.processes.values()]
        cpu_before = {p.pid: sum(p.cpu_times()[:2]) for p in processes}
        begun = time.time()
        under_test.farm("resume", str(job_id))
        # Asked seldom: the questions are no part of the work. When it ended the farm itself knows.
        assert under_test.wait_for_job(job_id, timeout_s=120, pause_s=0.5) == "done"
        job = under_test.job(job_id)["job"]
        rate = TASKS / (job["finished_at"] - begun)
        floor = statistics.mean([floor, xargs_rate()])
        tell(
            f"{TASKS:,} tasks of /bin/true",
            f"{rate:.0f} tasks/s",
            f"{rate / floor:.0%} of xargs -P4 ({floor:.0f}/s); job {job['state']}",
        )
        for name, process in zip(under_test.processes, processes, strict=True):
            used = sum(process.cpu_times()[:2]) - cpu_before[process.pid]
            tell(f"  {name}", f"{used / TASKS * 1e6:.0f} µs CPU a task", "")


def bench_latency() -> None:
    """From the decision to the node's word that the renderer starts, at about 100 tasks a second."""
    # 0.3 to 0.4 s long: too long to be queued ahead; 44 slots make about 100 a second.
    with farm("PostgreSQL", agents=2, slots=22) as under_test:
        warm = under_test.submit("--frames", "1-200", "--", "/bin/true", "{frame}")
        assert under_test.wait_for_job(warm) == "done"
        job_id = under_test.submit("--frames", "1-800", "--", "/bin/sleep", "0.3{frame}")
        begun = time.perf_counter()
        assert under_test.wait_for_job(job_id, timeout_s=120) == "done"
        rate = 800 / (time.perf_counter() - begun)
        waits = sorted(a["started_at"] - a["assigned_at"] for a in under_test.attempts(job_id))
        tell(
            f"dispatch at {rate:.0f} tasks/s",
            f"p50 {waits[len(waits) // 2] * 1e3:.0f} ms",
            f"p99 {waits[int(len(waits) * 0.99)] * 1e3:.0f} ms",
        )


def bench_idle() -> None:
    """CPU of a farm with nothing to do, as a share of one core."""
    with farm("PostgreSQL", agents=1) as under_test:
        tell_idle("serve + scheduler + worker", [p.pid for p in under_test.processes.values()])
    with tempfile.TemporaryDirectory() as folder:
        embedded = FarmUnderTest(Path(folder), "", "memory://")
        process = embedded.start("server", "up")
        try:
            wait_until(lambda: len(embedded.nodes_online()) == 1, "the local node", timeout_s=60)
            tell_idle("farm up", [process.pid])
        finally:
            embedded.stop_all()


def tell_idle(what: str, pids: list[int]) -> None:
    period_s = 15.0
    threads = [p for pid in pids for p in (psutil.Process(pid), *psutil.Process(pid).children(True))]
    time.sleep(3)
    before = sum(sum(p.cpu_times()[:2]) for p in threads)
    time.sleep(period_s)
    used = sum(sum(p.cpu_times()[:2]) for p in threads) - before
    rss = sum(p.memory_info().rss for p in threads)
    tell(f"idle {what}", f"{used / period_s:.1%} of a core", f"{rss / 1e6:.0f} MB")


def xargs_rate() -> float:
    numbers = "\n".join(map(str, range(TASKS))).encode()
    begun = time.perf_counter()
    subprocess.run(["xargs", "-n1", "-P4", "/bin/true"], input=numbers, check=True)
    return TASKS / (time.perf_counter() - begun)


class farm:  # noqa: N801 - reads as a word: `with farm(...)`
    """A farm of real processes, for the length of a `with`."""

    def __init__(self, kind: str, *, agents: int, slots: int = 1) -> None:
        self._kind = kind
        self._agents = agents
        self._slots = slots

    def __enter__(self) -> FarmUnderTest:
        self._folder = tempfile.TemporaryDirectory()
        self._url = new_postgres_database() if self._kind == "PostgreSQL" else ""
        folder = Path(self._folder.name)
        self._broker = add_vhost()
        database_url = self._url or f"sqlite:///{folder / 'farm.db'}"
        self._farm = FarmUnderTest(folder, database_url, self._broker)
        try:
            self._farm.start_all(agents=self._agents, slots=self._slots)
        except BaseException:
            self.__exit__()
            raise
        return self._farm

    def __exit__(self, *error: object) -> None:
        self._farm.stop_all()
        remove_vhost(self._broker)
        if self._url:
            drop_postgres_database(self._url)
        self._folder.cleanup()


def tell(what: str, figure: str, compared: str) -> None:
    print(f"{what:<44} {figure:>22}   {compared}", flush=True)


BENCHES: dict[str, Callable[[], None]] = {
    "start": bench_start,
    "submit": bench_submit,
    "dispatch": bench_dispatch,
    "latency": bench_latency,
    "idle": bench_idle,
    "warm": bench_warm,
}

if __name__ == "__main__":
    wanted = sys.argv[1:] or list(BENCHES)
    unknown = [name for name in wanted if name not in BENCHES]
    if unknown:
        sys.exit(f"no benchmark {unknown}; there are {', '.join(BENCHES)}")
    print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg()}))
    for name in wanted:
        BENCHES[name]()
