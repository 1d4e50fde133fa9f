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
    sort_of,
    wanted,
)


def add_nodes(app: typer.Typer, connect: Connect) -> None:
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
    def node(node: NodeName, json: Json = False) -> None:
        """Show all there is to know of a machine."""
        from farm.cli import nodes

        nodes.node(connect(), node, is_json=json)

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
