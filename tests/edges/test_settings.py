"""Settings that would do harm are refused, and paths mean what a user expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.errors import UserError
from farm.settings import load_settings


def test_a_tilde_means_the_home_directory() -> None:
    settings = load_settings(environment={"FARM_STATE_DIR": "~/farm", "FARM_ALLOWED_ROOTS": "~/a,/b"})
    assert settings.state_dir == Path.home() / "farm"
    assert settings.allowed_roots == (Path.home() / "a", Path("/b"))


def test_times_under_which_a_node_would_outlive_its_lease_are_refused() -> None:
    with pytest.raises(UserError, match="must be below lease_s"):
        load_settings(environment={"FARM_LEASE_S": "20"})
