"""Nodes that run as other users than the rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farm.flow.node_users import also, remarks
from farm.model.ids import NodeId

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def test_a_node_that_runs_as_another_user_is_told_of() -> None:
    found = remarks({A: [1000], B: [1000], C: [0]})
    assert list(found) == [C]
    assert "runs as user id 0, most nodes as 1000" in found[C]


def test_a_restart_as_the_right_user_does_not_hide_what_was_written_before() -> None:
    ids = also(also([], 0), 1000)
    assert ids == [0, 1000]
    found = remarks({A: [1000], B: ids})
    assert "ran as user id 0 before" in found[B]
    assert "farm undrain b" in found[B]
    assert also(ids, 1000) == ids


def test_of_two_users_as_often_root_is_the_odd_one() -> None:
    assert list(remarks({A: [0], B: [1000]})) == [A]


def test_who_does_not_tell_is_no_other_user() -> None:
    assert remarks({}) == {}
    assert remarks({A: [], B: [1000]}) == {}
    assert also([1000], None) == [1000]


@given(st.lists(st.none() | st.integers(0, 20)))
def test_the_newest_is_last_and_none_is_there_twice(told: list[int | None]) -> None:
    ids: list[int] = []
    for user_id in told:
        ids = also(ids, user_id)
    known = [user_id for user_id in told if user_id is not None]
    assert ids[-1:] == known[-1:]
    assert len(set(ids)) == len(ids) <= 8
    assert set(ids) <= set(known)
    assert remarks({A: ids}).keys() <= {A}
