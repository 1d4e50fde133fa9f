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
        db.execute(sa.insert(table), list(rows))
        return
    columns = tuple(rows[0])
    names = ", ".join(columns)
    statement = f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {_recordset(table, columns)}"
    db.execute(sa.text(statement), {"rows": json.dumps(rows)})


def update_many(db: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    """Set columns of many rows, each found by its `id`; all dicts have the same keys (column names)."""
    if not rows:
        return
    columns = tuple(rows[0])
    changed = [column for column in columns if column != "id"]
    if db.dialect.name == "sqlite":
        statement = (
            sa.update(table)
            .where(table.c.id == sa.bindparam("b_id"))
            .values({column: sa.bindparam(f"b_{column}") for column in changed})
        )
        db.execute(statement, [{f"b_{key}": value for key, value in row.items()} for row in rows])
        return
    sets = ", ".join(f"{column} = v.{column}" for column in changed)
    statement_text = (
        f"UPDATE {table.name} SET {sets} FROM {_recordset(table, columns)} WHERE {table.name}.id = v.id"
    )
    db.execute(sa.text(statement_text), {"rows": json.dumps(rows)})


@cache
def _recordset(table: sa.Table, columns: tuple[str, ...]) -> str:
    """The rows as a table `v`. The text is made of our own column names and types only."""
    typed = ", ".join(f"{name} {table.c[name].type.compile(dialect=_DIALECT)}" for name in columns)
    return f"json_to_recordset(CAST(:rows AS json)) AS v({typed})"
