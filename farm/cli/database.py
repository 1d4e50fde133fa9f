"""`farm db`: the schema's version, upgrades and backups. Runs on the server: it needs the database's URL."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from farm.cli import show
from farm.cli.config import hide_password
from farm.cli.show import shown
from farm.errors import Unavailable, UserError
from farm.settings import Settings, inherited_environment
from farm.store import schema
from farm.store.engine import open_engine, reading
from farm.store.leader import current
from farm.text import size

_PAGES: Final = 1_000
"""Copied at a time; writers get their turn between."""


def upgrade(settings: Settings, *, is_json: bool) -> None:
    engine = open_engine(settings.database)
    try:
        before = schema.version(engine)
        schema.upgrade(engine)
        after = schema.version(engine)
    finally:
        engine.dispose()
    place = hide_password(settings.database)
    if is_json:
        show.data({"before": before, "version": after})
    elif before == after:
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


def backup(settings: Settings, path: Path, *, is_json: bool) -> None:
    """Copy the database to `path` while the farm may write. Raises UserError, Unavailable.

    SQLite with its own backup: copying the file alone would lose what is still in the write-ahead log.
    """
    if path.exists():
        raise UserError(f"{path} exists already; name a new file")
    if not path.parent.is_dir():
        raise UserError(f"the directory {path.parent} does not exist")
    if sqlite_file(settings.database) is None:
        to_type = _run(settings.database, ["pg_dump", "--format=custom", f"--file={path}"])
        if to_type is not None:
            _have_typed(to_type, is_json=is_json)
        else:
            _written(path, is_json=is_json)
        return
    source = _existing(settings)
    partial = path.with_name(path.name + ".partial")
    try:
        with closing(_open(source)) as from_db, closing(sqlite3.connect(partial)) as into:
            from_db.backup(into, pages=_PAGES, progress=_progress)
            verdict = into.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != "ok":
            raise UserError(f"the copy is damaged, and so is the database: {shown(str(verdict))}")
        os.link(partial, path)  # fails when somebody made `path` meanwhile
        with closing(_open(source)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    except sqlite3.Error as error:
        raise Unavailable(f"the backup failed: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    _written(path, is_json=is_json, note=", checked")


def _written(path: Path, *, is_json: bool, note: str = "") -> None:
    size_bytes = path.stat().st_size
    if is_json:
        show.data({"path": str(path), "size_bytes": size_bytes})
    else:
        show.line(f"{path}: {size(size_bytes)}{note}")


def restore(settings: Settings, path: Path, *, is_json: bool) -> None:
    """Put what `backup` wrote in the database's place. Raises UserError, Unavailable.

    Refused while a scheduler leads: it would go on with rows that are gone.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    _refuse_while_led(settings)
    target = sqlite_file(settings.database)
    if target is None:
        words = ["pg_restore", "--clean", "--if-exists", "--no-owner", "--single-transaction"]
        to_type = _run(settings.database, words, names_database=True, file=path)
        if to_type is not None:
            _have_typed(to_type, is_json=is_json)
        else:
            _restored(path, kept=None, needs_upgrade=True, is_json=is_json)
        return
    partial = target.with_name(target.name + ".partial")
    try:
        with closing(sqlite3.connect(f"file:{path.resolve().as_posix()}?mode=ro", uri=True)) as source:
            verdict = source.execute("PRAGMA integrity_check").fetchone()[0]
            if verdict != "ok":
                raise UserError(f"{path} is damaged: {shown(str(verdict))}")
            found = source.execute("SELECT version_num FROM alembic_version").fetchone()[0]
            if found > schema.HEAD:
                raise UserError(f"{path} was made by a newer Ridgeline (schema {found}): upgrade first")
            with closing(sqlite3.connect(partial)) as into:
                source.backup(into)
        kept = _set_aside(target)
        os.replace(partial, target)
    except sqlite3.Error as error:
        raise UserError(f"{path} is no backup of a farm: {error}") from error
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    _restored(path, kept=kept, needs_upgrade=found != schema.HEAD, is_json=is_json)


def _restored(path: Path, *, kept: Path | None, needs_upgrade: bool, is_json: bool) -> None:
    if is_json:
        told = {
            "path": str(path),
            "kept": None if kept is None else str(kept),
            "needs_upgrade": needs_upgrade,
        }
        show.data(told)
        return
    if kept is not None:
        show.line(f"what was there is kept in {kept}")
    upgrade = "`farm db upgrade`, " if needs_upgrade else ""
    show.line(f"restored from {path}; next: {upgrade}`farm reconcile`, then start the farm")


def _refuse_while_led(settings: Settings) -> None:
    target = sqlite_file(settings.database)
    if target is not None and not target.is_file():
        return
    engine = open_engine(settings.database)
    try:
        with reading(engine) as db:
            # A database without tables has no leader.
            leader = current(db) if sa.inspect(db).has_table("leader") else None
    finally:
        engine.dispose()
    if leader is not None:
        raise UserError(f"{shown(leader)} leads this farm: stop the API and all schedulers first")


def _set_aside(database: Path) -> Path | None:
    """Move the database away, whole: what its log still holds is written into it first."""
    if not database.is_file():
        return None
    with closing(_open(database)) as db:
        db.execute("PRAGMA journal_mode=DELETE")  # fails while somebody else has it open
    number = 1
    while (kept := database.with_name(f"{database.name}.before-restore-{number}")).exists():
        number += 1
    os.replace(database, kept)
    return kept


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


def _run(
    url: str, words: list[str], *, names_database: bool = False, file: Path | None = None
) -> list[str] | None:
    """Run one of PostgreSQL's programs on the database; where it is not installed, return the command.

    The password goes by the environment: everybody on the machine can read a command line. Raises UserError.
    """
    parsed = sa.make_url(url)
    words += [f"--host={parsed.host}"] if parsed.host else []
    words += [f"--port={parsed.port}"] if parsed.port else []
    words += [f"--username={parsed.username}"] if parsed.username else []
    database = parsed.database or "postgres"
    words.append(f"--dbname={database}" if names_database else database)
    words += [str(file)] if file is not None else []
    program = shutil.which(words[0])
    if program is None:
        return words
    environment = inherited_environment(("PATH", "HOME", "LANG", "LC_*", "PG*"))
    if parsed.password:
        environment["PGPASSWORD"] = str(parsed.password)
    done = subprocess.run([program, *words[1:]], env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise UserError(f"{words[0]} failed with exit status {done.returncode}; what it says is above")
    return None


def _have_typed(words: list[str], *, is_json: bool) -> None:
    if is_json:
        show.data({"command": words})
    else:
        show.line(shlex.join(words))
    show.note(f"there is no {words[0]} here: run this where PostgreSQL's programs are")
