"""`farm demo`: a farm for a minute. Everything it starts is stopped at its end, also on Ctrl-C."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import CLIENT_FILE, Client, connect
from farm.cli.contact_sheet import contact_sheet
from farm.cli.progress import follow, is_all_done, outcome
from farm.cli.submit import Wish, expected_files, make
from farm.control.views import JobView
from farm.errors import FarmError, Unavailable, UserError
from farm.settings import Settings, inherited_environment
from farm.text import clean, duration

SHEET: Final = "contact-sheet.png"
_START_S: Final = 60.0
_STOP_S: Final = 20.0
_SCENE_S: Final = 180.0
_LOOK_S: Final = 0.1

_POV: Final = """#version 3.7;
global_settings { assumed_gamma 1 }
camera { location <0, 2.2, -6> look_at <0, 0.8, 0> right x * 16/9 }
light_source { <4, 6, -5> rgb 1 area_light <1, 0, 0>, <0, 0, 1>, 3, 3 jitter }
plane { y, 0 pigment { checker rgb 0.12, rgb 0.3 } finish { reflection 0.1 } }
sphere { <2 * cos(2 * pi * clock), 0.8, 2 * sin(2 * pi * clock)>, 0.8
  pigment { rgb <1, 0.5, 0.1> } finish { phong 1 reflection 0.2 } }
sphere { <0, 1, 0>, 0.5 pigment { rgb <0.2, 0.5, 1> } finish { phong 1 } }
"""
_PYTHON: Final = """import sys
import OpenImageIO as oiio
frame, path = int(sys.argv[1]), sys.argv[2]
picture = oiio.ImageBuf(oiio.ImageSpec(320, 180, 3, oiio.UINT8))
oiio.ImageBufAlgo.fill(picture, (0.1, 0.1, 0.15))
x = 10 + frame * 12
oiio.ImageBufAlgo.fill(picture, (1.0, 0.6, 0.1), roi=oiio.ROI(x, x + 24, 78, 102))
sys.exit(0 if picture.write(path) else 1)
"""


def run_demo(
    *,
    frames: int,
    output: Path,
    is_keeping: bool,
    scene_script: Callable[[], Path],
    shim: Callable[[Path], Path | None],
) -> int:
    """0 when every frame is on disk. `scene_script` and `shim` are as in `app.Programs`."""
    output = (Path.cwd() / output.expanduser()).resolve()
    output.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-demo-"))
    began = time.monotonic()
    try:
        with _ending_on_signals():
            wish = _scene(folder, frames, output, scene_script=scene_script, shim=shim)
            with _farm(folder) as client:
                view, files = _render(client, wish)
        show.line(outcome(view))
        if not is_all_done([view]):
            is_keeping = True
            return 1
        sheet = output / SHEET
        contact_sheet(files, sheet)
    finally:
        if is_keeping:
            show.note(f"database, logs and scene are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    show.line(f"{len(files)} frames in {duration(time.monotonic() - began)}, from scene to picture:")
    for path in (*files, sheet):
        show.line(f"  {path}")
    return 0


def _render(client: Client, wish: Wish) -> tuple[JobView, list[Path]]:
    made = make(wish, cwd=Path.cwd(), login="demo")
    answer, _ = client.create("/jobs", made.submission, key="demo")
    view = read(JobView, answer)
    show.note(f"submitted job {view.job.id}: {view.counts.total} frames")
    return follow(client, [view.job.id])[0], [Path(path) for path in expected_files(made.submission)]


# --- something to render ------------------------------------------------------------------------------


def _scene(
    folder: Path,
    frames: int,
    output: Path,
    *,
    scene_script: Callable[[], Path],
    shim: Callable[[Path], Path | None],
) -> Wish:
    """What to submit, with what there is to render it."""

    def wish(*paths: str, rest: tuple[str, ...] | None = None) -> Wish:
        return Wish(
            paths=paths,
            rest=rest,
            frames=f"1-{frames}",
            output=str(output / "demo_####.png"),
            name="demo",
            is_overwrite=True,
        )

    blender = _blender(folder, shim)
    if blender is not None:
        show.note("making an animated scene with Blender ...")
        scene = folder / "demo.blend"
        _make_scene(blender, scene_script(), scene)
        return wish(str(scene))
    if shutil.which("povray") is not None:
        show.note("neither Blender nor the bpy wheel is here: rendering a POV-Ray scene instead")
        scene = folder / "demo.pov"
        scene.write_text(_POV, encoding="utf-8")
        return wish(str(scene), rest=("+W320", "+H180"))
    show.note("no renderer is here: painting the frames with a command (Debian: apt install blender)")
    script = folder / "paint.py"
    script.write_text(_PYTHON, encoding="utf-8")
    return wish(rest=(sys.executable, str(script), "{frame}", "{output}"))


def _blender(folder: Path, shim: Callable[[Path], Path | None]) -> str | None:
    found = shutil.which("blender")
    if found is not None:
        return found
    made = shim(folder)
    return None if made is None else str(made)


def _make_scene(blender: str, script: Path, scene: Path) -> None:
    """Raises UserError with the end of Blender's output when there is no scene after it."""
    command = [blender, "-b", "--factory-startup", "-P", str(script), "--", str(scene)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SCENE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{blender} took longer than {duration(_SCENE_S)} to make the scene") from None
    except OSError as error:
        raise UserError(f"{blender} cannot be started: {error.strerror}") from error
    if done.returncode != 0 or not scene.is_file():
        told = clean(done.stdout.decode("utf-8", "replace")[-1_500:])
        raise UserError(f"{blender} made no scene (exit {done.returncode}):\n{told}")


# --- a farm -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _farm(folder: Path) -> Iterator[Client]:
    """`farm up` as a child of ours with a directory and a port of its own, whatever else runs here."""
    state = folder / "state"
    state.mkdir()
    config = folder / "farm.toml"
    config.write_text(
        f'state_dir = {_toml(str(state))}\napi_port = 0\nnode_name = "demo"\n', encoding="utf-8"
    )
    environment = {k: v for k, v in inherited_environment({"*"}).items() if not k.startswith("FARM_")}
    log_path = folder / "farm.log"
    show.note("starting a farm ...")
    with log_path.open("wb") as log:
        farm = subprocess.Popen(
            [sys.executable, "-m", "farm.main", "up"],
            env=environment | {"FARM_CONFIG": str(config)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we end it ourselves
        )
    try:
        yield _wait_for(farm, Settings(state_dir=state, api_port=0), log_path)
    finally:
        _stop(farm)


def _wait_for(farm: subprocess.Popen[bytes], settings: Settings, log: Path) -> Client:
    deadline = time.monotonic() + _START_S
    last = "it has not said where it listens"
    while time.monotonic() < deadline:
        if farm.poll() is not None:
            raise FarmError(f"the farm ended at once (exit {farm.returncode}):\n{_end_of(log)}")
        if (settings.state_dir / CLIENT_FILE).exists():
            client = connect(settings)
            try:
                client.get("/farm")
            except Unavailable as error:
                last = str(error)
                client.close()
            else:
                return client
        time.sleep(_LOOK_S)
    raise Unavailable(f"the farm did not start within {duration(_START_S)}: {last}\n{_end_of(log)}")


def _stop(farm: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second ends what still renders
        if farm.poll() is not None:
            return
        farm.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            farm.wait(_STOP_S / 4)


def _end_of(log: Path) -> str:
    try:
        return clean(log.read_bytes()[-2_000:].decode("utf-8", "replace"))
    except OSError:
        return ""


def _toml(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@contextlib.contextmanager
def _ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind as Ctrl-C does, so that nothing is left running."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
