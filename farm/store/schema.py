"""The schema's version: brought up to date by one migrator at a time, checked before anything else starts.

Alembic is imported only to migrate: a check is one query.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa

from farm.errors import Unavailable, UserError
from farm.store.engine import reading, writing

HEAD: Final = "0018"
"""The newest revision in `farm/store/migrations/versions`; a test compares them. They count up."""

_MIGRATOR_LOCK: Final = 7_450_001
_TRIES: Final = 5
_LOCK_NOT_AVAILABLE: Final = "55P03"


def upgrade(engine: sa.Engine, *, to: str = HEAD) -> None:
    """Bring the schema up to revision `to`, in one transaction; does nothing when it is there already.

    Others who call this at the same time wait, and then find nothing to do. Raises UserError when the
    database was made by a newer Ridgeline, Unavailable when it cannot be reached or others hold its tables.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _upgrade_once(engine, to)
        except Unavailable as error:
            if not left or not _is_locked(error):
                raise
    return None


def _upgrade_once(engine: sa.Engine, to: str) -> None:
    from alembic import command
    from alembic.config import Config

    with writing(engine) as db:
        if db.dialect.name == "postgresql":
            db.exec_driver_sql("SET LOCAL statement_timeout = 0")
            # Alembic reads its scripts meanwhile, which may take long on a busy machine.
            db.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '5min'")
            db.exec_driver_sql("SET LOCAL lock_timeout = '60s'")
            db.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATOR_LOCK)))
            # A waiting ALTER blocks everybody behind it: give up early and try again.
            db.exec_driver_sql("SET LOCAL lock_timeout = '3s'")
        now_at = _version(db)
        if now_at is not None and now_at > HEAD:
            raise UserError(_newer(now_at))
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
        config.attributes["connection"] = db
        command.upgrade(config, to)


def version(engine: sa.Engine) -> str | None:
    """The database's revision, such as "0002"; None when it has no tables of ours. Raises Unavailable."""
    with reading(engine) as db:
        return _version(db)


def check(engine: sa.Engine) -> None:
    """Raise UserError unless the database has exactly this code's schema; Unavailable when unreachable."""
    found = version(engine)
    if found is None:
        raise UserError("the database has no tables yet: run `farm db upgrade`")
    if found < HEAD:
        raise UserError(
            f"the database has schema {found}, this Ridgeline needs {HEAD}: back it up, "
            "then run `farm db upgrade`"
        )
    if found > HEAD:
        raise UserError(_newer(found))


def _newer(found: str) -> str:
    return (
        f"this database was made by a newer Ridgeline (schema {found}; this one knows {HEAD}): "
        "upgrade Ridgeline, or restore the backup that was made before the upgrade"
    )


def _version(db: sa.Connection) -> str | None:
    if not sa.inspect(db).has_table("alembic_version"):
        return None
    found: str | None = db.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return found


def _is_locked(error: Unavailable) -> bool:
    cause = error.__cause__
    return isinstance(cause, sa.exc.DBAPIError) and (
        getattr(cause.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE
    )
