"""What commands share: options of one name and meaning, the examples in their help, how they end."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from farm.cli.client import Client
    from farm.cli.listing import Wanted

_FILTER: Final = re.compile(r"[=~<>(\s]")
"""No command's name holds one of these."""
Connect = Callable[[], "Client"]
"""Called once what was typed is understood."""


class ListedByDefault(TyperGroup):
    """Commands about one thing: without one of them, what is typed is for `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        is_for_list = not first or _FILTER.search(first) or first.startswith("-")
        is_completing = ctx.resilient_parsing  # Tab offers the commands, too
        if is_for_list and first not in ("-h", "--help") and not is_completing:
            args = ["list", *args]
        return super().parse_args(ctx, args)


def examples(*lines: str) -> str:
    """A help epilog. `\\b` keeps Typer from joining the lines."""
    return "\b\n" + "\n".join(
        ("Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines))
    )


def completing(what: str, of: str = "") -> Callable[[str], list[tuple[str, str]]]:
    """What a Tab offers; imported when one is pressed."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        from farm.cli import complete as offers

        offer = getattr(offers, what)
        made: list[tuple[str, str]] = offer(incomplete, of) if of else offer(incomplete)
        return made

    return complete


def filter_of(what: str) -> Any:
    return typer.Argument(
        metavar="[FILTER]",
        help="Such as 'state=failed and age<2d'; see `farm fields`.",
        autocompletion=completing("filters", what),
    )


def columns_of(what: str) -> Any:
    return typer.Option(
        "--columns",
        metavar="A,B,C",
        help="Which fields to show, or all; see `farm fields`.",
        autocompletion=completing("columns", what),
    )


def columns_among(names: str) -> Any:
    """Of what `farm fields` does not list."""
    return typer.Option("--columns", metavar="A,B,C", help=f"Of {names}; or all.")


def sort_of(what: str) -> Any:
    return typer.Option(
        "--sort",
        metavar="FIELD",
        help="In the order of this field; -FIELD turns it round.",
        autocompletion=completing("order", what),
    )


def state_of(what: str) -> Any:
    return typer.Option(
        metavar="STATE",
        help=f"Only {what} in this state. Repeatable.",
        autocompletion=completing("states", what),
    )


JOBS = completing("jobs")
NODES = completing("nodes")
ParkedIds = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="As listed.")]
AllParked = Annotated[bool, typer.Option("--all", help="All of them.")]
Json = Annotated[bool, typer.Option("--json", help="Print the farm's own objects as JSON, for scripts.")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's number.", autocompletion=JOBS)]
JobNames = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Numbers of jobs.", autocompletion=JOBS)
]
NodeNames = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Names of nodes.", autocompletion=NODES)
]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.", autocompletion=NODES)]
LimitName = Annotated[str, typer.Argument(metavar="NAME", help="The limit's name, such as arnold.")]
Frames = Annotated[
    str | None, typer.Option("--frames", "-f", metavar="RANGE", help="Only these frames, such as 1-100x2.")
]
Sort = Annotated[
    str | None,
    typer.Option("--sort", metavar="FIELD", help="In the order of this field; -FIELD turns it round."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the numbers or names alone.")]
Silent = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing when it went well.")]
OrderOption = Annotated[
    str | None,
    typer.Option(metavar="ORDER", help="forward, reverse, first-middle-last, or every-N: each Nth first."),
]
OfStep = Annotated[str | None, typer.Option("--step", metavar="NAME", help="Only tasks of this step.")]


def finish(status: int) -> None:
    raise typer.Exit(status)


def only(columns: str | None, *, is_json: bool) -> Wanted:
    """Of what has no filter and no order."""
    return wanted(None, columns, None, is_quiet=False, is_json=is_json)


def wanted(
    words: list[str] | None, columns: str | None, sort: str | None, *, is_quiet: bool, is_json: bool
) -> Wanted:
    from farm.cli.listing import Wanted

    return Wanted(words=tuple(words or ()), columns=columns, sort=sort, is_quiet=is_quiet, is_json=is_json)
