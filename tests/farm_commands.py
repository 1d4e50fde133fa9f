"""Commands of `farm` in processes of their own that need not import everything anew.

`farm run` starts programs, and its libraries log to where standard output was at first: not in the test's own
process. `python -m tests.farm_commands` imports them once, and forks for each command that it reads.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farm.main import main

ROOT = Path(__file__).parents[1]


class FarmCommands:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, *words: str, cwd: Path) -> tuple[int, str]:
        """The exit status, and all that was said."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile("r", errors="replace") as out:
            asked = {"words": words, "cwd": str(cwd), "out": out.name}
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            return int(self._process.stdout.readline()), out.read()


@contextlib.contextmanager
def farm_commands() -> Iterator[FarmCommands]:
    """With a `python` on the path, which samples ask for and not every system has."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.farm_commands"],
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield FarmCommands(process)
        assert process.stdin is not None
        process.stdin.close()


def _serve() -> None:
    for name in ("openjd.cli", "farm.cli.openjd_commands"):  # what takes long
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _become(asked)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(asked: Any) -> None:
    """The command; does not return."""
    status = 70
    try:
        out = os.open(asked["out"], os.O_WRONLY | os.O_APPEND)
        for number, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (out, 2)):
            os.dup2(number, target)
        os.chdir(asked["cwd"])
        status = main(asked["words"])
    except BaseException:  # noqa: BLE001  the child must end here whatever happens
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
