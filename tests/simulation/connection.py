"""SQLAlchemy's way to the database, cut short: the same statements and values, without its bookkeeping.

A seed runs a thousand statements of some 5 µs each; SQLAlchemy's events, its pool, its look-up of compiled
statements and what it keeps of results come to ten times that. It still compiles each statement and converts
rows. What is not plain (a first run, a list of any length) goes the whole way; with
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


class _Taken:
    """Stands for the value of a parameter."""

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(slots=True)
class _Form:
    """A statement, run with values for certain parameters: all that its next run needs."""

    text: str
    parts: list[tuple[str | None, Any, Any]]
    """For each place in the text: (the parameter, None, how its value is converted), or (None, a value)."""
    metadata: Any
    """Of its rows; None: it has none."""

    @classmethod
    def of(cls, compiled: SQLCompiler, names: Sequence[str], metadata: Any, **parameters: Any) -> _Form:
        taken = {name: _Taken(name) for name in names}
        bound = compiled.construct_params(taken, escape_names=False, **parameters)
        for column in compiled.insert_prefetch:
            assert isinstance(column.default, sa.ColumnDefault)  # `_is_plain` has looked
            bound[compiled._within_exec_param_key_getter(column)] = column.default.arg
        parts: list[tuple[str | None, Any, Any]] = []
        for key in compiled.positiontup or ():
            value = bound[key]
            convert: Any = compiled._bind_processors.get(key)
            if isinstance(value, _Taken):
                parts.append((value.name, None, convert))
            else:
                parts.append((None, convert(value) if convert else value, None))
        return cls(compiled.string, parts, metadata)

    def given(self, values: Mapping[str, Any]) -> list[Any]:
        return [
            constant if name is None else convert(values[name]) if convert else values[name]
            for name, constant, convert in self.parts
        ]


class _Changed:
    """The result of a statement without rows."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.rowcount = cursor.rowcount
        self.inserted_primary_key = (cursor.lastrowid,)


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
        sets = distilled_parameters or ({},)
        form = self._form(elem, tuple(sets[0]), is_many=len(sets) > 1)
        if form is None:
            return self._go_whole_way(elem, distilled_parameters, execution_options)
        given = [form.given(values) for values in sets]
        raw = self.engine.wire.dbapi_connection
        try:
            is_one = len(given) == 1
            cursor = raw.execute(form.text, given[0]) if is_one else raw.executemany(form.text, given)
        except sqlite3.Error as error:
            self._handle_dbapi_exception(error, form.text, given, None, None)
        if form.metadata is None:
            return _Changed(cursor)
        return IteratorResult(form.metadata, iter(cursor.fetchall()))

    def _form(self, elem: Any, names: tuple[str, ...], *, is_many: bool) -> _Form | None:
        """None: it has not run yet, or its text follows from the values."""
        forms = self.engine.forms.get(elem)
        if forms is None:
            forms = self.engine.forms[elem] = {}
        form = forms.get((names, is_many))
        if form is not None:
            return form
        compiled, extracted, collected, _ = self._compiled(elem, names, is_many=is_many)
        if compiled not in self.engine.plain:
            return None
        metadata = self.engine.plain[compiled]
        form = _Form.of(
            compiled, names, metadata, extracted_parameters=extracted, _collected_params=collected
        )
        forms[names, is_many] = form
        return form

    def _compiled(self, elem: Any, names: Sequence[str], *, is_many: bool) -> Any:
        return elem._compile_w_cache(
            dialect=self.dialect,
            compiled_cache=self.engine._compiled_cache,
            column_keys=sorted(names),
            for_executemany=is_many,
            schema_translate_map=None,
        )

    def _go_whole_way(self, elem: Any, distilled_parameters: Any, execution_options: Any) -> Any:
        result = super()._execute_clauseelement(elem, distilled_parameters, execution_options)
        names = distilled_parameters[0] if distilled_parameters else ()
        compiled = self._compiled(elem, names, is_many=len(distilled_parameters) > 1)[0]
        if _is_plain(compiled):
            self.engine.plain[compiled] = result._metadata if result.returns_rows else None
        return result


def _is_plain(compiled: SQLCompiler) -> bool:
    """Its text is the same for all values, and what SQLAlchemy adds of its own are constants."""
    is_fixed = not (compiled.post_compile_params or compiled.literal_execute_params)
    are_constants = all(
        column.default is not None and column.default.is_scalar for column in compiled.insert_prefetch
    )
    return is_fixed and are_constants and not (compiled.update_prefetch or compiled.implicit_returning)


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
        self.plain: WeakKeyDictionary[SQLCompiler, Any] = WeakKeyDictionary()
        """Those that have run and are plain, with the metadata of their rows."""
        self.forms: WeakKeyDictionary[Any, dict[tuple[tuple[str, ...], bool], _Form]] = WeakKeyDictionary()
        """By statement, and by which parameters it was given."""

    def raw_connection(self) -> Any:
        return self.wire
