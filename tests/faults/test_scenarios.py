"""Faults of real processes, by their number in docs/guarantees.md. Checks read rows, files and processes."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from kombu import Connection

from farm.wire import queues as names
from tests.e2e.farm_under_test import ON_A_NODE, processes_with
from tests.e2e.marked_jobs import MarkedJob
from tests.e2e.services import PrivatePostgres, PrivateRabbit
from tests.faults.conftest import BreakableFarm
from tests.waiting import wait_until
from tests.workers.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.faults, pytest.mark.services, pytest.mark.e2e]
NewJob = Callable[[int], MarkedJob]

FRAMES = 16


def died(farm: BreakableFarm, name: str) -> bool:
    return farm.processes[name].poll() is not None


# --- F07, F08: the leader dies or stops at each boundary of a round ------------------------------------


def start_with_leader(farm: BreakableFarm, failpoint: str) -> None:
    """A farm of two agents whose leader, `breaks`, meets this failpoint; nobody stands by yet."""
    farm.start_all(agents=2)
    farm.kill("scheduler0", signal.SIGTERM)
    farm.processes["scheduler0"].wait(60)
    farm.failpoints["breaks"] = failpoint
    farm.start("breaks", "scheduler")
    wait_until(lambda: "leading" in farm.log("breaks"), "a leader that will break", timeout_s=60)


@pytest.mark.parametrize(
    "failpoint",
    [
        "scheduler.taken=kill@15",
        "scheduler.settled=kill@15",
        "scheduler.acknowledged=kill@15",
        "scheduler.matched=kill@3",
        "scheduler.leased=kill@3",
        "scheduler.sending=kill@15",
        "scheduler.sent=kill@15",
    ],
)
def test_f08_the_leader_is_killed_between_two_steps(
    farm: BreakableFarm, new_job: NewJob, failpoint: str
) -> None:
    start_with_leader(farm, failpoint)
    farm.start("standby", "scheduler")
    job = new_job(FRAMES).submit()
    wait_until(lambda: died(farm, "breaks"), f"a scheduler killed by {failpoint}", timeout_s=90)
    assert ": kill" in farm.log("breaks")
    job.check_done(most_starts=FRAMES + ON_A_NODE, timeout_s=120)


@pytest.mark.parametrize(
    "failpoint", ["scheduler.settled=stop@15", "scheduler.matched=stop@3", "scheduler.sending=stop@15"]
)
def test_f07_the_leader_sleeps_beyond_its_lease(farm: BreakableFarm, new_job: NewJob, failpoint: str) -> None:
    """It wakes between having read and writing, when another one leads: it writes nothing."""
    start_with_leader(farm, failpoint)
    job = new_job(FRAMES).submit()
    leader = psutil.Process(farm.processes["breaks"].pid)
    wait_until(lambda: leader.status() == psutil.STATUS_STOPPED, "a stopped leader", timeout_s=90)
    farm.start("standby", "scheduler")
    wait_until(lambda: "leading" in farm.log("standby"), "another leader", timeout_s=90)
    leader.resume()
    job.check_done(most_starts=FRAMES + ON_A_NODE, timeout_s=120)
    assert "no longer lead" in farm.log("breaks")


# --- F02, F40: agents die between two steps ------------------------------------------------------------


@pytest.mark.parametrize("place", ["agent.launch-taken", "agent.writing", "agent.written", "agent.reported"])
def test_f02_an_agent_is_killed_between_two_steps(farm: BreakableFarm, new_job: NewJob, place: str) -> None:
    farm.failpoints["agent0"] = f"{place}=kill@5"
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit()
    wait_until(lambda: died(farm, "agent0"), f"an agent killed at {place}", timeout_s=60)
    del farm.failpoints["agent0"]
    farm.start_again("agent0")
    job.check_done(most_starts=FRAMES + ON_A_NODE)


# --- I9: a submit that was answered, or not ------------------------------------------------------------


@pytest.mark.parametrize("place", ["desk.submitting", "desk.submitted"])
def test_i9_a_submit_that_got_no_answer_is_asked_again(farm: BreakableFarm, place: str) -> None:
    """Killed before or after the commit: with the same key there is one job in the end."""
    farm.failpoints["server"] = f"{place}=kill@1"
    farm.start_all(agents=1)
    told = json.loads((farm.folder / "server" / "client.json").read_text())
    template = {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "t",
        "steps": [{"name": "run", "script": {"actions": {"onRun": {"command": "true"}}}}],
    }

    def ask() -> httpx.Response:
        return httpx.post(
            f"http://127.0.0.1:{farm.port}/api/v1/jobs",
            json={"name": "once", "template": template},
            headers={"Authorization": f"Bearer {told['token']}", "Idempotency-Key": "k1"},
            timeout=30,
        )

    with pytest.raises(httpx.HTTPError):
        ask()
    wait_until(lambda: died(farm, "server"), "a killed server")
    del farm.failpoints["server"]
    farm.start_again("server")
    wait_until(lambda: farm.try_get("/jobs") is not None, "the server again", timeout_s=60)
    assert len(farm.get("/jobs")["items"]) == (1 if place == "desk.submitted" else 0)
    answer = ask()
    assert answer.status_code == (200 if place == "desk.submitted" else 201), answer.text
    (job,) = farm.get("/jobs")["items"]
    assert farm.wait_for_job(job["job"]["id"]) == "done"


# --- F10 to F12, F24 to F26: the broker ----------------------------------------------------------------


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def below(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def test_f11_the_broker_hangs(farm: BreakableFarm, new_job: NewJob, rabbit: PrivateRabbit) -> None:
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit()
    farm.wait_for_done(job.id, 2)
    assert rabbit.process is not None
    with stopped(below(rabbit.process.pid)):
        time.sleep(12)  # longer than its clients' heartbeats: they must take it for dead
    job.check_done(most_starts=FRAMES + 2 * ON_A_NODE, timeout_s=120)


def test_f12_the_broker_forgets_everything(
    farm: BreakableFarm, new_job: NewJob, rabbit: PrivateRabbit
) -> None:
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit()
    farm.wait_for_done(job.id, 2)
    with Connection(farm.broker_url) as connection:
        channel = connection.channel()
        nodes = [node["id"] for node in farm.get("/nodes")["items"]]
        for queue in (names.REPORTS, names.HEARTBEATS, *map(names.launch_queue, nodes)):
            channel.queue_delete(queue)
    # Consumers whose queue is gone are told so, and come again.
    rabbit.kill()
    rabbit.start()
    job.check_done(most_starts=FRAMES + 2 * ON_A_NODE, timeout_s=120)


def test_f25_nonsense_in_the_queues_stops_nothing(
    farm: BreakableFarm, new_job: NewJob, draw: random.Random
) -> None:
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit()
    nodes = [node["id"] for node in farm.get("/nodes")["items"]]
    queues = [names.REPORTS, names.HEARTBEATS, names.TELEMETRY, *map(names.launch_queue, nodes)]
    queues += map(names.control_queue, nodes)
    bodies = [
        b"", b"{", b"null", b"[]", b'{"kind": "later"}', b'{"kind": "reports"}', bytes(range(256)),
        b'{"kind": "heartbeat", "node_id": "' + b"x" * 100_000 + b'"}',
    ]  # fmt: skip
    with Connection(farm.broker_url) as connection:
        producer = connection.Producer()
        for _ in range(60):
            queue = draw.choice(queues)
            producer.publish(
                draw.choice(bodies),
                routing_key=queue,
                exchange="" if names.is_of_node(queue) else names.EXCHANGE,
                content_type=draw.choice(("application/json", "text/plain", "application/x-nothing")),
                content_encoding="utf-8",
            )
    job.check_done(most_starts=FRAMES + ON_A_NODE, timeout_s=120)
    assert not [name for name in farm.processes if died(farm, name)]


# --- F15, F16: the database ----------------------------------------------------------------------------


def test_f16_the_database_hangs(farm: BreakableFarm, new_job: NewJob, postgres: PrivatePostgres) -> None:
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit()
    farm.wait_for_done(job.id, 2)
    assert postgres.process is not None
    with stopped(below(postgres.process.pid)):
        time.sleep(8)
    job.check_done(most_starts=FRAMES + 2 * ON_A_NODE, timeout_s=120)


# --- F19, F22: the network -----------------------------------------------------------------------------


@pytest.fixture
def proxied(farm: BreakableFarm, rabbit: PrivateRabbit) -> Iterator[TcpProxy]:
    """agent0 speaks to the broker through it."""
    proxy = TcpProxy("127.0.0.1", rabbit.port)
    farm.broker_of["agent0"] = farm.broker_url.replace(f":{rabbit.port}/", f":{proxy.port}/")
    yield proxy
    proxy.close()


def test_f19_a_node_is_cut_off_beyond_its_lease(
    farm: BreakableFarm, new_job: NewJob, proxied: TcpProxy
) -> None:
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit("seconds", "1")
    job.wait_until_running_on(f"agent0-{farm.port}")
    proxied.cut()
    node = f"agent0-{farm.port}"
    wait_until(lambda: node not in farm.nodes_online(), "a silent node", timeout_s=60)
    proxied.mend()
    job.check_done(most_starts=FRAMES + 2 * ON_A_NODE, timeout_s=120)
    wait_until(lambda: node in farm.nodes_online(), "the node is back", timeout_s=60)


def test_f22_a_link_flaps(
    farm: BreakableFarm, new_job: NewJob, proxied: TcpProxy, draw: random.Random
) -> None:
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit("seconds", "1")
    for _ in range(6):
        time.sleep(draw.uniform(0.5, 1.5))
        proxied.cut()
        time.sleep(draw.uniform(0.2, 1.0))
        proxied.mend()
    job.check_done(most_starts=FRAMES * 2, timeout_s=120)


# --- F36, F40: people ----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", range(4))
def test_f40_a_cancel_at_any_moment_leaves_whole_files_or_none(
    farm: BreakableFarm, new_job: NewJob, draw: random.Random, moment: int
) -> None:
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit()
    time.sleep(draw.uniform(0.0, 2.5))
    farm.farm("cancel", str(job.id))
    farm.wait_for_job(job.id)
    done = [task for task in job.tasks() if task["state"] == "done"]
    assert {task["state"] for task in job.tasks()} <= {"done", "cancelled"}
    job.check_nothing_left(len(done))
    assert not processes_with(str(job.output))


def test_f36_an_agent_is_drained_under_work(farm: BreakableFarm, new_job: NewJob) -> None:
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit("seconds", "1")
    job.wait_until_running_on(f"agent0-{farm.port}")
    farm.kill("agent0", signal.SIGTERM)
    assert farm.processes["agent0"].wait(60) == 0
    assert not Path(f"/proc/{farm.processes['agent0'].pid}/stat").exists()
    job.check_done(most_starts=FRAMES + ON_A_NODE, timeout_s=120)


# --- many at once --------------------------------------------------------------------------------------


@pytest.mark.timeout(1800)
def test_two_hundred_kills_in_one_job(farm: BreakableFarm, new_job: NewJob, draw: random.Random) -> None:
    """Any process of the farm, again and again: each frame done once, nothing left, few renders in vain."""
    frames, kills = 400, 200
    farm.start_all(agents=4, schedulers=2)
    job = new_job(frames).submit("seconds", "1.5")
    farm.wait_for_done(job.id, 2)
    victims = [name for name in farm.processes if name != "server"]
    for number in range(kills):
        if number % 20 == 0:
            print(f"{number} kills", flush=True)
        name = draw.choice(victims)
        farm.kill(name)
        farm.start_again(name)
        time.sleep(draw.uniform(0.2, 1.0))
    job.check_done(most_starts=frames * 11 // 10, timeout_s=900)
    starts = sum(task["starts"] for task in job.tasks())
    print(f"{kills} kills, {starts / frames:.3f} renders for each of {frames} frames")
