"""What the broker lets a node's own account do: its own queues, and the farm's exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from amqp.exceptions import AccessRefused
from kombu import Connection

from farm.broker.accounts import Accounts
from farm.broker.intake import Intake
from farm.broker.publisher import BROKER_ERRORS, Publisher
from farm.broker.queues import farm_queues, node_launch_queue
from farm.errors import Unavailable
from farm.flow.joining import node_broker_url
from farm.model.ids import JobId, NodeId
from farm.settings import Settings
from farm.wire import queues
from farm.wire.messages import Launch, SayHello, StepScript, dump
from tests.e2e.services import RABBITMQ, PrivateRabbit, free_port
from tests.waiting import wait_until
from workers.celery_worker import CeleryWorker

pytestmark = pytest.mark.services
NODE = NodeId("blade.7")
PASSWORD = "of/blade@7"


@pytest.fixture
def farm_url(rabbitmq: str) -> str:
    if RABBITMQ:
        pytest.skip("the machine's rabbitmqctl does not know the server of the release that is being tried")
    return rabbitmq


@pytest.fixture
def node_url(farm_url: str) -> Iterator[str]:
    accounts = Accounts(farm_url)
    accounts.put(NODE, "another one first")
    accounts.put(NODE, PASSWORD)
    yield node_broker_url(farm_url, node_id=NODE, password=PASSWORD, host="127.0.0.1")
    accounts.remove(NODE)
    accounts.remove(NODE)  # which is not there: fine


def test_a_node_hears_the_farm_and_the_farm_hears_it(farm_url: str, node_url: str) -> None:
    heard: list[Any] = []
    told: list[bytes] = []
    worker = CeleryWorker(
        Settings(broker_url=node_url, node_name=NODE),
        on_launch=heard.append,
        on_control=heard.append,
        on_unreadable=lambda *parts: heard.append(parts),
        on_connected=lambda: heard.append("connected"),
    )
    script = StepScript(
        job_id=JobId(1), job_uid="u", job_name="shot", step="Render", kind="x", template={}, parameters={}
    )
    launch = Launch(script=script, orders=())
    with closing(Intake(farm_url, farm_queues(), prefetch=10)) as farm, closing(Publisher(farm_url)) as says:
        farm.drain(0.01, 1)
        worker.start()
        try:
            with closing(Publisher(node_url)) as node:
                node.publish(queues.REPORTS, b'{"n": 1}', persistent=True)
                node.flush(5)

                def has_told() -> bool:
                    told.extend(farm.drain(0.1, 10))
                    return bool(told)

                wait_until(has_told, "the node's report")
                assert not node.unroutable

            def is_sent() -> bool:
                says.unroutable.clear()
                says.publish(queues.control_queue(NODE), dump(SayHello()), persistent=False)
                says.publish(
                    queues.launch_queue(NODE),
                    dump(launch),
                    persistent=False,
                    celery_task=queues.LAUNCH_HANDLER,
                )
                says.flush(5)
                return not says.unroutable

            wait_until(is_sent, "the node's queues are there")
            wait_until(lambda: SayHello() in heard and launch in heard, "both")
        finally:
            worker.ask_to_stop()
            worker.join(10)
    assert told == [b'{"n": 1}']


def _refused(node_url: str, act: Callable[[Any], object]) -> None:
    with Connection(node_url, connect_timeout=5) as connection, pytest.raises(AccessRefused):
        act(connection.channel())


def test_a_node_can_neither_listen_to_others_nor_speak_to_them(farm_url: str, node_url: str) -> None:
    other = node_launch_queue(NodeId("other"))
    with closing(Intake(farm_url, farm_queues(), prefetch=10)) as farm, Connection(farm_url) as own:
        farm.drain(0.01, 1)
        other(own.channel()).declare()
        with Connection(node_url) as connection:
            node_launch_queue(NODE)(connection.channel()).declare()
        _refused(node_url, lambda channel: channel.basic_consume(other.name))
        _refused(node_url, lambda channel: channel.basic_get(queues.REPORTS))
        _refused(node_url, lambda channel: channel.queue_delete(other.name))
        _refused(node_url, lambda channel: channel.exchange_delete(queues.EXCHANGE))
        _refused(
            node_url, lambda channel: channel.queue_bind(queues.launch_queue(NODE), queues.EXCHANGE, "x")
        )
        with closing(Publisher(node_url)) as node:
            node.publish(other.name, b"{}", persistent=True)
            with pytest.raises(Unavailable, match="ACCESS_REFUSED"):
                node.flush(5)
        with Connection(node_url) as connection:
            # By the farm's exchange no queue of a node can be reached, whatever the routing key says.
            channel = connection.channel()
            returned: list[str] = []
            channel.events["basic_return"].add(lambda *parts: returned.append(parts[2]))
            connection.Producer(channel).publish(
                {}, exchange=queues.EXCHANGE, routing_key=other.name, mandatory=True
            )
            wait_until(lambda: returned or connection.drain_events(timeout=1), "it comes back")
            assert returned == [other.name]


def test_without_its_account_a_node_is_out(farm_url: str, node_url: str) -> None:
    _is_out_without(Accounts(farm_url), node_url)


def _is_out_without(accounts: Accounts, node_url: str) -> None:
    connection = Connection(node_url, connect_timeout=5)
    connected = connection.connect()  # kombu's own would connect again by itself
    accounts.remove(NODE)

    def is_out() -> bool:
        try:
            connected.drain_events(timeout=0.2)
        except TimeoutError:
            return False
        except BROKER_ERRORS:
            return True
        return False

    wait_until(is_out, "the broker closes its connection")
    connection.collect(socket_timeout=1)
    with pytest.raises(BROKER_ERRORS, match="ACCESS_REFUSED"):
        Connection(node_url, connect_timeout=5).connect()


def test_a_broker_elsewhere_is_not_asked_by_this_machine_s_program() -> None:
    accounts = Accounts("amqp://farm:secret@192.0.2.1:5672/farm")
    with pytest.raises(Unavailable, match=r"another machine, 192\.0\.2\.1, and broker_admin_url") as error:
        accounts.put(NODE, PASSWORD)
    assert "secret" not in str(error.value)


@pytest.fixture
def management(tmp_path: Path) -> Iterator[PrivateRabbit]:
    """A broker with the management API."""
    server = PrivateRabbit(tmp_path, management_port=free_port())
    server.create()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.mark.slow
def test_an_account_made_by_the_management_api_is_as_good(management: PrivateRabbit) -> None:
    farm_url = management.add_vhost()
    admin, secret = "farm/admin", "p@ss/wörd%41"
    management.control("add_user", admin, secret)
    management.control("set_user_tags", admin, "administrator")
    told = f"{quote(admin, safe='')}:{quote(secret, safe='')}"
    address = f"127.0.0.1:{management.management_port}"
    accounts = Accounts(farm_url, f"http://{told}@{address}/")
    accounts.put(NODE, "another one first")
    accounts.put(NODE, PASSWORD)
    node_url = node_broker_url(farm_url, node_id=NODE, password=PASSWORD, host="127.0.0.1")
    with closing(Intake(farm_url, farm_queues(), prefetch=10)) as farm, closing(Publisher(node_url)) as node:
        farm.drain(0.01, 1)
        node.publish(queues.REPORTS, b"{}", persistent=True)
        node.flush(5)
        wait_until(lambda: farm.drain(0.1, 10), "the node's report")
    _refused(node_url, lambda channel: channel.basic_get(queues.REPORTS))
    _is_out_without(accounts, node_url)
    accounts.remove(NODE)  # which is not there: fine
    with pytest.raises(Unavailable, match="management API answers 401") as error:
        Accounts(farm_url, f"http://{quote(admin, safe='')}:wrong@{address}").put(NODE, PASSWORD)
    assert PASSWORD not in str(error.value)
