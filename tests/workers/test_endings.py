from __future__ import annotations

import pytest

from farm.model.states import Outcome
from workers.endings import Conclusion, Ending, Readings, conclude, one_line


@pytest.mark.parametrize(
    ("ending", "readings", "lines", "expected"),
    [
        (Ending(command="x", exit_code=0), Readings(), ["bye"], (Outcome.SUCCEEDED, "")),
        (
            Ending(command="blender", exit_code=0),
            Readings(fatal="cannot render, no camera", is_final=True),
            [],
            (Outcome.JOB_ERROR, "cannot render, no camera"),
        ),
        (
            Ending(command="x", exit_code=0),
            Readings(fatal="no licence", outcome=Outcome.LICENCE),
            [],
            (Outcome.LICENCE, "no licence"),
        ),
        (
            Ending(command="x", exit_code=1),
            Readings(outcome=Outcome.LICENCE),
            ["FLEX error -4", "bye"],
            (Outcome.LICENCE, "x exited with status 1: FLEX error -4"),
        ),
        (
            Ending(command="x", exit_code=-9, oom_kills=1),
            Readings(),
            [],
            (Outcome.OUT_OF_MEMORY, "x was killed by the kernel: out of memory"),
        ),
        (
            Ending(command="x", exit_code=137, oom_kills=0),
            Readings(),
            [],
            (Outcome.JOB_ERROR, "x was killed by SIGKILL (out of memory?)"),
        ),
        (
            Ending(command="x", exit_code=-9, oom_kills=None),
            Readings(),
            [],
            (Outcome.OUT_OF_MEMORY, "x was killed by SIGKILL (out of memory?)"),
        ),
        (
            Ending(command="povray", exit_code=134),
            Readings(storage_sign="write: No space left on device"),
            ["abort"],
            (Outcome.STORAGE, "povray was killed by SIGABRT: write: No space left on device"),
        ),
        (Ending(command="x", exit_code=-64), Readings(), [], (Outcome.JOB_ERROR, "x was killed by SIGRTMAX")),
        (Ending(command="x", exit_code=200), Readings(), [], (Outcome.JOB_ERROR, "x exited with status 200")),
        (
            Ending(command="x", exit_code=-15, stop=(Outcome.CANCELLED, "by anna")),
            Readings(fatal="terminated", is_final=True),
            [],
            (Outcome.CANCELLED, "by anna"),
        ),
        (
            Ending(command="x", exit_code=-15, timeout_s=7200),
            Readings(),
            [],
            (Outcome.STALLED, "ran longer than 2:00:00 and was stopped"),
        ),
        (
            Ending(command="x", refusal=(Outcome.NODE_FAULT, "command not found: x")),
            Readings(),
            [],
            (Outcome.NODE_FAULT, "command not found: x"),
        ),
    ],
)
def test_an_ending_has_a_class_and_a_reason(
    ending: Ending, readings: Readings, lines: list[str], expected: tuple[Outcome, str]
) -> None:
    conclusion = conclude(ending, readings, lines)
    assert (conclusion.outcome, conclusion.reason) == expected


def test_only_what_the_attempt_itself_says_for_good_is_final() -> None:
    readings = Readings(fatal="no camera", is_final=True)
    assert conclude(Ending(command="x", exit_code=1), readings, []).is_final
    stopped = Ending(command="x", exit_code=1, stop=(Outcome.STALLED, "moved"))
    assert conclude(stopped, readings, []) == Conclusion(outcome=Outcome.STALLED, reason="moved")
    refused = Ending(command="x", refusal=(Outcome.JOB_ERROR, "bad template"), is_final=True)
    assert conclude(refused, Readings(), []).is_final


def test_a_reason_is_one_safe_line_of_bounded_length() -> None:
    assert one_line("a\nb\t c\x1b[31m") == "a b c\\x1b[31m"
    assert len(one_line("x" * 10_000)) <= 301
