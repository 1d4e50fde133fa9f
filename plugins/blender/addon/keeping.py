"""What the add-on keeps on this computer: the token (0600), and which job each scene was sent as."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from farm.errors import UserError

from .client import Farm

DEFAULT_URL = "http://127.0.0.1:7450"
MAX_JOBS = 200
_TOKEN = "token.json"
_JOBS = "jobs.json"


def own_client_file(environment: dict[str, str], home: Path) -> Path:
    """Where a farm that runs on this computer wrote its address and token."""
    if environment.get("FARM_STATE_DIR"):
        return Path(environment["FARM_STATE_DIR"]) / "client.json"
    base = environment.get("XDG_STATE_HOME") or str(home / ".local" / "state")
    return Path(base) / "ridgeline" / "client.json"


def find_farm(url: str, *, directory: Path, client_file: Path) -> Farm:
    """The farm at `url` (empty: this computer's own), with the token kept for it in `directory`.

    A token is only ever sent to the address that it was given for. Raises UserError without one.
    """
    own = _read(client_file)
    url = (url.strip() or str(own.get("url", "")) or DEFAULT_URL).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise UserError(f"the farm's address {url!r} must begin with http:// or https://")
    for kept in (_read(directory / _TOKEN), own):
        if str(kept.get("url", "")).rstrip("/") == url and kept.get("token"):
            return Farm(url=url, token=str(kept["token"]))
    raise UserError(
        f"there is no token for the farm at {url}: put one into the add-on's preferences "
        "(whoever runs the farm makes one with `farm token create`)"
    )


def keep_token(url: str, token: str, *, directory: Path, client_file: Path) -> None:
    """For the farm at `url`; an empty token forgets it. Readable by this user alone. Raises OSError."""
    path = directory / _TOKEN
    if not token.strip():
        path.unlink(missing_ok=True)
        return
    url = (url.strip() or str(_read(client_file).get("url", "")) or DEFAULT_URL).rstrip("/")
    _write(path, {"url": url, "token": token.strip()})


def has_token(url: str, *, directory: Path) -> bool:
    kept = _read(directory / _TOKEN)
    return bool(kept.get("token")) and (not url.strip() or kept.get("url") == url.strip().rstrip("/"))


def last_job(scene: str, url: str, *, directory: Path) -> int | None:
    """The job that the scene file was last sent as, to the farm at `url`."""
    found = _read(directory / _JOBS).get(scene)
    if not isinstance(found, dict) or found.get("url") != url or not isinstance(found.get("job"), int):
        return None
    return int(found["job"])


def keep_job(scene: str, url: str, job: int | None, *, directory: Path) -> None:
    """None forgets it. Raises OSError."""
    jobs = _read(directory / _JOBS)
    jobs.pop(scene, None)
    if job is not None:
        jobs[scene] = {"url": url, "job": job}
    _write(directory / _JOBS, dict(list(jobs.items())[-MAX_JOBS:]))


def _read(path: Path) -> dict[str, Any]:
    """Empty for a file that is not there or damaged."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _write(path: Path, value: dict[str, Any]) -> None:
    """Whole or not at all; mkstemp makes the file 0600."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=".ridgeline-")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
