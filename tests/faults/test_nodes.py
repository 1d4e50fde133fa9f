"""Nodes of a real farm that are ill: a disk that hangs or is full, a clone, a clock that is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.e2e.farm_under_test import ON_A_NODE, processes_with, run
from tests.e2e.marked_jobs import MarkedJob
from tests.faults.conftest import BreakableFarm
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.services, pytest.mark.e2e]
NewJob = Callable[[int], MarkedJob]

FRAMES = 16


def node_of(farm: BreakableFarm, name: str) -> Any:
    node_id = f"{name}-{farm.port}"
    return next(node for node in farm.get("/nodes")["items"] if node["id"] == node_id)


# --- F28: a disk that hangs ---------------------------------------------------------------------------------


@dataclass
class Disk:
    """A file system of its own. Frozen, whoever writes to it waits in the kernel and cannot be killed."""

    path: Path
    is_frozen: bool = False

    def freeze(self) -> None:
        run("fsfreeze", "--freeze", self.path)
        self.is_frozen = True

    def thaw(self) -> None:
        if self.is_frozen:
            run("fsfreeze", "--unfreeze", self.path)
            self.is_frozen = False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(32 * 2**20)
    try:
        run("mkfs.ext4", "-q", image)
        run("mount", "-o", "loop,noatime", image, place)
    except (OSError, AssertionError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    made = Disk(place)
    yield made
    made.thaw()
    run("umount", "-l", place)


SCRATCH = 'test -e "$2" && exec cp "$2" "$1"; echo whole > "$2"; echo x > "$3/scratch"; exec cp "$2" "$1"'


def test_f28_a_renderer_that_hangs_on_a_dead_disk_is_found_and_its_task_done_elsewhere(
    farm: BreakableFarm, disk: Disk, tmp_path: Path
) -> None:
    """In D state: it cannot be killed. Its node says so and takes nothing more until the disk is back."""
    farm.extra["FARM_STALL_AFTER_S"] = "4"
    farm.start_all(agents=2)
    disk.freeze()
    job_id = farm.submit(
        "--frames", "1-1", "--output", str(tmp_path / "out" / "####.txt"),
        "--", "sh", "-c", SCRATCH, "x", "{output}", str(tmp_path / "tries"), str(disk.path),
    )  # fmt: skip
    assert farm.wait_for_job(job_id, timeout_s=120) == "done"
    assert (tmp_path / "out" / "0001.txt").read_text() == "whole\n"
    first, second = sorted(farm.attempts(job_id), key=lambda a: a["assigned_at"])
    assert first["stall"]["kind"] == "wedged", first
    assert "dead disk" in first["stall"]["text"]
    assert (second["state"], second["node_id"] != first["node_id"]) == ("succeeded", True)
    name = str(first["node_id"]).partition("-")[0]

    def is_wedged() -> bool:
        node = node_of(farm, name)
        return "wedged" in node["reason"] and node["state"] != "online"

    wait_until(is_wedged, "its node says that it is wedged", timeout_s=60)
    disk.thaw()
    wait_until(lambda: node_of(farm, name)["state"] == "online", "it works again", timeout_s=120)
    assert not processes_with(str(disk.path))


def test_f28_an_output_disk_that_hangs_for_a_while_costs_no_node(farm: BreakableFarm, disk: Disk) -> None:
    """Heartbeats wait for no file: nodes stay, and go on when the disk does."""
    farm.start_all(agents=2)
    job = MarkedJob(farm, disk.path / "frames", FRAMES).submit("seconds", "1")
    farm.wait_for_done(job.id, 2)
    disk.freeze()
    until = time.monotonic() + 3 * float(farm.extra["FARM_LEASE_S"])

    def are_heard() -> bool:
        # Suspect is one whose heartbeat is late by a second, as on any busy machine.
        states = [node["state"] for node in farm.get("/nodes")["items"]]
        assert set(states) <= {"online", "suspect"}
        assert len(states) == 2
        return time.monotonic() > until

    wait_until(are_heard, "both nodes are heard for three leases", pause_s=0.3)
    disk.thaw()
    job.check_done(most_starts=FRAMES + ON_A_NODE, timeout_s=120)


# --- F30: the agent's own disk is full --------------------------------------------------------------------


@pytest.fixture
def small_state(farm: BreakableFarm) -> Iterator[Path]:
    """A disk of 8 MiB, on which agent0 keeps its state."""
    place = farm.folder / "agent0"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not permitted here")
    yield place
    farm.stop_all()
    run("umount", "-l", place)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (65536, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_f30_a_node_whose_own_disk_is_full_loses_no_end(
    farm: BreakableFarm, new_job: NewJob, small_state: Path
) -> None:
    """Its journal and spool cannot be written: ends are told all the same, and it works on."""
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit("seconds", "0.5")
    job.wait_until_running_on(f"agent0-{farm.port}")
    fill(small_state / "filler")
    job.check_done(most_starts=FRAMES, timeout_s=120)
    assert "No space left" in farm.log("agent0")
    (small_state / "filler").unlink()
    after = MarkedJob(farm, Path(f"{job.output}-after"), 4).submit("seconds", "1")
    after.wait_until_running_on(f"agent0-{farm.port}")
    after.check_done(most_starts=4)
    assert farm.processes["agent0"].poll() is None


# --- F34: a machine that was cloned -----------------------------------------------------------------------

WITH_OTHER_BOOT = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'


def test_f34_a_cloned_machine_is_refused_and_the_first_one_unharmed(
    farm: BreakableFarm, new_job: NewJob, tmp_path: Path
) -> None:
    """The same node name, and another boot: told in its log, and given nothing."""
    boot = tmp_path / "boot"
    boot.write_text(f"{uuid.uuid4()}\n")
    try:
        run("unshare", "--mount", "--", "sh", "-c", WITH_OTHER_BOOT, boot, "true")
    except AssertionError as error:
        pytest.skip(f"no mount namespace here: {error}")
    farm.start_all(agents=1)
    node = f"agent0-{farm.port}"
    farm.in_front["clone"] = ("unshare", "--mount", "--", "sh", "-c", WITH_OTHER_BOOT, str(boot))
    farm.more_of["clone"] = {"FARM_NODE_NAME": node}
    farm.start("clone", "worker", "--slots", "1")
    wait_until(lambda: "another agent named" in farm.log("clone"), "the clone is refused", timeout_s=60)
    job = new_job(FRAMES).submit("seconds", "0.5")
    job.check_done(most_starts=FRAMES + ON_A_NODE, timeout_s=180)
    assert farm.nodes_online() == [node]
    assert "another agent named" not in farm.log("agent0")
    assert farm.processes["clone"].poll() is None
    # Its turn comes when the first one is gone: a machine that was replaced keeps its name.
    farm.kill("agent0", signal.SIGTERM)
    farm.processes["agent0"].wait(60)
    after = MarkedJob(farm, Path(f"{job.output}-after"), 4).submit()
    after.check_done(most_starts=4 + ON_A_NODE, timeout_s=120)


# --- F09, F33: clocks -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def fakewall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        missing("gcc", "it is not installed")
    library = tmp_path_factory.mktemp("fakewall") / "fakewall.so"
    source = Path(__file__).with_name("fakewall.c")
    run("gcc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl")
    return library


DAY_S = 86_400


def test_f33_clocks_that_are_wrong_and_jump_change_nothing(
    farm: BreakableFarm, new_job: NewJob, fakewall: Path, tmp_path: Path
) -> None:
    """Two schedulers two hours apart, a server a day behind, a node days ahead that falls back a year."""
    wrong_by_s = {"scheduler0": 3_600, "scheduler1": -3_600, "agent0": 3 * DAY_S, "server": -DAY_S}
    clocks = {}
    for name, seconds in wrong_by_s.items():
        clocks[name] = tmp_path / f"{name}.clock"
        clocks[name].write_text(str(seconds))
        farm.more_of[name] = {"LD_PRELOAD": str(fakewall), "FAKEWALL": str(clocks[name])}
    farm.start_all(agents=2, schedulers=2)
    job = new_job(FRAMES).submit("seconds", "0.5")
    farm.wait_for_done(job.id, 3)
    clocks["agent0"].write_text(str(-365 * DAY_S))
    leader = farm.leader()
    farm.kill(leader)
    farm.leader(but=leader)
    clocks["scheduler1" if leader == "scheduler0" else "scheduler0"].write_text("7200")
    job.check_done(most_starts=FRAMES, timeout_s=120)
    attempts = farm.attempts(job.id)
    assert all(a["assigned_at"] <= a["started_at"] <= a["finished_at"] for a in attempts)
    assert max(a["finished_at"] for a in attempts) - min(a["assigned_at"] for a in attempts) < 200
    assert all(0 <= node["silent_s"] < 60 for node in farm.get("/nodes")["items"])


# --- a renderer that is stopped ---------------------------------------------------------------------------


def test_f06_a_renderer_that_was_stopped_gets_a_copy(farm: BreakableFarm, new_job: NewJob) -> None:
    """SIGSTOP: the copy wins, and nothing is left of the first one."""
    farm.extra["FARM_STALL_AFTER_S"] = "3"
    farm.start_all(agents=2)
    job = new_job(1).submit("seconds", "8")
    wait_until(job.renderers, "a renderer")
    for process in job.renderers():
        os.kill(process.pid, signal.SIGSTOP)
    assert farm.wait_for_job(job.id, timeout_s=120) == "done"
    first, second = sorted(farm.attempts(job.id), key=lambda a: a["assigned_at"])
    assert first["stall"]["kind"] == "stopped", first
    assert second["state"] == "succeeded"
    job.check_nothing_left(1)
