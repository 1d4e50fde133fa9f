"""The program `farm`: wires the rooms together. The one module that imports from every ring."""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError, IllegalMove, Unavailable, UserError
from farm.text import clean

if TYPE_CHECKING:
    from farm.cli.client import Client
    from farm.settings import Settings

# Nothing heavy up here: `farm --help` must be quick. What a command needs is imported when it runs.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    0: done. 1: the job failed, or what was asked for is not all done. 2: the request is wrong. 3: the farm
    cannot be reached. 130: Ctrl-C.
    """
    from farm.cli.app import Programs, build

    _tolerate_any_terminal()
    app = build(
        Programs(
            up=run_up,
            serve=run_serve,
            scheduler=run_scheduler,
            worker=run_worker,
            live=run_live,
            containment=containment,
            demo_scene=demo_scene,
            blender_shim=blender_shim,
        )
    )
    try:
        app(args=None if arguments is None else list(arguments), prog_name="farm")
    except SystemExit as end:  # how Typer ends, help and usage errors included
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except IllegalMove:
        raise
    except FarmError as error:
        print(f"farm: {clean(str(error))}", file=sys.stderr)
        return 3 if isinstance(error, Unavailable) else 2
    return 0


def _tolerate_any_terminal() -> None:
    """A terminal that is not UTF-8 shows ? for what it has no sign for, instead of ending us."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def run_up(settings: Settings) -> int:
    """API, scheduler and a local agent in this process, until a signal."""
    raise UserError("`farm up` is not built in yet")


def run_serve(settings: Settings) -> int:
    """The API alone, until a signal."""
    raise UserError("`farm serve` is not built in yet")


def run_scheduler(settings: Settings) -> int:
    """A scheduler, leading or standing by, until a signal."""
    from farm.control.scheduler import Scheduler
    from farm.store.engine import open_engine

    engine = open_engine(settings.database)
    try:
        Scheduler(engine, settings).run(_stop_event())
    finally:
        engine.dispose()
    return 0


def run_worker(settings: Settings) -> int:
    """This node's agent, until a signal; returns its exit status."""
    from workers.main import run_worker as run

    return run(settings)


def run_live(client: Client, interval_s: float, once: bool) -> int:
    """The full-screen view, until the user quits."""
    from farm.live.screen import run

    def get(path: str, query: Mapping[str, Any]) -> Any:
        return client.request("GET", path, query=query)

    return run(get, interval_s=interval_s, once=once)


def containment() -> str:
    """How renderers are held together on this machine: "pid-namespace", "user-namespace" or "subreaper"."""
    from workers.containment import probe

    return probe().value


def demo_scene() -> Path:
    """The script that makes the demo's scene: `blender -b --factory-startup -P SCRIPT -- PATH`."""
    from plugins.blender import demo_scene as script

    return Path(script.__file__)


def blender_shim(directory: Path) -> Path | None:
    """A `blender` program in `directory` that runs the bpy wheel; None when there is no such wheel."""
    from plugins.blender.bpy_runner import shim

    return shim(directory)


def _stop_event() -> threading.Event:
    """Set by SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


if __name__ == "__main__":
    sys.exit(main())
