"""Databases for tests. PostgreSQL where it runs; with FARM_TEST_SERVICES=required its absence fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

from farm.store import schema
from farm.store.engine import open_engine
from tests.process_state import changes, process_state

POSTGRES = os.environ.get("FARM_TEST_POSTGRES", "postgresql://postgres@127.0.0.1/postgres")
"""A server and a role that may make databases on it."""

IS_CI = os.environ.get("FARM_TEST_SERVICES") == "required"
# No example is late on a busy machine. In CI the examples are the same each time: what turns red there is the
# change's doing, while every run on a developer's machine looks for new ones.
settings.register_profile(
    "ridgeline", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=IS_CI
)
settings.load_profile("ridgeline")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a background job of a script: what tests start would inherit it, and not hear their Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_SLOW_FIRST = ("e2e", "simulation", "plugins", "workers", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, so that the end of a run does not wait for it alone."""

    def rank(item: pytest.Item) -> tuple[float, int]:
        patience = item.get_closest_marker("timeout")
        folder = Path(item.path).relative_to(Path(__file__).parent).parts[0]
        return (
            -patience.args[0] if patience else 0.0,
            _SLOW_FIRST.index(folder) if folder in _SLOW_FIRST else len(_SLOW_FIRST),
        )

    items.sort(key=rank)


@pytest.fixture(autouse=True)
def leaves_the_process_as_it_was() -> Iterator[None]:
    """What one test leaves behind in its process makes another fail, in another file, on some days."""
    before = process_state()
    yield
    left = changes(before, process_state())
    assert not left, f"this test leaves its process changed: {'; '.join(left)}"


def missing(service: str, why: object) -> None:
    """Skip the test, or fail it where services are required."""
    text = f"{service} is not there: {why}"
    if IS_CI:
        pytest.fail(text)
    pytest.skip(text)


def new_postgres_database() -> str:
    """The URL of an empty database of its own; `drop_postgres_database` it in the end."""
    name = f"farm_test_{uuid.uuid4().hex[:12]}"
    _on_server(f"CREATE DATABASE {name}")
    # Tests kill processes, not machines: what the server has taken is as good as kept.
    _on_server(f"ALTER DATABASE {name} SET synchronous_commit = off")
    return f"{POSTGRES.rpartition('/')[0]}/{name}"


def drop_postgres_database(url: str) -> None:
    _on_server(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")


def _on_server(statement: str) -> None:
    engine = sa.create_engine(
        POSTGRES.replace("postgresql:", "postgresql+psycopg:"),
        isolation_level="AUTOCOMMIT",
        connect_args={"connect_timeout": 3},
    )
    try:
        with engine.connect() as db:
            db.exec_driver_sql(statement)
    except sa.exc.OperationalError as error:
        missing("PostgreSQL", error.orig)
    finally:
        engine.dispose()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A database with our tables, shared by the session."""
    url = new_postgres_database()
    try:
        make_tables(url)
        yield url
    finally:
        drop_postgres_database(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "farm.db"
    make_tables(f"sqlite:///{path}")
    return path


def make_tables(url: str) -> None:
    """Bring the database up to date."""
    engine = open_engine(url)
    try:
        schema.upgrade(engine)
    finally:
        engine.dispose()  # closing the last connection also empties SQLite's -wal into the file


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A SQLite database of the test's own, with our tables, empty."""
    shutil.copy(sqlite_template, tmp_path / "farm.db")
    return f"sqlite:///{tmp_path / 'farm.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def database_url(request: pytest.FixtureRequest) -> str:
    """Of both kinds in turn: with our tables, empty."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    url = str(request.getfixturevalue("postgres_url"))
    engine = open_engine(url)
    try:
        with engine.begin() as db:
            tables = [t for t in sa.inspect(db).get_table_names() if t != "alembic_version"]
            # TRUNCATE makes and syncs new files for each table and index: a tenth of a second a test.
            db.exec_driver_sql("SET LOCAL session_replication_role = replica")
            for table in tables:
                db.exec_driver_sql(f'DELETE FROM "{table}"')
            db.exec_driver_sql("SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S'")
    finally:
        engine.dispose()
    return url


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """Over `database_url`: the test runs once on SQLite and once on PostgreSQL."""
    opened = open_engine(database_url)
    yield opened
    opened.dispose()


@pytest.fixture(scope="session")
def blender_scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the Blender scenes; its name has a blank and a letter beyond ASCII."""
    if shutil.which("blender") is None:
        missing("Blender", "it is not installed")
    directory = tmp_path_factory.mktemp("schöne Szenen")
    script = Path(__file__).parent / "plugins" / "scenes.py"
    command = ["blender", "-b", "--factory-startup", "--python-exit-code", "3", "-P", str(script), "--"]
    done = subprocess.run([*command, str(directory)], capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")
    return directory
