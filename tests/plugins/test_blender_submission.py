from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.errors import UserError
from farm.flow.submit import plan_job
from farm.model.plugin import SubmitOptions
from farm.model.work import JobSettings
from plugins.blender import driver
from plugins.blender.plugin import PLUGIN
from tests.plugins.expanded import tasks
from tests.plugins.test_blendfile import blend


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "schöne Szenen" / "shot 10.blend"
    path.parent.mkdir()
    path.write_bytes(blend(scenes=((1, 12, "Main"), (-2, 2, "Böden"))))
    return path


def test_a_scene_alone_renders_its_own_frames_beside_itself(scene: Path, tmp_path: Path) -> None:
    made = PLUGIN.submission(Path("schöne Szenen/shot 10.blend"), SubmitOptions(cwd=tmp_path))
    assert [task["Frame"] for task in tasks(made)] == [str(frame) for frame in range(1, 13)]
    assert made.name == "shot 10"
    assert made.parameters["SceneFile"] == str(scene)
    assert PLUGIN.preview(made).first_output == str(scene.parent / "render" / "shot 10_0001.png")
    assert made.outputs[0].file_pattern == "shot 10_####.png"
    assert made.software == ("blender",)
    assert made.kind == PLUGIN.name


def test_a_named_scene_gives_its_own_range_and_is_checked_by_the_driver(scene: Path, tmp_path: Path) -> None:
    made = PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, arguments=("-S", "Böden")))
    assert made.parameters["Frames"] == "-2-2"
    command = PLUGIN.preview(made).command
    assert "--scene-name=Böden" in command
    assert command[command.index("-S") + 1] == "Böden"


def test_chunks_hold_several_frames_and_single_frames_are_not_chunked(scene: Path, tmp_path: Path) -> None:
    frames = tuple(range(1, 11))
    chunked = PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, frames=frames, chunk_size=4))
    assert [task["Frame"] for task in tasks(chunked)] == ["1-4", "5-7", "8-10"]
    assert "--frames=1-4" in PLUGIN.preview(chunked).command
    single = PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, frames=frames))
    assert "extensions" not in single.template
    assert len(tasks(single)) == 10


def test_many_scattered_frames_are_one_parameter(scene: Path, tmp_path: Path) -> None:
    frames = tuple(number * number for number in range(1000))
    assert len(tasks(PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, frames=frames)))) == 1000


@pytest.mark.parametrize(("trusts", "option"), [(False, "--disable-autoexec"), (True, "--enable-autoexec")])
def test_scripts_in_the_scene_run_only_when_they_are_trusted(
    scene: Path, tmp_path: Path, trusts: bool, option: str
) -> None:
    settings = JobSettings(trust_scripts=trusts)
    command = PLUGIN.preview(PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, settings=settings))).command
    assert command[:4] == ("blender", "--background", option, str(scene))


def test_further_arguments_act_on_the_loaded_scene_and_braces_reach_blender(
    scene: Path, tmp_path: Path
) -> None:
    arguments = ("-E", "CYCLES", "--python-expr", "print({{1}})", "--", "--cycles-device", "CPU")
    made = PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, arguments=arguments))
    tasks(made)
    command = PLUGIN.preview(made).command
    assert command[4:8] == arguments[:4]
    ours = command.index("--")
    assert command[ours + 1 : ours + 3] == arguments[5:]
    assert command[ours + 3] == "--frames=1"


@pytest.mark.parametrize(
    ("wish", "gpus"),
    [
        ({"gpus": 0}, {"render": 0}),
        ({"gpus": 2}, {"render": 2}),
        ({"gpus": 1, "film": ""}, {"render": 1, "film": 0}),
        ({"gpus": 1, "is_preview_first": True}, {"preview": 1, "render": 1}),
        ({"gpus": 1, "is_probed": True}, {"render": 1, "probe": 1}),
        ({"gpus": 1, "tiles": (2, 2)}, {"parts": 1, "assemble": 0, "finish": 1, "verify": 0}),
    ],
)
def test_what_renders_has_its_gpus_and_blender_is_told(
    scene: Path, tmp_path: Path, wish: dict[str, Any], gpus: dict[str, int]
) -> None:
    frames = (1,) if "tiles" in wish else tuple(range(1, 7))
    made = PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, frames=frames, **wish))
    assert {step.name: step.demand.gpus for step in plan_job(made, uid="").steps} == gpus
    device = "GPU" if wish["gpus"] else "CPU"
    assert f"--device={device}" in PLUGIN.preview(made).command


@pytest.mark.parametrize("gpus", [-1, 65])
def test_no_task_has_so_many_gpus(scene: Path, tmp_path: Path, gpus: int) -> None:
    with pytest.raises(UserError, match=f"{gpus} GPUs"):
        PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, gpus=gpus))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("-a",), "--frames"),
        (("-o", "/x"), "--output"),
        (("-y",), "--trust-scripts"),
        (("--cycles-device", "OPTIX"), "--gpus"),
        (("other.blend",), "one scene"),
        (("-S",), "name of a scene"),
    ],
)
def test_arguments_that_the_farm_sets_itself_are_refused(
    scene: Path, tmp_path: Path, arguments: tuple[str, ...], part: str
) -> None:
    with pytest.raises(UserError, match=part):
        PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, arguments=arguments))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"frames": (1, 2_000_000)}, "no frame 2000000"),
        ({"frames": (-2_000_000,)}, "no frame -2000000"),
        ({"output": "film.mov"}, "not films"),
        ({"output": "x.psd"}, "no file format"),
        ({"chunk_size": 0}, "1 or more"),
        ({"arguments": ("-S", "Nobody")}, "give --frames"),
    ],
)
def test_what_blender_cannot_do_is_refused_at_once(
    scene: Path, tmp_path: Path, options: dict[str, object], part: str
) -> None:
    with pytest.raises(UserError, match=part):
        PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, **options))  # type: ignore[arg-type]


def test_a_probe_is_one_frame_of_few_samples_before_all_others(scene: Path, tmp_path: Path) -> None:
    made = PLUGIN.submission(
        scene, SubmitOptions(cwd=tmp_path, frames=(1, 5, 9), chunk_size=2, is_probed=True, film="")
    )
    plan = plan_job(made, uid="u")
    steps = {step.name: step for step in plan.steps}
    assert (steps["probe"].frames, steps["probe"].task_count) == ("5", 1)
    assert (steps["probe"].isolation, steps["probe"].output) == ("probe", None)
    assert steps["render"].depends_on == ("probe",)
    assert set(steps["film"].depends_on) == {"render", "probe"}
    assert "--probe" not in PLUGIN.preview(made).command
    args = made.template["steps"][-1]["script"]["actions"]["onRun"]["args"]
    assert args[-1] == "--probe"
    assert "--output-dir={{Session.WorkingDirectory}}" in args


def test_a_file_that_is_no_scene_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.blend").write_text("hello")
    for name, part in (
        ("x.blend", "not a Blender scene"),
        ("gone.blend", "does not exist"),
        (".", "not a file"),
    ):
        with pytest.raises(UserError, match=part):
            PLUGIN.submission(Path(name), SubmitOptions(cwd=tmp_path))


def test_the_driver_can_travel_in_a_template() -> None:
    text = Path(driver.__file__).read_text(encoding="utf-8")
    assert "{{" not in text
    assert "}}" not in text
