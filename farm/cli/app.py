"""The command line: the tree of commands over what the farm gives them.

Only Typer is imported up here; each command imports what it needs when it runs: `farm --help` must be quick.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command_name

from farm.cli.commands.administration import add_administration
from farm.cli.commands.changes import add_changes
from farm.cli.commands.looks import add_looks
from farm.cli.commands.nodes import add_nodes
from farm.cli.commands.options import Connect, examples
from farm.cli.commands.programs import add_programs
from farm.cli.commands.submission import add_openjd, add_submit
from farm.text import clean

if TYPE_CHECKING:
    from typer.models import CommandInfo

    from farm.cli.client import Client
    from farm.cli.doctor import GpusSeen
    from farm.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What commands start or ask, but the CLI's room may not import; `farm/main.py` gives it."""

    up: Callable[[Settings], int]
    serve: Callable[[Settings], int]
    scheduler: Callable[[Settings], int]
    worker: Callable[[Settings], int]
    benchmark: Callable[[Settings, bool], int]
    live: Callable[[Client, float, bool], int]
    """(client, seconds between looks, whether once is enough) -> exit status"""
    containment: Callable[[], str]
    gpus: Callable[[Settings], GpusSeen]
    demo_scene: Callable[[], Path]
    blender_shim: Callable[[Path], Path | None]


def build(programs: Programs, at_end: ExitStack, words: Sequence[str] = ()) -> typer.Typer:
    """The program that `words` were typed for. What commands open is closed by `at_end`.

    It has every command, unless the first word is one of them: making all takes longer than most take to run.
    """
    app = typer.Typer(
        name="farm",
        cls=_Commands,
        help="Ridgeline: render frames on many machines, each where it will finish soonest.",
        epilog=examples(
            "farm up                                   start a farm on this machine",
            "farm submit shot.blend --frames 1-250     render with it",
            "farm live                                 watch it",
        ),
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    connect = _connecter(at_end)
    add_submit(app, connect)
    add_openjd(app)
    add_looks(app, connect)
    add_changes(app, connect)
    add_nodes(app, connect)
    add_programs(app, programs, connect)
    add_administration(app, programs, connect)
    app.callback()(_no_command)
    _keep_only(app, words[:1])
    return app


class _Commands(TyperGroup):
    """Errors repeat what was typed, which may come from a file's name: never as it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _cleaned():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _cleaned():
            return super().invoke(ctx)


@contextmanager
def _cleaned() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        message = getattr(error, "message", None)
        if isinstance(message, str):
            error.message = clean(_with_the_nearest(message))  # type: ignore[attr-defined]
        raise


def _with_the_nearest(message: str) -> str:
    """Of a value that is none of a list: which one was probably meant."""
    found = re.search(r"(Value error, )?'(.*)' is not one of ('.*')\.?$", message, re.DOTALL)
    if found is None:
        return message
    listed = re.findall("'([^']*)'", found[3])
    near = get_close_matches(found[2].lower(), listed, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{message[: found.start()]}'{found[2]}' is not one of {found[3]}{hint}"


def _no_command() -> None:
    """With it the program has commands, even where only one is left."""


def _keep_only(app: typer.Typer, first: Sequence[str]) -> None:
    commands = [info for info in app.registered_commands if _name(info) in first]
    groups = [info for info in app.registered_groups if info.name in first]
    if commands or groups:
        app.registered_commands, app.registered_groups = commands, groups


def _name(info: CommandInfo) -> str:
    return info.name or get_command_name(info.callback.__name__ if info.callback else "")


def _connecter(at_end: ExitStack) -> Connect:
    def connect() -> Client:
        from farm.cli import client
        from farm.settings import load_settings

        made = client.connect(load_settings())
        at_end.callback(made.close)
        return made

    return connect
