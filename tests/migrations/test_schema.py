"""The schema's history leads to the tables of today, with data on the way, on both databases."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlmodel import SQLModel

from farm.errors import UserError
from farm.model.events import EventKind
from farm.store import attempts, events, jobs, schema, tables, tasks
from farm.store.engine import open_engine, reading, writing
from tests.conftest import drop_postgres_database, new_postgres_database

assert tables  # fills the metadata


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """A database without tables."""
    url = f"sqlite:///{tmp_path / 'empty.db'}" if request.param == "sqlite" else new_postgres_database()
    engine = open_engine(url)
    yield engine
    engine.dispose()
    if request.param == "postgresql":
        drop_postgres_database(url)


def test_the_upgraded_schema_is_what_the_code_expects(empty: sa.Engine) -> None:
    schema.upgrade(empty)
    with reading(empty) as db:
        assert compare_metadata(MigrationContext.configure(db), SQLModel.metadata) == []
    schema.check(empty)


def test_the_newest_revision_is_the_one_that_the_code_names() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [schema.HEAD]
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert revisions == sorted(revisions, reverse=True), "revisions must count up: check() compares them"


# Rows as the first revision knew them: plain SQL, because today's functions know today's tables only.
_FIRST_DATA = """
INSERT INTO job (id, uid, name, kind, state, "user", priority, is_paused, max_retries, max_failed_tasks,
  replaces_existing, settings, output_directories, submitted_at, changed_at, reason)
  VALUES (1, 'u1', 'shot', 'blender', 'active', 'anna', 50, false, 2, 100,
  false, '{"priority": 50}', '["/out"]', 1, 1, '');
INSERT INTO job_source
  VALUES (1, '{"name": "shot", "template": {}}', '{"Frames": ["STRING", "1-2"]}');
INSERT INTO step (id, job_id, position, name, depends_on, demand, profile, isolation, output, frames,
  n_waiting, n_ready, n_assigned, n_running, n_cancelling, n_held, n_done, n_failed, n_cancelled,
  runtime_count, runtime_sum_s)
  VALUES (1, 1, 0, 'Render', '[]', '{}', '{}', 'staged', NULL, '1-2', 0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 12.5);
INSERT INTO task (id, job_id, step_id, idx, rank, state, attempt_id, starts, failures, faults, generation,
  not_before, reason, runtime_s)
  VALUES (1, 1, 1, 0, 0, 'done', 'a1', 1, 0, 0, 1, 0, '', 12.5),
  (2, 1, 1, 1, 1, 'ready', NULL, 0, 0, 0, 1, 0, '', NULL);
INSERT INTO attempt (id, task_id, job_id, step_id, generation, node_id, device_id, state, assigned_at,
  started_at, finished_at, lease_until, outcome, exit_code, reason, message, runtime_s, warnings, files)
  VALUES ('a1', 1, 1, 1, 1, 'blade', 'cpu', 'succeeded', 1,
  2, 14.5, 30, 'succeeded', 0, '', '', 12.5, '[]', '[]');
INSERT INTO event (at, kind, text, actor, job_id) VALUES (1, 'job-submitted', 'shot', 'anna', 1);
INSERT INTO leader VALUES ('scheduler', 'main-1', 1700000000, 5)
"""


def test_a_database_of_the_first_version_comes_up_to_date_with_its_data(empty: sa.Engine) -> None:
    schema.upgrade(empty, to="0001")
    with writing(empty) as db:
        for statement in _FIRST_DATA.split(";"):
            db.exec_driver_sql(statement)
    with pytest.raises(UserError, match="farm db upgrade"):
        schema.check(empty)

    schema.upgrade(empty)

    schema.check(empty)
    with reading(empty) as db:
        job = jobs.list_jobs(db)[0]
        assert (job.name, job.counts.done, job.counts.ready) == ("shot", 1, 1)
        assert [task.state for task in tasks.list_tasks(db, job.id)] == ["done", "ready"]
        assert [(done.step_id, done.runtime_s) for done in attempts.newest_done(db, job.id)] == [(1, 12.5)]
        assert db.scalar(sa.text("SELECT count(*) FROM audit")) == 0
    with writing(empty) as db:
        events.happened(db, EventKind.JOB_CHANGED, "still counts on")
        assert events.last_id(db) == 2


def test_an_upgrade_that_is_repeated_changes_nothing(empty: sa.Engine) -> None:
    schema.upgrade(empty)
    schema.upgrade(empty)
    assert schema.version(empty) == schema.HEAD


def test_many_migrators_at_once_upgrade_once(empty: sa.Engine) -> None:
    failures: list[BaseException] = []

    def migrate() -> None:
        try:
            schema.upgrade(empty)
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=migrate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    assert schema.version(empty) == schema.HEAD


def test_a_machine_may_be_busy_with_other_things_in_the_middle_of_an_upgrade(
    empty: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends the session of one who is silent in a transaction: not a migrator's."""
    if empty.dialect.name == "postgresql":

        @sa.event.listens_for(empty, "connect")
        def shorten(connection: Any, _: object) -> None:
            connection.execute("SET idle_in_transaction_session_timeout = 50")
            connection.commit()

    upgrade = command.upgrade

    def late(config: Config, to: str) -> None:
        threading.Event().wait(0.2)
        upgrade(config, to)

    monkeypatch.setattr(command, "upgrade", late)
    schema.upgrade(empty)
    assert schema.version(empty) == schema.HEAD


def test_an_empty_database_is_told_apart(empty: sa.Engine) -> None:
    assert schema.version(empty) is None
    with pytest.raises(UserError, match="no tables yet: run `farm db upgrade`"):
        schema.check(empty)


def test_a_database_of_a_newer_version_is_refused_and_left_alone(empty: sa.Engine) -> None:
    schema.upgrade(empty)
    with writing(empty) as db:
        db.exec_driver_sql("UPDATE alembic_version SET version_num = '9001'")
    with pytest.raises(UserError, match="made by a newer Ridgeline"):
        schema.check(empty)
    with pytest.raises(UserError, match="made by a newer Ridgeline"):
        schema.upgrade(empty)
    assert schema.version(empty) == "9001"


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(empty: sa.Engine) -> None:
    schema.upgrade(empty, to="0001")
    with writing(empty) as db:
        db.exec_driver_sql("CREATE TABLE audit (mine INTEGER)")  # in the way of 0002
    with pytest.raises(Exception, match="audit"):
        schema.upgrade(empty)
    assert schema.version(empty) == "0001"
    with reading(empty) as db:
        assert {c["name"] for c in sa.inspect(db).get_columns("audit")} == {"mine"}
        assert "ix_attempt_job_id" in {i["name"] for i in sa.inspect(db).get_indexes("attempt")}
