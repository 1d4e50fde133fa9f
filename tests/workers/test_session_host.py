"""Real hosts, real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farm.model.ids import AttemptId
from farm.model.states import Outcome
from farm.model.work import Isolation
from farm.wire.messages import Finished, HostRendered, HostRun, HostVerdict
from tests.workers.host_driver import (
    HostDriver,
    command_template,
    is_alive,
    make_run,
    outer_pids,
    renderer_template,
    until,
)
from workers import containment
from workers.containment import Containment
from workers.processes import kill_tagged


def available_containments() -> list[Containment]:
    best = containment.probe()
    if best is Containment.PID_NAMESPACE:
        return list(Containment)
    return [best, Containment.SUBREAPER] if best is not Containment.SUBREAPER else [best]


@pytest.fixture(params=available_containments())
def held(request: pytest.FixtureRequest) -> Containment:
    return Containment(request.param)


@pytest.fixture(scope="module")
def host() -> Iterator[HostDriver]:
    with HostDriver() as driver:
        yield driver


# --- containment ------------------------------------------------------------------------------------------


def test_what_an_attempt_leaves_behind_is_gone_when_it_has_succeeded(
    held: Containment, tmp_path: Path
) -> None:
    hidden, child = tmp_path / "hidden", tmp_path / "child"
    words = ("setsid", str(hidden), "child", str(child), "wait-for", str(hidden), "wait-for", str(child))
    with HostDriver(held) as driver:
        finished = driver.run(make_run(renderer_template(*words), "leaves-1"))
        assert finished.outcome is Outcome.SUCCEEDED, finished
        assert outer_pids("leaves-1") == []
        assert driver.run(make_run(renderer_template("say", "again"))).outcome is Outcome.SUCCEEDED


def test_cancel_ends_every_process_before_it_is_reported(held: Containment, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    words = ("setsid", str(hidden), "wait-for", str(hidden), "say", "up", "sleep", "60")
    with HostDriver(held) as driver:
        driver.start(make_run(renderer_template(*words), "cancel-1"))
        driver.wait_for_text("up")
        # Between the renderer and what it hides there was a third one, which ends in its own time.
        until(lambda: len(outer_pids("cancel-1")) == 2, "the renderer and its hidden child")
        driver.cancel("cancelled by anna")
        finished = driver.finish()
        assert outer_pids("cancel-1") == []
    assert (finished.outcome, finished.reason) == (Outcome.CANCELLED, "cancelled by anna")
    assert finished.exit_code == -signal.SIGTERM


def test_a_renderer_that_ignores_sigterm_is_killed_after_the_grace_time(host: HostDriver) -> None:
    words = ("ignore-term", "say", "up", "sleep", "60", "sleep", "60")
    host.start(make_run(renderer_template(*words), "ignores-1"))
    host.wait_for_text("up")
    before = time.monotonic()
    host.cancel("moved to a faster node", Outcome.STALLED)
    finished = host.finish()
    took_s = time.monotonic() - before
    assert (finished.outcome, finished.reason) == (Outcome.STALLED, "moved to a faster node")
    assert finished.exit_code == -signal.SIGKILL
    assert 1.9 < took_s < 60, "the grace time, not as long as it would sleep"
    assert "ignored" in host.seen.text


def test_the_end_of_the_agent_ends_everything(held: Containment, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    words = ("setsid", str(hidden), "wait-for", str(hidden), "say", "up", "sleep", "60")
    with HostDriver(held) as driver:
        driver.start(make_run(renderer_template(*words), f"gone-{held}"))
        driver.wait_for_text("up")
    assert outer_pids(f"gone-{held}") == []


def test_kill_of_the_host_ends_everything_in_its_namespace(held: Containment, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    words = ("setsid", str(hidden), "wait-for", str(hidden), "say", "up", "sleep", "60")
    tag = f"killed-{held}"
    with HostDriver(held) as driver:
        driver.start(make_run(renderer_template(*words), tag))
        driver.wait_for_text("up")
        os.killpg(driver.process.pid, signal.SIGKILL)
        driver.process.wait(10)
    if held is Containment.SUBREAPER:
        assert kill_tagged([AttemptId(tag)]) == 0  # what the agent does
    until(lambda: not outer_pids(tag), f"nothing of {tag} is left")


_STAND_IN = """
import subprocess, sys
from workers import containment
host = subprocess.Popen(
    containment.host_command(sys.executable, containment.Containment(sys.argv[1])),
    stdin=subprocess.PIPE, start_new_session=True, stdout=sys.stdout.fileno(),
)
host.stdin.write(sys.stdin.buffer.readline())
host.stdin.flush()
sys.stdin.buffer.readline()
"""


def test_kill_of_the_agent_ends_everything(held: Containment, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    tag = f"agent-{held}"
    run = make_run(renderer_template("setsid", str(hidden), "sleep", "60"), tag)
    agent = subprocess.Popen(
        [sys.executable, "-c", _STAND_IN, held], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert agent.stdin is not None
    with agent.stdin:
        agent.stdin.write(_line(run))
        agent.stdin.flush()
        until(hidden.exists, "the hidden child runs")
        assert len(outer_pids(tag)) == 2
        agent.kill()
        agent.wait(10)
    until(lambda: not outer_pids(tag), f"nothing of {tag} is left")


def _line(run: HostRun) -> bytes:
    from farm.wire.messages import dump

    return dump(run) + b"\n"


def test_a_cancel_that_arrives_late_does_not_end_the_next_attempt(host: HostDriver) -> None:
    host.cancel("too late")
    finished = host.run(make_run(renderer_template("say", "hello"), "late-1"))
    assert finished.outcome is Outcome.SUCCEEDED


def test_a_cancel_that_comes_with_the_order_starts_nothing(host: HostDriver, tmp_path: Path) -> None:
    run = make_run(renderer_template("touch", str(tmp_path / "ran")), "early-1")
    from farm.wire.messages import HostCancel, dump

    assert host.process.stdin is not None
    host.seen = type(host.seen)()
    host.process.stdin.write(_line(run) + dump(HostCancel(reason="at once")) + b"\n")
    host.process.stdin.flush()
    assert host.finish().outcome is Outcome.CANCELLED


# --- how attempts end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "outcome", "reason"),
    [
        (
            ("say", "Error: no camera", "say", "bye", "exit", "3"),
            Outcome.JOB_ERROR,
            "status 3: Error: no camera",
        ),
        (("kill", "11"), Outcome.JOB_ERROR, "was killed by SIGSEGV"),
        (("exit", "134"), Outcome.JOB_ERROR, "was killed by SIGABRT"),
        (("kill", "9"), Outcome.JOB_ERROR, "was killed by SIGKILL (out of memory?)"),
        (("say", "MemoryError", "exit", "1"), Outcome.OUT_OF_MEMORY, "MemoryError"),
        (("say", "write: No space left on device", "exit", "1"), Outcome.STORAGE, "No space left on device"),
        (("say", "openjd_fail: the licence is gone", "exit", "0"), Outcome.JOB_ERROR, "the licence is gone"),
    ],
)
def test_the_reason_says_how_it_failed(
    host: HostDriver, words: tuple[str, ...], outcome: Outcome, reason: str
) -> None:
    finished = host.run(make_run(renderer_template(*words), "fails-1"))
    assert finished.outcome is outcome, finished
    assert reason in finished.reason
    assert "\n" not in finished.reason
    assert not finished.is_final


def test_a_command_that_is_not_installed_is_the_nodes_fault(host: HostDriver) -> None:
    finished = host.run(make_run(command_template("no-such-renderer", ()), "missing-1"))
    assert (finished.outcome, finished.reason) == (Outcome.NODE_FAULT, "command not found: no-such-renderer")


def test_a_command_begins_in_a_session_and_directory_of_its_own_and_ignores_no_signal(
    host: HostDriver,
) -> None:
    look = "cut -d' ' -f1,6 /proc/$$/stat; pwd; echo $TMPDIR; grep SigIgn /proc/$$/status"
    finished = host.run(make_run(command_template("sh", ("-c", look)), "begins-1"))
    assert finished.outcome is Outcome.SUCCEEDED, finished
    # The first line is the command itself, shown before its output.
    numbers, directory, temporary, ignored = host.seen.text.splitlines()[1:]
    pid, session = numbers.split()
    assert session == pid
    assert directory == temporary
    # Those above 31 are the C library's own.
    assert int(ignored.split()[1], 16) & (1 << 31) - 1 == 0


def test_a_file_that_is_no_program_is_the_nodes_fault_and_the_next_one_runs(
    host: HostDriver, tmp_path: Path
) -> None:
    refused = tmp_path / "refused"
    refused.write_text("not a program\n")
    for mode, reason in ((0o600, "Permission denied"), (0o700, "Exec format error")):
        refused.chmod(mode)
        finished = host.run(make_run(command_template(str(refused), ()), f"refused-{mode}"))
        assert (finished.outcome, finished.exit_code) == (Outcome.NODE_FAULT, None)
        assert finished.reason == f"{refused} cannot be run: {reason}"
    assert host.run(make_run(command_template("true", ()), "refused-next")).outcome is Outcome.SUCCEEDED


def test_an_attempt_that_runs_too_long_is_stopped_as_stalled(host: HostDriver) -> None:
    finished = host.run(make_run(renderer_template("sleep", "60"), "slow-1", timeout_s=0.2))
    assert (finished.outcome, finished.reason) == (Outcome.STALLED, "ran longer than 0.2 s and was stopped")


def test_the_renderer_gets_the_hosts_environment_its_own_variables_and_nothing_to_read(
    tmp_path: Path,
) -> None:
    environment = {"PATH": os.environ["PATH"], "KEPT": "1", "LANG": "C.UTF-8"}
    words = ("env", "KEPT", "env", "CUDA_VISIBLE_DEVICES", "env", "FARM_ATTEMPT_ID", "fds")
    with HostDriver(env=environment) as driver:
        run = make_run(renderer_template(*words), "env-1", environment={"CUDA_VISIBLE_DEVICES": "GPU-1"})
        driver.run(run)
        assert (
            "KEPT=1\nCUDA_VISIBLE_DEVICES=GPU-1\nFARM_ATTEMPT_ID=env-1\nfds [0, 1, 2]\n" in driver.seen.text
        )
        driver.run(make_run(command_template("cat", ()), "stdin-1"))
        assert driver.seen.finished is not None
        assert driver.seen.finished.outcome is Outcome.SUCCEEDED


def test_each_attempt_has_an_empty_directory_of_its_own_that_is_removed(host: HostDriver) -> None:
    script = "pwd; ls -A; echo x > left; echo $TMPDIR; umask"
    host.run(make_run(command_template("sh", ("-c", script)), "dir-1"))
    first = host.seen.text.splitlines()[1:]
    host.run(make_run(command_template("sh", ("-c", script)), "dir-2"))
    second = host.seen.text.splitlines()[1:]
    assert first[0] == first[1] != second[0]
    assert first[2] == "0022"
    assert not Path(first[0]).exists()


def test_time_memory_and_cpu_are_measured(host: HostDriver) -> None:
    finished = host.run(make_run(renderer_template("eat", "300"), "eats-1"))
    assert finished.peak_memory_mib is not None
    assert 300 <= finished.peak_memory_mib < 400
    assert finished.runtime_s >= 0.4
    assert finished.cpu_s is not None
    assert 0 < finished.cpu_s < 10
    small = host.run(make_run(renderer_template("sleep", "0.3"), "eats-2"))
    assert small.peak_memory_mib is not None
    assert small.peak_memory_mib < 100


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with 300 MiB of memory (version 1 or 2)."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / f"ridgeline-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(300 << 20))
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("may not limit memory here")


def test_a_renderer_that_the_kernel_kills_for_its_memory_is_told_apart(memory_group: Path) -> None:
    with HostDriver() as driver:
        (memory_group / "cgroup.procs").write_text(str(_inner_pid(driver.process.pid)))
        finished = driver.run(make_run(renderer_template("eat", "600"), "oom-1"))
        assert finished.outcome is Outcome.OUT_OF_MEMORY
        program = Path(sys.executable).name
        assert finished.reason == f"{program} was killed by the kernel: out of memory"
        again = driver.run(make_run(renderer_template("kill", "9"), "oom-2"))
        assert again.outcome is Outcome.JOB_ERROR


def test_progress_that_a_plain_command_reports_the_openjd_way_arrives(host: HostDriver) -> None:
    words = ("say", "openjd_status: tracing", "say", "openjd_progress: 12.5", "sleep", "0.1")
    host.run(make_run(renderer_template(*words), "progress-1"))
    assert host.seen.progress
    assert host.seen.started == 1
    assert all(progress.attempt_id == "progress-1" for progress in host.seen.progress)
    more = (
        "say",
        "openjd_progress: 50",
        "sleep",
        "0.7",
        "say",
        "openjd_progress: 200",
        "say",
        "openjd_progress: 75",
    )
    host.run(make_run(renderer_template(*more, "sleep", "0.6"), "progress-2"))
    assert [progress.fraction for progress in host.seen.progress] == [0.5, 0.75]


def test_a_flood_of_output_is_capped_and_neither_fills_memory_nor_stops_the_renderer() -> None:
    with HostDriver() as driver:
        driver.run(make_run(renderer_template("say", "warm"), "flood-0"))
        before = _peak_mib(driver)
        for line in ("", "a line of text that is as long as most of them are"):
            words = ("say", "first", "flood", "100", line, "say", "", "say", "last")
            finished = driver.run(make_run(renderer_template(*words), "flood-1"))
            assert finished.outcome is Outcome.SUCCEEDED, finished
            assert len(driver.seen.text) < 530 * 1024
            assert "first\n" in driver.seen.text[:1000]
            assert driver.seen.text.endswith("last\n")
            assert " MiB left out …\n" in driver.seen.text
            assert max(map(len, driver.seen.text.splitlines())) <= 4096
        assert _peak_mib(driver) - before < 30


def _inner_pid(outer: int) -> int:
    """The host itself: the last process of the chain that starts it."""
    pid = outer
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def _peak_mib(driver: HostDriver) -> int:
    status = Path(f"/proc/{_inner_pid(driver.process.pid)}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def test_five_hundred_attempts_leave_the_host_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    with HostDriver() as driver:
        pid = _inner_pid(driver.process.pid)
        run = make_run(command_template("/bin/true", ()), "true")
        driver.run(run)
        before = sorted(os.listdir(f"/proc/{pid}/fd"))
        cpu_before = _cpu_s(pid)
        began = time.monotonic()
        for _ in range(500):
            assert driver.run(run).outcome is Outcome.SUCCEEDED
        rate = 500 / (time.monotonic() - began)
        cpu_ms = (_cpu_s(pid) - cpu_before) / 500 * 1000
        assert sorted(os.listdir(f"/proc/{pid}/fd")) == before
        assert driver.process.poll() is None
    with capsys.disabled():
        print(f" [{rate:.0f} plain attempts a second, {cpu_ms:.2f} ms of the host's CPU each] ", end="")
    assert cpu_ms < 5


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_host_survives_a_message_that_it_cannot_read(host: HostDriver) -> None:
    assert host.process.stdin is not None
    host.process.stdin.write(b'{"kind": "from the future"}\n\xff\n')
    assert host.run(make_run(renderer_template("say", "ok"), "future-1")).outcome is Outcome.SUCCEEDED


# --- staged output ------------------------------------------------------------------------------------------


def test_a_frame_is_rendered_in_private_verified_and_published(host: HostDriver, tmp_path: Path) -> None:
    final = tmp_path / "ünï cödé" / "out put"
    words = ("ppm", "{{Param.Output}}/shot 0007.ppm", "8", "4", "say", "{{Param.Output}}")
    finished = host.run(
        make_run(
            renderer_template(*words),
            "staged-1",
            output=final,
            files=("shot 0007.ppm",),
            is_image=True,
            allowed_roots=(str(tmp_path),),
        )
    )
    assert finished.outcome is Outcome.SUCCEEDED, finished
    (file,) = finished.files
    assert (file.path, file.width, file.height) == (str(final / "shot 0007.ppm"), 8, 4)
    assert file.size_bytes == (final / "shot 0007.ppm").stat().st_size
    assert finished.published_by == "staged-1"
    assert str(final / ".farm" / "job-staged-1" / "staged-1") in host.seen.text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "missing: a.ppm"),
        (("touch", "{{Param.Output}}/a.ppm"), "a.ppm is empty (disk full?)"),
        (
            ("ppm", "{{Param.Output}}/a.ppm", "8", "4", "cut", "{{Param.Output}}/a.ppm", "50"),
            "a.ppm is cut short",
        ),
        (("write", "{{Param.Output}}/a.ppm", "50"), "a.ppm is cut short or no image"),
    ],
)
def test_an_exit_status_of_0_without_a_whole_frame_is_a_failure(
    host: HostDriver, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    run = make_run(
        renderer_template(*words, "say", "done"), "unfit-1", output=tmp_path, files=("a.ppm",), is_image=True
    )
    finished = host.run(run)
    assert finished.outcome is Outcome.JOB_ERROR
    assert finished.reason.startswith(reason)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("refusal", ["", "it rendered on the CPU"])
def test_a_host_that_is_told_to_asks_before_it_publishes(
    host: HostDriver, tmp_path: Path, refusal: str
) -> None:
    name = f"asks-{len(refusal)}"
    run = make_run(
        renderer_template("write", "{{Param.Output}}/a.txt", "9"), name, output=tmp_path, files=("a.txt",)
    )
    host.start(replace(run, asks_before_publishing=True))
    while not isinstance(message := host.step(), HostRendered):
        assert not isinstance(message, Finished), "it did not ask"
    assert not (tmp_path / "a.txt").exists(), "nothing is published yet"
    host.send(HostVerdict(attempt_id=message.attempt_id, refusal=refusal))
    finished = host.finish()
    assert finished.reason == refusal
    assert finished.outcome is (Outcome.JOB_ERROR if refusal else Outcome.SUCCEEDED)
    assert (tmp_path / "a.txt").exists() is not bool(refusal)


def test_a_host_that_waits_for_a_verdict_heeds_a_cancel(host: HostDriver) -> None:
    host.start(replace(make_run(renderer_template("say", "done"), "asks-c"), asks_before_publishing=True))
    while not isinstance(host.step(), HostRendered):
        pass
    host.cancel("cancelled by anna")
    assert (host.finish().outcome, host.finish().reason) == (Outcome.CANCELLED, "cancelled by anna")


def test_nothing_is_rendered_when_the_frame_exists_and_was_not_made_by_the_job(
    host: HostDriver, tmp_path: Path
) -> None:
    (tmp_path / "a.ppm").write_text("precious")
    ran = tmp_path / "ran"
    template = renderer_template("touch", str(ran), "ppm", "{{Param.Output}}/a.ppm", "8", "4")
    finished = host.run(make_run(template, "refused-1", output=tmp_path, files=("a.ppm",), is_image=True))
    assert finished.outcome is Outcome.STORAGE
    assert finished.is_final
    assert finished.reason == (
        "a.ppm already exists and was not made by this job; "
        "submit with --overwrite or choose another --output"
    )
    assert not ran.exists()
    replacing = make_run(
        template, "refused-2", output=tmp_path, files=("a.ppm",), is_image=True, replace_existing=True
    )
    assert host.run(replacing).outcome is Outcome.SUCCEEDED
    assert (tmp_path / "a.ppm").read_bytes().startswith(b"P6")
    (kept,) = (path for path in (tmp_path / ".farm-replaced").rglob("*") if path.is_file())
    assert kept.read_text() == "precious"


def test_a_second_attempt_of_a_published_task_renders_nothing_and_names_the_first(
    host: HostDriver, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    template = renderer_template("ppm", "{{Param.Output}}/a.ppm", "8", "4", "touch", str(ran))
    first = make_run(template, "first", output=tmp_path, files=("a.ppm",), is_image=True, job_uid="two")
    assert host.run(first).outcome is Outcome.SUCCEEDED
    ran.unlink()
    second = make_run(template, "second", output=tmp_path, files=("a.ppm",), is_image=True, job_uid="two")
    finished = host.run(second)
    assert (finished.outcome, finished.published_by) == (Outcome.SUCCEEDED, "first")
    assert [file.path for file in finished.files] == [str(tmp_path / "a.ppm")]
    assert not ran.exists()
    third = make_run(
        template, "third", output=tmp_path, files=("a.ppm",), is_image=True, job_uid="two", generation=2
    )
    finished = host.run(third)
    assert (finished.outcome, finished.published_by) == (Outcome.SUCCEEDED, "third")
    assert ran.exists()


def test_an_output_directory_outside_of_the_allowed_ones_is_refused(host: HostDriver, tmp_path: Path) -> None:
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    allowed.mkdir()
    outside.mkdir()
    (allowed / "link").symlink_to(outside)
    for directory in (outside, allowed / ".." / "outside", allowed / "link"):
        run = make_run(
            renderer_template("say", "x"), "root-1", output=directory, allowed_roots=(str(allowed),)
        )
        finished = host.run(run)
        assert finished.outcome is Outcome.JOB_ERROR
        assert finished.reason == f"this node may not write to {directory}; it may below {allowed}"
    assert list(outside.iterdir()) == []


def test_a_job_that_was_tidied_away_meanwhile_publishes_nothing(host: HostDriver, tmp_path: Path) -> None:
    from workers.staging import tidy_job

    go = tmp_path / "go"
    words = ("ppm", "{{Param.Output}}/a.ppm", "8", "4", "say", "written", "wait-for", str(go))
    final = tmp_path / "out"
    host.start(make_run(renderer_template(*words), "zombie", output=final, files=("a.ppm",), is_image=True))
    host.wait_for_text("written")
    tidy_job(final, "job-zombie")
    go.touch()
    finished = host.finish()
    assert (finished.outcome, finished.reason) == (Outcome.CANCELLED, "the job has been tidied away")
    assert list(final.iterdir()) == []


def test_an_exclusive_command_writes_in_place_and_its_files_are_looked_at(
    host: HostDriver, tmp_path: Path
) -> None:
    def run(*words: str) -> HostRun:
        return make_run(
            renderer_template(*words, "say", "x"),
            "exclusive-1",
            output=tmp_path,
            files=("a.ppm",),
            is_image=True,
            isolation=Isolation.EXCLUSIVE,
        )

    finished = host.run(run("ppm", "{{Param.Output}}/a.ppm", "8", "4"))
    assert finished.outcome is Outcome.SUCCEEDED
    assert [file.path for file in finished.files] == [str(tmp_path / "a.ppm")]
    assert [path.name for path in tmp_path.iterdir()] == ["a.ppm"]
    os.utime(tmp_path / "a.ppm", (1, 1))
    assert host.run(run()).reason == "a.ppm is older than this attempt: nothing was written"


def _mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount a file system here: {done.stderr}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small disk"
    place.mkdir()
    _mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place))
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_a_storage_failure_whatever_the_renderer_says(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(1_900_000))
    # Blender and others write what fits, or nothing, and exit with status 0.
    script = 'head -c 3000000 /dev/zero > "$1/a.ppm" 2>/dev/null; exit $2'
    with HostDriver() as driver:
        for status in ("0", "1"):
            template = command_template("sh", ("-c", script, "sh", "{{Param.Output}}", status))
            finished = driver.run(
                make_run(template, f"full-{status}", output=small_disk, files=("a.ppm",), is_image=True)
            )
            assert finished.outcome is Outcome.STORAGE, finished
            assert "full" in finished.reason
    assert [path.name for path in small_disk.rglob("*") if path.is_file()] == ["ballast"]


def test_a_file_system_that_is_mounted_later_is_seen_by_a_running_host(
    held: Containment, tmp_path: Path
) -> None:
    _mount("--bind", str(tmp_path), str(tmp_path))
    try:
        _mount("--make-shared", str(tmp_path))
        place = tmp_path / "late"
        place.mkdir()
        with HostDriver(held) as driver:
            _mount("-t", "tmpfs", "tmpfs", str(place))
            try:
                (place / "file").touch()
                finished = driver.run(make_run(command_template("test", ("-e", str(place / "file")))))
                assert finished.outcome is Outcome.SUCCEEDED
            finally:
                subprocess.run(["umount", "--lazy", str(place)], check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


# --- OpenJD sessions ----------------------------------------------------------------------------------------


def _environment(name: str, log: Path, *, enter: str = "", leave: str = "") -> dict[str, object]:
    def action(text: str) -> dict[str, object]:
        return {"command": "sh", "args": ["-c", text]}

    return {
        "name": name,
        "script": {
            "actions": {
                "onEnter": action(f"echo enter {name} >> '{log}'; {enter}"),
                "onExit": action(f"echo exit {name} >> '{log}'; {leave}"),
            }
        },
    }


def _session_template(log: Path, task: str, *, enter: str = "", leave: str = "") -> dict[str, object]:
    template = command_template("sh", ("-c", f"echo task {{{{Task.Param.Frame}}}} >> '{log}'; {task}"))
    template["steps"][0]["stepEnvironments"] = [_environment("Inner", log, enter=enter, leave=leave)]
    template["steps"][0]["parameterSpace"] = {
        "taskParameterDefinitions": [{"name": "Frame", "type": "INT", "range": "1-9"}]
    }
    template["jobEnvironments"] = [_environment("Outer", log)]
    return template


@pytest.mark.parametrize(
    ("task", "enter", "leave", "outcome", "reason", "ran"),
    [
        ("true", "", "", Outcome.SUCCEEDED, "", True),
        ("echo Error: dark; exit 4", "", "", Outcome.JOB_ERROR, "sh exited with status 4: Error: dark", True),
        ("echo openjd_fail: no light; exit 0", "", "", Outcome.JOB_ERROR, "no light", True),
        ("true", "exit 5", "", Outcome.JOB_ERROR, "environment Inner: exit status 5", False),
        (
            "true",
            "",
            "exit 6",
            Outcome.JOB_ERROR,
            "environment Inner could not be exited: exit status 6",
            True,
        ),
        ("kill -11 $$", "", "", Outcome.JOB_ERROR, "sh was killed by SIGSEGV", True),
        ("echo write: No space left on device; exit 1", "", "", Outcome.STORAGE, "No space left", True),
    ],
)
def test_environments_are_entered_and_exited_in_order_however_the_task_ends(
    host: HostDriver,
    tmp_path: Path,
    task: str,
    enter: str,
    leave: str,
    outcome: Outcome,
    reason: str,
    ran: bool,
) -> None:
    log = tmp_path / "what happened"
    template = _session_template(log, task, enter=enter, leave=leave)
    finished = host.run(make_run(template, "session-1", task_parameters={"Frame": ("INT", "7")}))
    assert finished.outcome is outcome, (finished, host.seen.text)
    assert reason in finished.reason
    expected = ["enter Outer", "enter Inner", *(["task 7"] if ran else []), "exit Inner", "exit Outer"]
    assert log.read_text().splitlines() == expected


def test_a_session_reports_progress_sets_variables_and_sees_its_environment(
    host: HostDriver, tmp_path: Path
) -> None:
    task = (
        "echo openjd_status: tracing; echo openjd_progress: 40; echo $CAMERA $FARM_ATTEMPT_ID $GPU; sleep 0.1"
    )
    template = _session_template(tmp_path / "log", task, enter="echo openjd_env: CAMERA=left")
    run = make_run(template, "session-2", task_parameters={"Frame": ("INT", "7")}, environment={"GPU": "g1"})
    assert host.run(run).outcome is Outcome.SUCCEEDED
    assert "left session-2 g1" in host.seen.text
    assert (0.4, "tracing") in [(progress.fraction, progress.message) for progress in host.seen.progress]


def test_a_daemon_that_an_environment_starts_serves_the_task(host: HostDriver, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    daemon = f"sleep 0.1; trap 'echo yes > {answer}' USR1; while :; do sleep 0.01; done"
    enter = f'sh -c "{daemon}" >/dev/null 2>&1 & echo openjd_env: DAEMON=$!'
    task = f"kill -USR1 $DAEMON; while ! [ -e {answer} ]; do sleep 0.01; done"
    template = _session_template(tmp_path / "log", task, enter=enter)
    run = make_run(template, "session-8", task_parameters={"Frame": ("INT", "7")}, timeout_s=10)
    assert host.run(run).outcome is Outcome.SUCCEEDED
    assert outer_pids("session-8") == []


def test_a_daemon_that_takes_long_to_start_is_waited_for_while_it_is_at_work(
    host: HostDriver, tmp_path: Path
) -> None:
    answer, script = tmp_path / "answer", tmp_path / "daemon.py"
    script.write_text(
        "import pathlib, signal, time\n"
        "end = time.monotonic() + 0.9\n"
        "while time.monotonic() < end: pass\n"
        f"signal.signal(signal.SIGUSR1, lambda *_: pathlib.Path({str(answer)!r}).touch())\n"
        "while True: time.sleep(60)\n"
    )
    enter = f"{sys.executable} {script} >/dev/null 2>&1 & echo openjd_env: DAEMON=$!"
    task = f"kill -USR1 $DAEMON; while ! [ -e {answer} ]; do kill -0 $DAEMON || exit 7; sleep 0.01; done"
    template = _session_template(tmp_path / "log", task, enter=enter)
    run = make_run(template, "session-9", task_parameters={"Frame": ("INT", "7")}, timeout_s=10)
    assert host.run(run).outcome is Outcome.SUCCEEDED


def test_an_orphan_that_has_ended_is_gone_for_a_script_that_waits_for_it(
    host: HostDriver, tmp_path: Path
) -> None:
    if containment.probe() is Containment.SUBREAPER:
        pytest.skip("needs a PID namespace")
    wait = "while kill -0 $DAEMON; do sleep 0.01; done"
    enter = "sh -c 'sleep 0.5 & echo openjd_env: DAEMON=$!' 2>&1"
    template = _session_template(tmp_path / "log", wait, enter=enter)
    run = make_run(template, "session-10", task_parameters={"Frame": ("INT", "7")}, timeout_s=5)
    assert host.run(run).outcome is Outcome.SUCCEEDED


def test_a_cancelled_session_exits_its_environments_and_leaves_no_daemon(
    held: Containment, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    enter = "setsid sleep 1000 >/dev/null 2>&1 &"
    template = _session_template(log, "echo up; setsid sleep 1000 & sleep 1000", enter=enter)
    tag = f"session-{held}"
    with HostDriver(held) as driver:
        driver.start(make_run(template, tag, task_parameters={"Frame": ("INT", "7")}))
        driver.wait_for_text("up")
        driver.cancel()
        finished = driver.finish()
        assert finished.outcome is Outcome.CANCELLED, finished
        assert outer_pids(tag) == []
        assert log.read_text().splitlines()[-2:] == ["exit Inner", "exit Outer"]
        assert driver.run(make_run(renderer_template("say", "again"))).outcome is Outcome.SUCCEEDED


_DAEMON = "setsid sleep 1000 >/dev/null 2>&1 & echo openjd_env: DAEMON=$!"


def _kept(log: Path, task: str, number: int, *, job: str, **more: Any) -> HostRun:
    template = _session_template(log, task, enter=_DAEMON)
    frame = {"Frame": ("INT", str(number))}
    return make_run(
        template,
        f"{job}-{number}",
        task_parameters=frame,
        task_id=number,
        job_uid=job,
        keeps_sessions=True,
        **more,
    )


def test_a_kept_session_serves_the_tasks_of_its_step_and_ends_with_it(
    held: Containment, tmp_path: Path
) -> None:
    log, other = tmp_path / "log", tmp_path / "other"
    leave = "setsid sleep 1000 >/dev/null 2>&1 &"
    task = f"kill -0 $DAEMON || exit 3; echo served by $DAEMON as $FARM_ATTEMPT_ID; {leave}"
    job = f"kept-{held}"
    told = []
    with HostDriver(held) as driver:
        for number in (1, 2, 3):
            assert driver.run(_kept(log, task, number, job=job)).outcome is Outcome.SUCCEEDED, driver.seen
            told += re.findall(r"served by (\d+) as (\S+)", driver.seen.text)
            assert len(outer_pids(f"{job}-1")) == 1, "the daemon, and nothing that the task left"
            assert number == 1 or outer_pids(f"{job}-{number}") == []
        assert [words[1] for words in told] == [f"{job}-1", f"{job}-2", f"{job}-3"]
        assert len({words[0] for words in told}) == 1, "one daemon served them"
        tasks = ["task 1", "task 2", "task 3"]
        assert log.read_text().splitlines() == ["enter Outer", "enter Inner", *tasks]
        assert driver.run(_kept(other, "true", 4, job="another")).outcome is Outcome.SUCCEEDED
        assert outer_pids(f"{job}-1") == []
        assert log.read_text().splitlines()[-2:] == ["exit Inner", "exit Outer"]
    assert outer_pids("another-4") == []


def test_a_task_that_fails_ends_its_session_and_the_next_one_starts_anew(
    host: HostDriver, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert host.run(_kept(log, "true", 1, job="fails")).outcome is Outcome.SUCCEEDED
    finished = host.run(_kept(log, "exit 4", 2, job="fails"))
    assert (finished.outcome, finished.exit_code) == (Outcome.JOB_ERROR, 4)
    assert outer_pids("fails-1") == []
    assert host.run(_kept(log, "true", 3, job="fails")).outcome is Outcome.SUCCEEDED
    assert log.read_text().splitlines() == [
        *("enter Outer", "enter Inner", "task 1", "task 2", "exit Inner", "exit Outer"),
        *("enter Outer", "enter Inner", "task 3"),
    ]


def test_tasks_of_one_session_write_where_each_of_them_is_told(host: HostDriver, tmp_path: Path) -> None:
    task = "echo {{Task.Param.Frame}} > {{Param.Output}}/{{Task.Param.Frame}}.txt"
    for number in (1, 2):
        name = f"{number}.txt"
        run = _kept(tmp_path / "log", task, number, job="writes", output=tmp_path / "out", files=(name,))
        assert host.run(run).outcome is Outcome.SUCCEEDED, host.seen
        assert (tmp_path / "out" / name).read_text() == f"{number}\n"
    assert (tmp_path / "log").read_text().count("enter Inner") == 1


def test_an_environment_that_reads_the_output_directory_serves_one_task(
    host: HostDriver, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    for number in (1, 2):
        run = _kept(log, "true", number, job="reads", output=tmp_path / str(number), files=("a.txt",))
        enter = run.script.template["steps"][0]["stepEnvironments"][0]["script"]["actions"]["onEnter"]
        enter["args"][1] += "; echo x > {{Param.Output}}/a.txt"
        assert host.run(run).outcome is Outcome.SUCCEEDED, host.seen
    assert log.read_text().count("exit Inner") == 2


def test_other_devices_get_another_session(host: HostDriver, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for number, device in enumerate(("GPU-1", "GPU-2"), start=1):
        run = _kept(log, "echo on $CARD", number, job="devices", environment={"CARD": device})
        assert host.run(run).outcome is Outcome.SUCCEEDED
        assert f"on {device}" in host.seen.text
    assert log.read_text().count("enter Inner") == 2


def test_a_session_that_hangs_is_stopped_in_time(host: HostDriver, tmp_path: Path) -> None:
    template = _session_template(tmp_path / "log", "sleep 1000", leave="sleep 1000")
    before = time.monotonic()
    run = make_run(template, "session-3", task_parameters={"Frame": ("INT", "7")}, timeout_s=0.3)
    finished = host.run(run)
    assert (finished.outcome, finished.reason) == (Outcome.STALLED, "ran longer than 0.3 s and was stopped")
    assert time.monotonic() - before < 300, "not as long as it would sleep"


def test_a_flood_in_a_session_does_not_fill_memory(tmp_path: Path) -> None:
    with HostDriver() as driver:
        template = _session_template(tmp_path / "log", "true")
        driver.run(make_run(template, "session-4", task_parameters={"Frame": ("INT", "7")}))
        before = _peak_mib(driver)
        line = "$(head -c 2000 /dev/zero | tr '\\0' x)"
        template = _session_template(tmp_path / "log", f'yes "{line}" | head -n 50000; echo last')
        finished = driver.run(make_run(template, "session-5", task_parameters={"Frame": ("INT", "7")}))
        assert finished.outcome is Outcome.SUCCEEDED
        assert "last\n" in driver.seen.text
        assert _peak_mib(driver) - before < 20


def test_a_command_that_a_session_cannot_find_is_the_nodes_fault(host: HostDriver, tmp_path: Path) -> None:
    template = _session_template(tmp_path / "log", "true")
    template["steps"][0]["script"]["actions"]["onRun"] = {"command": "no-such-renderer"}  # type: ignore[index]
    finished = host.run(make_run(template, "session-6", task_parameters={"Frame": ("INT", "7")}))
    assert (finished.outcome, finished.reason) == (Outcome.NODE_FAULT, "command not found: no-such-renderer")


@pytest.mark.parametrize(
    "damage",
    [
        {"steps": []},
        {"extensions": ["NO_SUCH_EXTENSION"]},
        {"steps": [{"name": "render", "script": {"actions": {"onRun": {"command": "{{Nonsense.X}}"}}}}]},
    ],
)
def test_a_template_that_cannot_be_run_fails_for_good_in_one_line(
    host: HostDriver, damage: dict[str, object]
) -> None:
    finished = host.run(make_run({**command_template("true", ()), **damage}, "broken-1"))
    assert finished.outcome is Outcome.JOB_ERROR
    assert finished.is_final
    assert finished.reason.startswith("the template cannot be run: ")


def test_an_embedded_script_with_a_staged_output_is_published(host: HostDriver, tmp_path: Path) -> None:
    template = command_template("python3", ("{{Task.File.Run}}",))
    data = "open(r'{{Param.Output}}/a.txt', 'w').write('whole')"
    template["steps"][0]["script"]["embeddedFiles"] = [{"name": "Run", "type": "TEXT", "data": data}]
    final = tmp_path / "ünï cödé"
    finished = host.run(make_run(template, "session-7", output=final, files=("a.txt",)))
    assert finished.outcome is Outcome.SUCCEEDED, finished
    assert (final / "a.txt").read_text() == "whole"


def test_the_marker_of_a_published_task_names_its_files(host: HostDriver, tmp_path: Path) -> None:
    template = renderer_template(
        "write", "{{Param.Output}}/a.bin", "10", "write", "{{Param.Output}}/b.bin", "20"
    )
    run = make_run(template, "marks-1", output=tmp_path, files=("a.bin",), task_id=3, generation=2)
    assert host.run(run).outcome is Outcome.SUCCEEDED
    marker = json.loads((tmp_path / ".farm" / "job-marks-1" / "3.g2.json").read_text())
    assert (marker["attempt"], marker["generation"]) == ("marks-1", 2)
    assert [(file["name"], file["size_bytes"]) for file in marker["files"]] == [("a.bin", 10), ("b.bin", 20)]


def test_hosts_leave_nothing_in_the_temporary_directory(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    with HostDriver(env=environment) as killed:
        (root,) = tmp_path.iterdir()
        os.killpg(killed.process.pid, signal.SIGKILL)
        killed.process.wait(10)
    os.utime(root, (1, 1))
    with HostDriver(env=environment) as driver:
        assert root not in tmp_path.iterdir()
        assert is_alive(driver.process.pid)
    assert list(tmp_path.iterdir()) == []
