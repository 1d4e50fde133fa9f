from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from farm.errors import UserError
from farm.model.plugin import SubmitOptions
from plugins import povray
from plugins.povray.plugin import PLUGIN
from tests.plugins.expanded import tasks


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "schöne Szenen" / "würfel 1.pov"
    path.parent.mkdir()
    path.write_text("sphere{0,1}", encoding="utf-8")
    return path


def test_frames_are_tasks_and_the_clock_runs_over_the_whole_job(scene: Path, tmp_path: Path) -> None:
    made = PLUGIN.submission(
        scene, SubmitOptions(cwd=tmp_path, frames=(3, 1, 20), arguments=("+W320", "+H180", "+A"))
    )
    assert [task["Frame"] for task in tasks(made)] == ["1", "3", "20"]
    shown = PLUGIN.preview(made)
    assert shown.command == (
        *("sh", "render.sh", ".", str(scene), str(scene.parent / "render"), "würfel 1_", "4", ".png", "1"),
        *("+KFI1", "+KFF20", "+FN", "+W320", "+H180", "+A"),
    )
    assert shown.first_output == str(scene.parent / "render" / "würfel 1_0001.png")


def test_a_part_of_an_animation_keeps_the_clock_of_the_whole(scene: Path, tmp_path: Path) -> None:
    made = PLUGIN.submission(
        scene, SubmitOptions(cwd=tmp_path, frames=(7,), arguments=("+KFI1", "Final_Frame=20"))
    )
    assert (made.parameters["FirstFrame"], made.parameters["LastFrame"]) == ("1", "20")
    with pytest.raises(UserError, match="outside"):
        PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, frames=(21,), arguments=("+KFI1", "+KFF20")))


def test_without_frames_there_is_one_still(scene: Path, tmp_path: Path) -> None:
    made = PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path))
    assert tasks(made) == [{}]
    assert made.outputs[0].frames_parameter is None
    assert PLUGIN.preview(made).first_output == str(scene.parent / "render" / "würfel 1.png")
    assert not any(argument.startswith("+K") for argument in PLUGIN.preview(made).command)


def test_chunks_hold_several_frames(scene: Path, tmp_path: Path) -> None:
    made = PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, frames=tuple(range(10)), chunk_size=5))
    assert [task["Frame"] for task in tasks(made)] == ["0-4", "5-9"]


def test_library_paths_start_where_the_artist_stands(scene: Path, tmp_path: Path) -> None:
    made = PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, arguments=("+Lmy inc", "fast.ini")))
    assert PLUGIN.preview(made).command[-2:] == (f'+L"{tmp_path}/my inc"', f"{tmp_path}/fast.ini")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"frames": (-1, 2)}, "begin at 0"),
        ({"output": "x_####.png"}, "give --frames"),
        ({"frames": (1,), "output": "a#_#.png"}, "once only"),
        ({"output": "x.webp"}, "no file format"),
        ({"arguments": ("+Oelse.png",)}, "--output"),
        ({"arguments": ("+SF3",)}, "--frames"),
        ({"arguments": ("+FJ",)}, "extension"),
        ({"arguments": ("+W0",)}, "pixels"),
    ],
)
def test_what_povray_cannot_do_is_refused_at_once(
    scene: Path, tmp_path: Path, options: dict[str, object], part: str
) -> None:
    with pytest.raises(UserError, match=part):
        PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, **options))  # type: ignore[arg-type]


def test_a_scene_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        PLUGIN.submission(Path("gone.pov"), SubmitOptions(cwd=tmp_path))


@pytest.mark.parametrize(
    ("frame", "ends", "moved"),
    [
        (9, "1-9", ()),
        (11, "1-9", ("+KFF11", "+KF1.250000000")),
        (1, "3-9", ("+KFI1", "+KI-0.333333333")),
        (7, "5-5", ()),
    ],
)
def test_a_frame_appended_later_goes_on_where_the_clock_has_come_to(
    tmp_path: Path, frame: int, ends: str, moved: tuple[str, ...]
) -> None:
    """POV-Ray renders none outside +KFI..+KFF; of two options that set the same the last one holds."""
    program = tmp_path / "bin" / "povray"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@" > typed\necho x > output/ridgeline-part.png\n')
    program.chmod(0o755)
    for folder in ("work", "out"):
        (tmp_path / folder).mkdir()
    first, last = ends.split("-")
    script = Path(povray.__file__).with_name("render.sh")
    typed = (str(tmp_path / "work"), "s.pov", str(tmp_path / "out"), "s_", "4", ".png", str(frame))
    subprocess.run(
        ("sh", str(script), *typed, f"+KFI{first}", f"+KFF{last}"),
        check=True,
        timeout=30,
        env={"PATH": f"{program.parent}:{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL,
    )
    words = (tmp_path / "work" / "typed").read_text().split()
    assert tuple(words[words.index(f"+EF{frame}") + 1 :]) == (f"+KFI{first}", f"+KFF{last}", *moved)
    assert (tmp_path / "out" / f"s_{frame:04}.png").exists()
