"""The failpoints themselves: off by default, named, listed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm import failpoints
from farm.errors import Unavailable, UserError
from farm.settings import load_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def test_a_failpoint_does_nothing_until_it_is_armed() -> None:
    failpoints.reach("scheduler.sent")
    failpoints.arm("desk.submitting=fail")
    failpoints.reach("scheduler.sent")


def test_it_acts_at_the_time_that_was_asked_for() -> None:
    failpoints.arm("scheduler.sent=fail@2;scheduler.taken=sleep(0)")
    failpoints.reach("scheduler.sent")
    with pytest.raises(Unavailable, match=r"scheduler\.sent"):
        failpoints.reach("scheduler.sent")
    failpoints.reach("scheduler.sent")
    failpoints.reach("scheduler.taken")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nowhere=kill", "nowhere"),
        ("scheduler.sent=explode", "explode"),
        ("scheduler.sent=sleep(x)", "no number"),
        ("scheduler.sent", "''"),
    ],
)
def test_what_it_cannot_do_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        failpoints.arm(text)


def test_kill_is_sigkill() -> None:
    lines = (
        "from farm.failpoints import arm, reach",
        "arm('agent.written=kill@2')",
        "reach('agent.written')",
        "print(1, flush=True)",
        "reach('agent.written')",
        "print(2)",
    )
    code = "\n".join(lines)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (-9, b"1\n")


def test_each_name_is_in_the_code_once_and_in_the_docs() -> None:
    code = "".join(p.read_text() for room in ("farm", "workers") for p in sorted((ROOT / room).rglob("*.py")))
    reached = re.findall(r'\breach\("([^"]+)"\)', code)
    assert sorted(reached) == sorted(failpoints.NAMES)
    documented = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/failpoints.md").read_text(), re.M)
    assert sorted(documented) == sorted(failpoints.NAMES)


def test_the_variable_is_no_setting() -> None:
    load_settings(environment={"FARM_TEST_FAILPOINTS": "scheduler.sent=kill"})
