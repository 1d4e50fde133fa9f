"""What people name on the command line: jobs, nodes, states, frames; the nearest one when it is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, TypeVar

from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.show import shown
from farm.control.views import JobView
from farm.errors import NotFound, UserError
from farm.model.frames import canonical, parse_frames
from farm.model.work import Task

_MOST_JOBS: Final = 2**31 - 1


_Name = TypeVar("_Name", bound=StrEnum)
Connected = Callable[[], Client]
"""Called once what was typed is understood: most mistakes need no farm."""


def find_job(client: Client, text: str) -> tuple[JobView, Any]:
    """The job that `text` names, as a view and as the API's JSON. Raises NotFound that names the nearest."""
    if not re.fullmatch(r"#?[0-9]{1,18}", text):
        told = shown(text, 60)
        named = client.get("/jobs", name=text, limit=1)["items"] if text.strip() else []
        hint = f"did you mean {_named(named[0])}?" if named else _newest(client)
        raise NotFound(f"a job is named by its number, not '{told}'; {hint}")
    number = int(text.lstrip("#"))
    if number > _MOST_JOBS:
        raise NotFound(f"there is no job {number}; {_newest(client)}")
    try:
        answer = client.get(f"/jobs/{number}")
    except NotFound:
        raise NotFound(f"there is no job {number}; {_newest(client)}") from None
    return read(JobView, answer), answer


def _newest(client: Client) -> str:
    newest = client.get("/jobs", limit=3)["items"]
    if not newest:
        return "there are no jobs yet"
    return f"the newest: {', '.join(map(_named, newest))}; `farm jobs` lists them"


def _named(view: Any) -> str:
    job = view["job"]
    return f"{job['id']} {shown(str(job['name']), 60)}"


def check_states(texts: Iterable[str], kind: type[_Name], what: str) -> list[_Name]:
    """Raises UserError that names the nearest state."""
    states = []
    for text in texts:
        if text not in list(kind):
            near = get_close_matches(text.lower(), list(kind), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(kind)}"
            raise UserError(f"--state {shown(text, 40)}: no {what} has that state; {hint}")
        states.append(kind(text))
    return states


def check_frames(text: str | None) -> str | None:
    """The canonical form; a wrong range is told here, before the farm is asked. Raises UserError."""
    return None if text is None else canonical(parse_frames(text))


def label(task: Task) -> str:
    return f"{task.step} {task.label}".strip()


def find_node(client: Client, name: str) -> Any:
    """The API's node. Raises NotFound that names the nearest."""
    known = {answer["id"]: answer for answer in client.items("/nodes")}
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    told = shown(name, 60)
    if near:
        hint = f"did you mean {shown(near[0])}?"
    else:
        few = shown(", ".join(sorted(known)[:8]))
        hint = f"there are {few}" if few else "there are none yet"
    raise NotFound(f"there is no node '{told}'; {hint}")
