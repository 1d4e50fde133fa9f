"""The command lines of our templates, run with the renderers themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import OpenImageIO
import pytest

from farm.model.plugin import Plugin, Reading, SubmitOptions
from farm.model.work import JobSettings, Submission
from plugins.blender import bpy_runner
from plugins.blender.plugin import PLUGIN as BLENDER
from plugins.blender.ray_rate import ray_rate
from plugins.command.plugin import PLUGIN as COMMAND
from plugins.povray.plugin import PLUGIN as POVRAY
from tests.plugins.replay import feed, first_fatal

pytestmark = pytest.mark.renderer
are_required = os.environ.get("FARM_TEST_SERVICES") == "required"
needs_blender = pytest.mark.skipif(
    not are_required and shutil.which("blender") is None, reason="Blender is not installed"
)
needs_povray = pytest.mark.skipif(
    not are_required and shutil.which("povray") is None, reason="POV-Ray is not installed"
)

BALL = """
camera { location <0, 0, -4> look_at 0 }
light_source { <2, 4, -3> rgb 1 }
sphere { <clock * 2 - 1, 0, 0>, 1 pigment { rgb <1, clock, 0> } }
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    status: int
    readings: list[Reading]
    staging: Path
    log: str

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.staging.iterdir())

    @property
    def warnings(self) -> list[str]:
        return [reading.warning for reading in self.readings if reading.warning]


def run_first_task(plugin: Plugin, made: Submission, directory: Path) -> Run:
    """As a node does: a session directory with the embedded files, and a private directory for the output."""
    session, staging = directory / "session", directory / "stäging dir"
    session.mkdir()
    staging.mkdir()
    embedded = {}
    step = made.template["steps"][0]
    scripts = [step["script"], *(each["script"] for each in step.get("stepEnvironments", ()))]
    for item in (item for script in scripts for item in script.get("embeddedFiles", ())):
        path = session / item["filename"]
        path.write_text(item["data"], encoding="utf-8")
        embedded[item["filename"]] = str(path)
    staged = replace(made, parameters=made.parameters | {"OutputDir": str(staging)})
    done = subprocess.run(
        [embedded.get(word, word) for word in plugin.preview(staged).command],
        cwd=session,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=100,
        check=False,
    )
    log = done.stdout.decode("utf-8", "replace")
    readings = feed(plugin.parser(()), log.replace("\r", "\n").split("\n"))
    return Run(status=done.returncode, readings=readings, staging=staging, log=log)


def picture_size(path: Path) -> tuple[int, int]:
    """Decodes the whole file."""
    buffer = OpenImageIO.ImageBuf(str(path))
    assert buffer.read(force=True), buffer.geterror()
    return buffer.spec().width, buffer.spec().height


@needs_blender
def test_negative_frames_are_rendered_and_named_right(blender_scenes: Path, tmp_path: Path) -> None:
    options = SubmitOptions(cwd=tmp_path, frames=(-2, 3), chunk_size=2, output="ü {x}/a {b} ü_####.png")
    run = run_first_task(BLENDER, BLENDER.submission(blender_scenes / "small.blend", options), tmp_path)
    assert run.status == 0, run.log
    assert run.files == ["a {b} ü_-0002.png", "a {b} ü_0003.png"]
    assert {picture_size(run.staging / name) for name in run.files} == {(64, 36)}
    assert [(each.width, each.height) for each in run.readings if each.width] == [(64, 36)]
    assert run.readings[-1].fraction == 1.0
    left, right = (OpenImageIO.ImageBuf(str(run.staging / name)) for name in run.files)
    assert OpenImageIO.ImageBufAlgo.compare(left, right, 0.01, 0.01).maxerror > 0.1, (
        "the frames are different"
    )


@needs_blender
@pytest.mark.parametrize("extension", [".exr", ".jpg"])
def test_a_scene_set_to_a_film_writes_the_still_asked_for(
    blender_scenes: Path, tmp_path: Path, extension: str
) -> None:
    options = SubmitOptions(cwd=tmp_path, frames=(1,), output=f"x{extension}", arguments=("-t", "1"))
    run = run_first_task(BLENDER, BLENDER.submission(blender_scenes / "film.blend", options), tmp_path)
    assert run.files == [f"x{extension}"], run.log
    assert picture_size(run.staging / run.files[0]) == (64, 36)


@needs_blender
def test_a_missing_texture_is_named_though_blender_is_silent(blender_scenes: Path, tmp_path: Path) -> None:
    made = BLENDER.submission(blender_scenes / "no texture.blend", SubmitOptions(cwd=tmp_path))
    run = run_first_task(BLENDER, made, tmp_path)
    assert run.status == 0, run.log
    assert run.warnings == [f"missing image 'wood': {blender_scenes}/textures/wood.png"]


@needs_blender
def test_a_scene_without_a_camera_fails_for_good(blender_scenes: Path, tmp_path: Path) -> None:
    made = BLENDER.submission(blender_scenes / "no camera.blend", SubmitOptions(cwd=tmp_path))
    run = run_first_task(BLENDER, made, tmp_path)
    assert run.status != 0
    assert run.files == []
    assert first_fatal(run.readings).is_final
    assert "no camera" in first_fatal(run.readings).fatal


@needs_blender
def test_a_blender_that_cannot_denoise_says_what_to_do(blender_scenes: Path, tmp_path: Path) -> None:
    options = SubmitOptions(cwd=tmp_path, frames=(1,))
    run = run_first_task(BLENDER, BLENDER.submission(blender_scenes / "denoised.blend", options), tmp_path)
    if run.status == 0:  # Debian's is built without
        assert len(run.files) == 1
        return
    assert run.files == []
    assert not first_fatal(run.readings).is_final, "another node's Blender may have it"
    assert "frame 1: this Blender has no OpenImageDenoise" in first_fatal(run.readings).fatal
    assert "Denoise)" in first_fatal(run.readings).fatal


@needs_blender
def test_an_unknown_scene_name_fails_instead_of_rendering_another(
    blender_scenes: Path, tmp_path: Path
) -> None:
    options = SubmitOptions(cwd=tmp_path, frames=(1,), arguments=("-S", "Nöbody"))
    run = run_first_task(BLENDER, BLENDER.submission(blender_scenes / "small.blend", options), tmp_path)
    assert run.status != 0
    assert run.files == []
    assert "Nöbody" in first_fatal(run.readings).fatal


@needs_blender
def test_a_scene_that_is_cut_short_fails(blender_scenes: Path, tmp_path: Path) -> None:
    whole = (blender_scenes / "small.blend").read_bytes()
    (tmp_path / "cut.blend").write_bytes(whole[: len(whole) // 2])
    made = BLENDER.submission(Path("cut.blend"), SubmitOptions(cwd=tmp_path, frames=(1,)))
    run = run_first_task(BLENDER, made, tmp_path)
    assert run.status != 0
    assert run.files == []
    assert first_fatal(run.readings).fatal


@needs_blender
def test_a_gpu_that_is_not_there_fails_instead_of_falling_back(blender_scenes: Path, tmp_path: Path) -> None:
    made = BLENDER.submission(blender_scenes / "small.blend", SubmitOptions(cwd=tmp_path, frames=(1,)))
    on_gpu = replace(made, parameters=made.parameters | {"Device": "GPU"})
    run = run_first_task(BLENDER, on_gpu, tmp_path)
    if run.status != 0:  # with a GPU it renders
        assert "finds none" in first_fatal(run.readings).fatal
        assert run.files == []


@needs_blender
def test_a_probe_renders_few_samples_at_full_resolution_and_keeps_nothing(
    blender_scenes: Path, tmp_path: Path
) -> None:
    made = BLENDER.submission(blender_scenes / "small.blend", SubmitOptions(cwd=tmp_path, is_probed=True))
    probe = replace(made, template={**made.template, "steps": made.template["steps"][-1:]})
    run = run_first_task(BLENDER, probe, tmp_path)
    assert run.status == 0, run.log
    assert "ridgeline| probe frame 1 with 1 of 4 samples" in run.log
    assert "ridgeline| probe frame 1 with 4 of 4 samples" in run.log, "it was over at once, so it goes on"
    assert "ridgeline| size 64 36" in run.log
    assert run.files == []


@needs_blender
def test_the_cpu_s_ray_rate_is_measured_with_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = ray_rate(False, os.environ, enough_s=0.2)
    assert isinstance(rate, float), rate
    assert 0.001 < rate < 10_000
    assert BLENDER.ray_rate is not None
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert BLENDER.ray_rate(False, {}) == "no Blender to measure it with"


@needs_blender
def test_a_script_in_the_scene_that_is_not_trusted_does_not_run(blender_scenes: Path, tmp_path: Path) -> None:
    marker = tmp_path / "was here"
    path = tmp_path / "script.blend"
    make = tmp_path / "make.py"
    code = f"open({str(marker)!r}, 'w')"
    make.write_text(
        "import bpy\n"
        "text = bpy.data.texts.new('run.py')\n"
        "text.use_module = True\n"
        f"text.write({code!r})\n"
        f"bpy.ops.wm.save_as_mainfile(filepath={str(path)!r})\n",
        encoding="utf-8",
    )
    command = [
        "blender",
        "-b",
        str(blender_scenes / "small.blend"),
        "--python-exit-code",
        "3",
        "-P",
        str(make),
    ]
    subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=100, check=True)
    for trusts in (False, True):
        options = SubmitOptions(cwd=tmp_path, frames=(1,), settings=JobSettings(trust_scripts=trusts))
        directory = tmp_path / str(trusts)
        directory.mkdir()
        run = run_first_task(BLENDER, BLENDER.submission(path, options), directory)
        assert run.status == 0, run.log
        assert marker.exists() is trusts, run.log
        assert any("--trust-scripts" in warning for warning in run.warnings) is not trusts


@needs_blender
def test_the_version_of_blender_is_read() -> None:
    version = BLENDER.version()
    assert version is not None
    assert version[0].isdigit()


@needs_povray
def test_povray_frames_get_our_names_in_any_directory(tmp_path: Path) -> None:
    scene = tmp_path / "schöne Szenen" / "bäll 1.pov"
    scene.parent.mkdir()
    scene.write_text(BALL, encoding="utf-8")
    options = SubmitOptions(
        cwd=tmp_path, frames=(2, 4, 10), chunk_size=3, arguments=("+W64", "+H36"), output="ö/a %d ü_###.png"
    )
    run = run_first_task(POVRAY, POVRAY.submission(scene, options), tmp_path)
    assert run.status == 0, run.log
    assert run.files == ["a %d ü_002.png", "a %d ü_004.png", "a %d ü_010.png"]
    assert {picture_size(run.staging / name) for name in run.files} == {(64, 36)}
    assert {(each.width, each.height) for each in run.readings if each.width} == {(64, 36)}
    green = [
        OpenImageIO.ImageBufAlgo.computePixelStats(OpenImageIO.ImageBuf(str(run.staging / name))).max[1]
        for name in run.files
    ]
    assert green == sorted(green), "the clock runs from the first frame to the last"
    assert green[0] < green[-1]


@needs_povray
@pytest.mark.parametrize("extension", [".jpeg", ".exr", ".tga"])
def test_a_povray_still_has_the_format_of_its_extension(tmp_path: Path, extension: str) -> None:
    (tmp_path / "ball.pov").write_text(BALL, encoding="utf-8")
    options = SubmitOptions(cwd=tmp_path, output=f"still{extension}", arguments=("+W64", "+H36"))
    run = run_first_task(POVRAY, POVRAY.submission(Path("ball.pov"), options), tmp_path)
    assert run.files == [f"still{extension}"], run.log
    assert picture_size(run.staging / run.files[0]) == (64, 36)


@needs_povray
def test_a_mistake_in_a_povray_scene_fails_and_leaves_no_frame(tmp_path: Path) -> None:
    (tmp_path / "bad.pov").write_text("sphere { nonsense", encoding="utf-8")
    run = run_first_task(POVRAY, POVRAY.submission(Path("bad.pov"), SubmitOptions(cwd=tmp_path)), tmp_path)
    assert run.status != 0
    assert run.files == []
    assert first_fatal(run.readings).is_final


@needs_povray
def test_povray_as_a_plain_command_writes_where_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "ball.pov").write_text(BALL, encoding="utf-8")
    words = (f"+I{tmp_path}/ball.pov", "+W64", "+H36", "-D", "+K0.{frame}", "+O{output}")
    options = SubmitOptions(cwd=tmp_path, arguments=words, frames=(5,), output="x_####.png")
    made = COMMAND.submission(Path("povray"), options)
    plain = replace(made, parameters=made.parameters)
    command = COMMAND.preview(plain).command
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert picture_size(tmp_path / "x_0005.png") == (64, 36)


@needs_povray
def test_the_version_of_povray_is_read() -> None:
    version = POVRAY.version()
    assert version is not None
    assert version.startswith("3.")


def test_there_is_no_shim_without_the_bpy_wheel(tmp_path: Path) -> None:
    made = bpy_runner.shim(tmp_path)
    assert (made is None) is (bpy_runner.bpy_version() is None)
