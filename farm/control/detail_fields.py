"""What is shown of one thing and has columns too: a job's steps, a node's devices, run times, differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from farm.control.fields import FIELDS
from farm.control.matching_views import MatchingView, ModelTime
from farm.flow.filters import Field, Kind, Table, Value, table
from farm.flow.reconcile import Difference, Finding
from farm.flow.stats import Spread, Within
from farm.model.machines import Device, DeviceKind, DeviceLoad
from farm.model.work import Step, Tag

STEP_FIELDS: Final[Table[Step]] = table(
    (
        Field(name="step", kind=Kind.TEXT, of=lambda step: step.name, help="the step's name"),
        Field(name="done", kind=Kind.NUMBER, of=lambda step: step.counts.done, help="tasks that are done"),
        Field(name="failed", kind=Kind.NUMBER, of=lambda step: step.counts.failed, help="those that failed"),
        Field(name="tasks", kind=Kind.NUMBER, of=lambda step: step.counts.total, help="tasks in all"),
        Field(
            name="profile",
            kind=Kind.CHOICE,
            choices=tuple(Tag),
            of=lambda step: step.profile.tag,
            help="what its frames cost most",
        ),
        Field(
            name="mean",
            kind=Kind.DURATION,
            of=lambda step: step.mean_runtime_s,
            help="mean run time of a task",
        ),
        Field(name="frames", kind=Kind.TEXT, of=lambda step: step.frames, help="the frames it renders"),
        Field(name="after", kind=Kind.TEXT, of=lambda step: step.depends_on, help="steps it waits for"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSeen:
    device: Device
    load: DeviceLoad | None
    """None: not known."""


def _loaded(of: Callable[[DeviceLoad], Value]) -> Callable[[DeviceSeen], Value]:
    return lambda seen: None if seen.load is None else of(seen.load)


DEVICE_FIELDS: Final[Table[DeviceSeen]] = table(
    (
        Field(name="id", kind=Kind.TEXT, of=lambda seen: seen.device.id, help="how the node names it"),
        Field(name="model", kind=Kind.TEXT, of=lambda seen: seen.device.model, help="what it is"),
        Field(
            name="kind",
            kind=Kind.CHOICE,
            choices=tuple(DeviceKind),
            of=lambda seen: seen.device.kind,
            help="processor, GPU or MIG instance",
        ),
        Field(name="slots", kind=Kind.NUMBER, of=lambda seen: seen.device.slots, help="tasks at once"),
        Field(name="tflops", kind=Kind.NUMBER, of=lambda seen: seen.device.fp32_tflops, help="FP32"),
        Field(
            name="bandwidth",
            kind=Kind.NUMBER,
            of=lambda seen: seen.device.memory_bandwidth_gbps,
            help="of its memory, GB/s",
        ),
        Field(
            name="ridge",
            kind=Kind.NUMBER,
            of=lambda seen: seen.device.ridge,
            help="FLOP for each byte at which both are fully used",
        ),
        Field(
            name="class", kind=Kind.TEXT, of=lambda seen: seen.device.device_class, help="what it suits most"
        ),
        Field(name="vram", kind=Kind.SIZE, of=lambda seen: seen.device.vram_mib, help="its own memory"),
        Field(name="load", kind=Kind.SHARE, of=_loaded(lambda load: load.utilisation), help="how busy it is"),
        Field(
            name="memory",
            kind=Kind.SHARE,
            of=_loaded(lambda load: load.memory_occupancy),
            help="of its memory in use",
        ),
        Field(
            name="temperature", kind=Kind.NUMBER, of=_loaded(lambda load: load.temperature_c), help="in °C"
        ),
        Field(name="power", kind=Kind.NUMBER, of=_loaded(lambda load: load.power_w), help="in watts"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    step: str
    time: ModelTime


TIME_FIELDS: Final[Table[StepTime]] = table(
    (
        Field(name="step", kind=Kind.TEXT, of=lambda line: line.step, help="the step's name"),
        Field(name="model", kind=Kind.TEXT, of=lambda line: line.time.model, help="the device model"),
        Field(name="runs", kind=Kind.NUMBER, of=lambda line: line.time.runs, help="runs there so far"),
        Field(name="median", kind=Kind.DURATION, of=lambda line: line.time.median_s, help="half within"),
        Field(name="worst", kind=Kind.DURATION, of=lambda line: line.time.upper_s, help="9 in 10 within"),
    )
)


def _spread(of: Callable[[Spread], Value]) -> Callable[[MatchingView], Value]:
    return lambda view: None if view.spread is None else of(view.spread)


def _within(of: Callable[[Within], Value]) -> Callable[[MatchingView], Value]:
    return lambda view: None if view.within is None else of(view.within)


STATS_FIELDS: Final[Table[MatchingView]] = table(
    (
        Field(name="policy", kind=Kind.TEXT, of=lambda view: view.policy, help="the policy in force"),
        Field(name="tasks", kind=Kind.NUMBER, of=lambda view: view.tasks, help="done tasks looked at"),
        Field(
            name="mean", kind=Kind.DURATION, of=_spread(lambda s: s.mean_s), help="first start to delivery"
        ),
        Field(name="sd", kind=Kind.DURATION, of=_spread(lambda s: s.sd_s), help="standard deviation of that"),
        Field(name="p50", kind=Kind.DURATION, of=_spread(lambda s: s.p50_s), help="half within"),
        Field(name="p95", kind=Kind.DURATION, of=_spread(lambda s: s.p95_s), help="95 of 100 within"),
        Field(name="p99", kind=Kind.DURATION, of=_spread(lambda s: s.p99_s), help="99 of 100 within"),
        Field(
            name="within",
            kind=Kind.DURATION,
            of=_within(lambda w: w.sd_s),
            help="standard deviation around each step's own mean",
        ),
        Field(
            name="floor",
            kind=Kind.DURATION,
            of=_within(lambda w: w.floor_sd_s),
            help="of that, what devices alike would leave",
        ),
        Field(
            name="waiting",
            kind=Kind.DURATION,
            of=lambda view: view.waiting_bound_s,
            help="what waits takes so long at least",
        ),
        Field(
            name="slow",
            kind=Kind.TEXT,
            of=lambda view: tuple(node.node for node in view.slow_nodes),
            help="nodes slower than others of their kind",
        ),
    )
)

DIFFERENCE_FIELDS: Final[Table[Finding]] = table(
    (
        Field(
            name="difference",
            kind=Kind.CHOICE,
            choices=tuple(Difference),
            of=lambda finding: finding.difference,
            help="what differs",
        ),
        Field(name="job", kind=Kind.NUMBER, of=lambda finding: finding.job_id, help="of which job"),
        Field(name="task", kind=Kind.NUMBER, of=lambda finding: finding.task_id, help="of which task"),
        Field(name="text", kind=Kind.TEXT, of=lambda finding: finding.text, help="what it says"),
        Field(name="advice", kind=Kind.TEXT, of=lambda finding: finding.advice, help="what to do"),
        Field(name="paths", kind=Kind.TEXT, of=lambda finding: finding.paths, help="the files it is about"),
    )
)

EVERY_FIELD: Final[Mapping[str, Callable[[float], Table[Any]]]] = {
    **FIELDS,
    "steps": lambda _: STEP_FIELDS,
    "devices": lambda _: DEVICE_FIELDS,
    "times": lambda _: TIME_FIELDS,
    "stats": lambda _: STATS_FIELDS,
    "differences": lambda _: DIFFERENCE_FIELDS,
}
"""As `FIELDS`, with these."""
