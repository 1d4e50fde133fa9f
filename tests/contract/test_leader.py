"""The leader: one at a time, and none after its time."""

from __future__ import annotations

from functools import partial

import pytest
import sqlalchemy as sa

from farm.errors import NotLeader
from farm.model.events import EventKind
from farm.store import (
    events,
    leader,
)
from farm.store.engine import reading, writing
from tests.contract.stored_farm import run_all


def test_one_leads_and_renews_and_the_next_waits(engine: sa.Engine) -> None:
    first = leader.acquire(engine, holder="a", ttl_s=30)
    assert first is not None
    assert leader.acquire(engine, holder="b", ttl_s=30) is None
    assert leader.acquire(engine, holder="a", ttl_s=30) == first
    with reading(engine) as db:
        assert leader.current(db) == "a"
    leader.resign(engine, first)
    with reading(engine) as db:
        assert leader.current(db) is None
    second = leader.acquire(engine, holder="b", ttl_s=30)
    assert second is not None
    assert second.epoch > first.epoch


def test_a_deposed_leader_writes_nothing(engine: sa.Engine) -> None:
    first = leader.acquire(engine, holder="a", ttl_s=30)
    assert first is not None
    with leader.leading(engine, first) as db:
        events.happened(db, EventKind.JOB_CHANGED, "mine")
    with writing(engine) as db:
        db.execute(sa.text("UPDATE leader SET until = 0"))  # it was asleep for longer than its lease
    for _ in range(2):
        with pytest.raises(NotLeader), leader.leading(engine, first) as db:
            events.happened(db, EventKind.JOB_CHANGED, "must not be")
        leader.acquire(engine, holder="b", ttl_s=30)
    with reading(engine) as db:
        assert [e.text for e in events.read(db) if e.kind is EventKind.JOB_CHANGED] == ["mine"]
    # Even under its own name it comes back with a new epoch only.
    with writing(engine) as db:
        db.execute(sa.text("UPDATE leader SET until = 0"))
    again = leader.acquire(engine, holder="a", ttl_s=30)
    assert again is not None
    assert again.epoch > first.epoch


def test_of_many_that_want_to_lead_one_does(engine: sa.Engine) -> None:
    for _ in range(3):
        won: list[leader.Lead] = []

        def want(name: str, won: list[leader.Lead] = won) -> None:
            lead = leader.acquire(engine, holder=name, ttl_s=30)
            if lead is not None:
                won.append(lead)

        run_all([partial(want, name) for name in "abcde"])
        assert len(won) == 1
        leader.resign(engine, won[0])
