"""For scripts: `--json` wherever something is told or done, `--columns` wherever a table is printed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farm.cli import show
from tests.edges.cli_farm import Cli, FakeFarm
from tests.edges.test_cli_hostile import CALLS, has_only_commands, lay_out, routes
from tests.edges.test_cli_start import commands

__all__ = ["routes"]  # a fixture

WITHOUT_JSON = {
    "up": "goes on until it is stopped",
    "serve": "goes on until it is stopped",
    "scheduler": "goes on until it is stopped",
    "worker": "goes on until it is stopped",
    "worker benchmark": "what it measures, `farm node NODE --json` tells",
    "live": "is a screen; what it shows, `farm jobs --json` and others tell",
    "demo": "is for the eye",
}
WITHOUT_COLUMNS = {"fields": "tells what columns there are"}
CHANGES: dict[str, tuple[tuple[str, ...], Any]] = {
    "limits remove": (("arnold",), {"removed": ["arnold"]}),
    "remove-job": (("12",), {"removed": [12]}),
    "remove-node": (("blade-3",), {"removed": ["blade-3"]}),
    "token revoke": (("laptop",), {"revoked": ["laptop"]}),
    "record": (("night.json",), {"path": "night.json", "steps": 1, "tasks": 3}),
}
"""What has no object of the farm to print: its words, and what it prints."""

COMMANDS = {" ".join(words): command for words, command in commands() if not has_only_commands(command)}


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("call", COMMANDS)
def test_every_command_speaks_json(call: str) -> None:
    assert ("--json" in options(COMMANDS[call])) != (call in WITHOUT_JSON)


def test_a_command_without_json_has_a_reason() -> None:
    assert WITHOUT_JSON.keys() | WITHOUT_COLUMNS.keys() <= COMMANDS.keys()


@pytest.mark.parametrize("call", CALLS)
def test_what_prints_a_table_takes_columns(cli: Cli, farm: FakeFarm, routes: Any, call: str) -> None:
    lay_out(farm, routes)
    (_, view, _), *_ = farm.answers["GET", "/jobs/12"]
    view["job"]["steps"] *= 2  # of a single step there is no table
    tables: list[Any] = []
    cli.patch.setattr(show, "table", lambda *given, **_: tables.append(given))
    cli(*call.split(), *CALLS[call])
    if tables and call not in WITHOUT_COLUMNS:
        assert "--columns" in options(COMMANDS[call])


@pytest.mark.parametrize("call", CHANGES)
def test_what_has_no_object_of_the_farm_says_what_it_did(
    cli: Cli, farm: FakeFarm, routes: Any, call: str
) -> None:
    lay_out(farm, routes)
    words, told = CHANGES[call]
    assert json.loads(cli.good(*call.split(), *words, "--json")) == told
