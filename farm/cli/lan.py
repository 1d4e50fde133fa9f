"""`farm serve --lan`: the server for the machines of this network, and what to type on them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

from farm.errors import Unavailable, UserError
from farm.settings import Settings, load_settings
from farm.text import duration

_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address that is nobody's: asking for the way there sends nothing, and names our own address."""
CODE_LIFE_S: Final = 3600.0


def lan_address() -> str:
    """This machine's address in its network. Raises UserError when there is none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect(_ELSEWHERE)
            address = str(asking.getsockname()[0])
    except OSError as error:
        raise UserError(f"this machine has no network ({error.strerror}): --lan is of no use") from error
    if address.startswith("127."):
        raise UserError("this machine has no address but its own: --lan is of no use")
    return address


def lan_settings(address: str) -> Settings:
    """The settings, for every interface; without a certificate too, as --lan asks for it."""
    given = load_settings()
    hosts = dict.fromkeys((*given.api_allowed_hosts, address, socket.gethostname()))
    return load_settings(
        api_host="0.0.0.0",
        api_insecure=given.api_insecure or given.api_tls_certificate is None,
        api_allowed_hosts=tuple(hosts),
    )


def own_code(settings: Settings) -> str | None:
    """A code for one machine to join; None when the database is not ready for it."""
    from farm.store import invites, schema
    from farm.store.engine import open_engine, writing

    engine = open_engine(settings.database)
    try:
        schema.check(engine)
        with writing(engine) as db:
            return invites.create(
                db,
                life_s=CODE_LIFE_S,
                node_id=None,
                needs_approval=settings.join_needs_approval,
                actor="serve --lan",
            )[0]
    except (UserError, Unavailable):
        return None  # the server itself says what is wrong
    finally:
        engine.dispose()


def what_to_type(settings: Settings, address: str, code: str | None) -> Sequence[str]:
    """Lines for people on other machines."""
    scheme = "http" if settings.api_tls_certificate is None else "https"
    url = f"{scheme}://{address}:{settings.api_port}"
    lines = [f"the farm answers this network at {url}"]
    if scheme == "http":
        lines.append("without TLS, so on a network that you trust: set api_tls_certificate and api_tls_key")
    lines += [
        "",
        "who submits, on another machine:",
        f"  export FARM_API_URL={url} FARM_API_TOKEN=...    (from: farm token create NAME)",
        "  farm jobs",
        "",
        f"a machine that renders (one, within {duration(CODE_LIFE_S)}; for more: farm invite):"
        if code
        else "a machine that renders, with a code from `farm invite`:",
        f"  farm join {url} --code {code or 'CODE'}",
        "  farm worker",
        "",
        "then, here: farm nodes",
    ]
    if settings.join_needs_approval:
        lines.append("            farm enrol NODE")
    return lines
