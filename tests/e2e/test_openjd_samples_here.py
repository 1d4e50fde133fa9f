"""Every public Open Job Description sample through `farm run`, without a farm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.farm_commands import FarmCommands, farm_commands
from tests.openjd_samples import ALL, ROOT, Sample, needs_samples

pytestmark = needs_samples
FEW = ("deadline-cloud-samples/job_bundles/blender_render", "openjd-specifications/job_templates/ffmpeg.yaml")
"""Of those that call Blender or ffmpeg. The others are told apart by what a farm makes of them
(`test_openjd_samples.py`); here they run with `make test-slow`."""


def name_of(sample: Sample) -> str:
    around = [Path(path).stem for path in (*sample.environments, sample.scenario) if path]
    return "+".join([Path(sample.path).stem, *around])


@pytest.fixture(scope="module")
def farm() -> Iterator[FarmCommands]:
    with farm_commands() as commands:
        yield commands


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
        made["frames"] = request.getfixturevalue("sample_inputs")
    return made


def marked(sample: Sample) -> ParameterSet:
    takes_long = {"blender", "ffmpeg"} & set(sample.needs) and sample.path not in FEW
    return pytest.param(sample, marks=pytest.mark.slow if takes_long else (), id=name_of(sample))


RUN = [marked(sample) for sample in ALL if sample.state_here not in ("", "-")]


@pytest.mark.parametrize("sample", RUN)
def test_a_sample_runs_here(
    farm: FarmCommands, sample: Sample, tmp_path: Path, places: dict[str, Path]
) -> None:
    if not sample.is_possible:
        pytest.skip(f"not all of {', '.join(sample.needs)} are here")
    status, told = farm("run", str(ROOT / sample.path), *arguments(sample, places), cwd=tmp_path)
    assert (status == 0) == (sample.state_here == "done"), told
    assert [line for line in sample.told() if line not in told] == [], told
    assert [name for name in sample.files if not (tmp_path / name).is_file()] == [], told
