"""Lists: filters, columns, order, names alone; and what is asked of the farm for them."""

from __future__ import annotations

import json

import pytest

from farm.control.fields import NODE_FIELDS, TASK_FIELDS, event_fields, job_fields, label_frames
from farm.control.views import ChangedView
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


def test_every_field_can_be_a_column(cli: Cli, listed: FakeFarm) -> None:
    cli.patch.setenv("COLUMNS", "400")
    for words, fields in (
        (("jobs",), job_fields(0)),
        (("tasks", "12"), TASK_FIELDS),
        (("nodes",), NODE_FIELDS),
        (("events",), event_fields(0)),
    ):
        heading = cli.good(*words, "--columns", "all").splitlines()[0]
        assert heading.lower().split() == list(fields)


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
    told = json.loads(lonely_cli.good("fields", "--json"))
    assert set(told) == {"jobs", "tasks", "nodes", "events", "stalled"}


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
