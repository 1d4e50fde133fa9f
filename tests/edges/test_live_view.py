"""Keys, asking, and what becomes of a farm that stops answering."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import Forbidden, Unavailable, UserError
from farm.live.feed import Feed
from farm.live.snapshot import Snapshot, Throughput, fetch
from farm.live.view import PAGE, Pane, View, keys, pressed
from farm.model.ids import JobId
from tests.edges.live_farm import FakeFarm, a_job

SIZES = {Pane.JOBS: 30, Pane.NODES: 3, Pane.EVENTS: 0}


def after(*pressed_keys: str, view: View | None = None) -> View:
    view = view or View()
    for key in pressed_keys:
        view = pressed(view, key, SIZES)
    return view


def test_a_panes_key_focuses_then_enlarges_then_makes_it_small_again() -> None:
    assert after("n") == View(focus=Pane.NODES)
    assert after("n", "n") == View(focus=Pane.NODES, is_enlarged=True)
    assert after("n", "n", "n") == View(focus=Pane.NODES)
    assert after("n", "n", "e") == View(focus=Pane.EVENTS)


def test_scrolling_stops_at_both_ends() -> None:
    assert after("up").scroll[Pane.JOBS] == 0
    assert after("down", "page-down").scroll[Pane.JOBS] == PAGE + 1
    assert after(*["page-down"] * 9).scroll[Pane.JOBS] == 29
    assert after("n", *["down"] * 9).scroll[Pane.NODES] == 2
    assert after("e", "down").scroll[Pane.EVENTS] == 0


def test_keys_are_read_also_when_an_arrow_comes_in_two_pieces() -> None:
    assert keys(b"jN\x1b[A\x1bOB\x1b[5~q") == (["j", "n", "up", "down", "page-up", "q"], b"")
    found, rest = keys(b"n\x1b[")
    assert (found, keys(rest + b"Bq")) == (["n"], (["down", "q"], b""))


def test_a_lone_escape_does_not_swallow_the_next_key() -> None:
    _, rest = keys(b"\x1b")
    assert keys(rest + b"q") == (["q"], b"")


@given(st.binary(max_size=60))
def test_no_bytes_from_a_keyboard_do_harm(typed: bytes) -> None:
    found, rest = keys(typed)
    after(*found)
    assert len(rest) < 16


def test_jobs_that_may_run_stand_first_by_priority_and_ended_ones_last() -> None:
    assert [line.job.id for line in fetch(FakeFarm().get).jobs] == [7, 8, 9, 10, 11, 6, 5]


def test_an_answer_that_cannot_be_read_is_said_with_its_place() -> None:
    farm = FakeFarm()
    farm.jobs[0]["job"]["settings"] = {"priority": "high"}

    with pytest.raises(UserError, match=r"about jobs \(0.job.settings.priority.*same version"):
        fetch(farm.get)
    with pytest.raises(UserError, match="has no items"):
        fetch(lambda path, params: FakeFarm().get(path, params) if path == "/farm" else {})


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
