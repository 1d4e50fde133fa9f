"""Plugins of renderers that are started once for each frame: their jobs, and what they read."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import UserError
from farm.flow.submit import plan_job
from farm.model.plugin import Plugin, Reading, SubmitOptions
from farm.model.states import Outcome
from farm.model.work import Isolation
from plugins import run_program
from tests.plugins.expanded import tasks
from tests.plugins.replay import feed, fractions

NAMES = (
    "mitsuba luxcore synfig inkscape maya houdini nuke arnold vray redshift renderman".split()  # noqa: SIM905
)
PLUGINS: dict[str, Plugin] = {
    name: importlib.import_module(f"plugins.{name}.plugin").PLUGIN for name in NAMES
}
ONE_FILE_A_FRAME = ("arnold", "redshift", "renderman", "luxcore", "inkscape")


def scene(directory: Path, name: str, text: str = "renderengine.type = PATHCPU <scene>") -> Path:
    path = directory / "schöne Szenen" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def words(made: Any, name: str) -> list[str]:
    """The renderer's own command of the first task."""
    command = list(PLUGINS[name].preview(made).command)
    return command[command.index("--") + 1 :]


def read(name: str, line: str) -> Reading | None:
    return PLUGINS[name].parser((1,)).feed(line)


# --- jobs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_plugin_makes_a_job_that_the_farm_takes(name: str, tmp_path: Path) -> None:
    plugin = PLUGINS[name]
    for extension in plugin.extensions:
        path = scene(tmp_path, f"shot.####{extension}" if name in ONE_FILE_A_FRAME else f"shot{extension}")
        for frame in range(1, 4):
            scene(tmp_path, path.name.replace("####", f"{frame:04d}"))
        arguments = ("/out/mantra1",) if extension.startswith(".hip") else ("a={{1}}",)
        made = plugin.submission(path, SubmitOptions(cwd=tmp_path, frames=(1, 2, 3), arguments=arguments))
        plan = plan_job(made, uid="")
        assert plan.steps[0].task_count == 3
        assert plan.steps[0].demand.software == (name,)
        is_staged = plan.steps[0].isolation is Isolation.STAGED
        assert is_staged is (name not in ("nuke", "renderman"))
        assert plugin.preview(made).command[0] == "python3"
        assert len(tasks(made)) == 3
        assert words(made, name).count(arguments[0]) == 1


@pytest.mark.parametrize(("name", "wished", "gpus"), [("arnold", 0, 0), ("arnold", 2, 2), ("redshift", 0, 1)])
def test_what_renders_on_gpus_alone_asks_for_one(tmp_path: Path, name: str, wished: int, gpus: int) -> None:
    plugin = PLUGINS[name]
    path = scene(tmp_path, f"shot{plugin.extensions[0]}")
    made = plugin.submission(path, SubmitOptions(cwd=tmp_path, gpus=wished))
    assert plan_job(made, uid="").steps[0].demand.gpus == gpus


def test_gpus_are_offered_by_those_that_can_use_them() -> None:
    assert {name for name, plugin in PLUGINS.items() if not plugin.uses_gpus} == {
        "mitsuba",
        "synfig",
        "inkscape",
    }


def test_chunks_hold_several_frames(tmp_path: Path) -> None:
    options = SubmitOptions(cwd=tmp_path, frames=tuple(range(1, 11)), chunk_size=5)
    made = PLUGINS["mitsuba"].submission(scene(tmp_path, "a.xml"), options)
    assert [task["Frame"] for task in tasks(made)] == ["1-5", "6-10"]
    assert words(made, "mitsuba")[:5] == ["mitsuba", "-m", "scalar_rgb", "-D", "frame=@FRAME@"]


def test_a_still_has_no_frames_and_is_named_after_its_scene(tmp_path: Path) -> None:
    made = PLUGINS["inkscape"].submission(scene(tmp_path, "title.svg"), SubmitOptions(cwd=tmp_path))
    assert PLUGINS["inkscape"].preview(made).first_output == str(tmp_path / "schöne Szenen/render/title.png")
    assert plan_job(made, uid="").steps[0].task_count == 1


@pytest.mark.parametrize(
    ("name", "file", "options", "part"),
    [
        ("inkscape", "a.svg", {"frames": (1, 2)}, "leave --frames away"),
        ("maya", "a.ma", {}, "give --frames"),
        ("arnold", "a.####.ass", {}, "give --frames"),
        ("arnold", "a.####.ass", {"frames": (7,)}, "a.0007.ass does not exist"),
        ("nuke", "a.nk", {"frames": (1,), "output": "x.exr"}, "leave --output away"),
        ("mitsuba", "a.xml", {"output": "x.png"}, "no file format"),
        ("mitsuba", "a.xml", {"arguments": ("-t", "1")}, "the node's slots"),
        ("vray", "a.vrscene", {"arguments": ("-imgFile=/x",)}, "use --output"),
        ("luxcore", "a.cfg", {"arguments": ("fast",)}, "NAME=VALUE"),
        ("houdini", "a.hip", {"frames": (1,)}, "name the node"),
        ("synfig", "a.sif", {"chunk_size": 0}, "1 or more"),
    ],
)
def test_what_a_renderer_cannot_do_is_refused_at_once(
    tmp_path: Path, name: str, file: str, options: dict[str, Any], part: str
) -> None:
    with pytest.raises(UserError, match=part):
        PLUGINS[name].submission(scene(tmp_path, file), SubmitOptions(cwd=tmp_path, **options))


@pytest.mark.parametrize(("name", "file"), [("luxcore", "a.cfg"), ("mitsuba", "a.xml")])
def test_a_file_of_another_program_with_that_extension_is_refused(
    tmp_path: Path, name: str, file: str
) -> None:
    with pytest.raises(UserError, match="is no "):
        PLUGINS[name].submission(scene(tmp_path, file, "[server]"), SubmitOptions(cwd=tmp_path))


def test_what_travels_in_a_template_holds_no_double_braces() -> None:
    for path in (
        run_program,
        *(importlib.import_module(f"plugins.{each}.render") for each in ("luxcore", "houdini")),
    ):
        text = Path(str(path.__file__)).read_text(encoding="utf-8")
        assert "{{" not in text
        assert "}}" not in text


def test_the_example_in_the_documentation_is_a_plugin(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)  # the project's own page
    plugin: Plugin = names["PLUGIN"]
    made = plugin.submission(scene(tmp_path, "a.my"), SubmitOptions(cwd=tmp_path, frames=(1, 2)))
    assert "myrender --quiet --frame @FRAME@ --out @OUTPUT@ @SCENE@" in " ".join(plugin.preview(made).command)
    assert plugin.parser((1,)).feed("done: 50%") is not None
    assert [name for name in PLUGINS if f"| {name} |" not in page] == []


# --- lines of renderers that cannot run here, from public places ------------------------------------------


@pytest.mark.parametrize(
    ("name", "line", "fraction"),
    [
        # help.autodesk.com, Arnold user guide, "How to Read a Render Log"
        ("arnold", "00:00:15   325MB         |    20% done - 115 rays/pixel", 0.2),
        # github.com/CGRU/cgru afanasy/python/parsers/redshift.py
        ("redshift", "INFO : [Redshift] Block 32/48 (7,4) rendered by GPU 0 in 2ms", 32 / 48),
        # github.com/aws-deadline/deadline-cloud-for-houdini/pull/141
        ("houdini", "ALF_PROGRESS 17%", 0.17),
        # github.com/aws-deadline/deadline-cloud-samples/pull/135: not always a whole number
        ("houdini", "ALF_PROGRESS 77.9167", 0.779167),
        # The head is from github.com/ynput/OpenPype/pull/5420, the text from GafferDeadline.
        ("vray", "[2023/Aug/10|17:33:55] [15 MB] Rendering image...: 45.1%", 0.451),
        # github.com/CGRU/cgru afanasy/python/parsers/prman.py, maya.py
        ("renderman", "R90000   45%", 0.45),
        ("maya", "[PROGRESS] 33 percent", 0.33),
    ],
)
def test_progress_is_read(name: str, line: str, fraction: float) -> None:
    reading = read(name, line)
    assert reading is not None
    assert reading.fraction == pytest.approx(fraction)


@pytest.mark.parametrize(
    ("name", "line", "part", "outcome"),
    [
        # github.com/Autodesk/arnold-usd/issues/1875: both write the picture all the same
        ("arnold", "00:00:02   279MB WARNING | [kick] render aborted due to earlier errors", "aborted", None),
        (
            "arnold",
            "00:00:02   288MB ERROR   |  [texturesys] /materials/arnold_utility/image1: "
            "ImageInput::create() called with no filename",
            "[texturesys]",
            None,
        ),
        # github.com/aws-deadline/deadline-cloud-for-maya/pull/214 and 234
        (
            "arnold",
            "00:00:00   100MB ERROR   | aborting render because this is a batch render and "
            "abort_on_license_fail is set",
            "abort_on_license_fail",
            Outcome.LICENCE,
        ),
        (
            "maya",
            "00:00:00   100MB ERROR   | aborting render because the abort_on_license_fail option was enabled",
            "abort_on_license_fail",
            Outcome.LICENCE,
        ),
        # github.com/aws-deadline/deadline-cloud-for-maya/pull/480: exit status 0
        ("redshift", "[Redshift] Maxon licensing error: x", "licensing error", Outcome.LICENCE),
        ("maya", "[Redshift] Maxon licensing error: x", "licensing error", Outcome.LICENCE),
        # github.com/CGRU/cgru afanasy/python/parsers/redshift.py
        (
            "redshift",
            "Error: [Redshift] License error: (RLM) All licenses in use (-22)",
            "in use",
            Outcome.LICENCE,
        ),
        # github.com/aws-deadline/deadline-cloud-for-cinema-4d/issues/239
        (
            "redshift",
            "Redshift Error: Please make sure you have NVIDIA driver 551.78 or later installed.",
            "NVIDIA driver",
            Outcome.NODE_FAULT,
        ),
        # github.com/Autodesk/arnold-usd/issues/1174
        ("houdini", "No licenses could be found to run this application.", "No licenses", Outcome.LICENCE),
        # github.com/hypothetical-inc/GafferDeadline
        (
            "vray",
            "[2023/Aug/10|17:33:55] [15 MB] error: Could not obtain a license",
            "license",
            Outcome.LICENCE,
        ),
        # github.com/prman-pixar/RenderManForBlender/issues/172
        (
            "renderman",
            "R12001 {ERROR}   File static/materials.rib cannot be opened by RiReadArchive. "
            "(System Error: No such file or directory)",
            "R12001",
            None,
        ),
        # github.com/CGRU/cgru afanasy/python/parsers/maya.py, nuke.py
        ("maya", "Error: This scene does not have any renderable cameras.", "cameras", None),
        ("nuke", "ERROR: Write1: Write Failed", "Write Failed", None),
    ],
)
def test_a_failure_is_seen_whatever_the_exit_status_says(
    name: str, line: str, part: str, outcome: Outcome | None
) -> None:
    reading = read(name, line)
    assert reading is not None
    assert part in reading.fatal
    assert reading.outcome is outcome


@pytest.mark.parametrize(
    ("name", "line"),
    [
        # github.com/Autodesk/arnold-usd/issues/1633
        ("arnold", "00:00:00    88MB         | log started Thu Aug 31 14:51:49 2023"),
        # github.com/ynput/OpenPype/pull/5420
        (
            "vray",
            "[2023/Aug/10|17:33:55] [15 MB] warning: The parameter 'interactive' has been removed",
        ),
        # github.com/aws-deadline/deadline-cloud-for-houdini/pull/141
        ("houdini", "[17:07:17] husk version 19.5.569"),
        # github.com/aws-deadline/deadline-cloud-for-nuke adaptor
        ("nuke", "Writing /tmp/x.0001.exr took 0.35 seconds"),
    ],
)
def test_an_ordinary_line_is_no_failure(name: str, line: str) -> None:
    reading = read(name, line)
    assert reading is None or (not reading.fatal and reading.fraction is None)


# --- lines of renderers that run here -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("mitsuba", "Rendering [====    ] (1.03s, ETA: 1.35s)", {"fraction": 0.5}),
        (
            "mitsuba",
            "2026-11-30 08:13:55 INFO  [SamplingIntegrator] Starting render job (160x90, 16 samples)",
            {"width": 160, "height": 90},
        ),
        (
            "mitsuba",
            "Caught a critical exception: [parser.cpp:1077] File not found: nope.xml",
            {"fatal": "[parser.cpp:1077] File not found: nope.xml"},
        ),
        ("luxcore", "[LuxCore][2.548] Samples per pixel 45%", {"fraction": 0.45}),
        (
            "synfig",
            "\x1b[33msynfig(13200) [08:13:52] warning: /x.sif:<real>:1341: Layer 'warp' rejected\x1b[0m",
            {"warning": "/x.sif:<real>:1341: Layer 'warp' rejected"},
        ),
        ("synfig", "Unable to load file '/nope.sif'.", {"fatal": "Unable to load file '/nope.sif'."}),
        (
            "inkscape",
            "ink_file_open: '/x/nope.svg' cannot be opened!",
            {"fatal": "ink_file_open: '/x/nope.svg' cannot be opened!"},
        ),
    ],
)
def test_a_recorded_line_is_read(name: str, line: str, expected: dict[str, Any]) -> None:
    reading = read(name, line)
    assert reading is not None
    assert {key: getattr(reading, key) for key in expected} == expected


def test_progress_of_two_frames_grows_though_each_counts_to_the_end() -> None:
    log = [
        "ridgeline| frame 1 of 2: 7",
        "Rendering [====    ] (1s, ETA: 1s)",
        "ridgeline| saved 1 of 2: x.exr",
        "ridgeline| frame 2 of 2: 8",
        "Rendering [==      ] (1s, ETA: 1s)",
        "ridgeline| saved 2 of 2: x.exr",
    ]
    assert fractions(feed(PLUGINS["mitsuba"].parser((7, 8)), log)) == [0.0, 0.25, 0.5, 0.5, 0.625, 1.0]


FRAGMENTS = (
    "ridgeline| frame 2 of 3: 7",
    "ridgeline| saved 1 of 3: x",
    "ridgeline| frame 1 of 1: still",
    "Rendering [==  ] (1s)",
    "luxcore progress: 70.0% pass 3",
    "00:00:15   325MB         |    20% done - 115 rays/pixel",
    "Block 9/4 (7,4) rendered by GPU 0 in 2ms",
    "Block 1/0 (7,4) rendered by GPU 0 in 2ms",
    "ALF_PROGRESS 17%",
    "Rendering image...: 100.0%",
    "Rendering image...: 1.0%",
    "R90000   45%",
    "[PROGRESS] 33 percent",
)


@settings(deadline=None, max_examples=200)
@given(
    name=st.sampled_from(NAMES),
    log=st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=60)), max_size=10),
)
def test_no_text_makes_a_parser_raise_or_go_back(name: str, log: list[str]) -> None:
    seen = fractions(feed(PLUGINS[name].parser(()), log))
    assert seen == sorted(seen)
    assert all(0.0 <= fraction <= 1.0 for fraction in seen)


# --- what starts them ---------------------------------------------------------------------------------


def run(tmp_path: Path, script: str, *command: str, frames: str = "1-2") -> subprocess.CompletedProcess[str]:
    """`run_program.py` with a renderer made of `script`, which sees its arguments."""
    renderer = tmp_path / "renderer.py"
    renderer.write_text(f"import sys, os\n{script}\n", encoding="utf-8")
    out = tmp_path / "out ü"
    out.mkdir(exist_ok=True)
    scene_file = tmp_path / "a ü.scene"
    scene_file.touch()
    line = [sys.executable, run_program.__file__, f"--scene={scene_file}", f"--frames={frames}"]
    line += [
        f"--output-dir={out}",
        "--output-pattern=x_####.txt",
        "--",
        sys.executable,
        str(renderer),
        *command,
    ]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def test_each_frame_is_started_with_its_number_and_its_file(tmp_path: Path) -> None:
    script = "open(sys.argv[1], 'w').write(sys.argv[2])"
    done = run(tmp_path, script, "@OUTPUT@", "@FRAME:3@ @FRAME@ @STEM@", frames="-2,1-5:4")
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_text() for path in (tmp_path / "out ü").iterdir()}
    assert found == {
        "x_-0002.txt": "-002 -2 x_-0002",
        "x_0001.txt": "001 1 x_0001",
        "x_0005.txt": "005 5 x_0005",
    }
    assert "ridgeline| saved 3 of 3: x_0005.txt" in done.stdout


def test_a_file_that_the_renderer_numbered_itself_gets_the_name_asked_for(tmp_path: Path) -> None:
    script = "open(os.path.join(sys.argv[1], f'mine.{sys.argv[2]}.txt'), 'w').write('x')"
    assert run(tmp_path, script, "@DIR@", "@FRAME:4@").returncode == 0
    assert sorted(path.name for path in (tmp_path / "out ü").iterdir()) == ["x_0001.txt", "x_0002.txt"]


@pytest.mark.parametrize(
    ("script", "status", "part"),
    [
        ("pass", 66, "did not write x_0001.txt"),
        ("open(sys.argv[1], 'w')", 66, "did not write x_0001.txt"),
        ("sys.exit(7)", 7, "frame 1 of 2"),
        ("os.kill(os.getpid(), 9)", 137, "frame 1 of 2"),
    ],
)
def test_a_renderer_that_ends_badly_or_writes_nothing_fails_the_task(
    tmp_path: Path, script: str, status: int, part: str
) -> None:
    done = run(tmp_path, script, "@OUTPUT@")
    assert done.returncode == status
    assert part in done.stdout
    assert "saved" not in done.stdout


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.scene").touch()
    line = [sys.executable, run_program.__file__, f"--scene={tmp_path / 'a.scene'}", "--", "no-such-renderer"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == run_program.EXIT_ABSENT
    assert "no-such-renderer cannot be started" in done.stdout
