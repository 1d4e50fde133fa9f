"""Every public Open Job Description sample through `farm run`, without a farm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.openjd_samples import ALL, ROOT, Sample, needs_samples

pytestmark = needs_samples
RUN = [sample for sample in ALL if sample.state_here not in ("", "-")]


def name_of(sample: Sample) -> str:
    around = [Path(path).stem for path in (*sample.environments, sample.scenario) if path]
    return "+".join([Path(sample.path).stem, *around])


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """With a `python` on the path, which samples ask for and not every system has."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "farm.main", "run", *words],
        capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=os.environ | {"PATH": path},
    )  # fmt: skip


def arguments(sample: Sample, places: dict[str, Path]) -> list[str]:
    given = sample.given(**places)
    words = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
    return words + [word for path in sample.environments for word in ("--env", str(ROOT / path))]


@pytest.fixture
def places(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Path]:
    """Scenes and pictures are made for the samples alone that use them."""
    sample = request.node.callspec.params["sample"]
    used = " ".join(sample.parameters.values())
    made = {"dir": tmp_path, "scenes": tmp_path, "frames": tmp_path}
    if "{scenes}" in used and "blender" in sample.needs:
        made["scenes"] = request.getfixturevalue("blender_scenes")
    if "{frames}" in used:
        made["frames"] = request.getfixturevalue("sample_pictures")
    return made


@pytest.mark.parametrize("sample", RUN, ids=name_of)
def test_a_sample_runs_here(sample: Sample, tmp_path: Path, places: dict[str, Path]) -> None:
    if not sample.is_possible:
        pytest.skip(f"not all of {', '.join(sample.needs)} are here")
    done = run(str(ROOT / sample.path), *arguments(sample, places), cwd=tmp_path)
    told = done.stdout + done.stderr
    assert (done.returncode == 0) == (sample.state_here == "done"), told
    assert [line for line in sample.told() if line not in told] == [], told
    assert [name for name in sample.files if not (tmp_path / name).is_file()] == [], told
