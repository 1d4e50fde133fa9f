"""States and the only legal moves between them. Code, tests and docs read the same tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from farm.errors import IllegalMove


class TaskState(StrEnum):
    WAITING = "waiting"
    """A step or job it depends on is not done."""
    READY = "ready"
    """A node may have it as soon as one fits."""
    ASSIGNED = "assigned"
    """An attempt exists and its launch message is on the way."""
    RUNNING = "running"
    """The node has started its renderer."""
    CANCELLING = "cancelling"
    """Cancel was asked for; the node has not yet said that the renderer is gone."""
    HELD = "held"
    """An exclusive attempt was lost without proof of death: a person or the node must decide."""
    DONE = "done"
    """Its files are there, verified, and one attempt's."""
    FAILED = "failed"
    """Its retries are spent, or trying again cannot help."""
    CANCELLED = "cancelled"
    """By a person, by the limit of failed tasks, or because a step before it did not finish."""


class AttemptState(StrEnum):
    ASSIGNED = "assigned"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    """Its files were accepted as the task's."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its lease ran out, or its node said that it died."""
    SUPERSEDED = "superseded"
    """It ended well, but another attempt's files had been accepted before."""


class JobState(StrEnum):
    PAUSED = "paused"
    WAITING = "waiting"
    """A job it depends on is not done."""
    ACTIVE = "active"
    """Its ready tasks are matched."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NodeState(StrEnum):
    PENDING = "pending"
    """Has joined by a code, and waits for an administrator: no work, and no account at the broker."""
    ONLINE = "online"
    DRAINING = "draining"
    """Runs what it has, takes no more."""
    SUSPECT = "suspect"
    """Silent for longer than two and a half heartbeats: no new work; its leases still hold."""
    OFFLINE = "offline"


class Outcome(StrEnum):
    """How an attempt ended. Only the first two kinds of failure count against the job's retries."""

    SUCCEEDED = "succeeded"
    JOB_ERROR = "job-error"
    OUT_OF_MEMORY = "out-of-memory"
    LICENCE = "licence"
    STORAGE = "storage"
    NODE_LOST = "node-lost"
    NODE_FAULT = "node-fault"
    CANCELLED = "cancelled"
    STALLED = "stalled"


SPENDS_RETRY: Final = frozenset({Outcome.JOB_ERROR, Outcome.OUT_OF_MEMORY})
"""Failures that are the job's own. Infrastructure failures never spend its retries."""

_T = TaskState
TASK_MOVES: Final[Mapping[TaskState, frozenset[TaskState]]] = {
    # done: the files of an attempt from before it was set back are found
    _T.WAITING: frozenset({_T.READY, _T.CANCELLED, _T.DONE}),
    # done: a lost attempt's files are adopted. waiting: frames were appended that come before it
    _T.READY: frozenset({_T.ASSIGNED, _T.CANCELLED, _T.DONE, _T.WAITING}),
    _T.ASSIGNED: frozenset({_T.RUNNING, _T.READY, _T.DONE, _T.FAILED, _T.HELD, _T.CANCELLING, _T.CANCELLED}),
    _T.RUNNING: frozenset({_T.READY, _T.DONE, _T.FAILED, _T.HELD, _T.CANCELLING, _T.CANCELLED}),
    _T.CANCELLING: frozenset({_T.CANCELLED, _T.DONE}),
    _T.HELD: frozenset({_T.RUNNING, _T.READY, _T.DONE, _T.FAILED, _T.CANCELLED}),
    # requeued by a person, or because frames were appended that come before it: a new generation
    _T.DONE: frozenset({_T.READY, _T.WAITING}),
    _T.FAILED: frozenset({_T.READY, _T.DONE, _T.CANCELLED}),
    # waiting: the step that failed before it is tried again
    _T.CANCELLED: frozenset({_T.READY, _T.WAITING}),
}

_A = AttemptState
ATTEMPT_MOVES: Final[Mapping[AttemptState, frozenset[AttemptState]]] = {
    _A.ASSIGNED: frozenset(
        {_A.RUNNING, _A.SUCCEEDED, _A.FAILED, _A.LOST, _A.CANCELLING, _A.CANCELLED, _A.SUPERSEDED}
    ),
    _A.RUNNING: frozenset({_A.SUCCEEDED, _A.FAILED, _A.LOST, _A.CANCELLING, _A.CANCELLED, _A.SUPERSEDED}),
    _A.CANCELLING: frozenset({_A.CANCELLED, _A.SUCCEEDED, _A.LOST, _A.SUPERSEDED}),
    _A.LOST: frozenset({_A.SUCCEEDED, _A.SUPERSEDED}),  # adopted: published, but the report came late
    _A.FAILED: frozenset({_A.SUCCEEDED}),  # adopted: another attempt found its committed files
    _A.CANCELLED: frozenset({_A.SUCCEEDED}),  # adopted likewise
    _A.SUCCEEDED: frozenset(),
    _A.SUPERSEDED: frozenset(),
}

LIVE_TASKS: Final = frozenset({_T.ASSIGNED, _T.RUNNING, _T.CANCELLING})
ENDED_TASKS: Final = frozenset({_T.DONE, _T.FAILED, _T.CANCELLED})
LIVE_ATTEMPTS: Final = frozenset({_A.ASSIGNED, _A.RUNNING, _A.CANCELLING})
ENDED_JOBS: Final = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})


def check_task_move(old: TaskState, new: TaskState) -> None:
    """Raise IllegalMove unless `old -> new` is in the table."""
    if new not in TASK_MOVES[old]:
        raise IllegalMove(f"a {old} task cannot become {new}")


def check_attempt_move(old: AttemptState, new: AttemptState) -> None:
    """Raise IllegalMove unless `old -> new` is in the table."""
    if new not in ATTEMPT_MOVES[old]:
        raise IllegalMove(f"a {old} attempt cannot become {new}")
