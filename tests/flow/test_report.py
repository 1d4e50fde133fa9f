"""What reports, lost leases and counts mean: examples, and laws that hold for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.flow.report import (
    MAX_FAULTS,
    MAX_STARTS,
    AttemptFacts,
    JobFacts,
    Settlement,
    StepFacts,
    TaskFacts,
    advance,
    expire,
    settle,
)
from farm.model.ids import AttemptId, NodeId, StepId
from farm.model.states import (
    ATTEMPT_MOVES,
    LIVE_ATTEMPTS,
    SPENDS_RETRY,
    TASK_MOVES,
    AttemptState,
    JobState,
    Outcome,
    TaskState,
)
from farm.model.work import Counts, Isolation
from farm.wire.messages import Finished

MINE = AttemptId("mine")
OTHER = AttemptId("other")
NODE = NodeId("n1")


def a_task(**changes: object) -> TaskFacts:
    task = TaskFacts(
        state=TaskState.RUNNING, attempt_id=MINE, generation=1, failures=0, faults=0, starts=1, max_retries=2
    )
    return replace(task, **changes)  # type: ignore[arg-type]


def an_attempt(**changes: object) -> AttemptFacts:
    attempt = AttemptFacts(id=MINE, state=AttemptState.RUNNING, generation=1, node_id=NODE)
    return replace(attempt, **changes)  # type: ignore[arg-type]


def finished(outcome: Outcome, **changes: object) -> Finished:
    return replace(Finished(attempt_id=MINE, outcome=outcome), **changes)  # type: ignore[arg-type]


tasks = st.builds(
    TaskFacts,
    state=st.sampled_from(TaskState),
    attempt_id=st.sampled_from([None, MINE, OTHER]),
    generation=st.integers(1, 2),
    failures=st.integers(0, 3),
    faults=st.integers(0, MAX_FAULTS),
    starts=st.integers(0, MAX_STARTS),
    max_retries=st.integers(0, 3),
)
attempts = st.builds(
    AttemptFacts,
    id=st.just(MINE),
    state=st.sampled_from(AttemptState),
    generation=st.integers(1, 2),
    node_id=st.just(NODE),
)
publishers = st.one_of(
    st.none(),
    st.builds(
        AttemptFacts,
        id=st.just(OTHER),
        state=st.sampled_from([AttemptState.LOST, AttemptState.FAILED, AttemptState.CANCELLED]),
        generation=st.just(1),
        node_id=st.just(NodeId("n2")),
    ),
)
reports = st.builds(
    Finished, attempt_id=st.just(MINE), outcome=st.sampled_from(Outcome), is_final=st.booleans()
)


@given(tasks, attempts, reports, publishers)
def test_no_report_leads_to_an_illegal_move(
    task: TaskFacts, attempt: AttemptFacts, report: Finished, publisher: AttemptFacts | None
) -> None:
    change = settle(task, attempt, report, publisher)
    if change.attempt is not None:
        assert change.attempt in ATTEMPT_MOVES[attempt.state]
    if change.task is not None and change.task is not task.state:
        assert change.task in TASK_MOVES[task.state]
    if change.adopted is not None and publisher is not None:
        assert AttemptState.SUCCEEDED in ATTEMPT_MOVES[publisher.state]


@given(tasks, attempts, reports, publishers)
def test_a_done_task_is_never_changed_by_a_report(
    task: TaskFacts, attempt: AttemptFacts, report: Finished, publisher: AttemptFacts | None
) -> None:
    assert settle(replace(task, state=TaskState.DONE), attempt, report, publisher).task is None


@given(tasks, attempts, reports)
def test_only_the_jobs_own_failures_spend_retries(
    task: TaskFacts, attempt: AttemptFacts, report: Finished
) -> None:
    change = settle(task, attempt, report)
    assert change.failures == 0 or report.outcome in SPENDS_RETRY


@given(tasks, attempts, reports)
def test_a_report_told_twice_says_nothing_the_second_time(
    task: TaskFacts, attempt: AttemptFacts, report: Finished
) -> None:
    first = settle(task, attempt, report)
    if first.attempt is None or first.attempt is AttemptState.LOST:
        return
    again = settle(
        replace(task, state=first.task or task.state), replace(attempt, state=first.attempt), report
    )
    assert again.task is None
    assert again.attempt is None


@given(tasks, attempts, st.sampled_from(Isolation))
def test_no_expired_lease_leads_to_an_illegal_move(
    task: TaskFacts, attempt: AttemptFacts, isolation: Isolation
) -> None:
    change = expire(task, attempt, isolation)
    if change.attempt is not None:
        assert change.attempt in ATTEMPT_MOVES[attempt.state]
    if change.task is not None:
        assert change.task in TASK_MOVES[task.state]


@given(tasks, st.sampled_from(sorted(LIVE_ATTEMPTS)))
def test_an_exclusive_task_never_starts_again_while_its_attempt_may_live(
    task: TaskFacts, state: AttemptState
) -> None:
    change = expire(replace(task, attempt_id=MINE), an_attempt(state=state), Isolation.EXCLUSIVE)
    assert change.task is not TaskState.READY


@pytest.mark.parametrize("isolation", list(Isolation))
def test_an_attempt_whose_task_is_held_for_it_is_not_given_up(isolation: Isolation) -> None:
    held = replace(a_task(), attempt_id=MINE, state=TaskState.HELD)
    assert expire(held, an_attempt(), isolation) == Settlement()


def test_a_failed_task_is_tried_again_until_its_retries_are_spent() -> None:
    report = finished(Outcome.JOB_ERROR, reason="no camera")
    assert settle(a_task(failures=1), an_attempt(), report).task is TaskState.READY
    last = settle(a_task(failures=2), an_attempt(), report)
    assert last.task is TaskState.FAILED
    assert last.reason == "no camera"


def test_a_failure_that_trying_again_cannot_mend_fails_at_once() -> None:
    report = finished(Outcome.JOB_ERROR, is_final=True)
    assert settle(a_task(), an_attempt(), report).task is TaskState.FAILED


def test_a_lost_node_never_spends_a_retry() -> None:
    change = settle(a_task(failures=2), an_attempt(), finished(Outcome.NODE_LOST))
    assert (change.task, change.failures, change.attempt) == (TaskState.READY, 0, AttemptState.LOST)


def test_a_full_disk_fails_the_task_only_after_several_tries() -> None:
    report = finished(Outcome.STORAGE)
    assert settle(a_task(faults=MAX_FAULTS - 2), an_attempt(), report).task is TaskState.READY
    assert settle(a_task(faults=MAX_FAULTS - 1), an_attempt(), report).task is TaskState.FAILED


def test_a_missing_licence_delays_and_costs_nothing() -> None:
    change = settle(a_task(), an_attempt(), finished(Outcome.LICENCE))
    assert change.task is TaskState.READY
    assert change.delay_s > 0
    assert (change.failures, change.faults) == (0, 0)


def test_a_task_that_never_finds_a_licence_waits_longer_and_is_never_given_up() -> None:
    delays = []
    for before in range(40):
        task = replace(a_task(), starts=before + 1, unlicensed=before)
        change = settle(task, an_attempt(), finished(Outcome.LICENCE))
        assert change.task is TaskState.READY
        delays.append(change.delay_s)
    assert delays[:5] == [60, 120, 240, 480, 600]
    assert delays[-1] == 600
    poison = replace(a_task(), starts=40 + MAX_STARTS, unlicensed=40)
    assert settle(poison, an_attempt(), finished(Outcome.NODE_LOST)).task is TaskState.FAILED
    thirsty = replace(poison, starts=40 + MAX_STARTS - 1)
    assert settle(thirsty, an_attempt(), finished(Outcome.NODE_LOST)).task is TaskState.READY


def test_files_that_a_lost_attempt_had_committed_make_it_the_accepted_one() -> None:
    publisher = AttemptFacts(id=OTHER, state=AttemptState.LOST, generation=1, node_id=NodeId("n2"))
    report = finished(Outcome.SUCCEEDED, published_by=OTHER)
    change = settle(a_task(), an_attempt(), report, publisher)
    assert change.task is TaskState.DONE
    assert change.adopted == OTHER
    assert change.attempt is AttemptState.SUPERSEDED


def test_files_of_another_generation_are_not_taken_for_this_one_s() -> None:
    publisher = AttemptFacts(id=OTHER, state=AttemptState.SUPERSEDED, generation=1, node_id=NodeId("n2"))
    report = finished(Outcome.SUCCEEDED, published_by=OTHER)
    change = settle(a_task(generation=2), an_attempt(generation=2), report, publisher)
    assert (change.attempt, change.task, change.adopted) == (AttemptState.SUCCEEDED, TaskState.DONE, None)


def test_a_late_success_after_the_lease_ended_is_accepted_and_stops_the_second_start() -> None:
    change = settle(
        a_task(attempt_id=OTHER), an_attempt(state=AttemptState.LOST), finished(Outcome.SUCCEEDED)
    )
    assert (change.task, change.attempt, change.stop) == (
        TaskState.DONE,
        AttemptState.SUCCEEDED,
        (OTHER,),
    )


def test_a_late_failure_of_a_lost_attempt_does_not_touch_the_task() -> None:
    change = settle(
        a_task(attempt_id=OTHER), an_attempt(state=AttemptState.LOST), finished(Outcome.JOB_ERROR)
    )
    assert change.task is None


def test_files_of_an_older_generation_are_not_accepted() -> None:
    change = settle(a_task(generation=2), an_attempt(), finished(Outcome.SUCCEEDED))
    assert (change.task, change.attempt) == (None, AttemptState.SUPERSEDED)


def a_step(name: str, *, needs: tuple[str, ...] = (), **counts: int) -> StepFacts:
    return StepFacts(id=StepId(len(name)), name=name, depends_on=needs, counts=Counts(**counts))


def a_job(*steps: StepFacts, **changes: object) -> JobFacts:
    job = JobFacts(is_paused=False, max_failed_tasks=100, unmet_jobs=(), steps=steps)
    return replace(job, **changes)  # type: ignore[arg-type]


def test_a_step_opens_when_all_it_needs_is_done() -> None:
    render = a_step("render", done=4)
    film = a_step("film", needs=("render",), waiting=1)
    assert advance(a_job(render, film)).unlock == (film.id,)
    assert advance(a_job(a_step("render", done=3, running=1), film)).unlock == ()


def test_a_step_is_given_up_when_what_it_needs_failed() -> None:
    film = a_step("film", needs=("render",), waiting=1)
    outcome = advance(a_job(a_step("render", done=3, failed=1), film))
    assert outcome.give_up == ((film.id, "step render did not finish"),)


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ({"done": 2}, JobState.DONE),
        ({"done": 1, "failed": 1}, JobState.FAILED),
        ({"done": 1, "cancelled": 1}, JobState.CANCELLED),
        ({"done": 1, "ready": 1}, JobState.ACTIVE),
        ({"held": 1}, JobState.ACTIVE),
    ],
)
def test_a_jobs_state_follows_from_its_tasks(counts: dict[str, Any], state: JobState) -> None:
    assert advance(a_job(a_step("run", **counts))).state is state


def test_too_many_failures_stop_the_job() -> None:
    outcome = advance(a_job(a_step("run", failed=3, ready=10), max_failed_tasks=2))
    assert outcome.stop_all
    assert "3 tasks failed" in outcome.reason


def test_a_job_waits_for_the_jobs_it_needs() -> None:
    outcome = advance(a_job(a_step("run", waiting=1), unmet_jobs=(12,)))
    assert (outcome.state, outcome.unlock, outcome.reason) == (JobState.WAITING, (), "waits for job 12")
