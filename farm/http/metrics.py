"""The farm's figures as Prometheus reads them: what the API shows anyway, in another shape.

No metric is per node, per job or per user: a farm has thousands of them, and a label costs memory for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from farm.control.desk import Desk
from farm.control.desk.callers import Caller
from farm.control.matching_views import MatchingView
from farm.control.views import FarmView, LimitView, StalledView
from farm.model.machines import Node
from farm.model.stalls import NO_STALLS, StallKind
from farm.model.states import NodeState, TaskState

Families = Iterator[GaugeMetricFamily]
Key = TypeVar("Key", bound=str)


def exposition(desk: Desk, by: Caller) -> bytes:
    """One look at the farm in Prometheus' text format. Names from users are escaped in it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Look(desk, by))
    return generate_latest(registry)


class _Look(Collector):
    def __init__(self, desk: Desk, by: Caller) -> None:
        self._desk = desk
        self._by = by

    def collect(self) -> Families:
        yield from _farm(self._desk.overview.farm(self._by))
        yield from _nodes(self._desk.nodes.list_nodes().items)
        yield from _stalls(self._desk.tasks.stalled(with_silent=False).items)
        yield from _limits(self._desk.limits.list_limits().items)
        yield from _matching(self._desk.overview.matching())


def _farm(farm: FarmView) -> Families:
    info = GaugeMetricFamily("ridgeline_info", "Always 1.", labels=("version", "policy"))
    info.add_metric((farm.version, farm.policy), 1.0)
    yield info
    yield _one("leaders", "Schedulers that lead, 0 or 1. Without one nothing is started.", bool(farm.leader))
    yield _one("slots", "Slots of the nodes that are not offline.", farm.slots)
    yield _one("slots_used", "Slots that hold an attempt.", farm.slots_used)
    tasks = {state: getattr(farm.counts, state) for state in TaskState}
    yield _many("tasks", "Tasks of jobs that have not ended.", "state", tasks)


def _nodes(nodes: tuple[Node, ...]) -> Families:
    states = Counter(node.state for node in nodes)
    yield _many(
        "nodes", "Nodes; quarantined ones drain.", "state", {each: states[each] for each in NodeState}
    )


def _stalls(stalled: tuple[StalledView, ...]) -> Families:
    kinds = Counter(each.stall.kind for each in stalled)
    by_kind = {kind: kinds[kind] for kind in StallKind if kind not in NO_STALLS}
    yield _many("stalled_attempts", "Live attempts that are taken for stalled.", "kind", by_kind)


def _limits(limits: tuple[LimitView, ...]) -> Families:
    yield _many("limit_amount", "How much there is.", "limit", {each.name: each.amount for each in limits})
    yield _many("limit_used", "How much is taken.", "limit", {each.name: each.used for each in limits})
    waiting = {each.name: each.waiting for each in limits}
    yield _many("limit_waiting_tasks", "Ready tasks that need it.", "limit", waiting)


def _matching(view: MatchingView) -> Families:
    yield _one("waiting_work_seconds", "In which time no schedule drains what waits.", view.waiting_bound_s)
    if view.within is not None:
        yield _one("spread_seconds", "Standard deviation of completion within steps.", view.within.sd_s)
        yield _one("spread_floor_seconds", "What is left of it with devices alike.", view.within.floor_sd_s)
        yield _one("spread_ratio", "The spread in parts of each step's mean.", view.within.relative)
    slots = {each.model: each.slots for each in view.models}
    yield _many("device_slots", "Slots of a device model, once it has a price.", "model", slots)
    saves = {each.model: each.one_more_saves_s for each in view.models}
    yield _many("device_one_more_saves_seconds", "What one more saves the waiting work.", "model", saves)


def _one(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"ridgeline_{name}", text, value=float(value))


def _many(name: str, text: str, label: str, values: Mapping[Key, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"ridgeline_{name}", text, labels=(label,))
    for key in sorted(values):
        family.add_metric((str(key),), float(values[key]))
    return family
