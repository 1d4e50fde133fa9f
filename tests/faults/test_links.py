"""Links between parts of a real farm that are cut, held in one direction, or slow (F20, F21, F23)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tests.e2e.farm_under_test import HURRY, ON_A_NODE
from tests.e2e.marked_jobs import MarkedJob
from tests.e2e.services import PrivatePostgres, PrivateRabbit
from tests.faults.conftest import BreakableFarm
from tests.waiting import wait_until
from tests.workers.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.faults, pytest.mark.services, pytest.mark.e2e]
NewJob = Callable[[int], MarkedJob]
Link = Callable[[str, str], TcpProxy]

FRAMES = 16


@pytest.fixture
def link(farm: BreakableFarm, rabbit: PrivateRabbit, postgres: PrivatePostgres) -> Iterator[Link]:
    """(process, "broker" or "database") -> the only way by which it gets there."""
    with ExitStack() as open_proxies:

        def make(name: str, to: str) -> TcpProxy:
            port = rabbit.port if to == "broker" else postgres.port
            url = farm.broker_url if to == "broker" else farm.database_url
            proxy = open_proxies.enter_context(closing(TcpProxy("127.0.0.1", port)))
            ways = farm.broker_of if to == "broker" else farm.database_of
            ways[name] = url.replace(f":{port}/", f":{proxy.port}/")
            return proxy

        yield make


@pytest.mark.parametrize("direction", ["out", "back"])
def test_f20_a_node_is_cut_off_in_one_direction(
    farm: BreakableFarm, new_job: NewJob, link: Link, direction: str
) -> None:
    """It can hear and not speak, or speak and not hear, for longer than its lease."""
    proxy = link("agent0", "broker")
    farm.start_all(agents=2)
    node = f"agent0-{farm.port}"
    job = new_job(FRAMES).submit("seconds", "1")
    job.wait_until_running_on(node)
    proxy.hold(out=direction == "out", back=direction == "back")
    # One that cannot hear gives its connection up, and finds no other.
    wait_until(lambda: node not in farm.nodes_online(), "a silent node", timeout_s=60)
    proxy.mend()
    job.check_done(most_starts=FRAMES + 2 * ON_A_NODE, timeout_s=120)
    wait_until(lambda: node in farm.nodes_online(), "the node is back", timeout_s=60)


@pytest.mark.parametrize("to", ["broker", "database"])
@pytest.mark.parametrize("name", ["server", "scheduler0"])
def test_f21_one_part_is_cut_off_from_one_service(
    farm: BreakableFarm, new_job: NewJob, link: Link, name: str, to: str
) -> None:
    """For longer than leases last: nothing is started again, since nobody's silence proved anything."""
    proxy = link(name, to)
    farm.start_all(agents=2)
    job = new_job(FRAMES).submit("seconds", "1")
    job.wait_until_running_on(f"agent0-{farm.port}")
    proxy.cut()
    time.sleep(2 * float(HURRY["FARM_LEASE_S"]))
    proxy.mend()
    job.check_done(most_starts=FRAMES, timeout_s=120)


def test_f23_a_slow_link_costs_no_lease(farm: BreakableFarm, new_job: NewJob, link: Link) -> None:
    """0.1 to 0.3 s each way, between node and broker and between scheduler and broker."""
    slow = [link("agent0", "broker"), link("scheduler0", "broker")]
    farm.start_all(agents=2)
    for proxy in slow:
        proxy.late_s = (0.1, 0.3)
    job = new_job(FRAMES).submit("seconds", "1")
    job.check_done(most_starts=FRAMES, timeout_s=120)
