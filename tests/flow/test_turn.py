"""What people are told of whose turn it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from farm.flow.groups import Group
from farm.flow.run_times import UseState
from farm.flow.turn import ahead
from farm.flow.weights import PriorityMode, Weights
from farm.model.ids import JobId, StepId

RANK = Weights()


def group(job: int, **changed: Any) -> Group:
    return replace(Group(step_id=StepId(job), job_id=JobId(job), ready=2, user="anna"), **changed)


def told(
    mine: Group, *others: Group, weights: Weights | None = RANK, use: UseState | None = None
) -> list[str]:
    return [cause.text for cause in ahead(mine, [mine, *others], weights, use or UseState())]


def test_higher_priorities_are_named_with_what_would_change_it() -> None:
    (line,) = told(
        group(1), group(2, priority=80), group(3, priority=95), group(4), group(5, priority=99, ready=0)
    )
    assert line == (
        "4 tasks of a higher priority than 50 wait too, and start first: job 3 (95), job 2 (80); "
        "`farm priority 1 N` changes that"
    )
    assert told(group(1), group(2)) == []
    assert told(group(1), group(1, step_id=StepId(9), priority=80)) == []
    assert told(group(1), group(2, priority=80), weights=None) != []
    assert told(group(1), group(2, priority=80), weights=Weights(priority_mode=PriorityMode.RATE)) == []


def test_use_over_share_is_told_of_projects_then_of_users() -> None:
    use = UseState(
        projects={"hero": 6.0, "film": 2.0, "": 5.9},
        users=[("hero", "anna", 9.0), ("hero", "ben", 3.0), ("film", "cleo", 1.0)],
    )
    hero = group(1, project="hero")
    (line,) = told(hero, group(2, project="film"), group(3), use=use)
    assert line.startswith(
        "project hero has used 3.0 times as much of the farm, for its share, than project film,"
    )
    assert line.endswith("(project_shares)")
    (line,) = told(hero, group(2, project="hero", user="ben"), use=use)
    assert line.startswith(
        "anna has used 3.0 times as much of the farm, for its share, than ben, who start first"
    )
    assert told(hero, group(2, project="film"), weights=replace(RANK, fair_share=False), use=use) == []
    assert told(hero, group(2, project="film"), weights=None, use=use) == []
    assert told(group(2, project="film"), hero, use=use) == []
    (line,) = told(hero, group(2, project="new"), use=use)
    assert "has used more of the farm, for its share, than project new" in line


def test_others_of_a_lower_priority_are_no_reason_to_wait() -> None:
    use = UseState(projects={"hero": 6.0})
    assert told(group(1, project="hero"), group(2, priority=10, project="film"), use=use) == []
