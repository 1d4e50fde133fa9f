"""The fake driver library, built once a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu.fakes import FakeDriver, Fixture, Reader, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake_nvml"))


@pytest.fixture
def driver(library: Path, tmp_path: Path) -> Callable[[Fixture], FakeDriver]:
    """Makes a node's driver from a fixture."""
    count = 0

    def make(fixture: Fixture) -> FakeDriver:
        nonlocal count
        count += 1
        return FakeDriver(library=library, path=tmp_path / f"node{count}.nvml", fixture=fixture)

    return make


@pytest.fixture(scope="session")
def reader(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Our NVIDIA provider in a process of its own, on fixtures that change."""
    path = tmp_path_factory.mktemp("node") / "node.nvml"
    opened = Reader(FakeDriver(library=library, path=path))
    yield opened
    opened.close()
