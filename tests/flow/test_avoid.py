from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farm.flow.avoid import GROWTH, MOST_NODES, Avoid, also, grown, read
from farm.flow.quarantine import (
    COOL_DOWN_S,
    LEAST_JOBS,
    LEAST_TASKS,
    MOST_COOL_DOWN_S,
    STREAK,
    Bad,
    blames_node,
    cool_down_s,
    is_bad,
    may_be_closed,
    told,
)
from farm.model.ids import NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.states import Outcome

_AVOIDS = st.builds(
    Avoid,
    nodes=st.lists(
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True).map(NodeId),
        max_size=MOST_NODES,
        unique=True,
    ).map(tuple),
    memory_mib=st.integers(0, 10**7),
    vram_mib=st.integers(0, 10**6),
)


@given(_AVOIDS)
def test_what_is_kept_is_read_back(avoid: Avoid) -> None:
    assert read(avoid.text()) == avoid


def node(memory_mib: int, vram_mib: int | None = None) -> Capabilities:
    gpu = Device(id="g", kind=DeviceKind.GPU, model="m", vram_mib=vram_mib)
    return Capabilities(memory_mib=memory_mib, devices=(gpu,) if vram_mib is not None else ())


def test_names_are_kept_once_and_the_newest_survive() -> None:
    avoid = Avoid()
    for number in range(MOST_NODES + 2):
        avoid = also(avoid, NodeId(f"n{number}"))
    avoid = also(avoid, NodeId("n5"))
    assert read(avoid.text()).nodes == tuple(f"n{n}" for n in (1, 2, 3, 4, 6, 7, 8, 9, 5))[-MOST_NODES:]


@given(
    st.none() | st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.none() | st.integers(1, 10**6),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=4),
    st.booleans(),
)
def test_each_retry_asks_for_more_until_the_largest_node_is_all_there_is(
    used: int | None, asked: int, had: int | None, farm: list[int], on_gpu: bool
) -> None:
    nodes = [node(size, size) for size in farm]
    before = Avoid()
    least = 0
    for _ in range(4):
        after = grown(before, on_gpu=on_gpu, used_mib=used, asked_mib=asked, had_mib=had, farm=nodes)
        wanted = after.vram_mib if on_gpu else after.memory_mib
        assert wanted <= max(farm)
        assert wanted >= min(least, max(farm))
        assert not all(after.excludes(NodeId("x"), has) for has in nodes), "somebody may always try"
        if max(used or 0, asked) * GROWTH < max(farm) and (used or asked):
            assert wanted > max(used or 0, asked, least) - 1
        before, least = after, wanted


def test_one_that_filled_its_node_goes_to_a_larger_one() -> None:
    farm = [node(32_000), node(64_000)]
    after = grown(Avoid(), on_gpu=False, used_mib=30_000, asked_mib=0, had_mib=32_000, farm=farm)
    assert after.memory_mib == 45_000
    assert after.excludes(NodeId("a"), farm[0])
    assert not after.excludes(NodeId("b"), farm[1])
    assert "needs 45,000 MiB of memory" in after.told()


# --- quarantine -------------------------------------------------------------------------------------------


def bad(job: int, task: int, outcome: Outcome = Outcome.NODE_FAULT) -> Bad:
    return Bad(job_id=job, task_id=task, outcome=outcome)


def test_a_node_is_bad_after_failures_of_several_jobs_in_a_row() -> None:
    assert is_bad([bad(1, 1), bad(1, 2), bad(2, 3), bad(2, 4)])
    assert not is_bad([bad(1, 1), bad(1, 2), bad(1, 3), bad(1, 4)]), "one job may be to blame"
    assert not is_bad([bad(1, 1), bad(2, 2), bad(1, 1), bad(2, 2)]), "two tasks may be to blame"
    assert not is_bad([bad(1, 1), bad(2, 2), bad(3, 3)])


@given(st.lists(st.builds(bad, st.integers(1, 3), st.integers(1, 9)), max_size=8))
def test_a_bad_streak_is_long_and_mixed(streak: list[Bad]) -> None:
    if is_bad(streak):
        assert len(streak) >= STREAK
        assert len({each.job_id for each in streak}) >= LEAST_JOBS
        assert len({each.task_id for each in streak}) >= LEAST_TASKS
        assert "one after the other" in told(streak)


def test_storage_licences_and_jobs_that_fail_everywhere_blame_no_node() -> None:
    for outcome in Outcome:
        is_blamed = outcome in (Outcome.NODE_FAULT, Outcome.STALLED)
        assert blames_node(outcome, works_elsewhere=False) is is_blamed
    assert blames_node(Outcome.JOB_ERROR, works_elsewhere=True)
    assert not blames_node(Outcome.NODE_FAULT, works_elsewhere=True, is_device_fault=True)


def test_never_the_last_node_and_never_more_than_half() -> None:
    assert not may_be_closed(taking_work=1, closed=0)
    assert may_be_closed(taking_work=2, closed=0)
    assert not may_be_closed(taking_work=2, closed=1)
    assert may_be_closed(taking_work=5, closed=1)


def test_each_quarantine_is_twice_as_long_up_to_a_limit() -> None:
    assert [cool_down_s(n) for n in range(3)] == [COOL_DOWN_S, 2 * COOL_DOWN_S, 4 * COOL_DOWN_S]
    assert cool_down_s(1_000) == MOST_COOL_DOWN_S
