"""Every list command's common part: filters, columns, order, JSON, and names alone for scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Generic, TypeVar

from farm.cli import show
from farm.cli.answers import read
from farm.cli.show import Column, cell
from farm.errors import UserError
from farm.flow.filters import Field, Kind, Table, chosen_fields, find_field, ordered, parse

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a list was asked for."""

    words: tuple[str, ...] = ()
    """The filter as it was typed; the shell may have cut it at its blanks."""
    columns: str | None = None
    sort: str | None = None
    is_quiet: bool = False
    is_json: bool = False

    @property
    def is_filtered(self) -> bool:
        return bool(" ".join(self.words).strip())

    @property
    def is_for_scripts(self) -> bool:
        return self.is_json or self.is_quiet


class Listing(Generic[T]):
    """Understands what was asked before the farm is; the first of `fields` names a thing."""

    def __init__(self, kind: type[T], fields: Table[T], what: str, wanted: Wanted) -> None:
        """Raises UserError that names the nearest right thing."""
        self._kind = kind
        self._fields = fields
        self._wanted = wanted
        self._what = what
        self.filter = parse(" ".join(wanted.words), fields, what)
        self._columns: tuple[Field[T], ...] = ()
        if wanted.columns is not None:
            is_all = wanted.columns.strip().lower() == "all"
            self._columns = tuple(fields.values()) if is_all else chosen_fields(wanted.columns, fields, what)
        if wanted.sort is not None:
            find_field(wanted.sort.removeprefix("-"), fields, what)
        if wanted.is_quiet and (wanted.is_json or wanted.columns is not None):
            raise UserError("--quiet prints names alone: leave --json and --columns away")

    def matching(self, answers: Iterable[Any]) -> Iterator[tuple[T, Any]]:
        """Those of the API's objects that the filter lets through, read and as they came."""
        for answer in answers:
            thing = read(self._kind, answer)
            if self.filter(thing):
                yield thing, answer

    def put(
        self,
        found: Iterable[tuple[T, Any]],
        columns: Sequence[Column],
        row: Callable[[T], Sequence[Any]],
        *,
        empty: str,
        limit: int | None = None,
    ) -> bool:
        """Print them; `columns` and `row` are of the table that is shown when nobody chose columns.

        Returns whether there were more than `limit` rows for the table; JSON and names are never cut.
        """
        wanted = self._wanted
        if wanted.sort is not None:
            pairs = list(found)
            raw = {id(thing): answer for thing, answer in pairs}
            things = ordered((thing for thing, _ in pairs), wanted.sort, self._fields, self._what)
            found = [(thing, raw[id(thing)]) for thing in things]
        if wanted.is_quiet:
            name = next(iter(self._fields.values()))
            for thing, _ in found:
                show.line(str(name.of(thing)))
            return False
        if wanted.is_json:
            show.data([self._object(thing, answer) for thing, answer in found])
            return False
        shown: list[T] = []
        is_cut = False
        for thing, _ in found:
            if limit is not None and len(shown) == limit:
                is_cut = True
                break
            shown.append(thing)
        if self._columns:
            columns, row = self._own_columns(), self._own_row
        show.table(columns, map(row, shown), empty=empty)
        return is_cut

    def put_chosen(self, things: Iterable[T], *, empty: str) -> bool:
        """Print `things` with the columns that were chosen; False when none were: they are told otherwise."""
        if self._columns:
            self.put(((thing, None) for thing in things), (), lambda _: (), empty=empty)
        return bool(self._columns)

    def _object(self, thing: T, answer: Any) -> Any:
        return {field.name: field.of(thing) for field in self._columns} if self._columns else answer

    def _own_columns(self) -> list[Column]:
        return [
            Column(
                field.name.capitalize(),
                is_right=field.is_ordered and field.kind is not Kind.FRAMES,
                shrinks=field.kind is Kind.TEXT,
            )
            for field in self._columns
        ]

    def _own_row(self, thing: T) -> list[Any]:
        return [
            show.state(field.told(thing)) if field.kind is Kind.CHOICE else cell(field.told(thing))
            for field in self._columns
        ]


_LANGUAGE: Final = (
    ("state=failed and node~gpu", "both; two tests in a row mean `and` too"),
    ("state=failed,held or tries>2", "a list is any of them; `and` binds closer than `or`"),
    ("not (user=anna or age>2h)", "`not`, and parentheses"),
    ("=  !=", "the same, whatever the case; `none` is not known, or nothing"),
    ("~  !~", "a part of the text; with * or ? a pattern for all of it"),
    ("<  <=  >  >=", "numbers, and 90s 5m 2h 1d, 512M 24G, 80%"),
)


def explain(of: str | None, *, is_json: bool) -> None:
    """Print the language and the fields of one list, or of all. Raises UserError."""
    from farm.control.detail_fields import EVERY_FIELD

    tables: dict[str, Table[Any]] = {name: fields(0.0) for name, fields in EVERY_FIELD.items()}
    if of is not None and of not in tables:
        near = get_close_matches(of.lower(), tables, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(tables)}"
        raise UserError(f"nothing that is listed is called '{show.shown(of, 40)}'; {hint}")
    chosen = tables if of is None else {of: tables[of]}
    if is_json:
        show.data(
            {
                name: [
                    {"name": f.name, "kind": f.kind, "help": f.help, "choices": list(f.choices)}
                    for f in fields.values()
                ]
                for name, fields in chosen.items()
            }
        )
        return
    show.facts((text, meaning) for text, meaning in _LANGUAGE)
    for name, fields in chosen.items():
        print()
        show.table(
            [Column(name.capitalize()), Column("Kind"), Column("Meaning", shrinks=True, least=20)],
            ([cell(field.name), cell(field.kind), show.words(_meaning(field))] for field in fields.values()),
            empty="",
        )


def _meaning(field: Field[Any]) -> str:
    return f"{field.help}: {', '.join(field.choices)}" if field.choices else field.help
