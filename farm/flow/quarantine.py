"""When a node has failed too often, across jobs, to be given more work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from farm.model.states import Outcome
from farm.text import plural

STREAK: Final = 4
"""Attempts that end badly one after the other."""
LEAST_JOBS: Final = 2
LEAST_TASKS: Final = 3
COOL_DOWN_S: Final = 900.0
MOST_COOL_DOWN_S: Final = 4 * 3600.0
_ALWAYS: Final = frozenset({Outcome.NODE_FAULT, Outcome.STALLED})
_IF_OTHERS_CAN: Final = frozenset({Outcome.JOB_ERROR, Outcome.OUT_OF_MEMORY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """An attempt that ended badly on the node."""

    job_id: int
    task_id: int
    outcome: Outcome


def blames_node(outcome: Outcome, *, works_elsewhere: bool, is_device_fault: bool = False) -> bool:
    """Whether such an end says anything of the node: never storage, licences, or what was asked for.

    works_elsewhere: tasks of the step have been done. A job that fails everywhere is its own fault.
    """
    if is_device_fault:
        return False  # that device is closed by itself
    return outcome in _ALWAYS or (outcome in _IF_OTHERS_CAN and works_elsewhere)


def is_bad(streak: Sequence[Bad]) -> bool:
    """Whether the node's last ends, all bad and without a good one between, are enough: over several jobs."""
    recent = streak[-STREAK:]
    return (
        len(recent) >= STREAK
        and len({bad.job_id for bad in recent}) >= LEAST_JOBS
        and len({bad.task_id for bad in recent}) >= LEAST_TASKS
    )


def may_be_closed(*, taking_work: int, closed: int) -> bool:
    """Never the last node, and never more than half: then it is hardly the nodes."""
    return taking_work >= 2 and 2 * (closed + 1) <= taking_work + closed


def cool_down_s(before: int) -> float:
    """After it was closed `before` times already: twice as long each time."""
    return float(min(COOL_DOWN_S * 2 ** min(before, 10), MOST_COOL_DOWN_S))


def told(streak: Sequence[Bad]) -> str:
    """Why, one line."""
    recent = streak[-STREAK:]
    jobs = len({bad.job_id for bad in recent})
    kinds = ", ".join(sorted({str(bad.outcome) for bad in recent}))
    return (
        f"{plural(len(recent), 'attempt')} of {plural(jobs, 'job')} ended badly one after the other ({kinds})"
    )
