"""`farm limits`: what the whole farm shares, such as licences."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.listing import Listing, Wanted
from farm.cli.naming import Connected
from farm.cli.show import Column, cell
from farm.control.fields import LIMIT_FIELDS
from farm.control.requests import LimitRequest
from farm.control.views import LimitView
from farm.model.limits import LimitScope, check_limit_name
from farm.text import plural

_HOLDERS = 5


def listed(client: Connected, wanted: Wanted) -> None:
    listing = Listing(LimitView, LIMIT_FIELDS, "limits", wanted)
    columns = [
        Column("Limit", shrinks=True, least=10),
        Column("Per"),
        Column("In use", is_right=True),
        Column("Of", is_right=True),
        Column("Waiting", is_right=True),
        Column("Held by", shrinks=True, least=10),
    ]
    empty = "no such limits" if wanted.is_filtered else "no limits: farm limits set NAME N makes one"
    listing.put(listing.matching(client().items("/limits")), columns, _row, empty=empty)


def _row(limit: LimitView) -> list[Any]:
    return [
        cell(limit.name),
        cell(limit.per),
        cell(f"{limit.used:,}", "" if limit.free else "yellow"),
        cell(f"{limit.amount:,}"),
        cell(f"{limit.waiting:,}" if limit.waiting else "-"),
        cell(_holders(limit)),
    ]


def _holders(limit: LimitView) -> str:
    told = [f"job {each.job_id} ({each.tasks:,})" for each in limit.holders[:_HOLDERS]]
    more = len(limit.holders) - _HOLDERS
    return ", ".join(told) + (f" and {plural(more, 'more job')}" if more > 0 else "") or "-"


def put(client: Client, *, name: str, amount: int, per: str, is_json: bool) -> None:
    body = LimitRequest(amount=amount, per=LimitScope(per))
    answer = client.request("PUT", _path(name), body=body)
    if is_json:
        show.data(answer)
        return
    limit = read(LimitView, answer)
    told = f"limit {limit.name}: {limit.amount:,} per {limit.per}, {limit.used:,} in use"
    if limit.used > limit.amount:
        told += "; nothing is stopped, and nothing more starts until enough have ended"
    show.line(told)


def remove(client: Client, name: str, *, is_json: bool) -> None:
    client.request("DELETE", _path(name))
    if is_json:
        show.data({"removed": [name]})
    else:
        show.line(f"limit {name} is removed")


def _path(name: str) -> str:
    return f"/limits/{quote(check_limit_name(name), safe='')}"
