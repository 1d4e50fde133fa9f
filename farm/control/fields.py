"""What whatever is listed can be filtered by and listed with: one table of fields each.

The command line's `--columns` and filters, and the live view's, read these very tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from farm.control.views import HookView, JobView, LimitView, StalledView
from farm.errors import UserError
from farm.flow.filters import Field, Kind, Table, Value, table
from farm.model.attempts import Attempt
from farm.model.decisions import Decision
from farm.model.events import Event, EventKind
from farm.model.frames import parse_frames
from farm.model.limits import LimitScope
from farm.model.machines import DeviceKind, Node
from farm.model.stalls import StallKind
from farm.model.states import ENDED_JOBS, AttemptState, JobState, NodeState, TaskState
from farm.model.work import Tag, Task

if TYPE_CHECKING:  # what few commands show costs the others nothing
    from farm.control.access_views import TokenView
    from farm.control.matching_views import ModelWorth

_FRAMES_IN_LABEL: Final = re.compile(r"(?:^|\bFrames?=)(-?[0-9][-0-9,:]*)(?=$| )")


def job_fields(now: float) -> Table[JobView]:
    """`now`: seconds since the epoch, on the clock that the jobs' times are of."""

    def count(state: TaskState) -> Field[JobView]:
        return Field(
            name=state.value,
            kind=Kind.NUMBER,
            of=lambda view: getattr(view.counts, state),
            help=f"tasks that are {state}",
        )

    return table(
        (
            Field(name="id", kind=Kind.NUMBER, of=lambda view: view.job.id, help="the job's number"),
            Field(name="name", kind=Kind.TEXT, of=lambda view: view.job.name, help="what it is called"),
            Field(name="user", kind=Kind.TEXT, of=lambda view: view.job.settings.user, help="whose it is"),
            Field(
                name="state",
                kind=Kind.CHOICE,
                choices=tuple(JobState),
                of=lambda view: view.job.state,
                help="where it stands",
            ),
            Field(
                name="kind", kind=Kind.TEXT, of=lambda view: view.job.kind, help="what renders it: blender"
            ),
            Field(
                name="profile",
                kind=Kind.CHOICE,
                choices=tuple(Tag),
                of=lambda view: view.tag,
                help="what its frames cost most",
            ),
            Field(
                name="priority",
                kind=Kind.NUMBER,
                of=lambda view: view.job.settings.priority,
                help="0 to 100, higher first",
            ),
            Field(name="pool", kind=Kind.TEXT, of=lambda view: view.job.settings.pool, help="nodes it wants"),
            Field(name="tasks", kind=Kind.NUMBER, of=lambda view: view.counts.total, help="tasks in all"),
            *map(count, TaskState),
            Field(
                name="progress",
                kind=Kind.SHARE,
                of=lambda view: view.progress,
                help="share of its tasks that ended",
            ),
            Field(
                name="left",
                kind=Kind.DURATION,
                of=lambda view: None if view.job.state in ENDED_JOBS or view.eta_s is None else view.eta_s[0],
                help="likely time until it is done",
            ),
            Field(
                name="mean",
                kind=Kind.DURATION,
                of=lambda view: None if view.spread is None else view.spread.mean_s,
                help="mean run time of a task",
            ),
            Field(
                name="age",
                kind=Kind.DURATION,
                of=lambda view: max(now - view.job.submitted_at, 0.0),
                help="since it was submitted",
            ),
            Field(
                name="took",
                kind=Kind.DURATION,
                of=lambda view: (
                    None if view.job.finished_at is None else view.job.finished_at - view.job.submitted_at
                ),
                help="from submission to its end",
            ),
            Field(
                name="needs",
                kind=Kind.TEXT,
                of=lambda view: tuple(map(str, view.job.settings.depends_on)),
                help="jobs it waits for",
            ),
            Field(
                name="note",
                kind=Kind.TEXT,
                of=lambda view: view.job.reason or view.waiting,
                help="why it waits, or ended so",
            ),
        )
    )


TASK_FIELDS: Final[Table[Task]] = table(
    (
        Field(name="id", kind=Kind.NUMBER, of=lambda task: task.id, help="the task's number"),
        Field(name="job", kind=Kind.NUMBER, of=lambda task: task.job_id, help="its job's number"),
        Field(name="step", kind=Kind.TEXT, of=lambda task: task.step, help="the step it belongs to"),
        Field(
            name="frame",
            kind=Kind.FRAMES,
            of=lambda task: label_frames(task.label),
            help="the frames it renders: frame=1-20",
        ),
        Field(
            name="label", kind=Kind.TEXT, of=lambda task: task.label, help="its parameters: Frame=7 Tile=2"
        ),
        Field(
            name="state",
            kind=Kind.CHOICE,
            choices=tuple(TaskState),
            of=lambda task: task.state,
            help="where it stands",
        ),
        Field(name="node", kind=Kind.TEXT, of=lambda task: task.node_id, help="where it ran last"),
        Field(name="tries", kind=Kind.NUMBER, of=lambda task: task.starts, help="attempts made"),
        Field(
            name="failures", kind=Kind.NUMBER, of=lambda task: task.failures, help="those that cost a retry"
        ),
        Field(
            name="generation",
            kind=Kind.NUMBER,
            of=lambda task: task.generation,
            help="more than 1: a person rendered it again",
        ),
        Field(name="time", kind=Kind.DURATION, of=lambda task: task.runtime_s, help="how long it rendered"),
        Field(
            name="load",
            kind=Kind.DURATION,
            of=lambda task: task.load_s,
            help="of that, loading the scene; none: not told, or it was loaded",
        ),
        Field(
            name="progress", kind=Kind.SHARE, of=lambda task: task.progress, help="of the attempt that runs"
        ),
        Field(
            name="note",
            kind=Kind.TEXT,
            of=lambda task: task.reason or "; ".join(task.warnings),
            help="what went wrong, or warnings",
        ),
    )
)

NODE_FIELDS: Final[Table[Node]] = table(
    (
        Field(name="name", kind=Kind.TEXT, of=lambda node: node.id, help="the machine's name"),
        Field(
            name="state",
            kind=Kind.CHOICE,
            choices=tuple(NodeState),
            of=lambda node: node.state,
            help="where it stands",
        ),
        Field(name="pool", kind=Kind.TEXT, of=lambda node: node.capabilities.pools, help="pools it serves"),
        Field(
            name="device",
            kind=Kind.TEXT,
            of=lambda node: tuple(dict.fromkeys(device.model for device in node.capabilities.devices)),
            help="models of its processors and GPUs",
        ),
        Field(
            name="gpus",
            kind=Kind.NUMBER,
            of=lambda node: sum(device.kind is not DeviceKind.CPU for device in node.capabilities.devices),
            help="GPUs and MIG instances",
        ),
        Field(
            name="vram",
            kind=Kind.SIZE,
            of=lambda node: max(
                (device.vram_mib for device in node.capabilities.devices if device.vram_mib), default=None
            ),
            help="of its largest GPU",
        ),
        Field(
            name="tflops",
            kind=Kind.NUMBER,
            of=lambda node: max(
                (device.fp32_tflops for device in node.capabilities.devices if device.fp32_tflops),
                default=None,
            ),
            help="FP32, of its fastest device",
        ),
        Field(
            name="bandwidth",
            kind=Kind.NUMBER,
            of=lambda node: max(
                (
                    device.memory_bandwidth_gbps
                    for device in node.capabilities.devices
                    if device.memory_bandwidth_gbps
                ),
                default=None,
            ),
            help="memory bandwidth, GB/s, of its fastest device",
        ),
        Field(
            name="software",
            kind=Kind.TEXT,
            of=lambda node: tuple(
                f"{name} {version}".strip() for name, version in sorted(node.capabilities.software.items())
            ),
            help="renderers it has: blender 3.4.1",
        ),
        Field(
            name="os", kind=Kind.TEXT, of=lambda node: node.capabilities.os_family, help="operating system"
        ),
        Field(name="cpus", kind=Kind.NUMBER, of=lambda node: node.capabilities.cpus, help="cores"),
        Field(
            name="memory", kind=Kind.SIZE, of=lambda node: node.capabilities.memory_mib, help="main memory"
        ),
        Field(name="disk", kind=Kind.SIZE, of=lambda node: node.disk_free_mib, help="free disk"),
        Field(name="slots", kind=Kind.NUMBER, of=lambda node: node.capabilities.slots, help="tasks at once"),
        Field(name="busy", kind=Kind.NUMBER, of=lambda node: len(node.attempts), help="slots in use"),
        Field(
            name="free",
            kind=Kind.NUMBER,
            of=lambda node: max(node.capabilities.slots - len(node.attempts), 0),
            help="slots not in use",
        ),
        Field(
            name="load",
            kind=Kind.SHARE,
            of=lambda node: max(
                (load.utilisation for load in node.loads if load.utilisation is not None), default=None
            ),
            help="use of its busiest device",
        ),
        Field(name="silent", kind=Kind.DURATION, of=lambda node: node.silent_s, help="since it was heard"),
        Field(name="running", kind=Kind.TEXT, of=lambda node: node.running, help="what runs there"),
        Field(name="version", kind=Kind.TEXT, of=lambda node: node.agent_version, help="of its agent"),
        Field(name="note", kind=Kind.TEXT, of=lambda node: node_notes(node), help="what is wrong with it"),
    )
)


def event_fields(now: float) -> Table[Event]:
    """`now`: seconds since the epoch, on the clock that the events' times are of."""
    return table(
        (
            Field(name="id", kind=Kind.NUMBER, of=lambda event: event.id, help="the event's number"),
            Field(
                name="kind",
                kind=Kind.CHOICE,
                choices=tuple(EventKind),
                of=lambda event: event.kind,
                help="what happened",
            ),
            Field(name="job", kind=Kind.NUMBER, of=lambda event: event.job_id, help="to which job"),
            Field(name="task", kind=Kind.NUMBER, of=lambda event: event.task_id, help="to which task"),
            Field(name="node", kind=Kind.TEXT, of=lambda event: event.node_id, help="on which node"),
            Field(
                name="actor", kind=Kind.TEXT, of=lambda event: event.actor, help="who asked; none: the farm"
            ),
            Field(
                name="age",
                kind=Kind.DURATION,
                of=lambda event: max(now - event.at, 0.0),
                help="since it happened",
            ),
            Field(name="text", kind=Kind.TEXT, of=lambda event: event.text, help="what it says"),
        )
    )


def stalled_fields(now: float) -> Table[StalledView]:
    """`now`: seconds since the epoch, on the clock that the attempts' times are of."""

    def since(at: float | None) -> float | None:
        return None if at is None else max(now - at, 0.0)

    return table(
        (
            Field(
                name="task", kind=Kind.NUMBER, of=lambda line: line.attempt.task_id, help="the task's number"
            ),
            Field(name="job", kind=Kind.NUMBER, of=lambda line: line.attempt.job_id, help="its job's number"),
            Field(name="name", kind=Kind.TEXT, of=lambda line: line.job_name, help="what the job is called"),
            Field(name="user", kind=Kind.TEXT, of=lambda line: line.user, help="whose it is"),
            Field(name="step", kind=Kind.TEXT, of=lambda line: line.step, help="the step it belongs to"),
            Field(
                name="frame",
                kind=Kind.FRAMES,
                of=lambda line: label_frames(line.label),
                help="the frames it renders: frame=1-20",
            ),
            Field(
                name="kind",
                kind=Kind.CHOICE,
                choices=tuple(StallKind),
                of=lambda line: line.stall.kind,
                help="what it is taken for",
            ),
            Field(name="node", kind=Kind.TEXT, of=lambda line: line.attempt.node_id, help="where it runs"),
            Field(
                name="for",
                kind=Kind.DURATION,
                of=lambda line: since(line.stall.since),
                help="since it is taken for that",
            ),
            Field(
                name="time",
                kind=Kind.DURATION,
                of=lambda line: since(line.attempt.started_at),
                help="how long it has run",
            ),
            Field(
                name="done", kind=Kind.TEXT, of=lambda line: line.stall.action, help="what was done about it"
            ),
            Field(name="text", kind=Kind.TEXT, of=lambda line: line.stall.text, help="by which evidence"),
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An attempt, and what people call the things that it names by number."""

    attempt: Attempt
    label: str
    """Of its task; empty: it is its step's only one."""
    runner_up: str
    """What its decision's runner-up is called; empty: not known, or none."""

    @property
    def why(self) -> str:
        decision = self.attempt.decision
        return "not told by the policy in force then" if decision is None else decision.why(self.runner_up)


def _decided(of: Callable[[Decision], Value]) -> Callable[[Placed], Value]:
    return lambda line: None if line.attempt.decision is None else of(line.attempt.decision)


ATTEMPT_FIELDS: Final[Table[Placed]] = table(
    (
        Field(name="task", kind=Kind.NUMBER, of=lambda line: line.attempt.task_id, help="the task's number"),
        Field(
            name="frame",
            kind=Kind.FRAMES,
            of=lambda line: label_frames(line.label),
            help="the frames it rendered: frame=1-20",
        ),
        Field(name="label", kind=Kind.TEXT, of=lambda line: line.label, help="the task's parameters"),
        Field(name="node", kind=Kind.TEXT, of=lambda line: line.attempt.node_id, help="where it ran"),
        Field(
            name="device",
            kind=Kind.TEXT,
            of=_decided(lambda decision: decision.model),
            help="the device's model",
        ),
        Field(
            name="state",
            kind=Kind.CHOICE,
            choices=tuple(AttemptState),
            of=lambda line: line.attempt.state,
            help="where it stands",
        ),
        Field(
            name="time",
            kind=Kind.DURATION,
            of=lambda line: line.attempt.runtime_s,
            help="how long it rendered",
        ),
        Field(
            name="expected",
            kind=Kind.DURATION,
            of=_decided(lambda decision: None if decision.is_guess else decision.predicted_s),
            help="likely time that was foreseen, loading included",
        ),
        Field(
            name="worst",
            kind=Kind.DURATION,
            of=_decided(lambda decision: None if decision.is_guess else decision.upper_s),
            help="9 times in 10 not more",
        ),
        Field(
            name="load",
            kind=Kind.DURATION,
            of=_decided(lambda decision: decision.load_s),
            help="of that, for loading the scene",
        ),
        Field(
            name="suits",
            kind=Kind.SHARE,
            of=_decided(lambda decision: decision.advantage),
            help="100 %: the work costs nowhere less; else the least cost over that here",
        ),
        Field(
            name="best",
            kind=Kind.SHARE,
            of=_decided(lambda decision: decision.best_advantage),
            help="the same of the work that the device suits best",
        ),
        Field(
            name="rivals",
            kind=Kind.NUMBER,
            of=_decided(lambda decision: decision.near_equals),
            help="steps that it suits about as well, this one too",
        ),
        Field(
            name="price",
            kind=Kind.NUMBER,
            of=_decided(lambda decision: decision.price),
            help="of a second of the device; all slots together cost 1",
        ),
        Field(
            name="next",
            kind=Kind.TEXT,
            of=lambda line: line.runner_up,
            help="the best match of the others",
        ),
        Field(name="why", kind=Kind.TEXT, of=lambda line: line.why, help="why this work got the device"),
    )
)

LIMIT_FIELDS: Final[Table[LimitView]] = table(
    (
        Field(name="name", kind=Kind.TEXT, of=lambda limit: limit.name, help="the limit's name"),
        Field(
            name="per",
            kind=Kind.CHOICE,
            choices=tuple(LimitScope),
            of=lambda limit: limit.per,
            help="what takes of it",
        ),
        Field(name="used", kind=Kind.NUMBER, of=lambda limit: limit.used, help="how much is in use"),
        Field(name="amount", kind=Kind.NUMBER, of=lambda limit: limit.amount, help="how much there is"),
        Field(name="free", kind=Kind.NUMBER, of=lambda limit: limit.free, help="how much is left"),
        Field(name="waiting", kind=Kind.NUMBER, of=lambda limit: limit.waiting, help="tasks that wait"),
        Field(
            name="jobs",
            kind=Kind.TEXT,
            of=lambda limit: tuple(str(each.job_id) for each in limit.holders),
            help="jobs that hold of it",
        ),
    )
)

HOOK_FIELDS: Final[Table[HookView]] = table(
    (
        Field(name="name", kind=Kind.TEXT, of=lambda hook: hook.name, help="the hook's name"),
        Field(
            name="kind",
            kind=Kind.CHOICE,
            choices=("webhook", "command", "mail"),
            of=lambda hook: hook.kind,
            help="what it does",
        ),
        Field(name="on", kind=Kind.TEXT, of=lambda hook: hook.on, help="when a job does so"),
        Field(
            name="jobs",
            kind=Kind.CHOICE,
            choices=("every", "asking"),
            of=lambda hook: "every" if hook.every_job else "asking",
            help="for which jobs it is called",
        ),
    )
)

TOKEN_FIELDS: Final[Table[TokenView]] = table(
    (
        Field(name="name", kind=Kind.TEXT, of=lambda token: token.name, help="the token's name"),
        Field(name="user", kind=Kind.TEXT, of=lambda token: token.user, help="whom it speaks for"),
        Field(name="role", kind=Kind.TEXT, of=lambda token: token.role, help="what it may"),
    )
)

MODEL_FIELDS: Final[Table[ModelWorth]] = table(
    (
        Field(name="model", kind=Kind.TEXT, of=lambda worth: worth.model, help="the device model"),
        Field(name="slots", kind=Kind.NUMBER, of=lambda worth: worth.slots, help="how many of them"),
        Field(
            name="worth",
            kind=Kind.SHARE,
            of=lambda worth: worth.slots * worth.price,
            help="their share of what the farm is worth to what waits",
        ),
        Field(
            name="saves",
            kind=Kind.DURATION,
            of=lambda worth: worth.one_more_saves_s,
            help="what one more would save of the time that what waits takes at least",
        ),
    )
)

FIELDS: Final[Mapping[str, Callable[[float], Table[Any]]]] = {
    "jobs": job_fields,
    "tasks": lambda _: TASK_FIELDS,
    "nodes": lambda _: NODE_FIELDS,
    "events": event_fields,
    "stalled": stalled_fields,
    "attempts": lambda _: ATTEMPT_FIELDS,
    "limits": lambda _: LIMIT_FIELDS,
    "hooks": lambda _: HOOK_FIELDS,
    "tokens": lambda _: TOKEN_FIELDS,
    "models": lambda _: MODEL_FIELDS,
}
"""Of everything that is listed, by its name in the plural; with the time now, in seconds since the epoch."""


def label_frames(label: str) -> tuple[int, ...]:
    """The frames that a task's label tells: of "7", "1-4", "Frame=7 Tile=2"; none of others."""
    match = _FRAMES_IN_LABEL.search(label)
    try:
        return () if match is None else parse_frames(match[1])
    except UserError:
        return ()


def node_notes(node: Node) -> tuple[str, ...]:
    """What is to be said of a node and its devices, each once."""
    wrong = [load.fault or load.closed or load.complaint for load in node.loads]
    return tuple(dict.fromkeys(text for text in (node.reason, *wrong, *node.capabilities.notes) if text))
