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


@pytest.mark.parametrize("is_named", [False, True], ids=["a usual place", "FARM_CONFIG"])
def test_settings_that_may_not_be_looked_at_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """As for a service whose HOME is another user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".config/ridgeline/farm.toml"
    real = Path.is_file

    def is_file(asked: Path) -> bool:
        if asked == path:  # root, who runs tests too, may look anywhere
            raise PermissionError(13, "Permission denied", str(asked))
        return real(asked)

    monkeypatch.setattr(Path, "is_file", is_file)
    with pytest.raises(UserError, match=f"{path}: Permission denied"):
        load_settings(environment={"FARM_CONFIG": str(path)} if is_named else {})
