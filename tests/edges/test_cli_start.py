"""The command line's start: quick, with help and an example everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from farm import __version__
from farm.cli.app import Programs, build
from tests.edges.cli_farm import TOKEN, Cli, FakeFarm, a_node, a_task, a_view, page

OF_FEW = ("detail_fields", "matching_views", "access_views", "requests")
"""Modules of `farm.control` that no list of jobs, nodes or tasks needs."""
SLOW = ("sqlalchemy", "celery", "kombu", "openjd", "fastapi", "httpx", "numpy", "rich", "pydantic", "yaml")


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it; groups too."""

    def nothing(*_: Any) -> Any:
        raise AssertionError("help starts nothing")

    names = list(Programs.__dataclass_fields__)
    tree = get_command(build(Programs(**dict.fromkeys(names, nothing)), ExitStack()))
    todo: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    while todo:
        words, command = todo.pop()
        yield words, command
        todo += [((*words, name), child) for name, child in getattr(command, "commands", {}).items()]


NAMES = [words for words, _ in commands()]


@pytest.mark.parametrize("words", NAMES, ids=" ".join)
def test_every_command_has_help_with_an_example_in_80_columns(
    lonely_cli: Cli, words: tuple[str, ...]
) -> None:
    text = lonely_cli.good(*words, "--help")
    examples = text[text.index("Example") :]
    assert f"farm {' '.join(words)}".strip() in examples
    wide = [line for line in text.splitlines() if len(line) > 80 and "farm submit" not in line]
    assert not wide


@pytest.mark.parametrize("words", NAMES, ids=" ".join)
def test_no_summary_is_cut_in_the_list_of_commands(words: tuple[str, ...]) -> None:
    command = dict(commands())[words]
    for name, child in getattr(command, "commands", {}).items():
        assert not child.get_short_help_str(62).endswith("..."), name


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys; from farm.main import main; main(['--help']); "
        f"print(sorted(set({SLOW!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [("fields", "jobs"), ("jobs", "stat=failed"), ("version",)], ids=" ".join)
def test_what_needs_no_farm_loads_nothing_to_talk_to_one(words: tuple[str, ...], tmp_path: Path) -> None:
    heavy = set(SLOW) - {"rich", "pydantic"} - ({"httpx"} if words[0] == "jobs" else set())
    code = (
        f"import sys; from farm.main import main; main({list(words)!r}); "
        f"print({heavy!r} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("words", [("jobs",), ("nodes",), ("tasks", "12"), ("job", "12")], ids=" ".join)
def test_a_client_loads_none_of_what_servers_and_nodes_need(
    farm: FakeFarm, words: tuple[str, ...], tmp_path: Path
) -> None:
    for path, item in (("/jobs", a_view()), ("/nodes", a_node()), ("/jobs/12/tasks", a_task())):
        farm.answer("GET", path, page(item))
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("GET", "/jobs/12/why", {"job_id": 12, "lines": []})
    heavy = set(SLOW) - {"rich", "pydantic", "httpx"}
    heavy |= {"sqlmodel", "alembic", "workers", "plugins", "pydantic_settings"}
    heavy |= {f"farm.control.{name}" for name in OF_FEW if words != ("job", "12")}
    code = (
        f"import sys; from farm.main import main; status = main({list(words)!r}); "
        f"print(status, {heavy!r} & sys.modules.keys())"
    )
    environment = {"FARM_API_URL": farm.url, "FARM_API_TOKEN": TOKEN, "FARM_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "0 set()", done.stderr


def test_only_the_command_that_was_typed_is_made() -> None:
    def made(*words: str) -> set[str]:
        nothing: dict[str, Any] = dict.fromkeys(Programs.__dataclass_fields__)
        group: Any = get_command(build(Programs(**nothing), ExitStack(), words))
        return set(group.commands)

    every = made()
    assert len(every) > 40
    for name in every:
        assert made(name, "--help") == {name}
    for words in (("--help",), ("jbos",), ("--install-completion", "jobs")):
        assert made(*words) == every


def test_the_client_loads_no_command_line_of_its_library() -> None:
    code = "import sys, farm.cli.client; print(sorted({'pygments', 'click', 'rich'} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_the_version_is_told(lonely_cli: Cli) -> None:
    assert __version__ in lonely_cli.good("version")
    assert f'"version":"{__version__}"' in lonely_cli.good("version", "--json")


def test_a_misspelt_command_names_the_right_one(lonely_cli: Cli) -> None:
    assert "'jobs'" in lonely_cli.bad("jbos")


def test_a_misspelt_option_names_the_right_one(lonely_cli: Cli) -> None:
    assert "--frames" in lonely_cli.bad("submit", "shot.blend", "--frmaes", "1-10")


def test_a_wrong_setting_is_one_line(lonely_cli: Cli) -> None:
    lonely_cli.patch.setenv("FARM_API_PROT", "1")
    error = lonely_cli.bad("jobs")
    assert "api_port" in error
    assert len(error.splitlines()) == 1
