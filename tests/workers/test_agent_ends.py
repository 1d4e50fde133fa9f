"""Agents that end attempts by themselves, or end; one after the other, since a process holds one agent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from farm.model.ids import AttemptId
from farm.model.states import Outcome
from farm.model.work import Isolation, OutputSpec
from farm.wire.messages import Launch, ReportsAccepted
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
        farm.until(lambda: farm.heartbeats[-1].is_draining, "a draining heartbeat")
    finally:
        handle.stop()
        farm.close()


def test_the_real_session_host_publishes_and_its_private_directory_goes(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "state")
    out = tmp_path / "out"
    out.mkdir()
    farm = FakeFarm(settings.broker_url, settings.node_name)
    handle = start_agent(settings, capabilities=MACHINE)
    try:
        (attempt_id,) = new_ids(1)
        farm.accepts = False
        farm.send_launch(writing_launch(attempt_id, out))
        end = farm.end_of(attempt_id)
        assert end.outcome is Outcome.SUCCEEDED, end.reason
        assert (out / "a.txt").read_text() == "hello\n"
        farm.send(ReportsAccepted(attempt_ids=(attempt_id,)))
        farm.until(lambda: not list(out.rglob(f"*{attempt_id}*")), "no private directory")
        assert (out / "a.txt").exists()
    finally:
        assert handle.stop(), "the agent did not end in time"
        farm.close()


def writing_launch(attempt_id: AttemptId, out: Path) -> Launch:
    parameter = {"name": "Out", "type": "PATH", "objectType": "DIRECTORY", "dataFlow": "OUT"}
    write = {"command": "sh", "args": ["-c", "echo hello > '{{Param.Out}}/a.txt'"]}
    template = {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "write",
        "parameterDefinitions": [parameter],
        "steps": [{"name": "step", "script": {"actions": {"onRun": write}}}],
    }
    plain = launch(attempt_id)
    script = replace(
        plain.script,
        template=template,
        parameters={"Out": ("PATH", str(out))},
        output=OutputSpec(step="step", directory_parameter="Out", file_pattern="a.txt", is_image=False),
    )
    return Launch(script=script, orders=(replace(plain.orders[0], files=("a.txt",)),))
