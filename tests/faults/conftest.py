"""A farm of real processes on servers of its own, each test's for it alone to break."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.conftest import postgres, rabbit
from tests.e2e.farm_under_test import HURRY, FarmUnderTest
from tests.e2e.marked_jobs import MarkedJob
from tests.e2e.services import PrivatePostgres, PrivateRabbit

__all__ = ["postgres", "rabbit"]


@dataclass
class BreakableFarm(FarmUnderTest):
    failpoints: dict[str, str] = field(default_factory=dict)
    """Process name to its FARM_TEST_FAILPOINTS."""
    broker_of: dict[str, str] = field(default_factory=dict)
    """Process name to another way to the broker."""
    database_of: dict[str, str] = field(default_factory=dict)
    """Process name to another way to the database."""
    more_of: dict[str, dict[str, str]] = field(default_factory=dict)
    """Process name to further variables."""

    def environment(self, name: str) -> dict[str, str]:
        environment = super().environment(name)
        if name in self.failpoints:
            environment["FARM_TEST_FAILPOINTS"] = self.failpoints[name]
        if name in self.broker_of:
            environment["FARM_BROKER_URL"] = self.broker_of[name]
        if name in self.database_of:
            environment["FARM_DATABASE_URL"] = self.database_of[name]
        return environment | self.more_of.get(name, {})


@pytest.fixture
def farm(tmp_path: Path, rabbit: PrivateRabbit, postgres: PrivatePostgres) -> Iterator[BreakableFarm]:
    """Nothing of it is started yet."""
    folder = tmp_path / "farm"
    folder.mkdir()
    made = BreakableFarm(folder, postgres.add_database(), rabbit.add_vhost(), extra=dict(HURRY))
    try:
        yield made
    finally:
        made.stop_all()


@pytest.fixture
def new_job(farm: BreakableFarm, tmp_path: Path) -> Callable[[int], MarkedJob]:
    return lambda frames: MarkedJob(farm, tmp_path / "frames", frames)


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """Chance that is the same in each run of a test; FARM_TEST_SEED chooses another."""
    import os

    seed = int(os.environ.get("FARM_TEST_SEED", zlib.crc32(request.node.nodeid.encode()) % 10_000))
    print(f"FARM_TEST_SEED={seed}")
    return random.Random(seed)
