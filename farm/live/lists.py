"""What each pane lists of a snapshot: filtered, ordered, and what stands under the cursor. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar

from farm.control.fields import NODE_FIELDS, TASK_FIELDS, event_fields, job_fields, stalled_fields
from farm.control.views import JobView, StalledView
from farm.errors import UserError
from farm.flow.filters import Table, ordered, parse
from farm.flow.grep import matching_lines
from farm.live.snapshot import Snapshot, TaskLine
from farm.live.view import Pane, Target, View, place
from farm.model.events import Event
from farm.model.machines import Node
from farm.model.states import JobState, NodeState

T = TypeVar("T")
_WHAT: Final = {
    Pane.JOBS: "jobs",
    Pane.NODES: "nodes",
    Pane.EVENTS: "events",
    Pane.TASKS: "tasks",
    Pane.STALLED: "stalled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """The items of every pane, in the order shown."""

    jobs: tuple[JobView, ...] = ()
    nodes: tuple[Node, ...] = ()
    events: tuple[Event, ...] = ()
    tasks: tuple[TaskLine, ...] = ()
    stalled: tuple[StalledView, ...] = ()
    log: tuple[str, ...] = ()
    wrong: Mapping[Pane, str] = field(default_factory=dict)
    """Why a pane's filter was not applied."""
    ids: Mapping[Pane, Sequence[str]] = field(default_factory=dict)


def lists(snapshot: Snapshot, view: View) -> Lists:
    """All items that `view` lets through."""
    now = snapshot.farm.now if snapshot.farm is not None else 0.0
    wrong: dict[Pane, str] = {}

    def chosen(
        pane: Pane, things: Sequence[T], fields: Callable[[], Table[Any]], of: Callable[[T], Any]
    ) -> tuple[T, ...]:
        text, by = view.filters.get(pane, ""), view.sorts.get(pane, "")
        if not text and not by:
            return tuple(things)
        try:
            return _chosen(things, text, by, fields(), of, _WHAT[pane])
        except UserError as error:
            wrong[pane] = str(error)
            return tuple(things)

    jobs = chosen(Pane.JOBS, snapshot.jobs, lambda: job_fields(now), lambda line: line)
    nodes = chosen(Pane.NODES, snapshot.nodes, lambda: NODE_FIELDS, lambda node: node)
    events = chosen(Pane.EVENTS, snapshot.events, lambda: event_fields(now), lambda event: event)
    tasks = snapshot.tasks if snapshot.job_id == view.job_id else ()
    tasks = chosen(Pane.TASKS, tasks, lambda: TASK_FIELDS, lambda line: line.task)
    stalled = chosen(Pane.STALLED, snapshot.stalled, lambda: stalled_fields(now), lambda line: line)
    log = snapshot.log.lines if snapshot.log is not None and snapshot.log.task_id == view.task_id else ()
    if log and not log[-1]:
        log = log[:-1]  # the line that has not begun yet
    if wanted := view.filters.get(Pane.LOG, ""):
        log = tuple(line for _, line in matching_lines("\n".join(log), wanted))
    return Lists(
        jobs=jobs,
        nodes=nodes,
        events=events,
        tasks=tasks,
        stalled=stalled,
        log=log,
        wrong=wrong,
        ids={
            Pane.JOBS: [str(line.job.id) for line in jobs],
            Pane.NODES: [node.id for node in nodes],
            Pane.EVENTS: [str(event.id) for event in events],
            Pane.TASKS: [str(line.task.id) for line in tasks],
            Pane.STALLED: [line.attempt.id for line in stalled],
            Pane.LOG: log,
        },
    )


def _chosen(
    things: Sequence[T], text: str, by: str, fields: Table[Any], of: Callable[[T], Any], what: str
) -> tuple[T, ...]:
    """Raises UserError for a filter that cannot be understood."""
    # Values of a node's and a task's fields do not depend on the time: what a text means is found once.
    matches = _parsed(text, what) if what in ("nodes", "tasks") else parse(text, fields, what)
    kept = [thing for thing in things if matches(of(thing))]
    if by:
        place_of = {id(of(thing)): thing for thing in kept}
        kept = [place_of[id(each)] for each in ordered([of(thing) for thing in kept], by, fields, what)]
    return tuple(kept)


@lru_cache(maxsize=32)
def _parsed(text: str, what: str) -> Callable[[Any], bool]:
    fields: Table[Any] = NODE_FIELDS if what == "nodes" else TASK_FIELDS
    return parse(text, fields, what)


def target(shown: Lists, view: View) -> Target:
    """What stands under the cursor of the pane in focus."""
    ids = shown.ids.get(view.focus, ())
    if view.focus is Pane.LOG:
        return Target(name=view.task_name, job_id=view.task_job_id, task_id=view.task_id)
    if not ids:
        return Target()
    at = place(view, view.focus, ids)
    if view.focus is Pane.JOBS:
        job = shown.jobs[at].job
        return Target(
            id=str(job.id),
            name=f"job {job.id} {job.name}",
            job_id=job.id,
            is_paused=job.state is JobState.PAUSED,
            priority=job.settings.priority,
        )
    if view.focus is Pane.NODES:
        node = shown.nodes[at]
        return Target(id=node.id, name=node.id, node_id=node.id, is_drained=node.state is NodeState.DRAINING)
    if view.focus is Pane.TASKS:
        task = shown.tasks[at].task
        name = f"job {task.job_id} {task.step} {task.label}".rstrip()
        return Target(id=str(task.id), name=name, job_id=task.job_id, task_id=task.id)
    if view.focus is Pane.STALLED:
        line = shown.stalled[at]
        attempt = line.attempt
        return Target(
            id=attempt.id,
            name=f"job {attempt.job_id} {line.job_name} {line.label}".rstrip(),
            job_id=attempt.job_id,
            task_id=attempt.task_id,
        )
    event = shown.events[at]
    return Target(id=str(event.id), job_id=event.job_id)
