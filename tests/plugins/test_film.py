from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import OpenImageIO
import pytest

from farm.errors import UserError
from farm.flow.submit import plan_job
from farm.flow.task_space import TaskSpace
from farm.model.plugin import SubmitOptions
from farm.model.work import Submission
from plugins import film
from plugins.blender.plugin import PLUGIN as BLENDER
from plugins.command.plugin import PLUGIN as COMMAND
from plugins.povray.plugin import PLUGIN as POVRAY
from plugins.preview import with_preview
from tests.plugins.test_blendfile import blend

SCRIPT = Path(film.__file__).with_name("film.sh")
needs_ffmpeg = pytest.mark.skipif(
    os.environ.get("FARM_TEST_SERVICES") != "required" and shutil.which("ffmpeg") is None,
    reason="ffmpeg is not installed",
)


@pytest.fixture
def made(tmp_path: Path) -> Submission:
    path = tmp_path / "shot.blend"
    path.write_bytes(blend(scenes=((1, 9, "Main"),)))
    return BLENDER.submission(path, SubmitOptions(cwd=tmp_path))


def pictures(directory: Path, frames: range) -> None:
    """`x_####.png` of different reds, of an odd size."""
    directory.mkdir(exist_ok=True)
    for frame in frames:
        picture = OpenImageIO.ImageBuf(OpenImageIO.ImageSpec(65, 37, 3, "uint8"))
        OpenImageIO.ImageBufAlgo.fill(picture, (abs(frame) / 9, 0.2, 0.2))
        sign = "-" if frame < 0 else ""
        assert picture.write(str(directory / f"x_{sign}{abs(frame):04d}.png"))


def encode(
    directory: Path, frames: str, *, film_name: str = "x.mp4", **changes: Any
) -> subprocess.CompletedProcess[str]:
    """As the step does it."""
    work = directory / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    values = film.parameters(
        frames=frames,
        source_dir=str(directory / "frames ü"),
        pattern="x_####.png",
        film_dir=str(directory),
        film_name=film_name,
        rate="24",
    ) | {name: str(value) for name, value in changes.items()}
    names = ("FilmSourceDir", "FilmPrefix", "FilmDigits", "FilmSuffix", "FilmFrames")
    command = ["sh", str(SCRIPT), str(work), *(values[name] for name in names)]
    command += [str(directory / film_name), values["FilmRate"]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def frames_in(path: Path) -> int:
    command = ["ffprobe", "-v", "error", "-count_frames", "-select_streams", "v:0"]
    command += ["-show_entries", "stream=nb_read_frames", "-of", "default=nk=1:nw=1", str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_the_film_is_the_last_step_and_only_it_needs_ffmpeg(made: Submission) -> None:
    plan = plan_job(film.with_film(made), uid="")
    assert [(step.name, step.demand.software, step.depends_on) for step in plan.steps] == [
        ("render", ("blender",), ()),
        ("film", ("ffmpeg",), ("render",)),
    ]
    space = TaskSpace(film.with_film(made).template, plan.parameters, film.with_film(made).outputs)
    assert space.files("film", 0) == ("shot.mp4",)
    assert space.count("render") == 9


def test_three_frames_come_first_and_the_film_waits_for_all(made: Submission) -> None:
    first = with_preview(film.with_film(made), range(1, 10))
    plan = plan_job(first, uid="")
    assert [(step.name, step.task_count, step.depends_on) for step in plan.steps] == [
        ("preview", 3, ()),
        ("render", 6, ()),
        ("film", 1, ("render", "preview")),
    ]
    space = TaskSpace(first.template, plan.parameters, first.outputs)
    assert space.files("preview", 1) == ("shot_0005.png",)
    assert first.parameters["FilmFrames"] == "1-9"


def test_three_frames_are_a_preview_of_themselves(made: Submission) -> None:
    assert with_preview(made, (1, 2, 3)) is made


def test_any_plugin_with_frames_takes_the_options(tmp_path: Path) -> None:
    (tmp_path / "ball.pov").touch()
    options = SubmitOptions(
        cwd=tmp_path,
        frames=tuple(range(1, 10)),
        chunk_size=4,
        is_preview_first=True,
        film="b.webm",
        film_rate="25",
    )
    made = POVRAY.submission(Path("ball.pov"), options)
    plan = plan_job(made, uid="")
    assert [(step.name, step.frames) for step in plan.steps] == [
        ("preview", "1-9:4"),
        ("render", "2-4,6-8"),
        ("film", None),
    ]
    assert [step.task_count for step in plan.steps] == [3, 2, 1]
    assert (made.parameters["FilmName"], made.parameters["FilmRate"]) == ("b.webm", "25")
    assert POVRAY.preview(made).first_output == str(tmp_path / "render/ball_0001.png")


@pytest.mark.parametrize("options", [{"film": ""}, {"is_preview_first": True}])
def test_one_picture_has_neither_a_film_nor_a_preview(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "ball.pov").touch()
    with pytest.raises(UserError, match="several frames"):
        POVRAY.submission(Path("ball.pov"), SubmitOptions(cwd=tmp_path, **options))
    with pytest.raises(UserError, match="several frames"):
        COMMAND.submission(Path("true"), SubmitOptions(cwd=tmp_path, **options))


def test_a_command_of_several_frames_is_told_what_stands_for_a_preview(tmp_path: Path) -> None:
    options = SubmitOptions(cwd=tmp_path, frames=(1, 2), arguments=("{frame}",), is_preview_first=True)
    with pytest.raises(UserError, match="--order first-middle-last does the same"):
        COMMAND.submission(Path("true"), options)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("shot_####.png", "shot.mp4"), ("####.png", "film.mp4"), ("a.####.b.exr", "a.mp4")],
)
def test_a_film_is_named_after_its_frames(pattern: str, name: str) -> None:
    assert film.film_name(pattern) == name


@pytest.mark.parametrize(
    "wrong", [{"name": "x.avi"}, {"name": "../x.mp4"}, {"rate": "0"}, {"rate": "24; rm"}]
)
def test_a_film_that_cannot_be_is_refused(made: Submission, wrong: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"film|frames a second"):
        film.with_film(made, **wrong)


def test_one_still_makes_no_film(tmp_path: Path, made: Submission) -> None:
    still = BLENDER.submission(
        tmp_path / "shot.blend", SubmitOptions(cwd=tmp_path, frames=(1,), output="a.png")
    )
    with pytest.raises(UserError, match="several frames"):
        film.with_film(still)


@needs_ffmpeg
@pytest.mark.parametrize("film_name", ["x.mp4", "x y.webm", "x.mkv"])
def test_every_frame_is_in_the_film_also_with_steps_and_negative_numbers(
    tmp_path: Path, film_name: str
) -> None:
    pictures(tmp_path / "frames ü", range(-3, 5))
    done = encode(tmp_path, "-3--1,0-4:2", film_name=film_name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert frames_in(tmp_path / film_name) == 6
    assert "openjd_progress: 100" in done.stdout


@needs_ffmpeg
def test_a_hole_in_the_frames_is_named_and_no_film_is_made(tmp_path: Path) -> None:
    pictures(tmp_path / "frames ü", range(1, 4))
    (tmp_path / "frames ü" / "x_0002.png").unlink()
    done = encode(tmp_path, "1-3")
    assert done.returncode == 66
    assert "openjd_fail: frame 2 is missing" in done.stdout
    assert not (tmp_path / "x.mp4").exists()


@needs_ffmpeg
def test_a_frame_that_cannot_be_read_fails_the_film(tmp_path: Path) -> None:
    pictures(tmp_path / "frames ü", range(1, 6))
    (tmp_path / "frames ü" / "x_0003.png").write_bytes(b"no picture")
    done = encode(tmp_path, "1-5")
    assert done.returncode == 66
    assert "openjd_fail: " in done.stdout
