"""Commands about the nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.cli.commands.options import (
    Connect,
    Json,
    NodeName,
    NodeNames,
    Quiet,
    Silent,
    columns_of,
    examples,
    filter_of,
    finish,
    only,
    sort_of,
    wanted,
)


def add_nodes(app: typer.Typer, connect: Connect) -> None:
    _add_lists(app, connect)
    _add_joining(app, connect)
    _add_draining(app, connect)


def _add_lists(app: typer.Typer, connect: Connect) -> None:
    @app.command(epilog=examples("farm nodes", "farm nodes 'free>0 and vram>=24G' --columns name,vram,free"))
    def nodes(
        filter: Annotated[list[str] | None, filter_of("nodes")] = None,
        columns: Annotated[str | None, columns_of("nodes")] = None,
        sort: Annotated[str | None, sort_of("nodes")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List the machines: devices, use, and what runs on them."""
        from farm.cli import nodes

        nodes.nodes(connect, wanted(filter, columns, sort, is_quiet=quiet, is_json=json))

    @app.command(epilog=examples("farm node blade-3"))
    def node(
        node: NodeName, columns: Annotated[str | None, columns_of("devices")] = None, json: Json = False
    ) -> None:
        """Show all there is to know of a machine.

        With --columns, a table of its devices.
        """
        from farm.cli import nodes

        nodes.node(connect, node, only(columns, is_json=json))


def _add_joining(app: typer.Typer, connect: Connect) -> None:
    @app.command(epilog=examples("farm invite", "farm invite --name blade-4 --for 2h --approve"))
    def invite(
        name: Annotated[
            str | None,
            typer.Option(metavar="NODE", help="Only for a node of this name, which may be known already."),
        ] = None,
        life: Annotated[str, typer.Option("--for", metavar="TIME", help="How long the code lives.")] = "15m",
        approve: Annotated[
            bool, typer.Option("--approve", help="The machine waits for `farm enrol` then.")
        ] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the code alone.")] = False,
        json: Json = False,
    ) -> None:
        """Make a code with which one machine may join the farm."""
        from farm.cli import joining

        joining.invite(connect(), name=name, life=life, needs_approval=approve, is_quiet=quiet, is_json=json)

    @app.command(
        epilog=examples(
            "farm join http://192.168.1.7:7450 --code K7QD-4M2X-9TRF",
            "farm join farm.studio.example --name blade-4",
        )
    )
    def join(
        url: Annotated[str, typer.Argument(metavar="URL", help="Where the farm's server is.")],
        code: Annotated[
            str | None, typer.Option(metavar="CODE", help="From `farm invite`; asked for when left out.")
        ] = None,
        name: Annotated[
            str | None, typer.Option(metavar="NAME", help="The node's name; the machine's when left out.")
        ] = None,
        no_wait: Annotated[
            bool, typer.Option("--no-wait", help="Do not wait to be let in; say it again later.")
        ] = False,
        json: Json = False,
    ) -> None:
        """Make this machine a node of a farm: then `farm worker` starts.

        With the code that `farm invite` or `farm serve --lan` printed over there. Writes the settings of this
        machine, with an account of its own at the farm's broker. Once in, it needs no code to do so again.
        """
        from farm.cli import joining

        finish(joining.join(url, code=code, name=name, is_waiting=not no_wait, is_json=json))

    @app.command(epilog=examples("farm enrol blade-4"))
    def enrol(nodes: NodeNames, quiet: Silent = False, json: Json = False) -> None:
        """Let machines in that joined by a code and are pending."""
        from farm.cli import joining

        joining.enrol(connect(), nodes, is_quiet=quiet, is_json=json)

    @app.command("remove-node", epilog=examples("farm remove-node blade-4"))
    def remove_node(
        nodes: NodeNames,
        force: Annotated[
            bool, typer.Option("--force", help="Also one that works: what it runs will be lost.")
        ] = False,
        quiet: Silent = False,
        json: Json = False,
    ) -> None:
        """Forget machines, their tokens and accounts at the broker."""
        from farm.cli import joining

        joining.remove(connect(), nodes, force=force, is_quiet=quiet, is_json=json)


def _add_draining(app: typer.Typer, connect: Connect) -> None:
    @app.command(epilog=examples("farm drain blade-3"))
    def drain(nodes: NodeNames, quiet: Silent = False, json: Json = False) -> None:
        """Give a machine no more work; what runs there goes on."""
        from farm.cli import changes

        changes.drain(connect(), nodes, is_draining=True, is_quiet=quiet, is_json=json)

    @app.command(epilog=examples("farm undrain blade-3"))
    def undrain(nodes: NodeNames, quiet: Silent = False, json: Json = False) -> None:
        """Give a drained machine work again."""
        from farm.cli import changes

        changes.drain(connect(), nodes, is_draining=False, is_quiet=quiet, is_json=json)
