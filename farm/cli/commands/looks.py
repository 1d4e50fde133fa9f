"""Commands that look at jobs, tasks, output and events."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from farm.cli.commands.options import (
    Connect,
    Frames,
    JobName,
    JobNames,
    Json,
    OfStep,
    Quiet,
    columns_of,
    completing,
    examples,
    filter_of,
    finish,
    only,
    sort_of,
    state_of,
    wanted,
)


def add_looks(app: typer.Typer, connect: Connect) -> None:
    _add_jobs(app, connect)
    _add_tasks(app, connect)
    _add_logs(app, connect)
    _add_matching(app, connect)
    _add_stalled(app, connect)
    _add_events(app, connect)
    _add_fields(app)
    _add_preview(app, connect)
    _add_waiting(app, connect)


def _add_jobs(app: typer.Typer, connect: Connect) -> None:
    @app.command(
        epilog=examples(
            "farm jobs",
            "farm jobs 'state=failed and age<2d'",
            "farm jobs --user anna --columns id,name,progress,left",
        )
    )
    def jobs(
        filter: Annotated[list[str] | None, filter_of("jobs")] = None,
        state: Annotated[list[str] | None, state_of("jobs")] = None,
        user: Annotated[str | None, typer.Option(metavar="NAME", help="Only this user's.")] = None,
        name: Annotated[str | None, typer.Option(metavar="TEXT", help="Only jobs named so.")] = None,
        everything: Annotated[
            bool, typer.Option("--all", "-a", help="Every job, not just those that go on and the newest.")
        ] = False,
        columns: Annotated[str | None, columns_of("jobs")] = None,
        sort: Annotated[str | None, sort_of("jobs")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List jobs, newest first: progress, time left, why one waits."""
        from farm.cli import jobs

        jobs.jobs(
            connect,
            states=state or (),
            user=user,
            name=name,
            is_all=everything,
            wanted=wanted(filter, columns, sort, is_quiet=quiet, is_json=json),
        )

    @app.command(epilog=examples("farm job 12", "farm job 12 --json"))
    def job(
        job: JobName,
        usage: Annotated[
            bool, typer.Option("--usage", help="What it used of GPUs: hours, energy, memory.")
        ] = False,
        columns: Annotated[str | None, columns_of("steps")] = None,
        json: Json = False,
    ) -> None:
        """Show all there is to know of a job.

        With --columns, a table of its steps.
        """
        from farm.cli import jobs
        from farm.errors import UserError

        if usage and columns is not None:
            raise UserError("--columns are of a job's steps: leave --usage away")
        if usage:
            jobs.usage(connect(), job, is_json=json)
        else:
            jobs.job(connect, job, only(columns, is_json=json))

    @app.command(epilog=examples("farm why 12"))
    def why(job: JobName, json: Json = False) -> None:
        """Say why a job's tasks wait, one line a cause."""
        from farm.cli import jobs

        jobs.why(connect(), job, is_json=json)


def _add_tasks(app: typer.Typer, connect: Connect) -> None:
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
                autocompletion=completing("job_or_filter", "tasks"),
            ),
        ] = None,
        state: Annotated[list[str] | None, state_of("tasks")] = None,
        frames: Frames = None,
        step: OfStep = None,
        columns: Annotated[str | None, columns_of("tasks")] = None,
        sort: Annotated[str | None, sort_of("tasks")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List tasks: node, time, and what went wrong."""
        from farm.cli import tasks

        tasks.tasks(
            connect,
            states=state or (),
            frames=frames,
            step=step,
            wanted=wanted(words, columns, sort, is_quiet=quiet, is_json=json),
        )


def _add_logs(app: typer.Typer, connect: Connect) -> None:
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
        json: Json = False,
    ) -> None:
        """Print a renderer's logs.

        Of the attempt that runs now, else of the last that failed, else of the last one. With --grep, of the
        last attempt at each frame.
        """
        from farm.cli import logs
        from farm.errors import UserError

        if grep is not None:
            if any((task is not None, attempt is not None, follow, tail is not None)):
                raise UserError(
                    "--grep looks through all frames: leave away --task, --attempt, --follow, --tail"
                )
            if frame is not None:
                frames = f"{frames},{frame}" if frames else str(frame)
            finish(logs.grep(connect(), job, grep, frames=frames, states=state or (), is_json=json))
        if frames is not None or state:
            raise UserError("--frames and --state belong to --grep; without it, choose one --frame")

        logs.logs(
            connect(), job, frame=frame, task_id=task, attempt_id=attempt, is_following=follow, tail=tail,
            is_json=json,
        )  # fmt: skip


def _add_matching(app: typer.Typer, connect: Connect) -> None:
    @app.command(epilog=examples("farm profile 12", "farm profile 12 --json"))
    def profile(
        job: JobName, columns: Annotated[str | None, columns_of("times")] = None, json: Json = False
    ) -> None:
        """Show what a job's steps demand, and how long they take where.

        With --columns, a table of the times alone.
        """
        from farm.cli import matching

        matching.profile(connect, job, only(columns, is_json=json))

    @app.command(epilog=examples("farm stats", "farm stats --json"))
    def stats(columns: Annotated[str | None, columns_of("stats")] = None, json: Json = False) -> None:
        """Show how widely run times spread, and which nodes are slow."""
        from farm.cli import matching

        matching.stats(connect, only(columns, is_json=json))

    @app.command(epilog=examples("farm capacity"))
    def capacity(
        filter: Annotated[list[str] | None, filter_of("models")] = None,
        columns: Annotated[str | None, columns_of("models")] = None,
        sort: Annotated[str | None, sort_of("models")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """Show what one more device of each model would save."""
        from farm.cli import matching

        matching.capacity(connect, wanted(filter, columns, sort, is_quiet=quiet, is_json=json))

    @app.command(
        epilog=examples(
            "farm explain 12",
            "farm explain 12 --frame 7",
            "farm explain 12 'suits<50%' --columns frame,node,why",
        )
    )
    def explain(
        job: JobName,
        filter: Annotated[list[str] | None, filter_of("attempts")] = None,
        frame: Annotated[int | None, typer.Option(metavar="N", help="Only attempts at this frame.")] = None,
        columns: Annotated[str | None, columns_of("attempts")] = None,
        sort: Annotated[str | None, sort_of("attempts")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """Say why tasks went where they did, in figures.

        Of each attempt what was foreseen, how well its device suits the work, and why this work got it.
        """
        from farm.cli import explain as explaining

        explaining.explain(
            connect,
            job,
            frame=frame,
            wanted=wanted(filter, columns, sort, is_quiet=quiet, is_json=json),
        )


def _add_stalled(app: typer.Typer, connect: Connect) -> None:
    @app.command(
        epilog=examples("farm stalled", "farm stalled 'kind=hung and node~gpu'", "farm stalled --all")
    )
    def stalled(
        filter: Annotated[list[str] | None, filter_of("stalled")] = None,
        everything: Annotated[
            bool, typer.Option("--all", "-a", help="Also what works and has said nothing for a while.")
        ] = False,
        columns: Annotated[str | None, columns_of("stalled")] = None,
        sort: Annotated[str | None, sort_of("stalled")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List what runs and gets nowhere, and what was done.

        What each is taken for, by which evidence.
        """
        from farm.cli import stalled as stalls

        stalls.stalled(
            connect,
            with_silent=everything,
            wanted=wanted(filter, columns, sort, is_quiet=quiet, is_json=json),
        )


def _add_events(app: typer.Typer, connect: Connect) -> None:
    @app.command(
        epilog=examples(
            "farm events --follow",
            "farm events --job 12 --limit 200",
            "farm events 'kind=task-failed and node=blade-3'",
        )
    )
    def events(
        filter: Annotated[list[str] | None, filter_of("events")] = None,
        job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only of this job.")] = None,
        limit: Annotated[int, typer.Option(metavar="N", min=1, help="How many, the newest last.")] = 50,
        follow: Annotated[bool, typer.Option("--follow", help="Go on as they happen, until Ctrl-C.")] = False,
        columns: Annotated[str | None, columns_of("events")] = None,
        sort: Annotated[str | None, sort_of("events")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List what happened on the farm.

        A filter is held against the newest 1,000 events.
        """
        from farm.cli import events

        events.events(
            connect,
            job=job,
            limit=limit,
            is_following=follow,
            wanted=wanted(filter, columns, sort, is_quiet=quiet, is_json=json),
        )

    @app.command(epilog=examples("farm hooks"))
    def hooks(
        filter: Annotated[list[str] | None, filter_of("hooks")] = None,
        columns: Annotated[str | None, columns_of("hooks")] = None,
        sort: Annotated[str | None, sort_of("hooks")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List the hooks that jobs may ask for with --hook."""
        from farm.cli import events

        events.hooks(connect, wanted(filter, columns, sort, is_quiet=quiet, is_json=json))


def _add_fields(app: typer.Typer) -> None:
    @app.command(epilog=examples("farm fields", "farm fields tasks"))
    def fields(
        of: Annotated[
            str | None,
            typer.Argument(
                metavar="[LIST]",
                help="Of what: jobs, tasks and so on; all when left out.",
                autocompletion=completing("lists"),
            ),
        ] = None,
        json: Json = False,
    ) -> None:
        """Explain filters, and the fields for them and for --columns."""
        from farm.cli import listing

        listing.explain(of, is_json=json)


def _add_preview(app: typer.Typer, connect: Connect) -> None:
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


def _add_waiting(app: typer.Typer, connect: Connect) -> None:
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
        from farm.cli import waiting

        finish(waiting.watch(connect(), jobs, is_failing_fast=fail_fast, is_quiet=quiet, is_json=json))

    @app.command(epilog=examples("farm wait 12 13 && echo all done"))
    def wait(
        jobs: JobNames,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
        json: Json = False,
    ) -> None:
        """Wait until jobs have ended.

        Exits 0 only if all of them are done.
        """
        from farm.cli import waiting

        finish(waiting.wait(connect(), jobs, is_quiet=quiet, is_json=json))
