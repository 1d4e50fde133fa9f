"""How the agent ends attempts by itself: fence and stop. Its own module, since a process holds one agent."""

from __future__ import annotations

from pathlib import Path

from farm.model.states import Outcome
from farm.model.work import Isolation
from tests.workers.agents import MACHINE, fake_host_command, settings_in
from tests.workers.fake_farm import FakeFarm, launch, new_ids
from workers.agent import start_agent
from workers.processes import tagged


def test_an_exclusive_attempt_that_the_farm_does_not_answer_for_is_fenced(tmp_path: Path) -> None:
    # Its own node: the fence time is short.
    settings = settings_in(tmp_path, fence_s=1.0)
    farm = FakeFarm(settings.broker_url, settings.node_name)
    handle = start_agent(settings, host_command=fake_host_command, capabilities=MACHINE)
    try:
        farm.until(lambda: farm.heartbeats, "a first heartbeat")
        (attempt_id,) = new_ids(1)
        farm.send_launch(launch(attempt_id, do="wait", isolation=Isolation.EXCLUSIVE))
        farm.until(lambda: tagged([attempt_id]), "a renderer process")
        farm.answers = False
        end = farm.end_of(attempt_id)
        assert (end.outcome, end.reason) == (Outcome.NODE_LOST, "fenced: no answer from the farm for 1 s")
        assert not tagged([attempt_id])
        (left,) = new_ids(1)
        farm.send_launch(launch(left, do="wait"))
        farm.until(lambda: tagged([left]), "a renderer process")
        assert handle.stop(), "the agent did not end in time"
        end = farm.end_of(left)
        assert end.outcome is Outcome.NODE_LOST
        assert end.reason == f"handed back by {settings.node_name}: the agent is stopping"
        assert not tagged([left])
        assert farm.heartbeats[-1].is_draining
    finally:
        handle.stop()
        farm.close()
