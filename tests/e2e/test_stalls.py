"""A real farm of two nodes, real renderers that hang, crawl, are stopped or do not exit: found, and moved."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugins.blender.bpy_runner import bpy_version
from tests.e2e.conftest import NewServices
from tests.e2e.farm_under_test import FarmUnderTest, processes_with
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.services, pytest.mark.timed]

SPIN = """
import os, sys, time
frame, output, seconds, tries = sys.argv[1:]
tries = tries + frame
first = not os.path.exists(tries)
open(tries, "a").write("x")
told = 0
while (done := time.process_time() / float(seconds)) < 1:
    sum(range(20_000))
    if int(done * 20) > told:
        told = int(done * 20)
        print(f"openjd_progress: {told * 5}", flush=True)
open(output, "w").write("whole")
"""
CRAWL = """
import sys, time
output, speed = sys.argv[1:]
seconds = 12 / float(open(speed).read())
began, told = time.monotonic(), 0
while (done := (time.monotonic() - began) / seconds) < 1:
    time.sleep(0.05)
    sum(range(200_000))
    if int(done * 20) > told:
        told = int(done * 20)
        print(f"openjd_progress: {told * 5}", flush=True)
open(output, "w").write("whole")
"""
HANG_ONCE = 'test -e "$2" && exec cp "$2" "$1"; echo whole > "$2"; echo Developing out.exr; exec sleep 100000'
HANG = "echo Error: not a word to trust; exec sleep 100000"
LINGER = 'echo whole > "$1"; exec sleep 100000'
MITSUBA_SCENE = """<scene version="3.0.0"><integrator type="path"/><emitter type="constant"/>
<sensor type="perspective"><film type="hdrfilm"><integer name="width" value="64"/></film></sensor></scene>"""
MITSUBA_ONCE = (
    'test -e "$3" && exec mitsuba -m scalar_rgb -o "$1" "$2"; touch "$3"; '
    'exec mitsuba -m scalar_rgb -t 1 -o "$1" "$2"'
)
"""With `--threads`, Mitsuba 3.9 waits for ever once it has opened the picture."""
BPY = """
import sys, bpy
scene = bpy.context.scene
scene.render.engine, scene.render.resolution_percentage = "BLENDER_WORKBENCH", 5
bpy.app.handlers.render_post.append(lambda *_: None)
scene.render.filepath = sys.argv[1]
bpy.ops.render.render(write_still=True)
"""
"""A handler that is left: then bpy 4.5 does not end with its Python."""


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory, lasting_services: NewServices) -> Iterator[FarmUnderTest]:
    farm = FarmUnderTest(
        tmp_path_factory.mktemp("stalls"),
        *lasting_services(),
        extra={"FARM_STALL_AFTER_S": "4", "FARM_HEARTBEAT_S": "1", "FARM_DRAIN_GRACE_S": "1"},
    )
    try:
        farm.start_all(agents=2)
        yield farm
    finally:
        farm.stop_all()


def submit(farm: FarmUnderTest, folder: Path, script: str, *options: str) -> int:
    return farm.submit(
        *options, "--frames", "1-1", "--output", str(folder / "####.txt"),
        "--", "sh", "-c", script, "x", "{output}", str(folder / "tries"),
    )  # fmt: skip


def stalled(farm: FarmUnderTest, job_id: int) -> list[Any]:
    return [i for i in farm.get("/stalled")["items"] if i["attempt"]["job_id"] == job_id]


def spun(farm: FarmUnderTest, folder: Path, frames: str, seconds: float, *options: str) -> int:
    script = folder / "spin.py"
    script.write_text(SPIN)
    return farm.submit(
        *options, "--frames", frames, "--output", str(folder / "####.txt"),
        "--", sys.executable, "-S", str(script), "{frame}", "{output}", str(seconds), str(folder / "tries"),
    )  # fmt: skip


def spinner(folder: Path, frame: int) -> psutil.Process:
    """The process that renders the frame, once there is one."""

    def look() -> psutil.Process | None:
        for process in processes_with(str(folder / "spin.py")):
            try:
                words = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            if str(frame) in words and words[0] == sys.executable:
                return process
        return None

    return wait_until(look, f"frame {frame} is being rendered", timeout_s=120)  # type: ignore[return-value]


def by_state(farm: FarmUnderTest, job_id: int, what: Callable[[Any], bool]) -> list[Any]:
    return [attempt for attempt in farm.attempts(job_id) if what(attempt)]


def test_one_that_hangs_is_moved_to_the_other_node(farm: FarmUnderTest, tmp_path: Path) -> None:
    job_id = submit(farm, tmp_path, HANG_ONCE)
    assert farm.wait_for_job(job_id) == "done"
    first, second = sorted(farm.attempts(job_id), key=lambda a: a["assigned_at"])
    assert (first["outcome"], second["outcome"]) == ("stalled", "succeeded")
    assert first["node_id"] != second["node_id"]
    assert first["stall"]["kind"] == "hung"
    assert "Developing out.exr" in first["reason"]
    assert "1 moved" in farm.farm("job", str(job_id))
    kinds = [event["kind"] for event in farm.get("/events", limit=1000)["items"] if event["job_id"] == job_id]
    assert {"attempt-stalled", "attempt-stopped"} <= set(kinds)


@pytest.mark.renderer
@pytest.mark.skipif(shutil.which("mitsuba") is None, reason="Mitsuba is not installed")
def test_mitsubas_own_hang_is_found_and_moved(farm: FarmUnderTest, tmp_path: Path) -> None:
    scene = tmp_path / "ball.xml"
    scene.write_text(MITSUBA_SCENE)
    target = tmp_path / "####.exr"
    job_id = farm.submit(
        "--frames", "1-1", "--output", str(target),
        "--", "sh", "-c", MITSUBA_ONCE, "x", "{output}", str(scene), str(tmp_path / "tried"),
    )  # fmt: skip
    assert farm.wait_for_job(job_id) == "done"
    first, second = sorted(farm.attempts(job_id), key=lambda a: a["assigned_at"])
    assert (first["outcome"], second["outcome"]) == ("stalled", "succeeded")
    assert first["node_id"] != second["node_id"]
    assert first["stall"]["kind"] == "hung", "the picture is there, and empty"
    assert "Developing" in first["reason"]
    assert not processes_with(str(scene))


@pytest.mark.renderer
@pytest.mark.skipif(not (bpy_version() or "").startswith("4.5."), reason="the bpy wheel 4.5 is not installed")
def test_bpys_own_hang_at_its_exit_costs_no_frame(farm: FarmUnderTest, tmp_path: Path) -> None:
    script = tmp_path / "still.py"
    script.write_text(BPY)
    job_id = farm.submit(
        "--frames",
        "1-1",
        "--output",
        str(tmp_path / "####.png"),
        "--",
        sys.executable,
        str(script),
        "{output}",
    )
    assert farm.wait_for_job(job_id) == "done"
    (attempt,) = farm.attempts(job_id)
    assert attempt["stall"]["kind"] == "not-exiting"
    assert "did not exit" in attempt["warnings"][-1]
    assert (tmp_path / "0001.png").stat().st_size > 0
    assert not processes_with(str(script))


@pytest.mark.renderer
def test_cycles_between_sample_1_and_513_is_left_alone(
    farm: FarmUnderTest, blender_scenes: Path, tmp_path: Path
) -> None:
    """For longer than the farm's patience of 4 s, and without a line."""
    # It renders as many samples without a word as it thinks fit into the time that is left: silent for long
    # on a fast machine, and done in the end on a slow one.
    many = (
        "scene = __import__('bpy').context.scene; scene.render.resolution_percentage = 100; "
        "scene.cycles.samples = 100_000; scene.cycles.use_adaptive_sampling = False; "
        "scene.cycles.time_limit = 25"
    )
    job_id = farm.submit(
        str(blender_scenes / "small.blend"), "--frames", "1-2", "--output", str(tmp_path / "####.png"),
        "--", "--python-expr", many,
    )  # fmt: skip

    def silent_for_long() -> list[Any]:
        found = [i for i in farm.get("/stalled", silent=True)["items"] if i["attempt"]["job_id"] == job_id]
        assert {i["stall"]["kind"] for i in found} <= {"silent"}
        now = farm.get("/farm")["now"]
        return [i for i in found if now - i["stall"]["since"] > 4]

    wait_until(silent_for_long, "Cycles is silent", timeout_s=180, pause_s=0.2)
    assert farm.wait_for_job(job_id, timeout_s=200) == "done"
    assert [attempt["outcome"] for attempt in farm.attempts(job_id)] == ["succeeded"] * 2
    kinds = [event["kind"] for event in farm.get("/events", limit=1000)["items"] if event["job_id"] == job_id]
    assert "attempt-stalled" not in kinds


def test_one_that_has_written_its_file_is_ended_and_its_file_taken(
    farm: FarmUnderTest, tmp_path: Path
) -> None:
    job_id = submit(farm, tmp_path, LINGER)
    assert farm.wait_for_job(job_id) == "done"
    (attempt,) = farm.attempts(job_id)
    assert attempt["stall"]["kind"] == "not-exiting"
    assert "did not exit" in attempt["warnings"][-1]
    assert (tmp_path / "0001.txt").read_text() == "whole\n"


def test_a_job_may_say_kill(farm: FarmUnderTest, tmp_path: Path) -> None:
    job_id = submit(farm, tmp_path, HANG, "--on-stall", "kill", "--retries", "0")
    assert farm.wait_for_job(job_id) == "failed"
    (attempt,) = farm.attempts(job_id)
    assert attempt["outcome"] == "job-error"
    assert attempt["reason"].startswith("stalled, and its job says kill: hung")


def test_a_job_may_say_warn(farm: FarmUnderTest, tmp_path: Path) -> None:
    job_id = submit(farm, tmp_path, HANG, "--on-stall", "warn")
    (item,) = wait_until(lambda: stalled(farm, job_id), "it is told", timeout_s=60)
    assert (item["stall"]["kind"], item["stall"]["action"]) == ("hung", "")
    assert f"{job_id}" in farm.farm("stalled")
    assert "taken for hung" in farm.farm("why", str(job_id))
    assert farm.job(job_id)["counts"]["running"] == 1
    farm.farm("cancel", str(job_id))
    assert farm.wait_for_job(job_id) == "cancelled"


def test_a_node_at_a_third_of_its_speed_is_found_and_its_task_copied(
    farm: FarmUnderTest, tmp_path: Path
) -> None:
    """What a frame takes was learned before; the copy on the other node is at its usual speed."""
    slow, usual = f"agent0-{farm.port}", f"agent1-{farm.port}"
    script, speed = tmp_path / "crawl.py", tmp_path / "speed"
    script.write_text(CRAWL)
    speed.write_text("1")
    job_id = farm.submit(
        "--frames", "1-6", "--output", str(tmp_path / "####.txt"),
        "--", sys.executable, "-S", str(script), "{output}", str(speed),
    )  # fmt: skip
    assert farm.wait_for_job(job_id, timeout_s=180) == "done"
    speed.write_text("0.333")
    farm.farm("drain", usual)
    try:
        farm.farm("requeue", str(job_id), "--frames", "3", "--all")
        wait_until(lambda: processes_with(str(script)), "it renders slowly", timeout_s=60)
        found, *_ = wait_until(
            lambda: [item for item in stalled(farm, job_id) if item["stall"]["kind"] == "slow"],
            "it is found",
            timeout_s=120,
        )
        speed.write_text("1")
    finally:
        farm.farm("undrain", usual)
    assert farm.wait_for_job(job_id, timeout_s=120) == "done"
    wait_until(lambda: not by_state(farm, job_id, lambda a: a["finished_at"] is None), "both have ended")
    *_, first, second = sorted(farm.attempts(job_id), key=lambda a: a["assigned_at"])
    assert (first["node_id"], second["node_id"]) == (slow, usual)
    # By its end the verdict may have been taken back: what is late by a little is judged anew all along.
    assert found["attempt"]["id"] == first["id"]
    assert (second["origin"] != "match", second["state"]) == (True, "succeeded")
    assert first["state"] in ("cancelled", "superseded")


def test_one_that_was_stopped_gets_a_copy_that_wins(farm: FarmUnderTest, tmp_path: Path) -> None:
    job_id = spun(farm, tmp_path, "1-1", 20)
    process = spinner(tmp_path, 1)
    os.kill(process.pid, signal.SIGSTOP)
    assert farm.wait_for_job(job_id, timeout_s=180) == "done"
    wait_until(lambda: not by_state(farm, job_id, lambda a: a["finished_at"] is None), "both have ended")
    first, second = sorted(farm.attempts(job_id), key=lambda a: a["assigned_at"])
    assert first["stall"]["kind"] == "stopped", first
    assert (second["origin"], second["state"]) == ("copy", "succeeded")
    assert first["state"] in ("cancelled", "superseded")
    wait_until(lambda: not processes_with(str(tmp_path / "spin.py")), "no renderer is left")
