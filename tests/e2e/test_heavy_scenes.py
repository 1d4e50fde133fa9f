"""Twenty frames each of a scene that computes and one that holds much memory, in Blender and in POV-Ray.

The scenes lie beside the project where it is developed; elsewhere these tests are skipped.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.e2e.farm_under_test import FarmUnderTest, check_accepted, run
from tests.e2e.pictures import check_different, check_equal

SCENES = Path(__file__).parents[3] / "shared" / "data" / "scenes"
KINDS = ("compute", "memory")
LAST = 20

pytestmark = [
    pytest.mark.services,
    pytest.mark.e2e,
    pytest.mark.renderer,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not SCENES.is_dir(), reason="the scenes are not here"),
]


def check_frames(facility: FarmUnderTest, job_id: int, found: str, by_hand: str) -> None:
    assert facility.wait_for_job(job_id, timeout_s=500) == "done"
    for frame in range(1, LAST + 1):
        check_equal(Path(found.format(frame)), Path(by_hand.format(frame)))
    check_different(Path(by_hand.format(1)), Path(by_hand.format(LAST // 2)))
    check_accepted(facility, job_id)
    nodes = {attempt["node_id"] for attempt in facility.attempts(job_id)}
    assert len(nodes) > 1, "frames that wait for long are spread"


@pytest.mark.parametrize("kind", KINDS)
def test_blender_frames_equal_those_rendered_by_hand(
    facility: FarmUnderTest, tmp_path: Path, kind: str
) -> None:
    if shutil.which("blender") is None:
        missing("Blender", "it is not installed")
    run(
        "blender",
        "-b",
        "--factory-startup",
        "--python-exit-code",
        "3",
        "-P",
        SCENES / "gen.py",
        "--",
        tmp_path,
    )
    scene = tmp_path / f"{kind}.blend"
    target = tmp_path / "farm" / "####.png"
    job_id = facility.submit(str(scene), "--frames", f"1-{LAST}", "--output", str(target))
    run("blender", "-b", scene, "-o", tmp_path / "hand" / "####", "-F", "PNG", "-a", timeout_s=500)
    check_frames(facility, job_id, f"{tmp_path}/farm/{{:04d}}.png", f"{tmp_path}/hand/{{:04d}}.png")


@pytest.mark.parametrize("kind", KINDS)
def test_povray_frames_equal_those_rendered_by_hand(
    facility: FarmUnderTest, tmp_path: Path, kind: str
) -> None:
    if shutil.which("povray") is None:
        missing("POV-Ray", "it is not installed")
    scene = shutil.copy(SCENES / "pov" / f"{kind}.pov", tmp_path)
    # Radiosity is another with each number of threads.
    words = ("+W120", "+H68", "+WT1")
    target = tmp_path / "farm" / "####.png"
    job_id = facility.submit(str(scene), "--frames", f"1-{LAST}", "--output", str(target), "--", *words)
    (tmp_path / "hand").mkdir()
    numbered = ("+KFI1", f"+KFF{LAST}", f"+O{tmp_path}/hand/f.png")
    run("povray", f"+I{scene}", *words, "-D", *numbered, timeout_s=500)
    check_frames(facility, job_id, f"{tmp_path}/farm/{{:04d}}.png", f"{tmp_path}/hand/f{{:02d}}.png")
