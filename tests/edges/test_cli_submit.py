"""`farm submit`: what is sent, what is refused, and what scripts can rely on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from farm.model.states import JobState
from farm.model.work import Counts, JobSettings
from tests.edges.cli_farm import Cli, FakeFarm, a_job, a_node, a_view, an_ended_view, page
from tests.waiting import wait_until

TEMPLATE = """
specificationVersion: jobtemplate-2023-09
name: "{{Param.Title}} render"
parameterDefinitions:
  - {name: Title, type: STRING, default: Shot}
  - {name: Frames, type: STRING, default: 1-3}
  - {name: Scene, type: PATH, objectType: FILE, dataFlow: IN}
  - {name: Out, type: PATH, objectType: DIRECTORY, dataFlow: OUT, default: out}
steps:
  - name: Render
    parameterSpace:
      taskParameterDefinitions:
        - {name: Frame, type: INT, range: "{{Param.Frames}}"}
    script:
      actions:
        onRun: {command: render, args: ["{{Param.Scene}}", "{{Task.Param.Frame}}", "{{Task.File.Go}}"]}
      embeddedFiles:
        - {name: Go, type: TEXT, filename: go.sh, data: "true"}
"""
VALUES = """
parameterValues:
  - {name: Scene, value: shot.scene}
  - {name: "deadline:priority", value: 70}
  - {name: "farm:pool", value: gpu}
  - name: "farm:output"
    value: {step: Render, directory_parameter: Out, file_pattern: "f_###.png", frames_parameter: Frame}
"""


@pytest.fixture
def scene(lonely_cli: Cli) -> Path:
    path = lonely_cli.folder / "shot.pov"
    path.write_text("sphere { 0, 1 }")
    return path


@pytest.fixture
def bundle(lonely_cli: Cli) -> Path:
    folder = lonely_cli.folder / "bundle"
    folder.mkdir()
    (folder / "template.yaml").write_text(TEMPLATE)
    (folder / "parameter_values.yaml").write_text(VALUES)
    return folder


def sent(farm: FakeFarm) -> Any:
    return farm.last("POST", "/jobs").body


def takes(farm: FakeFarm, view: Any = None) -> None:
    farm.answer("POST", "/jobs", view or a_view(), status=201)


# --- scenes and commands ------------------------------------------------------------------------------


def test_a_scene_becomes_a_submission(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm)
    out = cli.good(
        *("submit", "shot.pov", "--frames", "1-9x2", "--name", "hero", "--priority", "80", "--user", "anna"),
        *("--pool", "gpu", "--paused", "--retries", "4", "--max-running", "3", "--max-failed", "7"),
        *("--depends-on", "3", "--depends-on", "#4", "--profile", "compute", "--reverse", "--timeout", "90m"),
        *("--trust-scripts", "--output", "out/", "--limit", "arnold", "--limit", "nuke=2"),
    )
    body = sent(farm)
    assert body["name"] == "hero"
    assert body["kind"] == "povray"
    assert body["parameters"]["SceneFile"] == str(scene)
    assert body["parameters"]["Frames"] == "1-9:2"
    assert body["settings"] == json.loads(json.dumps(asdict(JobSettings()))) | {
        "priority": 80,
        "user": "anna",
        "pool": "gpu",
        "is_paused": True,
        "max_retries": 4,
        "max_failed_tasks": 7,
        "max_running": 3,
        "depends_on": [3, 4],
        "replace_existing": False,
        "tag": "compute",
        "reverse": True,
        "trust_scripts": True,
        "timeout_s": 5400.0,
        "keep_sessions": False,
        "limits": {"arnold": 1, "nuke": 2},
    }
    assert "job 12" in out
    assert f"{scene.parent}/out/shot_####.png" in out


def test_what_stands_behind_the_dashes_goes_to_the_renderer(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm)
    cli.good("submit", "shot.pov", "-f", "1-3", "--", "+W64", "-q", "--frames")
    body = sent(farm)
    assert body["parameters"]["Width"] == "64"
    assert {"-q", "--frames"} <= set(body["template"]["steps"][0]["script"]["actions"]["onRun"]["args"])


def test_a_command_alone_behind_the_dashes_is_the_job(cli: Cli, farm: FakeFarm) -> None:
    takes(farm)
    cli.good("submit", "-f", "1-3", "-o", "out/a_##.png", "--", "echo", "--wait", "{frame}", "{output}")
    body = sent(farm)
    assert body["kind"] == "command"
    run = body["template"]["steps"][0]["script"]["actions"]["onRun"]
    assert run["command"] == "echo"
    assert run["args"][0] == "--wait"


def test_a_command_has_gpus_of_its_own(cli: Cli, farm: FakeFarm) -> None:
    takes(farm)
    cli.good("submit", "--gpus", "2", "--", "train")
    (step,) = sent(farm)["template"]["steps"]
    assert step["hostRequirements"] == {"amounts": [{"name": "amount.worker.gpu", "min": 2}]}


def test_quiet_prints_the_number_alone(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm, a_view(waiting="no node is online"))
    result = cli("submit", "shot.pov", "--quiet")
    assert (result.status, result.out, result.err) == (0, "12\n", "")


def test_json_is_the_farms_answer(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm)
    assert json.loads(cli.good("submit", "shot.pov", "--json"))["job"]["id"] == 12


def test_a_job_that_does_not_start_says_why(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm, a_view(a_job(state=JobState.PAUSED)))
    assert "farm resume 12" in cli.good("submit", "shot.pov")
    farm.answers.clear()
    takes(farm, a_view(waiting="no node is online"))
    assert "waits: no node is online" in cli.good("submit", "shot.pov")


def test_a_lost_answer_is_asked_for_with_the_same_key(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    farm.answer("POST", "/jobs", None, status=0)
    farm.answer("POST", "/jobs", {}, status=503)
    takes(farm)
    cli.good("submit", "shot.pov")
    keys = [seen.headers["idempotency-key"] for seen in farm.seen]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    cli.good("submit", "shot.pov")
    assert farm.seen[-1].headers["idempotency-key"] not in keys


def test_a_key_of_ones_own_is_sent(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm)
    cli.good("submit", "shot.pov", "--idempotency-key", "shot-7")
    assert farm.seen[-1].headers["idempotency-key"] == "shot-7"
    assert "plain characters" in cli.bad("submit", "shot.pov", "--idempotency-key", "ключ")


# --- files that are there -----------------------------------------------------------------------------


def test_files_that_exist_are_refused_before_anything_is_sent(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    (scene.parent / "render").mkdir()
    for frame in (2, 3, 5, 7, 11):
        (scene.parent / "render" / f"shot_{frame:04}.png").write_bytes(b"x")
    error = cli.bad("submit", "shot.pov", "-f", "1-9")
    assert "4 output files exist" in error
    assert "shot_0002.png" in error
    assert "1 more" in error
    assert "--overwrite" in error
    assert not farm.seen
    takes(farm)
    cli.good("submit", "shot.pov", "-f", "1-9", "--overwrite")
    assert sent(farm)["settings"]["replace_existing"] is True


def test_files_of_an_earlier_try_with_the_same_key_do_not_matter(
    cli: Cli, farm: FakeFarm, scene: Path
) -> None:
    (scene.parent / "render").mkdir()
    (scene.parent / "render" / "shot.png").write_bytes(b"x")
    farm.answer("POST", "/jobs", a_view(), status=200)
    cli.good("submit", "shot.pov", "--idempotency-key", "shot-7")
    assert [seen.path for seen in farm.seen] == ["/jobs"]


def test_files_that_exist_end_a_new_job_that_a_key_made(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    (scene.parent / "render").mkdir()
    (scene.parent / "render" / "shot.png").write_bytes(b"x")
    takes(farm)
    farm.answer("POST", "/jobs/12/cancel", {})
    assert "exists already" in cli.bad("submit", "shot.pov", "--idempotency-key", "shot-8")
    assert farm.seen[-1].path == "/jobs/12/cancel"


# --- templates and bundles ----------------------------------------------------------------------------


def test_a_bundle_is_read_with_its_settings(cli: Cli, farm: FakeFarm, bundle: Path) -> None:
    takes(farm)
    (bundle / "asset_references.yaml").write_text("assetReferences: {inputs: {filenames: [wood.png]}}")
    result = cli("submit", "bundle", "-p", "Title=Hero")
    assert result.status == 0, result.err
    assert f"asset_references names {bundle}/wood.png, which does not exist here" in result.err
    body = sent(farm)
    assert body["name"] == "Hero render"
    assert body["settings"]["priority"] == 70
    assert body["settings"]["pool"] == "gpu"
    assert body["parameters"] == {
        "Title": "Hero",
        "Scene": str(bundle / "shot.scene"),
        "Out": str(bundle / "out"),
    }
    assert body["outputs"][0]["file_pattern"] == "f_###.png"


def test_what_is_typed_beats_the_bundle(cli: Cli, farm: FakeFarm, bundle: Path) -> None:
    takes(farm)
    cli.good(
        *("submit", "bundle/", "-p", "Scene=other.scene", "--priority", "5", "--pool", "cpu"),
        *("--frames", "10-1", "--name", "mine"),
    )
    body = sent(farm)
    assert body["name"] == "mine"
    assert body["settings"]["priority"] == 5
    assert body["settings"]["pool"] == "cpu"
    assert body["parameters"]["Scene"] == str(bundle.parent / "other.scene"), "typed paths start here"
    assert body["parameters"]["Frames"] == "1-10"


def test_parameters_come_from_files_and_json_too(cli: Cli, farm: FakeFarm, bundle: Path) -> None:
    takes(farm)
    (bundle.parent / "values.yaml").write_text("Title: From file\nFrames: 4-6\n")
    cli.good(
        "submit", "bundle/template.yaml", "-p", "file://values.yaml", "-p", '{"Scene": "/s", "Title": "J"}'
    )
    assert sent(farm)["parameters"] == {
        "Title": "J",
        "Frames": "4-6",
        "Scene": "/s",
        "Out": str(bundle / "out"),
    }


def test_output_files_of_a_bundle_are_checked(cli: Cli, farm: FakeFarm, bundle: Path) -> None:
    (bundle / "out").mkdir()
    (bundle / "out" / "f_002.png").write_bytes(b"x")
    assert "f_002.png" in cli.bad("submit", "bundle")
    assert not farm.seen


def test_a_default_path_outside_the_bundle_is_refused_unless_it_is_given(
    cli: Cli, farm: FakeFarm, bundle: Path
) -> None:
    takes(farm)
    for place in ("/etc/passwd", "../secret"):
        (bundle / "template.yaml").write_text(TEMPLATE.replace("default: out", f"default: {place}"))
        error = cli.bad("submit", "bundle")
        assert place in error
        assert "-p Out=PATH" in error
        cli.good("submit", "bundle", "-p", f"Out={place}")
        assert sent(farm)["parameters"]["Out"] == os.path.normpath(bundle.parent / place)


# --- wrong submits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "needles"),
    [
        ((), ("farm submit shot.blend", "farm submit -- povray")),
        (("missing.pov",), ("missing.pov does not exist",)),
        (("shto.pov",), ("did you mean shot.pov",)),
        (("povray",), ("farm submit -- povray",)),
        (("shot.pvo",), ("shot.pov",)),
        (("notes.txt",), (".blend", ".pov", "any command after --")),
        (("shot.pov", "--profile", "computer"), ("'computer' is not one of", "did you mean compute?")),
        (("picture.blnd",), ("did you mean picture.blend",)),
        (("tool.sh",), ("farm submit -- ", "/tool.sh")),
        (("shot.pov", "other.pov"), ("one scene a job", "put -- before it")),
        (("shot.pov", "--frames", "1-10,"), ("comma with nothing beside it",)),
        (("shot.pov", "--frames", "1-10x0"), ("step 0",)),
        (("shot.pov", "--frames", "1-99999999"), ("the most is 1,000,000",)),
        (("shot.pov", "--timeout", "soon"), ("90m",)),
        (("shot.pov", "--timeout", "9" * 400), ("365 days",)),
        (("shot.pov", "--depends-on", "shot_009"), ("give a job's number",)),
        (("shot.pov", "--profile", "fast"), ("compute",)),
        (("shot.pov", "--priority", "high"), ("--priority",)),
        (("shot.pov", "-p", "A=1"), ("template or bundle",)),
        (("shot.pov", "--gpus", "1"), ("povray does not render on GPUs",)),
        (("bundle", "--gpus", "1"), ("a template says itself",)),
        (("--gpus", "-1", "--", "nvidia-smi"), ("-1 GPUs",)),
        (("shot.pov", "--chunk-size", "0"), ("give 1 or more",)),
        (("shot.pov", "--pretend", "--wait"), ("nothing to --wait for",)),
        (("-o", "x.png", "--", "echo", "{nope}"), ("{nope}", "{frame}")),
        (("--frames", "1-3", "--", "echo", "hi"), ("put {frame}",)),
        (("--", "echo", "{frame}"), ("give --frames",)),
        (("--",), ("give a command after --",)),
        (("bundle", "-p", "Scene"), ("write Name=value",)),
        (("bundle", "-p", "Sceen=x"), ("no parameter 'Sceen'", "did you mean Scene")),
        (("bundle/template.yaml",), ("Scene must be given", "-p Scene=...")),
        (("bundle", "--output", "x.png"), ("-p Name=value",)),
        (("bundle", "--", "-x"), ("-p Name=value",)),
        (("bundle", "-p", "file://gone.yaml"), ("gone.yaml", "No such file")),
        (("bundle", "-p", "Frames=3-1"), ("a range is text like 1-10",)),
        (("empty",), ("without a template.yaml",)),
        (("broken.yaml",), ("broken.yaml", "line")),
        (("binary.json",), ("not UTF-8",)),
        (("nojob.yaml",), ("no valid Open Job Description",)),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, tuple) else "",
)
def test_a_wrong_submit_says_what_is_wrong_and_sends_nothing(
    cli: Cli, farm: FakeFarm, scene: Path, bundle: Path, words: tuple[str, ...], needles: tuple[str, ...]
) -> None:
    here = cli.folder
    (here / "empty").mkdir()
    for name, raw in {
        "notes.txt": b"",
        "picture.blnd": b"",
        "tool.sh": b"#!/bin/sh\n",
        "other.pov": b"",
        "broken.yaml": b"a: [1\n",
        "binary.json": b"\xff\xfe",
        "nojob.yaml": b"name: x\n",
    }.items():
        (here / name).write_bytes(raw)
    (here / "tool.sh").chmod(0o755)
    error = cli.bad("submit", *words)
    for needle in needles:
        assert needle in error
    assert not farm.seen


def test_what_the_farm_refuses_is_shown_as_it_says(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    farm.fail("POST", "/jobs", 422, "user-error", "depends_on names job 99, which does not exist")
    assert "names job 99" in cli.bad("submit", "shot.pov")
    farm.answers.clear()
    farm.fail("POST", "/jobs", 409, "rejected", "idempotency key 'x' was used for another request (job 11)")
    assert "job 11" in cli.bad("submit", "shot.pov", "--idempotency-key", "x")


@pytest.mark.parametrize(
    ("words", "is_reversed"),
    [
        (("--frames", "10-1"), True),
        (("--frames", "10-1x3"), True),
        (("--frames", "9,5,1"), True),
        (("--frames", "1-10"), False),
        (("--frames", "5,9,1"), False),
        (("--frames", "7"), False),
        (("--frames", "10-1", "--order", "forward"), False),
    ],
)
def test_a_range_that_is_typed_backwards_is_rendered_backwards(
    cli: Cli, farm: FakeFarm, scene: Path, words: tuple[str, ...], is_reversed: bool
) -> None:
    takes(farm)
    cli.good("submit", "shot.pov", *words)
    assert sent(farm)["settings"]["reverse"] is is_reversed


# --- pretend ------------------------------------------------------------------------------------------


def test_pretending_needs_no_farm(lonely_cli: Cli, scene: Path) -> None:
    (scene.parent / "render").mkdir()
    (scene.parent / "render" / "shot_0003.png").write_bytes(b"x")
    lonely_cli.patch.setenv("COLUMNS", "300")
    result = lonely_cli("submit", "shot.pov", "-f", "1-5x2", "--pretend")
    assert result.status == 0, result.err
    for part in ("1-5:2 (3 frames)", "+KFI1", "render/shot_0001.png", "1 file", "shot_0003.png"):
        assert part in result.out, part
    assert "nothing was submitted" in result.err
    assert "no farm answers" in result.err


def test_pretending_asks_a_farm_that_answers_for_a_plan(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    plan = {"name": "shot", "steps": [], "output_directories": [], "warnings": ["mind the gap"]}
    farm.answer("POST", "/jobs", plan)
    assert "mind the gap" in cli.good("submit", "shot.pov", "--pretend")
    assert farm.seen[-1].query == {"dry_run": ["true"]}
    told = json.loads(cli.good("submit", "shot.pov", "-f", "3,1", "--pretend", "--json"))
    assert told["frames"] == [1, 3]
    assert told["first_output"].endswith("shot_0001.png")
    assert told["plan"] == plan


def test_pretending_shows_a_templates_first_command(lonely_cli: Cli, bundle: Path) -> None:
    lonely_cli.patch.setenv("COLUMNS", "300")
    out = lonely_cli.good("submit", "bundle", "--pretend")
    assert f"render {bundle}/shot.scene 1 go.sh" in out
    assert f"{bundle}/out/f_001.png" in out


# --- wait ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "status"), [(JobState.DONE, 0), (JobState.FAILED, 1), (JobState.CANCELLED, 1)]
)
def test_waiting_exits_0_only_if_all_is_done(
    cli: Cli, farm: FakeFarm, scene: Path, state: JobState, status: int
) -> None:
    takes(farm)
    farm.answer("GET", "/jobs/12", a_view(waiting="no node is online", counts=Counts(ready=250)))
    farm.answer("GET", "/jobs/12", an_ended_view(state))
    result = cli("submit", "shot.pov", "--wait")
    assert result.status == status
    assert "waits: no node is online" in result.err
    assert str(state) in result.out.splitlines()[-1]


def test_waiting_quietly_prints_the_number_alone(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm)
    farm.answer("GET", "/jobs/12", an_ended_view(JobState.FAILED))
    result = cli("submit", "shot.pov", "--wait", "-q")
    assert (result.status, result.out, result.err) == (1, "12\n", "")


def test_waiting_with_json_prints_the_end_alone(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm)
    farm.answer("GET", "/jobs/12", an_ended_view())
    out = cli.good("submit", "shot.pov", "--wait", "--json")
    assert json.loads(out)["job"]["state"] == "done"


def test_waiting_outlives_a_farm_that_goes_away_for_a_moment(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm)
    farm.fail("GET", "/jobs/12", 500, "internal", "the server restarts")
    farm.answer("GET", "/jobs/12", an_ended_view())
    result = cli("submit", "shot.pov", "--wait")
    assert result.status == 0
    assert "the job goes on" in result.err


def test_ctrl_c_says_that_the_job_goes_on(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm)
    farm.answer("GET", "/jobs/12", a_view())
    child = subprocess.Popen(
        [sys.executable, "-m", "farm.main", "submit", "shot.pov", "--wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: any(seen.path == "/jobs/12" for seen in farm.seen), "it waits", timeout_s=60)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait(10)
    assert child.returncode == 130
    assert b"farm cancel 12" in err
    assert b"Traceback" not in err


def test_several_jobs_are_waited_for_together(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", an_ended_view())
    farm.answer("GET", "/jobs/13", an_ended_view(JobState.FAILED, id=13, name="other"))
    result = cli("wait", "12", "13")
    assert result.status == 1
    assert "shot_010" in result.out
    assert "other" in result.out
    farm.answer("GET", "/jobs", page())
    assert cli("wait", "12", "14").status == 2


def test_a_job_that_is_not_whose_it_was_said_to_be_is_told(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    """A user's jobs are his own, whatever --user says: that must not pass in silence."""
    takes(farm)
    whose = a_view().job.settings.user
    assert f"the job is {whose}'s" in cli("submit", "shot.pov", "--frames", "1", "--user", "bert").err
    assert "note" not in cli("submit", "shot.pov", "--frames", "1", "--user", whose).err
    assert "note" not in cli("submit", "shot.pov", "--frames", "1").err


def test_a_pool_that_no_node_is_in_is_told_with_the_nearest(cli: Cli, farm: FakeFarm, scene: Path) -> None:
    takes(farm)
    farm.answer("GET", "/nodes", page(a_node()))
    result = cli("submit", "shot.pov", "--frames", "1", "--pool", "defualt")
    assert result.status == 0
    assert "no node is in the pool 'defualt' now; did you mean default?" in result.err
