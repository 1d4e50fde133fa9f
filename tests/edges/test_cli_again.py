"""Jobs again: other settings, more frames, another job of the same."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from farm.control.views import ChangedView
from farm.model.ids import JobId
from farm.model.work import Counts, JobSettings
from tests.edges.cli_farm import Cli, FakeFarm, a_job, a_task, a_view, page
from tests.edges.test_cli_submit import TEMPLATE
from tests.flow.test_extend import a_job as a_submission
from tests.plugins.test_blendfile import blend


@pytest.fixture
def again(farm: FakeFarm) -> FakeFarm:
    farm.answer("GET", "/jobs/12", a_view())
    settings = JobSettings(user="anna", priority=60, max_retries=5, depends_on=(JobId(3),))
    farm.answer("GET", "/jobs/12/submission", asdict(a_submission(settings=settings)))
    farm.answer("POST", "/jobs", a_view(a_job(id=JobId(14)), counts=Counts(ready=2)), status=201)
    return farm


def test_the_same_job_again_keeps_its_settings_but_not_what_it_waited_for(cli: Cli, again: FakeFarm) -> None:
    assert cli.good("resubmit", "12", "--quiet") == "14\n"
    sent = again.last("POST", "/jobs").body
    assert (sent["settings"]["priority"], sent["settings"]["max_retries"]) == (60, 5)
    assert sent["settings"]["depends_on"] == []
    assert sent["parameters"]["Frames"] == "1-10"


def test_with_changes(cli: Cli, again: FakeFarm) -> None:
    words = ("--frames", "3,1", "-p", "Samples=64", "--priority", "90", "--name", "b", "--order", "reverse")
    cli.good("resubmit", "12", *words)
    sent = again.last("POST", "/jobs").body
    assert sent["parameters"] == {"Frames": "1,3", "FilmFrames": "1,3", "OutputDir": "/out", "Samples": "64"}
    assert (sent["name"], sent["settings"]["priority"], sent["settings"]["order"]) == ("b", 90, "reverse")


def test_into_another_directory(cli: Cli, again: FakeFarm) -> None:
    cli.good("resubmit", "12", "--output", "again")
    assert again.last("POST", "/jobs").body["parameters"]["OutputDir"] == str(cli.folder / "again")
    error = cli.bad("resubmit", "12", "--output", "/x/####.png")
    assert "give a directory, the names of the files stay" in error


def test_the_frames_that_failed(cli: Cli, again: FakeFarm) -> None:
    again.answer("GET", "/jobs/12/tasks", page(a_task(label="7"), a_task(label="Frame=9 Tile=1")))
    cli.good("resubmit", "12", "--failed")
    assert again.last("POST", "/jobs").body["parameters"]["Frames"] == "7,9"
    assert again.last("GET", "/jobs/12/tasks").query["state"] == ["failed"]


def test_what_failed_without_a_frame_is_told(cli: Cli, again: FakeFarm) -> None:
    again.answer("GET", "/jobs/12/tasks", page(a_task(label="")))
    assert "has no frames: leave --failed away" in cli.bad("resubmit", "12", "--failed")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-p", "Sampels=64"), "did you mean Samples?"),
        (("--order", "revers"), "did you mean reverse?"),
        (("--frames", "1-"), "the last frame is missing"),
        (("--frames", "1", "--failed"), "choose one of"),
        (("--pretend", "--wait"), "nothing to --wait for"),
    ],
)
def test_a_wrong_change_submits_nothing(cli: Cli, again: FakeFarm, words: tuple[str, ...], told: str) -> None:
    assert told in cli.bad("resubmit", "12", *words)
    assert not [seen for seen in again.seen if seen.method == "POST"]


def test_pretend_shows_what_would_be_submitted(cli: Cli, again: FakeFarm) -> None:
    out = json.loads(cli.good("resubmit", "12", "--frames", "5", "--pretend", "--json"))
    assert out["frames"] == [5]


@pytest.mark.parametrize(
    "words",
    [
        ("shot.pov", "--frames", "1-4", "--", "+W64"),
        ("shot.blend", "--frames", "1-4"),
        ("--frames", "1-4", "--output", "f_##.png", "--", "make", "{frame}", "{output}"),
        ("template.yaml", "-p", "Frames=1-4"),
    ],
    ids=("povray", "blender", "command", "template"),
)
def test_pretend_shows_the_command_as_at_first_and_nothing_of_the_template(
    cli: Cli, farm: FakeFarm, words: tuple[str, ...]
) -> None:
    (cli.folder / "shot.pov").write_text("sphere { 0, 1 }")
    (cli.folder / "shot.blend").write_bytes(blend())
    (cli.folder / "template.yaml").write_text(
        TEMPLATE.replace("dataFlow: IN", "dataFlow: IN, default: shot.pov")
    )
    farm.answer("POST", "/jobs", {"error": {"kind": "forbidden", "message": "only pretend"}}, status=403)
    first = json.loads(cli.good("submit", "--pretend", "--json", *words))
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("GET", "/jobs/12/submission", first["submission"])
    shown = json.loads(cli.good("resubmit", "12", "--pretend", "--json"))
    assert shown["command"] == first["command"]
    told = cli.good("resubmit", "12", "--pretend")
    assert "{{" not in told + " ".join(first["command"])


def test_a_job_that_is_not_as_its_plugin_makes_it_is_shown_as_a_template(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("GET", "/jobs/12/submission", asdict(a_submission(kind="povray")))
    farm.answer("POST", "/jobs", {"error": {"kind": "forbidden", "message": "only pretend"}}, status=403)
    assert "{{" not in cli.good("resubmit", "12", "--pretend")


def test_project_and_stall_policy_are_changed(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("PATCH", "/jobs/12", a_view())
    told = cli.good("change", "12", "--project", "", "--on-stall", "kill")
    assert farm.last("PATCH", "/jobs/12").body == {"project": "", "on_stall": "kill"}
    assert "changed: no project, a stalled frame: kill" in told


def test_limits_hooks_and_preemption_are_changed(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("PATCH", "/jobs/12", a_view())
    told = cli.good("change", "12", "--limit", "arnold=2", "--limit", "nuke", "--hook", "chat", "--preempt")
    assert farm.last("PATCH", "/jobs/12").body == {
        "limits": {"arnold": 2, "nuke": 1},
        "hooks": ["chat"],
        "preempts": True,
    }
    assert "each frame takes 2 arnold, 1 nuke, hooks chat, stops others' frames" in told
    told = cli.good("change", "12", "--limit", "", "--hook", "", "--no-preempt")
    assert farm.last("PATCH", "/jobs/12").body == {"limits": {}, "hooks": [], "preempts": False}
    assert "changed: no limits, no hooks, stops nobody's frames" in told
    assert "a whole number, not x" in cli.bad("change", "12", "--limit", "arnold=x")


def test_settings_are_changed_by_one_request_a_job(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("PATCH", "/jobs/12", a_view())
    out = cli.good("change", "12", "--timeout", "2h", "--order", "every 5", "--pool", "")
    assert out == "job 12 shot_010 changed: any pool, a frame may take 2:00:00, order every-5\n"
    assert farm.last("PATCH", "/jobs/12").body == {"timeout_s": 7200.0, "order": "every-5", "pool": ""}
    assert "say what to change" in cli.bad("change", "12")


def test_frames_are_appended(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("POST", "/jobs/12/frames", ChangedView(changed=20, job=a_view()))
    assert "20 tasks appended" in cli.good("append", "12", "101-120")
    assert farm.last("POST", "/jobs/12/frames").body == {"frames": "101-120", "step": None}
    assert "cannot be read" in cli.bad("append", "12", "101-x")
