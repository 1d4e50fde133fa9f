"""`farm db`: the schema's version, upgrades and backups. Runs on the server: it needs the database's URL."""

from __future__ import annotations

import os
import shlex
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from farm.cli import show
from farm.cli.config import hide_password
from farm.cli.show import shown
from farm.errors import Unavailable, UserError
from farm.settings import Settings
from farm.store import schema
from farm.store.engine import open_engine
from farm.text import size

_PAGES: Final = 1_000
"""Copied at a time; writers get their turn between."""


def upgrade(settings: Settings) -> None:
    engine = open_engine(settings.database)
    try:
        before = schema.version(engine)
        schema.upgrade(engine)
        after = schema.version(engine)
    finally:
        engine.dispose()
    place = hide_password(settings.database)
    if before == after:
        show.line(f"{place} has schema {after} already")
    else:
        show.line(f"{place}: schema {before or 'none'} -> {after}")


def version(settings: Settings, *, is_json: bool) -> None:
    if sqlite_file(settings.database) is not None:
        _existing(settings)
    engine = open_engine(settings.database)
    try:
        found = schema.version(engine)
    finally:
        engine.dispose()
    if is_json:
        show.data({"version": found, "needed": schema.HEAD})
    else:
        show.line(f"schema {found or 'none'}; this program needs {schema.HEAD}")


def backup(settings: Settings, path: Path) -> None:
    """Copy an SQLite database to `path` with SQLite's own backup, while the farm may write.

    Copying the file alone would lose what is still in the write-ahead log. Raises UserError, Unavailable.
    """
    if sqlite_file(settings.database) is None:
        show.line(_pg_dump(settings.database, path))
        show.note("run this command where PostgreSQL's programs are; it asks for the password")
        return
    source = _existing(settings)
    if path.exists():
        raise UserError(f"{path} exists already; name a new file")
    if not path.parent.is_dir():
        raise UserError(f"the directory {path.parent} does not exist")
    partial = path.with_name(path.name + ".partial")
    try:
        with closing(_open(source)) as from_db, closing(sqlite3.connect(partial)) as into:
            from_db.backup(into, pages=_PAGES, progress=_progress)
            verdict = into.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != "ok":
            raise UserError(f"the copy is damaged, and so is the database: {shown(str(verdict))}")
        os.link(partial, path)  # fails when somebody made `path` meanwhile
    except sqlite3.Error as error:
        raise Unavailable(f"the backup failed: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    show.line(f"{path}: {size(path.stat().st_size)}, checked")


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; None for another database. Raises UserError."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise UserError(f"database_url cannot be read: {error}") from error
    if parsed.get_backend_name() != "sqlite":
        return None
    return Path(parsed.database or ":memory:").expanduser()


def _existing(settings: Settings) -> Path:
    path = sqlite_file(settings.database)
    if path is None or not path.is_file():
        raise UserError(f"there is no database at {path} yet: `farm up` or `farm db upgrade` makes it")
    return path


def _open(path: Path) -> sqlite3.Connection:
    # mode=rw: a file that went away meanwhile must not come back empty
    return sqlite3.connect(
        f"file:{path.resolve().as_posix()}?mode=rw".replace("#", "%23"), uri=True, timeout=10
    )


def _progress(status: int, remaining: int, total: int) -> None:
    if sys.stderr.isatty() and total > _PAGES:
        done = total - remaining
        print(f"\r{done * 100 // total} %", end="" if remaining else "\n", file=sys.stderr, flush=True)


def _pg_dump(url: str, path: Path) -> str:
    parsed = sa.make_url(url)
    words = ["pg_dump", "--format=custom", f"--file={path}"]
    words += [f"--host={parsed.host}"] if parsed.host else []
    words += [f"--port={parsed.port}"] if parsed.port else []
    words += [f"--username={parsed.username}"] if parsed.username else []
    return shlex.join([*words, parsed.database or "postgres"])
