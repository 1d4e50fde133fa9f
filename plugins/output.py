"""Where a job's files go: what the artist typed, split into a directory and a file pattern."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from farm.errors import UserError
from farm.model.frames import expand_pattern

IMAGE_EXTENSIONS = frozenset(
    {
        ".png",
        ".exr",
        ".jpg",
        ".jpeg",
        ".tif",
        ".tiff",
        ".tga",
        ".webp",
        ".bmp",
        ".hdr",
        ".ppm",
        ".pgm",
        ".pnm",
    }
    | {".gif", ".dpx", ".cin", ".jp2", ".psd", ".sgi", ".pic"}
)
"""What the node can decode, so what it can check."""

_EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}\Z")
_MOVIES = frozenset({".mp4", ".mov", ".avi", ".mkv", ".webm", ".ogv", ".flv", ".dv", ".mpg", ".mpeg"})
_RUN = re.compile(r"#+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A final directory (absolute) and the name of the files in it, `#` runs standing for the frame."""

    directory: str
    pattern: str

    @property
    def extension(self) -> str:
        """Lower case, with the dot; empty when the name has none."""
        return extension_of(self.pattern)

    def file(self, frame: int | None) -> str:
        """The final path of one frame."""
        return os.path.join(self.directory, expand_pattern(self.pattern, frame))


def extension_of(name: str) -> str:
    """The image extension that a file name ends with, in lower case: ".png"; empty for "shot.v02_####"."""
    match = _EXTENSION.search(name)
    return match.group().lower() if match and match.start() > 0 else ""


def absolute(path: str | Path, cwd: Path) -> str:
    """`path` seen from `cwd`, without `..`; links are kept, because nodes may see them differently."""
    return os.path.normpath(os.path.join(cwd, path))


def target(
    output: str,
    *,
    base: Path,
    cwd: Path,
    stem: str,
    frames: Collection[int],
    extensions: Collection[str] | None,
    default_extension: str,
) -> Target:
    """Split `output` as typed into a directory and a pattern.

    `//` means `base` (the scene's directory), anything else that is relative starts at `cwd`. A directory (it
    ends with a slash, or exists) gets files named `stem`. A pattern without `#` gets `_####` when there are
    several frames, one without an extension gets `default_extension`.

    Raises UserError when the extension is not in `extensions` (None: any will do), when `#` runs stand in the
    directory, and when the name cannot be a file's.
    """
    refuse_controls(output, "--output")
    text = os.path.join(base, output[2:].lstrip("/")) if output.startswith("//") else output
    path = absolute(text, cwd)
    if output.endswith(("/", os.sep)) or output in ("", ".", "..") or os.path.isdir(path):
        directory, name = path, stem
        if "#" in name:
            raise UserError(
                f"{name!r} holds a '#', so it cannot name the files: give --output with a file name"
            )
    else:
        directory, name = os.path.split(path)
    if "##" in directory:
        raise UserError(
            f"--output {output}: '#' runs may stand in the file name only, not in the directory {directory}"
        )
    extension = extension_of(name)
    if extensions is not None and extension and extension not in extensions:
        raise UserError(_refusal(name, extension, extensions))
    bare = name[: -len(extension)] if extension else name
    if "#" not in bare and len(frames) > 1:
        bare += "_####"
    return Target(
        directory=directory, pattern=bare + (name[len(name) - len(extension) :] or default_extension)
    )


def refuse_controls(text: str, what: str) -> None:
    """Raise UserError when `text` holds a control character, which no job format can carry."""
    for char in text:
        if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or 0xD800 <= ord(char) < 0xE000:
            raise UserError(
                f"{what} holds a character that cannot be passed on (code {ord(char):#x}): {text!r}"
            )


def _refusal(name: str, extension: str, extensions: Collection[str]) -> str:
    known = " ".join(sorted(extensions))
    if extension in _MOVIES:
        return (
            f"--output {name}: a farm renders frames, not films: "
            f"use {name[: -len(extension)]}_####.png and join the frames afterwards"
        )
    return (
        f"--output {name}: no file format is known for {extension!r}; use one of {known} "
        f"({name}.png when it is a part of the name)"
    )
