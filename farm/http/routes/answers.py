"""What routes answer, for the API's description: examples, and the errors that they can give."""

from __future__ import annotations

from typing import Any

from farm.http import bodies

_TELL = {
    400: ("user-error", "frames 251-300 are not in this job"),
    401: ("no-token", "a token is needed; send Authorization: Bearer <token>"),
    403: ("forbidden", "job 12 belongs to anna; bert may steer only their own jobs"),
    404: ("not-found", "there is no job 12"),
    429: ("too-many", "too many wrong codes: none is taken for 9:41"),
    409: ("rejected", "idempotency key 'x' was used for another request (job 11)"),
    413: ("too-large", "the request is larger than 8,388,608 bytes (max_body_bytes)"),
    415: ("user-error", "the request must be application/json, not text/plain"),
    422: ("user-error", "settings.prio: Unexpected keyword argument"),
    503: ("unavailable", "the database cannot be used: the server closed the connection"),
}
BODY_ERRORS = (400, 403, 404, 413, 415)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {
            "model": bodies.ErrorView,
            "description": _TELL[status][0],
            "content": {
                "application/json": {
                    "example": {"error": {"kind": _TELL[status][0], "message": _TELL[status][1]}}
                }
            },
        }
        for status in (*statuses, 401, 422, 503)
    }


def answers(example: Any, *statuses: int, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a route answers: its example, and the errors that it can give."""
    found = errors(*statuses)
    found[status] = {"content": {"application/json": {"example": example}}}
    return found
