"""`farm parked`: messages that nobody could read. Runs on the server: it needs the broker's address."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from farm.broker import parked
from farm.broker.parked import Parked
from farm.cli import show
from farm.cli.listing import Listing, Wanted
from farm.cli.show import Column
from farm.errors import UserError
from farm.flow.filters import Field, Kind, Table, table
from farm.settings import Settings
from farm.text import plural, size

COLUMNS = (
    Column(title="ID"),
    Column(title="Parked"),
    Column(title="To", shrinks=True),
    Column(title="By", shrinks=True),
    Column(title="Kind"),
    Column(title="Wire", is_right=True),
    Column(title="Size", is_right=True),
    Column(title="Why", shrinks=True, least=10),
)


def fields_of(now: float) -> Table[Parked]:
    return table(
        (
            Field(name="id", kind=Kind.TEXT, of=lambda message: message.id, help="what it is called"),
            Field(name="to", kind=Kind.TEXT, of=lambda message: message.queue, help="where it was going"),
            Field(name="by", kind=Kind.TEXT, of=lambda message: message.by, help="who could not read it"),
            Field(name="kind", kind=Kind.TEXT, of=lambda message: message.kind, help="what it says it is"),
            Field(
                name="wire",
                kind=Kind.NUMBER,
                of=lambda message: message.wire,
                help="of this version of the wire",
            ),
            Field(
                name="size",
                kind=Kind.SIZE,
                of=lambda message: message.size_bytes / 2**20,
                help="how long it is",
            ),
            Field(
                name="age",
                kind=Kind.DURATION,
                of=lambda message: max(now - message.at, 0.0) if message.at else None,
                help="since it was parked",
            ),
            Field(name="why", kind=Kind.TEXT, of=lambda message: message.reason, help="why it was parked"),
        )
    )


def show_parked(settings: Settings, wanted: Wanted) -> None:
    now = time.time()
    listing = Listing(Parked, fields_of(now), "parked messages", wanted)
    found = [(message, asdict(message)) for message in parked.listed(_broker(settings))]

    def row(message: Parked) -> list[Any]:
        return [
            show.cell(message.id),
            show.cell(show.when(message.at, now) if message.at else "?"),
            show.cell(message.queue),
            show.cell(message.by or "?"),
            show.cell(message.kind or "?"),
            show.cell("?" if message.wire is None else message.wire),
            show.cell(size(message.size_bytes)),
            show.cell(message.reason),
        ]

    listing.put([pair for pair in found if listing.filter(pair[0])], COLUMNS, row, empty="nothing is parked")


def replay(settings: Settings, ids: Sequence[str], *, takes_all: bool, is_json: bool) -> None:
    count = parked.replay(_broker(settings), _chosen(ids, takes_all))
    if is_json:
        show.data({"replayed": count})
        return
    show.line(f"{plural(count, 'message')} sent on; `farm parked` shows what could not be read again")


def drop(settings: Settings, ids: Sequence[str], *, takes_all: bool, is_json: bool) -> None:
    count = parked.drop(_broker(settings), _chosen(ids, takes_all))
    if is_json:
        show.data({"dropped": count})
        return
    show.line(f"{plural(count, 'message')} dropped")


def _chosen(ids: Sequence[str], takes_all: bool) -> Collection[str]:
    if takes_all == bool(ids):
        raise UserError("name messages by their ids (`farm parked` lists them), or say --all")
    return frozenset(ids)


def _broker(settings: Settings) -> str:
    if settings.is_embedded:
        raise UserError(
            "the embedded broker is inside `farm up` and parks nothing for others: set broker_url to RabbitMQ"
        )
    return settings.broker_url
