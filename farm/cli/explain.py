"""`farm explain`: for each attempt why it went where it did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.listing import Listing, Wanted
from farm.cli.naming import Connected, find_job
from farm.cli.show import Column, cell, words
from farm.control.fields import ATTEMPT_FIELDS, Placed
from farm.control.views import JobView
from farm.errors import NotFound
from farm.model.attempts import Attempt
from farm.model.decisions import Decision
from farm.model.work import Task
from farm.text import duration

_SHOWN = 50
_LOOKED_AT = 500
"""The newest attempts that a filter is held against: the API's largest page."""
_LOOKED_FOR_STEPS = 100
"""The newest jobs, among which the runner-up is looked for."""


def explain(client: Connected, text: str, *, frame: int | None, wanted: Wanted) -> None:
    listing = Listing(Placed, ATTEMPT_FIELDS, "attempts", wanted)
    connected = client()
    view, _ = find_job(connected, text)
    answers = list(_attempts(connected, view, frame, _LOOKED_AT if wanted.is_filtered else _SHOWN))
    if not answers:
        waits = f": {view.waiting}" if view.waiting else ""
        raise NotFound(f"nothing has run of job {view.job.id} yet{waits}")
    placed = list(_placed(connected, view, answers))
    found = [(line, answer) for line, answer in zip(placed, answers, strict=True) if listing.filter(line)]
    columns = [
        Column("Frame", shrinks=True),
        Column("Node", shrinks=True),
        Column("State"),
        Column("Took", is_right=True),
        Column("Expected", is_right=True),
        Column("Suits", is_right=True),
        Column("Why there", shrinks=True, least=20),
    ]
    listing.put(found, columns, _row, empty="no such attempts")
    if not wanted.is_for_scripts and found:
        show.note(
            "Expected: likely, and at worst 9 times in 10. Suits: 100 % where the farm does this work at the "
            "least cost; less on a slower or dearer device, and where the scene must be loaded first."
        )
        if frame is None and len(answers) == _SHOWN:
            show.note(f"only the newest {_SHOWN} attempts are shown: use --frame or a filter")


def _attempts(client: Client, view: JobView, frame: int | None, limit: int) -> Iterator[Any]:
    """Newest first. Raises NotFound."""
    if frame is None:
        yield from client.get(f"/jobs/{view.job.id}/attempts", limit=limit)["items"]
        return
    tasks = client.get(f"/jobs/{view.job.id}/tasks", frames=str(frame), limit=10)["items"]
    if not tasks:
        raise NotFound(f"job {view.job.id} has no frame {frame}")
    for item in tasks:
        yield from client.get(f"/tasks/{item['id']}/attempts")["items"]


def _placed(client: Client, view: JobView, answers: Iterable[Any]) -> Iterator[Placed]:
    attempts = [read(Attempt, answer) for answer in answers]
    ids = tuple(sorted({attempt.task_id for attempt in attempts}))
    tasks = client.get(f"/jobs/{view.job.id}/tasks", task=ids, limit=len(ids))["items"]
    labels = {task.id: task.label for task in (read(Task, item) for item in tasks)}
    rivals = {attempt.decision.runner_up for attempt in attempts if attempt.decision} - {None}
    names = _steps_named(client) if rivals else {}
    for attempt in attempts:
        rival = attempt.decision.runner_up if attempt.decision else None
        yield Placed(
            attempt=attempt,
            label=labels.get(attempt.task_id, f"task {attempt.task_id}"),
            runner_up="" if rival is None else names.get(rival, "a job that is older, or gone"),
        )


def _steps_named(client: Client) -> dict[int, str]:
    """Steps of the newest jobs: step id -> what people call it."""
    jobs = client.get("/jobs", limit=_LOOKED_FOR_STEPS)["items"]
    return {
        step["id"]: f"job {view['job']['id']} {view['job']['name']}"
        + (f", step {step['name']}" if len(view["job"]["steps"]) > 1 else "")
        for view in jobs
        for step in view["job"]["steps"]
    }


def _expected(decision: Decision | None) -> str:
    if decision is None:
        return "-"
    return "unknown" if decision.is_guess else show.eta((decision.predicted_s, decision.upper_s))


def _row(line: Placed) -> list[Any]:
    attempt, decision = line.attempt, line.attempt.decision
    return [
        cell(line.label),
        cell(attempt.node_id),
        show.state(attempt.state),
        duration(attempt.runtime_s),
        _expected(decision),
        "-" if decision is None else show.percent(decision.advantage),
        words(line.why),
    ]
