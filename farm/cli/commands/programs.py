"""Commands that start a part of the farm, or play one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli.commands.options import Connect, Json, columns_among, examples, finish, only

if TYPE_CHECKING:
    from farm.cli.app import Programs


def add_programs(app: typer.Typer, programs: Programs, connect: Connect) -> None:
    _add_servers(app, programs)
    _add_worker(app, programs)
    _add_simulation(app, connect)
    _add_live(app, programs, connect)
    _add_demo(app, programs)


def _add_servers(app: typer.Typer, programs: Programs) -> None:
    @app.command(epilog=examples("farm up"))
    def up() -> None:
        """Start a whole farm on this machine, in one process.

        Server, scheduler and one node; the database is a file, and nothing needs to be configured.
        """
        from farm.settings import load_settings

        finish(programs.up(load_settings()))

    @app.command(epilog=examples("FARM_CONFIG=configs/facility.toml farm serve", "farm serve --lan"))
    def serve(
        lan: Annotated[
            bool, typer.Option("--lan", help="Answer this network too, and print what to type elsewhere.")
        ] = False,
    ) -> None:
        """Start the server that artists talk to."""
        from farm.settings import load_settings

        if not lan:
            finish(programs.serve(load_settings()))
        from farm.cli import lan as network
        from farm.cli import show

        address = network.lan_address()
        settings = network.lan_settings(address)
        for line in network.what_to_type(settings, address, network.own_code(settings)):
            show.note(line)
        finish(programs.serve(settings))

    @app.command(epilog=examples("FARM_CONFIG=configs/facility.toml farm scheduler"))
    def scheduler() -> None:
        """Start a scheduler: one leads, others may stand by."""
        from farm.settings import load_settings

        finish(programs.scheduler(load_settings()))


def _add_worker(app: typer.Typer, programs: Programs) -> None:
    worker_app = typer.Typer(
        invoke_without_command=True,
        no_args_is_help=False,
        epilog=examples(
            "farm worker",
            "farm worker --name blade-3 --pool gpu --slots 2",
            "farm worker --devices configs/demo-nodes.toml#gpu-mix",
        ),
    )

    app.add_typer(worker_app, name="worker")

    @worker_app.callback()
    def worker(
        context: typer.Context,
        name: Annotated[
            str | None, typer.Option(metavar="NAME", help="The node's name; the machine's when left out.")
        ] = None,
        pool: Annotated[
            list[str] | None, typer.Option(metavar="NAME", help="A pool it serves. Repeatable.")
        ] = None,
        slots: Annotated[
            int | None, typer.Option(metavar="N", help="Frames at once on its processor.")
        ] = None,
        devices: Annotated[
            str | None,
            typer.Option(metavar="FILE#NODE", help="Claim the GPUs of a file, to try a farm without any."),
        ] = None,
    ) -> None:
        """Make this machine a node that renders."""
        from farm.settings import load_settings

        if context.invoked_subcommand is not None:
            return
        settings = load_settings(
            node_name=name, pools=tuple(pool) if pool else None, slots=slots, devices=devices
        )
        finish(programs.worker(settings))

    @worker_app.command(epilog=examples("farm worker benchmark"))
    def benchmark(
        again: Annotated[bool, typer.Option("--again", help="Also what was measured before.")] = False,
    ) -> None:
        """Measure this machine's devices: a few seconds each."""
        from farm.settings import load_settings

        finish(programs.benchmark(load_settings(), again))


def _add_simulation(app: typer.Typer, connect: Connect) -> None:
    @app.command(epilog=examples("farm record --hours 12 night.json", "farm simulate night.json"))
    def record(
        file: Annotated[Path, typer.Argument(metavar="FILE.json", help="Where to write it.")],
        hours: Annotated[float, typer.Option(min=0.01, max=744, help="How far back.")] = 12.0,
        json: Json = False,
    ) -> None:
        """Record what the farm did, to be played again by simulate."""
        from farm.cli import simulate as simulating

        simulating.record(connect(), file, hours=hours, is_json=json)

    @app.command(
        epilog=examples(
            "farm simulate --policy predictive --policy fifo",
            "farm simulate --add 'L40S=4' --svg what-if.svg",
        )
    )
    def simulate(
        file: Annotated[
            Path | None,
            typer.Argument(
                metavar="[FILE]", help="A scenario (.toml) or a recording (.json); default: 100 mixed GPUs."
            ),
        ] = None,
        farm: Annotated[
            str | None, typer.Option("--farm", metavar="MODEL=N,...", help="Another farm: 'T4=10,L40S=4'.")
        ] = None,
        add: Annotated[
            list[str] | None,
            typer.Option(metavar="MODEL=N,...", help="Also with these nodes added. Repeatable."),
        ] = None,
        policy: Annotated[
            list[str] | None, typer.Option(metavar="NAME", help="predictive, fifo, fitness, ... Repeatable.")
        ] = None,
        load: Annotated[
            float | None,
            typer.Option(min=0.01, max=2, help="Work offered over what the farm can do at best."),
        ] = None,
        hours: Annotated[float | None, typer.Option(min=0.1, max=48, help="Of arrivals.")] = None,
        jobs: Annotated[
            int | None, typer.Option(min=1, max=2_000, help="So many jobs at once instead.")
        ] = None,
        weight: Annotated[
            list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of the predictive policy. Repeatable.")
        ] = None,
        faults: Annotated[
            bool, typer.Option("--faults", help="With hung frames, slow spells and node failures.")
        ] = False,
        seeds: Annotated[int, typer.Option(min=1, max=100, help="How many worlds.")] = 1,
        svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the answer.")] = None,
        columns: Annotated[
            str | None, columns_among("name, policy, turnaround, sd, makespan, gpu-hours, kwh")
        ] = None,
        json: Json = False,
    ) -> None:
        """Play a farm on a virtual clock: other nodes, weights, policy."""
        from farm.cli import simulate as simulating

        simulating.simulate(
            file=file, farm=farm, add=add or (), policies=policy or ("predictive",), load=load, hours=hours,
            jobs=jobs, weights=weight or (), has_faults=faults, seeds=seeds, drawing=svg,
            wanted=only(columns, is_json=json),
        )  # fmt: skip


def _add_live(app: typer.Typer, programs: Programs, connect: Connect) -> None:
    @app.command(epilog=examples("farm live", "farm live --once"))
    def live(
        interval: Annotated[float, typer.Option(metavar="SECONDS", help="How often to look.")] = 1.0,
        once: Annotated[bool, typer.Option("--once", help="Print how things stand, and end.")] = False,
    ) -> None:
        """Watch jobs, nodes and events on the full screen; q quits."""
        finish(programs.live(connect(), interval, once))


def _add_demo(app: typer.Typer, programs: Programs) -> None:
    @app.command(epilog=examples("farm demo", "farm demo --frames 24 --output ~/demo"))
    def demo(
        frames: Annotated[int, typer.Option(metavar="N", min=1, max=24, help="How many.")] = 12,
        output: Annotated[Path, typer.Option(metavar="DIRECTORY", help="Where the frames go.")] = Path(
            "demo-out"
        ),
        keep: Annotated[
            bool, typer.Option("--keep", help="Leave the demo's database and logs behind.")
        ] = False,
    ) -> None:
        """Start a farm for a minute and render an animation with it.

        Ends with the frames on disk, a contact sheet, and their paths printed. Nothing else stays behind.
        """
        from farm.cli.demo import run_demo

        finish(
            run_demo(
                frames=frames,
                output=output,
                is_keeping=keep,
                scene_script=programs.demo_scene,
                shim=programs.blender_shim,
            )
        )
