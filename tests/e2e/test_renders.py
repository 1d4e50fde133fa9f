"""Blender and POV-Ray frames through a whole farm, compared with frames that were rendered by hand."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.e2e.farm_under_test import FarmUnderTest, check_accepted, run
from tests.e2e.marked_jobs import renderer
from tests.e2e.marked_renderer import whose
from tests.e2e.pictures import check_different, check_equal
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.renderer]

SIZE = ("+W64", "+H36", "+WT1")
BALL = """
camera { location <0, 0, -4> look_at 0 }
light_source { <2, 4, -3> rgb 1 }
sphere { <clock * 2 - 1, 0, 0>, 1 pigment { bozo color_map { [0 rgb <1, clock, 0>] [1 rgb z] } scale 0.2 } }
"""


@pytest.fixture(scope="module")
def by_hand(blender_scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames 0 to 3 of two scenes, each rendered by one plain Blender: `small_0001.png` ..."""
    directory = tmp_path_factory.mktemp("hand")
    for name in ("small", "textures"):
        where = ("-o", directory / f"{name}_####", "-F", "PNG", "-f", "0..3")
        run("blender", "-b", blender_scenes / f"{name}.blend", *where)
    check_different(directory / "small_0001.png", directory / "small_0003.png")
    return directory


@pytest.fixture(scope="module")
def povray(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scene; the clock moves its ball and its colours."""
    if shutil.which("povray") is None:
        missing("POV-Ray", "it is not installed")
    scene = tmp_path_factory.mktemp("schöne Szenen") / "bäll 1.pov"
    scene.write_text(BALL, encoding="utf-8")
    return scene


@pytest.fixture(scope="module")
def povray_by_hand(povray: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames 1 to 5, rendered by one plain POV-Ray, which cannot read such paths: `f1.png` ..."""
    directory = tmp_path_factory.mktemp("hand")
    shutil.copy(povray, directory / "ball.pov")
    run("povray", f"+I{directory}/ball.pov", *SIZE, "-D", "+KFI1", "+KFF5", f"+O{directory}/f.png")
    check_different(directory / "f1.png", directory / "f5.png")
    return directory


def tasks(farm: FarmUnderTest, job_id: int) -> list[Any]:
    return list(farm.get(f"/jobs/{job_id}/tasks")["items"])


@dataclass(frozen=True, kw_only=True)
class Failure:
    reason: str
    starts: int


def failure(farm: FarmUnderTest, job_id: int) -> Failure:
    """Why the job's only task failed. It must take no longer than a renderer needs to start."""
    assert farm.wait_for_job(job_id, timeout_s=40) == "failed"
    (task,) = tasks(farm, job_id)
    assert "\n" not in task["reason"]
    return Failure(reason=task["reason"], starts=task["starts"])


def test_blender_frames_equal_those_rendered_by_hand(
    facility: FarmUnderTest, blender_scenes: Path, by_hand: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "ö ü"
    jobs = {}
    frames = {"small": (1, 2, 3), "textures": (1, 2)}
    for name, wanted in frames.items():
        target = directory / f"{name} {{b}} % é_####.png"
        jobs[name] = facility.submit(
            str(blender_scenes / f"{name}.blend"),
            *("--frames", f"1-{wanted[-1]}", "--name", f"Öde {name} 🎬", "--output", str(target)),
        )
    for name, job_id in jobs.items():
        assert facility.wait_for_job(job_id) == "done"
        assert facility.job(job_id)["job"]["name"] == f"Öde {name} 🎬"
        for frame in frames[name]:
            check_equal(directory / f"{name} {{b}} % é_{frame:04d}.png", by_hand / f"{name}_{frame:04d}.png")
    wait_until(lambda: len(os.listdir(directory)) == 5, "nothing but the frames")
    for job_id in jobs.values():
        check_accepted(facility, job_id)


def test_povray_frames_equal_those_rendered_by_hand(
    facility: FarmUnderTest, povray: Path, povray_by_hand: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "ö ü"
    job_id = facility.submit(
        str(povray), "--frames", "1-5", "--output", str(directory / "a b_###.png"), "--", *SIZE
    )
    assert facility.wait_for_job(job_id) == "done"
    for frame in range(1, 6):
        check_equal(directory / f"a b_{frame:03d}.png", povray_by_hand / f"f{frame}.png")


def test_chunked_frames_equal_those_rendered_by_hand(
    facility: FarmUnderTest,
    blender_scenes: Path,
    by_hand: Path,
    povray: Path,
    povray_by_hand: Path,
    tmp_path: Path,
) -> None:
    target = ("--chunk-size", "3", "--output", str(tmp_path / "####.png"))
    in_blender = facility.submit(str(blender_scenes / "small.blend"), "--frames", "0-3", *target)
    target = ("--chunk-size", "3", "--output", str(tmp_path / "#.png"))
    in_povray = facility.submit(str(povray), "--frames", "1-5", *target, "--", *SIZE)
    for job_id in (in_blender, in_povray):
        assert facility.wait_for_job(job_id) == "done"
        assert len(tasks(facility, job_id)) == 2
    for name in ("0000", "0001", "0002", "0003"):
        check_equal(tmp_path / f"{name}.png", by_hand / f"small_{name}.png")
    for frame in range(1, 6):
        check_equal(tmp_path / f"{frame}.png", povray_by_hand / f"f{frame}.png")


def test_a_missing_texture_is_reported_on_the_task(
    facility: FarmUnderTest, blender_scenes: Path, tmp_path: Path
) -> None:
    scene = str(blender_scenes / "no texture.blend")
    job_id = facility.submit(scene, "--frames", "1", "--output", str(tmp_path / "####.png"))
    assert facility.wait_for_job(job_id) == "done"
    (task,) = tasks(facility, job_id)
    assert task["warnings"] == [f"missing image 'wood': {blender_scenes}/textures/wood.png"]
    assert "wood.png" in facility.farm("tasks", str(job_id))


def test_what_can_never_work_fails_at_once_and_says_why(
    facility: FarmUnderTest, blender_scenes: Path, tmp_path: Path
) -> None:
    def submit(scene: Path, *options: str) -> int:
        target = str(tmp_path / f"{scene.stem}_####.png")
        return facility.submit(str(scene), "--frames", "1", "--output", target, *options)

    whole = (blender_scenes / "small.blend").read_bytes()
    cut, gone, bad = tmp_path / "cut.blend", tmp_path / "gone.blend", tmp_path / "bad.pov"
    cut.write_bytes(whole[: len(whole) // 2])
    gone.write_bytes(whole)
    bad.write_text("sphere { nonsense", encoding="utf-8")
    jobs = {
        "cut": submit(cut),
        "camera": submit(blender_scenes / "no camera.blend"),
        "bad": submit(bad),
        "gone": submit(gone, "--paused"),
    }
    gone.unlink()
    facility.farm("resume", str(jobs["gone"]))
    failures = {name: failure(facility, job_id) for name, job_id in jobs.items()}
    reasons = {name: found.reason for name, found in failures.items()}
    assert "no camera" in reasons["camera"]
    assert "cut.blend" in reasons["cut"], reasons
    assert "gone.blend" in reasons["gone"], reasons
    assert "Parse Error" in reasons["bad"], reasons
    # A file that cannot be read may be there for another node.
    starts = {name: found.starts for name, found in failures.items()}
    assert starts == {"camera": 1, "bad": 1, "cut": 3, "gone": 3}, failures
    assert len({a["node_id"] for a in facility.attempts(jobs["gone"])}) > 1
    wait_until(lambda: sorted(os.listdir(tmp_path)) == ["bad.pov", "cut.blend"], "nothing left over")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("small.blend", "--frames", "1-4x0"), "step"),
        (("nothing.blend",), "nothing.blend does not exist"),
        (("broken.blend",), "is not a Blender scene"),
    ],
)
def test_what_is_wrong_already_at_submitting_is_refused(
    facility: FarmUnderTest, blender_scenes: Path, arguments: tuple[str, ...], reason: str
) -> None:
    (blender_scenes / "broken.blend").write_text("no scene")
    refused = facility.try_farm("submit", *arguments, cwd=blender_scenes)
    assert refused.returncode == 2
    assert reason in refused.stderr
    assert len(refused.stderr.splitlines()) == 1, refused.stderr


def test_output_that_is_there_already_is_left_alone(facility: FarmUnderTest, tmp_path: Path) -> None:
    there = tmp_path / "frame_0001.dat"
    command = ("--output", str(tmp_path / "frame_####.dat"), "--", *renderer("{output}"))
    job_id = facility.submit("--paused", "--frames", "1", *command)
    there.write_text("of another job")
    refused = facility.try_farm("submit", "--frames", "1", *command)
    assert refused.returncode == 2
    assert f"exists already: {there}" in refused.stderr
    facility.farm("resume", str(job_id))
    found = failure(facility, job_id)
    assert "frame_0001.dat already exists" in found.reason
    assert "--overwrite" in found.reason
    assert found.starts == 1
    assert there.read_text() == "of another job"
    job_id = facility.submit("--overwrite", "--frames", "1", *command)
    assert facility.wait_for_job(job_id) == "done"
    (attempt,) = facility.attempts(job_id)
    assert whose(there) == attempt["id"]
    (kept,) = tmp_path.glob(".farm-replaced/*/*/frame_0001.dat")
    assert kept.read_text() == "of another job"


def test_a_full_disk_is_named_and_costs_no_retry(
    facility: FarmUnderTest, small_disk: Path, blender_scenes: Path
) -> None:
    ballast = small_disk / "ballast"
    target = small_disk / "frames" / "####.png"
    target.parent.mkdir()
    with ballast.open("wb") as out:
        while os.statvfs(small_disk).f_bavail > 1:
            out.write(bytes(4096))
            out.flush()
    job_id = facility.submit(
        str(blender_scenes / "small.blend"), "--frames", "1", "--retries", "0", "--output", str(target)
    )

    def reason() -> str:
        (task,) = tasks(facility, job_id)
        return str(task["reason"])

    text = wait_until(reason, "a reason")
    assert "disk" in text
    assert "full" in text
    assert str(target.parent) in text
    ballast.unlink()
    assert facility.wait_for_job(job_id) == "done"
    (task,) = tasks(facility, job_id)
    assert task["failures"] == 0
    wait_until(lambda: os.listdir(target.parent) == ["0001.png"], "nothing private left")


@pytest.mark.slow
def test_a_still_in_tiles_and_chunks_of_a_run_time_equal_those_rendered_by_hand(
    facility: FarmUnderTest, blender_scenes: Path, by_hand: Path, tmp_path: Path
) -> None:
    scene = str(blender_scenes / "small.blend")
    still = facility.submit(scene, "--frames", "3", "--tiles", "2x2", "--output", str(tmp_path / "still.png"))
    timed = facility.submit(
        scene, "--frames", "0-3", "--chunk-s", "1", "--output", str(tmp_path / "####.png")
    )
    for job_id in (still, timed):
        assert facility.wait_for_job(job_id, timeout_s=200) == "done"
    check_equal(tmp_path / "still.png", by_hand / "small_0003.png")
    for frame in range(4):
        check_equal(tmp_path / f"{frame:04d}.png", by_hand / f"small_{frame:04d}.png")
    steps = {step["name"]: step["counts"]["done"] for step in facility.job(still)["job"]["steps"]}
    assert steps == {"parts": 4, "assemble": 1, "finish": 1, "verify": 1}
