"""`farm serve --lan`: the server for the machines of this network, and what to type on them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from farm.errors import UserError
from farm.settings import Settings, load_settings

_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address that is nobody's: asking for the way there sends nothing, and names our own address."""
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1", ""})


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


def what_to_type(settings: Settings, address: str) -> Sequence[str]:
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
        "a machine that renders:",
    ]
    broker = urlsplit(settings.broker_url)
    if (broker.hostname or "") in _HERE:
        lines += [
            f"  the broker is at {broker.hostname or 'this process'}, which other machines cannot reach:",
            f"  let RabbitMQ listen at {address}, with an account of each node's own:",
            "    rabbitmqctl add_user NODE PASSWORD; rabbitmqctl set_permissions NODE '.*' '.*' '.*'",
            f"  export FARM_BROKER_URL=amqp://NODE:PASSWORD@{address}{broker.path or '//'}",
        ]
    else:
        port = f":{broker.port}" if broker.port else ""
        lines.append(
            f"  export FARM_BROKER_URL={broker.scheme}://NODE:PASSWORD@{broker.hostname}{port}{broker.path}"
        )
    return [*lines, "  farm worker", "", "then, here: farm nodes"]
