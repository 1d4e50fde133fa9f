"""Commands that change jobs, tasks and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.naming import check_frames, find_job, find_node
from farm.control.views import ChangedView, FarmView, JobView
from farm.errors import Rejected, UserError
from farm.flow.order import parse_order
from farm.model.frames import canonical, parse_frames
from farm.model.machines import Node
from farm.model.states import NodeState
from farm.text import duration, plural


def change(
    client: Client, jobs: Sequence[str], body: Mapping[str, Any], told: str, *, is_quiet: bool, is_json: bool
) -> None:
    """PATCH each job; all are looked up before the first is changed."""
    numbers = [find_job(client, text)[0].job.id for text in jobs]
    answers = [client.request("PATCH", f"/jobs/{number}", body=dict(body)) for number in numbers]
    if is_json:
        show.data(answers)
    if is_json or is_quiet:
        return
    for answer in answers:
        view = read(JobView, answer)
        after = (
            f"; {plural(view.counts.live, 'task')} still running"
            if body.get("is_paused") and view.counts.live
            else ""
        )
        show.line(f"job {view.job.id} {view.job.name} {told}{after}")


def settings(
    client: Client, jobs: Sequence[str], body: Mapping[str, Any], *, is_quiet: bool, is_json: bool
) -> None:
    """As `change`, and says what was asked for. Raises UserError when nothing was."""
    given = {name: value for name, value in body.items() if value is not None}
    if not given:
        raise UserError("say what to change, such as --priority 80; `farm change --help` lists it all")
    if "order" in given:
        given["order"] = parse_order(given["order"])
    told = ", ".join(_setting(name, value) for name, value in given.items())
    change(client, jobs, given, f"changed: {told}", is_quiet=is_quiet, is_json=is_json)


def _setting(name: str, value: Any) -> str:
    if name == "timeout_s":
        return f"a frame may take {duration(value)}" if value else "no time limit"
    if name == "pool":
        return f"pool {value}" if value else "any pool"
    if name in ("project", "limits", "hooks") and not value:
        return f"no {name}"
    if name == "limits":
        return "each frame takes " + ", ".join(f"{amount} {limit}" for limit, amount in value.items())
    if name == "hooks":
        return f"hooks {', '.join(value)}"
    if name == "preempts":
        return "stops others' frames" if value else "stops nobody's frames"
    if name == "on_stall":
        return f"a stalled frame: {value}"
    if name == "replace_existing":
        return "files in the way are moved aside" if value else "files in the way are kept"
    words = {"max_retries": "retries", "max_failed_tasks": "failed frames allowed"}
    return f"{words.get(name, name.replace('_', ' '))} {value}"


def append(client: Client, job: str, frames: str, *, step: str | None, is_quiet: bool, is_json: bool) -> None:
    body = {"frames": canonical(parse_frames(frames)), "step": step}
    answers = _post(client, _numbers(client, [job]), "frames", body)
    _changed(answers, "appended", is_quiet=is_quiet, is_json=is_json, nothing="nothing was appended")


def cancel(
    client: Client,
    jobs: Sequence[str],
    *,
    frames: str | None,
    step: str | None,
    is_quiet: bool,
    is_json: bool,
) -> None:
    body = {"frames": check_frames(frames), "step": step}
    answers = _post(client, _numbers(client, jobs), "cancel", body)
    nothing = "nothing was left to cancel"
    _changed(answers, "cancelled", is_quiet=is_quiet, is_json=is_json, nothing=nothing)


def remove(client: Client, jobs: Sequence[str], *, is_quiet: bool, is_json: bool) -> None:
    """All are looked up before the first is removed; one that cannot be is told, and the others go.

    Raises Rejected at the end if some are left.
    """
    found = {view.job.id: view for view in (find_job(client, text)[0] for text in jobs)}
    removed: list[int] = []
    left: list[Rejected] = []
    for number, view in found.items():
        try:
            client.request("DELETE", f"/jobs/{number}")
        except Rejected as error:
            left.append(error)
        else:
            removed.append(number)
            if not is_quiet and not is_json:
                show.line(f"job {number} {view.job.name} is removed; its files are still there")
    if is_json:
        show.data({"removed": removed})
    if left:
        raise Rejected("; ".join(str(error) for error in left))


def retry(
    client: Client,
    jobs: Sequence[str],
    *,
    frames: str | None,
    step: str | None,
    states: Sequence[str],
    is_quiet: bool,
    is_json: bool,
) -> None:
    """No `jobs`: all of the caller's that hold tasks in `states`."""
    body = {"frames": check_frames(frames), "step": step, "states": list(states)}
    numbers = _numbers(client, jobs) if jobs else _own_with(client, states)
    nothing = f"no task was {' or '.join(states)}"
    if "done" not in states and "held" not in states:
        nothing += " (`farm requeue` renders done frames again)"
    if not numbers:
        if is_json:
            show.data([])
        elif not is_quiet:
            print(f"{nothing}, in none of your jobs")
        return
    answers = _post(client, numbers, "retry", body)
    _changed(answers, "will be tried again", is_quiet=is_quiet, is_json=is_json, nothing=nothing)


def requeue(
    client: Client,
    jobs: Sequence[str],
    *,
    frames: str | None,
    step: str | None,
    is_all: bool,
    is_quiet: bool,
    is_json: bool,
) -> None:
    if frames is None and step is None and not is_all:
        raise UserError("say which frames to render again: --frames 1-20, --step NAME, or --all")
    states = ("done", "failed", "cancelled")
    retry(client, jobs, frames=frames, step=step, states=states, is_quiet=is_quiet, is_json=is_json)


def _numbers(client: Client, jobs: Sequence[str]) -> list[int]:
    """All are looked up before the first is changed. Raises NotFound that names the nearest."""
    return list(dict.fromkeys(find_job(client, text)[0].job.id for text in jobs))


def _own_with(client: Client, states: Sequence[str]) -> list[int]:
    user = read(FarmView, client.get("/farm")).user
    views = (read(JobView, answer) for answer in client.items("/jobs", cursor="before", user=user))
    return [view.job.id for view in views if any(getattr(view.counts, state) for state in states)]


def _post(client: Client, numbers: Sequence[int], what: str, body: Mapping[str, Any]) -> list[Any]:
    return [client.post(f"/jobs/{number}/{what}", dict(body)) for number in numbers]


def _changed(answers: Sequence[Any], told: str, *, is_quiet: bool, is_json: bool, nothing: str) -> None:
    if is_json:
        show.data(answers[0] if len(answers) == 1 else list(answers))
    if is_json or is_quiet:
        return
    for answer in answers:
        made = read(ChangedView, answer)
        job = made.job.job
        what = nothing if made.changed == 0 else f"{plural(made.changed, 'task')} {told}"
        show.line(f"job {job.id} {job.name}: {what}; it is {job.state}, {show.every_count(made.job.counts)}")


def drain(client: Client, names: Sequence[str], *, is_draining: bool, is_quiet: bool, is_json: bool) -> None:
    """All are looked up before the first is changed."""
    found = [read(Node, find_node(client, name)).id for name in dict.fromkeys(names)]
    verb = "drain" if is_draining else "undrain"
    answers = [client.post(f"/nodes/{quote(node_id, safe='')}/{verb}") for node_id in found]
    if is_json:
        show.data(answers[0] if len(answers) == 1 else answers)
    if is_json or is_quiet:
        return
    for answer in answers:
        _drained(read(Node, answer), is_draining=is_draining)


def _drained(node: Node, *, is_draining: bool) -> None:
    if is_draining:
        rest = f"; {plural(len(node.attempts), 'task')} still running" if node.attempts else ""
        show.line(f"{node.id} takes no more work{rest}")
    elif node.state is NodeState.ONLINE:
        show.line(f"{node.id} takes work again")
    else:
        show.line(f"{node.id} may take work again, and is {node.state}")
