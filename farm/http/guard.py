"""The gate before every route: host, origin, token, and a body that is sane JSON of bearable size.

Plain ASGI, outermost, so that no route can forget it: unknown paths and wrong methods need a token too.
"""

from __future__ import annotations

import json
import logging
import math
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

import anyio
from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect

from farm.control.desk import Desk
from farm.control.desk.callers import Caller
from farm.errors import Unavailable
from farm.store.tokens import NODE_ROLE, TokenOwner
from farm.text import clean

_LOG = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS: Final = frozenset({"/healthz"})
JOIN_PATH: Final = "/api/v1/join"
"""A POST there needs no token: its body has the code that was given to the machine."""
ACCOUNT_PATH: Final = f"{JOIN_PATH}/account"
"""All that a node's token is good for."""
STRANGER: Final = TokenOwner(name="", user="", role="none")
MAX_DEPTH: Final = 64
"""Of a body. A template may nest 32 deep; the submission around it adds little."""
BODY_TIMEOUT_S: Final = 60.0
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_MAX_INT: Final = 2**63 - 1
_TOKEN: Final = re.compile(r"Bearer ([\x21-\x7e]{1,512})", re.IGNORECASE)
_PORT: Final = re.compile(r":\d{1,5}$")


class Refused(Exception):
    """Answer with this status and text."""

    def __init__(self, status: int, kind: str, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind
        self.text = text
        self.headers = dict(headers or {})


def error_body(kind: str, text: str) -> dict[str, dict[str, str]]:
    """The one shape of an error. Surrogates cannot be encoded and are shown as escapes."""
    return {"error": {"kind": kind, "message": clean(text, limit=20_000)}}


class Guard:
    def __init__(self, app: App, *, desk: Desk, hosts: frozenset[str], max_body_bytes: int) -> None:
        self._app = app
        self._desk = desk
        self._hosts = hosts
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # there are none here
            return
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, await self._checked(scope, receive), watched)
        except Refused as refusal:
            await _answer(send, refusal)
        except Unavailable as error:
            if has_begun:
                raise
            await _answer(send, Refused(503, "unavailable", str(error), {"Retry-After": "1"}))
        except ClientDisconnect:
            return
        except Exception as error:  # the edge: the caller gets no details, the log gets them all
            number = uuid.uuid4().hex[:12]
            _LOG.error("error %s in %s %s", number, scope["method"], _shown(scope["path"]), exc_info=error)
            if has_begun:
                raise
            text = f"the farm made an error; its log has more under {number}"
            await _answer(send, Refused(500, "internal", text))

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        headers = _headers(scope)
        self._check_host(headers)
        self._check_origin(headers)
        if scope["path"] in OPEN_PATHS:
            return receive
        caller = await self._caller(scope, headers)
        if caller.owner.role == NODE_ROLE and scope["path"] != ACCOUNT_PATH:
            raise Refused(403, "forbidden", "this token is a node's, which may ask for its own account only")
        scope.setdefault("state", {})["caller"] = caller
        if "\0" in scope["path"] or b"\0" in unquote_to_bytes(scope.get("query_string", b"")):
            raise Refused(422, "user-error", "the address holds a NUL character")
        if scope["method"] not in _WRITES:
            return receive
        body = await self._body(headers, receive)
        if body:
            _check_type(headers)
            await run_sync(check_json, body)
        return _replay(body, receive)

    def _check_host(self, headers: Mapping[str, list[str]]) -> None:
        """Against DNS rebinding: a web page must not reach us under a name of its own."""
        given = headers.get("host", [])
        if len(given) != 1 or _host_name(given[0]) not in self._hosts:
            shown = _shown(given[0]) if given else "none"
            raise Refused(
                400,
                "user-error",
                f"this farm does not answer to the host name {shown}; add it to api_allowed_hosts",
            )

    def _check_origin(self, headers: Mapping[str, list[str]]) -> None:
        for origin in headers.get("origin", []):
            try:
                name = urlsplit(origin).hostname
            except ValueError:
                name = None
            if name not in self._hosts:
                raise Refused(403, "forbidden", f"requests from pages of {_shown(origin)} are not taken")

    async def _caller(self, scope: Scope, headers: Mapping[str, list[str]]) -> Caller:
        given = headers.get("authorization", [])
        match = _TOKEN.fullmatch(given[0]) if len(given) == 1 else None
        owner = await run_sync(self._desk.access.owner, match[1]) if match is not None else None
        if not given and (scope["method"], scope["path"]) == ("POST", JOIN_PATH):
            owner = STRANGER
        if owner is None:
            told = (
                "the token is not known: it was revoked, or is another farm's"
                if match
                else "a token is needed"
            )
            raise Refused(
                401,
                "no-token",
                f"{told}; send Authorization: Bearer <token>",
                {"WWW-Authenticate": "Bearer"},
            )
        client = scope.get("client")
        return Caller(
            owner=owner,
            ip=client[0] if client else "",
            method=scope["method"],
            path=clean(scope["path"], limit=500, one_line=True),
        )

    async def _body(self, headers: Mapping[str, list[str]], receive: Receive) -> bytes:
        most = self._max_body_bytes
        too_large = Refused(
            413,
            "too-large",
            f"the request is larger than {most:,} bytes (max_body_bytes)",
            {"Connection": "close"},
        )
        length = headers.get("content-length", ["0"])[0]
        if not length.isascii() or not length.isdigit() or int(length[:20]) > most:
            raise too_large
        pieces: list[bytes] = []
        size = 0
        with anyio.move_on_after(BODY_TIMEOUT_S) as waited:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "user-error", "the request was cut short")
                piece = message.get("body", b"")
                size += len(piece)
                if size > most:
                    raise too_large
                pieces.append(piece)
                if not message.get("more_body", False):
                    break
        if waited.cancelled_caught:
            raise Refused(408, "user-error", f"the request did not come within {BODY_TIMEOUT_S:.0f} s")
        return b"".join(pieces)


def host_names(configured: tuple[str, ...], *, api_host: str, own: str) -> frozenset[str]:
    """The `Host` names to answer to. `own`: this machine's name."""
    names = {"localhost", "127.0.0.1", "::1", own, own.split(".")[0], *configured}
    if api_host not in ("0.0.0.0", "::", ""):
        names.add(api_host)
    return frozenset(_host_name(name) for name in names if name)


def _host_name(text: str) -> str:
    """Of a `Host` header: without port, brackets and the root's dot, in lower case."""
    name = text.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    if name.count(":") > 1:
        return name
    return _PORT.sub("", name).rstrip(".")


def check_json(body: bytes) -> None:
    """Raise Refused unless `body` is JSON that later stages can hold.

    Python's reader takes NaN, 1e999 and lone surrogates, which then fail in the answer or in the database.
    """
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        told = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Refused(422, "user-error", f"the request is no JSON that can be read: {told}") from None
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise Refused(422, "user-error", f"the request is nested more than {MAX_DEPTH} levels deep")
        if isinstance(node, dict):
            for key, child in node.items():
                _check_text(key)
                stack.append((child, depth + 1))
        elif isinstance(node, list):
            stack.extend((child, depth + 1) for child in node)
        elif isinstance(node, str):
            _check_text(node)
        elif isinstance(node, float):
            if not math.isfinite(node):
                raise Refused(422, "user-error", "the request holds a number that is too large")
        elif isinstance(node, int) and abs(node) > _MAX_INT:
            raise Refused(422, "user-error", "the request holds a number that does not fit 64 bits")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check_text(text: str) -> None:
    if "\0" in text:
        raise Refused(422, "user-error", f"the request holds a NUL character in {_shown(text)}")
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise Refused(422, "user-error", f"the request holds half a character in {_shown(text)}")


def _check_type(headers: Mapping[str, list[str]]) -> None:
    kind = headers.get("content-type", [""])[0].partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(
            415, "user-error", f"the request must be application/json, not {_shown(kind) or 'without a type'}"
        )


def _headers(scope: Scope) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _replay(body: bytes, receive: Receive) -> Receive:
    is_given = False

    async def replayed() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _answer(send: Send, refusal: Refused) -> None:
    body = json.dumps(error_body(refusal.kind, refusal.text)).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **refusal.headers}
    raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _shown(text: str) -> str:
    return clean(text, limit=80, one_line=True)
