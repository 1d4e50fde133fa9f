"""Plugins of `plugins.program` with the renderers themselves, where they are installed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import OpenImageIO
import pytest

from farm.model.plugin import SubmitOptions
from plugins.ffmpeg.plugin import PLUGIN as FFMPEG
from plugins.inkscape.plugin import PLUGIN as INKSCAPE
from plugins.luxcore.plugin import PLUGIN as LUXCORE
from plugins.mitsuba.plugin import PLUGIN as MITSUBA
from plugins.synfig.plugin import PLUGIN as SYNFIG
from tests.plugins.replay import first_fatal
from tests.plugins.test_real_renderers import picture_size, run_first_task

pytestmark = pytest.mark.renderer

MITSUBA_SCENE = """<scene version="3.0.0">
  <default name="frame" value="0"/>
  <integrator type="path"/>
  <sensor type="perspective">
    <transform name="to_world"><lookat origin="0,0,5" target="0,0,0" up="0,1,0"/></transform>
    <film type="hdrfilm"><integer name="width" value="64"/><integer name="height" value="36"/></film>
    <sampler type="independent"><integer name="sample_count" value="4"/></sampler>
  </sensor>
  <emitter type="constant"/>
  <shape type="sphere"><point name="center" x="$frame" y="0" z="0"/><bsdf type="diffuse"/></shape>
</scene>"""
SYNFIG_SCENE = """<?xml version="1.0"?>
<canvas version="1.0" width="64" height="36" xres="2834" yres="2834" view-box="-2 1.125 2 -1.125"
 antialias="1" fps="24" begin-time="0f" end-time="48f" bgcolor="0 0 0 1">
  <name>walk</name>
  <layer type="SolidColor" active="true" version="0.1">
    <param name="z_depth"><real value="0"/></param>
    <param name="amount"><real value="1"/></param>
    <param name="blend_method"><integer value="0"/></param>
    <param name="color"><animated type="color">
      <waypoint time="0f" before="linear" after="linear">
        <color><r>0</r><g>0</g><b>0</b><a>1</a></color>
      </waypoint>
      <waypoint time="48f" before="linear" after="linear">
        <color><r>1</r><g>1</g><b>1</b><a>1</a></color>
      </waypoint>
    </animated></param>
  </layer>
</canvas>"""
LUX_SCENE = """scene.camera.type = perspective
scene.camera.lookat.orig = 0 -5 1
scene.camera.lookat.target = 0 0 0
scene.lights.sky.type = constantinfinite
scene.materials.m.type = matte
scene.shapes.s.type = inlinedmesh
scene.shapes.s.vertices = -1 0 -1 1 0 -1 0 0 1
scene.shapes.s.faces = 0 1 2
scene.objects.o.shape = s
scene.objects.o.material = m
"""
LUX_CONFIGURATION = """renderengine.type = PATHCPU
sampler.type = SOBOL
film.width = 64
film.height = 36
scene.file = scene.scn
"""


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def brightness(path: Path) -> float:
    picture = OpenImageIO.ImageBuf(str(path))
    return float(sum(OpenImageIO.ImageBufAlgo.computePixelStats(picture).avg[:3]))


@needs("mitsuba")
def test_mitsuba_frames_differ_and_their_size_is_known(tmp_path: Path) -> None:
    scene = tmp_path / "bäll 1.xml"
    scene.write_text(MITSUBA_SCENE, encoding="utf-8")
    options = SubmitOptions(cwd=tmp_path, frames=(0, 9), chunk_size=2, output="x ü_###.exr")
    run = run_first_task(MITSUBA, MITSUBA.submission(scene, options), tmp_path)
    assert run.status == 0, run.log
    assert run.files == ["x ü_000.exr", "x ü_009.exr"]
    assert {picture_size(run.staging / name) for name in run.files} == {(64, 36)}
    assert {(each.width, each.height) for each in run.readings if each.width} == {(64, 36)}
    assert run.readings[-1].fraction == 1.0
    dark, light = (brightness(run.staging / name) for name in run.files)
    assert dark < light, "the ball leaves the picture"
    assert (MITSUBA.version() or "").startswith("3.")


@needs("mitsuba")
def test_a_mistake_in_a_mitsuba_scene_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.xml").write_text("<scene version='3.0.0'><shape type='nonsense'/></scene>")
    run = run_first_task(MITSUBA, MITSUBA.submission(Path("bad.xml"), SubmitOptions(cwd=tmp_path)), tmp_path)
    assert run.status != 0
    assert "nonsense" in first_fatal(run.readings).fatal


@needs("synfig")
def test_synfig_frames_are_those_asked_for(tmp_path: Path) -> None:
    scene = tmp_path / "wälk 1.sif"
    scene.write_text(SYNFIG_SCENE, encoding="utf-8")
    options = SubmitOptions(cwd=tmp_path, frames=(12, 36), chunk_size=2, output="x ü_####.png")
    run = run_first_task(SYNFIG, SYNFIG.submission(scene, options), tmp_path)
    assert run.status == 0, run.log
    assert run.files == ["x ü_0012.png", "x ü_0036.png"]
    assert {picture_size(run.staging / name) for name in run.files} == {(64, 36)}
    early, late = (brightness(run.staging / name) for name in run.files)
    assert early < late
    assert SYNFIG.version() is not None


@needs("synfig")
def test_a_file_that_is_no_animation_fails_in_synfig(tmp_path: Path) -> None:
    (tmp_path / "bad.sif").write_text("no canvas")
    run = run_first_task(SYNFIG, SYNFIG.submission(Path("bad.sif"), SubmitOptions(cwd=tmp_path)), tmp_path)
    assert run.status != 0
    assert first_fatal(run.readings).fatal


@needs("inkscape")
def test_inkscape_writes_the_format_of_the_extension(tmp_path: Path) -> None:
    scene = tmp_path / "títle 1.svg"
    scene.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="36"><rect width="9" height="9"/></svg>'
    )
    run = run_first_task(INKSCAPE, INKSCAPE.submission(scene, SubmitOptions(cwd=tmp_path)), tmp_path)
    assert run.status == 0, run.log
    assert run.files == ["títle 1.png"]
    assert picture_size(run.staging / run.files[0]) == (64, 36)
    (tmp_path / "pdf").mkdir()
    made = INKSCAPE.submission(scene, SubmitOptions(cwd=tmp_path, output="x.pdf"))
    run = run_first_task(INKSCAPE, made, tmp_path / "pdf")
    assert (run.staging / "x.pdf").read_bytes().startswith(b"%PDF")
    assert made.outputs[0].is_image is False
    assert (INKSCAPE.version() or "")[0].isdigit()


@needs("inkscape")
def test_a_drawing_that_cannot_be_read_fails_though_inkscape_says_0(tmp_path: Path) -> None:
    (tmp_path / "bad.svg").write_text("no drawing")
    run = run_first_task(
        INKSCAPE, INKSCAPE.submission(Path("bad.svg"), SubmitOptions(cwd=tmp_path)), tmp_path
    )
    assert run.status != 0
    assert run.files == []
    assert first_fatal(run.readings).fatal


@pytest.mark.skipif(LUXCORE.version() is None, reason="pyluxcore is not installed")
def test_luxcore_renders_until_its_samples_are_done(tmp_path: Path) -> None:
    scene = tmp_path / "scene ü.cfg"
    scene.write_text(LUX_CONFIGURATION, encoding="utf-8")
    (tmp_path / "scene.scn").write_text(LUX_SCENE, encoding="utf-8")
    options = SubmitOptions(cwd=tmp_path, output="x.exr", arguments=("batch.haltspp=8",))
    run = run_first_task(LUXCORE, LUXCORE.submission(scene, options), tmp_path)
    assert run.status == 0, run.log
    assert picture_size(run.staging / "x.exr") == (64, 36)
    assert run.readings[-1].fraction == 1.0
    (tmp_path / "endless").mkdir()
    run = run_first_task(
        LUXCORE, LUXCORE.submission(scene, SubmitOptions(cwd=tmp_path)), tmp_path / "endless"
    )
    assert run.status != 0
    assert "never ends" in first_fatal(run.readings).fatal


@needs("ffmpeg")
def test_a_film_is_made_of_pictures_in_any_directory(tmp_path: Path) -> None:
    directory = tmp_path / "schöne Bilder"
    directory.mkdir()
    for frame in range(1, 6):
        picture = OpenImageIO.ImageBuf(OpenImageIO.ImageSpec(65, 37, 3, "uint8"))
        OpenImageIO.ImageBufAlgo.fill(picture, (frame / 5, 0.2, 0.2))
        assert picture.write(str(directory / f"x_{frame:04d}.png"))
    made = FFMPEG.submission(directory / "x_0001.png", SubmitOptions(cwd=tmp_path))
    staged = replace(made, parameters=made.parameters | {"FilmDir": str(tmp_path / "stäging dir")})
    run = run_first_task(FFMPEG, staged, tmp_path)
    assert run.status == 0, run.log
    assert run.files == ["x.mp4"]
    assert "5 frames" in run.log
    assert FFMPEG.version() is not None
