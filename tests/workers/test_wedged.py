"""A renderer that hangs in the kernel: its node says so, takes no more work, and works again afterwards."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.wire.messages import Stop
from tests.waiting import wait_until
from tests.workers.agent_processes import Agents
from tests.workers.fake_farm import FakeFarm
from tests.workers.test_takeover import BEST, order
from workers.processes import tagged

pytestmark = [pytest.mark.services, pytest.mark.faults]
FREEZER = Path("/sys/fs/cgroup/freezer")


class Freezer:
    """Processes in it can be neither run nor killed, like those that wait for a dead file server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def freeze(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))
        (self.path / "freezer.state").write_text("FROZEN")
        wait_until(lambda: "FROZEN" in (self.path / "freezer.state").read_text(), "that it is frozen")

    def thaw(self) -> None:
        (self.path / "freezer.state").write_text("THAWED")


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    if not os.access(FREEZER, os.W_OK):
        pytest.skip("no freezer of cgroup v1 here")
    made = Freezer(FREEZER / f"farm-test-{uuid.uuid4().hex[:8]}")
    yield made
    made.thaw()
    wait_until(lambda: not (made.path / "cgroup.procs").read_text(), "that it is empty")
    made.path.rmdir()


def test_a_renderer_that_cannot_be_killed_closes_its_node_until_it_is_gone(
    agents: Agents, fake_farm: FakeFarm, freezer: Freezer
) -> None:
    attempt_id, message = order("say", "begin", "sleep", "600")
    agents.start(BEST, "real")
    fake_farm.send_launch(message)
    fake_farm.until(lambda: "begin" in fake_farm.log_of(attempt_id), "output")
    [(pid, _)] = tagged([attempt_id])
    freezer.freeze(pid)
    fake_farm.send(Stop(attempt_ids=(attempt_id,), reason="cancelled by anna"))
    fake_farm.until(lambda: fake_farm.heartbeats[-1].fault.startswith("wedged: "), "a wedged node")
    late_id, message = order("say", "late")
    freezer.thaw()
    fake_farm.until(lambda: not fake_farm.heartbeats[-1].fault, "that it works again", timeout_s=120)
    assert not tagged([attempt_id])
    fake_farm.end_of(attempt_id)
    fake_farm.send_launch(message)
    fake_farm.end_of(late_id)
