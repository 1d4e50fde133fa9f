"""Renderers outlive their agent: the next one goes on with them, and none stays for ever without one."""

from __future__ import annotations

import json
import signal
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from farm.model.ids import AttemptId
from farm.model.states import Outcome
from farm.model.work import Isolation
from farm.wire.messages import Launch
from tests.workers.agent_processes import Agents
from tests.workers.agents import MACHINE, settings_in
from tests.workers.fake_farm import FakeFarm, new_ids
from tests.workers.host_driver import make_run, renderer_template
from tests.workers.test_session_host import available_containments
from workers.agent import start_agent
from workers.containment import Containment, probe
from workers.processes import boot_id, tagged

services = pytest.mark.services
BEST = probe()
ALL = [
    pytest.param(held, marks=[] if held is BEST else pytest.mark.faults) for held in available_containments()
]
SHORT: dict[str, Any] = {"heartbeat_s": 0.2, "fence_s": 4.0, "kill_grace_s": 0.2, "lease_s": 5.0}
"""Seconds: nobody waits longer for the next agent, and a busy machine gets along with it."""


def order(
    *words: str, output: Path | None = None, isolation: Isolation = Isolation.STAGED
) -> tuple[AttemptId, Launch]:
    (attempt_id,) = new_ids(1)
    run = make_run(
        renderer_template(*words),
        attempt_id,
        output=output,
        files=("frame.bin",) if output is not None else (),
        isolation=isolation,
    )
    return attempt_id, Launch(script=run.script, orders=(run.order,))


@services
@pytest.mark.parametrize("held", ALL)
def test_a_renderer_goes_on_when_its_agent_is_killed_and_started_again(
    held: Containment, agents: Agents, fake_farm: FakeFarm, tmp_path: Path
) -> None:
    out, go = tmp_path / "out", tmp_path / "go"
    out.mkdir()
    words = ("say", "begin", "wait-for", str(go), "write", "{{Param.Output}}/frame.bin", "9", "say", "end")
    attempt_id, message = order(*words, output=out)
    agent = agents.start(held, "real")
    fake_farm.send_launch(message)
    fake_farm.until(lambda: "begin" in fake_farm.log_of(attempt_id), "output")
    (before,) = tagged([attempt_id])
    agent.kill()
    agent.wait()
    agents.start(held, "real")
    fake_farm.until(lambda: len({beat.session for beat in fake_farm.heartbeats}) == 2, "the next agent")
    assert attempt_id in fake_farm.heartbeats[-1].attempts
    assert tagged([attempt_id]) == [before], "the same process"
    go.touch()
    end = fake_farm.end_of(attempt_id)
    assert (end.outcome, end.exit_code) == (Outcome.SUCCEEDED, 0), end.reason
    assert (out / "frame.bin").read_bytes() == b"x" * 9
    assert [file.path for file in end.files] == [str(out / "frame.bin")]
    fake_farm.until(lambda: fake_farm.log_of(attempt_id).endswith("\nend\n"), "the last line")
    assert fake_farm.log_of(attempt_id).splitlines()[-2:] == ["begin", "end"], "each line once"
    # The slot works on: the next attempt runs on the host that was taken over.
    next_id, message = order("say", "next")
    fake_farm.send_launch(message)
    assert fake_farm.end_of(next_id).outcome is Outcome.SUCCEEDED


@services
@pytest.mark.faults
def test_an_end_while_no_agent_is_there_is_told_by_the_next_one(
    agents: Agents, fake_farm: FakeFarm, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    attempt_id, message = order("wait-for", str(go), "exit", "3")
    agent = agents.start(BEST, "real")
    fake_farm.send_launch(message)
    fake_farm.until(lambda: attempt_id in fake_farm.started, "a start")
    fake_farm.until(lambda: tagged([attempt_id]), "a renderer")
    agent.kill()
    agent.wait()
    go.touch()
    fake_farm.until(lambda: not tagged([attempt_id]), "its end")
    agents.start(BEST, "real")
    end = fake_farm.end_of(attempt_id)
    assert (end.outcome, end.exit_code) == (Outcome.JOB_ERROR, 3)


@services
@pytest.mark.parametrize("held", ALL)
def test_without_a_next_agent_the_host_ends_its_renderer_and_goes(
    held: Containment, agents: Agents, fake_farm: FakeFarm, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden"
    attempt_id, message = order("setsid", str(hidden), "ignore-term", "sleep", "600")
    agent = agents.start(held, "real", **SHORT)
    fake_farm.send_launch(message)
    fake_farm.until(hidden.exists, "a renderer that hides")
    assert len(tagged([attempt_id])) == 2
    agent.kill()
    agent.wait()
    fake_farm.until(lambda: not tagged([attempt_id]), "no renderer")


@services
@pytest.mark.faults
def test_an_exclusive_renderer_ends_within_the_fence_when_its_agent_hangs(
    agents: Agents, fake_farm: FakeFarm
) -> None:
    attempt_id, message = order("sleep", "600", isolation=Isolation.EXCLUSIVE)
    # A busy machine must not let the fence fall before the agent hangs.
    agent = agents.start(BEST, "real", **SHORT | {"fence_s": 5.0, "lease_s": 6.0})
    fake_farm.send_launch(message)
    fake_farm.until(lambda: tagged([attempt_id]), "a renderer")
    agent.send_signal(signal.SIGSTOP)
    try:
        fake_farm.until(lambda: not tagged([attempt_id]), "no renderer")
    finally:
        agent.send_signal(signal.SIGCONT)
    assert fake_farm.end_of(attempt_id).outcome is Outcome.NODE_LOST


@services
@pytest.mark.faults
def test_sigusr2_replaces_the_agent_in_place_under_running_renderers(
    agents: Agents, fake_farm: FakeFarm, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    attempt_id, message = order("wait-for", str(go), "say", "end")
    agent = agents.start(BEST, "real")
    fake_farm.send_launch(message)
    fake_farm.until(lambda: tagged([attempt_id]), "a renderer")
    before = tagged([attempt_id])
    agent.send_signal(signal.SIGUSR2)
    fake_farm.until(lambda: len({beat.session for beat in fake_farm.heartbeats}) == 2, "a new session")
    assert agent.poll() is None, "the same process"
    assert tagged([attempt_id]) == before
    go.touch()
    assert fake_farm.end_of(attempt_id).outcome is Outcome.SUCCEEDED
    agent.terminate()
    assert agent.wait(60) == 0


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"pid": 1, "started": 1.0, "boot": str(uuid.uuid4())}, "was rebooted"),
        ({"pid": 1, "started": 1.0, "boot": boot_id()}, "was restarted; its renderers died with it"),
        (None, "its agent was restarted before it had noted a start"),
    ],
)
def test_what_cannot_have_lived_on_is_reported_lost_at_once(
    entry: dict[str, object] | None, reason: str, tmp_path: Path
) -> None:
    settings = settings_in(tmp_path)
    (attempt_id,) = new_ids(1)
    records: list[dict[str, object]] = [{"received": attempt_id}]
    if entry is not None:
        records.append({"host": attempt_id, **entry})  # process 1 is another one by its start time
    (tmp_path / "journal").write_text("".join(json.dumps(record) + "\n" for record in records))
    with closing(FakeFarm(settings.broker_url, settings.node_name)) as farm:
        handle = start_agent(settings, capabilities=MACHINE)
        try:
            end = farm.end_of(attempt_id)
        finally:
            handle.stop()
    assert end.outcome is Outcome.NODE_LOST
    assert reason in end.reason
