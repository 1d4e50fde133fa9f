"""The application: routes behind the guard, and one shape for every error."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from farm import __version__
from farm.control.desk import Desk
from farm.control.spaces import Spaces
from farm.errors import Forbidden, NotFound, Rejected, TooMany, Unavailable, UserError
from farm.http import pages
from farm.http.bodies import Health
from farm.http.guard import STRANGER, Guard, error_body, host_names
from farm.http.routes import ROUTERS
from farm.settings import Settings
from farm.text import clean

_LOG = logging.getLogger(__name__)

PREFIX = "/api/v1"
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_STATUS: dict[type[Exception], tuple[int, str]] = {
    # The most special first.
    NotFound: (404, "not-found"),
    Forbidden: (403, "forbidden"),
    TooMany: (429, "too-many"),
    UserError: (400, "user-error"),
    Rejected: (409, "rejected"),
    Unavailable: (503, "unavailable"),
}
_DESCRIPTION = (
    "Submit renders, watch them, steer them. Every route needs a token, sent as `Authorization: "
    "Bearer <token>`; a user steers their own jobs, an admin everybody's and the nodes. Only /healthz, and "
    "joining by a code, need none.\n\n"
    "Times are seconds since the epoch on the database's clock. Lists come in pages: give `next` as `after` "
    '(of jobs: `before`) to read on. An error is {"error": {"kind", "message"}}; the message is for people.'
)


def make_app(engine: sa.Engine, settings: Settings, *, nudge: Callable[[], None]) -> FastAPI:
    """The API over `engine`. `nudge` wakes the scheduler, best effort."""
    app = FastAPI(
        title="Ridgeline",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # its page would be loaded from another host
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    desk = Desk(engine, settings, Spaces(engine), nudge=nudge)
    app.state.desk = desk
    app.state.stopping = threading.Event()
    app.state.streams = 0
    own = socket.gethostname()
    hosts = host_names(settings.api_allowed_hosts, api_host=settings.api_host, own=own)
    app.add_middleware(Guard, desk=desk, hosts=hosts, max_body_bytes=settings.max_body_bytes)
    for kind in (*_STATUS, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer_error)
    # The guard has checked the token; this tells the description that there is one.
    bearer = [Depends(HTTPBearer(auto_error=False, description="From `farm token`, or client.json."))]
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX, dependencies=bearer)

    @app.get("/healthz", tags=["farm"], summary="Whether the server is up", include_in_schema=True)
    def healthz() -> Health:
        """Needs no token and looks at nothing."""
        return Health()

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        return HTMLResponse(pages.page(app.openapi()), headers=pages.HEADERS)

    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    status, kind, text, headers = _told(error)
    by = request.state.caller if request.method in _WRITES else None
    # Whoever has no token fills no table: of strangers only wrong codes are kept, and those are few.
    if by is not None and status not in (429, 503) and (status == 403 or by.owner.role != STRANGER.role):
        try:
            await run_sync(request.app.state.desk.access.refused, by, status, text)
        except Unavailable as trouble:
            _LOG.warning("a refused request is missing in the audit: %s", trouble)
    return JSONResponse(error_body(kind, text), status_code=status, headers=headers)


def _told(error: Exception) -> tuple[int, str, str, dict[str, str]]:
    """HTTP status, kind, text and headers."""
    if isinstance(error, RequestValidationError):
        return 422, "user-error", _validation_text(error.errors()), {}
    if isinstance(error, HTTPException):
        kind = {404: "not-found"}.get(error.status_code, "user-error")
        text = {
            404: "there is no such address; the API is described at /docs",
            405: "this address does not take this method; the API is described at /docs",
        }.get(error.status_code, str(error.detail))
        return error.status_code, kind, text, dict(error.headers or {})
    status, kind = next(found for base, found in _STATUS.items() if isinstance(error, base))
    return status, kind, str(error), {"Retry-After": "1"} if status == 503 else {}


def _validation_text(errors: Any) -> str:
    """One line for each thing that is wrong, by the name that the caller gave it."""
    lines = []
    for error in errors[:20]:
        place = ".".join(str(part) for part in error["loc"] if part != "body") or "the request"
        lines.append(f"{clean(place, limit=120, one_line=True)}: {error['msg']}")
    if len(errors) > 20:
        lines.append(f"and {len(errors) - 20:,} more")
    return "\n".join(lines)
