"""The live view in a real terminal (a pseudo-terminal), and where there is none."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ALTERNATE, BACK = b"\x1b[?1049h", b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"
SCRIPT = """
import sys
from farm.errors import Forbidden, Unavailable
from farm.live.screen import run
from tests.edges.live_farm import FakeFarm
farm, asked = FakeFarm(), 0
def get(path, params):
    global asked
    asked += 1
    {act}
    return farm.get(path, params)
sys.exit(run(get, send=farm.send, interval_s=0.05{options}))
"""


class Terminal:
    """A program in a pseudo-terminal, with a hand on its keyboard and an eye on its screen."""

    def __init__(self, act: str, **environment: str) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(80, 24, signalled=False)
        self.modes = termios.tcgetattr(self.slave)
        self.output = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(act=act, options="")],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", "LANG": "C.UTF-8", **environment},
        )

    def resize(self, width: int, height: int, *, signalled: bool = True) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        if signalled:
            # No controlling terminal here, so the kernel does not say it.
            self.process.send_signal(signal.SIGWINCH)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def read(self, holds: Callable[[bytes], bool], *, timeout_s: float = 20) -> bytes:
        """What came since the last call, as soon as `holds` of it."""
        seen = b""
        deadline = time.monotonic() + timeout_s
        while not holds(seen):
            assert time.monotonic() < deadline, f"last seen: {seen[-3000:]!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                seen += os.read(self.master, 65536)
        self.output += seen
        return seen

    def ends(self) -> int:
        """The exit status; asserts that the terminal is as it was."""
        self.read(lambda seen: BACK in self.output + seen)
        status = self.process.wait(20)
        while select.select([self.master], [], [], 0)[0]:
            self.output += os.read(self.master, 65536)
        assert termios.tcgetattr(self.slave) == self.modes
        assert self.output.rindex(BACK) > self.output.rindex(ALTERNATE)
        assert self.output.rindex(SHOW_CURSOR) > self.output.rindex(ALTERNATE)
        return status


@contextmanager
def terminal(act: str = "pass", **environment: str) -> Iterator[Terminal]:
    opened = Terminal(act, **environment)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()
        os.close(opened.master)
        os.close(opened.slave)


@pytest.mark.e2e
def test_it_draws_resizes_obeys_keys_and_quits_on_q() -> None:
    with terminal() as screen:
        first = screen.read(lambda seen: b"shot_008" in seen)
        assert ALTERNATE in first
        assert b"sq010_sh020" in first
        assert b"WHY NOTHING RUNS" not in first
        modes = termios.tcgetattr(screen.slave)[3]
        assert not modes & (termios.ECHO | termios.ICANON)

        screen.resize(200, 50)
        screen.read(lambda seen: b"WHY NOTHING RUNS" in seen)

        screen.type(b"nn")
        screen.read(lambda seen: b"d drain" in seen)
        screen.type(b"\x1b[B")
        screen.read(lambda seen: "▸\x1b[0m\x1b[7mgpu-02".encode() in seen)
        screen.type(b"dy")
        screen.read(lambda seen: b"gpu-02 may work again" in seen)

        screen.type(b"q")
        assert screen.ends() == 0


@pytest.mark.e2e
def test_tasks_output_filter_and_a_cancel_by_keys_alone() -> None:
    with terminal("if asked > 3: farm.refusal = Forbidden('job 7 belongs to anna')") as screen:
        screen.read(lambda seen: b"shot_008" in seen)
        screen.type(b"\r")
        screen.read(lambda seen: b"Sample 205/" in seen)
        screen.type(b"/state=failed\r")
        screen.read(lambda seen: b"only state=failed" in seen)
        screen.type(b"l")
        screen.read(lambda seen: b"Sample 60/512" in seen)
        screen.type(b"\x1b")
        screen.read(lambda seen: b"only state=failed" in seen)
        screen.type(b"c")
        screen.read(lambda seen: b"cancel job 7 render 4 ? y/n" in seen)
        screen.type(b"y")
        screen.read(lambda seen: b"job 7 belongs to anna" in seen)
        screen.type(b"q")
        assert screen.ends() == 0


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_with_the_terminal_as_it_was(number: int, status: int) -> None:
    with terminal() as screen:
        screen.read(lambda seen: b"shot_008" in seen)
        screen.process.send_signal(number)
        assert screen.ends() == status


@pytest.mark.e2e
def test_a_refused_token_ends_it_with_the_terminal_as_it_was() -> None:
    with terminal("if asked > 20: raise Forbidden('the token was withdrawn')") as screen:
        screen.read(lambda seen: b"shot_008" in seen)
        assert screen.ends() == 1
        assert b"the token was withdrawn" in screen.output[screen.output.rindex(BACK) :]


@pytest.mark.e2e
def test_a_lost_server_is_shown_and_then_found_again() -> None:
    with terminal("if 20 < asked < 60: raise Unavailable('no route to the farm')") as screen:
        screen.read(lambda seen: b"no route to" in seen)
        screen.read(lambda seen: b"connected" in seen)
        screen.type(b"q")
        assert screen.ends() == 0


@pytest.mark.e2e
def test_without_colour_no_colour_is_sent() -> None:
    with terminal(NO_COLOR="1") as screen:
        seen = screen.read(lambda seen: b"shot_008" in seen)
        screen.type(b"q")
        screen.ends()
    assert b"\x1b[3" not in seen.replace(b"\x1b[3J", b"")
    assert b"38;5" not in seen


def plain(act: str, options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(act=act, options=options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8", **environment},
    )


@pytest.mark.e2e
def test_once_prints_how_things_stand_and_ends() -> None:
    process = plain("pass", ", once=True")
    out, err = process.communicate(timeout=20)

    assert (process.returncode, err) == (0, "")
    assert "job 8 shot_008: active, 250 of 253" in out
    assert "\x1b" not in out


@pytest.mark.e2e
def test_without_a_terminal_lines_follow_until_ctrl_c() -> None:
    process = plain("if asked > 20: farm.jobs[1]['job']['state'] = 'done'", "")
    try:
        lines = read_until(process, lambda line: line.startswith("job 8 shot_008: done"))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()

    assert (process.returncode, err) == (0, "")
    assert lines[0].startswith("farm: STALLED 2, nodes 1/3")
    assert sum(line.startswith("job 7") for line in lines) == 1, "a job that did not move is told once"


@pytest.mark.e2e
def test_a_reader_that_goes_away_is_no_error() -> None:
    process = plain("farm.jobs[0]['counts']['done'] = asked", "")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stderr.close()
    finally:
        process.kill()


def read_until(process: Any, holds: Callable[[str], bool]) -> list[str]:
    lines: list[str] = []
    while not lines or not holds(lines[-1]):
        line = process.stdout.readline()
        assert line, f"ended early: {lines[-5:]} {process.stderr.read()}"
        lines.append(line.rstrip("\n"))
    return lines
