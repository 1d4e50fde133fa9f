"""`farm doctor`: looks at this machine and its farm, and says what to do about each finding."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import CLIENT_FILE, connect
from farm.cli.config import hide_password
from farm.cli.plugins import COMMAND, load_plugins
from farm.control.views import FarmView
from farm.errors import FarmError, Forbidden, Unavailable, UserError
from farm.model.machines import Device
from farm.settings import Settings
from farm.text import duration, plural, size

FIXED_SQLITE: Final = (3, 51, 3)
"""The release that fixed the WAL-reset bug: two connections that write and checkpoint at one time."""
OLDEST_RABBITMQ: Final = (3, 10)
CURRENT_RABBITMQ: Final = (4, 0)
CLOCK_TOLERANCE_S: Final = 5.0
LOW_DISK_BYTES: Final = 5 * 2**30
FULL_DISK_BYTES: Final = 2**30
_BROKER_TIMEOUT_S: Final = 5.0


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    level: Level
    text: str
    advice: str = ""
    """What to do about it; empty when nothing is."""


def run_doctor(
    settings: Settings,
    *,
    containment: Callable[[], str],
    gpus: Callable[[], GpusSeen] = lambda: GpusSeen(),
    is_json: bool,
) -> int:
    """Print the findings as they come; 1 when one is an error.

    containment tells how renderers are held; gpus what the drivers of this machine say.
    """
    found: list[Finding] = []
    for finding in examine(settings, containment=containment, gpus=gpus):
        found.append(finding)
        if not is_json:
            _print(finding)
    if is_json:
        show.data([asdict(finding) for finding in found])
    errors = sum(finding.level is Level.ERROR for finding in found)
    warnings = sum(finding.level is Level.WARNING for finding in found)
    if not is_json:
        print(
            f"{plural(errors, 'error')}, {plural(warnings, 'warning')}"
            if errors or warnings
            else "all is well"
        )
    return 1 if errors else 0


def examine(
    settings: Settings,
    *,
    containment: Callable[[], str],
    gpus: Callable[[], GpusSeen] = lambda: GpusSeen(),
) -> Iterator[Finding]:
    yield from check_state_dir(settings.state_dir)
    yield from check_database(settings)
    yield from check_broker(settings.broker_url)
    yield from check_api(settings)
    yield from check_renderers()
    yield from check_containment(containment)
    yield from check_gpus(gpus())
    yield from check_disk((settings.state_dir, *settings.allowed_roots))


def _print(finding: Finding) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=max(map(len, Level)))
    grid.add_column(overflow="fold")
    grid.add_row(show.state(finding.level), show.words(f"{finding.check}: {finding.text}"))
    if finding.advice:
        grid.add_row("", show.words(f"-> {finding.advice}"))
    show.put(grid)


# --- this machine -------------------------------------------------------------------------------------


def check_state_dir(path: Path) -> Iterator[Finding]:
    check = "state directory"
    if not path.exists():
        yield Finding(check=check, level=Level.NOTE, text=f"{path} does not exist yet; the farm makes it")
        return
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            check=check,
            level=Level.ERROR,
            text=f"{path} cannot be written by this user",
            advice=f"sudo chown -R $USER {path}, or set state_dir",
        )
        return
    from farm.store.engine import REMOTE_FILE_SYSTEMS, file_system_of

    kind = file_system_of(path.resolve())
    if kind in REMOTE_FILE_SYSTEMS:
        yield Finding(
            check=check,
            level=Level.ERROR,
            text=f"{path} is on {kind}, where locks and SQLite are not safe",
            advice="set state_dir to a directory on a local disk",
        )
    else:
        yield Finding(check=check, level=Level.OK, text=f"{path} ({kind or 'unknown file system'})")
    token = path / CLIENT_FILE
    if token.exists():
        mode = token.stat().st_mode & 0o777
        is_open = mode & 0o077 != 0
        yield Finding(
            check="token file",
            level=Level.ERROR if is_open else Level.OK,
            text=f"{token} has mode {mode:04o}"
            + (": others on this machine can read the token" if is_open else ""),
            advice=f"chmod 600 {token}, then `farm token revoke` and make a new one" if is_open else "",
        )


def check_disk(places: tuple[Path, ...]) -> Iterator[Finding]:
    for place in dict.fromkeys(places):
        there = place
        while not there.exists() and there != there.parent:
            there = there.parent
        try:
            free = shutil.disk_usage(there).free
        except OSError as error:
            yield Finding(
                check="disk", level=Level.ERROR, text=f"{place} cannot be looked at: {error.strerror}"
            )
            continue
        if free < FULL_DISK_BYTES:
            level, advice = Level.ERROR, "make room: frames and the database need it"
        elif free < LOW_DISK_BYTES:
            level, advice = Level.WARNING, "make room soon"
        else:
            level, advice = Level.OK, ""
        yield Finding(check="disk", level=level, text=f"{place}: {size(free)} free", advice=advice)


def check_renderers() -> Iterator[Finding]:
    plugins, broken = load_plugins()
    for name, reason in broken.items():
        yield Finding(
            check="plugin",
            level=Level.ERROR,
            text=f"{name} cannot be loaded: {reason}",
            advice="reinstall the package that brings it, or remove it",
        )
    absent = []
    for name, plugin in sorted(plugins.items()):
        if name == COMMAND:
            continue
        try:
            version = plugin.version()
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises is a finding, not our end
            yield Finding(
                check="renderer", level=Level.ERROR, text=f"{name} fails to tell its version: {error}"
            )
            continue
        if version is None:
            absent.append(name)
        else:
            yield Finding(check="renderer", level=Level.OK, text=f"{name} {version}")
    if absent:
        is_bare = len(absent) == len(plugins) - (COMMAND in plugins)
        yield Finding(
            check="renderer",
            level=Level.WARNING if is_bare else Level.NOTE,
            text=f"not on this machine: {', '.join(absent)}",
            advice=_how_to_install({name: plugins[name].debian_package for name in absent}),
        )


def _how_to_install(packages: Mapping[str, str]) -> str:
    """packages: renderer to Debian's package of it, empty where there is none."""
    ways = []
    if packaged := sorted(filter(None, packages.values())):
        ways.append(f"apt install {' '.join(packaged)} (Debian)")
    if others := sorted(name for name, package in packages.items() if not package):
        ways.append(f"install {', '.join(others)} as their makers say, onto the agent's PATH")
    return f"to render with one: {'; '.join(ways)}; then restart the agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusSeen:
    """What the GPUs' drivers say of this machine."""

    devices: tuple[Device, ...] = ()
    faults: tuple[str, ...] = ()
    """One line for each device that is of no use, or takes no work."""
    notes: tuple[str, ...] = ()
    node_fault: str = ""
    """Why the whole node would be drained."""


def check_gpus(seen: GpusSeen) -> Iterator[Finding]:
    if seen.node_fault:
        yield Finding(
            check="GPU",
            level=Level.ERROR,
            text=seen.node_fault,
            advice="a node in this state takes no work; docs/gpus.md has the ways out",
        )
        return
    for device in seen.devices:
        doubts = "; ".join(f"{name} is not known: {why}" for name, why in device.unknown.items())
        yield Finding(check="GPU", level=Level.OK, text=f"{device.model}{f' ({doubts})' if doubts else ''}")
    for fault in seen.faults:
        yield Finding(
            check="GPU", level=Level.ERROR, text=fault, advice="docs/gpus.md says what to do for each failure"
        )
    for note in seen.notes:
        is_absent = note in ("no NVIDIA driver", "the NVIDIA driver is not loaded")
        yield Finding(check="GPU", level=Level.NOTE if is_absent else Level.WARNING, text=note)


def check_containment(containment: Callable[[], str]) -> Iterator[Finding]:
    kind = containment()
    if kind == "subreaper":
        yield Finding(
            check="containment",
            level=Level.WARNING,
            text="no PID namespace can be made here: a killed agent may leave renderers behind for a while",
            advice="install util-linux (unshare, setpriv) and allow user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1), or run the agent as root",
        )
    else:
        yield Finding(
            check="containment", level=Level.OK, text=f"renderers are held in a {kind.replace('-', ' ')}"
        )


# --- the farm -----------------------------------------------------------------------------------------


def check_database(settings: Settings) -> Iterator[Finding]:
    import sqlalchemy as sa

    from farm.cli.database import sqlite_file
    from farm.store import schema
    from farm.store.engine import open_engine

    check = "database"
    place = hide_password(settings.database)
    try:
        file = sqlite_file(settings.database)
        if file is not None:
            yield from _check_sqlite()
            if not file.is_file():
                yield Finding(
                    check=check, level=Level.NOTE, text=f"{file} does not exist yet; `farm up` makes it"
                )
                return
        engine = open_engine(settings.database)
        try:
            found = schema.version(engine)
        finally:
            engine.dispose()
    except Unavailable as error:
        yield Finding(
            check=check,
            level=Level.ERROR,
            text=f"{place}: {error}",
            advice="start the database, or correct database_url; a machine that only renders needs none",
        )
    except (UserError, sa.exc.SQLAlchemyError) as error:
        yield Finding(check=check, level=Level.ERROR, text=str(error), advice="correct database_url")
    else:
        yield Finding(check=check, level=Level.OK, text=f"{place} answers")
        yield check_schema(found, schema.HEAD)


def check_schema(found: str | None, needed: str) -> Finding:
    check = "schema"
    if found == needed:
        return Finding(check=check, level=Level.OK, text=f"version {found}")
    if found is None or found < needed:
        return Finding(
            check=check,
            level=Level.ERROR,
            text=f"version {found or 'none'}, this program needs {needed}",
            advice="`farm db backup`, then `farm db upgrade`",
        )
    return Finding(
        check=check,
        level=Level.ERROR,
        text=f"version {found} is newer than this program knows ({needed})",
        advice="upgrade this program, or restore the backup from before the upgrade",
    )


def _check_sqlite() -> Iterator[Finding]:
    version = sqlite3.sqlite_version_info
    text = f"SQLite {sqlite3.sqlite_version}"
    if version < FIXED_SQLITE:
        yield Finding(
            check="SQLite",
            level=Level.NOTE,
            text=f"{text} has a bug that 3.51.3 fixed (WAL reset): two writing processes can spoil the file",
            advice="one process alone (`farm up`) keeps clear of it; use PostgreSQL when several write, "
            "and make backups with `farm db backup`",
        )
    else:
        yield Finding(check="SQLite", level=Level.OK, text=text)


def check_broker(url: str) -> Iterator[Finding]:
    check = "broker"
    if url.startswith("memory:"):
        yield Finding(check=check, level=Level.OK, text="embedded: one process, this machine alone")
        return
    place = hide_password(url)
    yield from check_account(url)
    try:
        properties = _broker_properties(url)
    except Exception as error:  # noqa: BLE001 - kombu raises what the transport and the URL's parser raise
        yield Finding(
            check=check,
            level=Level.ERROR,
            text=f"{place} does not answer: {type(error).__name__}: {error}",
            advice="start RabbitMQ, or correct broker_url, its user and its password",
        )
        return
    product, version = str(properties.get("product", "?")), str(properties.get("version", "?"))
    yield Finding(check=check, level=Level.OK, text=f"{place} answers")
    yield check_rabbitmq(product, version)
    yield from check_parked(url)


def check_parked(url: str) -> Iterator[Finding]:
    from farm.broker.parked import listed

    check = "parked messages"
    try:
        found = listed(url)
    except Unavailable as error:
        yield Finding(
            check=check,
            level=Level.NOTE,
            text=f"it cannot be seen whether there are any: {error}",
            advice="this account may not read queue farm.parked; look from the server",
        )
        return
    if found:
        yield Finding(
            check=check,
            level=Level.WARNING,
            text=f"{plural(len(found), 'message')} could not be read, the first by {found[0].by or '?'}",
            advice="`farm parked` lists them; after an upgrade `farm parked replay --all` sends them on",
        )


def check_account(url: str) -> Iterator[Finding]:
    """The account that RabbitMQ comes with, whose password everybody knows."""
    parts = urlsplit(url)
    if unquote(parts.username or "guest") != "guest":
        return
    if _is_loopback(parts.hostname or "localhost"):
        yield Finding(
            check="broker account",
            level=Level.NOTE,
            text="the default account guest is used, on this machine only",
            advice="before other machines join: rabbitmqctl add_user farm; rabbitmqctl delete_user guest",
        )
    else:
        yield Finding(
            check="broker account",
            level=Level.ERROR,
            text=f"the default account guest is used on {parts.hostname}: who reaches it can run commands",
            advice="rabbitmqctl add_user farm, give it permissions, put it into broker_url, "
            "then rabbitmqctl delete_user guest",
        )


def check_rabbitmq(product: str, version: str) -> Finding:
    check = "broker version"
    numbers = tuple(int(part) for part in re.findall(r"[0-9]+", version)[:2])
    text = f"{product} {version}"
    if product != "RabbitMQ" or len(numbers) < 2:
        return Finding(
            check=check, level=Level.WARNING, text=f"{text}: only RabbitMQ is tested", advice="use RabbitMQ"
        )
    if numbers < OLDEST_RABBITMQ:
        return Finding(
            check=check,
            level=Level.ERROR,
            text=f"{text} is older than 3.10",
            advice="upgrade RabbitMQ; 4.x is current",
        )
    if numbers < CURRENT_RABBITMQ:
        return Finding(
            check=check,
            level=Level.NOTE,
            text=f"{text} works; the RabbitMQ project no longer mends the 3.x series",
            advice="keep it current through your distribution, or plan for 4.x",
        )
    return Finding(check=check, level=Level.OK, text=text)


def check_api(settings: Settings) -> Iterator[Finding]:
    check = "server"
    client = connect(settings, patience_s=0.0)
    try:
        asked = time.time()
        farm = read(FarmView, client.get("/farm"))
        answered = time.time()
    except Unavailable as error:
        yield Finding(
            check=check,
            level=Level.WARNING,
            text=str(error),
            advice="`farm up` on a workstation; on a farm, `farm serve` on the server and api_url here",
        )
        return
    except Forbidden as error:
        yield Finding(check=check, level=Level.ERROR, text=str(error), advice="set api_token")
        return
    except FarmError as error:
        yield Finding(
            check=check, level=Level.ERROR, text=str(error), advice="check api_url and both versions"
        )
        return
    finally:
        client.close()
    yield Finding(
        check=check, level=Level.OK, text=f"{client.url} answers, version {farm.version}, you are {farm.user}"
    )
    if farm.leader is None:
        yield Finding(
            check="scheduler",
            level=Level.ERROR,
            text="no scheduler leads: nothing is started",
            advice="start one with `farm scheduler`",
        )
    if farm.nodes_online == 0:
        yield Finding(
            check="nodes",
            level=Level.WARNING,
            text=f"none of {farm.nodes} takes work" if farm.nodes else "there are none",
            advice="start one with `farm worker`; `farm nodes` tells why others do not",
        )
    yield check_clock(asked, farm.now, answered)


def check_clock(asked: float, answer: float, answered: float) -> Finding:
    """This machine's clock when it asked and when it was answered, and the farm's between."""
    ahead_s = max(asked - answer, 0.0) - max(answer - answered, 0.0)
    if abs(ahead_s) <= CLOCK_TOLERANCE_S:
        return Finding(check="clock", level=Level.OK, text="agrees with the farm's")
    way = "ahead of" if ahead_s > 0 else "behind"
    return Finding(
        check="clock",
        level=Level.WARNING,
        text=f"this machine is {duration(abs(ahead_s))} {way} the farm: times in logs and lists do not match",
        advice="switch time synchronisation on: timedatectl set-ntp true",
    )


def _broker_properties(url: str) -> dict[str, Any]:
    from kombu import Connection

    with Connection(url, connect_timeout=_BROKER_TIMEOUT_S) as connection:
        connection.ensure_connection(max_retries=1, timeout=_BROKER_TIMEOUT_S)
        found: dict[str, Any] = getattr(connection.connection, "server_properties", None) or {}
        return found


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
