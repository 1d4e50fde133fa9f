"""`farm up`: everything in one process with SQLite, nothing to configure."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.e2e.farm_under_test import FarmUnderTest
from tests.e2e.marked_jobs import MarkedJob
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

FRAMES = 12


@pytest.fixture
def slots() -> int:
    return 2


@pytest.fixture
def farm(tmp_path: Path, slots: int) -> Iterator[FarmUnderTest]:
    folder = tmp_path / "farm"
    folder.mkdir()
    hurry = {"FARM_SLOTS": str(slots), "FARM_LEADER_TTL_S": "2"}
    farm = FarmUnderTest(folder, database_url="", broker_url="memory://", extra=hurry)
    try:
        start(farm)
        yield farm
    finally:
        farm.stop_all()


def start(farm: FarmUnderTest) -> None:
    farm.start("server", "up")
    wait_until(lambda: len(farm.nodes_online()) == 1, "`farm up`")


def press_ctrl_c(farm: FarmUnderTest) -> None:
    """As a terminal does: every process of the foreground group gets it. Nothing may be left afterwards."""
    process = farm.processes["server"]
    below = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 0, farm.logs()
    assert not [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert "Traceback" not in farm.logs()


def test_a_job_is_done_and_ctrl_c_leaves_nothing(farm: FarmUnderTest, tmp_path: Path) -> None:
    job = MarkedJob(farm, tmp_path / "frames", FRAMES).submit()
    job.check_done(most_starts=FRAMES)
    press_ctrl_c(farm)


def test_ctrl_c_in_the_middle_hands_back_what_runs(farm: FarmUnderTest, tmp_path: Path) -> None:
    job = MarkedJob(farm, tmp_path / "frames", FRAMES).submit("seconds", "0.5")
    farm.wait_for_done(job.id, 2)
    press_ctrl_c(farm)
    assert not job.renderers()
    start(farm)
    job.check_done(most_starts=FRAMES + 2 * 9)


def test_a_killed_farm_goes_on_when_it_is_started_again(farm: FarmUnderTest, tmp_path: Path) -> None:
    job = MarkedJob(farm, tmp_path / "frames", FRAMES).submit("seconds", "0.5")
    farm.wait_for_done(job.id, 2)
    farm.kill("server")
    wait_until(lambda: not job.renderers(), "no renderer", timeout_s=20)
    start(farm)
    job.check_done(most_starts=FRAMES + 2 * 9)


def test_a_hundred_thousand_frames_are_submitted_and_cancelled(farm: FarmUnderTest, tmp_path: Path) -> None:
    job_id = farm.submit("--frames", "1-100000", "--", "sh", "-c", "echo {frame}")
    assert sum(farm.job(job_id)["counts"].values()) == 100_000
    farm.farm("cancel", str(job_id))
    assert farm.wait_for_job(job_id) == "cancelled"
    counts = {state: n for state, n in farm.job(job_id)["counts"].items() if n}
    assert set(counts) <= {"cancelled", "done"}
    assert sum(counts.values()) == 100_000


def test_two_submits_with_one_key_are_one_job(farm: FarmUnderTest) -> None:
    def submit(_: int) -> subprocess.CompletedProcess[str]:
        return farm.farm_process("submit", "--quiet", "--idempotency-key", "shot-7", "--", "true")

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(submit, range(2)))
    assert [done.returncode for done in both] == [0, 0], both
    assert both[0].stdout == both[1].stdout
    assert len(farm.get("/jobs")["items"]) == 1
    other = farm.try_farm("submit", "--quiet", "--idempotency-key", "shot-7", "--", "false")
    assert other.returncode != 0
    assert "shot-7" in other.stderr


@pytest.mark.parametrize("slots", [1])
def test_frames_start_in_the_order_that_was_asked_for(farm: FarmUnderTest, tmp_path: Path) -> None:
    orders = {
        "forward": [1, 2, 3, 4, 5, 6, 7],
        "reverse": [7, 6, 5, 4, 3, 2, 1],
        "first-middle-last": [1, 4, 7, 2, 3, 5, 6],
        "every-3": [1, 4, 7, 2, 3, 5, 6],
    }
    began = {order: tmp_path / order for order in orders}
    for order, log in began.items():
        command = ("sh", "-c", f'echo {{frame}} >> "{log}"')
        farm.farm("submit", "--frames", "1-7", "--order", order, "--wait", "--", *command)
    assert {order: [*map(int, log.read_text().split())] for order, log in began.items()} == orders


def test_a_frame_of_the_next_job_starts_after_that_frame_and_not_after_all(
    farm: FarmUnderTest, tmp_path: Path
) -> None:
    """The last frame of the first job ends when the first frame of the second has begun."""
    awaits = "[ {frame} = 5 ] && [ ! -e comp-1 ]"
    script = f'cd "{tmp_path}"; while {awaits}; do sleep 0.05; done; touch render-{{frame}}'
    render = farm.farm("submit", "--frames", "1-5", "-q", "--", "sh", "-c", script).strip()
    follow = ("--depends-on", render, "--frame-by-frame")
    script = f'cd "{tmp_path}"; ls render-{{frame}} && touch comp-{{frame}}'
    comp = farm.farm("submit", "--frames", "1-5", "--retries", "0", *follow, "-q", "--", "sh", "-c", script)
    farm.farm("wait", render, comp.strip())
    assert len(list(tmp_path.glob("comp-*"))) == 5
