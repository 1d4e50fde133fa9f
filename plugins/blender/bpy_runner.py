"""`blender -b` for machines that have the `bpy` wheel and no Blender: `ridgeline-blender -b SCENE -f 1`.

Options act in the order they stand in, as Blender's do. Where Blender goes on after a mistake (an unknown
scene, a frame that is no number) and exits 0, this stops with a status of its own: a farm must know. Options
it does not know are refused.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

EXIT_USAGE = 2

_FLAGS = frozenset(
    {
        "-b",
        "--background",
        "--factory-startup",
        "-noaudio",
        "--offline-mode",
        "--online-mode",
        "-q",
        "--quiet",
    }
    | {"-y", "--enable-autoexec", "-Y", "--disable-autoexec", "--no-window-focus"}
)
_FORMATS = {"TGA": "TARGA", "RAWTGA": "TARGA_RAW", "JP2": "JPEG2000", "IRIZ": "IRIS"}
"""Names of `-F` that differ from the Python ones."""


class Stop(Exception):
    """End with this status, after this line."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def bpy_version() -> str | None:
    """The version of the installed `bpy` wheel, without loading it; None when there is none."""
    from importlib import metadata  # slow to load, and the command line never asks

    try:
        return metadata.version("bpy")
    except metadata.PackageNotFoundError:
        return None


def shim(directory: Path) -> Path | None:
    """Write an executable `blender` into `directory` that runs this module; None when bpy is not installed.

    Raises OSError when the directory cannot be written.
    """
    if bpy_version() is None:
        return None
    path = directory / "blender"
    # -P: a scene's directory must not become a place to import from.
    path.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m {__name__} "$@"\n', encoding="utf-8"
    )
    path.chmod(0o755)
    return path


def frame_number(text: str, start: int, end: int) -> int:
    """As Blender reads it: "+2" counts from the scene's start, "-2" from its end. Raises ValueError."""
    number = int(text)
    if text.startswith("+"):
        return start + number
    return end + number + 1 if text.startswith("-") else number


def frame_numbers(text: str, start: int, end: int) -> list[int]:
    """ "1,3..5" is [1, 3, 4, 5]. Raises ValueError."""
    frames: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        begin = frame_number(first, start, end)
        frames += range(begin, (frame_number(last, start, end) if dots else begin) + 1)
    return frames


@dataclass
class Runner:
    """Goes through the arguments once. `bpy` is the module."""

    bpy: Any
    arguments: list[str]
    scene_name: str = ""
    python_status: int = 0
    handlers: dict[str, Callable[[str], None]] = field(init=False)

    def __post_init__(self) -> None:
        table: list[tuple[tuple[str, ...], Callable[[str], None]]] = [
            (("-o", "--render-output"), self._output),
            (("-F", "--render-format"), self._format),
            (("-E", "--engine"), self._engine),
            (("-S", "--scene"), self._scene),
            (("-x", "--use-extension"), self._extension),
            (("-t", "--threads"), self._threads),
            (("-s", "--frame-start"), self._start),
            (("-e", "--frame-end"), self._end),
            (("-j", "--frame-jump"), self._jump),
            (("-f", "--render-frame"), self._frames),
            (("-P", "--python"), self._python_file),
            (("--python-expr",), self._python_text),
            (("--python-exit-code",), self._python_exit_code),
        ]
        self.handlers = {name: handler for names, handler in table for name in names}

    def run(self) -> None:
        """Raises Stop when something cannot be done."""
        rest = iter(self.arguments)
        for argument in rest:
            if argument == "--":
                break
            if argument in _FLAGS:
                self._flag(argument)
            elif argument in ("-a", "--render-anim"):
                self._animation()
            elif argument in self.handlers:
                value = next(rest, None)
                if value is None:
                    raise Stop(f"Error: {argument} needs a value", EXIT_USAGE)
                try:
                    self.handlers[argument](value)
                except ValueError as error:
                    raise Stop(f"Error: not a number '{argument} {value}'.", EXIT_USAGE) from error
            elif argument.startswith("-"):
                raise Stop(f"Error: unknown argument {argument}", EXIT_USAGE)
            else:
                self._load(argument)

    @property
    def _current(self) -> Any:
        return self.bpy.data.scenes[self.scene_name] if self.scene_name else self.bpy.context.scene

    def _flag(self, name: str) -> None:
        if name == "--factory-startup":
            self.bpy.ops.wm.read_factory_settings()
        elif name in ("-y", "--enable-autoexec", "-Y", "--disable-autoexec"):
            self.bpy.context.preferences.filepaths.use_scripts_auto_execute = name in (
                "-y",
                "--enable-autoexec",
            )

    def _load(self, path: str) -> None:
        trusts = self.bpy.context.preferences.filepaths.use_scripts_auto_execute
        try:
            self.bpy.ops.wm.open_mainfile(filepath=os.path.abspath(path), use_scripts=trusts)
        except RuntimeError as error:
            raise Stop(str(error).strip(), 1) from error
        self.scene_name = ""

    def _output(self, path: str) -> None:
        self._current.render.filepath = path

    def _format(self, name: str) -> None:
        from plugins.blender.driver import Refusal, set_still_format

        try:
            set_still_format(self._current, (_FORMATS.get(name, name),))
        except Refusal as refusal:
            raise Stop(f"Error: {refusal}", 1) from refusal

    def _engine(self, name: str) -> None:
        try:
            self._current.render.engine = name
        except TypeError as error:
            raise Stop(f"Error: engine not found '{name}'", 1) from error

    def _scene(self, name: str) -> None:
        if name not in self.bpy.data.scenes:
            raise Stop(f"Can't find scene: '{name}'", 1)
        self.scene_name = name

    def _extension(self, value: str) -> None:
        self._current.render.use_file_extension = bool(int(value))

    def _threads(self, value: str) -> None:
        render = self._current.render
        count = int(value)
        render.threads_mode = "FIXED" if count else "AUTO"
        if count:
            render.threads = count

    def _start(self, value: str) -> None:
        scene = self._current
        scene.frame_start = frame_number(value, scene.frame_start, scene.frame_end)

    def _end(self, value: str) -> None:
        scene = self._current
        scene.frame_end = frame_number(value, scene.frame_start, scene.frame_end)

    def _jump(self, value: str) -> None:
        self._current.frame_step = int(value)

    def _frames(self, value: str) -> None:
        scene = self._current
        kept = scene.frame_start, scene.frame_end, scene.frame_step
        for frame in frame_numbers(value, scene.frame_start, scene.frame_end):
            scene.frame_start, scene.frame_end, scene.frame_step = frame, frame, 1
            self._render()
        scene.frame_start, scene.frame_end, scene.frame_step = kept

    def _animation(self) -> None:
        if self._current.frame_start > self._current.frame_end:
            raise Stop("Error: the frame range is empty", EXIT_USAGE)
        self._render()

    def _render(self) -> None:
        try:
            result = self.bpy.ops.render.render(animation=True, scene=self._current.name)
        except RuntimeError as error:
            raise Stop(str(error).strip(), 1) from error
        if "FINISHED" not in result:
            raise Stop("Error: the render was cancelled", 1)

    def _python_exit_code(self, value: str) -> None:
        self.python_status = int(value)

    def _python_file(self, path: str) -> None:
        import runpy

        self._python(lambda: runpy.run_path(path, run_name="__main__"), f"file: '{path}'")

    def _python_text(self, text: str) -> None:
        self._python(lambda: exec(text, {"__name__": "__main__", "bpy": self.bpy}), f"expr: '{text}'")

    def _python(self, script: Callable[[], object], what: str) -> None:
        try:
            script()
        except Exception as error:  # a user's script: shown, and an error only when asked for
            traceback.print_exception(error)
            if self.python_status:
                raise Stop(f"Error: script failed, {what}, exiting.", self.python_status) from error


def leave(status: int) -> NoReturn:
    """End without bpy's own clean-up: with a handler left, 4.2 crashes in it and 4.5 hangs for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(arguments: Sequence[str]) -> int:
    """The status to exit with."""
    if bpy_version() is None:
        print("Error: no bpy wheel in this Python: pip install bpy", flush=True)
        return EXIT_USAGE
    import bpy  # takes a second

    print(f"Blender {bpy.app.version_string}", flush=True)
    if any(argument in ("-v", "--version") for argument in arguments):
        return 0
    try:
        Runner(bpy, list(arguments)).run()
    except Stop as stop:
        print(stop, flush=True)
        return stop.status
    except SystemExit as exit_request:  # a script's own wish
        if exit_request.code is None:
            return 0
        return exit_request.code if isinstance(exit_request.code, int) else 1
    print("\nBlender quit", flush=True)
    return 0


def main() -> NoReturn:
    leave(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
