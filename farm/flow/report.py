"""What a node's report, a lost lease or a count of tasks means. Facts in, changes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from farm.model.ids import AttemptId, NodeId, StepId
from farm.model.states import (
    LIVE_ATTEMPTS,
    LIVE_TASKS,
    SPENDS_RETRY,
    AttemptState,
    JobState,
    Outcome,
    TaskState,
)
from farm.model.work import Counts, Isolation
from farm.wire.messages import Finished

MAX_FAULTS: Final = 4
"""Failures of storage, node or stall after which a task is failed: it may be the task after all."""
MAX_STARTS: Final = 25
"""Starts after which a task is failed whatever their ends: a poison task must not circle for ever. Those that
found no licence do not count: they say nothing of the task."""
MAX_BAD_NODES: Final = 4
"""Nodes that fall silent, fail or stall under a task, after which it is failed: it may be the cause."""
POISON: Final = frozenset({Outcome.NODE_LOST, Outcome.NODE_FAULT, Outcome.STALLED})
LICENCE_DELAY_S: Final = 60.0
MAX_LICENCE_DELAY_S: Final = 600.0
FAULT_DELAY_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    state: TaskState
    attempt_id: AttemptId | None
    generation: int
    failures: int
    faults: int
    starts: int
    max_retries: int
    bad_nodes: frozenset[NodeId] = frozenset()
    """Where attempts ended in `POISON` ways before, in this generation."""
    unlicensed: int = 0
    """Of `starts`, those that ended before this one because there was no licence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    id: AttemptId
    state: AttemptState
    generation: int
    node_id: NodeId
    ends_as: Outcome | None = None
    """The farm has asked the node to end it, and this is what that end means."""
    ends_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The changes that one ended attempt brings. None and zeros: leave as it is."""

    attempt: AttemptState | None = None
    task: TaskState | None = None
    adopted: AttemptId | None = None
    """Another attempt, whose committed files were found: it succeeded."""
    owner: AttemptId | None = None
    """Another live attempt, which the task belongs to from now on."""
    stop: tuple[AttemptId, ...] = ()
    """Other live attempts, which have become pointless."""
    failures: int = 0
    faults: int = 0
    delay_s: float = 0.0
    avoid: bool = False
    """Let another node try first."""
    reason: str = ""


def as_asked(attempt: AttemptFacts, finished: Finished) -> Finished:
    """An attempt that ended because the farm asked for it ended for the farm's reason."""
    if attempt.ends_as is None or finished.outcome is not Outcome.CANCELLED:
        return finished
    return replace(finished, outcome=attempt.ends_as, reason=attempt.ends_because or finished.reason)


def settle(
    task: TaskFacts,
    attempt: AttemptFacts,
    finished: Finished,
    publisher: AttemptFacts | None = None,
    others: Sequence[AttemptFacts] = (),
) -> Settlement:
    """What `finished` (as `as_asked` tells it) means for its attempt and its task.

    publisher: the attempt named by `finished.published_by` when that is another one. others: further live
    attempts at the task in this generation. A doubled or late report changes nothing, or only its own
    attempt.
    """
    if attempt.state not in LIVE_ATTEMPTS and attempt.state is not AttemptState.LOST:
        return Settlement()
    if finished.outcome is Outcome.SUCCEEDED:
        return _settle_success(task, attempt, publisher, others)
    if attempt.state is AttemptState.LOST:
        return Settlement()
    return _settle_failure(task, attempt, finished, others)


def _settle_success(
    task: TaskFacts,
    attempt: AttemptFacts,
    publisher: AttemptFacts | None,
    others: Sequence[AttemptFacts],
) -> Settlement:
    is_late = attempt.generation != task.generation or task.state in (TaskState.DONE, TaskState.CANCELLED)
    if is_late:
        return Settlement(attempt=AttemptState.SUPERSEDED)
    pointless = {other.id: None for other in others}
    if task.attempt_id is not None and task.state in LIVE_TASKS:
        pointless[task.attempt_id] = None
    pointless.pop(attempt.id, None)
    # A commit record is of one generation: a node that names an attempt of another one is wrong.
    if publisher is not None and publisher.id != attempt.id and publisher.generation == attempt.generation:
        pointless.pop(publisher.id, None)
        return Settlement(
            attempt=AttemptState.SUPERSEDED,
            task=TaskState.DONE,
            adopted=publisher.id,
            stop=tuple(pointless),
        )
    return Settlement(attempt=AttemptState.SUCCEEDED, task=TaskState.DONE, stop=tuple(pointless))


def _handed_over(
    task: TaskFacts, ended: AttemptState, others: Sequence[AttemptFacts], reason: str
) -> Settlement | None:
    """The task's own attempt is gone, and another one goes on; None: there is none."""
    if not others:
        return None
    heir = min(others, key=lambda other: (other.state is not AttemptState.RUNNING, other.id))
    is_running = task.state is TaskState.ASSIGNED and heir.state is AttemptState.RUNNING
    return Settlement(
        attempt=ended, task=TaskState.RUNNING if is_running else task.state, owner=heir.id, reason=reason
    )


def _settle_failure(
    task: TaskFacts, attempt: AttemptFacts, finished: Finished, others: Sequence[AttemptFacts]
) -> Settlement:
    outcome = finished.outcome
    ended = {Outcome.CANCELLED: AttemptState.CANCELLED, Outcome.NODE_LOST: AttemptState.LOST}.get(
        outcome, AttemptState.FAILED
    )
    if attempt.state is AttemptState.CANCELLING and ended is AttemptState.FAILED:
        ended = AttemptState.CANCELLED
    owns = task.attempt_id == attempt.id and (task.state in LIVE_TASKS or task.state is TaskState.HELD)
    if not owns:
        return Settlement(attempt=ended)
    heirs = () if task.state is TaskState.HELD else others
    if task.state is TaskState.CANCELLING:
        return _handed_over(task, ended, heirs, "") or Settlement(
            attempt=ended, task=TaskState.CANCELLED, reason="cancelled"
        )
    if outcome is Outcome.CANCELLED:
        return _handed_over(task, ended, heirs, "") or Settlement(attempt=ended, task=TaskState.READY)
    failures = 1 if outcome in SPENDS_RETRY else 0
    faults = 1 if outcome in (Outcome.STORAGE, Outcome.NODE_FAULT, Outcome.STALLED) else 0
    poisoned = _poisoned(task, attempt) if outcome in POISON and not _is_handed_back(finished) else ""
    is_over = (
        finished.is_final
        or bool(poisoned)
        or task.failures + failures > task.max_retries
        or task.faults + faults >= MAX_FAULTS
        or _is_spent(task, outcome)
    )
    reason = finished.reason or str(outcome)
    if _is_spent(task, outcome):
        reason = f"gave up after {task.starts} starts; the last: {reason}"
    delay_s = (
        licence_delay_s(task.unlicensed)
        if outcome is Outcome.LICENCE
        else FAULT_DELAY_S * (task.faults + faults)
        if faults
        else 0.0
    )
    if poisoned:
        reason = f"{poisoned}; the last: {reason}"
    if not is_over and (handed_over := _handed_over(task, ended, heirs, reason)) is not None:
        return replace(handed_over, failures=failures, faults=faults)
    return Settlement(
        attempt=ended,
        task=TaskState.FAILED if is_over else TaskState.READY,
        stop=tuple(other.id for other in heirs),
        failures=failures,
        faults=faults,
        delay_s=0.0 if is_over else delay_s,
        avoid=outcome not in (Outcome.LICENCE, Outcome.STORAGE) and not finished.is_device_fault,
        reason=reason,
    )


def _poisoned(task: TaskFacts, attempt: AttemptFacts) -> str:
    """Why the task is not tried on yet another node; empty: it is."""
    nodes = task.bad_nodes | {attempt.node_id}
    if len(nodes) < MAX_BAD_NODES:
        return ""
    return f"gave up: it ended badly on {len(nodes)} different nodes ({', '.join(sorted(nodes))})"


def _is_handed_back(finished: Finished) -> bool:
    return finished.reason.startswith("handed back")


def _is_spent(task: TaskFacts, outcome: Outcome) -> bool:
    return outcome is not Outcome.LICENCE and task.starts - task.unlicensed >= MAX_STARTS


def licence_delay_s(before: int) -> float:
    """How long a task waits that found no licence, as it had not `before` times: twice as long each time."""
    return float(min(LICENCE_DELAY_S * 2 ** min(before, 10), MAX_LICENCE_DELAY_S))


def expire(
    task: TaskFacts, attempt: AttemptFacts, isolation: Isolation, others: Sequence[AttemptFacts] = ()
) -> Settlement:
    """What it means that the attempt's lease ran out: its node is silent, which is no proof of death.

    Or the node could not end it when the farm asked for that. others: as in `settle`.
    """
    if attempt.state not in LIVE_ATTEMPTS:
        return Settlement()
    if task.attempt_id == attempt.id and task.state is TaskState.HELD:
        return Settlement()  # for this very reason: the attempt may still be running
    owns = task.attempt_id == attempt.id and task.state in LIVE_TASKS
    silent = f"{attempt.node_id} is silent"
    is_asked = attempt.ends_as is not None
    if is_asked:
        silent = f"{attempt.ends_because}; {attempt.node_id} has not ended it in time"
    if not owns:
        return Settlement(attempt=AttemptState.LOST, reason=silent)
    if (handed_over := _handed_over(task, AttemptState.LOST, others, silent)) is not None:
        return handed_over
    if task.state is TaskState.CANCELLING:
        return Settlement(attempt=AttemptState.LOST, task=TaskState.CANCELLED, reason=silent)
    if isolation is Isolation.EXCLUSIVE:
        # The attempt stays as it is: it may still be running, and a second start could tear its output.
        return Settlement(
            task=TaskState.HELD,
            reason=f"{silent}, and this command's output cannot be staged: waits for the node to come back, "
            "or for `farm release`",
        )
    poisoned = _poisoned(task, attempt) if attempt.state is not AttemptState.ASSIGNED else ""
    if poisoned or (is_asked and task.faults + 1 >= MAX_FAULTS):
        reason = f"{poisoned}; the last: {silent}" if poisoned else silent
        return Settlement(
            attempt=AttemptState.LOST, task=TaskState.FAILED, faults=int(is_asked), reason=reason
        )
    return Settlement(
        attempt=AttemptState.LOST, task=TaskState.READY, faults=int(is_asked), avoid=True, reason=silent
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    id: StepId
    name: str
    depends_on: tuple[str, ...]
    counts: Counts
    by_frame: tuple[str, ...] = ()
    """What its tasks wait for one by one: steps of `depends_on`, or jobs ("#12")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    is_paused: bool
    max_failed_tasks: int
    unmet_jobs: tuple[int, ...]
    """Jobs it depends on that are not done."""
    steps: tuple[StepFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Where a job stands after its tasks changed."""

    state: JobState
    reason: str = ""
    unlock: tuple[StepId, ...] = ()
    """Steps whose waiting tasks may now run."""
    by_frame: tuple[StepId, ...] = ()
    """Steps whose waiting tasks may run one by one, once what each waits for is done."""
    give_up: tuple[tuple[StepId, str], ...] = ()
    """Steps whose waiting tasks never can, and why."""
    stop_all: bool = False
    """Too many failed: cancel everything that has not ended."""


def advance(job: JobFacts) -> Advance:
    """Which steps open, which are given up, and the job's state."""
    failed = sum(step.counts.failed for step in job.steps)
    if failed > job.max_failed_tasks and any(s.counts.ended < s.counts.total for s in job.steps):
        return Advance(
            state=JobState.ACTIVE,
            stop_all=True,
            reason=f"stopped: {failed} tasks failed, {job.max_failed_tasks} may (max_failed_tasks)",
        )
    by_name = {step.name: step for step in job.steps}
    unlock: list[StepId] = []
    give_up: list[tuple[StepId, str]] = []
    by_frame: list[StepId] = []
    for step in job.steps:
        if not step.counts.waiting or job.unmet_jobs:
            continue
        needs = [by_name[name] for name in step.depends_on if name not in step.by_frame]
        broken = next((n for n in needs if _is_over(n.counts) and n.counts.done < n.counts.total), None)
        if broken is not None:
            give_up.append((step.id, f"step {broken.name} did not finish"))
        elif all(n.counts.done == n.counts.total for n in needs):
            (by_frame if step.by_frame else unlock).append(step.id)
    return Advance(
        state=_job_state(job),
        reason=_reason(job),
        unlock=tuple(unlock),
        by_frame=tuple(by_frame),
        give_up=tuple(give_up),
    )


def _is_over(counts: Counts) -> bool:
    return counts.ended == counts.total


def _job_state(job: JobFacts) -> JobState:
    if all(_is_over(step.counts) for step in job.steps):
        if any(step.counts.failed for step in job.steps):
            return JobState.FAILED
        if any(step.counts.cancelled for step in job.steps):
            return JobState.CANCELLED
        return JobState.DONE
    if job.is_paused:
        return JobState.PAUSED
    return JobState.WAITING if job.unmet_jobs else JobState.ACTIVE


def _reason(job: JobFacts) -> str:
    failed = sum(step.counts.failed for step in job.steps)
    if failed:
        return f"{failed} of {sum(s.counts.total for s in job.steps)} tasks failed"
    if job.unmet_jobs:
        return "waits for job " + ", ".join(map(str, job.unmet_jobs))
    return ""
