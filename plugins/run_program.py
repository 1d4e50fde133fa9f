"""Runs a renderer for each frame of a task: `run_program.py OPTIONS -- COMMAND ...`, standard library only.

In the command, `@FRAME@` and `@FRAME:4@` are the frame, `@SCENE@` is the scene (with `#` runs filled in),
`@SCENE_DIR@` its directory, `@OUTPUT@` the file that is to be written, `@DIR@` its directory, `@STEM@` its
name without the extension, `@FILE@` its name. A template carries this file as text, where double braces would
be read as expressions: none may stand here.

Why not the template alone: Open Job Description cannot pad numbers, and renderers add numbers of their own to
names, exit 0 without a file, and start anew for each frame.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence

EXIT_REFUSED = 66
EXIT_ABSENT = 127

_RANGE = re.compile(r"(-?[0-9]+)(?:-(-?[0-9]+)(?::([0-9]+))?)?\Z")
_TOKEN = re.compile(r"@(FRAME|FRAME:[0-9]|SCENE|SCENE_DIR|OUTPUT|DIR|STEM|FILE)@")


def frames_of(text: str) -> list[int | None]:
    """The frames of an OpenJD range; [None] for the empty text of a still."""
    frames: list[int | None] = []
    for piece in text.split(",") if text else ():
        match = _RANGE.match(piece.strip())
        if match is None:
            raise SystemExit(f"cannot read the frames {text!r}")
        first, last, step = match.groups()
        frames += range(int(first), int(first if last is None else last) + 1, int(step or 1))
    return frames or [None]


def numbered(pattern: str, frame: int | None) -> str:
    """`pattern` with each run of `#` replaced by the frame, padded to its length."""
    if frame is None:
        return pattern
    return re.sub("#+", lambda run: padded(frame, len(run.group())), pattern)


def padded(frame: int, digits: int) -> str:
    return ("-" if frame < 0 else "") + str(abs(frame)).zfill(digits)


def filled(word: str, *, frame: int | None, scene: str, output: str) -> str:
    """One argument of the command with its tokens replaced; what stands for them is not read again."""
    directory, name = os.path.split(output)

    def text(match: re.Match[str]) -> str:
        token, _, digits = match.group(1).partition(":")
        if token == "FRAME":
            return "" if frame is None else padded(frame, int(digits or 1))
        if token == "SCENE":
            return scene
        if token == "SCENE_DIR":
            return os.path.dirname(scene)
        if token == "OUTPUT":
            return output
        if token == "DIR":
            return directory
        return name if token == "FILE" else os.path.splitext(name)[0]

    return _TOKEN.sub(text, word)


def say(key: str, text: object) -> None:
    shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in str(text))
    os.write(1, f"ridgeline| {key} {shown[:3000]}\n".encode())


def adopt(output: str, before: set[str]) -> bool:
    """Whether the file is there; one that the renderer numbered in its own way gets the name asked for."""
    directory, name = os.path.split(output)
    if not os.path.exists(output):
        extension = os.path.splitext(name)[1].lower()
        new = [
            each
            for each in set(os.listdir(directory)) - before
            if os.path.splitext(each)[1].lower() == extension
        ]
        if len(new) != 1:
            return False
        os.rename(os.path.join(directory, new[0]), output)
    return os.path.getsize(output) > 0


def run(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="run_program", allow_abbrev=False)
    parser.add_argument("--frames", default="")
    parser.add_argument("--scene", required=True)
    parser.add_argument("--output-dir", default="")
    parser.add_argument("--output-pattern", default="")
    split = argv.index("--")
    options = parser.parse_args(argv[:split])
    command = argv[split + 1 :]
    frames = frames_of(options.frames)
    for index, frame in enumerate(frames, start=1):
        what = "still" if frame is None else frame
        scene = numbered(options.scene, frame)
        if not os.path.exists(scene):
            say("error", f"the scene is missing: {scene}")
            return EXIT_REFUSED
        output = ""
        if options.output_pattern:
            output = os.path.join(options.output_dir, numbered(options.output_pattern, frame))
        say("frame", f"{index} of {len(frames)}: {what}")
        before = set(os.listdir(options.output_dir)) if output else set()
        words = [filled(word, frame=frame, scene=scene, output=output) for word in command]
        try:
            status = subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode
        except OSError as error:
            say("error", f"{words[0]} cannot be started: {error.strerror}")
            return EXIT_ABSENT
        if status != 0:
            return status if status > 0 else 128 - status
        if output and not adopt(output, before):
            say(
                "error",
                f"{words[0]} ended well, but did not write {os.path.basename(output)} (is the disk full?)",
            )
            return EXIT_REFUSED
        say("saved", f"{index} of {len(frames)}: {os.path.basename(output) or what}")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
