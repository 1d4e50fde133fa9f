"""A RabbitMQ virtual host of the tests' own: no other farm on this broker hears their nodes."""

from __future__ import annotations

import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.workers.agent_processes import PORT, RABBITMQ, Agents, url
from tests.workers.fake_farm import FakeFarm


def _control(*arguments: str) -> None:
    subprocess.run(
        ["rabbitmqctl", "-q", *arguments],
        check=True,
        capture_output=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="session")
def rabbitmq_vhost() -> Iterator[str]:
    name = f"farm-test-{uuid.uuid4().hex[:8]}"
    try:
        socket.create_connection(RABBITMQ, timeout=3).close()
        _control("add_vhost", name)
        _control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    except (OSError, subprocess.SubprocessError) as error:
        missing("RabbitMQ", error)
    yield name
    _control("delete_vhost", name)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def agents(tmp_path: Path, stack: ExitStack, rabbitmq_vhost: str) -> Agents:
    (tmp_path / "state").mkdir()
    return stack.enter_context(closing(Agents(rabbitmq_vhost, tmp_path / "state")))


@pytest.fixture
def fake_farm(agents: Agents, stack: ExitStack) -> FakeFarm:
    return stack.enter_context(closing(FakeFarm(url(agents.vhost, PORT), agents.node_id)))
