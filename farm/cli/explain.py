"""`farm explain`: for each attempt why it went where it did."""

from __future__ import annotations

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.naming import find_job
from farm.cli.show import Column, cell
from farm.errors import NotFound
from farm.model.attempts import Attempt
from farm.model.work import Task
from farm.text import duration

_SHOWN = 50


def explain(client: Client, text: str, *, frame: int | None, is_json: bool) -> None:
    view, _ = find_job(client, text)
    labels: dict[int, str] = {}
    if frame is None:
        listed = client.get(f"/jobs/{view.job.id}/attempts", limit=_SHOWN)["items"]
    else:
        tasks = client.get(f"/jobs/{view.job.id}/tasks", frames=str(frame), limit=10)["items"]
        if not tasks:
            raise NotFound(f"job {view.job.id} has no frame {frame}")
        listed = [a for item in tasks for a in client.get(f"/tasks/{item['id']}/attempts")["items"]]
        labels = {item["id"]: read(Task, item).label for item in tasks}
    if is_json:
        show.data(listed)
        return
    attempts = [read(Attempt, item) for item in listed]
    if not attempts:
        raise NotFound(
            f"nothing has run of job {view.job.id} yet{f': {view.waiting}' if view.waiting else ''}"
        )
    rows = [
        [
            cell(labels.get(attempt.task_id, str(attempt.task_id))),
            cell(attempt.node_id),
            cell(duration(attempt.runtime_s) if attempt.runtime_s is not None else str(attempt.state)),
            cell(
                attempt.decision.text() if attempt.decision else "the policy in force then does not say",
                limit=300,
            ),
        ]
        for attempt in attempts
    ]
    columns = [
        Column("Frame" if labels else "Task"),
        Column("Node"),
        Column("Took"),
        Column("Why there", shrinks=True),
    ]
    show.table(columns, rows, empty="")
    if frame is None and len(attempts) == _SHOWN:
        show.note(f"only the newest {_SHOWN} attempts are shown: use --frame or --json")
