"""Commands for whoever runs the farm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from farm.cli.commands.options import (
    AllParked,
    Connect,
    Json,
    LimitName,
    ListedByDefault,
    ParkedIds,
    Quiet,
    Sort,
    columns_among,
    columns_of,
    examples,
    filter_of,
    finish,
    only,
    sort_of,
    wanted,
)

if TYPE_CHECKING:
    from farm.cli.app import Programs


def add_administration(app: typer.Typer, programs: Programs, connect: Connect) -> None:
    _add_doctor(app, programs)
    _add_limits(app, connect)
    _add_tokens(app, connect)
    _add_config(app)
    _add_database(app)
    _add_parked(app)
    _add_reconcile(app)


def _add_doctor(app: typer.Typer, programs: Programs) -> None:
    @app.command(epilog=examples("farm doctor", "farm doctor --json"))
    def doctor(json: Json = False) -> None:
        """Check this machine and its farm, and say what to do.

        Exits 1 when a finding is an error.
        """
        from farm.cli.doctor import run_doctor
        from farm.settings import load_settings

        settings = load_settings()
        finish(
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


def _add_limits(app: typer.Typer, connect: Connect) -> None:
    limits = typer.Typer(
        cls=ListedByDefault,
        help="List the farm's limits, such as licences; set and remove them.",
        rich_markup_mode=None,
    )

    app.add_typer(
        limits,
        name="limits",
        epilog=examples("farm limits", "farm limits 'waiting>0'", "farm limits set arnold 10"),
    )

    @limits.command(
        "list", epilog=examples("farm limits", "farm limits list 'waiting>0' --columns name,free")
    )
    def list_limits(
        filter: Annotated[list[str] | None, filter_of("limits")] = None,
        columns: Annotated[str | None, columns_of("limits")] = None,
        sort: Annotated[str | None, sort_of("limits")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List them, as `farm limits` does.

        How much is in use, by which jobs, and how many tasks wait.
        """
        from farm.cli import limits as limiting

        limiting.listed(connect, wanted(filter, columns, sort, is_quiet=quiet, is_json=json))

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
    def remove_limit(name: LimitName, json: Json = False) -> None:
        """Remove a limit: frames that ask for it wait for it no longer."""
        from farm.cli import limits as limiting

        limiting.remove(connect(), name, is_json=json)


def _add_tokens(app: typer.Typer, connect: Connect) -> None:
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

    @token.command("list", epilog=examples("farm token list", "farm token list 'user=anna' --quiet"))
    def listed(
        filter: Annotated[list[str] | None, filter_of("tokens")] = None,
        columns: Annotated[str | None, columns_of("tokens")] = None,
        sort: Annotated[str | None, sort_of("tokens")] = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List the tokens' names, never the tokens."""
        from farm.cli import tokens

        tokens.listed(connect, wanted(filter, columns, sort, is_quiet=quiet, is_json=json))

    @token.command("revoke", epilog=examples("farm token revoke anna-laptop"))
    def revoke(
        name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")], json: Json = False
    ) -> None:
        """Make a token useless at once."""
        from farm.cli import tokens

        tokens.revoke(connect(), name, is_json=json)


def _add_config(app: typer.Typer) -> None:
    config = typer.Typer(help="Look at the settings.", no_args_is_help=True, rich_markup_mode=None)

    app.add_typer(config, name="config", epilog=examples("farm config show"))

    @config.command("show", epilog=examples("farm config show", "farm config show 'from!=default'"))
    def show_config(
        filter: Annotated[
            list[str] | None, typer.Argument(metavar="[FILTER]", help="Such as 'setting~api'.")
        ] = None,
        columns: Annotated[str | None, columns_among("setting, value, from")] = None,
        sort: Sort = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """Print every setting, its value and where that comes from."""
        from farm.cli.config import show_settings

        show_settings(wanted(filter, columns, sort, is_quiet=quiet, is_json=json))


def _add_database(app: typer.Typer) -> None:
    db = typer.Typer(help="Look after the database.", no_args_is_help=True, rich_markup_mode=None)

    app.add_typer(db, name="db", epilog=examples("farm db backup farm-monday.db"))

    @db.command("upgrade", epilog=examples("farm db upgrade"))
    def upgrade(json: Json = False) -> None:
        """Bring the database's tables up to this program's version. Make a backup first."""
        from farm.cli import database
        from farm.settings import load_settings

        database.upgrade(load_settings(), is_json=json)

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
        json: Json = False,
    ) -> None:
        """Copy the database while the farm runs.

        For PostgreSQL this runs pg_dump, or prints its command where there is none.
        """
        from farm.cli import database
        from farm.settings import load_settings

        database.backup(load_settings(), path, is_json=json)

    @app.command("restore", epilog=examples("farm restore /backup/farm-monday.db"))
    @db.command("restore", epilog=examples("farm db restore /backup/farm.db"))
    def restore(
        path: Annotated[Path, typer.Argument(metavar="PATH", help="What `farm backup` has written.")],
        json: Json = False,
    ) -> None:
        """Put a backup in the database's place. Stop the farm first; what was there is kept aside.

        For PostgreSQL this runs pg_restore, or prints its command where there is none. Afterwards
        `farm reconcile` says what has happened on the disk since the backup.
        """
        from farm.cli import database
        from farm.settings import load_settings

        database.restore(load_settings(), path, is_json=json)


def _add_parked(app: typer.Typer) -> None:
    parked = typer.Typer(
        cls=ListedByDefault, help="List messages that nobody could read; send them on.", rich_markup_mode=None
    )

    app.add_typer(parked, name="parked", epilog=examples("farm parked", "farm parked replay --all"))

    @parked.command("list", epilog=examples("farm parked", "farm parked list 'age>1d' --quiet"))
    def list_parked(
        filter: Annotated[
            list[str] | None, typer.Argument(metavar="[FILTER]", help="Such as 'by~blade and age>1d'.")
        ] = None,
        columns: Annotated[str | None, columns_among("id, to, by, kind, wire, size, age, why")] = None,
        sort: Sort = None,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        """List them, as `farm parked` does.

        Their receiver could not read them, as from a newer version. Nothing is lost by it: each is kept until
        it is sent on or dropped.
        """
        from farm.cli import parked
        from farm.settings import load_settings

        parked.show_parked(load_settings(), wanted(filter, columns, sort, is_quiet=quiet, is_json=json))

    @parked.command("replay", epilog=examples("farm parked replay --all", "farm parked replay 3f9a0c1b2d4e"))
    def replay_parked(ids: ParkedIds = None, takes_all: AllParked = False, json: Json = False) -> None:
        """Send parked messages on, as after an upgrade."""
        from farm.cli import parked
        from farm.settings import load_settings

        parked.replay(load_settings(), ids or (), takes_all=takes_all, is_json=json)

    @parked.command("drop", epilog=examples("farm parked drop 3f9a0c1b2d4e", "farm parked drop --all"))
    def drop_parked(ids: ParkedIds = None, takes_all: AllParked = False, json: Json = False) -> None:
        """Throw messages away for good."""
        from farm.cli import parked
        from farm.settings import load_settings

        parked.drop(load_settings(), ids or (), takes_all=takes_all, is_json=json)


def _add_reconcile(app: typer.Typer) -> None:
    @app.command(epilog=examples("farm reconcile", "farm reconcile 12 --fix", "farm reconcile --json"))
    def reconcile(
        jobs: Annotated[list[int] | None, typer.Argument(metavar="[JOB]...", help="Only these.")] = None,
        fix: Annotated[
            bool, typer.Option("--fix", help="Render done tasks again whose files are gone.")
        ] = False,
        shows_all: Annotated[bool, typer.Option("--all", help="Show every difference.")] = False,
        columns: Annotated[str | None, columns_of("differences")] = None,
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
        answer = only(columns, is_json=json)
        finish(run_reconcile(load_settings(), chosen, fix=fix, shows_all=shows_all, wanted=answer))
