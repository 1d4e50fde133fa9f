"""The command line under test, and the farm it talks to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.edges.cli_farm import TOKEN, Cli, FakeFarm, fake_farm


@pytest.fixture
def farm() -> Iterator[FakeFarm]:
    with fake_farm() as started:
        yield started


@pytest.fixture
def lonely_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A command line in an empty home, with no farm to talk to."""
    for name in [name for name in os.environ if name.startswith("FARM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FARM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("FARM_API_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, monkeypatch)


@pytest.fixture
def cli(lonely_cli: Cli, farm: FakeFarm) -> Cli:
    """A command line that talks to `farm`."""
    lonely_cli.patch.setenv("FARM_API_URL", farm.url)
    lonely_cli.patch.setenv("FARM_API_TOKEN", TOKEN)
    return lonely_cli
