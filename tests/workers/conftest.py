"""A RabbitMQ virtual host of the tests' own: no other farm on this broker hears their nodes."""

from __future__ import annotations

import socket
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.conftest import missing

RABBITMQ = ("127.0.0.1", 5672)


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
