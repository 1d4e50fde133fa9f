"""Servers of our own that tests may kill, shared by all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.services import PrivatePostgres, PrivateRabbit


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateRabbit]:
    server = PrivateRabbit(tmp_path_factory.mktemp("rabbit"))
    server.create()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivatePostgres]:
    server = PrivatePostgres(tmp_path_factory.mktemp("postgres"))
    server.create()
    try:
        server.start()
        yield server
    finally:
        server.kill()
