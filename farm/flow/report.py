"""What a node's report, a lost lease or a count of tasks means. Facts in, changes out."""

from __future__ import annotations

from dataclasses import dataclass
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
    unlicensed: int = 0
    """Of `starts`, those that ended before this one because there was no licence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    id: AttemptId
    state: AttemptState
    generation: int
    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The changes that one ended attempt brings. None and zeros: leave as it is."""

    attempt: AttemptState | None = None
    task: TaskState | None = None
    adopted: AttemptId | None = None
    """Another attempt, whose committed files were found: it succeeded."""
    stop: AttemptId | None = None
    """Another live attempt, which has become pointless."""
    failures: int = 0
    faults: int = 0
    delay_s: float = 0.0
    avoid: bool = False
    """Let another node try first."""
    reason: str = ""


def settle(
    task: TaskFacts, attempt: AttemptFacts, finished: Finished, publisher: AttemptFacts | None = None
) -> Settlement:
    """What `finished` means for its attempt and its task.

    publisher: the attempt named by `finished.published_by` when that is another one.
    A doubled or late report changes nothing, or only its own attempt.
    """
    if attempt.state not in LIVE_ATTEMPTS and attempt.state is not AttemptState.LOST:
        return Settlement()
    if finished.outcome is Outcome.SUCCEEDED:
        return _settle_success(task, attempt, publisher)
    if attempt.state is AttemptState.LOST:
        return Settlement()
    return _settle_failure(task, attempt, finished)


def _settle_success(task: TaskFacts, attempt: AttemptFacts, publisher: AttemptFacts | None) -> Settlement:
    is_late = attempt.generation != task.generation or task.state in (TaskState.DONE, TaskState.CANCELLED)
    if is_late:
        return Settlement(attempt=AttemptState.SUPERSEDED)
    other = task.attempt_id if task.attempt_id != attempt.id and task.state in LIVE_TASKS else None
    if publisher is not None and publisher.id != attempt.id:
        return Settlement(
            attempt=AttemptState.SUPERSEDED,
            task=TaskState.DONE,
            adopted=publisher.id,
            stop=other if other != publisher.id else None,
        )
    return Settlement(attempt=AttemptState.SUCCEEDED, task=TaskState.DONE, stop=other)


def _settle_failure(task: TaskFacts, attempt: AttemptFacts, finished: Finished) -> Settlement:
    outcome = finished.outcome
    ended = {Outcome.CANCELLED: AttemptState.CANCELLED, Outcome.NODE_LOST: AttemptState.LOST}.get(
        outcome, AttemptState.FAILED
    )
    if attempt.state is AttemptState.CANCELLING and ended is AttemptState.FAILED:
        ended = AttemptState.CANCELLED
    owns = task.attempt_id == attempt.id and (task.state in LIVE_TASKS or task.state is TaskState.HELD)
    if not owns:
        return Settlement(attempt=ended)
    if task.state is TaskState.CANCELLING:
        return Settlement(attempt=ended, task=TaskState.CANCELLED, reason="cancelled")
    if outcome is Outcome.CANCELLED:
        return Settlement(attempt=ended, task=TaskState.READY)
    failures = 1 if outcome in SPENDS_RETRY else 0
    faults = 1 if outcome in (Outcome.STORAGE, Outcome.NODE_FAULT, Outcome.STALLED) else 0
    is_over = (
        finished.is_final
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
    return Settlement(
        attempt=ended,
        task=TaskState.FAILED if is_over else TaskState.READY,
        failures=failures,
        faults=faults,
        delay_s=0.0 if is_over else delay_s,
        avoid=outcome not in (Outcome.LICENCE, Outcome.STORAGE) and not finished.is_device_fault,
        reason=reason,
    )


def _is_spent(task: TaskFacts, outcome: Outcome) -> bool:
    return outcome is not Outcome.LICENCE and task.starts - task.unlicensed >= MAX_STARTS


def licence_delay_s(before: int) -> float:
    """How long a task waits that found no licence, as it had not `before` times: twice as long each time."""
    return float(min(LICENCE_DELAY_S * 2 ** min(before, 10), MAX_LICENCE_DELAY_S))


def expire(task: TaskFacts, attempt: AttemptFacts, isolation: Isolation) -> Settlement:
    """What it means that the attempt's lease ran out: its node is silent, which is no proof of death."""
    if attempt.state not in LIVE_ATTEMPTS:
        return Settlement()
    owns = task.attempt_id == attempt.id and task.state in LIVE_TASKS
    silent = f"{attempt.node_id} is silent"
    if not owns:
        return Settlement(attempt=AttemptState.LOST, reason=silent)
    if task.state is TaskState.CANCELLING:
        return Settlement(attempt=AttemptState.LOST, task=TaskState.CANCELLED, reason=silent)
    if isolation is Isolation.EXCLUSIVE:
        # The attempt stays as it is: it may still be running, and a second start could tear its output.
        return Settlement(
            task=TaskState.HELD,
            reason=f"{silent}, and this command's output cannot be staged: waits for the node to come back, "
            "or for `farm release`",
        )
    return Settlement(attempt=AttemptState.LOST, task=TaskState.READY, avoid=True, reason=silent)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    id: StepId
    name: str
    depends_on: tuple[str, ...]
    counts: Counts


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
    for step in job.steps:
        if not step.counts.waiting or job.unmet_jobs:
            continue
        needs = [by_name[name] for name in step.depends_on]
        broken = next((n for n in needs if _is_over(n.counts) and n.counts.done < n.counts.total), None)
        if broken is not None:
            give_up.append((step.id, f"step {broken.name} did not finish"))
        elif all(n.counts.done == n.counts.total for n in needs):
            unlock.append(step.id)
    return Advance(state=_job_state(job), reason=_reason(job), unlock=tuple(unlock), give_up=tuple(give_up))


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
