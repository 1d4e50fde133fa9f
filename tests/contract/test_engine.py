"""The connection: texts as they went in, writers in turn, safe settings."""

from __future__ import annotations

from functools import partial

import pytest
import sqlalchemy as sa

from farm.model.events import EventKind
from farm.store import (
    events,
)
from farm.store.engine import open_engine, reading, writing
from tests.contract.stored_farm import run_all


@pytest.mark.parametrize("name", ["Szene 1 – Ä/ö", "夜の街", "🎬 shot", "a'b\"c%d_e\\f", " x "])
def test_any_printable_text_comes_back_as_it_went_in(engine: sa.Engine, name: str) -> None:
    with writing(engine) as db:
        events.happened(db, EventKind.JOB_CHANGED, name)
        assert events.read(db)[0].text == name


def test_writers_wait_for_each_other_and_none_is_turned_away(engine: sa.Engine, database_url: str) -> None:
    """SQLite: a writer that begins as a reader would fail at once, whatever the time-out."""

    def write(own: sa.Engine) -> None:
        for n in range(200):
            with writing(own) as db:
                last = events.last_id(db)
                events.happened(db, EventKind.JOB_CHANGED, f"{n} after {last}")

    engines = [open_engine(database_url) for _ in range(2)]
    try:
        run_all([partial(write, own) for own in engines])
    finally:
        for own in engines:
            own.dispose()
    with reading(engine) as db:
        assert len(events.read(db, limit=1_000)) == 400


def test_sqlite_is_opened_for_safety(sqlite_url: str) -> None:
    engine = open_engine(sqlite_url)
    with reading(engine) as db:
        found = {
            name: db.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    engine.dispose()
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}
