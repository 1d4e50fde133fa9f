"""`farm parked`: messages that nobody could read. Runs on the server: it needs the broker's address."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict

from farm.broker import parked
from farm.cli import show
from farm.cli.show import Column
from farm.errors import UserError
from farm.settings import Settings
from farm.text import plural, size

COLUMNS = (
    Column(title="ID"),
    Column(title="PARKED"),
    Column(title="TO", shrinks=True),
    Column(title="BY", shrinks=True),
    Column(title="KIND"),
    Column(title="WIRE", is_right=True),
    Column(title="SIZE", is_right=True),
    Column(title="WHY", shrinks=True, least=10),
)


def show_parked(settings: Settings, *, is_json: bool) -> None:
    found = parked.listed(_broker(settings))
    if is_json:
        show.data([asdict(message) for message in found])
        return
    now = time.time()
    show.table(
        COLUMNS,
        [
            [
                show.cell(message.id),
                show.cell(show.when(message.at, now) if message.at else "?"),
                show.cell(message.queue),
                show.cell(message.by or "?"),
                show.cell(message.kind or "?"),
                show.cell("?" if message.wire is None else message.wire),
                show.cell(size(message.size_bytes)),
                show.cell(message.reason),
            ]
            for message in found
        ],
        empty="nothing is parked",
    )


def replay(settings: Settings, ids: Sequence[str], *, takes_all: bool) -> None:
    count = parked.replay(_broker(settings), _chosen(ids, takes_all))
    show.line(f"{plural(count, 'message')} sent on; `farm parked` shows what could not be read again")


def drop(settings: Settings, ids: Sequence[str], *, takes_all: bool) -> None:
    count = parked.drop(_broker(settings), _chosen(ids, takes_all))
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
