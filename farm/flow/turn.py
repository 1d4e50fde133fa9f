"""Whose work goes before whose, told to people: priority, then use over share. The board decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from farm.flow.groups import Cause, Group
from farm.flow.run_times import UseState
from farm.flow.weights import PriorityMode, Weights
from farm.text import plural

_TOLD: Final = 3
_ALIKE: Final = 1.05
"""Use that differs by less comes and goes with single tasks."""


def ahead(group: Group, groups: Sequence[Group], weights: Weights | None, use: UseState) -> list[Cause]:
    """Which others that wait start before the group's tasks, and what would change that.

    weights: None where the policy in force knows priority and age only.
    """
    waiting = [other for other in groups if other.ready > 0 and other.job_id != group.job_id]
    is_rank = weights is None or weights.priority_mode is PriorityMode.RANK
    found = []
    if is_rank:
        found += _higher(group, waiting)
        waiting = [other for other in waiting if other.priority == group.priority]
    if weights is not None and weights.fair_share:
        found += _less_used(group, waiting, use)
    return [Cause(text=text, is_momentary=True) for text in found]


def _higher(group: Group, waiting: Sequence[Group]) -> list[str]:
    higher = sorted(
        (other for other in waiting if other.priority > group.priority), key=lambda g: -g.priority
    )
    if not higher:
        return []
    jobs = list(dict.fromkeys(f"job {other.job_id} ({other.priority})" for other in higher))
    more = f" and {plural(len(jobs) - _TOLD, 'more job')}" if len(jobs) > _TOLD else ""
    tasks = plural(sum(other.ready for other in higher), "task")
    return [
        f"{tasks} of a higher priority than {group.priority} wait too, and start first: "
        f"{', '.join(jobs[:_TOLD])}{more}; `farm priority {group.job_id} N` changes that"
    ]


def _less_used(group: Group, waiting: Sequence[Group], use: UseState) -> list[str]:
    projects = {other.project: use.projects.get(other.project, 0.0) for other in waiting}
    mine = use.projects.get(group.project, 0.0)
    whose = f"project {group.project}" if group.project else "work of no project"
    told = _told(whose, mine, projects, "project")
    if told:
        return [f"{told} (project_shares)"]
    by_user = {user: used for project, user, used in use.users if project == group.project}
    users = {other.user: by_user.get(other.user, 0.0) for other in waiting if other.project == group.project}
    told = _told(group.user or "nobody", by_user.get(group.user, 0.0), users, "")
    return [f"{told} (shares)"] if told else []


def _told(whose: str, mine: float, others: Mapping[str, float], word: str) -> str:
    less = sorted((used, name) for name, used in others.items() if used * _ALIKE < mine)
    if not less:
        return ""
    names = [f"{word} {name}".strip() if name else "work of no project" for _, name in less]
    shown = ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD:,} more" if len(names) > _TOLD else "")
    most = less[0][0]
    times = f"{mine / most:.1f} times as much" if most > 0 else "more"
    return (
        f"{whose} has used {times} of the farm, for its share, than {shown}, who start first until that has "
        "evened out"
    )
