"""Opening the database: SQLite or PostgreSQL, its clock, and the two kinds of transaction."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from farm.errors import Unavailable, UserError

_ASKED_AFTER_S = 1.0
"""A connection that lay idle for longer is asked whether it lives."""
REMOTE_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "afs", "lustre"})


class db_now(FunctionElement[float]):  # noqa: N801 - it is written as a SQL function
    """The database's clock now (not the transaction's start), seconds since the epoch."""

    type = sa.Float()
    inherit_cache = True


@compiles(db_now, "postgresql")
def _now_postgresql(element: Any, compiler: Any, **kw: Any) -> str:
    return "extract(epoch from clock_timestamp())"


@compiles(db_now, "sqlite")
def _now_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    return "farm_now()"


def read_clock(db: sa.Connection) -> float:
    """The database's clock, in seconds since the epoch."""
    return float(db.scalar(_NOW) or 0.0)


_NOW = sa.select(db_now())


def among(
    db: sa.Connection, column: sa.ColumnElement[Any], values: Collection[int] | Collection[str]
) -> sa.ColumnElement[bool]:
    """`column IN values` for any number of values, in one parameter.

    A list of parameters ends at 32,766 or 65,535, and is a statement of its own for each length, which has
    to be compiled and planned anew.
    """
    return _among(db.dialect.name, column, sorted(values))


def among_ids(dialect: str, column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """As `among`, for a statement that is built once: its parameter `ids` is a sorted list."""
    return _among(dialect, column)


def none_of(dialect: str, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
    """`column NOT IN` the list that the parameter `name` is, for a statement that is built once."""
    if dialect == "sqlite":
        array: Any = sa.bindparam(name, type_=sa.JSON())
        return column.not_in(sa.select(sa.func.json_each(array).table_valued("value").c.value))
    return column != sa.all_(sa.bindparam(name, type_=ARRAY(column.type)))


def _among(
    dialect: str, column: sa.ColumnElement[Any], values: list[Any] | None = None
) -> sa.ColumnElement[bool]:
    kind: Any = sa.JSON() if dialect == "sqlite" else ARRAY(column.type)
    array: Any = sa.bindparam("ids", type_=kind) if values is None else sa.literal(values, kind)
    if dialect == "sqlite":
        return column.in_(sa.select(sa.func.json_each(array).table_valued("value").c.value))
    return column == sa.any_(array)


def open_engine(url: str, *, pool_size: int = 10) -> sa.Engine:
    """An engine for `url`; raises UserError for a URL that cannot be used."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise UserError(f"database_url cannot be read: {error}") from error
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(parsed, pool_size)
    if parsed.get_backend_name() == "postgresql":
        engine = sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_size=pool_size,
            pool_timeout=10,
            connect_args={
                "connect_timeout": 5,
                # A hung server or a dead peer must not hold a thread. A leader that was stopped in the middle
                # of a transaction holds its locks, the leader's row among them: for less than `leader_ttl_s`.
                "options": "-c statement_timeout=30000 -c lock_timeout=10000"
                " -c idle_in_transaction_session_timeout=5000",
                "keepalives_idle": 2,
                "keepalives_interval": 1,
                "keepalives_count": 3,
                "tcp_user_timeout": 5000,
            },
        )
        _ping_idle_connections(engine)
        return engine
    raise UserError(f"database_url must begin with sqlite: or postgresql:, not {parsed.drivername!r}")


def _ping_idle_connections(engine: sa.Engine) -> None:
    """A connection that lay idle may have died unseen, and is asked before it is used.

    Of one that was used a moment ago the next statement tells. `pool_pre_ping` asks each time: a question and
    an answer for each transaction, which is much of a short one.
    """

    @sa.event.listens_for(engine, "checkin")
    def _on_checkin(connection: Any, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    @sa.event.listens_for(engine, "checkout")
    def _on_checkout(connection: Any, record: Any, proxy: Any) -> None:
        idle_since = record.info.get("idle_since")
        if idle_since is None or time.monotonic() - idle_since < _ASKED_AFTER_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise sa.exc.InvalidatePoolError from error  # another connection is made, unseen by the caller


def _open_sqlite(url: sa.URL, pool_size: int) -> sa.Engine:
    if url.database and url.database != ":memory:":
        folder = Path(url.database).expanduser().resolve().parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kind = file_system_of(folder)
        if kind in REMOTE_FILE_SYSTEMS:
            raise UserError(
                f"{folder} is on {kind}: SQLite is not safe there; use a local disk or PostgreSQL"
            )
    engine = sa.create_engine(
        url,
        pool_size=pool_size,
        pool_timeout=30,
        poolclass=sa.QueuePool,
        # More statements are kept prepared than we have; of the 128 that are usual the leader needs most.
        connect_args={"check_same_thread": False, "timeout": 10, "cached_statements": 1_000},
    )

    @sa.event.listens_for(engine, "connect")
    def _on_connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        connection.create_function("farm_now", 0, time.time)
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA busy_timeout=10000")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _on_begin(connection: sa.Connection) -> None:
        # A deferred transaction that turns to writing fails at once when another wrote meanwhile,
        # whatever the timeout; so writers say so from the start.
        reads = connection.get_execution_options().get("farm_reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def file_system_of(folder: Path) -> str:
    """The type of the file system that holds `folder`, from /proc/mounts; "" when it cannot be told."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts:
        fields = line.split()
        point = fields[1].replace("\\040", " ")
        inside = str(folder) == point or str(folder).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


@contextlib.contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that only reads. Raises Unavailable when the database cannot be reached."""
    with _translated(), engine.connect().execution_options(farm_reads=True) as db, db.begin():
        yield db


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that writes; committed at the end, rolled back on any error. Raises Unavailable."""
    with _translated(), engine.connect() as db, db.begin():
        yield db


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise Unavailable(f"the database cannot be used: {_first_line(error)}") from error
    except sa.exc.TimeoutError as error:
        raise Unavailable("the database is busy: no connection came free") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise Unavailable(f"the database connection was lost: {_first_line(error)}") from error
        raise


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).strip().splitlines()[0] if error.orig else str(error)
