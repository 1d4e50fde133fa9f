"""What commands print: it fits 80 columns, whatever people called their things, and scripts get JSON."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import unicodedata

import pytest
from rich.cells import cell_len

from farm.cli import show
from farm.control.access_views import NewTokenView, TokenView
from farm.control.views import ChangedView, LogPiece, LogView, WhyLine, WhyView
from farm.model.ids import NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.states import JobState, TaskState
from farm.model.work import Counts, JobSettings
from tests.edges.cli_farm import (
    Cli,
    FakeFarm,
    a_job,
    a_node,
    a_task,
    a_view,
    an_attempt,
    an_ended_view,
    an_event,
    page,
)
from tests.waiting import wait_until

NAMES = {
    "markup": "[/] [bold red]shot[/bold red] :smile: {x}",
    "escape": "shot\x1b[31m\x1b]0;title\x07\x9b31m\r\nrm -rf",
    "bidi": "shot_\u202egnp.\u2066exe\u200f\u2028next",
    "long": "é" * 127 + "x",
    "wide": "渲染農場" * 20,
    "combining": "e\u0301" * 80,
    "surrogate": "shot_\udce9",
    "blank": " ",
}
FARM = (sys.executable, "-m", "farm.main")
TABLES = (
    ("jobs",),
    ("job", "12"),
    ("tasks", "12"),
    ("why", "12"),
    ("nodes",),
    ("node", "blade-3"),
    ("token", "list"),
)
LINES = (
    ("events",),
    ("logs", "12"),
    ("pause", "12"),
    ("priority", "12", "80"),
    ("cancel", "12"),
    ("retry", "12"),
    ("release", "12"),
    ("requeue", "12", "--all"),
    ("wait", "12"),
    ("drain", "blade-3"),
    ("token", "create", "laptop"),
)


def lay_out(farm: FakeFarm, name: str) -> None:
    """Everything that a person, a scene or a renderer can name is called `name`."""
    job = a_job(
        name=name,
        reason=name,
        settings=JobSettings(user=name, pool=name),
        output_directories=(f"/{name}",),
    )
    two = tuple(
        type(job.steps[0])(
            id=job.steps[0].id,
            job_id=job.id,
            name=f"{name}{number}",
            position=number,
            depends_on=(name,) * number,
            counts=Counts(done=1, failed=1, held=1),
            frames="1-250",
        )
        for number in range(2)
    )
    view = a_view(a_job(name=name, reason=name, settings=job.settings, steps=two), waiting=name)
    ended = an_ended_view(name=name, reason=name)
    device = Device(id="cpu", kind=DeviceKind.CPU, model=name)
    node = a_node(
        reason=name,
        running=(name,) * 3,
        agent_version=name,
        capabilities=Capabilities(
            devices=(device,), pools=(name,), software={name: name}, attributes={name: (name,)}
        ),
    )
    task = a_task(reason=name, warnings=(name,), label=name, step=name, node_id=name)
    farm.answer("GET", "/jobs", page(view, a_view(job)))
    farm.answer("GET", "/jobs/12", view)
    farm.answer("GET", "/jobs/12", ended)  # so that `wait` ends
    farm.answer("GET", "/jobs/12/tasks", page(task))
    farm.answer(
        "GET",
        "/jobs/12/why",
        WhyView(lines=(WhyLine(step=name, text=name, count=3, node_ids=(NodeId(name),)),)),
    )
    farm.answer("GET", "/jobs/12/attempts", page(an_attempt()))
    farm.answer("GET", "/tasks/4711", task)
    attempt = an_attempt()
    farm.answer(
        "GET",
        f"/attempts/{attempt.id}/log",
        LogView(chunks=(LogPiece(sequence=0, text=name),), is_ended=True),
    )
    farm.answer("GET", f"/attempts/{attempt.id}/log", LogView(chunks=(), is_ended=True))
    farm.answer("GET", "/nodes", page(node))
    farm.answer("POST", "/nodes/blade-3/drain", node)
    farm.answer("GET", "/events", page(an_event(text=name, actor=name)))
    farm.answer("PATCH", "/jobs/12", view)
    for verb in ("cancel", "retry"):
        farm.answer("POST", f"/jobs/12/{verb}", ChangedView(changed=3, job=view))
    farm.answer("GET", "/tokens", page(TokenView(name=name, user=name, role="user")))
    farm.answer("POST", "/tokens", NewTokenView(token="rl_new", name="laptop", user=name, role="user"))


def is_safe(text: str) -> bool:
    return all(
        char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") for char in text
    ) and not set(text) & set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("words", [*TABLES, *LINES], ids=" ".join)
def test_no_name_can_harm_a_terminal(cli: Cli, farm: FakeFarm, kind: str, words: tuple[str, ...]) -> None:
    lay_out(farm, NAMES[kind])
    result = cli(*words)
    assert result.status == 0, result.err
    assert is_safe(result.out)
    assert is_safe(result.err)
    if kind == "markup" and words not in (
        ("token", "create", "laptop"),
        ("drain", "blade-3"),
        ("logs", "12"),
    ):
        assert "[/]" in result.out
    if words in TABLES:
        wide = [line for line in result.out.splitlines() if cell_len(line) > 80]
        assert not wide


@pytest.mark.parametrize("words", [*TABLES, *LINES], ids=" ".join)
def test_json_is_one_line_of_ascii(cli: Cli, farm: FakeFarm, words: tuple[str, ...]) -> None:
    if words[0] == "logs":
        pytest.skip("a log is text")
    lay_out(farm, NAMES["bidi"])
    out = cli.good(*words, "--json")
    assert out.isascii()
    assert out.count("\n") == 1
    json.loads(out)


def test_json_is_the_farms_own_object(cli: Cli, farm: FakeFarm) -> None:
    view = json.loads(json.dumps(page(a_view())["items"][0]))
    farm.answer("GET", "/jobs/12", view | {"novelty": [1]})
    assert json.loads(cli.good("job", "12", "--json")) == view | {"novelty": [1]}


def test_a_job_is_shown_with_all_that_matters(cli: Cli, farm: FakeFarm) -> None:
    lay_out(farm, "x")
    farm.answers["GET", "/jobs/12"] = []
    farm.answer(
        "GET",
        "/jobs/12",
        a_view(
            a_job(settings=JobSettings(user="anna", max_running=4)),
            counts=Counts(done=12, failed=1, ready=237),
        ),
    )
    farm.answers["GET", "/jobs/12/tasks"] = []
    farm.answer("GET", "/jobs/12/tasks", page(a_task(warnings=("cannot find //tex/wood.png",))))
    out = cli.good("job", "12")
    for part in (
        "shot_010",
        "anna",
        "compute",
        "12 done, 1 failed, 237 ready",
        "1:00:00-1:06:40",
        "at most 4 at once",
        "41 s (half)",
        "/projects/shot_010/render/shot_####.png",
        "7 on blade-3: the camera is missing",
        "1 task: cannot find //tex/wood.png",
    ):
        assert part in out, part


def test_what_goes_on_is_listed_however_old_it_is(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs", page(an_ended_view()))
    farm.answer("GET", "/jobs", page(a_view(a_job(id=3, name="old_but_running"))))
    assert "old_but_running" in cli.good("jobs")
    assert set(farm.seen[1].query["state"]) == {"active", "paused", "waiting"}


def test_a_paused_job_shows_its_state_and_a_waiting_one_why(cli: Cli, farm: FakeFarm) -> None:
    cli.patch.setenv("COLUMNS", "140")
    paused = a_view(a_job(state=JobState.PAUSED))
    waiting = a_view(waiting="12 nodes: VRAM 24 GB < 31 GB needed", eta_s=None)
    farm.answer("GET", "/jobs", page(paused, waiting))
    out = cli.good("jobs")
    assert "paused" in out
    assert "VRAM 24 GB < 31 GB needed" in out


def test_an_empty_list_says_so(cli: Cli, farm: FakeFarm) -> None:
    for path in ("/jobs", "/nodes", "/tokens", "/events"):
        farm.answer("GET", path, page())
    assert cli.good("jobs") == "no jobs\n"
    assert "farm worker" in cli.good("nodes")
    assert cli.good("token", "list") == "no tokens\n"
    assert "nothing has happened" in cli("events").err


def test_a_pipe_gets_no_colour_and_no_blanks_at_the_end(cli: Cli, farm: FakeFarm) -> None:
    lay_out(farm, "x")
    out = cli.good("jobs")
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize("is_plain", [False, True], ids=["colour", "no-colour"])
def test_a_terminal_gets_colour_unless_it_says_no(cli: Cli, farm: FakeFarm, is_plain: bool) -> None:
    farm.answer("GET", "/nodes", page(a_node()))
    environment = dict(os.environ, TERM="xterm-256color", **({"NO_COLOR": "1"} if is_plain else {}))
    out = on_a_terminal("nodes", environment=environment)
    assert b"online" in out
    assert (b"\x1b[32m" in out) is not is_plain


def test_waiting_on_a_terminal_shows_a_bar_and_the_reason(cli: Cli, farm: FakeFarm) -> None:
    waiting = a_view(counts=Counts(ready=250), waiting="no \x1b[2Jnode is online")
    for view in (waiting, waiting, waiting, a_view(), an_ended_view()):
        farm.answer("GET", "/jobs/12", view)
    out = on_a_terminal("wait", "12", environment=dict(os.environ, TERM="xterm-256color"))
    assert b"250/250" in out
    assert b"no \\x1b[2Jnode" in out
    assert b"\x1b[2J" not in out
    assert b"job 12 shot_010: done" in out


def on_a_terminal(*words: str, environment: dict[str, str]) -> bytes:
    """What `farm` writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([*FARM, *words], stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    out = b""
    try:
        while piece := _read(ours):
            out += piece
        assert child.wait(30) == 0, out
    finally:
        os.close(ours)
        child.kill()
        child.wait(10)
    return out


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux's end of a terminal whose other side is closed
        return b""


def test_a_device_that_cannot_tell_its_load_is_not_idle(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/nodes", page(a_node(loads=())))
    out = cli.good("nodes")
    assert "n/a" in out
    assert "0 %" not in out


@pytest.mark.parametrize(
    ("words", "needle"),
    [
        (("job", "99"), "newest: 12 shot_010"),
        (("job", "99999999999999"), "newest: 12 shot_010"),
        (("job", "shot_010"), "did you mean 12 shot_010"),
        (("job", "12x"), "a job is named by its number"),
        (("node", "blade3"), "did you mean blade-3"),
        (("drain", "nonsense"), "there are blade-3"),
        (("tasks", "12", "--state", "runing"), "did you mean running"),
        (("jobs", "--state", "finished"), "active"),
        (("tasks", "12", "--frames", "1-"), "the last frame is missing"),
        (("logs", "12", "--frame", "1", "--task", "2"), "choose one of"),
        (("requeue", "12"), "--all"),
        (("token", "create", "a b"), "letters"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_name_gets_the_nearest_right_one(
    cli: Cli, farm: FakeFarm, words: tuple[str, ...], needle: str
) -> None:
    farm.answer("GET", "/jobs", page(a_view()) if words != ("job", "12x") else page())
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("GET", "/nodes", page(a_node()))
    assert needle in cli.bad(*words)


def test_the_log_of_what_runs_comes_first_then_of_what_failed(cli: Cli, farm: FakeFarm) -> None:
    lay_out(farm, "x")
    attempt = an_attempt()
    farm.answers["GET", "/jobs/12/attempts"] = []
    farm.answer("GET", "/jobs/12/attempts", page())
    farm.answer("GET", "/jobs/12/attempts", page(an_attempt(assigned_at=5.0, id="0" * 8), attempt))
    assert cli.good("logs", "12") == "x"
    asked = [seen.query["state"] for seen in farm.seen if seen.path == "/jobs/12/attempts"]
    assert "running" in asked[0]
    assert "failed" in asked[1]


def test_a_job_that_has_not_run_says_why_there_is_no_log(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", a_view(waiting="no node is online"))
    farm.answer("GET", "/jobs/12/attempts", page())
    assert "no node is online" in cli.bad("logs", "12")


@pytest.mark.parametrize(("tail", "kept"), [("0", ""), ("1", "c\n"), ("2", "b\nc\n"), ("9", "a\nb\nc\n")])
def test_the_tail_of_a_log_is_its_last_lines(cli: Cli, farm: FakeFarm, tail: str, kept: str) -> None:
    lay_out(farm, "x")
    path = f"/attempts/{an_attempt().id}/log"
    farm.answers["GET", path] = []
    farm.answer("GET", path, LogView(chunks=(LogPiece(sequence=0, text="a\nb"),), is_ended=True))
    farm.answer("GET", path, LogView(chunks=(LogPiece(sequence=1, text="\nc\n"),), is_ended=True))
    farm.answer("GET", path, LogView(chunks=(), is_ended=True))
    assert cli.good("logs", "12", "--tail", tail) == kept


def test_a_log_is_one_object_for_scripts(cli: Cli, farm: FakeFarm) -> None:
    lay_out(farm, "x")
    attempt = an_attempt()
    path = f"/attempts/{attempt.id}/log"
    farm.answers["GET", path] = []
    farm.answer("GET", path, LogView(chunks=(LogPiece(sequence=0, text="a\x1b[2J\nb\n"),), is_ended=True))
    farm.answer("GET", path, LogView(chunks=(), is_ended=True))
    assert json.loads(cli.good("logs", "12", "--json")) == {
        "attempt_id": attempt.id,
        "task_id": attempt.task_id,
        "node_id": attempt.node_id,
        "state": attempt.state,
        "text": "a\x1b[2J\nb\n",
    }
    assert "leave --json away" in cli.bad("logs", "12", "--json", "--follow")


def test_a_log_is_followed_until_its_attempt_ends(cli: Cli, farm: FakeFarm) -> None:
    lay_out(farm, "x")
    path = f"/attempts/{an_attempt().id}/log"
    farm.answers["GET", path] = []
    farm.answer("GET", path, LogView(chunks=(LogPiece(sequence=0, text="one\n"),), is_ended=False))
    farm.answer("GET", path, LogView(chunks=(), is_ended=False))
    farm.answer("GET", path, LogView(chunks=(LogPiece(sequence=1, text="two\n"),), is_ended=True))
    farm.answer("GET", path, LogView(chunks=(), is_ended=True))
    assert cli.good("logs", "12", "--follow") == "one\ntwo\n"
    assert farm.seen[-1].query["after"] == ["1"]


def test_events_are_followed_across_a_lost_connection(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/events", page(an_event(id=1, text="first")))
    told = json.dumps(page(an_event(id=2, text="second"))["items"][0])
    farm.answer("GET", "/events/stream", f"id: 2\nevent: task-failed\ndata: {told}\n\n")
    farm.answer("GET", "/events/stream", ": nothing\n\n")
    child = subprocess.Popen(
        [*FARM, "events", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(
            lambda: sum(seen.path == "/events/stream" for seen in farm.seen) >= 2, "asked again", timeout_s=60
        )
    finally:
        child.terminate()
        out = child.communicate(timeout=30)[0].decode()
    assert "first" in out
    assert out.count("second") == 1
    assert farm.last("GET", "/events/stream").query["after"] == ["2"]


def test_changes_say_what_was_changed(cli: Cli, farm: FakeFarm) -> None:
    lay_out(farm, "shot")
    farm.answers["GET", "/jobs/12"] = farm.answers["GET", "/jobs/12"][:1]
    assert "3 tasks cancelled" in cli.good("cancel", "12", "--frames", "5,1-3")
    assert farm.last("POST", "/jobs/12/cancel").body == {"frames": "1-3,5", "step": None}
    cli.good("release", "12", "--frames", "7")
    assert farm.last("POST", "/jobs/12/retry").body["states"] == ["held"]
    cli.good("requeue", "12", "--all")
    assert "done" in farm.last("POST", "/jobs/12/retry").body["states"]
    cli.good("pause", "12")
    assert farm.last("PATCH", "/jobs/12").body == {"is_paused": True}


def test_nothing_is_changed_when_one_of_several_jobs_is_wrong(cli: Cli, farm: FakeFarm) -> None:
    lay_out(farm, "x")
    cli.bad("pause", "12", "13")
    assert all(seen.method == "GET" for seen in farm.seen)


def test_a_new_token_alone_is_on_standard_output(cli: Cli, farm: FakeFarm) -> None:
    lay_out(farm, "anna")
    assert cli.good("token", "create", "laptop", "--user", "anna") == "rl_new\n"
    assert farm.last("POST", "/tokens").body == {"name": "laptop", "user": "anna", "role": "user"}
    farm.answer("DELETE", "/tokens/laptop", None, status=204)
    assert "revoked" in cli.good("token", "revoke", "laptop")


def test_counts_name_what_went_wrong() -> None:
    assert show.counted(Counts(done=3, failed=2, held=1, ready=4)).plain == "3/10, 2 failed, 1 held"
    assert show.every_count(Counts()) == "none"


def test_every_state_that_can_be_listed_is_a_state(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("GET", "/jobs/12/tasks", page())
    for state in TaskState:
        cli.good("tasks", "12", "--state", state)
        assert farm.last("GET", "/jobs/12/tasks").query["state"] == [state]
