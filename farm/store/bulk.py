"""Many rows in one statement.

PostgreSQL gets the rows as one JSON value: a statement for each row costs its round of parsing and answering,
which is most of a scheduler's work. SQLite runs in this process, where that costs next to nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

_DIALECT = sa.create_mock_engine("postgresql+psycopg://", lambda *_: None).dialect


def insert_many(db: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows that all have the same keys (column names)."""
    if not rows:
        return
    if db.dialect.name == "sqlite":
        db.execute(_plain_insert(table), list(rows))
        return
    db.execute(_inserting(table, tuple(rows[0])), {"rows": json.dumps(rows)})


@cache
def _plain_insert(table: sa.Table) -> sa.Insert:
    return sa.insert(table)


@cache
def _inserting(table: sa.Table, columns: tuple[str, ...]) -> sa.Executable:
    names = ", ".join(columns)
    return sa.text(f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {_recordset(table, columns)}")


def update_many(db: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Set columns of many rows, each found by its `id`; all dicts have the same keys (column names)."""
    if rows:
        db.execute(_setting(db.dialect.name, table, tuple(rows[0])), _for(db, rows))


@cache
def _setting(dialect: str, table: sa.Table, columns: tuple[str, ...]) -> sa.Executable:
    changed = [column for column in columns if column != "id"]
    if dialect == "sqlite":
        values: Any = {column: sa.bindparam(f"b_{column}") for column in changed}
        return sa.update(table).where(table.c.id == sa.bindparam("b_id")).values(values)
    sets = ", ".join(f"{column} = v.{column}" for column in changed)
    return sa.text(
        f"UPDATE {table.name} SET {sets} FROM {_recordset(table, columns)} WHERE {table.name}.id = v.id"
    )


def add_many(db: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Add to number columns of many rows, each found by its `id`; all dicts have the same keys."""
    if not rows:
        return
    db.execute(_adding(db.dialect.name, table, tuple(rows[0])), _for(db, rows))


@cache
def _adding(dialect: str, table: sa.Table, columns: tuple[str, ...]) -> sa.Executable:
    changed = [column for column in columns if column != "id"]
    if dialect == "sqlite":
        sums = {column: table.c[column] + sa.bindparam(f"b_{column}") for column in changed}
        return sa.update(table).where(table.c.id == sa.bindparam("b_id")).values(sums)
    sets = ", ".join(f"{column} = {table.name}.{column} + v.{column}" for column in changed)
    return sa.text(
        f"UPDATE {table.name} SET {sets} FROM {_recordset(table, columns)} WHERE {table.name}.id = v.id"
    )


def _for(db: sa.Connection, rows: Sequence[dict[str, Any]]) -> Any:
    """The parameters of a statement that changes these rows."""
    if db.dialect.name == "sqlite":
        return [{f"b_{key}": value for key, value in row.items()} for row in rows]
    return {"rows": json.dumps(rows)}


@cache
def _recordset(table: sa.Table, columns: tuple[str, ...]) -> str:
    """The rows as a table `v`. The text is made of our own column names and types only."""
    typed = ", ".join(f"{name} {table.c[name].type.compile(dialect=_DIALECT)}" for name in columns)
    return f"json_to_recordset(CAST(:rows AS json)) AS v({typed})"
