"""`farm submit`, and the commands that try a template on this machine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from farm.cli.commands.options import JOBS, Connect, Json, OrderOption, completing, examples, finish

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
        paths: Annotated[
            list[str] | None,
            typer.Argument(metavar="PATH", help="A scene, a template or a bundle."),
        ] = None,
        frames: Annotated[
            str | None,
            typer.Option(
                "--frames",
                "-f",
                metavar="RANGE",
                help="1-100, 1-100x2, 10-1, 1,5,9-12; the scene's own if left out.",
            ),
        ] = None,
        output: Annotated[
            str | None,
            typer.Option(
                "--output",
                "-o",
                metavar="PATH",
                help="Where frames go; #### is the frame, // the scene's directory.",
            ),
        ] = None,
        parameters: Annotated[
            list[str] | None,
            typer.Option(
                "-p", metavar="NAME=VALUE", help="A template's parameter, or file://values.yaml. Repeatable."
            ),
        ] = None,
        environment: Annotated[
            list[str] | None,
            typer.Option(
                "--environment",
                "--env",
                metavar="PATH",
                help="An environment template around a template's sessions. Repeatable.",
            ),
        ] = None,
        name: Annotated[str | None, typer.Option(metavar="TEXT", help="The job's name.")] = None,
        priority: Annotated[
            int | None, typer.Option(metavar="0-100", help="Higher goes first; 50 when left out.")
        ] = None,
        user: Annotated[
            str | None, typer.Option(metavar="NAME", help="Whose job it is; you when left out.")
        ] = None,
        preempt: Annotated[
            bool,
            typer.Option(
                "--preempt", help="Stop others' frames for it that lose little, where the farm allows it."
            ),
        ] = False,
        project: Annotated[
            str | None, typer.Option(metavar="NAME", help="Whose share of the farm it uses.")
        ] = None,
        pool: Annotated[
            str | None,
            typer.Option(metavar="NAME[,NAME]", help="Only nodes of this pool, or of one of these."),
        ] = None,
        paused: Annotated[bool, typer.Option("--paused", help="Hold it until `farm resume`.")] = False,
        retries: Annotated[
            int | None,
            typer.Option(
                metavar="N", help="Failures a frame may have before it is given up; 2 when left out."
            ),
        ] = None,
        max_running: Annotated[
            int | None, typer.Option(metavar="N", help="At most so many frames at once.")
        ] = None,
        max_failed: Annotated[
            int | None,
            typer.Option(metavar="N", help="Stop the job when more frames failed; 100 when left out."),
        ] = None,
        limit: Annotated[
            list[str] | None,
            typer.Option(
                "--limit",
                metavar="NAME[=N]",
                help="Each frame takes 1 (or N) of this limit of the farm, such as a licence. Repeatable.",
            ),
        ] = None,
        depends_on: Annotated[
            list[str] | None,
            typer.Option(metavar="JOB", help="Wait until this job is done. Repeatable.", autocompletion=JOBS),
        ] = None,
        frame_by_frame: Annotated[
            bool,
            typer.Option(
                "--frame-by-frame", help="Each frame waits for the same one before it, not for the whole."
            ),
        ] = False,
        hook: Annotated[
            list[str] | None,
            typer.Option(
                metavar="NAME",
                help="Call this hook of the farm when it is done, failed or stalls; see `farm hooks`.",
                autocompletion=completing("hooks"),
            ),
        ] = None,
        chunk_size: Annotated[
            int | None, typer.Option(metavar="N", help="Frames a task; 1 when left out.")
        ] = None,
        chunk_s: Annotated[
            str | None,
            typer.Option(
                "--chunk-s",
                metavar="TIME",
                help="As many frames a task as take about so long: 300, 5m. Blender.",
            ),
        ] = None,
        profile: Annotated[
            Literal["compute", "bandwidth", "balanced"] | None,
            typer.Option(
                help="What the frames cost most: arithmetic or memory traffic; found out when left out."
            ),
        ] = None,
        reverse: Annotated[bool, typer.Option("--reverse", help="The last frame first.")] = False,
        order: OrderOption = None,
        preview_first: Annotated[
            bool, typer.Option("--preview-first", help="First, middle and last frame before the rest.")
        ] = False,
        probe: Annotated[
            bool,
            typer.Option(
                "--probe", help="First find out on a GPU, with few samples, what the frames cost most."
            ),
        ] = False,
        gpus: Annotated[
            int | None,
            typer.Option(
                metavar="N", help="Each task has N GPUs of its own, and renders on them; else on processors."
            ),
        ] = None,
        tiles: Annotated[
            str | None,
            typer.Option(
                metavar="COLSxROWS",
                help="Render each frame in tiles on several nodes: 2x2. Blender's Cycles.",
            ),
        ] = None,
        sample_chunks: Annotated[
            int | None,
            typer.Option(
                metavar="N", help="Render each frame N times with a share of its samples. Blender's Cycles."
            ),
        ] = None,
        cold: Annotated[bool, typer.Option("--cold", help="Start the renderer anew for each task.")] = False,
        film: Annotated[
            str | None,
            typer.Option(
                "--film", help="Encode the frames into this film at the end ('' names it after them)."
            ),
        ] = None,
        film_rate: Annotated[
            str | None,
            typer.Option("--film-rate", help="Frames a second of the film, such as 24 or 30000/1001."),
        ] = None,
        overwrite: Annotated[
            bool, typer.Option("--overwrite", help="Move files that are in the way aside.")
        ] = False,
        trust_scripts: Annotated[
            bool, typer.Option("--trust-scripts", help="Let scripts in the scene run.")
        ] = False,
        timeout: Annotated[
            str | None, typer.Option(metavar="TIME", help="Stop a frame that takes longer: 600, 90m, 2h.")
        ] = None,
        on_stall: Annotated[
            Literal["warn", "copy", "migrate", "kill"] | None,
            typer.Option(
                help="What to do about a frame that hangs or crawls; as the farm does when left out."
            ),
        ] = None,
        pretend: Annotated[
            bool, typer.Option("--pretend", help="Show what would be done; submit nothing.")
        ] = False,
        wait: Annotated[
            bool, typer.Option("--wait", help="Follow to the end; exit 0 only if all is done.")
        ] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the job's number alone.")] = False,
        json: Json = False,
        idempotency_key: Annotated[
            str | None,
            typer.Option(
                metavar="TEXT", help="Submitting twice with one key makes one job; random when left out."
            ),
        ] = None,
    ) -> None:
        """Submit a scene, a template, a bundle or a command.

        What renders a scene is told by its extension: .blend, .pov. Files ending in .yaml or .json, and
        directories, are Open Job Description. What stands after -- is a command of its own, or, behind a
        scene, arguments for its renderer.
        """
        from farm.cli.submit import Wish
        from farm.cli.submit_command import run_submit

        wish = Wish(
            paths=tuple(paths or ()),
            rest=ctx.meta.get(_REST),
            parameters=tuple(parameters or ()),
            environments=tuple(environment or ()),
            frames=frames,
            output=output,
            name=name,
            priority=priority,
            user=user,
            project=project,
            is_preempting=preempt,
            pool=pool,
            is_paused=paused,
            retries=retries,
            max_running=max_running,
            max_failed=max_failed,
            limits=tuple(limit or ()),
            depends_on=tuple(depends_on or ()),
            chunk_size=chunk_size,
            chunk_s=chunk_s,
            profile=profile,
            is_reverse=reverse,
            order=order,
            hooks=tuple(hook or ()),
            is_frame_by_frame=frame_by_frame,
            is_preview_first=preview_first,
            is_probed=probe,
            gpus=gpus,
            is_cold=cold,
            tiles=tiles,
            sample_chunks=sample_chunks,
            film=film,
            film_rate=film_rate,
            is_overwrite=overwrite,
            is_trusting=trust_scripts,
            timeout=timeout,
            on_stall=on_stall,
        )
        finish(
            run_submit(
                connect,
                wish,
                is_pretend=pretend,
                is_waiting=wait,
                is_quiet=quiet,
                is_json=json,
                key=idempotency_key,
            )
        )


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
