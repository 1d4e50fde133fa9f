"""`farm token`: who may talk to the farm."""

from __future__ import annotations

import re
from urllib.parse import quote

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.listing import Listing, Wanted
from farm.cli.naming import Connected
from farm.cli.show import Column, cell
from farm.control.access_views import NewTokenView, TokenView
from farm.control.fields import TOKEN_FIELDS
from farm.control.requests import TokenRequest
from farm.errors import UserError


def create(client: Client, *, name: str, user: str, role: str, is_json: bool) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}", name):
        raise UserError("a token's name has 1 to 63 letters, digits and . _ @ -, such as anna-laptop")
    answer = client.post("/tokens", TokenRequest(name=name, user=user, role=role))
    if is_json:
        show.data(answer)
        return
    made = read(NewTokenView, answer)
    show.line(made.token)
    show.note(f"this is shown once; {made.user} puts it into farm.toml as api_token, or into FARM_API_TOKEN")


def listed(client: Connected, wanted: Wanted) -> None:
    listing = Listing(TokenView, TOKEN_FIELDS, "tokens", wanted)
    listing.put(
        listing.matching(client().items("/tokens")),
        [Column("Name", shrinks=True, least=12), Column("User", shrinks=True), Column("Role")],
        lambda token: [cell(token.name), cell(token.user), cell(token.role)],
        empty="no such tokens" if wanted.is_filtered else "no tokens",
    )


def revoke(client: Client, name: str, *, is_json: bool) -> None:
    client.request("DELETE", f"/tokens/{quote(name, safe='')}")
    if is_json:
        show.data({"revoked": [name]})
    else:
        show.line(f"token {name} is revoked")
