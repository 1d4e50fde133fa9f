"""Long outages and upgrades at the default times: nothing restarts, somebody leads, nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from farm.trouble import MOST_TEXTS
from tests.e2e.farm_under_test import FarmUnderTest
from tests.e2e.marked_jobs import MarkedJob
from tests.e2e.services import PrivatePostgres, PrivateRabbit, free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.faults]

AGENTS = 2
OUTAGE_S = float(os.environ.get("FARM_TEST_OUTAGE_S", "600"))
RUNNING = int(os.environ.get("FARM_TEST_OUTAGE_TASKS", "50"))
PATIENCE_S = OUTAGE_S / 5
"""What waits for stalls, in the proportion of the default, 120 s, to the ten minutes."""
TAKEOVER_S = 12.0
"""As docs/guarantees.md says."""
RESTART_S = 10.0
SERVICE_BACK_S = 10.0
AGENT_GONE_S = 35.0
SLACK_S = 5.0
"""For a machine that does other things at the same time."""

Farms = Callable[..., FarmUnderTest]


@pytest.fixture
def farms(tmp_path: Path, rabbit: PrivateRabbit, postgres: PrivatePostgres) -> Iterator[Farms]:
    made: list[FarmUnderTest] = []

    def make(*, variables: dict[str, str] | None = None, **how: int) -> FarmUnderTest:
        folder = tmp_path / "farm"
        folder.mkdir()
        farm = FarmUnderTest(
            folder,
            postgres.add_database(),
            rabbit.add_vhost(),
            extra={"FARM_DRAIN_GRACE_S": "1", "FARM_STALL_AFTER_S": str(PATIENCE_S), **(variables or {})},
        )
        made.append(farm)
        farm.start_all(**how)
        return farm

    yield make
    for farm in made:
        farm.stop_all()


@pytest.mark.timeout(1500)
def test_a_long_outage_of_the_broker_restarts_nothing(
    farms: Farms, rabbit: PrivateRabbit, tmp_path: Path
) -> None:
    farm = farms(agents=AGENTS, slots=RUNNING // AGENTS)
    seconds = OUTAGE_S + 60
    job = MarkedJob(farm, tmp_path / "frames", RUNNING)
    job.submit("seconds", str(seconds), "busy", str(PATIENCE_S / 4))
    wait_until(lambda: len(job.renderers()) >= RUNNING, "that all run", timeout_s=300)
    rabbit.kill()
    before = {process.pid for process in job.renderers()}
    time.sleep(OUTAGE_S)
    assert {process.pid for process in job.renderers()} == before, "a renderer ended in the outage"
    for name in farm.processes:
        told = farm.log(name).count("cannot be reached")
        assert told <= max(OUTAGE_S / 10, 2 * MOST_TEXTS), f"{name} fills its log"
    rabbit.start()
    assert farm.wait_for_job(job.id, timeout_s=seconds + 200) == "done"
    others = [f"{a['state']}: {a['reason']}" for a in farm.attempts(job.id) if a["state"] != "succeeded"]
    assert others == [], "something was started again"
    job.check_done(most_starts=RUNNING)


@pytest.mark.timed
def test_a_scheduler_takes_over_and_servers_stand_in_for_each_other(farms: Farms, tmp_path: Path) -> None:
    farm = farms(agents=1, schedulers=2)
    job = MarkedJob(farm, tmp_path / "frames", 8).submit("seconds", "1.5")
    farm.wait_for_done(job.id, 1)

    killed = farm.leader()
    started = time.monotonic()
    farm.kill(killed)
    farm.leader(but=killed)
    took_s = time.monotonic() - started
    print(f"a killed leader was replaced within {took_s:.1f} s")
    assert took_s <= TAKEOVER_S + SLACK_S
    farm.start_again(killed)
    wait_until(lambda: "standing by" in farm.log(killed), "a standby")

    # One that is asked to stop lets the next one lead at once.
    stopped = farm.leader()
    started = time.monotonic()
    farm.kill(stopped, signal.SIGTERM)
    farm.leader(but=stopped)
    assert time.monotonic() - started < SLACK_S
    assert farm.processes[stopped].wait(30) == 0
    job.check_done(most_starts=8)


def test_a_second_server_answers_while_the_first_one_is_stopped(farms: Farms) -> None:
    farm = farms(agents=1)
    token = farm.get("/farm") and (farm.folder / "server" / "client.json").read_text()
    assert token
    port = free_port()
    first, farm.port = farm.port, port
    farm.start("server2", "serve")
    farm.port = first

    def answers(port: int) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    wait_until(lambda: answers(port), "the second server")
    farm.kill("server", signal.SIGTERM)
    assert farm.processes["server"].wait(30) == 0, "it ends when asked"
    assert answers(port)
    farm.port = port
    assert farm.get("/farm")["nodes_online"] == 1, "the same token, the same farm"


@pytest.mark.timed
def test_a_restarted_agent_costs_no_start(farms: Farms, tmp_path: Path) -> None:
    farm = farms(agents=1)
    job = MarkedJob(farm, tmp_path / "frames", 2).submit("seconds", "12")
    node = f"agent0-{farm.port}"
    job.wait_until_running_on(node)
    wait_until(job.renderers, "a renderer")
    before = {process.pid for process in job.renderers()}
    started = time.monotonic()
    farm.kill("agent0")
    farm.start_again("agent0")
    wait_until(lambda: "took over" in farm.log("agent0"), "that it goes on")
    took_s = time.monotonic() - started
    print(f"a killed agent was back with its renderer after {took_s:.1f} s")
    assert {process.pid for process in job.renderers()} == before
    assert took_s <= RESTART_S + SLACK_S
    job.check_done(most_starts=3)  # one may have waited in the agent, and is given out again


def test_an_agent_takes_its_renderer_over_before_it_asks_what_else_is_here(
    farms: Farms, tmp_path: Path
) -> None:
    """To ask takes longer than all the rest on a busy machine, and here it does not end at all."""
    programs, asked, may_answer = tmp_path / "bin", tmp_path / "asked", tmp_path / "may-answer"
    programs.mkdir()
    povray = programs / "povray"
    povray.write_text("#!/bin/sh\necho POV-Ray 3.7.0\n")
    povray.chmod(0o755)
    farm = farms(agents=1, variables={"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"})
    node = f"agent0-{farm.port}"

    def version() -> str:
        return str(farm.get(f"/nodes/{node}")["capabilities"]["software"]["povray"])

    assert version() == "3.7.0"
    job = MarkedJob(farm, tmp_path / "frames", 1).submit("seconds", "20")
    job.wait_until_running_on(node)
    wait_until(job.renderers, "a renderer")
    povray.write_text(
        f"#!/bin/sh\ntouch {asked}\nuntil [ -e {may_answer} ]; do sleep 0.1; done\necho POV-Ray 3.8.0\n"
    )
    farm.kill("agent0")
    farm.start_again("agent0")
    wait_until(lambda: "took over" in farm.log("agent0"), "that it goes on")
    wait_until(asked.exists, "it asks")
    assert version() == "3.7.0", "as it was"
    may_answer.touch()
    wait_until(lambda: version() == "3.8.0", "what is new")
    assert "is taken as absent" not in farm.log("agent0")
    job.check_done(most_starts=1)


@pytest.mark.timed
def test_work_goes_on_soon_after_a_service_is_back_and_when_an_agent_is_gone(
    farms: Farms, rabbit: PrivateRabbit, postgres: PrivatePostgres, tmp_path: Path
) -> None:
    farm = farms(agents=2)
    job = MarkedJob(farm, tmp_path / "frames", 300).submit("seconds", "1.5")
    farm.wait_for_done(job.id, 2)

    def starts_anew(since: float) -> bool:
        view = farm.try_get(f"/jobs/{job.id}/attempts", limit=1000)
        return view is not None and any(
            a["assigned_at"] > since and a["started_at"] is not None for a in view["items"]
        )

    services: tuple[PrivateRabbit | PrivatePostgres, ...] = (rabbit, postgres)
    for service in services:
        service.kill()
        time.sleep(8)  # so that all who try again do so at their longest intervals
        service.start()
        started, since = time.monotonic(), time.time()
        wait_until(lambda since=since: starts_anew(since), "a new start", timeout_s=120)  # type: ignore[misc]
        took_s = time.monotonic() - started
        print(f"{type(service).__name__}: something new was started {took_s:.1f} s after it was back")
        assert took_s <= SERVICE_BACK_S + SLACK_S

    node = f"agent0-{farm.port}"
    job.wait_until_running_on(node)
    farm.kill("agent0")
    started = time.monotonic()
    at_work = {a["task_id"] for a in farm.attempts(job.id) if a["state"] in ("assigned", "running")}
    at_work &= {a["task_id"] for a in farm.attempts(job.id) if a["node_id"] == node}

    def has_moved() -> bool:
        later = [a for a in farm.attempts(job.id) if a["task_id"] in at_work and a["node_id"] != node]
        return any(a["started_at"] is not None for a in later)

    wait_until(has_moved, "its task is started elsewhere", timeout_s=120)
    took_s = time.monotonic() - started
    print(f"a task of an agent that was killed for good was started elsewhere {took_s:.1f} s later")
    assert took_s <= AGENT_GONE_S + SLACK_S
    farm.farm("cancel", str(job.id))
    assert farm.wait_for_job(job.id) == "cancelled"
