"""Accounts of nodes at RabbitMQ: by its management API, by `rabbitmqctl` on this machine, or by hand."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import httpx

from farm.errors import Unavailable
from farm.flow.joining import account_name, is_own_broker, permissions, virtual_host
from farm.model.ids import NodeId
from farm.text import clean

_LOG = logging.getLogger(__name__)
_PROGRAM: Final = "rabbitmqctl"
_PROGRAM_S: Final = 30.0
_API_S: Final = 10.0


class Accounts:
    """Makes and removes accounts at the broker of `broker_url`.

    `admin_url`: of the management API, with an account that may make others; empty: `rabbitmqctl`.
    """

    def __init__(self, broker_url: str, admin_url: str = "") -> None:
        self._broker_url = broker_url
        self._admin_url = admin_url

    def put(self, node_id: NodeId, password: str) -> None:
        """Make the node's account, or give it this password. Raises Unavailable, saying what is missing."""
        name, allowed = account_name(self._broker_url, node_id), permissions(node_id)
        place = virtual_host(self._broker_url)
        if self._admin_url:
            self._ask("PUT", f"users/{quote(name, safe='')}", {"password": password, "tags": ""})
            self._ask(
                "PUT",
                f"permissions/{quote(place, safe='')}/{quote(name, safe='')}",
                {"configure": allowed.configure, "write": allowed.write, "read": allowed.read},
            )
            return
        self._check_program_is_the_broker_s()
        # The password goes by standard input: what is on a command line, everybody here can read.
        try:
            _run("add_user", name, typed=password)
        except Unavailable:
            _run("change_password", name, typed=password)
        _run("set_permissions", "-p", place, name, allowed.configure, allowed.write, allowed.read)

    def remove(self, node_id: NodeId) -> None:
        """Remove the account; the broker closes its connections. None is fine. Raises Unavailable."""
        name = account_name(self._broker_url, node_id)
        if self._admin_url:
            self._ask("DELETE", f"users/{quote(name, safe='')}", None)
            return
        self._check_program_is_the_broker_s()
        if name in _run("list_users", "--formatter", "json"):
            _run("delete_user", name)

    def _ask(self, method: str, path: str, body: dict[str, str] | None) -> None:
        parts = urlsplit(self._admin_url)
        url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/api/{path}"
        try:
            answer = httpx.request(
                method,
                url,
                json=body,
                auth=(unquote(parts.username or ""), unquote(parts.password or "")),
                timeout=_API_S,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"the broker's management API cannot be reached: {error}") from error
        if not answer.is_success and not (method == "DELETE" and answer.status_code == 404):
            told = clean(answer.text, limit=200, one_line=True)
            raise Unavailable(f"the broker's management API answers {answer.status_code}: {told}")

    def _check_program_is_the_broker_s(self) -> None:
        """`rabbitmqctl` speaks to the broker of this machine: that must be ours. Raises Unavailable."""
        host = urlsplit(self._broker_url).hostname or ""
        if not (is_own_broker(self._broker_url) or _is_of_this_machine(host)):
            raise Unavailable(f"the broker is on another machine, {host}, and broker_admin_url is not set")


def _is_of_this_machine(host: str) -> bool:
    """An address that can be listened at is one of ours."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as trying, contextlib.suppress(OSError):
                trying.bind(address)
                return True
    return False


def _run(*arguments: str, typed: str = "") -> str:
    """Standard output. Raises Unavailable."""
    command: Sequence[str] = (_PROGRAM, "-q", *arguments)
    try:
        done = subprocess.run(
            command, input=f"{typed}\n", capture_output=True, text=True, timeout=_PROGRAM_S, check=False
        )
    except FileNotFoundError:
        raise Unavailable(f"there is no {_PROGRAM} here, and broker_admin_url is not set") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{_PROGRAM} cannot be used: {error}") from error
    if done.returncode != 0:
        told = clean((done.stderr or done.stdout).strip(), limit=200, one_line=True)
        _LOG.info("%s %s: %s", _PROGRAM, arguments[0], told)
        raise Unavailable(f"{_PROGRAM} {arguments[0]}: {told}")
    return done.stdout
