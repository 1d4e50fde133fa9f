"""Blender kept open between the frames of a scene, by a real session host."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import OpenImageIO
import psutil
import pytest

from farm.model.plugin import SubmitOptions
from farm.model.states import Outcome
from farm.wire.messages import Finished, HostRun
from plugins.blender.plugin import PLUGIN
from tests.waiting import wait_until
from tests.workers.host_driver import HostDriver, runs_of

pytestmark = [
    pytest.mark.renderer,
    pytest.mark.skipif(
        os.environ.get("FARM_TEST_SERVICES") != "required" and shutil.which("blender") is None,
        reason="Blender is not installed",
    ),
]


def blenders(host: HostDriver) -> list[psutil.Process]:
    """Blender, or a Python with the bpy wheel that stands in for it."""
    below = psutil.Process(host.process.pid).children(recursive=True)
    return [
        process
        for process in below
        if process.name().startswith("blender") or "plugins.blender.bpy_runner" in process.cmdline()
    ]


def is_equal(one: Path, other: Path) -> bool:
    first, second = OpenImageIO.ImageBuf(str(one)), OpenImageIO.ImageBuf(str(other))
    return not OpenImageIO.ImageBufAlgo.compare(first, second, 0, 0).error


@pytest.fixture(scope="module")
def scene(blender_scenes: Path) -> Path:
    return blender_scenes / "small.blend"


@pytest.fixture(scope="module")
def host() -> Iterator[HostDriver]:
    with HostDriver() as driver:
        yield driver


def render(host: HostDriver, run: HostRun) -> Finished:
    finished = host.run(run)
    assert finished.outcome is Outcome.SUCCEEDED, (finished, host.seen.text)
    return finished


def test_blender_loads_the_scene_once_and_the_frames_are_those_of_cold_starts(
    host: HostDriver, scene: Path, tmp_path: Path
) -> None:
    options = SubmitOptions(cwd=tmp_path, frames=(1, 2, 3), output="a_#.png")
    runs = runs_of(PLUGIN.submission(scene, options), name="warm")
    first = render(host, runs[0])
    (process,) = blenders(host)
    assert "Read blend" in host.seen.text
    second = render(host, runs[1])
    assert "Read blend" not in host.seen.text
    assert "frame 1 of 1: 2" in host.seen.text
    assert blenders(host) == [process]
    assert first.load_s is not None
    assert second.load_s is not None
    assert second.load_s < first.load_s, "loading is told apart from rendering"
    process.send_signal(signal.SIGSEGV)
    wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, "Blender has ended")
    render(host, runs[2])
    assert "Read blend" in host.seen.text, "an idle Blender that ends fails no task"

    by_hand = PLUGIN.preview(PLUGIN.submission(scene, options)).command
    driver = tmp_path / "driver.py"
    driver.write_text((Path(PLUGIN.submission.__globals__["__file__"]).with_name("driver.py")).read_text())
    words = [str(driver) if word == "driver.py" else word for word in by_hand]
    words = [
        word.replace("--frames=1", "--frames=1-3").replace(str(tmp_path), str(tmp_path / "cold"))
        if word.startswith("--")
        else word
        for word in words
    ]
    (tmp_path / "cold").mkdir()
    subprocess.run(words, check=True, capture_output=True, timeout=100)
    for frame in (1, 2, 3):
        assert is_equal(tmp_path / f"a_{frame}.png", tmp_path / "cold" / f"a_{frame}.png")


@pytest.mark.slow
def test_a_frame_that_crashes_blender_fails_alone(host: HostDriver, scene: Path, tmp_path: Path) -> None:
    os_, bpy_ = "__import__('os')", "__import__('bpy')"
    dies = f"lambda scene, *_: scene.frame_current == 2 and {os_}.kill({os_}.getpid(), 11)"
    crash = f"{bpy_}.app.handlers.render_pre.append({dies})"
    options = SubmitOptions(
        cwd=tmp_path, frames=(1, 2, 3), output="b_#.png", arguments=("--python-expr", crash)
    )
    runs = runs_of(PLUGIN.submission(scene, options), name="crash")
    render(host, runs[0])
    finished = host.run(runs[1])
    assert finished.outcome is Outcome.JOB_ERROR
    assert "crashed" in finished.reason or "SIGSEGV" in finished.reason
    assert blenders(host) == []
    render(host, runs[2])
    assert sorted(path.name for path in tmp_path.glob("b_*")) == ["b_1.png", "b_3.png"]
