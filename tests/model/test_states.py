from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import product

import pytest

from farm.errors import IllegalMove
from farm.model.states import (
    ATTEMPT_MOVES,
    ENDED_TASKS,
    LIVE_ATTEMPTS,
    LIVE_TASKS,
    TASK_MOVES,
    AttemptState,
    TaskState,
    check_attempt_move,
    check_task_move,
)
from farm.model.work import Counts


def reachable(moves: Mapping[StrEnum, frozenset[StrEnum]], start: StrEnum) -> set[StrEnum]:
    found, todo = {start}, [start]
    while todo:
        for state in moves[todo.pop()] - found:
            found.add(state)
            todo.append(state)
    return found


def test_every_state_has_its_moves_written_down() -> None:
    assert set(TASK_MOVES) == set(TaskState)
    assert set(ATTEMPT_MOVES) == set(AttemptState)


def test_no_state_moves_to_itself() -> None:
    assert not [state for state, targets in TASK_MOVES.items() if state in targets]
    assert not [state for state, targets in ATTEMPT_MOVES.items() if state in targets]


def test_every_state_can_be_reached_from_the_first() -> None:
    assert reachable(TASK_MOVES, TaskState.WAITING) == set(TaskState)  # type: ignore[arg-type]
    assert reachable(ATTEMPT_MOVES, AttemptState.ASSIGNED) == set(AttemptState)  # type: ignore[arg-type]


def test_an_end_can_be_reached_from_every_task_state() -> None:
    for state in TaskState:
        assert reachable(TASK_MOVES, state) & ENDED_TASKS  # type: ignore[arg-type]


def test_a_done_task_only_becomes_ready_again() -> None:
    assert TASK_MOVES[TaskState.DONE] == {TaskState.READY, TaskState.WAITING}


def test_no_task_runs_without_an_attempt() -> None:
    without = {TaskState.WAITING, TaskState.READY, *ENDED_TASKS}
    assert not [state for state in without if TaskState.RUNNING in TASK_MOVES[state]]


def test_no_attempt_comes_back_to_life() -> None:
    for state in set(AttemptState) - LIVE_ATTEMPTS:
        assert not ATTEMPT_MOVES[state] & LIVE_ATTEMPTS


def test_an_accepted_attempt_stays_accepted() -> None:
    assert ATTEMPT_MOVES[AttemptState.SUCCEEDED] == frozenset()


@pytest.mark.parametrize(("old", "new"), list(product(TaskState, TaskState)))
def test_a_task_move_is_allowed_when_it_is_in_the_table_and_only_then(old: TaskState, new: TaskState) -> None:
    if new in TASK_MOVES[old]:
        check_task_move(old, new)
    else:
        with pytest.raises(IllegalMove, match=f"a {old} task cannot become {new}"):
            check_task_move(old, new)


@pytest.mark.parametrize(("old", "new"), list(product(AttemptState, AttemptState)))
def test_an_attempt_move_is_allowed_when_it_is_in_the_table_and_only_then(
    old: AttemptState, new: AttemptState
) -> None:
    if new in ATTEMPT_MOVES[old]:
        check_attempt_move(old, new)
    else:
        with pytest.raises(IllegalMove, match=f"an? {old} attempt cannot become {new}"):
            check_attempt_move(old, new)


def test_live_and_ended_states_do_not_overlap() -> None:
    assert not LIVE_TASKS & ENDED_TASKS


def test_counts_name_every_task_state() -> None:
    counts = Counts(
        waiting=1, ready=2, assigned=3, running=4, cancelling=5, held=6, done=7, failed=8, cancelled=9
    )
    assert counts.total == 45
    assert counts.live == 12
    assert counts.ended == 24
