"""What a plugin offers. Plugins are found by the entry point group `ridgeline.plugins`.

A plugin is a value: a name, the extensions it takes, a function from a scene file to a submission, and a
parser of the renderer's output. Parsers are pure: lines in, readings out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from farm.model.states import Outcome
from farm.model.work import JobSettings, Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one line of output taught. Everything is optional."""

    fraction: float | None = None
    """Of the whole task, 0 to 1."""
    message: str = ""
    """What the renderer does now, for people."""
    warning: str = ""
    """A missing texture or library; kept with the task."""
    fatal: str = ""
    """The attempt has failed whatever the exit status says; one line for people."""
    is_final: bool = False
    """With `fatal`: trying again, on another node too, cannot help."""
    outcome: Outcome | None = None
    """The class of the failure, when the line tells it (licence, out of memory, storage)."""
    width: int | None = None
    height: int | None = None
    """Pixels that the output files must have."""
    is_rendering: bool = False
    """The first frame has begun: loading is over."""
    is_waiting_for_licence: bool = False
    """The renderer waits until a licence is free; it is not over."""


class Parser(Protocol):
    """Made anew for each attempt."""

    def feed(self, line: str) -> Reading | None:
        """Read one line (no line end; a `\\r` ends a line too). Never raises on any text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """What the artist asked for, before a plugin turns it into a submission."""

    name: str | None = None
    frames: tuple[int, ...] = ()
    """In the order of wish; empty: the plugin's default (the scene's range, or one task)."""
    output: str | None = None
    """As typed; may begin with `//` (the scene's directory) and hold `#` runs."""
    chunk_size: int = 1
    chunk_s: float | None = None
    """Frames a task so that one takes about so long; `chunk_size` is for the first ones."""
    settings: JobSettings = JobSettings()
    arguments: tuple[str, ...] = ()
    """Further command line arguments for the renderer."""
    cwd: Path = Path()
    """The client's working directory, absolute."""
    is_preview_first: bool = False
    """Render the first, the middle and the last frame before the others."""
    is_probed: bool = False
    """Render one frame with few samples before all others, to learn what they cost most."""
    tiles: tuple[int, int] | None = None
    """Render each frame in columns x rows tiles, a task each, and put them together."""
    sample_chunks: int = 1
    """Render each frame so many times with a share of its samples, a task each, and average them."""
    gpus: int = 0
    """So many for each task, of its own."""
    is_cold: bool = False
    """Start the renderer anew for each task, where it could go on with the next one."""
    film: str | None = None
    """A film of the frames at the end: its file name, beside them; empty: named after them."""
    film_rate: str = "24"
    """Frames a second: "24", "24000/1001"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a submission would run, for `--pretend`."""

    command: tuple[str, ...]
    """Of the first task."""
    first_output: str | None
    """The first file's resolved path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    name: str
    extensions: tuple[str, ...]
    """Lower case, with the dot: (".blend",)."""
    parser: Callable[[tuple[int, ...]], Parser]
    """Called with the task's frames."""
    submission: Callable[[Path, SubmitOptions], Submission]
    """Raises UserError when the scene cannot be used."""
    preview: Callable[[Submission], Preview]
    version: Callable[[], str | None]
    """The renderer's version on this machine, None when it is absent. Called once when an agent starts."""
    debian_package: str = ""
    """What `apt install` brings it on Debian; empty: its maker brings it."""
    licence_statuses: tuple[int, ...] = ()
    """Exit statuses that mean that there was no licence."""
    ray_rate: Callable[[bool, Mapping[str, str]], float | str] | None = None
    """(on a GPU?, environment that leaves one device visible) to 10^6 rays/s, or why they are not known;
    called by `farm worker benchmark`. None: this renderer is no measure of it."""
    splits_frames: bool = False
    """It takes `SubmitOptions.tiles` and `sample_chunks`."""
    adapts_chunks: bool = False
    """It takes `SubmitOptions.chunk_s`."""
    uses_gpus: bool = False
    """It takes `SubmitOptions.gpus`."""
