"""Whose turn it is: shares of users and projects, priority as a rate, and that nothing starves."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.flow.predict import RunTimeModel
from farm.flow.run_times import UseState
from farm.flow.weights import PriorityMode, Weights
from farm.model.work import Profile
from tests.flow.boards import EVERYTHING, GPU, board, group, known, node, where


@given(st.lists(st.sampled_from(["anna", "ben", "cleo"]), min_size=2, max_size=6), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_no_user_is_more_than_one_task_over_their_share_while_others_wait(
    users: list[str], slots: int
) -> None:
    nodes = [node(f"n{at:02d}") for at in range(slots)]
    groups = [group(at, ready=99, user=user) for at, user in enumerate(users)]
    runs = [run for at in range(len(users)) for run in known(at, 20)]
    got = where(board(nodes, groups, runs=runs, weights=EVERYTHING).round(0.0, 999))
    by_user: Counter[str] = Counter(dict.fromkeys(users, 0))
    for step, given_nodes in got.items():
        by_user[users[step]] += len(given_nodes)
    assert max(by_user.values()) - min(by_user.values()) <= 1


@given(
    owners=st.lists(
        st.tuples(st.sampled_from(["hero", "film", ""]), st.sampled_from(["anna", "ben"])),
        min_size=2,
        max_size=6,
    ),
    slots=st.integers(1, 30),
    share=st.sampled_from([0.5, 1.0, 3.0]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_project_and_no_user_in_it_is_more_than_one_task_over_their_share(
    owners: list[tuple[str, str]], slots: int, share: float
) -> None:
    """Every task is as long and every device as dear: use is counted in tasks."""
    nodes = [node(f"n{at:02d}") for at in range(slots)]
    groups = [group(at, ready=99, project=project, user=user) for at, (project, user) in enumerate(owners)]
    runs = [run for at in range(len(owners)) for run in known(at, 20)]
    shares, project_shares = {"anna": share}, {"hero": share}
    made = board(nodes, groups, runs=runs, weights=EVERYTHING, shares=shares, project_shares=project_shares)
    projects: Counter[str] = Counter({project: 0 for project, _ in owners})
    users: Counter[tuple[str, str]] = Counter(dict.fromkeys(owners, 0))
    for step, places in where(made.round(0.0, 999)).items():
        projects[owners[step][0]] += len(places)
        users[owners[step]] += len(places)
    used = {project: count / project_shares.get(project, 1.0) for project, count in projects.items()}
    one = 1 / min(share, 1.0) + 1e-9
    assert max(used.values()) - min(used.values()) <= one
    for project in projects:
        within = [n / shares.get(user, 1.0) for (of, user), n in users.items() if of == project]
        assert max(within) - min(within) <= one


@given(st.lists(st.integers(1, 100), min_size=2, max_size=5), st.integers(5, 40), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_priority_as_a_rate_gives_each_job_its_part_and_starves_none(
    priorities: list[int], slots: int, is_one_by_one: bool
) -> None:
    weights = replace(EVERYTHING, priority_mode=PriorityMode.RATE)
    nodes = [node(f"n{at:02d}") for at in range(slots)]
    groups = [group(at, ready=99, priority=priority) for at, priority in enumerate(priorities)]
    runs = [run for at in range(len(groups)) for run in known(at, 20)]
    made = board(nodes, groups, runs=runs, weights=weights)
    got: Counter[int] = Counter(dict.fromkeys(range(len(groups)), 0))
    for _ in range(slots if is_one_by_one else 1):
        for step, places in where(made.round(0.0, 1 if is_one_by_one else 999)).items():
            got[step] += len(places)
    assert got.total() == slots
    # A turn is counted in predicted seconds, which differ a little: what one step teaches of the device model
    # counts for the next. Nobody is ahead of anybody who waits by more than the last task of their own.
    assert isinstance(made.model, RunTimeModel)
    seconds = [made.model.estimate(str(at), "fast").median_s for at in range(len(groups))]
    one = [each / priority for each, priority in zip(seconds, priorities, strict=True)]
    turns = [got[at] * each for at, each in enumerate(one)]
    assert all(turn - last <= min(turns) + 1e-9 for turn, last in zip(turns, one, strict=True))


def test_a_job_that_comes_later_does_not_catch_up_with_what_others_have_had() -> None:
    weights = replace(EVERYTHING, priority_mode=PriorityMode.RATE)
    nodes = [node(f"n{at:02d}") for at in range(30)]
    made = board(nodes, [group(0, ready=99)], runs=known(0, 20), weights=weights)
    assert len(made.round(0.0, 20)) > 0
    made.model.add_step("1", Profile())  # type: ignore[attr-defined]
    for run in known(1, 20):
        made.model.observe(run)  # type: ignore[attr-defined]
    made.put_group(group(1, ready=99), 1.0)
    made.reprice(1.0, force=True)
    counts = {step: len(places) for step, places in where(made.round(1.0, 10)).items()}
    assert abs(counts[0] - counts[1]) <= 1


def test_what_was_used_goes_on_with_the_next_scheduler() -> None:
    nodes = [node(f"n{at}") for at in range(4)]
    first = board(
        nodes, [group(0, ready=4, user="anna", project="hero")], runs=known(0, 20), weights=EVERYTHING
    )
    first.round(0.0, 4)
    groups = [group(0, ready=9, user="anna", project="hero"), group(1, ready=9, user="ben", project="film")]
    second = board(nodes, groups, runs=known(0, 20) + known(1, 20), weights=EVERYTHING)
    second.set_use(UseState(**json.loads(json.dumps(asdict(first.use_now())))))
    assert where(second.round(1.0, 4)) == {1: ["n0", "n1", "n2", "n3"]}


def test_nothing_starves_while_shorter_work_keeps_coming() -> None:
    """One long old job against a new short one every 20 s, on one device."""
    weights = Weights(idle_in_tail=False, age_s=300.0, fair_share=False)
    made = board([node("f")], [group(0, ready=40)], runs=known(0, 20), weights=weights)
    model = made.model
    now, served_long = 0.0, 0
    for turn in range(1, 200):
        model.add_step(str(turn), Profile())  # type: ignore[attr-defined]
        for run in known(turn, 20):
            model.observe(run)  # type: ignore[attr-defined]
        made.put_group(group(turn, ready=1, submitted_at=now), now)
        made.reprice(now)
        (given_,) = made.round(now, 1)
        served_long += given_.step_id == 0
        now += 20
        made.ended(given_.node_id, "gpu", GPU, given_.step_id, given_.job_id)
        if given_.step_id != 0:
            made.drop_group((given_.step_id, frozenset()))
    assert served_long >= 10
