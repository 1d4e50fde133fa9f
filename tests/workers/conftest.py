"""A RabbitMQ virtual host of the tests' own: no other farm on this broker hears their nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.e2e.services import RABBITMQ, PrivateRabbit, add_vhost, remove_vhost
from tests.workers.agent_processes import Agents
from tests.workers.fake_farm import FakeFarm


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a virtual host: on the machine's server, or on one of the release that is being tried."""
    if not RABBITMQ:
        vhost = add_vhost()
        yield vhost
        remove_vhost(vhost)
        return
    server = PrivateRabbit(tmp_path_factory.mktemp("rabbit"))
    server.create()
    try:
        server.start()
        yield server.add_vhost()
    finally:
        server.remove()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def agents(tmp_path: Path, stack: ExitStack, rabbitmq: str) -> Agents:
    (tmp_path / "state").mkdir()
    return stack.enter_context(closing(Agents(rabbitmq, tmp_path / "state")))


@pytest.fixture
def fake_farm(agents: Agents, stack: ExitStack) -> FakeFarm:
    return stack.enter_context(closing(FakeFarm(agents.broker_url, agents.node_id)))
