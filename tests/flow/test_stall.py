from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.flow.stall import Expectation, judge, patience_s, remaining_s
from farm.model.ids import AttemptId
from farm.model.stalls import Evidence, StallKind

AFTER_S = 120.0
USUAL = Expectation(median_s=60.0, upper_s=80.0)


def seen(**known: Any) -> Evidence:
    """An attempt that works: the figures of a Cycles frame, but for what is given."""
    usual: dict[str, Any] = {
        "attempt_id": AttemptId("a"),
        "age_s": 60.0,
        "processes": 2,
        "states": {"S": 1, "R": 1},
        "command": "blender",
        "cpu_s": 200.0,
        "cores": 3.9,
        "memory_mib": 1_900,
        "silent_s": 1.0,
    }
    return Evidence(**(usual | known))


def idle(for_s: float, **known: Any) -> Evidence:
    usual: dict[str, Any] = {
        "age_s": for_s + 10,
        "cores": 0.0,
        "states": {"S": 2},
        "cpu_idle_s": for_s,
        "io_idle_s": for_s,
        "silent_s": for_s,
    }
    return seen(**(usual | known))


@pytest.mark.parametrize(
    ("evidence", "expected", "kind", "told"),
    [
        (seen(), USUAL, StallKind.WORKING, ""),
        (seen(age_s=400.0, silent_s=395.0), None, StallKind.SILENT, "no output for 6:35, and works"),
        (seen(age_s=400.0), USUAL, StallKind.SLOW, "runs for 6:40, nine in ten take less than 1:20 here"),
        (
            seen(age_s=130.0, progress=0.2, progress_idle_s=0.0),
            USUAL,
            StallKind.SLOW,
            "20 % in 2:10 makes 10:50",
        ),
        # A node at a third of its speed, seen long before the frame is late.
        (
            seen(age_s=190.0, progress=0.105, progress_idle_s=0.0),
            Expectation(median_s=600.0, upper_s=700.0),
            StallKind.SLOW,
            "10 % in 3:10 makes 30:10",
        ),
        # Its first tenth took twice its share: no reason yet.
        (
            seen(age_s=130.0, progress=0.1, progress_idle_s=0.0),
            Expectation(median_s=600.0, upper_s=700.0),
            StallKind.WORKING,
            "",
        ),
        (idle(130.0, last_line="Developing out.exr"), USUAL, StallKind.HUNG, "ago: Developing out.exr"),
        (idle(130.0), None, StallKind.WORKING, ""),
        (idle(301.0), None, StallKind.HUNG, "no CPU, no I/O for 5:01"),
        (
            idle(130.0, on_gpu=True, gpu_idle_s=130.0),
            USUAL,
            StallKind.HUNG,
            "no CPU, no I/O, no GPU for 2:10",
        ),
        # Only the GPU works.
        (
            idle(130.0, age_s=90.0, on_gpu=True, gpu_idle_s=0.0),
            USUAL,
            StallKind.SILENT,
            "CPU 0.0 cores, GPU busy",
        ),
        # It cannot say whether the GPU works.
        (idle(150.0, on_gpu=True), USUAL, StallKind.SLOW, ""),
        (idle(361.0, on_gpu=True), USUAL, StallKind.HUNG, "the GPU cannot say"),
        (idle(65.0, files_done_s=65.0), USUAL, StallKind.NOT_EXITING, "and blender does not exit"),
        (seen(files_done_s=600.0), USUAL, StallKind.WORKING, ""),
        (idle(130.0, states={"T": 1}, stopped_s=130.0), None, StallKind.STOPPED, "SIGSTOP) for 2:10"),
        (
            idle(130.0, states={"D": 1}, blocked_s=130.0, blocked_on="blender in rpc_wait_bit_killable"),
            None,
            StallKind.WEDGED,
            "blender in rpc_wait_bit_killable for 2:10",
        ),
        (idle(130.0, files_stuck_s=121.0), None, StallKind.WEDGED, "output directory has not come back"),
        (
            seen(cores=0.1, swap_mib=4_000, page_ins_s=300.0, swapping_s=200.0),
            None,
            StallKind.SWAPPING,
            "4,000 MiB in swap beside 1,900 MiB, 300 pages read a second",
        ),
        (
            idle(90.0, silent_s=20.0, licence="waiting for a license of arnold"),
            None,
            StallKind.LICENCE,
            "waits for a licence, no CPU for 1:30: waiting for a license of arnold",
        ),
    ],
)
def test_what_an_attempt_is_taken_for(
    evidence: Evidence, expected: Expectation | None, kind: StallKind, told: str
) -> None:
    verdict = judge(evidence, expected, after_s=AFTER_S)
    assert verdict.kind is kind, verdict
    assert told in verdict.text
    assert "\n" not in verdict.text
    assert verdict.is_stall is (kind not in (StallKind.WORKING, StallKind.SILENT))


_SECONDS = st.floats(0, 1e6)
_EXPECTED = st.none() | st.builds(
    lambda median_s, factor: Expectation(median_s=median_s, upper_s=median_s * factor),
    st.floats(0.01, 1e5),
    st.floats(1, 10),
)
_ANY = st.builds(
    Evidence,
    attempt_id=st.just(AttemptId("a")),
    age_s=_SECONDS,
    processes=st.integers(0, 100),
    states=st.dictionaries(st.sampled_from("RSDTZ"), st.integers(1, 9)),
    cores=st.floats(0, 64),
    swap_mib=st.integers(0, 10**6),
    page_ins_s=st.floats(0, 1e5),
    cpu_idle_s=_SECONDS,
    io_idle_s=_SECONDS,
    gpu_idle_s=st.none() | _SECONDS,
    on_gpu=st.booleans(),
    silent_s=_SECONDS,
    last_line=st.text(max_size=20),
    progress=st.none() | st.floats(0, 1),
    progress_idle_s=st.none() | _SECONDS,
    is_output_closed=st.booleans(),
    stopped_s=_SECONDS,
    blocked_s=_SECONDS,
    swapping_s=_SECONDS,
    files_done_s=st.none() | _SECONDS,
    files_stuck_s=_SECONDS,
    licence=st.text(max_size=20),
)


@given(_ANY, _EXPECTED, st.floats(1, 1e4))
def test_every_stall_has_its_evidence(
    evidence: Evidence, expected: Expectation | None, after_s: float
) -> None:
    verdict = judge(evidence, expected, after_s=after_s)
    assert bool(verdict.text) is (verdict.kind is not StallKind.WORKING)


@given(_ANY, _EXPECTED, st.floats(1, 1e4))
def test_what_computes_is_never_taken_for_dead(
    evidence: Evidence, expected: Expectation | None, after_s: float
) -> None:
    """A busy renderer may be slow or swapping, whatever it says and for however long it has been silent."""
    busy = replace(evidence, cpu_idle_s=0.0, cores=max(evidence.cores, 0.6), stopped_s=0.0)
    kind = judge(busy, expected, after_s=after_s).kind
    assert kind in (StallKind.WORKING, StallKind.SILENT, StallKind.SLOW)
    if expected is None:
        assert kind is not StallKind.SLOW


@given(_ANY, _EXPECTED, st.text(), st.floats(1, 1e4))
def test_no_word_in_the_log_makes_a_stall(
    evidence: Evidence, expected: Expectation | None, line: str, after_s: float
) -> None:
    before = judge(evidence, expected, after_s=after_s)
    after = judge(replace(evidence, last_line=f"FATAL Error: {line}"), expected, after_s=after_s)
    assert after.kind is before.kind


@given(_ANY, _EXPECTED, st.floats(1, 1e4), st.floats(0, 1e6))
def test_doing_nothing_for_longer_makes_nobody_livelier(
    evidence: Evidence, expected: Expectation | None, after_s: float, more_s: float
) -> None:
    quiet = replace(evidence, licence="", files_done_s=None, cores=0.0)
    if judge(quiet, expected, after_s=after_s).kind is not StallKind.HUNG:
        return
    later = replace(
        quiet,
        age_s=quiet.age_s + more_s,
        cpu_idle_s=quiet.cpu_idle_s + more_s,
        io_idle_s=quiet.io_idle_s + more_s,
        gpu_idle_s=None if quiet.gpu_idle_s is None else quiet.gpu_idle_s + more_s,
        silent_s=quiet.silent_s + more_s,
    )
    assert judge(later, expected, after_s=after_s).kind is StallKind.HUNG


@given(_ANY, _EXPECTED, st.floats(1, 1e4))
def test_nothing_is_hung_before_its_patience_has_run_out(
    evidence: Evidence, expected: Expectation | None, after_s: float
) -> None:
    if judge(evidence, expected, after_s=after_s).kind is StallKind.HUNG:
        least_s = patience_s(evidence, expected, after_s)
        assert least_s >= after_s
        assert evidence.idle_s >= least_s
        assert evidence.silent_s >= least_s


def test_cycles_between_sample_1_and_513_is_no_stall() -> None:
    """4 cores at work and no line for as long as it takes, whatever is known of the step."""
    slow_scene = Expectation(median_s=900.0, upper_s=1_200.0)
    for silence_s in range(1_000):
        frame = seen(age_s=silence_s + 1.0, silent_s=silence_s, progress=0.0, progress_idle_s=silence_s)
        assert not judge(frame, None, after_s=AFTER_S).is_stall
        assert not judge(frame, slow_scene, after_s=AFTER_S).is_stall


def test_the_time_to_go_is_told_by_the_last_progress_not_by_the_time_since() -> None:
    assert remaining_s(seen(age_s=60.0, progress=0.5, progress_idle_s=10.0)) == pytest.approx(40.0)
    assert remaining_s(seen(age_s=60.0, progress=0.05, progress_idle_s=0.0)) is None
    assert remaining_s(seen(age_s=60.0)) is None
