"""The HTTP client that every command uses: one door to the farm, clear errors, short patience."""

from __future__ import annotations

import ipaddress
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Final

from farm.cli.answers import read
from farm.errors import Forbidden, NotFound, Rejected, Unavailable, UserError
from farm.model.events import Event
from farm.settings import Settings

# httpx has a command line of its own, whose libraries cost a tenth of a second: it does without them.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
import httpx  # noqa: E402

CLIENT_FILE: Final = "client.json"
"""In `state_dir`, mode 0600, written by the server: {"url": ..., "token": ...}."""
DEFAULT_PORT: Final = 7450
PATIENCE_S: Final = 5.0
"""How long a farm that says "not now" (503) is asked again."""
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 2.0
_TIMEOUT: Final = httpx.Timeout(30.0, connect=3.0)
_PROXY: Final = (502, 504)
"""A proxy's word that it got no answer: the request may have been done."""
_STREAM_SILENCE_S: Final = 45.0
"""The server sends a comment every 15 s; three missed mean that the connection is dead."""


class Client:
    """Speaks to one farm. `transport` is for tests that answer in this process; `advice` is what to do when
    nobody answers."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience_s: float = PATIENCE_S,
        transport: httpx.BaseTransport | None = None,
        advice: str = "start one with `farm up`, or set api_url",
    ) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._advice = advice
        if not (token.isascii() and token.isprintable()):
            raise UserError("api_token holds a character that no token has: copy it again, whole")
        try:
            self._http = httpx.Client(
                base_url=f"{self.url}/api/v1",
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=_TIMEOUT,
                transport=transport,
                # A proxy for the outer world must not be asked for this very machine.
                trust_env=not _is_loopback(self.url),
                # Reading the world's certificates costs more than most commands: only where they are used.
                verify=not self.url.startswith("http:"),
            )
        except (httpx.InvalidURL, UnicodeError) as error:
            raise UserError(f"api_url {url!r} cannot be read: {error}") from error

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        """The answer's JSON. A query value of None is left out, a list is repeated.

        Raises NotFound, Forbidden, UserError, Unavailable.
        """
        return self.request("GET", path, query=query)

    def post(self, path: str, body: object = None, **query: Any) -> Any:
        """`body` is a frozen dataclass or JSON.

        Raises NotFound, Forbidden, UserError, Rejected, Unavailable.
        """
        return self.request("POST", path, query=query, body={} if body is None else body)

    def create(self, path: str, body: object, *, key: str) -> tuple[Any, bool]:
        """POST with an idempotency key, so that a lost answer can be asked for again.

        The answer, and whether it is new: False when the key was used before. Raises as `post` does.
        """
        response = self._send("POST", path, query={}, body=body, key=key)
        return self._answer(response), response.status_code == 201

    def items(
        self, path: str, *, cursor: str = "after", limit: int | None = None, **query: Any
    ) -> Iterator[Any]:
        """All items of a paged list, fetched as they are used; `cursor` names the page's query parameter."""
        start: Any = query.pop(cursor, None)
        left = limit
        while left is None or left > 0:
            size = 500 if left is None else min(left, 500)
            page = self.get(path, **query, **{cursor: start}, limit=size)
            yield from page["items"]
            start = page.get("next")
            if start is None or not page["items"]:
                return
            left = None if left is None else left - len(page["items"])

    def events(self, *, after: int, job_id: int | None = None) -> Iterator[Event]:
        """Events as they happen. Ends or raises Unavailable when the connection is lost: ask again with the
        last id."""
        query = _query({"after": after, "job_id": job_id})
        timeout = httpx.Timeout(_STREAM_SILENCE_S, connect=3.0)
        try:
            with self._http.stream("GET", "/events/stream", params=query, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    self._raise(response)
                for line in response.iter_lines():
                    if line.startswith("data:"):
                        yield read(Event, json.loads(line.removeprefix("data:")))
        except httpx.TransportError as error:
            raise Unavailable(self._unreachable(error)) from error

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
    ) -> Any:
        """One request with JSON both ways. Raises as `post` does."""
        return self._answer(self._send(method, path, query=query or {}, body=body, key=None))

    def _send(
        self, method: str, path: str, *, query: Mapping[str, Any], body: object, key: str | None
    ) -> httpx.Response:
        """Repeated while the farm says 503 (nothing was done), and after a lost answer where that is safe."""
        headers = {"Idempotency-Key": key} if key is not None else {}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            plain = asdict(body) if is_dataclass(body) and not isinstance(body, type) else body
            content = json.dumps(plain, allow_nan=False).encode()
        is_repeatable = method == "GET" or key is not None
        deadline = time.monotonic() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                response = self._http.request(
                    method, path, params=_query(query), content=content, headers=headers
                )
            except UnicodeEncodeError as error:
                raise UserError("what was typed holds a byte that is no text in UTF-8") from error
            except httpx.ConnectError as error:  # nobody listens: waiting does not help
                raise Unavailable(self._unreachable(error)) from error
            except httpx.TransportError as error:
                if not is_repeatable or time.monotonic() + pause_s > deadline:
                    raise Unavailable(self._unreachable(error)) from error
            else:
                is_passing = response.status_code == 503 or (is_repeatable and response.status_code in _PROXY)
                if not is_passing or time.monotonic() + pause_s > deadline:
                    return response
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _answer(self, response: httpx.Response) -> Any:
        if not response.is_success:
            self._raise(response)
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise UserError(f"what answers at {self.url} is no Ridgeline farm: check api_url") from error

    def _raise(self, response: httpx.Response) -> None:
        status = response.status_code
        try:
            message = str(response.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = ""
        if status == 401:
            raise Forbidden(
                f"the farm at {self.url} does not know your token: set FARM_API_TOKEN, "
                "or ask whoever runs the farm for one (`farm token create`)"
            )
        if status == 503:
            raise Unavailable(message or f"the farm at {self.url} is busy; try again")
        if not message:
            if status < 500:
                raise UserError(
                    f"what answers at {self.url} is no Ridgeline farm of this version "
                    f"(HTTP {status} for {response.request.url.path}): check api_url"
                )
            raise Unavailable(f"the farm at {self.url} had a fault of its own (HTTP {status}): see its log")
        kind = {403: Forbidden, 404: NotFound, 409: Rejected}.get(
            status, Unavailable if status >= 500 else UserError
        )
        raise kind(message)

    def _unreachable(self, error: httpx.TransportError) -> str:
        if isinstance(error, httpx.UnsupportedProtocol):
            return f"api_url {self.url!r} must begin with http:// or https://"
        told = str(error)
        if "CERTIFICATE" in told.upper():
            return f"the certificate of {self.url} is not trusted: {told}"
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return f"no farm answers at {self.url}: {self._advice}"
        return f"the farm at {self.url} stopped answering ({told or type(error).__name__})"


def connect(settings: Settings, *, patience_s: float = PATIENCE_S) -> Client:
    """A client for the farm that `settings` name. Nothing is sent yet. Raises UserError."""
    url, token = endpoint(settings)
    return Client(url, token, patience_s=patience_s)


def endpoint(settings: Settings) -> tuple[str, str]:
    """(URL, token): from the settings, else as the server of this machine wrote them into `state_dir`.

    A token found in `state_dir` is never sent to another farm than the one that wrote it. Raises UserError.
    """
    path = settings.state_dir / CLIENT_FILE
    told = _read_client_file(path)
    url = settings.api_url or told.get("url", "") or f"http://127.0.0.1:{settings.api_port or DEFAULT_PORT}"
    is_own = url.rstrip("/") == told.get("url", "").rstrip("/")
    return url, settings.api_token or (told.get("token", "") if is_own else "")


def _read_client_file(path: Path) -> dict[str, str]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not isinstance(told, dict):
        raise UserError(f"{path} is damaged: remove it and start the farm again")
    return {key: str(value) for key, value in told.items()}


def _query(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != ()}


def _is_loopback(url: str) -> bool:
    try:
        host = httpx.URL(url).host
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except (httpx.InvalidURL, ValueError):
        return False
