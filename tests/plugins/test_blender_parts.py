"""Frames in parts, with Blender itself: what is put together is the frame."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farm.model.plugin import SubmitOptions
from farm.model.states import Outcome
from farm.model.work import Submission
from plugins.blender import assemble
from plugins.blender.plugin import PLUGIN
from tests.workers.host_driver import HostDriver, runs_of

pytestmark = [
    pytest.mark.renderer,
    pytest.mark.skipif(
        os.environ.get("FARM_TEST_SERVICES") != "required" and shutil.which("blender") is None,
        reason="Blender is not installed",
    ),
]

SAMPLES = (
    "b = __import__('bpy'); c = b.context.scene.cycles; "
    "c.samples, c.use_adaptive_sampling, c.seed = 13, False, 3"
)
SETTINGS = (
    f"{SAMPLES}; "
    "c.sampling_pattern = c.sampling_pattern if not (4,) <= b.app.version < (4, 5) else 'TABULATED_SOBOL'"
)
"""Blue noise, the default of 4.2, cannot be split before 4.5."""


@pytest.fixture(scope="module")
def scene(blender_scenes: Path) -> Path:
    return blender_scenes / "small.blend"


@pytest.fixture(scope="module")
def host() -> Iterator[HostDriver]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    with HostDriver(env={**os.environ, "PATH": path}) as driver:
        yield driver


def render(host: HostDriver, made: Submission, name: str) -> str:
    """All that was said."""
    said = []
    for step in made.template["steps"]:
        for run in runs_of(made, step["name"], name=name):
            finished = host.run(run)
            assert finished.outcome is Outcome.SUCCEEDED, (step["name"], finished, host.seen.text)
            said.append(host.seen.text)
    return "\n".join(said)


def options(directory: Path, name: str, **more: object) -> SubmitOptions:
    return SubmitOptions(
        cwd=directory,
        frames=(2,),
        output=name,
        arguments=("--python-expr", SETTINGS),
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def whole(host: HostDriver, scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    deep = "s = __import__('bpy').context.scene.render.image_settings; "
    deep += "s.file_format, s.color_depth = 'OPEN_EXR', '32'"
    wished = options(directory, "still.exr")
    wished = replace(wished, arguments=(*wished.arguments, "--python-expr", deep))
    made = PLUGIN.submission(scene, wished)
    render(host, made, "whole")
    return directory / "still.exr"


@pytest.mark.parametrize(
    ("split", "parts"), [({"tiles": (2, 2)}, 4), ({"sample_chunks": 4}, 4)], ids=["tiles", "chunks"]
)
def test_four_parts_make_the_whole_frame(
    host: HostDriver, scene: Path, whole: Path, tmp_path: Path, split: dict[str, object], parts: int
) -> None:
    made = PLUGIN.submission(scene, options(tmp_path, "still.exr", **split))
    render(host, made, f"in {parts} {tmp_path.name}")
    expected, _ = assemble.read_layers(whole)
    found, _ = assemble.read_layers(tmp_path / "still.exr")
    difference = assemble.rmse(found, expected)
    assert difference <= 1e-6
    assert "tiles" not in split or difference == 0.0
    directory = tmp_path / "still.parts"
    assert sorted(path.name for path in directory.iterdir() if path.is_file()) == [
        "still.exr",
        "still.json",
        *(f"still.part{number:03d}.exr" for number in range(1, parts + 1)),
    ]
    report = json.loads((directory / "still.json").read_text())
    assert (report["rmse"], report["is_finite"], report["size"]) == (0.0, True, [64, 36])


@pytest.mark.slow
def test_blue_noise_gives_way_where_blender_cannot_split_it(
    host: HostDriver, scene: Path, whole: Path, tmp_path: Path
) -> None:
    if not re.match(r"4\.[0-4]\.", PLUGIN.version() or ""):
        pytest.skip("this Blender has no blue noise, or splits it")
    wished = replace(options(tmp_path, "still.exr", sample_chunks=2), arguments=("--python-expr", SAMPLES))
    made = PLUGIN.submission(scene, wished)
    assert "warning the sampling pattern is Tabulated Sobol" in render(host, made, "blue noise")
    found, _ = assemble.read_layers(tmp_path / "still.exr")
    expected, _ = assemble.read_layers(whole)
    assert assemble.rmse(found, expected) <= 1e-6


@pytest.mark.slow
def test_a_png_of_tiles_has_the_whole_frames_view_transform_and_dither(
    host: HostDriver, scene: Path, tmp_path: Path
) -> None:
    render(host, PLUGIN.submission(scene, options(tmp_path, "whole.png")), "whole png")
    render(host, PLUGIN.submission(scene, options(tmp_path, "tiles.png", tiles=(3, 2))), "png in tiles")
    whole, _ = assemble.read_layers(tmp_path / "whole.png")
    tiles, _ = assemble.read_layers(tmp_path / "tiles.png")
    assert assemble.rmse(tiles, whole) == 0.0


@pytest.mark.slow
def test_passes_are_put_together_too(host: HostDriver, scene: Path, tmp_path: Path) -> None:
    deep = (
        "s = b.context.scene; v = s.view_layers[0]; v.use_pass_z = v.use_pass_normal = True; "
        "i = s.render.image_settings; m = 'MULTI_LAYER_IMAGE'; "
        "hasattr(i, 'media_type') and setattr(i, 'media_type', m); "
        "i.file_format, i.color_depth = 'OPEN_EXR_MULTILAYER', '32'"
    )
    for name, split in (("whole", {}), ("tiles", {"tiles": (2, 2)}), ("chunks", {"sample_chunks": 3})):
        wished = options(tmp_path, f"{name}.exr", **split)
        wished = replace(wished, arguments=("--python-expr", f"{SETTINGS}; {deep}"))
        render(host, PLUGIN.submission(scene, wished), f"deep {name}")
    whole, tiles, chunks = (
        assemble.read_layers(tmp_path / f"{name}.exr")[0] for name in ("whole", "tiles", "chunks")
    )
    assert any("Normal" in channel for layer in whole for channel in layer.channels)
    assert assemble.rmse(tiles, whole) == 0.0
    for layer, other in zip(chunks, whole, strict=True):
        for index, channel in enumerate(layer.channels):
            if "Combined" in channel:  # depths are the first chunk's, normals unit vectors in each
                difference = layer.pixels[..., index] - other.pixels[..., index]
                assert float((difference**2).mean()) ** 0.5 <= 1e-5, channel


@pytest.mark.slow
@pytest.mark.parametrize("scene_name", ["no camera.blend", "workbench"])
def test_what_makes_no_parts_fails_for_good(
    host: HostDriver, scene: Path, tmp_path: Path, scene_name: str
) -> None:
    wished = options(tmp_path, "x.png", tiles=(2, 2))
    chosen = scene.with_name(scene_name)
    if scene_name == "workbench":
        chosen, wished = scene, replace(wished, arguments=("-E", "BLENDER_WORKBENCH"))
    made = PLUGIN.submission(chosen, wished)
    finished = host.run(runs_of(made, "parts", name=f"no parts {scene_name}")[0])
    assert finished.is_final
    assert "camera" in finished.reason or "only Cycles" in finished.reason
