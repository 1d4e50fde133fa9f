"""Every command there is, against a farm in which everything that may be called anything is called badly.

The farm answers each route with the example of the API's description; commands are found in the program
itself, so a new one fails here until `CALLS` says how it is called.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
from typing import Any

import pytest

import farm.control
import farm.model
from farm.http import examples
from farm.http.app import make_app
from farm.settings import Settings
from farm.store.engine import open_engine
from tests.edges.cli_farm import Cli, FakeFarm, plain
from tests.edges.test_cli_print import is_safe
from tests.edges.test_cli_start import commands

HOSTILE = "[/][bold red]\x1b[2J\x1b]52;c;aGFja2Vk\x07\x9b31m\u202egnp\u2066\r\n" + "é" * 100
CALLS: dict[str, tuple[str, ...]] = {
    "append": ("12", "101-120"),
    "cancel": ("12",),
    "capacity": (),
    "change": ("12", "--priority", "80"),
    "config show": (),
    "db version": (),
    "drain": ("blade-3",),
    "enrol": ("blade-3",),
    "events": (),
    "explain": ("12",),
    "fields": (),
    "hooks": (),
    "invite": (),
    "job": ("12",),
    "jobs": ("--columns", "all"),
    "limits list": (),
    "limits remove": ("arnold",),
    "limits set": ("arnold", "4"),
    "live": ("--once",),
    "logs": ("12",),
    "node": ("blade-3",),
    "nodes": ("--columns", "all"),
    "pause": ("12",),
    "parked list": (),
    "preview": ("12",),
    "priority": ("12", "80"),
    "profile": ("12",),
    "record": ("night.json",),
    "release": ("12",),
    "remove-job": ("12",),
    "remove-node": ("blade-3",),
    "requeue": ("12", "--all"),
    "resubmit": ("12",),
    "resume": ("12",),
    "retry": ("12",),
    "stalled": ("--all",),
    "stats": (),
    "submit": ("--", "true"),
    "tasks": ("12", "--columns", "all"),
    "token create": ("laptop",),
    "token list": (),
    "token revoke": ("laptop",),
    "undrain": ("blade-3",),
    "version": (),
    "wait": ("12",),
    "watch": ("12",),
    "why": ("12",),
}
PROGRAMS = {
    "backup", "check", "db backup", "db restore", "db upgrade", "demo", "doctor", "join", "parked drop",
    "parked replay", "reconcile", "restore", "run", "scheduler", "serve", "simulate", "summary", "up",
    "worker", "worker benchmark",
}  # fmt: skip
"""Start or change a part of the farm, or work on files: only their words of refusal are looked at."""
KEPT = {"id", "attempt_id", "code", "frames", "label", "version", "url", "file_pattern", "digest", "token"}
"""Are no free text: numbers, ranges, hexadecimal."""


def _words_of_the_model() -> set[str]:
    """The values of all enumerations: a field that has one of them has no other text."""
    found: set[str] = set()
    for package in (farm.model, farm.control):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for thing in vars(importlib.import_module(module.name)).values():
                if isinstance(thing, type) and issubclass(thing, enum.StrEnum):
                    found |= {str(member.value) for member in thing}
    return found


WORDS = _words_of_the_model()


def badly_called(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: badly_called(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [badly_called(item, key) for item in value]
    return HOSTILE if isinstance(value, str) and key not in KEPT and value not in WORDS else value


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """As the API describes them."""
    folder = tmp_path_factory.mktemp("none")
    engine = open_engine(f"sqlite:///{folder}/none.db")
    return make_app(engine, Settings(state_dir=folder), nudge=lambda: None).openapi()["paths"]


def lay_out(farm: FakeFarm, routes: Any) -> None:
    places = {"job_id": "12", "task_id": "4711", "node_id": "blade-3", "name": "arnold"}
    places["attempt_id"] = examples.ATTEMPT.id
    for path, methods in routes.items():
        for method, told in methods.items():
            answer: dict[str, Any] = next(
                (told["responses"][code] for code in ("200", "201") if code in told["responses"]), {}
            )
            example = badly_called(answer.get("content", {}).get("application/json", {}).get("example"))
            if isinstance(example, dict) and "items" in example:
                example["next"] = None
            where = path.removeprefix("/api/v1").format(**places)
            farm.answer(method.upper(), where, example, status=204 if example is None else 200)
    farm.answers["DELETE", "/tokens/laptop"] = farm.answers["DELETE", "/tokens/arnold"]
    bare = {"name": HOSTILE} | {name: value for name, value in examples.SUBMISSION.items() if name != "name"}
    instead = (
        ("GET", "/jobs/12/submission", (bare,)),  # a template's texts belong together
        ("POST", "/jobs", (badly_called(examples.shown(examples.JOB_VIEW)),)),
        ("POST", "/invites", (badly_called(plain(examples.INVITE)),)),
        (
            "GET",
            f"/attempts/{places['attempt_id']}/log",
            (badly_called(plain(examples.LOG)), {"chunks": [], "is_ended": True}),
        ),
    )
    for method, path, bodies in instead:
        assert farm.answers.pop((method, path)), path
        for body in bodies:
            farm.answer(method, path, body)
    _end_the_job(farm)


def _end_the_job(farm: FakeFarm) -> None:
    """What waits for a job is not to wait for ever."""
    (status, view, headers) = farm.answers["GET", "/jobs/12"][-1]
    ended = view | {"job": view["job"] | {"state": "failed", "finished_at": 1_796_000_100.0}}
    farm.answers["GET", "/jobs/12"] = [(status, ended, headers)]


def test_every_command_is_here() -> None:
    every = {" ".join(words) for words, command in commands() if words and not has_only_commands(command)}
    assert every == set(CALLS) | PROGRAMS


def has_only_commands(command: Any) -> bool:
    return bool(getattr(command, "commands", None)) and not command.invoke_without_command


@pytest.mark.parametrize("call", CALLS)
def test_no_text_of_the_farm_harms_a_terminal(cli: Cli, farm: FakeFarm, routes: Any, call: str) -> None:
    lay_out(farm, routes)
    result = cli(*call.split(), *CALLS[call])
    told = result.out + result.err
    assert is_safe(told), repr(told)
    assert "Traceback" not in told
    assert "cannot be read" not in told, told


@pytest.mark.parametrize("call", sorted({*CALLS, *PROGRAMS}))
def test_no_word_that_was_typed_harms_a_terminal(lonely_cli: Cli, call: str) -> None:
    """As a name, a path, a filter or an option: all are refused, or the farm is not there."""
    for words in ((HOSTILE,), (HOSTILE, HOSTILE), (f"--{HOSTILE}",)):
        result = lonely_cli(*call.split(), *words)
        told = result.out + result.err
        assert result.status != 0, told
        assert is_safe(told), repr(told)
        assert "Traceback" not in told
