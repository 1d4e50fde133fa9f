"""The command line's tree of commands.

Only Typer is imported up here; each command imports what it needs when it runs: `farm --help` must be quick.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from farm.cli.client import Client
    from farm.cli.doctor import GpusSeen
    from farm.cli.listing import Wanted
    from farm.settings import Settings


Connect = Callable[[], "Client"]


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


def examples(*lines: str) -> str:
    """A help epilog. `\\b` keeps Typer from joining the lines."""
    return "\b\n" + "\n".join(
        ("Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines))
    )


def _completing(what: str, of: str = "") -> Callable[[str], list[tuple[str, str]]]:
    """What a Tab offers; imported when one is pressed."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        from farm.cli import complete as offers

        offer = getattr(offers, what)
        made: list[tuple[str, str]] = offer(incomplete, of) if of else offer(incomplete)
        return made

    return complete


def _filter_of(what: str) -> Any:
    return typer.Argument(
        metavar="[FILTER]",
        help="Such as 'state=failed and age<2d'; see `farm fields`.",
        autocompletion=_completing("filters", what),
    )


def _columns_of(what: str) -> Any:
    return typer.Option(
        "--columns",
        metavar="A,B,C",
        help="Which fields to show, or all; see `farm fields`.",
        autocompletion=_completing("columns", what),
    )


def _sort_of(what: str) -> Any:
    return typer.Option(
        "--sort",
        metavar="FIELD",
        help="In the order of this field; -FIELD turns it round.",
        autocompletion=_completing("order", what),
    )


def _state_of(what: str) -> Any:
    return typer.Option(
        metavar="STATE",
        help=f"Only {what} in this state. Repeatable.",
        autocompletion=_completing("states", what),
    )


_JOBS = _completing("jobs")
_NODES = _completing("nodes")
ParkedIds = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="As listed.")]
AllParked = Annotated[bool, typer.Option("--all", help="All of them.")]
Json = Annotated[bool, typer.Option("--json", help="Print the farm's own objects as JSON, for scripts.")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's number.", autocompletion=_JOBS)]
JobNames = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Numbers of jobs.", autocompletion=_JOBS)
]
NodeNames = Annotated[
    list[str], typer.Argument(metavar="NODE...", help="Names of nodes.", autocompletion=_NODES)
]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.", autocompletion=_NODES)]
LimitName = Annotated[str, typer.Argument(metavar="NAME", help="The limit's name, such as arnold.")]
Frames = Annotated[
    str | None, typer.Option("--frames", "-f", metavar="RANGE", help="Only these frames, such as 1-100x2.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the numbers or names alone.")]
Silent = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing when it went well.")]
OrderOption = Annotated[
    str | None,
    typer.Option(metavar="ORDER", help="forward, reverse, first-middle-last, or every-N: each Nth first."),
]
OfStep = Annotated[str | None, typer.Option("--step", metavar="NAME", help="Only tasks of this step.")]


def build(programs: Programs, at_end: ExitStack) -> typer.Typer:
    """The whole program. What commands open is closed by `at_end`."""
    app = typer.Typer(
        name="farm",
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
    _add_submit(app, connect)
    _add_openjd(app)
    _add_looks(app, connect)
    _add_changes(app, connect)
    _add_nodes(app, connect)
    _add_programs(app, programs, connect)
    _add_administration(app, programs, connect)
    return app


def _finish(status: int) -> None:
    raise typer.Exit(status)


def _wanted(
    words: list[str] | None, columns: str | None, sort: str | None, *, is_quiet: bool, is_json: bool
) -> Wanted:
    from farm.cli.listing import Wanted

    return Wanted(words=tuple(words or ()), columns=columns, sort=sort, is_quiet=is_quiet, is_json=is_json)


def _connecter(at_end: ExitStack) -> Connect:
    def connect() -> Client:
        from farm.cli import client
        from farm.settings import load_settings

        made = client.connect(load_settings())
        at_end.callback(made.close)
        return made

    return connect


# --- submit -------------------------------------------------------------------------------------------

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


def _add_submit(app: typer.Typer, connect: Connect) -> None:
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
            typer.Option(
                metavar="JOB", help="Wait until this job is done. Repeatable.", autocompletion=_JOBS
            ),
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
                autocompletion=_completing("hooks"),
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
        _finish(
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


# --- Open Job Description, on this machine ------------------------------------------------------------

_PASSED_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}


def _add_openjd(app: typer.Typer) -> None:
    """The arguments are those of the program `openjd`, and pass on to it."""

    @app.command(
        context_settings=_PASSED_ON,
        options_metavar="PATH [ARGUMENTS OF openjd check]",
        epilog=examples(
            "farm check template.yaml", "farm check bundle/", "farm check env.yaml --output json"
        ),
    )
    def check(ctx: typer.Context) -> None:
        """Check a job or environment template, without a farm.

        Takes --output human-readable, json or yaml, and --extensions. Exits 1 for a wrong template.
        """
        from farm.cli import openjd_commands

        _finish(openjd_commands.check(ctx.args))

    @app.command(
        context_settings=_PASSED_ON,
        options_metavar="PATH [ARGUMENTS OF openjd summary]",
        epilog=examples("farm summary template.yaml -p Frames=1-100", "farm summary bundle/ --step Render"),
    )
    def summary(ctx: typer.Context) -> None:
        """Say what a template makes: parameters, steps, tasks.

        Takes -p NAME=VALUE or file://values.yaml, --step, --output and --extensions.
        """
        from farm.cli import openjd_commands

        _finish(openjd_commands.summary(ctx.args))

    @app.command(
        context_settings=_PASSED_ON,
        options_metavar="PATH [ARGUMENTS OF openjd run]",
        epilog=examples(
            "farm run template.yaml -p Frames=1-3",
            "farm run bundle/ --step Render -tp Frame=7 --run-dependencies",
            "farm run template.yaml --env conda.yaml --verbose",
        ),
    )
    def run(ctx: typer.Context) -> None:
        """Run a template here and now, without a farm.

        Takes -p, --step, -tp, --tasks, --maximum-tasks, --run-dependencies, --environment (--env),
        --path-mapping-rules, --preserve, --verbose, --timestamp-format, --output and --extensions.
        """
        from farm.cli import openjd_commands

        _finish(openjd_commands.run(ctx.args))


# --- look ---------------------------------------------------------------------------------------------


def _add_looks(app: typer.Typer, connect: Connect) -> None:
    @app.command(
        epilog=examples(
            "farm jobs",
            "farm jobs 'state=failed and age<2d'",
            "farm jobs --user anna --columns id,name,progress,left",
        )
    )
    def jobs(
        filter: Annotated[list[str] | None, _filter_of("jobs")] = None,
        state: Annotated[list[str] | None, _state_of("jobs")] = None,
        user: Annotated[str | None, typer.Option(metavar="NAME", help="Only this user's.")] = None,
        name: Annotated[str | None, typer.Option(metavar="TEXT", help="Only jobs named so.")] = None,
        everything: Annotated[
            bool, typer.Option("--all", "-a", help="Every job, not just those that go on and the newest.")
        ] = False,
        columns: Annotated[str | None, _columns_of("jobs")] = None,
        sort: Annotated[str | None, _sort_of("jobs")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List jobs, newest first: progress, time left, why one waits."""
        from farm.cli import looks

        looks.jobs(
            connect,
            states=state or (),
            user=user,
            name=name,
            is_all=everything,
            wanted=_wanted(filter, columns, sort, is_quiet=quiet, is_json=json),
        )

    @app.command(epilog=examples("farm job 12", "farm job 12 --json"))
    def job(
        job: JobName,
        usage: Annotated[
            bool, typer.Option("--usage", help="What it used of GPUs: hours, energy, memory.")
        ] = False,
        json: Json = False,
    ) -> None:
        """Show all there is to know of a job."""
        from farm.cli import looks

        if usage:
            looks.usage(connect(), job, is_json=json)
        else:
            looks.job(connect(), job, is_json=json)

    @app.command(
        epilog=examples(
            "farm tasks 12",
            "farm tasks 12 'state=failed and node~gpu'",
            "farm tasks 'state=running and time>10m' --sort -time",
        )
    )
    def tasks(
        words: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="[JOB] [FILTER]",
                help="The job's number, all when left out; and a filter, see `farm fields`.",
                autocompletion=_completing("job_or_filter", "tasks"),
            ),
        ] = None,
        state: Annotated[list[str] | None, _state_of("tasks")] = None,
        frames: Frames = None,
        step: OfStep = None,
        columns: Annotated[str | None, _columns_of("tasks")] = None,
        sort: Annotated[str | None, _sort_of("tasks")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List tasks: node, time, and what went wrong."""
        from farm.cli import looks

        looks.tasks(
            connect,
            states=state or (),
            frames=frames,
            step=step,
            wanted=_wanted(words, columns, sort, is_quiet=quiet, is_json=json),
        )

    @app.command(
        epilog=examples(
            "farm logs 12 --follow",
            "farm logs 12 --frame 7 --tail 50",
            "farm logs 12 --grep 'missing texture' --state failed",
        )
    )
    def logs(
        job: JobName,
        frame: Annotated[
            int | None, typer.Option(metavar="N", help="The newest attempt at this frame.")
        ] = None,
        task: Annotated[
            int | None, typer.Option(metavar="TASK", help="The newest attempt at this task.")
        ] = None,
        attempt: Annotated[str | None, typer.Option(metavar="ID", help="This very attempt.")] = None,
        follow: Annotated[bool, typer.Option("--follow", help="Go on until the attempt ends.")] = False,
        tail: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only the last lines.")] = None,
        grep: Annotated[
            str | None,
            typer.Option(metavar="TEXT", help="Lines that hold this text, of all frames; exits 1 if none."),
        ] = None,
        frames: Annotated[
            str | None, typer.Option("--frames", "-f", metavar="RANGE", help="With --grep: of these frames.")
        ] = None,
        state: Annotated[
            list[str] | None, typer.Option(metavar="STATE", help="With --grep: of tasks in this state.")
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="With --grep: print JSON, for scripts.")] = False,
    ) -> None:
        """Print a renderer's output.

        Of the attempt that runs now, else of the last that failed, else of the last one. With --grep, of the
        last attempt at each frame.
        """
        from farm.cli import looks
        from farm.errors import UserError

        if grep is not None:
            if any((task is not None, attempt is not None, follow, tail is not None)):
                raise UserError(
                    "--grep looks through all frames: leave away --task, --attempt, --follow, --tail"
                )
            if frame is not None:
                frames = f"{frames},{frame}" if frames else str(frame)
            _finish(looks.grep(connect(), job, grep, frames=frames, states=state or (), is_json=json))
        if frames is not None or state or json:
            raise UserError("--frames, --state and --json belong to --grep; without it, choose one --frame")

        looks.logs(
            connect(), job, frame=frame, task_id=task, attempt_id=attempt, is_following=follow, tail=tail
        )

    @app.command(epilog=examples("farm why 12"))
    def why(job: JobName, json: Json = False) -> None:
        """Say why a job's tasks wait, one line a cause."""
        from farm.cli import looks

        looks.why(connect(), job, is_json=json)

    @app.command(epilog=examples("farm profile 12", "farm profile 12 --json"))
    def profile(job: JobName, json: Json = False) -> None:
        """Show what a job's steps demand, and how long they take where."""
        from farm.cli import matching

        matching.profile(connect(), job, is_json=json)

    @app.command(epilog=examples("farm stalled", "farm stalled --all --json"))
    def stalled(
        everything: Annotated[
            bool, typer.Option("--all", "-a", help="Also what works and has said nothing for a while.")
        ] = False,
        json: Json = False,
    ) -> None:
        """List what runs and gets nowhere, and what was done.

        What each is taken for, by which evidence.
        """
        from farm.cli import stalled as stalls

        stalls.stalled(connect(), with_silent=everything, is_json=json)

    @app.command(epilog=examples("farm stats", "farm stats --json"))
    def stats(json: Json = False) -> None:
        """Show how widely run times spread, and which nodes are slow."""
        from farm.cli import matching

        matching.stats(connect(), is_json=json)

    @app.command(epilog=examples("farm capacity"))
    def capacity(json: Json = False) -> None:
        """Show what one more device of each model would save."""
        from farm.cli import matching

        matching.capacity(connect(), is_json=json)

    @app.command(epilog=examples("farm explain 12", "farm explain 12 --frame 7"))
    def explain(
        job: JobName,
        frame: Annotated[int | None, typer.Option(metavar="N", help="Only attempts at this frame.")] = None,
        json: Json = False,
    ) -> None:
        """Say why tasks went where they did, in figures."""
        from farm.cli import explain as explaining

        explaining.explain(connect(), job, frame=frame, is_json=json)

    @app.command(
        epilog=examples(
            "farm events --follow",
            "farm events --job 12 --limit 200",
            "farm events 'kind=task-failed and node=blade-3'",
        )
    )
    def events(
        filter: Annotated[list[str] | None, _filter_of("events")] = None,
        job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only of this job.")] = None,
        limit: Annotated[int, typer.Option(metavar="N", min=1, help="How many, the newest last.")] = 50,
        follow: Annotated[bool, typer.Option("--follow", help="Go on as they happen, until Ctrl-C.")] = False,
        columns: Annotated[str | None, _columns_of("events")] = None,
        sort: Annotated[str | None, _sort_of("events")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List what happened on the farm.

        A filter is held against the newest 1,000 events.
        """
        from farm.cli import looks

        looks.events(
            connect,
            job=job,
            limit=limit,
            is_following=follow,
            wanted=_wanted(filter, columns, sort, is_quiet=quiet, is_json=json),
        )

    @app.command(epilog=examples("farm hooks"))
    def hooks(json: Json = False) -> None:
        """List the hooks that jobs may ask for with --hook."""
        from farm.cli import looks

        looks.hooks(connect(), is_json=json)

    @app.command(epilog=examples("farm fields", "farm fields tasks"))
    def fields(
        of: Annotated[
            Literal["jobs", "tasks", "nodes", "events"] | None,
            typer.Argument(metavar="[LIST]", help="jobs, tasks, nodes or events; all when left out."),
        ] = None,
        json: Json = False,
    ) -> None:
        """Explain filters, and the fields for them and for --columns."""
        from farm.cli import listing

        listing.explain(of, is_json=json)

    @app.command(epilog=examples("farm preview 12", "farm preview 12 --frames 1-50 --output sheet.png"))
    def preview(
        job: JobName,
        frames: Frames = None,
        count: Annotated[int, typer.Option(metavar="N", min=1, max=400, help="At most so many frames.")] = 12,
        columns: Annotated[int, typer.Option(metavar="N", min=1, max=40, help="Frames side by side.")] = 4,
        output: Annotated[
            Path | None, typer.Option("--output", "-o", metavar="PATH", help="Where to write the sheet.")
        ] = None,
        inline: Annotated[
            Literal["auto", "no", "kitty", "iterm", "sixel"],
            typer.Option(help="How to show it in the terminal; auto asks the terminal."),
        ] = "auto",
        json: Json = False,
    ) -> None:
        """Show a job's finished frames on one sheet.

        In the terminal where it can show pictures, and its path everywhere. The frames must be on this
        machine, or mounted here.
        """
        from farm.cli import preview as sheet
        from farm.settings import load_settings

        sheet.preview(
            connect(),
            job,
            frames=frames,
            count=count,
            columns=columns,
            output=output,
            inline=inline,
            state_dir=load_settings().state_dir,
            is_json=json,
        )

    @app.command(epilog=examples("farm watch 12", "farm watch 12 13 --fail-fast || farm logs 12"))
    def watch(
        jobs: JobNames,
        fail_fast: Annotated[
            bool, typer.Option("--fail-fast", help="End at the first failed frame; the job goes on.")
        ] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Notify, print nothing.")] = False,
        json: Json = False,
    ) -> None:
        """Follow jobs and notify you when they end.

        On the desktop where there is one, else by the terminal. Also at the first failed frame. Exits 0 if
        all are done, 1 if one failed, 4 if one was cancelled.
        """
        from farm.cli import looks

        _finish(looks.watch(connect(), jobs, is_failing_fast=fail_fast, is_quiet=quiet, is_json=json))

    @app.command(epilog=examples("farm wait 12 13 && echo all done"))
    def wait(
        jobs: JobNames,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
        json: Json = False,
    ) -> None:
        """Wait until jobs have ended.

        Exits 0 only if all of them are done.
        """
        from farm.cli import looks

        _finish(looks.wait(connect(), jobs, is_quiet=quiet, is_json=json))


# --- change -------------------------------------------------------------------------------------------


def _add_changes(app: typer.Typer, connect: Connect) -> None:
    @app.command(epilog=examples("farm pause 12"))
    def pause(jobs: JobNames, quiet: Silent = False, json: Json = False) -> None:
        """Hold jobs: what runs goes on, nothing new is started."""
        from farm.cli import changes

        changes.change(connect(), jobs, {"is_paused": True}, "paused", is_quiet=quiet, is_json=json)

    @app.command(epilog=examples("farm resume 12"))
    def resume(jobs: JobNames, quiet: Silent = False, json: Json = False) -> None:
        """Let paused jobs go on."""
        from farm.cli import changes

        changes.change(connect(), jobs, {"is_paused": False}, "resumed", is_quiet=quiet, is_json=json)

    @app.command(epilog=examples("farm priority 12 80"))
    def priority(
        job: JobName,
        priority: Annotated[int, typer.Argument(metavar="0-100", help="Higher goes first.")],
        quiet: Silent = False,
        json: Json = False,
    ) -> None:
        """Set a job's priority."""
        from farm.cli import changes

        told = f"has priority {priority} now"
        changes.change(connect(), [job], {"priority": priority}, told, is_quiet=quiet, is_json=json)

    @app.command(
        "change",
        epilog=examples(
            "farm change 12 --priority 80 --order first-middle-last",
            "farm change 12 13 --timeout 2h --retries 5 --pool gpu",
        ),
    )
    def change_settings(
        jobs: JobNames,
        name: Annotated[str | None, typer.Option(metavar="TEXT", help="Another name.")] = None,
        priority: Annotated[int | None, typer.Option(metavar="0-100", help="Higher goes first.")] = None,
        pool: Annotated[
            str | None, typer.Option(metavar="NAME", help="Only nodes of this pool; '' means any.")
        ] = None,
        retries: Annotated[
            int | None, typer.Option(metavar="N", help="Failures a frame may have before it is given up.")
        ] = None,
        max_running: Annotated[
            int | None, typer.Option(metavar="N", help="At most so many frames at once; 0: no limit.")
        ] = None,
        max_failed: Annotated[
            int | None, typer.Option(metavar="N", help="Stop the job when more frames failed.")
        ] = None,
        timeout: Annotated[
            str | None,
            typer.Option(metavar="TIME", help="Stop a frame that takes longer: 90m, 2h; 0: no limit."),
        ] = None,
        profile: Annotated[
            Literal["compute", "bandwidth", "balanced"] | None,
            typer.Option(help="What the frames cost most."),
        ] = None,
        order: OrderOption = None,
        overwrite: Annotated[
            bool | None,
            typer.Option("--overwrite/--keep-files", help="Move files in the way aside, or refuse."),
        ] = None,
        quiet: Silent = False,
        json: Json = False,
    ) -> None:
        """Change settings of jobs; what runs goes on as it is."""
        from farm.cli import changes
        from farm.cli.submit import seconds

        body = {
            "name": name,
            "priority": priority,
            "pool": pool,
            "max_retries": retries,
            "max_running": max_running,
            "max_failed_tasks": max_failed,
            "timeout_s": None if timeout is None else 0.0 if timeout == "0" else seconds(timeout),
            "tag": profile,
            "order": order,
            "replace_existing": overwrite,
        }
        changes.settings(connect(), jobs, body, is_quiet=quiet, is_json=json)

    @app.command(epilog=examples("farm append 12 101-120"))
    def append(
        job: JobName,
        frames: Annotated[str, typer.Argument(metavar="RANGE", help="Frames that the job has not yet.")],
        step: Annotated[
            str | None,
            typer.Option("--step", metavar="NAME", help="Of this step; of the largest if left out."),
        ] = None,
        quiet: Silent = False,
        json: Json = False,
    ) -> None:
        """Add frames to a job; a film at its end is made again."""
        from farm.cli import changes

        changes.append(connect(), job, frames, step=step, is_quiet=quiet, is_json=json)

    @app.command(
        epilog=examples(
            "farm resubmit 12 --frames 1-10 --priority 90",
            "farm resubmit 12 --failed -p Samples=512 --wait",
        )
    )
    def resubmit(
        job: JobName,
        frames: Annotated[
            str | None, typer.Option("--frames", "-f", metavar="RANGE", help="Other frames.")
        ] = None,
        failed: Annotated[bool, typer.Option("--failed", help="The frames that failed.")] = False,
        parameters: Annotated[
            list[str] | None,
            typer.Option("-p", metavar="NAME=VALUE", help="Another value for a parameter. Repeatable."),
        ] = None,
        name: Annotated[str | None, typer.Option(metavar="TEXT", help="Another name.")] = None,
        priority: Annotated[int | None, typer.Option(metavar="0-100", help="Higher goes first.")] = None,
        user: Annotated[str | None, typer.Option(metavar="NAME", help="Whose job it is.")] = None,
        pool: Annotated[str | None, typer.Option(metavar="NAME", help="Only nodes of this pool.")] = None,
        paused: Annotated[bool, typer.Option("--paused", help="Hold it until `farm resume`.")] = False,
        retries: Annotated[int | None, typer.Option(metavar="N", help="Failures a frame may have.")] = None,
        max_running: Annotated[
            int | None, typer.Option(metavar="N", help="At most so many frames at once.")
        ] = None,
        depends_on: Annotated[
            list[str] | None,
            typer.Option(metavar="JOB", help="Wait until this job is done.", autocompletion=_JOBS),
        ] = None,
        timeout: Annotated[
            str | None, typer.Option(metavar="TIME", help="Stop a frame that takes longer.")
        ] = None,
        order: OrderOption = None,
        overwrite: Annotated[
            bool, typer.Option("--overwrite", help="Move files that are in the way aside.")
        ] = False,
        pretend: Annotated[
            bool, typer.Option("--pretend", help="Show what would be done; submit nothing.")
        ] = False,
        wait: Annotated[bool, typer.Option("--wait", help="Follow to the end.")] = False,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the job's number alone.")] = False,
        json: Json = False,
        idempotency_key: Annotated[
            str | None, typer.Option(metavar="TEXT", help="Twice with one key makes one job.")
        ] = None,
    ) -> None:
        """Submit a job again as another job, with changes.

        Its settings are those of the old job as they are now, but what it waited for is not waited for again.
        """
        from farm.cli.resubmit import resubmit as again
        from farm.cli.submit import Wish

        wish = Wish(
            frames=frames,
            parameters=tuple(parameters or ()),
            name=name,
            priority=priority,
            user=user,
            pool=pool,
            is_paused=paused,
            retries=retries,
            max_running=max_running,
            depends_on=tuple(depends_on or ()),
            timeout=timeout,
            order=order,
            is_overwrite=overwrite,
        )
        _finish(
            again(
                connect,
                job,
                wish,
                is_failed_only=failed,
                is_pretend=pretend,
                is_waiting=wait,
                is_quiet=quiet,
                is_json=json,
                key=idempotency_key,
            )
        )

    @app.command(epilog=examples("farm cancel 12", "farm cancel 12 --frames 100-250"))
    def cancel(
        jobs: JobNames,
        frames: Frames = None,
        step: OfStep = None,
        quiet: Silent = False,
        json: Json = False,
    ) -> None:
        """End jobs, or some of their frames.

        Their renderers are stopped. Frames that are done stay.
        """
        from farm.cli import changes

        changes.cancel(connect(), jobs, frames=frames, step=step, is_quiet=quiet, is_json=json)

    @app.command(epilog=examples("farm retry 12", "farm retry 12 --frames 7", "farm retry --failed"))
    def retry(
        jobs: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="[JOB...]", help="Numbers of jobs; with --failed, all of yours if left out."
            ),
        ] = None,
        frames: Frames = None,
        step: OfStep = None,
        failed: Annotated[
            bool, typer.Option("--failed", help="Failed frames only, not those that were cancelled.")
        ] = False,
        quiet: Silent = False,
        json: Json = False,
    ) -> None:
        """Try failed and cancelled frames again."""
        from farm.cli import changes
        from farm.errors import UserError

        if not jobs and not failed:
            raise UserError("name a job, or say --failed to retry what failed in all of yours")
        states = ("failed",) if failed else ("failed", "cancelled")
        changes.retry(
            connect(), jobs or (), frames=frames, step=step, states=states, is_quiet=quiet, is_json=json
        )

    @app.command(epilog=examples("farm requeue 12 --frames 1-20", "farm requeue 12 --all"))
    def requeue(
        jobs: JobNames,
        frames: Frames = None,
        step: OfStep = None,
        everything: Annotated[bool, typer.Option("--all", help="Every frame of the job.")] = False,
        quiet: Silent = False,
        json: Json = False,
    ) -> None:
        """Render frames again that are done, failed or cancelled."""
        from farm.cli import changes

        changes.requeue(
            connect(), jobs, frames=frames, step=step, is_all=everything, is_quiet=quiet, is_json=json
        )

    @app.command(epilog=examples("farm release 12 --frames 7"))
    def release(
        jobs: JobNames,
        frames: Frames = None,
        step: OfStep = None,
        quiet: Silent = False,
        json: Json = False,
    ) -> None:
        """Start held frames again, on your word.

        You say that their old renderer is dead for certain. A frame is held when its node vanished
        while a command ran that writes where it likes. Two of them at once could spoil each other's files,
        so the farm waits for the node, or for your word.
        """
        from farm.cli import changes

        changes.retry(
            connect(), jobs, frames=frames, step=step, states=("held",), is_quiet=quiet, is_json=json
        )


# --- nodes --------------------------------------------------------------------------------------------


def _add_nodes(app: typer.Typer, connect: Connect) -> None:
    @app.command(epilog=examples("farm nodes", "farm nodes 'free>0 and vram>=24G' --columns name,vram,free"))
    def nodes(
        filter: Annotated[list[str] | None, _filter_of("nodes")] = None,
        columns: Annotated[str | None, _columns_of("nodes")] = None,
        sort: Annotated[str | None, _sort_of("nodes")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List the machines: devices, use, and what runs on them."""
        from farm.cli import looks

        looks.nodes(connect, _wanted(filter, columns, sort, is_quiet=quiet, is_json=json))

    @app.command(epilog=examples("farm node blade-3"))
    def node(node: NodeName, json: Json = False) -> None:
        """Show all there is to know of a machine."""
        from farm.cli import looks

        looks.node(connect(), node, is_json=json)

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


# --- programs -----------------------------------------------------------------------------------------


def _add_programs(app: typer.Typer, programs: Programs, connect: Connect) -> None:
    @app.command(epilog=examples("farm up"))
    def up() -> None:
        """Start a whole farm on this machine, in one process.

        Server, scheduler and one node; the database is a file, and nothing needs to be configured.
        """
        from farm.settings import load_settings

        _finish(programs.up(load_settings()))

    @app.command(epilog=examples("FARM_CONFIG=configs/facility.toml farm serve", "farm serve --lan"))
    def serve(
        lan: Annotated[
            bool, typer.Option("--lan", help="Answer this network too, and print what to type elsewhere.")
        ] = False,
    ) -> None:
        """Start the server that artists talk to."""
        from farm.settings import load_settings

        if not lan:
            _finish(programs.serve(load_settings()))
        from farm.cli import lan as network
        from farm.cli import show

        address = network.lan_address()
        settings = network.lan_settings(address)
        for line in network.what_to_type(settings, address):
            show.note(line)
        _finish(programs.serve(settings))

    @app.command(epilog=examples("FARM_CONFIG=configs/facility.toml farm scheduler"))
    def scheduler() -> None:
        """Start a scheduler: one leads, others may stand by."""
        from farm.settings import load_settings

        _finish(programs.scheduler(load_settings()))

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
        _finish(programs.worker(settings))

    @worker_app.command(epilog=examples("farm worker benchmark"))
    def benchmark(
        again: Annotated[bool, typer.Option("--again", help="Also what was measured before.")] = False,
    ) -> None:
        """Measure this machine's devices: a few seconds each."""
        from farm.settings import load_settings

        _finish(programs.benchmark(load_settings(), again))

    @app.command(epilog=examples("farm record --hours 12 night.json", "farm simulate night.json"))
    def record(
        file: Annotated[Path, typer.Argument(metavar="FILE.json", help="Where to write it.")],
        hours: Annotated[float, typer.Option(min=0.01, max=744, help="How far back.")] = 12.0,
    ) -> None:
        """Record what the farm did, to be played again by simulate."""
        from farm.cli import simulate as simulating

        simulating.record(connect(), file, hours=hours)

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
        json: Json = False,
    ) -> None:
        """Play a farm on a virtual clock: other nodes, weights, policy."""
        from farm.cli import simulate as simulating

        simulating.simulate(
            file=file, farm=farm, add=add or (), policies=policy or ("predictive",), load=load, hours=hours,
            jobs=jobs, weights=weight or (), has_faults=faults, seeds=seeds, drawing=svg, is_json=json,
        )  # fmt: skip

    @app.command(epilog=examples("farm live", "farm live --once"))
    def live(
        interval: Annotated[float, typer.Option(metavar="SECONDS", help="How often to look.")] = 1.0,
        once: Annotated[bool, typer.Option("--once", help="Print how things stand, and end.")] = False,
    ) -> None:
        """Watch jobs, nodes and events on the full screen; q quits."""
        _finish(programs.live(connect(), interval, once))

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

        _finish(
            run_demo(
                frames=frames,
                output=output,
                is_keeping=keep,
                scene_script=programs.demo_scene,
                shim=programs.blender_shim,
            )
        )


# --- administration -----------------------------------------------------------------------------------


def _add_administration(app: typer.Typer, programs: Programs, connect: Connect) -> None:
    @app.command(epilog=examples("farm doctor", "farm doctor --json"))
    def doctor(json: Json = False) -> None:
        """Check this machine and its farm, and say what to do.

        Exits 1 when a finding is an error.
        """
        from farm.cli.doctor import run_doctor
        from farm.settings import load_settings

        settings = load_settings()
        _finish(
            run_doctor(
                settings,
                containment=programs.containment,
                gpus=lambda: programs.gpus(settings),
                is_json=json,
            )
        )

    @app.command(epilog=examples("farm version"))
    def version(json: Json = False) -> None:
        """Print the version of this program."""
        import platform

        from farm import __version__
        from farm.cli import show

        if json:
            show.data({"version": __version__, "python": platform.python_version()})
        else:
            print(f"Ridgeline {__version__}, Python {platform.python_version()}")

    limits = typer.Typer(
        help="List the farm's limits, such as licences; set and remove them.",
        invoke_without_command=True,
        rich_markup_mode=None,
    )
    app.add_typer(
        limits,
        name="limits",
        epilog=examples("farm limits", "farm limits set arnold 10", "farm limits --json"),
    )

    @limits.callback()
    def list_limits(ctx: typer.Context, json: Json = False) -> None:
        if ctx.invoked_subcommand is None:
            from farm.cli import limits as limiting

            limiting.listed(connect(), is_json=json)

    @limits.command(
        "set", epilog=examples("farm limits set arnold 10", "farm limits set houdini 4 --per node")
    )
    def set_limit(
        name: LimitName,
        amount: Annotated[int, typer.Argument(metavar="N", min=0, help="How much of it there is.")],
        per: Annotated[
            Literal["task", "node", "job"],
            typer.Option(help="What takes of it: each task, each node, or each job that has tasks running."),
        ] = "task",
        json: Json = False,
    ) -> None:
        """Make a limit, or change it.

        Frames submitted with --limit NAME wait until there is enough of it; none fails for it. Set below what
        is in use, nothing is stopped, and nothing more starts.
        """
        from farm.cli import limits as limiting

        limiting.put(connect(), name=name, amount=amount, per=per, is_json=json)

    @limits.command("remove", epilog=examples("farm limits remove arnold"))
    def remove_limit(name: LimitName) -> None:
        """Remove a limit: frames that ask for it wait for it no longer."""
        from farm.cli import limits as limiting

        limiting.remove(connect(), name)

    token = typer.Typer(
        help="Make and revoke the tokens that let people in.", no_args_is_help=True, rich_markup_mode=None
    )
    app.add_typer(token, name="token", epilog=examples("farm token create anna-laptop --user anna"))

    @token.command("create", epilog=examples("farm token create anna-laptop --user anna"))
    def create(
        name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the token, to revoke it by.")],
        user: Annotated[
            str | None, typer.Option(metavar="NAME", help="Whom it speaks for; NAME when left out.")
        ] = None,
        role: Annotated[
            Literal["user", "admin"],
            typer.Option(help="A user steers his own jobs, an admin all jobs and the nodes."),
        ] = "user",
        json: Json = False,
    ) -> None:
        """Make a token and print it, this once."""
        from farm.cli import tokens

        tokens.create(connect(), name=name, user=user or name, role=role, is_json=json)

    @token.command("list", epilog=examples("farm token list"))
    def listed(json: Json = False) -> None:
        """List the tokens' names, never the tokens."""
        from farm.cli import tokens

        tokens.listed(connect(), is_json=json)

    @token.command("revoke", epilog=examples("farm token revoke anna-laptop"))
    def revoke(name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")]) -> None:
        """Make a token useless at once."""
        from farm.cli import tokens

        tokens.revoke(connect(), name)

    config = typer.Typer(help="Look at the settings.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(config, name="config", epilog=examples("farm config show"))

    @config.command("show", epilog=examples("farm config show", "farm config show --json"))
    def show_config(json: Json = False) -> None:
        """Print every setting, its value and where that comes from."""
        from farm.cli.config import show_settings

        show_settings(is_json=json)

    db = typer.Typer(help="Look after the database.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(db, name="db", epilog=examples("farm db backup farm-monday.db"))

    @db.command("upgrade", epilog=examples("farm db upgrade"))
    def upgrade() -> None:
        """Bring the database's tables up to this program's version. Make a backup first."""
        from farm.cli import database
        from farm.settings import load_settings

        database.upgrade(load_settings())

    @db.command("version", epilog=examples("farm db version"))
    def db_version(json: Json = False) -> None:
        """Print the version of the database's tables."""
        from farm.cli import database
        from farm.settings import load_settings

        database.version(load_settings(), is_json=json)

    @app.command("backup", epilog=examples("farm backup /backup/farm-monday.db"))
    @db.command("backup", epilog=examples("farm db backup /backup/farm.db"))
    def backup(
        path: Annotated[Path, typer.Argument(metavar="PATH", help="A file that does not exist yet.")],
    ) -> None:
        """Copy the database while the farm runs.

        For PostgreSQL this runs pg_dump, or prints its command where there is none.
        """
        from farm.cli import database
        from farm.settings import load_settings

        database.backup(load_settings(), path)

    @app.command("restore", epilog=examples("farm restore /backup/farm-monday.db"))
    @db.command("restore", epilog=examples("farm db restore /backup/farm.db"))
    def restore(
        path: Annotated[Path, typer.Argument(metavar="PATH", help="What `farm backup` has written.")],
    ) -> None:
        """Put a backup in the database's place. Stop the farm first; what was there is kept aside.

        For PostgreSQL this runs pg_restore, or prints its command where there is none. Afterwards
        `farm reconcile` says what has happened on the disk since the backup.
        """
        from farm.cli import database
        from farm.settings import load_settings

        database.restore(load_settings(), path)

    parked = typer.Typer(
        help="Messages that nobody could read.", invoke_without_command=True, rich_markup_mode=None
    )
    app.add_typer(parked, name="parked", epilog=examples("farm parked", "farm parked replay --all"))

    @parked.callback()
    def list_parked(context: typer.Context, json: Json = False) -> None:
        """List messages that their receiver could not read, as from a newer version.

        Nothing is lost by it: each is kept until it is sent on or dropped.
        """
        if context.invoked_subcommand is None:
            from farm.cli import parked
            from farm.settings import load_settings

            parked.show_parked(load_settings(), is_json=json)

    @parked.command("replay", epilog=examples("farm parked replay --all", "farm parked replay 3f9a0c1b2d4e"))
    def replay_parked(ids: ParkedIds = None, takes_all: AllParked = False) -> None:
        """Send parked messages on, as after an upgrade."""
        from farm.cli import parked
        from farm.settings import load_settings

        parked.replay(load_settings(), ids or (), takes_all=takes_all)

    @parked.command("drop", epilog=examples("farm parked drop 3f9a0c1b2d4e", "farm parked drop --all"))
    def drop_parked(ids: ParkedIds = None, takes_all: AllParked = False) -> None:
        """Throw messages away for good."""
        from farm.cli import parked
        from farm.settings import load_settings

        parked.drop(load_settings(), ids or (), takes_all=takes_all)

    @app.command(epilog=examples("farm reconcile", "farm reconcile 12 --fix", "farm reconcile --json"))
    def reconcile(
        jobs: Annotated[list[int] | None, typer.Argument(metavar="[JOB]...", help="Only these.")] = None,
        fix: Annotated[
            bool, typer.Option("--fix", help="Render done tasks again whose files are gone.")
        ] = False,
        shows_all: Annotated[bool, typer.Option("--all", help="Show every difference.")] = False,
        json: Json = False,
    ) -> None:
        """Compare the disk with the database, and say what to do.

        Run it on the server, where the storage is mounted; after a restore, before the farm is started.
        Exits 1 when something differs.
        """
        from farm.cli.reconcile import run_reconcile
        from farm.model.ids import JobId
        from farm.settings import load_settings

        chosen = [JobId(job) for job in jobs or ()]
        _finish(run_reconcile(load_settings(), chosen, fix=fix, shows_all=shows_all, is_json=json))
