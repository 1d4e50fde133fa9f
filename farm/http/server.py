"""Running the API in a thread, and the first token."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import pwd
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI

from farm.errors import Unavailable, UserError
from farm.http.app import make_app
from farm.settings import Settings, write_private
from farm.store import tokens
from farm.store.engine import writing

_LOG = logging.getLogger(__name__)

_START_S: Final = 10.0
_GRACE_S: Final = 3
"""How long running requests may still take when the server stops."""


class Serving:
    """A server that runs in a thread of its own."""

    def __init__(self, app: FastAPI, server: uvicorn.Server, listener: socket.socket, url: str) -> None:
        self.url = url
        """Where a client on this machine reaches it."""
        self.app = app
        self._server = server
        self._listener = listener
        self._thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="api", daemon=True
        )

    def start(self) -> None:
        """Returns when it answers. Raises Unavailable when it does not come up."""
        self._thread.start()
        end = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > end:
                self.stop()
                raise Unavailable("the API server did not start; its log says why")
            time.sleep(0.01)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End streams, let running requests finish for a moment, close. Returns when it is over."""
        self.app.state.stopping.set()
        self._server.should_exit = True
        self._thread.join(timeout=timeout_s)
        self._listener.close()


def serve(engine: sa.Engine, settings: Settings, *, nudge: Callable[[], None]) -> Serving:
    """Start the API and return when it answers. `api_port` 0 takes any free port: see `Serving.url`.

    Raises UserError for an address that would be open without TLS, a port that is taken, or a certificate
    that cannot be read.
    """
    check_address(settings)
    app = make_app(engine, settings, nudge=nudge)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,  # the program has set logging up
        access_log=False,
        server_header=False,
        proxy_headers=False,  # an address that a caller may write himself is no address for the audit
        ws="none",
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=settings.api_tls_certificate,
        ssl_keyfile=settings.api_tls_key,
    )
    try:
        config.load()
    except OSError as error:
        raise UserError(f"api_tls_certificate and api_tls_key cannot be used: {error}") from error
    listener = _listen(settings)
    serving = Serving(app, uvicorn.Server(config), listener, _url(settings, listener.getsockname()[1]))
    serving.start()
    _LOG.info("the API listens at %s", serving.url)
    return serving


def check_address(settings: Settings) -> None:
    """Raises UserError when tokens would cross a network in the clear."""
    if (settings.api_tls_certificate is None) != (settings.api_tls_key is None):
        raise UserError("TLS needs both api_tls_certificate and api_tls_key")
    if is_loopback(settings.api_host) or settings.api_tls_certificate or settings.api_insecure:
        return
    raise UserError(
        f"api_host {settings.api_host} can be reached from the network, where everybody could read the "
        'tokens: set api_tls_certificate and api_tls_key, or api_host = "127.0.0.1", or, on a network that '
        "you trust, api_insecure = true"
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _listen(settings: Settings) -> socket.socket:
    host, port = settings.api_host.strip("[]"), settings.api_port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UserError(
            f"the API cannot listen on {host} port {port}: {error.strerror or error}; "
            "is another farm running? Choose another api_port or api_host"
        ) from error
    return listener


def _url(settings: Settings, port: int) -> str:
    host = settings.api_host
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1"
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http{'s' if settings.api_tls_certificate else ''}://{shown}:{port}"


# --- the first token ----------------------------------------------------------------------------------

_FIRST = "first-admin"


def ensure_first_token(engine: sa.Engine, settings: Settings, *, url: str = "") -> str | None:
    """On a farm without tokens make an admin's, and write it and `url` to `state_dir/client.json` (0600).

    `url`: of the API; left out, what the settings say. Returns the token, to be shown this once; None when
    there are tokens already (`url` is then brought up to date in a client.json that is there). Raises
    Unavailable, and UserError when the file cannot be written.
    """
    url = url or _url(settings, settings.api_port)
    with writing(engine) as db:
        if tokens.listed(db):
            token = None
        else:
            token = tokens.create(db, name=_FIRST, user=_own_user(), role="admin")
            # In the transaction: a token that could not be written down would lock everybody out.
            _write_client(settings, url=url, token=token)
    if token is None:
        _update_client(settings, url=url)
    return token


def _own_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user id without a name, as in containers
        return f"uid-{os.getuid()}"


def _update_client(settings: Settings, *, url: str) -> None:
    path = settings.state_dir / "client.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        token = known["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if known.get("url") != url:
        _write_client(settings, url=url, token=token)


def _write_client(settings: Settings, *, url: str, token: str) -> None:
    write_private(settings.state_dir / "client.json", json.dumps({"url": url, "token": token}))
