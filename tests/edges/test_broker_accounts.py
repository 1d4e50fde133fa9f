"""Accounts of nodes by RabbitMQ's management API: what is asked of it, and what its refusals are told as."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import pytest

from farm.broker.accounts import Accounts
from farm.errors import Unavailable
from farm.flow.joining import account_name, permissions
from farm.model.ids import NodeId

BROKER = "amqp://farm:secret@broker.studio.example:5672/render/main"
NODE = NodeId("blade.7")
NAME = quote(account_name(BROKER, NODE), safe="")


@dataclass
class Management:
    port: int = 0
    status: int = 204
    answer: str = ""
    asked: list[tuple[str, str, str, Any]] = field(default_factory=list)
    """(method, path as sent, who, body)"""

    def accounts(self) -> Accounts:
        return Accounts(BROKER, f"http://farm%2Fadmin:p%40ss%2541@127.0.0.1:{self.port}/rabbit/")


@pytest.fixture
def management() -> Iterator[Management]:
    stub = Management()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            who = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            stub.asked.append((self.command, self.path, who, json.loads(raw) if raw else None))
            self.send_response(stub.status)
            self.send_header("Content-Length", str(len(stub.answer)))
            self.end_headers()
            self.wfile.write(stub.answer.encode())

        do_PUT = do_DELETE = _serve  # noqa: N815 - http.server asks for these

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_the_account_is_made_with_its_permissions_in_the_farm_s_virtual_host(management: Management) -> None:
    management.accounts().put(NODE, "of/blade@7")
    allowed = permissions(NODE)
    who = "farm/admin:p@ss%41"
    assert management.asked == [
        ("PUT", f"/rabbit/api/users/{NAME}", who, {"password": "of/blade@7", "tags": ""}),
        (
            "PUT",
            f"/rabbit/api/permissions/render%2Fmain/{NAME}",
            who,
            {"configure": allowed.configure, "write": allowed.write, "read": allowed.read},
        ),
    ]


def test_an_account_that_is_not_there_is_removed_without_a_word(management: Management) -> None:
    management.status = 404
    management.accounts().remove(NODE)
    [(method, path, _, body)] = management.asked
    assert (method, path, body) == ("DELETE", f"/rabbit/api/users/{NAME}", None)


@pytest.mark.parametrize("status", [401, 403, 404, 500, 302])
def test_a_refusal_is_told_in_clean_words_and_without_passwords(management: Management, status: int) -> None:
    management.status, management.answer = status, "not \x1b[2Jauthorised\n" + "x" * 500
    with pytest.raises(Unavailable, match=f"management API answers {status}: not .*authorised") as error:
        management.accounts().put(NODE, "of/blade@7")
    told = str(error.value)
    assert told.isprintable()
    assert len(told) < 300
    assert not any(secret in told for secret in ("p@ss", "p%40ss", "of/blade@7"))
    assert len(management.asked) == 1, "no permissions for an account that was not made"


def test_a_broker_that_does_not_answer_is_told() -> None:
    with pytest.raises(Unavailable, match="cannot be reached") as error:
        Accounts(BROKER, "http://admin:hidden@127.0.0.1:9").put(NODE, "of/blade@7")
    assert "hidden" not in str(error.value)
