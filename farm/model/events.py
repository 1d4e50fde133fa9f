"""What happened, in the past tense, kept for people and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.model.ids import AttemptId, JobId, NodeId, TaskId


class EventKind(StrEnum):
    JOB_SUBMITTED = "job-submitted"
    JOB_CHANGED = "job-changed"
    """Paused, resumed, priority set, retried: `text` says what."""
    JOB_DONE = "job-done"
    JOB_FAILED = "job-failed"
    JOB_CANCELLED = "job-cancelled"
    JOB_REMOVED = "job-removed"
    """Forgotten, with its tasks and logs; `text` says which."""
    TASK_DONE = "task-done"
    TASK_FAILED = "task-failed"
    TASK_HELD = "task-held"
    TASK_REQUEUED = "task-requeued"
    ATTEMPT_FAILED = "attempt-failed"
    ATTEMPT_LOST = "attempt-lost"
    ATTEMPT_STALLED = "attempt-stalled"
    """`text` is the verdict and its evidence."""
    ATTEMPT_COPIED = "attempt-copied"
    """A second attempt was started beside it; the first whole result wins."""
    ATTEMPT_STOPPED = "attempt-stopped"
    """The farm asked the node to end it: it stalls, or is moved."""
    NODE_JOINED = "node-joined"
    """By a code; `text` says whose."""
    NODE_ENROLLED = "node-enrolled"
    NODE_REMOVED = "node-removed"
    NODE_ONLINE = "node-online"
    NODE_SUSPECTED = "node-suspected"
    NODE_OFFLINE = "node-offline"
    NODE_DRAINED = "node-drained"
    NODE_RELEASED = "node-released"
    NODE_REFUSED = "node-refused"
    NODE_FAULTY = "node-faulty"
    """It says what is wrong with it, and takes no work until that is over."""
    NODE_QUARANTINED = "node-quarantined"
    """Attempts of several jobs ended badly there one after the other: it takes no work for a while."""
    DEVICE_LOST = "device-lost"
    """It takes no work until somebody has looked."""
    DEVICE_CLOSED = "device-closed"
    """It takes no work for now."""
    DEVICE_DEGRADED = "device-degraded"
    """It is throttled, capped or badly seated: it gives less than it should."""
    HOOK_FAILED = "hook-failed"
    """It was given up."""
    GROWTH_ASKED = "growth-asked"
    """One more device of a model would save more than a scale rule bears; its receiver was told."""
    SHRINKING_ASKED = "shrinking-asked"
    """One more device of a model would save next to nothing, and one is idle; likewise."""
    LEADER_CHANGED = "leader-changed"
    OUTAGE_SUSPECTED = "outage-suspected"
    """Most nodes fell silent at once: their tasks are left to them for a while."""
    OUTAGE_ENDED = "outage-ended"
    OTHER = "other"
    """Of a kind that only a newer Ridgeline on the same database knows: `text` says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    id: int
    """Grows; read on from the last one seen."""
    at: float
    """Seconds since the epoch, database clock."""
    kind: EventKind
    text: str = ""
    """One line for people, raw: show it through `clean()`."""
    actor: str = ""
    """Who asked for it; empty when the farm did it."""
    job_id: JobId | None = None
    task_id: TaskId | None = None
    attempt_id: AttemptId | None = None
    node_id: NodeId | None = None

    @property
    def subject(self) -> str:
        """What it happened to, for people: "job 12", "job 12 task 340 on blade7", "blade7"; "" the farm."""
        subject = f"job {self.job_id}" if self.job_id is not None else ""
        subject += f" task {self.task_id}" if self.task_id is not None else ""
        if self.node_id is None:
            return subject
        return f"{subject} on {self.node_id}" if subject else self.node_id
