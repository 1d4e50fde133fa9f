"""`farm check`, `farm run` and `farm summary`: Open Job Description on this machine, without a farm.

They take the arguments of `openjd` and hand over to it, once the farm has looked at what they name:
a template that the farm refuses is refused here too, with its words. A bundle's directory stands for its
template with the parameter values in it.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from farm.cli import show
from farm.cli.bundle import SUFFIXES, read_assets, read_bundle, read_template
from farm.cli.show import shown
from farm.errors import UserError
from farm.flow.template import check_environment_template, check_job_template, is_environment_template
from farm.text import clean

_BAD: Final = 1
"""The status of `openjd` for a template that is wrong."""


def check(arguments: Sequence[str], *, is_json: bool) -> int:
    """The exit status: 0, 1 for a wrong template, 2 for wrong arguments."""
    return _hand_over("check", arguments, is_json=is_json)


def summary(arguments: Sequence[str], *, is_json: bool) -> int:
    return _hand_over("summary", arguments, is_json=is_json)


def run(arguments: Sequence[str], *, is_json: bool) -> int:
    return _hand_over("run", arguments, is_json=is_json)


def names_a_template(arguments: Sequence[str]) -> bool:
    return _template_at(arguments) is not None


def _hand_over(command: str, arguments: Sequence[str], *, is_json: bool) -> int:
    words = list(arguments)
    if is_json:
        if any(word.partition("=")[0] == "--output" for word in words):
            print("ERROR: choose one of --json and --output", file=sys.stderr)
            return 2
        words += ["--output", "json"]
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and clean(name, one_line=True) != name:  # `openjd` would print it as it is
            print(f"ERROR: there is no option {shown(name)}", file=sys.stderr)
            return 2
    at = _template_at(words)
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        if at is not None:
            path = Path(words[at]).expanduser()
            try:
                words = _understood(command, words, at, path, Path(folder))
            except UserError as error:
                told = f"ERROR: {clean(str(error))}"
                if _is_json(words):
                    show.data({"status": "error", "message": told})  # as `openjd` has it
                else:
                    print(told, file=sys.stderr)
                return _BAD
        from openjd import cli

        # `openjd` meets a reader that has left with a traceback. What takes long has to be seen as it comes.
        printed: TextIO = io.StringIO() if command != "run" else sys.stdout
        try:
            with contextlib.redirect_stdout(printed):
                cli.main([command, *words])
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(printed, io.StringIO):
            print(printed.getvalue(), end="")
    return status


def _is_json(words: Sequence[str]) -> bool:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return any(
        word == "--output=json" or (word, following) == ("--output", "json") for word, following in pairs
    )


def _template_at(words: Sequence[str]) -> int | None:
    """Where the template stands: the first word that is no option and no option's value."""
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            return at
        at += 1 if "=" in word or word in _FLAGS else 2
    return None


_FLAGS: Final = frozenset(
    {"--run-dependencies", "--no-run-dependencies", "--preserve", "--verbose", "-h", "--help"}
)


def _understood(command: str, words: list[str], at: int, path: Path, folder: Path) -> list[str]:
    """The words for `openjd`, once the farm has looked at what they name. Raises UserError."""
    if path.is_dir():
        bundle = read_bundle(path.resolve())
        check_job_template(bundle.template)
        missing = [name for name in read_assets(path) if not Path(name).exists()]
        if missing:
            print(f"note: asset_references names {shown(missing[0])}, which is not here", file=sys.stderr)
        values = folder / "values.json"
        values.write_text(json.dumps(bundle.parameters), encoding="utf-8")
        given = ["-p", f"file://{values}"] if command != "check" and bundle.parameters else []
        # The values of the bundle come first: those typed after them win.
        return [*words[:at], bundle.what, *given, *words[at + 1 :]]
    if not path.exists():
        raise UserError(f"{shown(str(path))} does not exist")
    if path.suffix.lower() in SUFFIXES and path.is_file():
        template = read_template(path)
        if is_environment_template(template):
            check_environment_template(template)
        else:
            check_job_template(template)
    return words
