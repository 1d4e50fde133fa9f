"""The program `farm`: wires the rooms together. The one module that imports from every ring."""

from __future__ import annotations

import gc
import io
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError, IllegalMove, Unavailable, UserError
from farm.text import clean

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from farm.cli.client import Client
    from farm.cli.doctor import GpusSeen
    from farm.control.scheduler import Scheduler
    from farm.settings import Settings

_AWAIT_S = 2.0

# Nothing heavy up here: `farm --help` must be quick. What a command needs is imported when it runs.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    0: done. 1: the job failed, or what was asked for is not all done. 2: the request is wrong. 3: the farm
    cannot be reached. 130: Ctrl-C.
    """
    from farm.cli.app import Programs, build

    _tolerate_any_terminal()
    programs = Programs(
        up=run_up,
        serve=run_serve,
        scheduler=run_scheduler,
        worker=run_worker,
        benchmark=run_benchmark,
        live=run_live,
        containment=containment,
        gpus=gpus,
        demo_scene=demo_scene,
        blender_shim=blender_shim,
    )
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with ExitStack() as at_end:
            build(programs, at_end, words)(args=words, prog_name="farm")
    except SystemExit as end:  # how Typer ends, help and usage errors included
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except IllegalMove:
        raise
    except FarmError as error:
        print(f"farm: {clean(str(error))}", file=sys.stderr)
        return 3 if isinstance(error, Unavailable) else 2
    return 0


def _collect_seldom() -> None:
    """For programs that live long and make many small objects: what is loaded by now is not looked at again,
    and the rest less often than Python does by itself (every 700 new objects)."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _tolerate_any_terminal() -> None:
    """A terminal that is not UTF-8 shows ? for what it has no sign for, instead of ending us."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def run_up(settings: Settings) -> int:
    """API, scheduler and a local agent in this process, until a signal."""
    from farm.broker.nudge import Nudger
    from farm.control.scheduler import Scheduler
    from farm.http.server import serve
    from farm.store import schema
    from workers.agent import start_agent

    _begin_program()
    stop = _stop_event()
    failures: list[BaseException] = []
    with _database(settings) as engine:
        # Nobody else looks after this database: a new version brings it up to date by itself.
        schema.upgrade(engine)
        nudge = Nudger(settings.broker_url)
        serving = serve(engine, settings, nudge=nudge)
        _show_first_token(engine, settings, serving.url)
        scheduler = Scheduler(engine, settings)
        schedules = threading.Thread(
            target=_run_noting_failure, args=(scheduler, stop, failures), name="scheduler"
        )
        schedules.start()
        hooking = _start_hooks(engine, settings, stop)
        try:
            agent = start_agent(settings)
            print(f"the farm is up at {serving.url}; Ctrl-C ends it", file=sys.stderr, flush=True)
            while not stop.wait(0.5):
                if not (agent.is_alive and serving.is_running):
                    print("farm: a part of the farm has failed; its log is above", file=sys.stderr)
                    failures.append(RuntimeError("a part failed"))
                    break
            agent.stop()
        finally:
            stop.set()
            schedules.join()
            hooking.join()
            serving.stop()
            nudge.stop()
    return 1 if failures else 0


def run_serve(settings: Settings) -> int:
    """The API alone, until a signal."""
    from farm.broker.nudge import Nudger
    from farm.http.server import serve

    _check_shared_broker(settings)
    _begin_program()
    stop = _stop_event()
    with _database(settings) as engine:
        if not _await_schema(engine, stop):
            return 0
        nudge = Nudger(settings.broker_url)
        try:
            serving = serve(engine, settings, nudge=nudge)
            _show_first_token(engine, settings, serving.url)
            while not stop.wait(0.5) and serving.is_running:
                pass
            is_whole = serving.is_running
            serving.stop()
        finally:
            nudge.stop()
    return 0 if is_whole else 1


def run_scheduler(settings: Settings) -> int:
    """A scheduler, leading or standing by, until a signal."""
    from farm.control.scheduler import Scheduler

    _check_shared_broker(settings)
    _begin_program()
    stop = _stop_event()
    with _database(settings) as engine:
        if _await_schema(engine, stop):
            hooking = _start_hooks(engine, settings, stop)
            try:
                _collect_seldom()
                Scheduler(engine, settings).run(stop)
            finally:
                stop.set()
                hooking.join()
    return 0


def run_worker(settings: Settings) -> int:
    """This node's agent, until a signal; returns its exit status."""
    from workers.main import run_worker as run

    _check_shared_broker(settings)
    _begin_program()
    _collect_seldom()
    return run(settings)


def run_benchmark(settings: Settings, again: bool) -> int:
    """Measure this machine's devices; returns the exit status."""
    from workers.main import run_benchmark as run

    return run(settings, again=again)


def run_live(client: Client, interval_s: float, once: bool) -> int:
    """The full-screen view, until the user quits."""
    from farm.live.screen import run

    def get(path: str, query: Mapping[str, Any]) -> Any:
        return client.request("GET", path, query=query)

    def send(method: str, path: str, body: Mapping[str, Any]) -> Any:
        return client.request(method, path, body=dict(body))

    return run(get, send=send, interval_s=interval_s, once=once)


def containment() -> str:
    """How renderers are held together on this machine: "pid-namespace", "user-namespace" or "subreaper"."""
    from workers.containment import probe

    return probe().value


def gpus(settings: Settings) -> GpusSeen:
    """What the GPUs' drivers say of this machine."""
    from farm.cli.doctor import GpusSeen
    from workers.capabilities import look_at_gpus

    devices, faults, notes, node_fault = look_at_gpus(settings)
    return GpusSeen(devices=devices, faults=faults, notes=notes, node_fault=node_fault)


def demo_scene() -> Path:
    """The script that makes the demo's scene: `blender -b --factory-startup -P SCRIPT -- PATH`."""
    from plugins.blender import demo_scene as script

    return Path(script.__file__)


def blender_shim(directory: Path) -> Path | None:
    """A `blender` program in `directory` that runs the bpy wheel; None when there is no such wheel."""
    from plugins.blender.bpy_runner import shim

    return shim(directory)


def _start_hooks(engine: Engine, settings: Settings, stop: threading.Event) -> threading.Thread:
    """A thread that calls the farm's hooks until `stop`; it ends soon where there are none."""
    from farm.control.hooks import HookCaller

    thread = threading.Thread(target=HookCaller(engine, settings).run, args=(stop,), name="hooks")
    thread.start()
    return thread


@contextmanager
def _database(settings: Settings) -> Iterator[Engine]:
    from farm.store.engine import open_engine

    engine = open_engine(settings.database)
    try:
        yield engine
    finally:
        engine.dispose()


def _await_schema(engine: Engine, stop: threading.Event) -> bool:
    """Wait for the database: after a power cut it may come up last. False when told to stop meanwhile.

    Raises UserError when its schema is not this version's.
    """
    from farm.store import schema
    from farm.trouble import Trouble

    trouble = Trouble()
    while not stop.is_set():
        try:
            schema.check(engine)
            return True
        except Unavailable as error:
            if trouble.is_news(str(error), time.monotonic()):
                told = clean(str(error), one_line=True)
                logging.getLogger(__name__).warning("%s; trying again every %.0f s", told, _AWAIT_S)
            stop.wait(_AWAIT_S)
    return False


def _check_shared_broker(settings: Settings) -> None:
    if settings.is_embedded:
        raise UserError(
            "broker_url is memory://, which reaches no other process: use `farm up` for everything in one "
            "process, or set broker_url to RabbitMQ (amqp://user:password@host/vhost)"
        )


def _show_first_token(engine: Engine, settings: Settings, url: str) -> None:
    from farm.http.server import ensure_first_token

    token = ensure_first_token(engine, settings, url=url)
    if token is not None:
        print(
            f"first token, for an administrator, shown this once: {token}\n"
            f"clients on this machine find it in {settings.state_dir / 'client.json'}",
            file=sys.stderr,
            flush=True,
        )


def _run_noting_failure(scheduler: Scheduler, stop: threading.Event, failures: list[BaseException]) -> None:
    try:
        scheduler.run(stop)
    except BaseException as error:
        failures.append(error)
        stop.set()
        raise


def _begin_program() -> None:
    """Log to standard error, and let tests break this process where they want to."""
    from farm.failpoints import arm
    from farm.settings import failpoints_of_tests

    arm(failpoints_of_tests())
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Every migration step and every request twice is of no use to an operator.
    for name in ("alembic", "uvicorn.access", "httpx", "kombu", "amqp"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _stop_event() -> threading.Event:
    """Set by SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


if __name__ == "__main__":
    sys.exit(main())
