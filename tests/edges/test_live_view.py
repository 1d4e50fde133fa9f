"""Keys, asking, and what becomes of a farm that stops answering."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import Forbidden, NotFound, Unavailable, UserError
from farm.live.feed import Feed
from farm.live.lists import lists, target
from farm.live.render import render
from farm.live.snapshot import Log, Memo, Snapshot, Throughput, Wants, fetch
from farm.live.view import PAGE, SORTS, Action, Pane, Target, Typing, View, keys, place, pressed
from farm.model.ids import JobId
from tests.edges.live_farm import FakeFarm, a_job, an_attempt
from tests.waiting import wait_until

IDS = {
    Pane.JOBS: [str(number) for number in range(30)],
    Pane.NODES: ["a", "b", "c"],
    Pane.EVENTS: [],
    Pane.TASKS: ["t1", "t2"],
    Pane.LOG: ["line"] * 100,
}
JOB = Target(id="7", name="job 7 shot", job_id=7)
TASK = Target(id="71", name="job 7 render 1", job_id=7, task_id=71)
NODE = Target(id="a b", name="a b", node_id="a b")


def after(*pressed_keys: str, view: View | None = None, target: Target = JOB) -> View:
    view = view or View()
    for key in pressed_keys:
        view, _ = pressed(view, key, IDS, target)
    return view


def asked(*pressed_keys: str, view: View | None = None, target: Target = JOB) -> Action | None:
    """What the last key asks of the farm; the ones before must ask nothing."""
    view = after(*pressed_keys[:-1], view=view, target=target)
    return pressed(view, pressed_keys[-1], IDS, target)[1]


def test_a_panes_key_focuses_then_enlarges_then_makes_it_small_again() -> None:
    assert after("n") == View(focus=Pane.NODES)
    assert after("n", "n") == View(focus=Pane.NODES, is_enlarged=True)
    assert after("n", "n", "n") == View(focus=Pane.NODES)
    assert after("n", "n", "e") == View(focus=Pane.EVENTS)


def test_the_cursor_stops_at_both_ends_and_follows_what_it_stands_on() -> None:
    assert after("up").cursor[Pane.JOBS] == 0
    assert after("down", "page-down").cursor[Pane.JOBS] == PAGE + 1
    assert after(*["page-down"] * 9).cursor[Pane.JOBS] == after("end").cursor[Pane.JOBS] == 29
    assert after("end", "home").cursor[Pane.JOBS] == 0
    assert after("n", *["down"] * 9).cursor[Pane.NODES] == 2
    assert after("e", "down").cursor[Pane.EVENTS] == 0
    view = after("down", "down")
    assert place(view, Pane.JOBS, ["9", "8", "2", "0"]) == 2, "its job has another place now"
    assert place(view, Pane.JOBS, ["9"]) == 0, "it has gone"
    assert place(view, Pane.JOBS, []) == 0


def test_enter_leads_from_a_job_to_its_tasks_to_the_output_and_escape_back() -> None:
    tasks = after("enter")
    assert (tasks.focus, tasks.job_id) == (Pane.TASKS, 7)
    log = after("down", "enter", view=tasks, target=TASK)
    assert (log.focus, log.task_id, log.task_name) == (Pane.LOG, 71, "job 7 render 1")
    assert after("up", "up", "down", view=log).cursor[Pane.LOG] == 1, "counted from the end"
    assert after("escape", view=log).focus is Pane.TASKS
    assert after("escape", "escape", view=log).focus is Pane.JOBS
    assert after("enter", view=View(), target=Target()).said == "no job is chosen"
    assert after("l", view=View(focus=Pane.JOBS)).said.startswith("no task is chosen")
    again = after("escape", "enter", view=replace(tasks, filters={Pane.TASKS: "x"}), target=JOB)
    assert again.filters == {Pane.TASKS: "x"}
    only = after("up", "/", *"error", "enter", view=log)
    assert (only.filters[Pane.LOG], only.cursor[Pane.LOG]) == ("error", 0), "its newest line first"
    assert after("escape", "enter", view=only, target=TASK).filters[Pane.LOG] == "error"
    elsewhere = after("escape", "enter", view=only, target=replace(TASK, task_id=72))
    assert elsewhere.filters[Pane.LOG] == "", "another task's output is shown whole"
    other = after("escape", "enter", view=tasks, target=replace(JOB, job_id=8))
    assert (other.job_id, other.cursor) == (8, {}), "another job's tasks begin at their top"


@pytest.mark.parametrize(
    ("key", "target", "method", "path", "body"),
    [
        ("p", JOB, "PATCH", "/jobs/7", {"is_paused": True}),
        ("p", replace(JOB, is_paused=True), "PATCH", "/jobs/7", {"is_paused": False}),
        ("c", JOB, "POST", "/jobs/7/cancel", {}),
        ("r", JOB, "POST", "/jobs/7/retry", {}),
        ("c", TASK, "POST", "/jobs/7/cancel", {"task_ids": [71]}),
        ("r", TASK, "POST", "/jobs/7/retry", {"task_ids": [71]}),
        ("d", NODE, "POST", "/nodes/a%20b/drain", {}),
        ("d", replace(NODE, is_drained=True), "POST", "/nodes/a%20b/undrain", {}),
    ],
)
def test_what_changes_the_farm_is_done_after_a_yes_and_only_then(
    key: str, target: Target, method: str, path: str, body: dict[str, object]
) -> None:
    asking = after(key, target=target).asking
    assert asking is not None
    assert target.name in asking.question
    assert asked(key, target=target) is None
    action = asked(key, "y", target=target)
    assert action is not None
    assert (action.method, action.path, action.body) == (method, path, body)
    for no in ("n", "escape", "enter", "q", " "):
        assert asked(key, no, target=target) is None
        assert after(key, no, target=target).asking is None


def test_a_priority_is_typed() -> None:
    assert asked("+", "9", "5", "backspace", "0", "enter") == Action(
        method="PATCH",
        path="/jobs/7",
        body={"priority": 90},
        done="job 7 shot has priority 90 now",
    )
    for wrong in ("101", "x", "", "-1", "²"):
        view = after("+", *wrong)
        assert pressed(view, "enter", IDS, JOB)[1] is None
        assert "0 to 100" in after("enter", view=view).said
    assert asked("+", "9", "escape") is None


def test_a_key_without_its_item_says_what_it_is_for() -> None:
    assert after("d").said == "d is for a node: choose one first"
    assert after("p", target=TASK).said.startswith("p is for a job")
    assert after("c", target=Target()).said.startswith("c is for a job or a task")


def test_a_filter_is_typed_and_escape_takes_it_away() -> None:
    view = after("/", *"user=Ann", "q", "backspace", "a", "enter")
    assert view.filters == {Pane.JOBS: "user=Anna"}
    assert after("/", view=view).typing == Typing(what="filter", text="user=Anna")
    assert after("/", "clear", "enter", view=view).filters == {Pane.JOBS: ""}
    assert after("/", "x", "escape", view=view).filters == view.filters
    assert after("escape", view=view).filters == {Pane.JOBS: ""}
    assert len((after("/", *"x" * 600).typing or Typing(what="")).text) == 500


def test_orders_go_round() -> None:
    seen = [after(*["o"] * times).sorts[Pane.JOBS] for times in range(1, len(SORTS[Pane.JOBS]) + 1)]
    assert seen == [*SORTS[Pane.JOBS][1:], ""]


def test_keys_are_read_also_when_an_arrow_comes_in_two_pieces() -> None:
    assert keys(b"jN\x1b[A\x1bOB\x1b[5~q\r\x7f") == (
        ["j", "N", "up", "down", "page-up", "q", "enter", "backspace"],
        b"",
    )
    found, rest = keys(b"n\x1b[")
    assert (found, keys(rest + b"Bq")) == (["n"], (["down", "q"], b""))


def test_letters_beyond_ascii_come_whole() -> None:
    assert keys("ä渲".encode()) == (["ä", "渲"], b"")
    _, rest = keys("ä".encode()[:1])
    assert keys(rest + "ä".encode()[1:]) == (["ä"], b"")
    assert keys(b"\xffq") == (["q"], b"")


def test_a_lone_escape_does_not_swallow_the_next_key() -> None:
    _, rest = keys(b"\x1b")
    assert keys(rest + b"q") == (["q"], b"")


@given(st.binary(max_size=60))
def test_no_bytes_from_a_keyboard_do_harm(typed: bytes) -> None:
    found, rest = keys(typed)
    after(*found)
    assert len(rest) < 16


@given(st.lists(st.sampled_from([*"jnes?tl/opcr+dyqx1", "enter", "escape", "up", "end", "backspace"])))
def test_no_keys_lead_astray(typed: list[str]) -> None:
    view = View()
    for key in typed:
        shown = fetched()
        listed = lists(shown, view)
        view, action = pressed(view, key, listed.ids, target(listed, view))
        assert action is None or re.match("/jobs/[0-9]+|/nodes/[a-z]", action.path)
        assert view.asking is None or re.search(
            "(job|node|blade|drain|work).* .*[a-z0-9]", view.asking.question
        )
        render(shown, 80, 24, colour=False, view=view)


def test_in_the_output_of_what_is_stalled_its_own_job_is_meant() -> None:
    stalled = replace(TASK, name="job 9 film 3", job_id=9, task_id=91)
    log = after("s", "enter", view=View(focus=Pane.TASKS, job_id=7), target=stalled)
    meant = target(lists(Snapshot(), log), log)
    assert (meant.job_id, meant.task_id) == (9, 91)
    asked, _ = pressed(log, "c", {}, meant)
    assert asked.asking is not None
    assert (asked.asking.question, asked.asking.path) == ("cancel job 9 film 3", "/jobs/9/cancel")
    assert after("escape", "escape", view=log).job_id == 7


@cache
def fetched() -> Snapshot:
    return fetch(FakeFarm().get, Wants(job_id=7, task_id=7001))


def test_lists_are_filtered_and_ordered_by_the_fields_of_the_command_line() -> None:
    view = View(
        filters={
            Pane.JOBS: "state=active",
            Pane.NODES: "gpus>0",
            Pane.TASKS: "state=failed",
            Pane.EVENTS: "x=",
        },
        sorts={Pane.JOBS: "-progress"},
        job_id=7,
    )
    listed = lists(fetched(), view)
    assert [line.job.id for line in listed.jobs] == [8, 10, 7, 9]
    assert listed.ids[Pane.NODES] == ["gpu-01", "gpu-02"]
    assert listed.ids[Pane.TASKS] == ["7004"]
    assert list(listed.wrong) == [Pane.EVENTS]
    assert lists(fetched(), replace(view, job_id=8)).tasks == (), (
        "those of another job are not shown as its own"
    )


def test_a_feed_asks_for_what_is_looked_at_and_does_what_it_is_told() -> None:
    farm = FakeFarm()
    feed = Feed(farm.get, interval_s=60, notify=lambda: None, send=farm.send)
    feed.start()
    try:
        wait_until(lambda: feed.latest().farm, "the first answer")
        assert (feed.latest().tasks, feed.latest().log) == ((), None)
        feed.want(Wants(job_id=7, task_id=7001))
        wait_until(lambda: feed.latest().log, "the log, long before the interval is over")
        assert len(feed.latest().tasks) == 12
        action = Action(method="POST", path="/jobs/7/cancel", done="job 7 is cancelled")
        feed.act(action)
        wait_until(lambda: feed.latest().answer == "job 7 is cancelled", "the answer")
        assert farm.sent == [("POST", "/jobs/7/cancel", {})]
        feed.hush()
        assert feed.latest().answer == ""
        farm.reply = {"changed": 3}
        feed.act(action)
        wait_until(lambda: feed.latest().answer == "job 7 is cancelled: 3 tasks", "the count")
        farm.refusal = Forbidden("job 7 belongs to anna")
        feed.act(action)
        wait_until(lambda: feed.latest().has_refused, "the refusal")
        assert feed.latest().answer == "job 7 belongs to anna"
    finally:
        feed.stop()


def test_what_is_stalled_leads_to_its_output() -> None:
    view = after("s")
    assert view.focus is Pane.STALLED
    listed = lists(fetched(), view)
    chosen = target(listed, view)
    assert (chosen.job_id, chosen.task_id) == (7, 7002)
    assert pressed(view, "l", listed.ids, chosen)[0].task_id == 7002

    def older(path: str, params: Mapping[str, Any]) -> Any:
        if path == "/stalled":
            raise NotFound("there is no such route")
        return FakeFarm().get(path, params)

    assert fetch(older).stalled == ()


def test_what_is_stalled_is_filtered_and_ordered() -> None:
    def shown(*pressed_keys: str) -> tuple[list[int], str]:
        listed = lists(fetched(), after("s", *pressed_keys))
        return [line.attempt.task_id for line in listed.stalled], listed.wrong.get(Pane.STALLED, "")

    assert shown() == ([7002, 7001], "")
    assert shown("/", *"kind=slow", "enter") == ([7001], "")
    assert shown("/", *"job=7 and done~another", "enter") == ([7002], "")
    assert shown("/", *"for>1m", "enter") == ([7002], "")
    assert shown("/", *"kind=slow", "enter", "escape", "s") == ([7001], "")
    assert shown("o")[0] == [7002, 7001]
    told, wrong = shown("/", *"knd=slow", "enter")
    assert (told, "kind" in wrong) == ([7002, 7001], True)


def test_a_log_is_read_on_where_it_ended_and_anew_for_another_attempt() -> None:
    farm = FakeFarm()
    first = fetch(farm.get, Wants(task_id=7001)).log
    assert first is not None
    assert first.lines[-2:] == ("Fra:31 Mem:512M | Sample 60/512", "")
    again = fetch(farm.get, Wants(task_id=7001), first).log
    assert again == first
    farm.attempts[0] = an_attempt(1, id="another")
    farm.log = "new\r\nhalf"
    assert (fetch(farm.get, Wants(task_id=7001), first).log or first).lines == ("new", "half")
    farm.attempts = []
    assert fetch(farm.get, Wants(task_id=7001), first).log == Log(task_id=7001)


def test_jobs_that_may_run_stand_first_by_priority_and_ended_ones_last() -> None:
    assert [line.job.id for line in fetch(FakeFarm().get).jobs] == [7, 8, 9, 10, 11, 6, 5]


def test_an_answer_that_cannot_be_read_is_said_with_its_place() -> None:
    farm = FakeFarm()
    farm.jobs[0]["job"]["settings"] = {"priority": "high"}

    with pytest.raises(UserError, match=r"about jobs \(0.job.settings.priority.*same version"):
        fetch(farm.get)
    with pytest.raises(UserError, match="has no items"):
        fetch(lambda path, params: FakeFarm().get(path, params) if path == "/farm" else {})


def test_a_job_that_has_not_changed_is_not_read_anew() -> None:
    farm, memo = FakeFarm(), Memo()
    first = {line.job.id: line for line in fetch(farm.get, memo=memo).jobs}
    farm.jobs[0] = a_job(7, counts={"done": 81})
    del farm.jobs[1]
    second = {line.job.id: line for line in fetch(farm.get, memo=memo).jobs}
    assert second[JobId(7)].counts.done == 81
    assert second[JobId(9)] is first[JobId(9)]
    assert set(memo.jobs) == set(second), "nothing is kept of jobs that are gone"


def test_throughput_counts_done_tasks_of_the_last_minute() -> None:
    rate = Throughput()
    assert rate.add(0, {JobId(1): 5}) is None
    assert rate.add(10, {JobId(1): 7, JobId(2): 100}) == 12, "a job seen for the first time adds nothing"
    assert rate.add(20, {JobId(1): 3, JobId(2): 101}) == 9, "a requeued job does not count backwards"
    for at in range(30, 200, 10):
        last = rate.add(at, {})
    assert last == 0


@contextmanager
def feeding(farm: FakeFarm) -> Iterator[tuple[Feed, Callable[[Callable[[Snapshot], bool]], Snapshot]]]:
    told = threading.Event()
    feed = Feed(farm.get, interval_s=0.01, notify=told.set)

    def until(holds: Callable[[Snapshot], bool]) -> Snapshot:
        deadline = time.monotonic() + 10
        while not holds(last := feed.latest()):
            assert time.monotonic() < deadline, f"last seen: {last}"
            told.wait(0.1)
            told.clear()
        return last

    feed.start()
    try:
        yield feed, until
    finally:
        feed.stop()


def test_a_farm_that_stops_answering_keeps_its_last_picture_until_it_is_back() -> None:
    farm = FakeFarm()
    with feeding(farm) as (_, until):
        until(lambda s: s.farm is not None)

        farm.error = Unavailable("cannot reach the server")
        lost = until(lambda s: s.lost_s is not None)
        assert (len(lost.jobs), lost.lost_reason) == (7, "cannot reach the server")
        longer = until(lambda s: (s.lost_s or 0) > (lost.lost_s or 0))
        assert longer.jobs == lost.jobs

        farm.jobs.append(a_job(99))
        farm.error = None
        back = until(lambda s: s.lost_s is None)
        assert any(line.job.id == 99 for line in back.jobs)


def test_a_farm_that_hangs_is_missed_before_the_request_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody refuses the connection: a frozen server, or a cable that was pulled."""
    monkeypatch.setattr("farm.live.feed._PATIENCE_S", 0.2)
    farm, may_answer = FakeFarm(), threading.Event()
    may_answer.set()

    class Frozen(FakeFarm):
        def get(self, path: str, params: Mapping[str, Any]) -> Any:
            assert may_answer.wait(60)
            return farm.get(path, params)

    with feeding(Frozen()) as (_, until):
        until(lambda s: s.farm is not None)
        may_answer.clear()
        lost = until(lambda s: s.lost_s is not None)
        assert (lost.lost_reason, len(lost.jobs)) == ("no answer", 7)
        may_answer.set()
        until(lambda s: s.lost_s is None)


def test_a_refused_token_ends_the_view() -> None:
    farm = FakeFarm()
    farm.error = Forbidden("the token was withdrawn")
    with feeding(farm) as (_, until), pytest.raises(Forbidden, match="withdrawn"):
        until(lambda s: False)


def test_nothing_is_told_after_stop() -> None:
    told = []
    asked, may_answer = threading.Event(), threading.Event()

    def get(path: str, params: Mapping[str, Any]) -> Any:
        asked.set()
        assert may_answer.wait(10)
        return FakeFarm().get(path, params)

    feed = Feed(get, interval_s=0.001, notify=lambda: told.append(1))
    feed.start()
    assert asked.wait(10)
    feed.stop()
    may_answer.set()
    feed._thread.join(10)

    assert not feed._thread.is_alive()
    assert told == []
