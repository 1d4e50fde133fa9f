from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.cli.submit import Wish, make
from farm.errors import UserError
from farm.flow.submit import plan_job
from farm.flow.task_space import TaskSpace
from farm.model.plugin import SubmitOptions
from farm.model.states import Outcome
from plugins.ffmpeg.plugin import PLUGIN


def frames(directory: Path, *numbers: int, name: str = "shot_v02_{:04d}.png") -> Path:
    directory.mkdir(exist_ok=True)
    paths = [directory / name.format(number) for number in numbers]
    for path in paths:
        path.touch()
    return paths[0]


def test_a_film_holds_every_frame_of_the_sequence_that_one_of_them_names(tmp_path: Path) -> None:
    first = frames(tmp_path / "render", 8, 10, 12)
    frames(tmp_path / "render", 1, name="other_{:04d}.png")
    options = SubmitOptions(cwd=tmp_path, arguments=("-framerate", "25", "-crf", "10"))
    made = PLUGIN.submission(Path("render") / first.name, options)
    plan = plan_job(made, uid="")
    assert (made.name, made.parameters["FilmFrames"], made.parameters["FilmRate"]) == (
        "shot_v02",
        "8-12:2",
        "25",
    )
    assert plan.steps[0].demand.software == ("ffmpeg",)
    assert TaskSpace(made.template, plan.parameters, made.outputs).files("film", 0) == ("shot_v02.mp4",)
    command = PLUGIN.preview(made).command
    assert command[-3:] == ("25", "-crf", "10")
    assert PLUGIN.preview(made).first_output == str(tmp_path / "render/shot_v02.mp4")


@pytest.mark.parametrize(
    ("output", "where"),
    [("out/x.webm", "out/x.webm"), ("out/", "out/shot_v02.mp4"), ("x", "x.mp4"), ("//../x.mov", "x.mov")],
)
def test_the_film_goes_where_output_says(tmp_path: Path, output: str, where: str) -> None:
    first = frames(tmp_path / "render", 1, 2)
    made = PLUGIN.submission(first, SubmitOptions(cwd=tmp_path, output=output))
    found = PLUGIN.preview(made).first_output
    assert found is not None
    assert Path(found).resolve() == tmp_path / where


def test_a_dash_before_the_number_is_a_sign_only_where_no_name_ends(tmp_path: Path) -> None:
    dashed = frames(tmp_path / "a", 1, 2, name="shot-{:04d}.png")
    assert PLUGIN.submission(dashed, SubmitOptions(cwd=tmp_path)).parameters["FilmPrefix"] == "shot-"
    negative = frames(tmp_path / "b", -2, -1, name="shot_{:05d}.png")
    made = PLUGIN.submission(negative, SubmitOptions(cwd=tmp_path))
    assert (made.parameters["FilmPrefix"], made.parameters["FilmFrames"]) == ("shot_", "-2--1")


@pytest.mark.parametrize(
    ("numbers", "options", "part"),
    [
        ((1, 2, 4, 5), {}, "frame 3 is missing between 2 and 4"),
        ((1, 2, 4), {"frames": (2, 3)}, "frame 3 is missing: "),
        ((1, 2), {"output": "x.avi"}, "ends with one of"),
        ((1, 2), {"arguments": ("-r", "fast")}, "frames a second"),
        ((1, 2), {"arguments": ("-i", "x")}, "sets -i itself"),
        ((1, 2), {"chunk_size": 2}, "one task"),
    ],
)
def test_a_film_that_would_be_wrong_is_refused(
    tmp_path: Path, numbers: tuple[int, ...], options: dict[str, Any], part: str
) -> None:
    first = frames(tmp_path / "render", *numbers)
    with pytest.raises(UserError, match=part):
        PLUGIN.submission(first, SubmitOptions(cwd=tmp_path, **options))


def test_a_picture_without_a_number_is_no_sequence(tmp_path: Path) -> None:
    (tmp_path / "poster.png").touch()
    with pytest.raises(UserError, match="no number"):
        PLUGIN.submission(tmp_path / "poster.png", SubmitOptions(cwd=tmp_path))


def test_the_pattern_of_the_frames_may_be_typed_instead_of_one_of_them(tmp_path: Path) -> None:
    frames(tmp_path / "render", 1, 2)
    made = make(Wish(paths=("render/shot_v02_####.png",)), cwd=tmp_path, login="anna")
    assert made.submission.parameters["FilmFrames"] == "1-2"
    with pytest.raises(UserError, match="there is no frame"):
        make(Wish(paths=("render/other_####.png",)), cwd=tmp_path, login="anna")


def test_a_film_at_the_end_can_be_wished_for_with_a_scene_only(tmp_path: Path) -> None:
    (tmp_path / "ball.pov").touch()
    wish = Wish(paths=("ball.pov",), frames="1-9", film="", film_rate="25", is_preview_first=True)
    steps = make(wish, cwd=tmp_path, login="anna").submission.template["steps"]
    assert [step["name"] for step in steps] == ["preview", "render", "film"]
    (tmp_path / "job.yaml").write_text(
        "specificationVersion: jobtemplate-2023-09\nname: x\n"
        "steps: [{name: a, script: {actions: {onRun: {command: 'true'}}}}]\n"
    )
    with pytest.raises(UserError, match="are for scenes"):
        make(Wish(paths=("job.yaml",), film=""), cwd=tmp_path, login="anna")


def test_a_full_disk_is_a_storage_failure() -> None:
    reading = PLUGIN.parser(()).feed("av_interleaved_write_frame(): No space left on device")
    assert reading is not None
    assert reading.outcome is Outcome.STORAGE
