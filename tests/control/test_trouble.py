"""What is worth a line in the log of a trouble that lasts."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.control.scheduler import Scheduler
from farm.errors import Unavailable
from farm.settings import load_settings
from farm.store.engine import open_engine
from farm.trouble import AGAIN_S, MOST_TEXTS, SELDOM_S, Trouble


def told_at(trouble: Trouble, until_s: int, every_s: int = 3) -> list[int]:
    return [now for now in range(0, until_s, every_s) if trouble.is_news("it is away", now)]


def test_the_same_is_told_at_once_and_then_more_and_more_seldom() -> None:
    assert told_at(Trouble(), 600) == [0, 30, 90, 210, 450]


def test_it_is_never_silent_for_long() -> None:
    times = told_at(Trouble(), 100_000)
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == sorted(gaps)
    assert SELDOM_S <= gaps[-1] < SELDOM_S + 3


def test_other_words_are_told_at_once() -> None:
    trouble = Trouble()
    assert trouble.is_news("the database is away", 0)
    assert trouble.is_news("the broker is away", 1)
    assert not trouble.is_news("the database is away", 2)


def test_words_that_change_each_time_do_not_fill_the_log() -> None:
    trouble = Trouble()
    lines = sum(
        trouble.is_news(f"no confirm for {number} messages", number) for number in range(int(AGAIN_S))
    )
    assert lines == MOST_TEXTS


def test_its_end_is_told_once_with_how_long_it_was_and_the_next_one_begins_anew() -> None:
    trouble = Trouble()
    assert trouble.lasted_s(0) is None, "there was none"
    assert trouble.is_news("it is away", 10)
    assert not trouble.is_news("it is away", 25)
    assert trouble.lasted_s(34, settled_s=10) is None, "well for a moment only"
    assert trouble.lasted_s(35, settled_s=10) == 15
    assert trouble.lasted_s(1_000) is None
    assert trouble.is_news("it is away", 1_001)
    assert not trouble.is_news("it is away", 1_001 + AGAIN_S - 1)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans(), st.sampled_from("abc")), max_size=60))
def test_each_trouble_is_told_of_before_its_end_is(steps: list[tuple[float, bool, str]]) -> None:
    trouble, now, is_open = Trouble(), 0.0, False
    for pause_s, is_well, text in steps:
        now += pause_s
        if is_well:
            lasted_s = trouble.lasted_s(now)
            assert (lasted_s is None) or (is_open and lasted_s >= 0)
            is_open = is_open and lasted_s is None
        else:
            assert trouble.is_news(text, now) or is_open, "the first line of a trouble is told"
            is_open = True


class _Hours:
    """A clock and a stop event in one: whoever waits makes time pass."""

    def __init__(self, end_s: float) -> None:
        self.now = 0.0
        self._end_s = end_s

    def is_set(self) -> bool:
        return self.now >= self._end_s

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.is_set()


class _AwayBroker:
    """An intake that cannot reach its broker until then."""

    is_connected = False

    def __init__(self, hours: _Hours, back_s: float) -> None:
        self._hours, self._back_s = hours, back_s

    def drain(self, timeout_s: float, most: int, *, linger_s: float = 0.0) -> list[bytes]:
        self._hours.now += max(timeout_s, 0.1)
        if self._hours.now < self._back_s:
            raise Unavailable("the broker cannot be reached: [Errno 111] Connection refused")
        return []

    def acknowledge(self) -> None: ...

    def close(self) -> None: ...


def test_a_scheduler_without_a_broker_does_not_fill_its_log(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hours = _Hours(700)
    engine = open_engine(sqlite_url)
    away: Any = _AwayBroker(hours, 600)
    settings = load_settings(environment={})
    with caplog.at_level(logging.INFO, logger="farm.control.scheduler"):
        scheduler = Scheduler(
            engine, settings, intake=away, publisher=cast(Any, _NoPublisher()), clock=lambda: hours.now
        )
        scheduler.run(cast(Any, hours))
    engine.dispose()
    lines = [record.getMessage() for record in caplog.records]
    told = [line for line in lines if "cannot be reached" in line]
    assert len(told) == 5, lines
    (end,) = [line for line in lines if "answer again" in line]
    assert end.endswith(("lasted 9:59", "lasted 10:00")), end


class _NoPublisher:
    def heartbeat(self) -> None: ...

    def close(self) -> None: ...
