"""The farm's HTTP API with urllib: Blender has nothing else. Blocks; called in threads."""

from __future__ import annotations

import http.client
import ipaddress
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from farm.errors import Forbidden, NotFound, Rejected, Unavailable, UserError
from farm.text import clean

TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 32 * 1024 * 1024
_PRIVATE_ENDS = (".local", ".lan", ".internal", ".localdomain", ".home.arpa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Farm:
    """Where the farm is, and as whom to speak."""

    url: str
    token: str = field(repr=False)

    def get(self, path: str, **query: Any) -> Any:
        """The answer's JSON. Raises UserError, Unavailable and their kin."""
        told = f"?{urllib.parse.urlencode(query, doseq=True)}" if query else ""
        return self._ask(path + told, None, {})

    def post(self, path: str, body: Any, *, key: str | None = None) -> Any:
        """With an idempotency `key` the same request may be sent again. Raises as `get`."""
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        data = json.dumps(body, allow_nan=False).encode()
        return self._ask(path, data, headers)

    def _ask(self, path: str, data: bytes | None, headers: dict[str, str]) -> Any:
        if not (self.token.isascii() and self.token.isprintable()):
            raise UserError("the token holds a character that no token has: copy it again, whole")
        if self.token:
            headers = {**headers, "Authorization": f"Bearer {self.token}"}
        # A proxy for the outer world must not be asked for a machine in the house.
        proxies: dict[str, str] | None = {} if is_private(self.url) else None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _NoRedirect)
        try:
            request = urllib.request.Request(f"{self.url.rstrip('/')}/api/v1{path}", data, headers)
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                raw = answer.read(MAX_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                raise _told(error.code, error.read(MAX_ANSWER_BYTES), self.url) from error
        except OSError as error:  # URLError is one
            reason = getattr(error, "reason", error)
            if _is_of_tls(reason):
                raise Unavailable(f"the certificate of {self.url} is not trusted: {reason}") from error
            raise Unavailable(f"no farm answers at {self.url} ({reason})") from error
        except (ValueError, http.client.HTTPException) as error:
            if isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.InvalidURL):
                raise Unavailable(f"the farm at {self.url} stopped answering ({error!r})") from error
            raise UserError(f"the farm's address {self.url!r} cannot be read: {error}") from error
        try:
            return json.loads(raw)
        except ValueError as error:
            raise UserError(f"what answers at {self.url} is no Ridgeline farm: check the address") from error


def _is_of_tls(reason: object) -> bool:
    """Whether the certificate was refused. Not every Python has `ssl`: Debian's Blender does not when another
    Python is first on PATH. Plain HTTP works there.
    """
    ssl = sys.modules.get("ssl")
    return ssl is not None and isinstance(reason, ssl.SSLError)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A farm does not send clients elsewhere, and a token is for one farm."""

    def redirect_request(self, *_others: Any) -> None:
        return None


def is_private(url: str) -> bool:
    """Whether the address is in the house: loopback, a private network, a name without or with a local end.

    Blender's "Allow Online Access" is about the internet; such a farm works without.
    """
    try:
        host = urllib.parse.urlsplit(url).hostname or ""
    except ValueError:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bool(host) and ("." not in host or host.endswith(_PRIVATE_ENDS))
    return address.is_loopback or address.is_private or address.is_link_local


def _told(status: int, raw: bytes, url: str) -> Exception:
    try:
        message = clean(str(json.loads(raw)["error"]["message"]), limit=2000)
    except (ValueError, KeyError, TypeError):
        message = ""
    if status == 401:
        return Forbidden(f"the farm at {url} does not know your token: see the add-on's preferences")
    if status == 503:
        return Unavailable(message or f"the farm at {url} is busy: try again")
    if not message:
        text = f"what answers at {url} is no Ridgeline farm (HTTP {status}): check the address"
        return UserError(text) if status < 500 else Unavailable(f"the farm at {url} failed (HTTP {status})")
    kind = {403: Forbidden, 404: NotFound, 409: Rejected}.get(status)
    return (kind or (Unavailable if status >= 500 else UserError))(message)
