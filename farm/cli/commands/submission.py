"""`farm submit`, and the commands that try a template on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from farm.cli.commands import job_options as option
from farm.cli.commands.options import Connect, Json, OrderOption, examples, finish

_REST = "farm.rest"


class _SubmitCommand(TyperCommand):
    """Keeps what stands after `--` apart from the scene: it is a command, or arguments for the renderer."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_REST] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", "[PATH]", "[-- COMMAND OR ARGUMENTS...]"]


def add_submit(app: typer.Typer, connect: Connect) -> None:
    @app.command(
        cls=_SubmitCommand,
        options_metavar="[OPTIONS]",
        epilog=examples(
            "farm submit shot.blend --frames 1-250x2 --output //render/####.png",
            "farm submit scene.pov --frames 1-20 --wait -- +W1920 +H1080",
            "farm submit bundle/ -p Frames=1-100 -p file://values.yaml",
            "farm submit --frames 1-20 --output out/####.png -- povray +Iscene.pov +K{frame} +O{output}",
        ),
    )
    def submit(
        ctx: typer.Context,
        paths: option.Paths = None,
        frames: option.FrameRange = None,
        output: option.OutputPath = None,
        parameters: option.Parameters = None,
        environment: option.Environments = None,
        name: option.JobTitle = None,
        priority: option.Priority = None,
        user: option.Owner = None,
        preempt: option.Preempt = False,
        project: option.Project = None,
        pool: option.Pool = None,
        paused: option.Paused = False,
        retries: option.Retries = None,
        max_running: option.MaxRunning = None,
        max_failed: option.MaxFailed = None,
        limit: option.LimitNeeds = None,
        depends_on: option.DependsOn = None,
        frame_by_frame: option.FrameByFrame = False,
        hook: option.Hooks = None,
        chunk_size: option.ChunkSize = None,
        chunk_s: option.ChunkSeconds = None,
        profile: option.Profile = None,
        reverse: option.Reverse = False,
        order: OrderOption = None,
        preview_first: option.PreviewFirst = False,
        probe: option.Probe = False,
        gpus: option.GpuCount = None,
        tiles: option.Tiles = None,
        sample_chunks: option.SampleChunks = None,
        cold: option.Cold = False,
        film: option.Film = None,
        film_rate: option.FilmRate = None,
        overwrite: option.Overwrite = False,
        trust_scripts: option.TrustScripts = False,
        timeout: option.Timeout = None,
        on_stall: option.OnStall = None,
        pretend: option.Pretend = False,
        wait: option.Wait = False,
        quiet: option.NumberAlone = False,
        json: Json = False,
        idempotency_key: option.IdempotencyKey = None,
    ) -> None:
        """Submit a scene, a template, a bundle or a command.

        What renders a scene is told by its extension: .blend, .pov. Files ending in .yaml or .json, and
        directories, are Open Job Description. What stands after -- is a command of its own, or, behind a
        scene, arguments for its renderer.
        """
        from farm.cli.submit import Wish
        from farm.cli.submit_command import Way, run_submit

        wish = Wish(
            paths=tuple(paths or ()), rest=ctx.meta.get(_REST), parameters=tuple(parameters or ()),
            environments=tuple(environment or ()), frames=frames, output=output, name=name,
            priority=priority, user=user, project=project, is_preempting=preempt, pool=pool,
            is_paused=paused, retries=retries, max_running=max_running, max_failed=max_failed,
            limits=tuple(limit or ()), depends_on=tuple(depends_on or ()), chunk_size=chunk_size,
            chunk_s=chunk_s, profile=profile, is_reverse=reverse, order=order, hooks=tuple(hook or ()),
            is_frame_by_frame=frame_by_frame, is_preview_first=preview_first, is_probed=probe, gpus=gpus,
            is_cold=cold, tiles=tiles, sample_chunks=sample_chunks, film=film, film_rate=film_rate,
            is_overwrite=overwrite, is_trusting=trust_scripts, timeout=timeout, on_stall=on_stall,
        )  # fmt: skip
        way = Way(is_pretend=pretend, is_waiting=wait, is_quiet=quiet, is_json=json, key=idempotency_key)
        finish(run_submit(connect, wish, way))


OutputJson = Annotated[bool, typer.Option("--json", help="The same as --output json.")]
_PASSED_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}


def add_openjd(app: typer.Typer) -> None:
    """The arguments are those of the program `openjd`, and pass on to it."""

    @app.command(
        context_settings=_PASSED_ON,
        options_metavar="PATH [ARGUMENTS OF openjd check]",
        epilog=examples(
            "farm check template.yaml", "farm check bundle/", "farm check env.yaml --output json"
        ),
    )
    def check(ctx: typer.Context, json: OutputJson = False) -> None:
        """Check a job or environment template, without a farm.

        Takes --output human-readable, json or yaml, and --extensions. Exits 1 for a wrong template.
        """
        from farm.cli import openjd_commands

        finish(openjd_commands.check(ctx.args, is_json=json))

    @app.command(
        context_settings=_PASSED_ON,
        options_metavar="PATH [ARGUMENTS OF openjd summary]",
        epilog=examples("farm summary template.yaml -p Frames=1-100", "farm summary bundle/ --step Render"),
    )
    def summary(ctx: typer.Context, json: OutputJson = False) -> None:
        """Say what a template makes: parameters, steps, tasks.

        Takes -p (--job-param) NAME=VALUE or file://values.yaml, --step, --output and --extensions.
        """
        from farm.cli import openjd_commands

        finish(openjd_commands.summary(ctx.args, is_json=json))

    @app.command(
        context_settings={**_PASSED_ON, "help_option_names": []},
        options_metavar="PATH [ARGUMENTS OF openjd run]",
        epilog=examples(
            "farm run template.yaml -p Frames=1-3",
            "farm run bundle/ --step Render -tp Frame=7 --run-dependencies",
            "farm run template.yaml --env conda.yaml --verbose",
        ),
    )
    def run(ctx: typer.Context, json: OutputJson = False) -> None:
        """Run a template here and now, without a farm.

        Takes -p (--job-param), --step, -tp (--task-param), --tasks, --maximum-tasks, --run-dependencies and
        --no-run-dependencies, --environment (--env), --path-mapping-rules, --preserve, --verbose,
        --timestamp-format, --output and --extensions. With a template, --help (-h) tells its parameters.
        """
        from farm.cli import openjd_commands

        if set(ctx.args) & {"-h", "--help"} and not openjd_commands.names_a_template(ctx.args):
            typer.echo(ctx.get_help())
            return
        finish(openjd_commands.run(ctx.args, is_json=json))
