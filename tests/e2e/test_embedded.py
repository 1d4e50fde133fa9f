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
def farm(tmp_path: Path) -> Iterator[FarmUnderTest]:
    folder = tmp_path / "farm"
    folder.mkdir()
    hurry = {"FARM_SLOTS": "2", "FARM_LEADER_TTL_S": "2"}
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
