"""Who may still take of the farm's limits: licences and every other count that all jobs share.

What is in use follows from the live attempts alone, never from a counter of its own: a task that ends,
however it ends, gives back what it held. Too little left never fails a task: it waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from farm.flow.groups import Cause, Group
from farm.flow.refusals import fits
from farm.model.ids import JobId, NodeId
from farm.model.limits import Hold, Limit, LimitScope, limits_needed
from farm.model.machines import NodeView
from farm.text import plural

_HOLDERS_TOLD: Final = 3


class Ledger:
    """The limits, and what is held of them. Counts along as tasks are given out; no I/O."""

    def __init__(self, limits: Mapping[str, Limit], holds: Iterable[Hold] = ()) -> None:
        self.limits = limits
        self._held: dict[str, dict[NodeId | JobId | None, int]] = {name: {} for name in limits}
        """By limit: what each holder has. One holder, None, where each task takes its own."""
        self._jobs: dict[str, Counter[JobId]] = {name: Counter() for name in limits}
        """By limit: the tasks that each job has of it."""
        for hold in holds:
            self._add(hold.limit, hold.amount, hold.job_id, hold.node_id, hold.tasks)

    def copy(self) -> Ledger:
        made = Ledger(self.limits)
        made._held = {name: dict(held) for name, held in self._held.items()}
        made._jobs = {name: Counter(jobs) for name, jobs in self._jobs.items()}
        return made

    def used(self, name: str) -> int:
        return sum(self._held[name].values())

    def free(self, name: str) -> int:
        """How much is left; 0 also where more is held than there is, as after the limit was lowered."""
        return max(0, self.limits[name].amount - self.used(name))

    def holders(self, name: str) -> list[tuple[JobId, int]]:
        """(job, its tasks that hold of it), those of most tasks first."""
        return sorted(self._jobs[name].items(), key=lambda pair: (-pair[1], pair[0]))

    def cost(self, name: str, amount: int, job_id: JobId, node_id: NodeId) -> int:
        """What one more task takes of what is left: nothing where its node or job holds enough already."""
        holder = _holder(self.limits[name].per, job_id, node_id)
        if holder is None:
            return amount
        return max(0, amount - self._held[name].get(holder, 0))

    def how_many(
        self, needs: Sequence[tuple[str, int]], *, job_id: JobId, node_id: NodeId, wanted: int
    ) -> int:
        """How many of `wanted` tasks with these needs may start on the node now.

        Limits that do not exist (any more) hold nobody up.
        """
        for name, amount in needs:
            limit = self.limits.get(name)
            if limit is None:
                continue
            cost, free = self.cost(name, amount, job_id, node_id), self.free(name)
            if cost == 0 and limit.per is not LimitScope.TASK:
                continue
            if limit.per is LimitScope.TASK:
                wanted = min(wanted, free // amount)
            elif cost > free:
                return 0
        return wanted

    def take(
        self, needs: Sequence[tuple[str, int]], *, job_id: JobId, node_id: NodeId, tasks: int = 1
    ) -> None:
        for name, amount in needs:
            if name in self.limits and tasks > 0:
                self._add(name, amount, job_id, node_id, tasks)

    def _add(self, name: str, amount: int, job_id: JobId, node_id: NodeId, tasks: int) -> None:
        if name not in self.limits:
            return
        holder = _holder(self.limits[name].per, job_id, node_id)
        held = self._held[name]
        if holder is None:
            held[None] = held.get(None, 0) + amount * tasks
        else:
            held[holder] = max(held.get(holder, 0), amount)
        self._jobs[name][job_id] += tasks


def _holder(per: LimitScope, job_id: JobId, node_id: NodeId) -> NodeId | JobId | None:
    if per is LimitScope.TASK:
        return None
    return node_id if per is LimitScope.NODE else job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Groups that know what their tasks take of what, and how much there is left of it."""

    groups: Sequence[Group]
    free: Mapping[str, int]


def counted(
    groups: Sequence[Group],
    nodes: Sequence[NodeView],
    ledger: Ledger,
    *,
    user_room: Mapping[str, int] | None = None,
) -> Counted:
    """What any policy has to know so that it never exceeds a limit.

    user_room: of each user that has one, how many more tasks may run. A limit for each node narrows a group
    to the nodes that hold of it, and to as many others as may still: all groups to the same ones.
    """
    if not ledger.limits and not user_room:
        return Counted(groups=groups, free={})
    needs = {id(group): limits_needed(group.demand.amounts) for group in groups if group.demand.amounts}
    barred = _nodes_of(groups, needs, nodes, ledger, user_room or {})
    free = {f"limit {name}": ledger.free(name) for name in ledger.limits}
    free |= {f"user {user}": max(0, room) for user, room in (user_room or {}).items()}
    found = []
    for group in groups:
        takes = []
        avoid = group.avoid | barred.get(id(group), frozenset())
        for name, amount in needs.get(id(group), ()):
            if name not in ledger.limits or _is_for_nodes(ledger, name):
                continue
            # A job takes once, with its first task; until that runs, each counts in full.
            cost = ledger.cost(name, amount, group.job_id, NodeId(""))
            if cost:
                takes.append((f"limit {name}", cost))
        if user_room and group.user in user_room:
            takes.append((f"user {group.user}", 1))
        found.append(replace(group, takes=tuple(takes), avoid=avoid))
    return Counted(groups=found, free=free)


def _nodes_of(
    groups: Sequence[Group],
    needs: Mapping[int, Sequence[tuple[str, int]]],
    nodes: Sequence[NodeView],
    ledger: Ledger,
    user_room: Mapping[str, int],
) -> dict[int, frozenset[NodeId]]:
    """By group that needs limits for each node: the nodes that it has to stay away from now.

    What is left is promised to nodes that have room, for the groups that come first, each promise once: so
    whatever a policy then does with the nodes that stay open exceeds nothing.
    """
    wanting = {
        id(group): found
        for group in groups
        if (found := [n for n in needs.get(id(group), ()) if _is_for_nodes(ledger, n[0])])
    }
    if not wanting:
        return {}
    planned = ledger.copy()
    for group in sorted(groups, key=lambda g: (-g.priority, g.submitted_at, g.step_id)):
        mine = wanting.get(id(group))
        others = [need for need in needs.get(id(group), ()) if not _is_for_nodes(ledger, need[0])]
        left = group.ready
        if mine is None or user_room.get(group.user, 1) <= 0:
            continue
        if not ledger.how_many(others, job_id=group.job_id, node_id=NodeId(""), wanted=1):
            continue
        for node in nodes:
            if left <= 0:
                break
            may = planned.how_many(mine, job_id=group.job_id, node_id=node.id, wanted=1)
            if may and node.id not in group.avoid and fits(group.demand, node):
                planned.take(mine, job_id=group.job_id, node_id=node.id)
                left -= 1
    return {
        key: frozenset(
            node.id
            for node in nodes
            if any(planned.cost(name, amount, JobId(0), node.id) for name, amount in found)
        )
        for key, found in wanting.items()
    }


def _is_for_nodes(ledger: Ledger, name: str) -> bool:
    limit = ledger.limits.get(name)
    return limit is not None and limit.per is LimitScope.NODE


def user_room(
    running: Mapping[str, int], users: Iterable[str], *, each: int | None, named: Mapping[str, int]
) -> dict[str, int]:
    """How many more tasks may run, of those of `users` who have a limit: theirs in `named`, else `each`."""
    room = {}
    for user in users:
        most = named.get(user, each)
        if most is not None:
            room[user] = most - running.get(user, 0)
    return room


def causes(group: Group, ledger: Ledger, *, user_room: Mapping[str, int] | None = None) -> list[Cause]:
    """Why limits hold the group's tasks up, and what would have to change; empty: they do not."""
    found = []
    for name, amount in limits_needed(group.demand.amounts):
        limit = ledger.limits.get(name)
        if limit is None or ledger.how_many(
            [(name, amount)], job_id=group.job_id, node_id=NodeId(""), wanted=1
        ):
            continue
        if limit.amount < amount:
            text = (
                f"limit {name}: {amount} needed{_each(limit)}, the farm has {limit.amount}: "
                f"needs `farm limits set {name} {amount}` at least"
            )
            found.append(Cause(text=text))
            continue
        told = ", ".join(
            f"job {job_id} ({plural(tasks, 'task')})"
            for job_id, tasks in ledger.holders(name)[:_HOLDERS_TOLD]
        )
        more = len(ledger.holders(name)) - _HOLDERS_TOLD
        told += f" and {plural(more, 'more job')}" if more > 0 else ""
        text = (
            f"limit {name}: {ledger.used(name)} of {limit.amount} in use by {told}, {amount} "
            f"needed{_each(limit)}: waits for one of them to end, or for `farm limits set {name} N`"
        )
        if limit.per is LimitScope.NODE:
            text += "; nodes that hold it already may take more"
        found.append(Cause(text=text, is_momentary=True))
    if user_room is not None and user_room.get(group.user, 1) <= 0:
        text = (
            f"{group.user} has as many tasks running as one user may: waits for one of them to end, or for "
            "another max_running_per_user or max_running_of in the settings"
        )
        found.append(Cause(text=text, is_momentary=True))
    return found


def _each(limit: Limit) -> str:
    return "" if limit.per is LimitScope.TASK else f" for each {limit.per}"


def unknown_limits(demands: Collection[tuple[tuple[str, float], ...]], known: Collection[str]) -> list[str]:
    """Limits that these amounts name, and that do not exist."""
    return sorted({name for amounts in demands for name, _ in limits_needed(amounts)} - set(known))
