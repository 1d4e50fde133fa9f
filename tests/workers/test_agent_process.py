"""The agent as a process of its own on RabbitMQ: killed, drained, cut off."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from farm.model.states import Outcome
from tests.workers.agent_processes import Agents
from tests.workers.fake_farm import FakeFarm, launch, new_ids
from tests.workers.tcp_proxy import TcpProxy
from workers.containment import Containment
from workers.processes import tagged

pytestmark = pytest.mark.services


def test_a_killed_agent_leaves_no_renderer_and_its_successor_reports_the_loss(
    agents: Agents, fake_farm: FakeFarm, tmp_path: Path
) -> None:
    process = agents.start()
    done, lost = new_ids(2)
    log = tmp_path / "runs"
    fake_farm.send_launch(launch(done, log=log))
    fake_farm.end_of(done)
    fake_farm.send_launch(launch(lost, do="wait", log=log))
    fake_farm.until(lambda: tagged([lost]), "a renderer process")
    fake_farm.until(lambda: lost in fake_farm.started, "its start, noted before it is told")
    process.kill()
    process.wait()
    fake_farm.until(lambda: not tagged([lost]), "no renderer process")
    fake_farm.ends.clear()
    agents.start()
    end = fake_farm.end_of(lost)
    assert end.outcome is Outcome.NODE_LOST
    assert end.reason == f"the agent on {agents.node_id} was restarted; its renderers died with it"
    (last,) = new_ids(1)
    for attempt_id in (lost, done, last):
        fake_farm.send_launch(launch(attempt_id, log=log))
    fake_farm.end_of(last)
    assert log.read_text().split() == [done, lost, last], "neither runs again"
    sessions = {beat.session for beat in fake_farm.heartbeats}
    assert len(sessions) == 2


def test_renderers_that_outlive_a_killed_agent_are_ended_by_its_successor(
    agents: Agents, fake_farm: FakeFarm
) -> None:
    # Without namespaces a renderer in a session of its own survives its host.
    process = agents.start(Containment.SUBREAPER)
    (lost,) = new_ids(1)
    fake_farm.send_launch(launch(lost, do="wait"))
    fake_farm.until(lambda: tagged([lost]), "a renderer process")
    process.kill()
    process.wait()
    agents.start()
    assert fake_farm.end_of(lost).outcome is Outcome.NODE_LOST
    assert not tagged([lost]), "the loss is told when nothing is left"


def test_an_end_that_the_farm_never_accepted_is_told_by_the_next_agent(
    agents: Agents, fake_farm: FakeFarm
) -> None:
    process = agents.start()
    fake_farm.accepts = False
    (attempt_id,) = new_ids(1)
    fake_farm.send_launch(launch(attempt_id))
    first = fake_farm.end_of(attempt_id)
    process.kill()
    process.wait()
    fake_farm.ends.clear()
    fake_farm.accepts = True
    agents.start()
    assert fake_farm.end_of(attempt_id) == first


def test_reports_arrive_after_the_connection_was_cut(
    agents: Agents, fake_farm: FakeFarm, stack: ExitStack, tmp_path: Path
) -> None:
    proxy = stack.enter_context(closing(TcpProxy(*agents.broker)))
    agents.start(port=proxy.port)
    one, two = new_ids(2)
    go = tmp_path / "go"
    fake_farm.send_launch(launch(one, do=f"wait for {go}"))
    fake_farm.until(lambda: one in fake_farm.started, "a start")
    proxy.cut()
    fake_farm.until(lambda: b"work goes on" in agents.log.read_bytes(), "a log line")
    go.touch()
    proxy.mend()
    assert fake_farm.end_of(one, timeout_s=30).outcome is Outcome.SUCCEEDED
    fake_farm.send_launch(launch(two))
    assert fake_farm.end_of(two, timeout_s=30).outcome is Outcome.SUCCEEDED
    assert b"the broker is back" in agents.log.read_bytes()


def test_an_agent_waits_for_a_broker_that_is_down(
    agents: Agents, fake_farm: FakeFarm, stack: ExitStack
) -> None:
    proxy = stack.enter_context(closing(TcpProxy(*agents.broker)))
    proxy.cut()
    process = agents.start(port=proxy.port)
    fake_farm.until(
        lambda: b"the broker cannot be reached, trying again" in agents.log.read_bytes(), "a log line"
    )
    assert process.poll() is None
    proxy.mend()
    fake_farm.until(lambda: fake_farm.heartbeats, "a heartbeat", timeout_s=30)
    (attempt_id,) = new_ids(1)
    fake_farm.send_launch(launch(attempt_id))
    fake_farm.end_of(attempt_id, timeout_s=30)


def test_sigterm_drains(agents: Agents, fake_farm: FakeFarm, tmp_path: Path) -> None:
    process = agents.start()
    running, late = new_ids(2)
    go = tmp_path / "go"
    fake_farm.send_launch(launch(running, do=f"wait for {go}"))
    fake_farm.until(lambda: running in fake_farm.started, "a start")
    process.send_signal(signal.SIGTERM)
    fake_farm.until(lambda: fake_farm.heartbeats[-1].is_draining, "a draining heartbeat")
    assert process.poll() is None
    go.touch()
    assert fake_farm.end_of(running).outcome is Outcome.SUCCEEDED
    assert process.wait(20) == 0
    fake_farm.send_launch(launch(late))
    agents.start()
    assert fake_farm.end_of(late).outcome is Outcome.SUCCEEDED, "it waited in the queue"


def test_a_second_sigterm_hands_back_what_runs(agents: Agents, fake_farm: FakeFarm) -> None:
    process = agents.start()
    (attempt_id,) = new_ids(1)
    fake_farm.send_launch(launch(attempt_id, do="wait"))
    fake_farm.until(lambda: tagged([attempt_id]), "a renderer process")
    process.send_signal(signal.SIGTERM)
    fake_farm.until(lambda: fake_farm.heartbeats[-1].is_draining, "a draining heartbeat")
    process.send_signal(signal.SIGTERM)
    end = fake_farm.end_of(attempt_id)
    assert (end.outcome, end.reason) == (
        Outcome.NODE_LOST,
        f"handed back by {agents.node_id}: the agent is stopping",
    )
    assert process.wait(20) == 0
    assert not tagged([attempt_id])


def test_a_second_agent_on_the_same_state_says_so_and_exits_2(agents: Agents, fake_farm: FakeFarm) -> None:
    first = agents.start()
    fake_farm.until(lambda: fake_farm.heartbeats, "a heartbeat")
    assert agents.start().wait(20) == 2
    assert f"another agent (process {first.pid}) runs on" in agents.log.read_text()
    assert first.poll() is None
