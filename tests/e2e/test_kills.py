"""`kill -9` of every part of the farm in the middle of a job, on RabbitMQ and PostgreSQL.

One farm for all: each test puts right first what the one before has broken.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.farm_under_test import HURRY, ON_A_NODE, FarmUnderTest, processes_with
from tests.e2e.marked_jobs import MarkedJob
from tests.e2e.marked_renderer import whose
from tests.e2e.services import PrivatePostgres, PrivateRabbit
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.e2e]

AGENTS = 3
FRAMES = 30


@pytest.fixture(scope="module")
def whole_farm(
    tmp_path_factory: pytest.TempPathFactory, rabbit: PrivateRabbit, postgres: PrivatePostgres
) -> Iterator[FarmUnderTest]:
    farm = FarmUnderTest(
        tmp_path_factory.mktemp("farm"), postgres.add_database(), rabbit.add_vhost(), extra=HURRY
    )
    try:
        farm.start_all(agents=AGENTS)
        yield farm
    finally:
        farm.stop_all()


@pytest.fixture
def farm(whole_farm: FarmUnderTest) -> FarmUnderTest:
    for name, process in list(whole_farm.processes.items()):
        if process.poll() is not None:
            whole_farm.start_again(name)
    wait_until(lambda: len(whole_farm.nodes_online()) == AGENTS, "agents online", timeout_s=60)
    return whole_farm


@pytest.fixture
def new_job(farm: FarmUnderTest, tmp_path: Path) -> Callable[[], MarkedJob]:
    return lambda: MarkedJob(farm, tmp_path / "frames", FRAMES)


@pytest.fixture
def job(new_job: Callable[[], MarkedJob]) -> MarkedJob:
    """In the middle: some frames are done, some run."""
    job = new_job().submit()
    job.farm.wait_for_done(job.id, 3)
    return job


def node(farm: FarmUnderTest, name: str) -> str:
    return f"{name}-{farm.port}"


def session_hosts(farm: FarmUnderTest, name: str) -> list[psutil.Process]:
    below = psutil.Process(farm.processes[name].pid).children(recursive=True)
    hosts = []
    for process in below:
        try:
            if process.name().startswith("python") and "workers.session_host" in process.cmdline():
                hosts.append(process)
        except psutil.NoSuchProcess:
            continue
    return hosts


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_without_any_fault_each_frame_is_started_once(job: MarkedJob) -> None:
    job.check_done(most_starts=FRAMES)


def test_a_killed_agent_that_comes_back(job: MarkedJob) -> None:
    farm = job.farm
    job.wait_until_running_on(node(farm, "agent0"))
    farm.kill("agent0")
    farm.start_again("agent0")
    job.check_done(most_starts=FRAMES + ON_A_NODE)


def test_a_killed_agent_that_never_comes_back(job: MarkedJob) -> None:
    farm = job.farm
    job.wait_until_running_on(node(farm, "agent0"))
    hosts = session_hosts(farm, "agent0")
    assert hosts
    farm.kill("agent0")
    job.check_done(most_starts=FRAMES + ON_A_NODE)
    # They wait for the next agent as long as the farm waits for the node.
    wait_until(lambda: not any(map(lives, hosts)), "no session host")
    # On a slow machine what ran there may have ended in the moment before the kill.
    lost = [a for a in farm.attempts(job.id) if a["state"] == "lost"]
    assert {a["node_id"] for a in lost} <= {node(farm, "agent0")}
    assert all("is silent" in a["reason"] for a in lost)


def test_an_agent_that_slept_beyond_its_lease(farm: FarmUnderTest, tmp_path: Path) -> None:
    # So long that what is seen running still runs when the agent falls asleep.
    job = MarkedJob(farm, tmp_path / "frames", 2 * AGENTS).submit("seconds", "5")
    job.wait_until_running_on(node(farm, "agent0"))
    farm.kill("agent0", signal.SIGSTOP)
    try:
        wait_until(
            lambda: [a["state"] for a in farm.attempts(job.id) if a["state"] == "lost"],
            "a lost attempt",
            timeout_s=60,
        )
    finally:
        farm.kill("agent0", signal.SIGCONT)
    job.check_done(most_starts=job.frames + ON_A_NODE)


def test_a_killed_scheduler_that_comes_back(job: MarkedJob) -> None:
    job.farm.kill("scheduler0")
    job.farm.start_again("scheduler0")
    job.check_done(most_starts=FRAMES)


def test_a_killed_scheduler_with_a_standby(new_job: Callable[[], MarkedJob]) -> None:
    job = new_job()
    farm = job.farm
    leader = farm.leader()
    farm.start("standby", "scheduler")
    wait_until(lambda: "standing by" in farm.log("standby"), "a standby")
    job.submit()
    farm.wait_for_done(job.id, 3)
    farm.kill(leader)
    job.check_done(most_starts=FRAMES)
    assert farm.leader(but=leader) == "standby"


def test_a_leader_that_slept_beyond_its_lease_steps_down(new_job: Callable[[], MarkedJob]) -> None:
    job = new_job()
    farm = job.farm
    if "standby" not in farm.commands:
        farm.start("standby", "scheduler")
    asleep = farm.leader()
    job.submit()
    farm.wait_for_done(job.id, 3)
    farm.kill(asleep, signal.SIGSTOP)
    try:
        farm.leader(but=asleep)
    finally:
        farm.kill(asleep, signal.SIGCONT)
    wait_until(lambda: "no longer leading" in farm.log(asleep), "that it steps down")
    job.check_done(most_starts=FRAMES + AGENTS * ON_A_NODE)


def test_a_killed_renderer(job: MarkedJob) -> None:
    def killed() -> bool:
        for renderer in job.renderers():
            with contextlib.suppress(psutil.NoSuchProcess):  # it had just ended: take another one
                renderer.kill()
                return True
        return False

    wait_until(killed, "a renderer to kill")
    farm = job.farm
    assert farm.wait_for_job(job.id) == "done"
    (failed,) = [a for a in farm.attempts(job.id) if a["state"] == "failed"]
    assert failed["exit_code"] == -signal.SIGKILL
    assert "was killed by SIGKILL" in failed["reason"]
    failures = {t["id"]: t["failures"] for t in job.tasks() if t["failures"]}
    assert failures == {failed["task_id"]: 1}, "a renderer that dies is the job's failure"
    job.check_nothing_left(FRAMES)


def test_a_killed_session_host(job: MarkedJob) -> None:
    farm = job.farm
    job.wait_until_running_on(node(farm, "agent0"))
    *_, host = session_hosts(farm, "agent0")  # the last one: before it comes process 1 of its namespace
    host.kill()
    job.check_done(most_starts=FRAMES + 2)


def test_a_killed_broker(job: MarkedJob, rabbit: PrivateRabbit) -> None:
    rabbit.kill()
    rabbit.start()
    job.check_done(most_starts=FRAMES + AGENTS * ON_A_NODE)


def test_a_killed_database(job: MarkedJob, postgres: PrivatePostgres) -> None:
    postgres.kill()
    assert job.farm.try_get(f"/jobs/{job.id}") is None
    postgres.start()
    job.check_done(most_starts=FRAMES)


def test_a_killed_server(job: MarkedJob) -> None:
    job.farm.kill("server")
    job.farm.start_again("server")
    job.check_done(most_starts=FRAMES)


def test_a_power_cut_after_which_the_servers_come_up_last(
    job: MarkedJob, rabbit: PrivateRabbit, postgres: PrivatePostgres
) -> None:
    farm = job.farm
    for name in farm.commands:
        farm.kill(name)
    rabbit.kill()
    postgres.kill()
    for name in farm.commands:
        farm.start_again(name)
    waits = ("server", "scheduler0", "agent0")
    said = {name: len(farm.log(name)) for name in waits}
    wait_until(lambda: all("again" in farm.log(n)[said[n] :] for n in waits), "all wait for the servers")
    postgres.start()
    rabbit.start()
    job.check_done(most_starts=FRAMES + AGENTS * ON_A_NODE)


def test_a_cancelled_job_leaves_no_process_and_no_half_file(
    new_job: Callable[[], MarkedJob], tmp_path: Path
) -> None:
    job = new_job().submit("seconds", "60", "hide", str(tmp_path / "{frame}.pid"))
    farm = job.farm
    wait_until(lambda: len(list(tmp_path.glob("*.pid"))) == AGENTS, "a hidden process for each renderer")
    assert len(job.renderers()) >= 2 * AGENTS
    farm.farm("cancel", str(job.id))
    assert farm.wait_for_job(job.id) == "cancelled"
    job.check_nothing_left(0)
    assert not processes_with(str(tmp_path))
    states = {t["state"] for t in job.tasks()}
    assert states == {"cancelled"}


def test_a_job_that_is_cancelled_in_the_middle_has_whole_files_or_none(job: MarkedJob) -> None:
    farm = job.farm
    farm.farm("cancel", str(job.id))
    assert farm.wait_for_job(job.id) == "cancelled"
    accepted = {a["task_id"]: a for a in farm.attempts(job.id) if a["state"] == "succeeded"}
    done = [t["id"] for t in job.tasks() if t["state"] == "done"]
    assert sorted(accepted) == sorted(done)
    for attempt in accepted.values():
        assert whose(Path(attempt["files"][0]["path"])) == attempt["id"]
    job.check_nothing_left(len(done))


def submit_exclusive(farm: FarmUnderTest, file: Path) -> int:
    """One task, which works once `go` is there; {output} is not used, so that nothing is staged."""
    go = file.with_suffix(".go")
    script = f'until [ -e "{go}" ]; do sleep 0.1; done; echo $FARM_ATTEMPT_ID >> "{file}"'
    return farm.submit("--", "sh", "-c", script)


def running_on(farm: FarmUnderTest, job_id: int) -> str:
    """The name of the agent that runs the job's only task."""

    def look() -> str:
        running = farm.get(f"/jobs/{job_id}/attempts", state="running")["items"]
        return running[0]["node_id"].split("-")[0] if running else ""

    return str(wait_until(look, f"job {job_id} runs"))


def test_an_exclusive_command_of_a_dead_node_is_held_until_a_person_decides(
    farm: FarmUnderTest, tmp_path: Path
) -> None:
    file = tmp_path / "told"
    job_id = submit_exclusive(farm, file)
    name = running_on(farm, job_id)
    farm.kill(name)
    wait_until(lambda: farm.job(job_id)["counts"]["held"] == 1, "a held task")
    (task,) = farm.get(f"/jobs/{job_id}/tasks")["items"]
    assert "farm release" in task["reason"]
    file.with_suffix(".go").touch()
    farm.farm("release", str(job_id))
    assert farm.wait_for_job(job_id) == "done"
    (accepted,) = [a for a in farm.attempts(job_id) if a["state"] == "succeeded"]
    assert file.read_text().split() == [accepted["id"]]
    assert accepted["node_id"] != node(farm, name)


def test_an_exclusive_command_runs_again_when_its_agent_comes_back(
    farm: FarmUnderTest, tmp_path: Path
) -> None:
    file = tmp_path / "told"
    job_id = submit_exclusive(farm, file)
    name = running_on(farm, job_id)
    farm.kill(name)
    wait_until(lambda: farm.job(job_id)["counts"]["held"] == 1, "a held task")
    file.with_suffix(".go").touch()
    farm.start_again(name)
    assert farm.wait_for_job(job_id) == "done"
    (accepted,) = [a for a in farm.attempts(job_id) if a["state"] == "succeeded"]
    assert file.read_text().split() == [accepted["id"]]
    (task,) = farm.get(f"/jobs/{job_id}/tasks")["items"]
    assert (task["starts"], task["failures"]) == (2, 0)


def test_a_licence_limit_holds_over_all_agents_and_a_change_of_leader(
    farm: FarmUnderTest, tmp_path: Path
) -> None:
    """Told by the renderers themselves: each says when it begins and ends, in one file."""
    if "standby" not in farm.commands:
        farm.start("standby", "scheduler")
    farm.farm("limits", "set", "arnold", "2")
    said = tmp_path / "said"
    (tmp_path / "out").mkdir()
    script = f"echo begin >> {said}; sleep 0.3; echo end >> {said}; echo whole > {{output}}"
    where = ("--frames", "1-9", "--output", str(tmp_path / "out" / "####.dat"))
    job_id = farm.submit(*where, "--limit", "arnold", "--", "/bin/sh", "-c", script)
    farm.wait_for_done(job_id, 2)
    [limit] = json.loads(farm.farm("limits", "--json"))
    assert (limit["amount"], limit["per"]) == (2, "task")
    assert limit["used"] <= 2
    farm.kill(farm.leader())
    assert farm.wait_for_job(job_id) == "done"
    at_once = most = 0
    for word in said.read_text().split():
        at_once += 1 if word == "begin" else -1
        most = max(most, at_once)
    assert 1 <= most <= 2
    assert [task["failures"] for task in farm.get(f"/jobs/{job_id}/tasks")["items"]] == [0] * 9
    farm.farm("limits", "remove", "arnold")
