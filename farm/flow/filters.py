"""The one small language in which people say which jobs, tasks, nodes or events they mean.

    state=failed and node~gpu       both; two tests in a row mean `and` too
    state=failed,held or tries>2    a list is "any of them"; `and` binds closer than `or`
    not (user=anna or age>2h)

    =  !=           the same, whatever the case; `none` is "not known" or "nothing"
    ~  !~           a part of the text; with * or ? a pattern for all of it
    <  <=  >  >=    numbers, and amounts such as 90s 5m 2h 1d, 512M 24G, 80%

What the fields are says a table of `Field`: the language knows kinds of values only. There are no regular
expressions in it, so that no filter takes long. A value with blanks or signs goes into quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import translate
from typing import Any, Final, Generic, TypeVar

from farm.errors import UserError
from farm.model.frames import canonical, parse_frames
from farm.text import clean, duration, size

T = TypeVar("T")
Value = str | float | tuple[str, ...] | tuple[int, ...] | None
"""What a field holds: text, a number, several texts, frames, or nothing that is known."""

MAX_TEXT: Final = 10_000
MAX_DEPTH: Final = 40
"""Of parentheses and `not`s."""
NONE: Final = "none"


class Kind(StrEnum):
    TEXT = "text"
    CHOICE = "choice"
    """Text that is one of a known list."""
    NUMBER = "number"
    DURATION = "duration"
    """Seconds."""
    SIZE = "size"
    """MiB."""
    SHARE = "share"
    """0 to 1, typed and shown in per cent."""
    FRAMES = "frames"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Generic[T]):
    """Something that a `T` can be asked for, listed with and filtered by."""

    name: str
    kind: Kind
    of: Callable[[T], Value]
    help: str
    """What it is, in a few words."""
    choices: tuple[str, ...] = ()

    def told(self, thing: T) -> str:
        """For people, raw: show it through `clean()`. Empty for what is not known."""
        value = self.of(thing)
        if value is None or value == ():
            return ""
        if isinstance(value, tuple):
            if self.kind is Kind.FRAMES:
                return canonical(int(frame) for frame in value)
            return ", ".join(map(str, value))
        if isinstance(value, str):
            return value
        if self.kind is Kind.DURATION:
            return duration(value)
        if self.kind is Kind.SIZE:
            return size(value * 2**20)
        if self.kind is Kind.SHARE:
            return f"{value * 100:.0f} %"
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"

    @property
    def is_ordered(self) -> bool:
        """Whether < and > mean something."""
        return self.kind not in (Kind.TEXT, Kind.CHOICE)


Table = Mapping[str, Field[T]]


def table(fields: Iterable[Field[T]]) -> Table[T]:
    return {field.name: field for field in fields}


@dataclass(frozen=True, slots=True)
class Filter(Generic[T]):
    """What was typed, understood. Make one with `parse`."""

    text: str
    _root: _Node

    def __call__(self, thing: T) -> bool:
        return self._root.matches(thing)

    def pinned(self, field: str) -> frozenset[str] | None:
        """Values (lower case) of which `field` must have one in all that match; None: it is left open.

        So that a question to the farm can be narrowed before the answer is filtered here.
        """
        return self._root.pinned(field)


def parse(text: str, fields: Table[T], what: str) -> Filter[T]:
    """`what` the fields are of, in the plural, for messages: "tasks". Empty text matches everything.

    Raises UserError that says what is wrong and names the nearest right thing.
    """
    if len(text) > MAX_TEXT:
        raise UserError(f"the filter is {len(text):,} characters long; the most is {MAX_TEXT:,}")
    return Filter(text, _Parser(text, fields, what).whole())


def find_field(name: str, fields: Table[T], what: str) -> Field[T]:
    """Raises UserError that names the nearest."""
    found = fields.get(name.lower())
    if found is None:
        raise UserError(f"{what} have no field '{_shown(name)}'; {_nearest(name, fields)}")
    return found


def chosen_fields(text: str, fields: Table[T], what: str) -> tuple[Field[T], ...]:
    """Of names between commas, each once. Raises UserError."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UserError(f"'{_shown(text)}': a field is missing beside a comma; there are {_known(fields)}")
    return tuple(dict.fromkeys(find_field(name, fields, what) for name in names))


def ordered(things: Iterable[T], by: str, fields: Table[T], what: str) -> list[T]:
    """Sorted by a field, backwards with `-` before its name; what is not known comes last.

    Raises UserError.
    """
    field = find_field(by.removeprefix("-"), fields, what)

    def key(thing: T) -> Any:
        value = field.of(thing)
        return value.casefold() if isinstance(value, str) else value

    known: list[tuple[Any, T]] = []
    rest: list[T] = []
    for thing in things:
        value = key(thing)
        if value is None or value in ("", ()):
            rest.append(thing)
        else:
            known.append((value, thing))
    known.sort(key=lambda pair: pair[0], reverse=by.startswith("-"))
    return [thing for _, thing in known] + rest


# --- what it means ------------------------------------------------------------------------------------


class _Node:
    def matches(self, thing: Any) -> bool:
        raise NotImplementedError

    def pinned(self, field: str) -> frozenset[str] | None:
        return None


class _Everything(_Node):
    def matches(self, thing: Any) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _All(_Node):
    parts: tuple[_Node, ...]

    def matches(self, thing: Any) -> bool:
        return all(part.matches(thing) for part in self.parts)

    def pinned(self, field: str) -> frozenset[str] | None:
        told = [found for part in self.parts if (found := part.pinned(field)) is not None]
        return frozenset.intersection(*told) if told else None


@dataclass(frozen=True, slots=True)
class _Any(_Node):
    parts: tuple[_Node, ...]

    def matches(self, thing: Any) -> bool:
        return any(part.matches(thing) for part in self.parts)

    def pinned(self, field: str) -> frozenset[str] | None:
        told = [part.pinned(field) for part in self.parts]
        known = [found for found in told if found is not None]
        return frozenset[str]().union(*known) if len(known) == len(told) else None


@dataclass(frozen=True, slots=True)
class _Not(_Node):
    part: _Node

    def matches(self, thing: Any) -> bool:
        return not self.part.matches(thing)


@dataclass(frozen=True, slots=True)
class _Test(_Node):
    field: Field[Any]
    is_true: Callable[[Value], bool]
    exact: frozenset[str] | None = None

    def matches(self, thing: Any) -> bool:
        return self.is_true(self.field.of(thing))

    def pinned(self, field: str) -> frozenset[str] | None:
        return self.exact if self.field.name == field else None


# --- reading ------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<sign>[()]) | (?P<comma>,)
      | (?P<op>!=|!~|<=|>=|==|=|~|<|>)
      | "(?P<double>[^"]*)" | '(?P<single>[^']*)'
      | (?P<word>[^\s()=!~<>"',]+)
      | (?P<wrong>\S)
    )""",
    re.VERBOSE,
)
_WORDS: Final = frozenset({"and", "or", "not"})
_SIGNS: Final = {"&": "and", "&&": "and", "|": "or", "||": "or", "!": "not"}
_NUMBER: Final = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)\s*([a-z%]*)", re.IGNORECASE)
_UNITS: Final[Mapping[Kind, Mapping[str, float]]] = {
    Kind.NUMBER: {"": 1, "k": 1e3},
    Kind.DURATION: {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800},
    Kind.SIZE: {"": 1, "k": 2**-10, "m": 1, "mib": 1, "g": 2**10, "gib": 2**10, "gb": 2**10, "t": 2**20},
    Kind.SHARE: {"%": 0.01, "": 0.01},
}
_EXAMPLE: Final[Mapping[Kind, str]] = {
    Kind.NUMBER: "12",
    Kind.DURATION: "90s, 5m, 2h or 1d",
    Kind.SIZE: "512M or 24G",
    Kind.SHARE: "80%",
    Kind.FRAMES: "7 or 1-20",
}
_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """ "sign", "comma", "op", "word", "text" (in quotes) or "end"."""
    text: str


class _Parser:
    def __init__(self, text: str, fields: Table[Any], what: str) -> None:
        self._fields = fields
        self._what = what
        self._tokens = list(self._read(text))
        self._at = 0
        self._depth = 0

    def whole(self) -> _Node:
        if self._next.kind == "end":
            return _Everything()
        root = self._any()
        if self._next.kind != "end":
            raise self._wrong(f"there is a '{self._next.text}' too many")
        return root

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def _is_word(self, *words: str) -> bool:
        return self._next.kind == "word" and self._next.text.lower() in words

    def _any(self) -> _Node:
        parts = [self._all()]
        while self._is_word("or"):
            self._take()
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else _Any(tuple(parts))

    def _all(self) -> _Node:
        parts = [self._one()]
        while self._next.kind != "end" and self._next != _Token("sign", ")") and not self._is_word("or"):
            if self._is_word("and"):
                self._take()
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else _All(tuple(parts))

    def _one(self) -> _Node:
        if self._is_word("not"):
            self._take()
            return _Not(self._deeper(self._one))
        if self._next == _Token("sign", "("):
            self._take()
            inner = self._deeper(self._any)
            if self._take() != _Token("sign", ")"):
                raise self._wrong("a ) is missing")
            return inner
        return self._test()

    def _deeper(self, read: Callable[[], _Node]) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(f"it is nested more than {MAX_DEPTH} levels deep")
        node = read()
        self._depth -= 1
        return node

    def _test(self) -> _Node:
        token = self._take()
        if token.kind == "end":
            raise self._wrong("something is missing at its end")
        if token.kind != "word" or token.text.lower() in _WORDS:
            raise self._wrong(f"a field must stand before '{_shown(token.text)}', as in {self._example()}")
        if token.text in _SIGNS:
            raise self._wrong(f"write '{_SIGNS[token.text]}' for '{token.text}'")
        if self._next.kind != "op":
            raise self._wrong(self._about_word(token.text))
        field = find_field(token.text, self._fields, self._what)
        sign = self._take().text
        op = "=" if sign == "==" else sign
        return self._made(field, op, self._values(field, op))

    def _values(self, field: Field[Any], op: str) -> list[str]:
        values = []
        while True:
            token = self._take()
            if token.kind not in ("word", "text"):
                told = "is missing" if token.kind == "end" else f"must stand before '{_shown(token.text)}'"
                raise self._wrong(f"a value {told} after {field.name}{op}")
            values.append(token.text)
            if self._next.kind != "comma":
                break
            self._take()
        if self._next.kind == "op":
            raise self._wrong(
                f"put the value after {field.name}{op} into quotes: it holds '{self._next.text}'"
            )
        return values

    def _made(self, field: Field[Any], op: str, values: list[str]) -> _Node:
        if op in _ORDERS:
            if not field.is_ordered:
                raise self._wrong(f"{field.name} is text: use = or ~, not {op}")
            if len(values) > 1:
                raise self._wrong(f"{field.name}{op} takes one value, not {len(values)}")
            limit = self._number(field, values[0])
            order = _ORDERS[op]
            return _Test(field, lambda value: any(order(n, limit) for n in _numbers(value)))
        if op in ("~", "!~"):
            if field.kind not in (Kind.TEXT, Kind.CHOICE):
                raise self._wrong(f"{field.name} is no text: use = < or >, not {op}")
            found = _Test(field, _contains(values))
            return found if op == "~" else _Not(found)
        equal = self._equal(field, values)
        return equal if op == "=" else _Not(equal)

    def _equal(self, field: Field[Any], values: list[str]) -> _Test:
        wanted = [value for value in values if value.lower() != NONE or NONE in field.choices]
        has_none = len(wanted) < len(values)
        if field.kind is Kind.CHOICE:
            for value in wanted:
                self._check_choice(field, value)
        if field.kind in (Kind.TEXT, Kind.CHOICE):
            texts = frozenset(value.casefold() for value in wanted)
            exact = None if has_none or field.kind is Kind.TEXT else texts
            return _Test(
                field,
                lambda value: (has_none and _is_none(value)) or not texts.isdisjoint(_texts(value)),
                exact,
            )
        if field.kind is Kind.FRAMES:
            try:
                numbers = frozenset(map(float, parse_frames(",".join(wanted)) if wanted else ()))
            except UserError as error:
                raise self._wrong(str(error)) from None
        else:
            numbers = frozenset(self._number(field, value) for value in wanted)
        return _Test(
            field,
            lambda value: (has_none and _is_none(value)) or not numbers.isdisjoint(_numbers(value)),
        )

    def _check_choice(self, field: Field[Any], value: str) -> None:
        if value.lower() not in field.choices:
            near = get_close_matches(value.lower(), field.choices, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(field.choices)}"
            raise self._wrong(f"no {field.name} is '{_shown(value)}'; {hint}")

    def _number(self, field: Field[Any], text: str) -> float:
        if field.kind is Kind.FRAMES:
            try:
                frames = parse_frames(text)
            except UserError as error:
                raise self._wrong(str(error)) from None
            if len(frames) != 1:
                raise self._wrong(f"give one frame to compare {field.name} with, not {_shown(text)}")
            return float(frames[0])
        match = _NUMBER.fullmatch(text)
        factor = None if match is None else _UNITS[field.kind].get(match[2].lower())
        if match is None or factor is None or len(text) > 40:
            raise self._wrong(f"{field.name} is a {field.kind}, not '{_shown(text)}': {_EXAMPLE[field.kind]}")
        return float(match[1]) * factor

    def _about_word(self, word: str) -> str:
        for field in self._fields.values():
            if word.lower() in field.choices:
                return f"'{_shown(word)}' alone says nothing: did you mean {field.name}={word.lower()}?"
        if word.lower() in self._fields:
            return f"{word} must be compared with something, as in {self._example(word.lower())}"
        return f"'{_shown(word)}' is no test; write a field, a sign and a value: {self._example()}"

    def _example(self, name: str | None = None) -> str:
        field = self._fields[name] if name else next(iter(self._fields.values()))
        if name is None:
            field = next((f for f in self._fields.values() if f.choices), field)
        if field.choices:
            return f"{field.name}={field.choices[-1]}"
        example = _EXAMPLE.get(field.kind, "text").split(",")[0].split(" ")[0]
        return f"{field.name}{'>' if field.is_ordered else '~'}{example}"

    def _wrong(self, told: str) -> UserError:
        return UserError(f"the filter cannot be read: {told}")

    def _read(self, text: str) -> Iterator[_Token]:
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match is not None  # `wrong` takes whatever is left
            at = match.end()
            kind = match.lastgroup or ""
            found = match[kind]
            if kind == "wrong":
                if found in "\"'":
                    raise self._wrong(f"a {found} is missing: a quoted text does not end")
                raise self._wrong(f"'{_shown(found)}' is no sign of it; {' '.join(_ORDERS)} = != ~ !~ are")
            yield _Token("text" if kind in ("double", "single") else kind, found)
        yield _Token("end", "")


def _is_none(value: Value) -> bool:
    return value is None or value == "" or value == ()


def _texts(value: Value) -> Sequence[str]:
    if value is None:
        return ()
    return [str(part).casefold() for part in (value if isinstance(value, tuple) else (value,))]


def _numbers(value: Value) -> Sequence[float]:
    if value is None or isinstance(value, str):
        return ()
    return [float(part) for part in value] if isinstance(value, tuple) else [float(value)]


def _contains(wanted: Iterable[str]) -> Callable[[Value], bool]:
    patterns = []
    for text in wanted:
        folded = text.casefold()
        is_pattern = "*" in folded or "?" in folded
        # `[` is no sign of ours: people's names hold it.
        shape = translate(folded.replace("[", "[[]")) if is_pattern else f"(?s:.*?{re.escape(folded)})"
        patterns.append(re.compile(shape))
    return lambda value: any(pattern.match(text) for text in _texts(value) for pattern in patterns)


def _nearest(name: str, fields: Table[Any]) -> str:
    close = get_close_matches(name.lower(), fields, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {_known(fields)}"


def _known(fields: Table[Any]) -> str:
    return ", ".join(fields)


def _shown(text: str) -> str:
    return clean(text, limit=60, one_line=True)
