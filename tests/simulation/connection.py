"""SQLAlchemy's way to the database, cut short: the same statements and values, without its bookkeeping.

A seed runs a thousand statements of some 5 µs each; SQLAlchemy's events, its pool and what it keeps of
results come to ten times that. It still compiles the statements and converts values and rows. What is not
plain (a first run, many sets of values, RETURNING, an insert) goes the whole way; with
`Database(is_short=False)` everything does, and the histories are the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import IteratorResult
from sqlalchemy.sql.compiler import SQLCompiler

_Call = Callable[[sa.Connection], None]


@dataclass(slots=True)
class _Plain:
    """What is kept of a compiled statement's first run."""

    metadata: Any
    """Of its rows; None: it has none."""


class _Changed:
    """The result of a statement without rows."""

    def __init__(self, rowcount: int) -> None:
        self.rowcount = rowcount


class _Wire:
    """In place of a pooled connection: there is one, and it is always good."""

    is_valid = True

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.dbapi_connection = self.driver_connection = raw
        self.cursor = raw.cursor
        self.commit = raw.commit
        self.rollback = raw.rollback

    def close(self) -> None:
        self.rollback()

    def _close_special(self, transaction_reset: bool = False) -> None:
        pass


class ShortConnection(sa.Connection):
    engine: ShortEngine

    def _begin_impl(self, transaction: Any) -> None:
        self.engine.on_begin(self)

    def _commit_impl(self) -> None:
        self.engine.on_commit(self)
        self.engine.wire.commit()

    def _rollback_impl(self) -> None:
        self.engine.on_rollback(self)
        self.engine.wire.rollback()

    def _execute_clauseelement(
        self, elem: Any, distilled_parameters: Sequence[Mapping[str, Any]], execution_options: Any
    ) -> Any:
        engine = self.engine
        if len(distilled_parameters) > 1:
            return super()._execute_clauseelement(elem, distilled_parameters, execution_options)  # type: ignore[arg-type]
        values = distilled_parameters[0] if distilled_parameters else None
        compiled, extracted, collected, _ = elem._compile_w_cache(
            dialect=self.dialect,
            compiled_cache=engine._compiled_cache,
            column_keys=sorted(values) if values else [],
            for_executemany=False,
            schema_translate_map=None,
        )
        plain = engine.plain.get(compiled)
        if plain is None:
            result = super()._execute_clauseelement(elem, distilled_parameters, execution_options)  # type: ignore[arg-type]
            if _is_plain(compiled):
                engine.plain[compiled] = _Plain(result._metadata if result.returns_rows else None)
            return result
        bound = compiled.construct_params(
            values, escape_names=False, extracted_parameters=extracted, _collected_params=collected
        )
        statement, order, processors = compiled.string, compiled.positiontup, compiled._bind_processors
        if compiled.post_compile_params or compiled.literal_execute_params:
            expanded = compiled._process_parameters_for_postcompile(bound)
            statement, order = expanded.statement, expanded.positiontup
            processors = {**processors, **expanded.processors}
        given = [processors[key](bound[key]) if key in processors else bound[key] for key in order]
        try:
            cursor = engine.wire.dbapi_connection.execute(statement, given)
        except sqlite3.Error as error:
            self._handle_dbapi_exception(error, statement, given, None, None)
        if plain.metadata is None:
            return _Changed(cursor.rowcount)
        return IteratorResult(plain.metadata, iter(cursor.fetchall()))


def _is_plain(compiled: SQLCompiler) -> bool:
    """A query, or a change that tells how many rows it changed and nothing else."""
    if compiled.isinsert:
        return False
    return not (compiled.update_prefetch or compiled.effective_returning)


class ShortEngine(sa.Engine):
    _connection_cls = ShortConnection

    def __init__(
        self,
        engine: sa.Engine,
        raw: sqlite3.Connection,
        *,
        on_begin: _Call,
        on_commit: _Call,
        on_rollback: _Call,
    ) -> None:
        super().__init__(engine.pool, engine.dialect, engine.url)
        self.wire = _Wire(raw)
        self.on_begin = on_begin
        self.on_commit = on_commit
        self.on_rollback = on_rollback
        self.plain: WeakKeyDictionary[SQLCompiler, _Plain] = WeakKeyDictionary()

    def raw_connection(self) -> Any:
        return self.wire
