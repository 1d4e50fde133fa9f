"""Lists: filters, columns, order, names alone; and what is asked of the farm for them."""

from __future__ import annotations

import json

import pytest

from farm.broker import parked
from farm.broker.parked import Parked
from farm.control.detail_fields import EVERY_FIELD
from farm.control.fields import FIELDS, NODE_FIELDS, job_fields, label_frames
from farm.control.views import ChangedView
from farm.http import examples
from farm.model.ids import JobId, TaskId
from farm.model.states import JobState, TaskState
from farm.model.work import Counts
from tests.edges.cli_farm import (
    Cli,
    FakeFarm,
    a_farm,
    a_job,
    a_node,
    a_task,
    a_view,
    an_ended_view,
    an_event,
    page,
)


@pytest.fixture
def listed(farm: FakeFarm) -> FakeFarm:
    farm.answer("GET", "/jobs", page(a_view(), an_ended_view(JobState.FAILED, id=JobId(13), name="shot_020")))
    farm.answer("GET", "/jobs/12", a_view())
    tasks = (
        a_task(),
        a_task(id=TaskId(4712), label="8", node_id="blade-9", state=TaskState.DONE, reason=""),
    )
    farm.answer("GET", "/jobs/12/tasks", page(*tasks))
    farm.answer("GET", "/jobs/13/tasks", page(a_task(id=TaskId(99), job_id=JobId(13))))
    farm.answer("GET", "/nodes", page(a_node()))
    farm.answer("GET", "/events", page(an_event(), an_event(id=90211, node_id="blade-3")))
    return farm


def test_a_filter_narrows_the_list_and_the_question(cli: Cli, listed: FakeFarm) -> None:
    out = cli.good("jobs", "state=failed and name~020")
    assert "shot_020" in out
    assert "shot_010" not in out
    assert listed.last("GET", "/jobs").query["state"] == ["failed"]


def test_a_filter_may_be_several_words(cli: Cli, listed: FakeFarm) -> None:
    assert cli.good("tasks", "12", "state=failed", "node~blade-3", "--quiet") == "4711\n"
    assert cli.good("tasks", "12", "frame=8", "--quiet") == "4712\n"


def test_tasks_of_all_jobs(cli: Cli, listed: FakeFarm) -> None:
    out = cli.good("tasks", "state=failed")
    assert "4711" not in out  # no task of job 12 has failed, say its counts: it isn't asked
    assert " 99 " in out
    assert cli.good("tasks", "-q") == "4711\n4712\n99\n"


def test_a_word_that_compares_nothing_is_a_job(cli: Cli, listed: FakeFarm) -> None:
    assert "a job is named by its number, not 'shot_010'" in cli.bad("tasks", "shot_010")


def test_columns_are_chosen_by_name(cli: Cli, listed: FakeFarm) -> None:
    lines = cli.good("jobs", "--columns", "id,name,progress,left").splitlines()
    assert lines[0].split() == ["Id", "Name", "Progress", "Left"]
    assert lines[1].split() == ["12", "shot_010", "5", "%", "1:00:00"]
    answer = json.loads(cli.good("jobs", "--columns", "id,name", "--json"))
    assert answer == [{"id": 12, "name": "shot_010"}, {"id": 13, "name": "shot_020"}]


LISTS = {
    "jobs": ("jobs",),
    "tasks": ("tasks", "12"),
    "nodes": ("nodes",),
    "events": ("events",),
    "stalled": ("stalled",),
    "attempts": ("explain", "12"),
    "limits": ("limits",),
    "hooks": ("hooks",),
    "tokens": ("token", "list"),
    "models": ("capacity",),
}
"""How what is listed is asked for."""
DETAILS = {
    "steps": ("job", "12"),
    "devices": ("node", "blade-3"),
    "times": ("profile", "12"),
    "stats": ("stats",),
}
"""How a table of what is inside one thing is asked for."""


@pytest.fixture
def exemplary(farm: FakeFarm) -> FakeFarm:
    """One of each, as the description of the API has it."""
    farm.answer("GET", "/jobs/12", examples.shown(examples.JOB_VIEW))
    farm.answer("GET", "/jobs/12/profile", examples.shown(examples.PROFILE))
    farm.answer("GET", "/matching", examples.shown(examples.MATCHING))
    for path, example in (
        ("/jobs", examples.JOB_VIEW),
        ("/jobs/12/tasks", examples.TASK),
        ("/jobs/12/attempts", examples.ATTEMPT),
        ("/nodes", examples.NODE),
        ("/events", examples.EVENT),
        ("/stalled", examples.STALLED),
        ("/limits", examples.LIMIT),
        ("/hooks", examples.HOOK),
        ("/tokens", examples.TOKEN),
    ):
        farm.answer("GET", path, examples.page(example))
    return farm


@pytest.mark.parametrize("what", FIELDS)
def test_every_list_takes_columns_filter_order_and_is_for_scripts(
    cli: Cli, exemplary: FakeFarm, what: str
) -> None:
    cli.patch.setenv("COLUMNS", "400")
    fields, words = FIELDS[what](0.0), LISTS[what]
    name = next(iter(fields))
    heading = cli.good(*words, "--columns", "all").splitlines()[0]
    assert heading.lower().split() == list(fields)
    (shown,) = json.loads(cli.good(*words, "--columns", name, "--json"))
    assert list(shown) == [name]
    value = str(shown[name])
    assert cli.good(*words, "--quiet", "--sort", f"-{name}") == f"{value}\n"
    assert cli.good(*words, f"{name}='{value}'", "-q") == f"{value}\n"
    assert cli.good(*words, f"{name}!='{value}'", "-q") == ""
    assert len(json.loads(cli.good(*words, "--json"))) == 1
    assert cli.good(*words).count("\n") >= 1
    assert "have no field 'nmae'" in cli.bad(*words, "nmae=1")


@pytest.mark.parametrize("what", DETAILS)
def test_what_is_inside_one_thing_takes_columns(cli: Cli, exemplary: FakeFarm, what: str) -> None:
    cli.patch.setenv("COLUMNS", "400")
    fields, words = EVERY_FIELD[what](0.0), DETAILS[what]
    name = next(iter(fields))
    heading = cli.good(*words, "--columns", "all").splitlines()[0]
    assert heading.lower().split() == list(fields)
    shown = json.loads(cli.good(*words, "--columns", name, "--json"))
    assert {tuple(line) for line in shown} == {(name,)}
    assert isinstance(json.loads(cli.good(*words, "--json")), dict)
    assert "have no field 'nmae'" in cli.bad(*words, "--columns", "nmae")


def test_settings_are_a_list_too(lonely_cli: Cli) -> None:
    assert lonely_cli.good("config", "show", "setting=batch", "--columns", "value,from").splitlines()[1:] == [
        "500    default"
    ]
    assert json.loads(lonely_cli.good("config", "show", "setting~api_u", "--columns", "from", "--json")) == [
        {"from": "FARM_API_URL"}
    ]
    assert lonely_cli.good("config", "show", "from=FARM_API_URL", "-q") == "api_url\n"
    assert "no field 'form'; did you mean from?" in lonely_cli.bad("config", "show", "form=default")


def test_what_is_played_takes_columns(lonely_cli: Cli) -> None:
    words = ("simulate", "--jobs", "1", "--farm", "L40S=1", "--columns", "name,kwh")
    assert lonely_cli.good(*words).splitlines()[0].split() == ["Name", "Kwh"]
    (shown,) = json.loads(lonely_cli.good(*words, "--json"))
    assert set(shown) == {"name", "kwh"}


def test_parked_messages_are_a_list_too(lonely_cli: Cli) -> None:
    message = Parked(
        id="3f9a",
        queue="farm.reports",
        by="blade-3",
        at=1.0,
        reason="wire 9",
        kind="",
        wire=9,
        size_bytes=512,
    )
    lonely_cli.patch.setenv("FARM_BROKER_URL", "amqp://localhost:9/farm")
    lonely_cli.patch.setattr(parked, "listed", lambda url: [message])
    assert lonely_cli.good("parked", "wire>8", "-q") == "3f9a\n"
    assert lonely_cli.good("parked", "list", "wire>9", "-q") == ""
    assert json.loads(lonely_cli.good("parked", "--columns", "to,by", "--json")) == [
        {"to": "farm.reports", "by": "blade-3"}
    ]
    for verb, told in (("replay", "replayed"), ("drop", "dropped")):
        lonely_cli.patch.setattr(parked, verb, lambda url, ids: len(ids))
        assert json.loads(lonely_cli.good("parked", verb, "3f9a", "--json")) == {told: 1}
    assert "no field 'wier'; did you mean wire?" in lonely_cli.bad("parked", "--sort", "wier")


def test_a_group_that_lists_still_names_the_nearest_command(lonely_cli: Cli) -> None:
    assert "Did you mean 'set'?" in lonely_cli.bad("limits", "sett", "arnold", "3")
    assert "Did you mean 'replay'?" in lonely_cli.bad("parked", "repaly")
    assert "set     " in lonely_cli.good("limits", "--help")


def test_why_a_task_went_where_it_did_is_told_in_words(cli: Cli, exemplary: FakeFarm) -> None:
    cli.patch.setenv("COLUMNS", "200")
    rival = examples.shown(examples.JOB_VIEW)
    rival["job"] |= {"id": 13, "name": "shot_020", "steps": [rival["job"]["steps"][0] | {"id": 40}]}
    exemplary.answers[("GET", "/jobs")] = [(200, page(rival), {})]
    out = " ".join(cli.good("explain", "12").split())
    assert "blade-3 succeeded 32 s 31 s-36 s 97 %" in out
    assert (
        "of 3 jobs' steps that suit this device about as well, first by priority, share and order, "
        "though one suits it better (99%); the other best match: job 13 shot_020"
    ) in out
    assert "at the least cost" in cli("explain", "12").err
    exemplary.answers[("GET", "/jobs")] = [(200, page(), {})]
    assert "a job that is older, or gone" in " ".join(cli.good("explain", "12").split())
    assert exemplary.last("GET", "/jobs/12/tasks").query["task"] == [str(examples.ATTEMPT.task_id)]


def test_the_order_is_a_field_s(cli: Cli, listed: FakeFarm) -> None:
    assert cli.good("jobs", "--sort", "-id", "-q") == "13\n12\n"
    assert cli.good("jobs", "--sort", "name", "-q") == "12\n13\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("jobs", "stat=failed"), "jobs have no field 'stat'; did you mean state?"),
        (("tasks", "12", "state=faild"), "did you mean failed?"),
        (("nodes", "--columns", "naem"), "nodes have no field 'naem'; did you mean name?"),
        (("events", "--sort", "knd"), "events have no field 'knd'; did you mean kind?"),
        (("nodes", "-q", "--json"), "leave --json"),
        (("events", "--follow", "--columns", "id"), "--follow"),
        (("tasks", "--frames", "1-20"), "need a job"),
    ],
)
def test_a_mistake_is_told_before_the_farm_is_asked(
    lonely_cli: Cli, words: tuple[str, ...], told: str
) -> None:
    error = lonely_cli.bad(*words)
    assert told in error


def test_a_filter_on_events_looks_further_back(cli: Cli, listed: FakeFarm) -> None:
    assert cli.good("events", "node=blade-3", "--limit", "5", "-q") == "90211\n"
    assert listed.last("GET", "/events").query["limit"] == ["1000"]


def test_the_fields_are_explained(lonely_cli: Cli) -> None:
    out = lonely_cli.good("fields", "nodes")
    assert "state=failed and node~gpu" in out
    assert all(name in out for name in NODE_FIELDS)
    assert "did you mean nodes?" in lonely_cli.bad("fields", "noeds")
    told = json.loads(lonely_cli.good("fields", "--json"))
    assert set(told) == set(EVERY_FIELD)
    assert set(FIELDS) == set(LISTS)


def test_nothing_matches(cli: Cli, listed: FakeFarm) -> None:
    assert cli.good("nodes", "vram>100G") == "no such nodes\n"
    assert cli.good("jobs", "name=nobody") == "no such jobs\n"
    assert json.loads(cli.good("nodes", "vram>100G", "--json")) == []


@pytest.mark.parametrize(
    ("label", "frames"),
    [
        ("7", (7,)),
        ("1-4", (1, 2, 3, 4)),
        ("-5", (-5,)),
        ("Frame=7 Tile=2", (7,)),
        ("Tile=2 Frame=7", (7,)),
        ("Tile=2", ()),
        ("MyFrame=2", ()),
        ("", ()),
        ("1-", ()),
        ("1-9:2", (1, 3, 5, 7, 9)),
    ],
)
def test_frames_are_read_from_labels(label: str, frames: tuple[int, ...]) -> None:
    assert label_frames(label) == frames


def test_counts_are_fields_of_jobs() -> None:
    fields = job_fields(1_796_000_060.0)
    view = a_view(a_job(), counts=Counts(done=3, failed=2))
    assert (fields["done"].of(view), fields["failed"].of(view), fields["tasks"].of(view)) == (3, 2, 5)
    assert fields["age"].told(view) == "1:00"


def test_failed_tasks_of_all_own_jobs_are_retried(cli: Cli, listed: FakeFarm) -> None:
    listed.answer("GET", "/farm", a_farm(user="anna"))
    changed = ChangedView(changed=10, job=an_ended_view(JobState.FAILED, id=JobId(13)))
    listed.answer("POST", "/jobs/13/retry", changed)

    out = cli.good("retry", "--failed")

    assert "job 13 shot_010: 10 tasks will be tried again" in out
    assert listed.last("GET", "/jobs").query["user"] == ["anna"]
    assert listed.last("POST", "/jobs/13/retry").body["states"] == ["failed"]
    assert not [seen for seen in listed.seen if seen.path == "/jobs/12/retry"]  # nothing failed there


def test_retry_wants_a_job(cli: Cli) -> None:
    assert "name a job, or say --failed" in cli.bad("retry")


def test_quiet_changes_say_nothing(cli: Cli, listed: FakeFarm) -> None:
    listed.answer("GET", "/jobs/13", an_ended_view(JobState.FAILED, id=JobId(13)))
    for number in (12, 13):
        listed.answer("POST", f"/jobs/{number}/cancel", ChangedView(changed=1, job=a_view()))
    assert cli.good("cancel", "12", "13", "--quiet") == ""
    assert len(json.loads(cli.good("cancel", "12", "13", "--json"))) == 2


def test_all_jobs_are_looked_up_before_the_first_is_changed(cli: Cli, listed: FakeFarm) -> None:
    assert "there is no job 99" in cli.bad("cancel", "12", "99")
    assert not [seen for seen in listed.seen if seen.method == "POST"]


def test_of_several_jobs_those_are_removed_that_can_be_and_the_others_told(
    cli: Cli, listed: FakeFarm
) -> None:
    listed.answer("GET", "/jobs/13", an_ended_view(JobState.FAILED, id=JobId(13)))
    listed.fail("DELETE", "/jobs/13", 409, "rejected", "job 13 is active: cancel it first")
    listed.answer("DELETE", "/jobs/12", None, status=204)
    run = cli("remove-job", "13", "12")
    assert run.status != 0
    assert "job 12" in run.out
    assert "job 13 is active: cancel it first" in run.err


def test_a_time_of_which_nothing_was_known_is_told_as_unknown(cli: Cli, exemplary: FakeFarm) -> None:
    cli.patch.setenv("COLUMNS", "200")
    attempt = examples.shown(examples.ATTEMPT)
    attempt["decision"] |= {"predicted_s": 1030.0, "upper_s": 4913.0}
    exemplary.answers[("GET", "/jobs/12/attempts")] = [(200, page(attempt), {})]
    assert "succeeded 32 s unknown 97 %" in " ".join(cli.good("explain", "12").split())
    assert cli.good("explain", "12", "expected>1s or worst>1s", "--quiet") == ""
    assert cli.good("explain", "12", "expected=none", "--quiet") != ""


def test_a_task_without_frames_is_not_called_by_its_number_instead(cli: Cli, exemplary: FakeFarm) -> None:
    cli.patch.setenv("COLUMNS", "200")
    only = examples.shown(examples.TASK) | {"id": examples.ATTEMPT.task_id, "label": ""}
    exemplary.answers[("GET", "/jobs/12/tasks")] = [(200, page(only), {})]
    out = " ".join(cli.good("explain", "12").split())
    assert "blade-3 succeeded" in out
    assert str(examples.ATTEMPT.task_id) not in out
    exemplary.answers[("GET", "/jobs/12/tasks")] = [(200, page(), {})]
    assert f"task {examples.ATTEMPT.task_id} blade-3" in " ".join(cli.good("explain", "12").split())
