"""Real processes of each kind, looked at by a clock that runs faster than they do, and judged."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farm.flow.stall import Expectation, judge
from farm.model.ids import AttemptId
from farm.model.stalls import Evidence, StallKind, Verdict
from farm.model.states import Outcome
from tests.waiting import wait_until
from tests.workers.host_driver import HostDriver, make_run, renderer_template
from workers.endings import Readings
from workers.evidence import FileWatch, Process, Sampler, read_process, swap_mib

AFTER_S = 120.0
USUAL = Expectation(median_s=10.0, upper_s=15.0)


@contextmanager
def program(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Python that says when it is ready."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.read(2) == b"ok"
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()


class Watched:
    """A sampler, and the time that it is told."""

    def __init__(self, *pids: int, files: tuple[Path, ...] = ()) -> None:
        self.now = 1_000.0
        self.pids = pids
        self.readings = Readings()
        self.sampler = Sampler(
            attempt_id=AttemptId("a"),
            readings=self.readings,
            tell=lambda evidence: None,
            files=FileWatch(files),
            began=self.now,
        )

    def look(self, passed_s: float = 10.0) -> Evidence:
        self.now += passed_s
        found = [p for pid in self.pids if (p := read_process(pid)) is not None]
        self.sampler.look(found, self.now)
        return self.sampler.evidence(found, self.now)

    def verdict(self, looks: int = 20, expected: Expectation | None = USUAL) -> Verdict:
        for _ in range(looks):
            evidence = self.look()
        return judge(evidence, expected, after_s=AFTER_S)


def look_until(watched: Watched, kind: StallKind) -> Verdict:
    """A busy machine may leave a process no time to get where it is going: look again until it is there."""

    def look() -> Verdict | None:
        verdict = watched.verdict(looks=20)
        return verdict if verdict.kind is kind else None

    return wait_until(look, f"it is taken for {kind}")  # type: ignore[return-value]


def test_one_that_computes_and_says_nothing_works() -> None:
    with program("print('ok', end='', flush=True)\nwhile True: pass") as child:
        watched = Watched(child.pid)
        wait_until(lambda: (p := read_process(child.pid)) is not None and p.state == "R", "it computes")
        verdict = watched.verdict(looks=1, expected=None)
        assert verdict.kind is StallKind.WORKING
        assert watched.look(300.0).cpu_idle_s == 0
        assert watched.verdict(looks=1, expected=None).kind is StallKind.SILENT
        assert watched.verdict(looks=1).kind is StallKind.SLOW


def test_one_that_sleeps_for_ever_hangs() -> None:
    with program("import time; print('ok', end='', flush=True); time.sleep(1e6)") as child:
        verdict = look_until(Watched(child.pid), StallKind.HUNG)
        assert "no CPU, no I/O for" in verdict.text


def test_one_that_is_stopped_by_a_signal() -> None:
    with program("import time; print('ok', end='', flush=True)\nwhile True: time.sleep(0.001)") as child:
        watched = Watched(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: (p := read_process(child.pid)) is not None and p.state == "T", "it is stopped")
        assert watched.verdict().kind is StallKind.STOPPED
        os.kill(child.pid, signal.SIGCONT)
        wait_until(lambda: (p := read_process(child.pid)) is not None and p.state != "T", "it goes on")
        assert watched.look().stopped_s == 0


def test_one_at_a_third_of_its_speed_is_slow_and_never_dead() -> None:
    with program("print('ok', end='', flush=True)\nwhile True: pass") as child:
        watched = Watched(child.pid)
        kinds: list[StallKind] = []
        for turn in range(30):
            os.kill(child.pid, signal.SIGCONT if turn % 3 == 0 else signal.SIGSTOP)
            wanted = "R" if turn % 3 == 0 else "T"
            wait_until(
                lambda wanted=wanted: (p := read_process(child.pid)) is not None and p.state == wanted,  # type: ignore[misc]
                f"its state is {wanted}",
            )
            kinds.append(judge(watched.look(), USUAL, after_s=AFTER_S).kind)
        assert set(kinds) <= {StallKind.WORKING, StallKind.SILENT, StallKind.SLOW}
        assert kinds[-1] is StallKind.SLOW


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "vfork"), reason="the C library has no vfork")
def test_one_that_waits_uninterruptibly_is_wedged() -> None:
    """A parent in vfork waits in state D until its child runs another program or ends."""
    code = """
import ctypes, os, time
libc = ctypes.PyDLL(None)
if libc.vfork() == 0:
    os.write(1, b"ok")
    time.sleep(1e6)
    os._exit(0)
"""
    with program(code) as child:
        wait_until(lambda: (p := read_process(child.pid)) is not None and p.state == "D", "it waits")
        # It is in state D before it leaves the CPU, and only then has its wait a name.
        verdict = look_until(Watched(child.pid), StallKind.WEDGED)
        assert " in " in verdict.text


def test_one_that_has_written_its_files_and_does_not_exit(tmp_path: Path) -> None:
    picture = tmp_path / "out.png"
    code = f"""
import os, time
print('ok', end='', flush=True)
open({str(picture)!r}, 'w').write('whole')
os.close(1); os.close(2)
time.sleep(1e6)
"""
    with program(code) as child:
        watched = Watched(child.pid, files=(picture,))
        wait_until(picture.exists, "it has written its file")

        def is_seen() -> bool:
            watched.look()
            return watched.sampler.files.done_s(watched.now) is not None

        wait_until(is_seen, "the file is seen")
        # The watch counts by the real clock, which this test does not wait for.
        watched.sampler.files._same_since = watched.now - 100
        verdict = watched.verdict(looks=8)
        watched.sampler.files.close()
        assert verdict.kind is StallKind.NOT_EXITING, verdict


def test_a_look_at_dead_files_does_not_keep_the_sampler_waiting(tmp_path: Path) -> None:
    class Dead(FileWatch):
        """Its server never answers."""

        def _run(self) -> None:
            pass

    with program("import time; print('ok', end='', flush=True); time.sleep(1e6)") as child:
        watched = Watched(child.pid)
        watched.sampler.files = Dead((tmp_path / "out.png",))
        verdict = look_until(watched, StallKind.WEDGED)
        assert "output directory has not come back" in verdict.text


def _proc(root: Path, pid: int, *, faults: int, swap_kib: int) -> None:
    (root / str(pid)).mkdir(parents=True, exist_ok=True)
    fields = ["S", "1", "1", "1", "0", "-1", "0", "10", "0", str(faults), "0", "5", "5", "0", "0", *["0"] * 7]
    fields[20:22] = ["0", "2560"]
    (root / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")
    (root / str(pid) / "io").write_text("rchar: 7\nwchar: 5\nread_bytes: 4096\n")
    (root / str(pid) / "status").write_text(f"Name:\ta\nVmSwap:\t{swap_kib} kB\n")


def test_one_that_swaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine of ours has swap to spare: the figures of one that had."""
    watched = Watched()
    watched.sampler._has_swap = True
    monkeypatch.setattr("workers.evidence.swap_mib", lambda pids: swap_mib(pids, tmp_path))
    for turn in range(20):
        _proc(tmp_path, 7, faults=3_000 * turn, swap_kib=900_000)
        found = read_process(7, tmp_path)
        assert found is not None
        assert found == Process(7, "a (b) c", "S", 10, 3_000 * turn, found.memory_mib, 12)
        watched.now += 10
        watched.sampler.look([found], watched.now)
    assert found is not None
    verdict = judge(watched.sampler.evidence([found], watched.now), None, after_s=AFTER_S)
    assert verdict.kind is StallKind.SWAPPING, verdict
    assert "878 MiB in swap" in verdict.text


def _tells(driver: HostDriver, says: Callable[[Evidence], bool]) -> Evidence:
    while not (driver.seen.evidence and says(driver.seen.evidence[-1])):
        assert driver.seen.finished is None, driver.seen
        driver.step()
    return driver.seen.evidence[-1]


def test_a_host_tells_of_all_its_processes_and_takes_the_files_of_one_that_does_not_exit(
    tmp_path: Path,
) -> None:
    out, child = tmp_path / "out", tmp_path / "child"
    out.mkdir()
    words = (
        "child",
        str(child),
        "wait-for",
        str(child),
        "write",
        "{{Param.Output}}/a.bin",
        "9",
        "say",
        "done",
    )
    template = renderer_template(*words, "sleep", "600")
    with HostDriver() as driver:
        driver.start(make_run(template, "lingers-1", output=out, files=("a.bin",)))
        told = _tells(driver, lambda seen: seen.processes == 2 and seen.last_line == "done")
        assert told.attempt_id == "lingers-1"
        assert told.age_s > 0
        assert told.memory_mib > 0
        driver.cancel("it does not exit", Outcome.STALLED, takes_output=True)
        finished = driver.finish()
    assert finished.outcome is Outcome.SUCCEEDED, finished
    assert (out / "a.bin").read_bytes() == b"x" * 9
    assert "did not exit" in finished.warnings[-1]


def test_files_that_are_not_whole_are_not_taken(tmp_path: Path) -> None:
    words = ("write", "{{Param.Output}}/a.bin", "9", "say", "done", "sleep", "600")
    with HostDriver() as driver:
        run = make_run(renderer_template(*words), "lingers-2", output=tmp_path, files=("a.bin", "b.bin"))
        driver.start(run)
        driver.wait_for_text("done")
        driver.cancel("it does not exit", Outcome.STALLED, takes_output=True)
        finished = driver.finish()
    assert finished.outcome is Outcome.STALLED
    assert "b.bin" in finished.reason
    assert not (tmp_path / "a.bin").exists()
