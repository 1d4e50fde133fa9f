"""Commands that change jobs, tasks and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.cli import show
from farm.cli.client import Client, read
from farm.cli.looks import check_frames, find_job, find_node
from farm.control.views import ChangedView, JobView
from farm.errors import UserError
from farm.model.machines import Node
from farm.model.states import NodeState
from farm.text import plural


def change(client: Client, jobs: Sequence[str], body: Mapping[str, Any], told: str, *, is_json: bool) -> None:
    """PATCH each job; all are looked up before the first is changed."""
    numbers = [find_job(client, text)[0].job.id for text in jobs]
    answers = [client.request("PATCH", f"/jobs/{number}", body=dict(body)) for number in numbers]
    if is_json:
        show.data(answers)
        return
    for answer in answers:
        view = read(JobView, answer)
        after = (
            f"; {plural(view.counts.live, 'task')} still running"
            if body.get("is_paused") and view.counts.live
            else ""
        )
        show.line(f"job {view.job.id} {view.job.name} {told}{after}")


def cancel(client: Client, text: str, *, frames: str | None, step: str | None, is_json: bool) -> None:
    body = {"frames": check_frames(frames), "step": step}
    view, _ = find_job(client, text)
    answer = client.post(f"/jobs/{view.job.id}/cancel", body)
    _changed(answer, "cancelled", is_json=is_json, nothing="nothing was left to cancel")


def retry(
    client: Client,
    text: str,
    *,
    frames: str | None,
    step: str | None,
    states: Sequence[str],
    is_json: bool,
) -> None:
    body = {"frames": check_frames(frames), "step": step, "states": list(states)}
    view, _ = find_job(client, text)
    answer = client.post(f"/jobs/{view.job.id}/retry", body)
    nothing = f"no task was {' or '.join(states)}"
    _changed(answer, "will be tried again", is_json=is_json, nothing=nothing)


def requeue(
    client: Client, text: str, *, frames: str | None, step: str | None, is_all: bool, is_json: bool
) -> None:
    if frames is None and step is None and not is_all:
        raise UserError("say which frames to render again: --frames 1-20, --step NAME, or --all")
    retry(client, text, frames=frames, step=step, states=("done", "failed", "cancelled"), is_json=is_json)


def _changed(answer: Any, told: str, *, is_json: bool, nothing: str) -> None:
    if is_json:
        show.data(answer)
        return
    made = read(ChangedView, answer)
    job = made.job.job
    what = nothing if made.changed == 0 else f"{plural(made.changed, 'task')} {told}"
    show.line(f"job {job.id} {job.name}: {what}; it is {job.state}, {show.every_count(made.job.counts)}")


def drain(client: Client, name: str, *, is_draining: bool, is_json: bool) -> None:
    found = read(Node, find_node(client, name))
    answer = client.post(f"/nodes/{found.id}/{'drain' if is_draining else 'undrain'}")
    if is_json:
        show.data(answer)
        return
    node = read(Node, answer)
    if is_draining:
        rest = f"; {plural(len(node.attempts), 'task')} still running" if node.attempts else ""
        show.line(f"{node.id} takes no more work{rest}")
    elif node.state is NodeState.ONLINE:
        show.line(f"{node.id} takes work again")
    else:
        show.line(f"{node.id} may take work again, and is {node.state}")
