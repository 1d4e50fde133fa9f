"""The text of templates, bundles and environments: YAML or JSON, and nothing that neither could mean."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from farm.errors import UserError
from farm.text import clean

MAX_TEMPLATE_BYTES: Final = 5_000_000
MAX_DEPTH: Final = 32
MAX_INT: Final = 2**63 - 1


def load_template_text(text: str, *, what: str = "the template") -> dict[str, Any]:
    """Read YAML or JSON text into plain dicts, lists, text and numbers.

    Raises UserError for text over 5 MB or nested over 32 levels, for anchors, aliases, tags and keys given
    twice, and for anything JSON could not hold (dates, NaN): all of them are mistakes or attacks in a job.
    """
    size_bytes = len(text.encode("utf-8", "replace"))
    if size_bytes > MAX_TEMPLATE_BYTES:
        raise UserError(f"{what} has {size_bytes:,} bytes; the most is {MAX_TEMPLATE_BYTES:,}")
    text = text.removeprefix("\ufeff")
    value = _load_json(text, what) if text.lstrip().startswith("{") else None
    if value is None:
        value = _load_yaml(text, what)
    check_tree(value, what)
    checked: dict[str, Any] = value
    return checked


def _load_json(text: str, what: str) -> Any:
    """None when it is no JSON: YAML's `{a: 1}` begins alike."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            twice = _first_twice(name for name, _ in pairs)
            raise UserError(f"{what} gives the key '{shown(twice)}' twice in one mapping")
        return made

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise UserError(f"{what} is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError:  # also a number of more than 4,300 digits: YAML refuses it with the place
        return None


def _first_twice(names: Iterable[str]) -> str:
    return Counter(names).most_common(1)[0][0]


def _load_yaml(text: str, what: str) -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    def line(part: Any) -> str:
        return f"line {part.start_mark.line + 1}"

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = [child.value for child, _ in node.value if isinstance(child.value, str)]
            if len(set(names)) < len(names):
                twice = _first_twice(names)
                raise UserError(
                    f"{what}, {line(node)}: the key '{shown(twice)}' is given twice in one mapping"
                )
            return super().construct_mapping(node, deep)

    try:
        depth = 0
        for event in yaml.parse(text, Loader=base):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise UserError(f"{what}, {line(event)}: anchors (&) and aliases (*) are refused")
            if getattr(event, "tag", None) not in (None, "!"):
                raise UserError(f"{what}, {line(event)}: tags (!) are refused")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise UserError(f"{what} is nested more than {MAX_DEPTH} levels deep")
        return yaml.load(text, Loader=Loader)  # a subclass of the safe loader
    except (yaml.YAMLError, ValueError, LookupError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        told = clean(str(getattr(error, "problem", None) or error), limit=200, one_line=True)
        raise UserError(f"{what}{place} is neither YAML nor JSON: {told}") from error


def check_tree(value: Any, what: str) -> None:
    """Raise UserError unless `value` is a tree that JSON can hold and that is not too deep. No recursion."""
    if not isinstance(value, dict):
        raise UserError(f"{what} must be a mapping of names to values, as in 'name: value' lines")
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise UserError(f"{what} is nested more than {MAX_DEPTH} levels deep")
        if isinstance(node, dict):
            for key, child in node.items():
                if not isinstance(key, str):
                    raise UserError(f"{what} has the key {shown(repr(key))}, which is no text: quote it")
                check_text(key, f"a key of {what}")
                stack.append((child, depth + 1))
        elif isinstance(node, list):
            stack.extend((child, depth + 1) for child in node)
        elif isinstance(node, str):
            check_text(node, what)
        elif isinstance(node, float):
            if not math.isfinite(node):
                raise UserError(f"{what} holds {node}, which is no finite number")
        elif isinstance(node, int):
            if abs(node) > MAX_INT:
                raise UserError(f"{what} holds a number that does not fit 64 bits")
        elif node is not None:
            raise UserError(f"{what} holds {shown(str(node))} as a {type(node).__name__}: put it in quotes")


def check_text(text: str, what: str) -> None:
    if "\0" in text:
        raise UserError(f"{what} holds a NUL character: {shown(text)}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"{what} holds half a character (a lone surrogate): {shown(text)}") from None


def shown(text: str) -> str:
    """Text that people typed, for the middle of a message."""
    return clean(text, limit=80, one_line=True)
