"""What is kept free although work waits: reserved slots, watts under a pool's cap, nodes for wide tasks.

All of it is said to the policies as nodes and devices that take no work, with the reason: every policy obeys,
and `why` tells it, without either knowing of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from farm.flow.groups import Assignment, Cause, Group, left_of, used, without
from farm.flow.match import fitness, plan
from farm.flow.refusals import Room, fits, standing
from farm.model.ids import NodeId, StepId
from farm.model.machines import Device, DeviceKind, DeviceLoad, NodeView, Use
from farm.model.sharing import Reservation
from farm.text import duration

_HOLD_AT_MOST: Final = 0.5
"""Of the nodes that take work: so many are kept for wide tasks at the same time."""
_UNKNOWN_RUNTIME_S: Final = 600.0
"""Of a task whose step has no run time yet: how long it is taken to run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRules:
    """From the settings."""

    reservations: Sequence[Reservation] = ()
    power_caps_w: Mapping[str, float] = field(default_factory=dict)
    """By pool: what its devices may draw together."""
    wide_patience_s: float | None = None
    """A task for more than one slot that found no room for so long gets a node kept for it; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Free slots of a pool that are kept."""

    reservation: Reservation
    nodes: Sequence[NodeView]
    """That have such slots, as they are for whom they are kept."""
    slots: Mapping[NodeId, Mapping[str, int]]
    """By node and device: how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a round of matching gets to see."""

    views: Sequence[NodeView]
    """With all that is kept taken away: for everybody."""
    reserved: Sequence[Reserved] = ()
    holds: Mapping[NodeId, Group] = field(default_factory=dict)
    """Nodes that are kept for one group, which finds them open in `held`."""
    held: Sequence[NodeView] = ()
    causes: Mapping[str, Cause] = field(default_factory=dict)
    """By pool: why work that its reservation is not for finds no more room there."""


def is_wide(group: Group) -> bool:
    """Whether small tasks could for ever take the room away that it needs."""
    demand = group.demand
    return demand.gpus > 1 or demand.cpus > 1 or demand.memory_mib > 0


def keep(
    groups: Sequence[Group],
    nodes: Sequence[NodeView],
    rules: KeepRules,
    *,
    now: float = 0.0,
    idle_since: Mapping[StepId, float] | None = None,
    free: Mapping[str, int] | None = None,
) -> Kept:
    """What stays free in this round, for whom.

    idle_since: of wide groups with tasks ready, when the last of their tasks started (or the job came).
    free: how much is left of each shared count.
    """
    views = list(nodes)
    if rules.power_caps_w:
        views = _under_caps(views, rules.power_caps_w)
    holds: dict[NodeId, Group] = {}
    held: list[NodeView] = []
    if idle_since and rules.wide_patience_s is not None:
        # A node kept for what a limit holds up would do nothing.
        waiting = [g for g in groups if is_wide(g) and may_start(g, free or {}) and g.step_id in idle_since]
        holds = _holds(waiting, groups, views, rules.wide_patience_s, idle_since, now)
        held = [view for view in views if view.id in holds]
        views = [
            _closed_for(view, holds[view.id], idle_since, now) if view.id in holds else view for view in views
        ]
    reserved: list[Reserved] = []
    causes: dict[str, Cause] = {}
    for reservation in rules.reservations:
        found, cause = _reserve(views, reservation)
        if found.slots:
            reserved.append(found)
            why = f"kept for {reservation.whom} (reservation of pool {reservation.pool})"
            views = [_without(v, found.slots[v.id], why) if v.id in found.slots else v for v in views]
        if cause is not None:
            causes[reservation.pool] = cause
    return Kept(views=views, reserved=reserved, holds=holds, held=held, causes=causes)


Policy = Callable[[Sequence[Group], Sequence[NodeView], int, Mapping[str, int]], tuple[Assignment, ...]]
"""(groups, nodes, most tasks, what is left of shared counts) -> which tasks start where."""


def plan_around(
    policy: Policy, groups: Sequence[Group], kept: Kept, *, limit: int, free: Mapping[str, int]
) -> tuple[Assignment, ...]:
    """What a policy plans with what everybody may use, and what goes to the nodes and slots that are kept.

    A task that a node is kept for goes there first. Reserved slots come last: what they are kept for has had
    its chance with everything else by then.
    """
    plans: tuple[Assignment, ...] = ()

    def add(some: Sequence[Group], nodes: Sequence[NodeView]) -> None:
        nonlocal plans
        left = limit - sum(each.count for each in plans)
        if some and left > 0:
            plans += plan(some, nodes, score=fitness, limit=left, free=left_of(free, plans, groups))

    for view in kept.held:
        mine = kept.holds[view.id]
        some = [g for g in without(groups, plans) if (g.step_id, g.avoid) == (mine.step_id, mine.avoid)]
        add(some, used([view], plans, groups))
    left = limit - sum(each.count for each in plans)
    plans += policy(without(groups, plans), kept.views, left, left_of(free, plans, groups))
    for each in kept.reserved:
        some = [g for g in without(groups, plans) if g.ready > 0 and _is_for(each.reservation, g)]
        if some:
            nodes = used(each.nodes, plans, groups)
            add(some, [_with_only(view, each.slots[view.id]) for view in nodes])
    return plans


def causes(group: Group, kept: Kept, rules: KeepRules) -> list[Cause]:
    """Why reservations hold a group up; the rest is told by the nodes themselves."""
    found = []
    for reservation in rules.reservations:
        cause = kept.causes.get(reservation.pool)
        if cause is None or _is_for(reservation, group):
            continue
        if any(reservation.pool in view.capabilities.pools and _could(group, view) for view in kept.views):
            found.append(cause)
    return found


def _could(group: Group, view: NodeView) -> bool:
    return view.id not in group.avoid and next(standing(group.demand, view), None) is None


# --- reservations -------------------------------------------------------------------------------------


def _is_for(reservation: Reservation, group: Group) -> bool:
    return reservation.is_for(priority=group.priority, user=group.user, project=group.project)


def _reserve(views: Sequence[NodeView], reservation: Reservation) -> tuple[Reserved, Cause | None]:
    """(the free slots to keep, why other work finds no more room)"""
    pool = [view for view in views if view.accepts_work and reservation.pool in view.capabilities.pools]
    taken: dict[NodeId, dict[str, int]] = {}
    """Free slots to be kept, by node and device."""
    cause = None
    for kinds, word in (((DeviceKind.CPU,), "CPU"), ((DeviceKind.GPU, DeviceKind.MIG), "GPU")):
        total = others = 0
        free: list[tuple[NodeView, Device, int]] = []
        for view in pool:
            open_slots = Room.of(view).slots
            for device in view.capabilities.devices:
                if device.kind not in kinds or device.slots <= 0:
                    continue
                total += device.slots
                ordinary = sum(
                    device.id in use.device_id.split(",")
                    and not reservation.is_for(priority=use.priority, user=use.user, project=use.project)
                    for use in view.uses
                )
                others += min(ordinary, device.slots)
                if open_slots[device.id] > 0:
                    free.append((view, device, open_slots[device.id]))
        keep_slots = math.ceil(reservation.share * total - 1e-9)
        may = max(0, total - keep_slots - others)
        # The last nodes of the pool, and always the same: work in progress does not move them about.
        left = max(0, sum(count for _, _, count in free) - may)
        for view, device, count in reversed(free):
            if left <= 0:
                break
            taken.setdefault(view.id, {})[device.id] = min(count, left)
            left -= min(count, left)
        if total and may == 0 and free:
            text = (
                f"pool {reservation.pool} keeps {keep_slots} of {total} {word} slots for {reservation.whom}, "
                f"and other work has the remaining {total - keep_slots}: waits for some of it to end, or for "
                "another share in `reservations`"
            )
            cause = Cause(text=text, is_momentary=True)
    nodes = [view for view in pool if view.id in taken]
    return Reserved(reservation=reservation, nodes=nodes, slots=taken), cause


def _without(view: NodeView, slots: Mapping[str, int], why: str) -> NodeView:
    """The node with so many of its devices' free slots taken."""
    open_slots = Room.of(view).slots
    whole = {device_id for device_id, count in slots.items() if count >= open_slots[device_id]}
    uses = [Use(device_id=d) for d, count in slots.items() if d not in whole for _ in range(count)]
    return replace(view, uses=(*view.uses, *uses), loads=_closed(view, dict.fromkeys(whole, why)))


def _with_only(view: NodeView, slots: Mapping[str, int]) -> NodeView:
    """The node with no more than these of its free slots."""
    open_slots = Room.of(view).slots
    uses = [
        Use(device_id=device_id)
        for device_id, free in open_slots.items()
        for _ in range(max(0, free - slots.get(device_id, 0)))
    ]
    return replace(view, uses=(*view.uses, *uses))


def _closed(view: NodeView, why: Mapping[str, str]) -> tuple[DeviceLoad, ...]:
    """Its loads, with these devices closed."""
    loads = [
        replace(load, closed=why[load.device_id]) if load.device_id in why and not load.closed else load
        for load in view.loads
    ]
    there = {load.device_id for load in view.loads}
    loads += [
        DeviceLoad(device_id=device, closed=text) for device, text in why.items() if device not in there
    ]
    return tuple(loads)


# --- watts --------------------------------------------------------------------------------------------


def drawn_w(view: NodeView) -> dict[str, float]:
    """What each device draws, or may draw as it works: its design power while it does, else what it reports.

    0 for a device of which neither is known.
    """
    busy = {device_id for use in view.uses for device_id in use.device_id.split(",")}
    reported = {load.device_id: load.power_w or 0.0 for load in view.loads}
    return {
        device.id: max(device.tdp_w or 0.0, reported.get(device.id, 0.0))
        if device.id in busy
        else reported.get(device.id, 0.0)
        for device in view.capabilities.devices
    }


def _under_caps(views: Sequence[NodeView], caps_w: Mapping[str, float]) -> list[NodeView]:
    """Idle devices stay closed that would draw more than is left; the most work for a watt stays open."""
    draw = {view.id: drawn_w(view) for view in views}
    left = {
        pool: cap - sum(sum(draw[v.id].values()) for v in views if pool in v.capabilities.pools)
        for pool, cap in caps_w.items()
    }
    idle = []
    for view in views:
        busy = {device_id for use in view.uses for device_id in use.device_id.split(",")}
        mine = [pool for pool in view.capabilities.pools if pool in caps_w]
        if mine:
            for device in view.capabilities.devices:
                if device.id not in busy and device.slots > 0 and device.tdp_w:
                    idle.append((-(device.fp32_tflops or 0.0) / device.tdp_w, view.id, device, mine))
    closed: dict[NodeId, dict[str, str]] = {}
    for _, node_id, device, mine in sorted(idle, key=lambda each: (each[0], each[1], each[2].id)):
        more = max(0.0, (device.tdp_w or 0.0) - draw[node_id][device.id])
        short = next((pool for pool in mine if left[pool] < more), None)
        if short is None:
            for pool in mine:
                left[pool] -= more
            continue
        closed.setdefault(node_id, {})[device.id] = (
            f"pool {short} may draw {caps_w[short]:,.0f} W, of which {max(0.0, left[short]):,.0f} W are "
            f"left; {more:,.0f} W more are needed (power_caps_w)"
        )
    return [replace(v, loads=_closed(v, closed[v.id])) if v.id in closed else v for v in views]


# --- nodes for wide tasks -----------------------------------------------------------------------------


def _holds(
    wide: Sequence[Group],
    groups: Sequence[Group],
    views: Sequence[NodeView],
    patience_s: float,
    idle_since: Mapping[StepId, float],
    now: float,
) -> dict[NodeId, Group]:
    """The node that each wide group which has waited too long will have room on soonest.

    Never one that work of a higher priority waits for: that is what priority means.
    """
    waiting = [group for group in wide if now - idle_since[group.step_id] >= patience_s]
    most = int(_HOLD_AT_MOST * sum(view.accepts_work for view in views))
    holds: dict[NodeId, Group] = {}
    for group in sorted(waiting, key=lambda g: (-g.priority, g.submitted_at, g.step_id)):
        if len(holds) >= max(1, most):
            break
        above = {other.demand for other in groups if other.ready > 0 and other.priority > group.priority}
        found = []
        for view in views:
            if view.accepts_work and view.id not in holds and _could(group, view):
                if any(next(standing(demand, view), None) is None for demand in above):
                    continue
                at = _free_at(group, view, now)
                if at is not None:
                    found.append((at, view.id))
        if found:
            holds[min(found)[1]] = group
    return holds


def may_start(group: Group, free: Mapping[str, int]) -> bool:
    """Whether a task waits that nothing but room is wanting for."""
    if group.ready <= 0 or (group.max_running is not None and group.job_running >= group.max_running):
        return False
    return all(free.get(name, needed) >= needed for name, needed in group.takes or ())


def _free_at(group: Group, view: NodeView, now: float) -> float | None:
    """When the node will have room for the group if nothing else starts there; None: not by waiting."""

    if fits(group.demand, view):
        return now

    def end(use: Use) -> float:
        return max(now, use.since + (use.mean_runtime_s or _UNKNOWN_RUNTIME_S))

    uses = sorted(view.uses, key=end)
    for ended in range(1, len(uses) + 1):
        if fits(group.demand, replace(view, uses=tuple(uses[ended:]))):
            return end(uses[ended - 1])
    return None


def _closed_for(view: NodeView, group: Group, idle_since: Mapping[StepId, float], now: float) -> NodeView:
    waited = duration(now - idle_since[group.step_id])
    why = f"kept for job {group.job_id}, which needs much of a node and has waited {waited} for it"
    return replace(view, accepts_work=False, refusal=why)
