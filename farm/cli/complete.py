"""What the shell offers after Tab: jobs, nodes, states and fields. Silent when the farm is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import Any, Final

from farm.cli import client
from farm.cli.show import shown
from farm.control.detail_fields import EVERY_FIELD
from farm.errors import FarmError
from farm.flow.filters import Field
from farm.settings import load_settings
from farm.silence import no_log

Offer = tuple[str, str]
"""(what is typed, what it is)"""
_MOST_JOBS: Final = 50
_PATIENCE_S: Final = 0.0


def jobs(typed: str) -> list[Offer]:
    """The newest, by number, with their names."""

    def offers(farm: client.Client) -> Iterator[Offer]:
        for view in farm.get("/jobs", limit=_MOST_JOBS)["items"]:
            yield str(view["job"]["id"]), f"{view['job']['name']}, {view['job']['state']}"

    return _starting(_asked(offers), typed)


def nodes(typed: str) -> list[Offer]:
    found = _asked(
        lambda farm: ((str(node["id"]), str(node["state"])) for node in farm.get("/nodes")["items"])
    )
    return _starting(found, typed)


def hooks(typed: str) -> list[Offer]:
    found = _asked(
        lambda farm: ((str(hook["name"]), str(hook["kind"])) for hook in farm.get("/hooks")["items"])
    )
    return _starting(found, typed)


def lists(typed: str) -> list[Offer]:
    return _starting(((name, "") for name in EVERY_FIELD), typed)


def states(typed: str, of: str) -> list[Offer]:
    return _starting(((name, "") for name in EVERY_FIELD[of](0.0)["state"].choices), typed)


def columns(typed: str, of: str) -> list[Offer]:
    """Fields between commas: the last one is completed."""
    before, comma, last = typed.rpartition(",")
    offers = _starting(((field.name, field.help) for field in EVERY_FIELD[of](0.0).values()), last)
    return [(before + comma + name, told) for name, told in offers]


def order(typed: str, of: str) -> list[Offer]:
    minus = "-" if typed.startswith("-") else ""
    return [(minus + name, told) for name, told in columns(typed.removeprefix("-"), of)]


def filters(typed: str, of: str) -> list[Offer]:
    """The last word of a filter: a field, or a value of one that has a known list."""
    before, blank, word = typed.rpartition(" ")
    name, equals, value = word.partition("=")
    field = EVERY_FIELD[of](0.0).get(name.removesuffix("!"))
    if equals and field is not None:
        listed, comma, last = value.rpartition(",")
        offers = _starting(((choice, "") for choice in field.choices), last)
        return [(f"{before}{blank}{name}={listed}{comma}{choice}", told) for choice, told in offers]
    offers = _starting(((_begun(field), field.help) for field in EVERY_FIELD[of](0.0).values()), word)
    return [(before + blank + begun, told) for begun, told in offers]


def job_or_filter(typed: str, of: str) -> list[Offer]:
    return [*(jobs(typed) if typed.isdigit() or not typed else ()), *filters(typed, of)]


def _begun(field: Field[Any]) -> str:
    return field.name if field.is_ordered else f"{field.name}{'=' if field.choices else '~'}"


def _starting(offers: Iterable[Offer], typed: str) -> list[Offer]:
    return [(shown(name), shown(told, 60)) for name, told in offers if name.startswith(typed)]


def _asked(ask: Callable[[client.Client], Iterable[Offer]]) -> list[Offer]:
    """What `ask` makes of the farm's answers; nothing where the farm can't be asked or answers strangely."""
    with (
        no_log(),  # a warning would be read as an offer
        suppress(FarmError, KeyError, TypeError),
        closing(client.connect(load_settings(), patience_s=_PATIENCE_S)) as farm,
    ):
        return list(ask(farm))
    return []
