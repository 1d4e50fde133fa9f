"""The agent end to end, with a fake session host: over the embedded broker, in this process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.errors import UserError
from farm.model.states import Outcome
from farm.settings import Settings
from farm.wire.messages import SayHello, Stop, TidyJob
from tests.workers.agents import MACHINE, fake_host_command, settings_in
from tests.workers.fake_farm import FakeFarm, launch, new_ids
from workers import staging
from workers.agent import AgentHandle, start_agent
from workers.processes import tagged


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings_in(tmp_path_factory.mktemp("state"), renderer_environment=("FARM_TEST_*",))


@pytest.fixture(scope="module")
def agent(settings: Settings) -> Iterator[AgentHandle]:
    os.environ["FARM_TEST_LET_THROUGH"] = "yes"
    os.environ["NOT_LET_THROUGH"] = "amqp://secret"
    handle = start_agent(settings, host_command=fake_host_command, capabilities=MACHINE)
    yield handle
    del os.environ["FARM_TEST_LET_THROUGH"], os.environ["NOT_LET_THROUGH"]
    assert handle.stop(), "the agent did not end in time"


@pytest.fixture
def fake_farm(settings: Settings, agent: AgentHandle) -> Iterator[FakeFarm]:
    farm = FakeFarm(settings.broker_url, settings.node_name)
    farm.until(lambda: farm.heartbeats, "a first heartbeat")
    yield farm
    farm.close()


def test_a_launch_is_started_and_finished(fake_farm: FakeFarm) -> None:
    first, second, third = new_ids(3)
    fake_farm.send_launch(launch(first, second, third))
    for attempt_id in (first, second, third):
        assert fake_farm.end_of(attempt_id).outcome is Outcome.SUCCEEDED
    assert set(fake_farm.started) == {first, second, third}


def test_a_doubled_launch_runs_once(fake_farm: FakeFarm, tmp_path: Path) -> None:
    (attempt_id,) = new_ids(1)
    log = tmp_path / "log"
    for _ in range(3):
        fake_farm.send_launch(launch(attempt_id, log=log))
    fake_farm.end_of(attempt_id)
    fake_farm.send_launch(launch(attempt_id, log=log))
    (last,) = new_ids(1)
    fake_farm.send_launch(launch(last, log=log))
    fake_farm.end_of(last)
    assert log.read_text().split() == [attempt_id, last]


def test_output_and_progress_arrive_in_order(fake_farm: FakeFarm) -> None:
    (attempt_id,) = new_ids(1)
    fake_farm.send_launch(launch(attempt_id, do="talk"))
    fake_farm.end_of(attempt_id)
    fake_farm.until(lambda: fake_farm.log_of(attempt_id) == "one\ntwo\n", "the log")
    fake_farm.until(lambda: fake_farm.progress, "progress")
    assert fake_farm.progress[0].fraction == 0.5


def test_a_stop_ends_the_attempt_and_its_processes(fake_farm: FakeFarm) -> None:
    (attempt_id,) = new_ids(1)
    fake_farm.send_launch(launch(attempt_id, do="wait"))
    fake_farm.until(lambda: attempt_id in fake_farm.started, "a start")
    fake_farm.until(lambda: tagged([attempt_id]), "a renderer process")
    fake_farm.send(Stop(attempt_ids=(attempt_id,), reason="cancelled by anna"))
    end = fake_farm.end_of(attempt_id)
    assert (end.outcome, end.reason) == (Outcome.CANCELLED, "cancelled by anna")
    assert not tagged([attempt_id])


def test_a_host_that_does_not_obey_is_killed_with_all_it_started(fake_farm: FakeFarm) -> None:
    (attempt_id,) = new_ids(1)
    fake_farm.send_launch(launch(attempt_id, do="wait and ignore cancel"))
    fake_farm.until(lambda: tagged([attempt_id]), "a renderer process")
    fake_farm.send(Stop(attempt_ids=(attempt_id,), reason="cancelled by anna"))
    assert fake_farm.end_of(attempt_id).outcome is Outcome.CANCELLED
    assert not tagged([attempt_id])


def test_a_host_that_dies_is_replaced_and_said_so(fake_farm: FakeFarm) -> None:
    one, two = new_ids(2)
    fake_farm.send_launch(launch(one, do="die"))
    end = fake_farm.end_of(one)
    assert end.outcome is Outcome.NODE_FAULT
    assert end.reason == "its session host died: exit status 3"
    fake_farm.send_launch(launch(two))
    assert fake_farm.end_of(two).outcome is Outcome.SUCCEEDED


def test_a_host_that_cannot_start_is_tried_three_times(fake_farm: FakeFarm, tmp_path: Path) -> None:
    (attempt_id,) = new_ids(1)
    fake_farm.send_launch(launch(attempt_id, do="die early", log=tmp_path / "log"))
    end = fake_farm.end_of(attempt_id)
    assert end.outcome is Outcome.NODE_FAULT
    assert end.reason == "no session host could be started: exit status 3"
    assert len((tmp_path / "log").read_text().split()) == 3


def test_the_renderers_environment_is_an_allow_list(fake_farm: FakeFarm) -> None:
    (attempt_id,) = new_ids(1)
    fake_farm.send_launch(launch(attempt_id, do="show environment"))
    fake_farm.end_of(attempt_id)
    fake_farm.until(lambda: fake_farm.log_of(attempt_id), "the log")
    seen = dict(line.split("=", 1) for line in fake_farm.log_of(attempt_id).splitlines())
    assert seen["FARM_TEST_LET_THROUGH"] == "yes"
    assert "NOT_LET_THROUGH" not in seen
    assert seen["PATH"].split(os.pathsep)[-1] == str(Path(sys.executable).parent)


def test_a_hello_is_answered_with_all_that_the_node_offers(fake_farm: FakeFarm) -> None:
    heard = len(fake_farm.heartbeats)
    fake_farm.send(SayHello())
    fake_farm.until(
        lambda: any(beat.capabilities == MACHINE for beat in fake_farm.heartbeats[heard:]), "a full heartbeat"
    )
    fake_farm.until(lambda: fake_farm.heartbeats[-1].loads, "loads")
    beat = fake_farm.heartbeats[-1]
    assert beat.loads[0].device_id == "cpu"
    assert beat.disk_free_mib
    assert beat.boot_id
    assert beat.agent_version


def test_an_unaccepted_end_is_sent_again_when_its_launch_is_doubled(fake_farm: FakeFarm) -> None:
    (attempt_id,) = new_ids(1)
    fake_farm.accepts = False
    fake_farm.send_launch(launch(attempt_id))
    first = fake_farm.end_of(attempt_id)
    fake_farm.ends.clear()
    fake_farm.accepts = True
    fake_farm.send_launch(launch(attempt_id))
    assert fake_farm.end_of(attempt_id) == first


def test_an_ended_jobs_private_directories_are_removed(fake_farm: FakeFarm, tmp_path: Path) -> None:
    private = tmp_path / staging.PRIVATE / "job"
    (private / "attempt").mkdir(parents=True)
    fake_farm.send(TidyJob(job_uid="job", directories=(str(tmp_path),)))
    fake_farm.until(lambda: not private.exists(), "the directory is gone")


def test_a_message_that_cannot_be_read_harms_nothing(
    fake_farm: FakeFarm, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    fake_farm.send({"kind": "from-the-future"})
    (attempt_id,) = new_ids(1)
    fake_farm.send_launch(launch(attempt_id))
    fake_farm.end_of(attempt_id)
    fake_farm.until(lambda: "a message was parked" in caplog.text, "a log line")


def test_a_second_agent_on_the_same_state_is_refused(agent: AgentHandle, settings: Settings) -> None:
    with pytest.raises(UserError, match=rf"another agent \(process {os.getpid()}\) runs on .*state"):
        start_agent(settings)
