"""Commands that change jobs and their tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.cli.commands import job_options as option
from farm.cli.commands.options import (
    Connect,
    Frames,
    JobName,
    JobNames,
    Json,
    OfStep,
    OrderOption,
    Silent,
    examples,
    finish,
)


def add_changes(app: typer.Typer, connect: Connect) -> None:
    _add_priority(app, connect)
    _add_settings(app, connect)
    _add_frames(app, connect)
    _add_resubmit(app, connect)
    _add_ends(app, connect)
    _add_retries(app, connect)


def _add_priority(app: typer.Typer, connect: Connect) -> None:
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


def _add_settings(app: typer.Typer, connect: Connect) -> None:
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
        priority: option.Priority = None,
        pool: Annotated[
            str | None, typer.Option(metavar="NAME", help="Only nodes of this pool; '' means any.")
        ] = None,
        retries: option.Retries = None,
        max_running: Annotated[
            int | None, typer.Option(metavar="N", help="At most so many frames at once; 0: no limit.")
        ] = None,
        max_failed: option.MaxFailed = None,
        timeout: Annotated[
            str | None,
            typer.Option(metavar="TIME", help="Stop a frame that takes longer: 90m, 2h; 0: no limit."),
        ] = None,
        profile: option.Profile = None,
        project: Annotated[
            str | None,
            typer.Option(metavar="NAME", help="Whose share of the farm it uses; '' for none."),
        ] = None,
        on_stall: option.OnStall = None,
        order: OrderOption = None,
        limit: option.OtherLimitNeeds = None,
        hook: option.OtherHooks = None,
        preempt: Annotated[
            bool | None,
            typer.Option("--preempt/--no-preempt", help="Stop others' frames for it, or not."),
        ] = None,
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
        from farm.flow.bundle_settings import read_limit_needs

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
            "project": project,
            "on_stall": on_stall,
            "limits": None if limit is None else read_limit_needs(filter(None, limit), what="--limit"),
            "hooks": None if hook is None else list(filter(None, hook)),
            "preempts": preempt,
        }
        changes.settings(connect(), jobs, body, is_quiet=quiet, is_json=json)


def _add_frames(app: typer.Typer, connect: Connect) -> None:
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


def _add_resubmit(app: typer.Typer, connect: Connect) -> None:
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
        output: Annotated[
            str | None,
            typer.Option(
                "--output",
                "-o",
                metavar="DIRECTORY",
                help="Where its files go; their names stay.",
            ),
        ] = None,
        parameters: Annotated[
            list[str] | None,
            typer.Option("-p", metavar="NAME=VALUE", help="Another value for a parameter. Repeatable."),
        ] = None,
        name: Annotated[str | None, typer.Option(metavar="TEXT", help="Another name.")] = None,
        priority: option.Priority = None,
        user: Annotated[str | None, typer.Option(metavar="NAME", help="Whose job it is.")] = None,
        pool: option.Pool = None,
        paused: option.Paused = False,
        retries: option.Retries = None,
        max_running: option.MaxRunning = None,
        depends_on: option.DependsOn = None,
        timeout: option.Timeout = None,
        order: OrderOption = None,
        overwrite: option.Overwrite = False,
        pretend: option.Pretend = False,
        wait: option.Wait = False,
        quiet: option.NumberAlone = False,
        json: Json = False,
        idempotency_key: option.IdempotencyKey = None,
    ) -> None:
        """Submit a job again as another job, with changes.

        Its settings are those of the old job as they are now, but what it waited for is not waited for again.
        """
        from farm.cli.resubmit import resubmit as again
        from farm.cli.submit import Wish
        from farm.cli.submit_command import Way

        wish = Wish(
            frames=frames,
            output=output,
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
        way = Way(is_pretend=pretend, is_waiting=wait, is_quiet=quiet, is_json=json, key=idempotency_key)
        finish(again(connect, job, wish, way, is_failed_only=failed))


def _add_ends(app: typer.Typer, connect: Connect) -> None:
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

    @app.command(
        "remove-job",
        epilog=examples(
            "farm remove-job 12", "farm remove-job $(farm jobs --all 'state=done and age>90d' --quiet)"
        ),
    )
    def remove_job(jobs: JobNames, quiet: Silent = False, json: Json = False) -> None:
        """Forget ended jobs, their tasks and logs; their files stay.

        What was learnt of their run times goes with them.
        """
        from farm.cli import changes

        changes.remove(connect(), jobs, is_quiet=quiet, is_json=json)


def _add_retries(app: typer.Typer, connect: Connect) -> None:
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
