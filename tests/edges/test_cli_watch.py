"""Watching, previews and searched output: what a person gets while frames are made."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from farm.cli import inline_image, notify, preview, waiting
from farm.control.views import FoundLine
from farm.model.attempts import PublishedFile
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.states import AttemptState, JobState
from farm.model.work import Counts
from farm.settings import TERMINAL_VARIABLES
from tests.edges.cli_farm import Cli, FakeFarm, a_job, a_task, a_view, an_attempt, an_ended_view, page
from tests.edges.test_cli_print import on_a_terminal

# --- grep -----------------------------------------------------------------------------------------------


def a_line(number: int = 212, text: str = "Warning: wood.png is missing", label: str = "7") -> FoundLine:
    return FoundLine(
        task_id=TaskId(4711),
        step="render",
        label=label,
        attempt_id=AttemptId("a"),
        node_id=NodeId("blade-3"),
        number=number,
        text=text,
    )


def test_lines_of_all_frames_are_printed_with_their_place(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("GET", "/jobs/12/grep", page(following=4000))  # an empty page is not the last one
    farm.answer("GET", "/jobs/12/grep", page(a_line(), a_line(text="wood\x1b[2J", label="8")))

    out = cli.good("logs", "12", "--grep", "wood", "--frames", "1-20x2", "--state", "failed")

    assert out == "7 blade-3:212: Warning: wood.png is missing\n8 blade-3:212: wood\\x1b[2J\n"
    query = farm.last("GET", "/jobs/12/grep").query
    assert query["text"] == ["wood"]
    assert query["frames"] == ["1-19:2"]
    assert query["state"] == ["failed"]
    assert query["after"] == ["4000"]


def test_nothing_found_is_status_1(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("GET", "/jobs/12/grep", page())
    assert "no output of job 12 holds 'wood'" in cli.bad("logs", "12", "--grep", "wood", status=1)
    assert cli("logs", "12", "--grep", "wood", "--json").out == "[]\n"


@pytest.mark.parametrize(
    "words", [("--grep", "x", "--follow"), ("--grep", "x", "--tail", "3"), ("--frames", "1")]
)
def test_options_that_do_not_go_together_are_refused(lonely_cli: Cli, words: tuple[str, ...]) -> None:
    assert "--grep" in lonely_cli.bad("logs", "12", *words)


# --- watch ----------------------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the desktop would have shown."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(waiting, "notify", lambda title, text: found.append((title, text)))
    return found


@pytest.mark.parametrize(
    ("state", "status"), [(JobState.DONE, 0), (JobState.FAILED, 1), (JobState.CANCELLED, 4)]
)
def test_the_end_is_notified_and_tells_the_status(
    cli: Cli, farm: FakeFarm, told: list[tuple[str, str]], state: JobState, status: int
) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("GET", "/jobs/12", an_ended_view(state))

    assert cli("watch", "12").status == status

    assert len(told) == 1
    assert told[0][0] == f"job 12 shot_010: {state}"


@pytest.mark.parametrize("command", ["wait", "watch"])
def test_the_end_names_the_first_failure_and_its_reason(
    cli: Cli, farm: FakeFarm, told: list[tuple[str, str]], command: str
) -> None:
    farm.answer("GET", "/jobs/12", a_view(a_job(state=JobState.FAILED), counts=Counts(failed=1, done=2)))
    farm.answer("GET", "/jobs/12/tasks", page(a_task(reason="no camera [/] \x1b]52;c;aGk=\x07")))
    out = cli(command, "12").out
    assert "first failed: render 7 on blade-3: no camera [/] \\x1b]52" in out
    assert "farm logs 12 --task 4711" in out


def test_the_first_failure_is_notified_once(cli: Cli, farm: FakeFarm, told: list[tuple[str, str]]) -> None:
    failing = a_view(counts=Counts(done=3, failed=1, running=1))
    for answer in (a_view(), a_view(), failing, failing, an_ended_view(JobState.FAILED)):
        farm.answer("GET", "/jobs/12", answer)

    assert cli("watch", "12").status == 1

    assert [title for title, _ in told] == ["1 frame failed", "job 12 shot_010: failed"]


def test_fail_fast_ends_while_the_job_goes_on(cli: Cli, farm: FakeFarm, told: list[tuple[str, str]]) -> None:
    farm.answer("GET", "/jobs/12", a_view(counts=Counts(done=3, failed=1, running=1)))
    assert cli("watch", "12", "--fail-fast").status == 1
    assert [title for title, _ in told] == ["1 frame failed"]


@pytest.mark.parametrize(
    ("environment", "is_terminal", "has_program", "way"),
    [
        ({"DISPLAY": ":0"}, True, True, "notify-send"),
        ({"WAYLAND_DISPLAY": "wayland-0"}, False, True, "notify-send"),
        ({"DISPLAY": ":0"}, True, False, "bell"),
        ({}, True, True, "bell"),
        ({"TERM_PROGRAM": "iTerm.app"}, True, False, "osc9"),
        ({"KITTY_WINDOW_ID": "1"}, True, False, "osc9"),
        ({"KITTY_WINDOW_ID": "1", "TMUX": "/tmp/x"}, True, False, "bell"),
        ({"TERM_PROGRAM": "iTerm.app"}, False, False, "none"),
    ],
)
def test_the_way_to_notify(
    environment: dict[str, str], is_terminal: bool, has_program: bool, way: str
) -> None:
    assert notify.way(environment, is_terminal=is_terminal, has_notify_send=has_program) == way


def test_names_are_no_options_and_no_markup_for_the_desktop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "notify-send"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    calls: list[Any] = []

    notify.notify("--icon=x\x1b[2J", "<b>shot</b> & co", run=lambda argv, **_: calls.append(argv))

    ((called, _, dashes, title, text),) = calls
    assert called == str(program)
    assert dashes == "--"
    assert title == "--icon=x\\x1b[2J"
    assert text == "&lt;b&gt;shot&lt;/b&gt; &amp; co"


def test_a_desktop_that_does_not_answer_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "notify-send").write_text("#!/bin/sh\n")
    (tmp_path / "notify-send").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")

    def hang(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("notify-send", 5)

    assert notify.notify("a", "b", run=hang) in ("bell", "none")


# --- preview --------------------------------------------------------------------------------------------


def a_png(path: Path, colour: tuple[int, int, int], width: int = 32, height: int = 18) -> Path:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + bytes(colour) * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return path


def accepted(path: Path, number: int) -> Any:
    return an_attempt(
        id=AttemptId(f"a{number}"),
        task_id=TaskId(number),
        state=AttemptState.SUCCEEDED,
        outcome=None,
        files=(PublishedFile(path=str(path), size_bytes=100, width=32, height=18),),
    )


def test_a_sheet_is_made_of_frames_at_even_distances(cli: Cli, farm: FakeFarm, tmp_path: Path) -> None:
    paths = [a_png(tmp_path / f"f{number}.png", (number * 20, 0, 0)) for number in range(1, 12)]
    farm.answer("GET", "/jobs/12", a_view())
    attempts = [accepted(path, number) for number, path in enumerate(paths)]
    farm.answer("GET", "/jobs/12/attempts", page(*reversed(attempts)))

    answer = json.loads(cli.good("preview", "12", "--count", "3", "--json"))

    assert [Path(frame).name for frame in answer["frames"]] == ["f1.png", "f6.png", "f11.png"]
    sheet = Path(answer["path"])
    assert sheet == cli.folder / "state" / "previews" / "job-12.png"
    assert sheet.read_bytes().startswith(b"\x89PNG")
    assert cli.good("preview", "12") == f"{sheet}\n"


def test_kitty_gets_the_very_file(cli: Cli, farm: FakeFarm, tmp_path: Path) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("GET", "/jobs/12/attempts", page(accepted(a_png(tmp_path / "f.png", (9, 9, 9)), 1)))

    out = cli.good("preview", "12", "--inline", "kitty", "--output", "sheet.png")

    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", out)
    assert pieces[0][0].startswith("a=T,f=100,m=")
    assert pieces[-1][0].endswith("m=0")
    sent = base64.standard_b64decode("".join(text for _, text in pieces))
    assert sent == (tmp_path / "sheet.png").read_bytes()

    for inline in ("kitty", "iterm"):
        out = cli.good("preview", "12", "--inline", inline, "--output", "sheet.jpg")
        assert base64.standard_b64encode(b"\x89PNG\r\n").decode() in out, "it knows no other format"


@pytest.mark.parametrize(
    ("environment", "begins"),
    [
        ({"TERM": "xterm-kitty"}, b"\x1b_Ga=T,f=100,m="),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, b"\x1b]1337;File=inline=1;"),
        ({"TERM": "dumb"}, b""),
    ],
    ids=("kitty", "iterm", "dumb"),
)
def test_the_sheet_is_shown_where_the_terminal_can_and_never_in_a_pipe(
    cli: Cli, farm: FakeFarm, tmp_path: Path, environment: dict[str, str], begins: bytes
) -> None:
    farm.answer("GET", "/jobs/12", a_view())
    farm.answer("GET", "/jobs/12/attempts", page(accepted(a_png(tmp_path / "f.png", (9, 9, 9)), 1)))
    for name in TERMINAL_VARIABLES:
        cli.patch.delenv(name, raising=False)
    for name, value in environment.items():
        cli.patch.setenv(name, value)
    out = on_a_terminal("preview", "12", environment=dict(os.environ))
    assert out.startswith(begins)
    assert (b"\x1b" in out) == bool(begins)
    assert b"job-12.png" in out
    assert "\x1b" not in cli.good("preview", "12")


def test_a_terminal_that_answers_is_asked_for_sixel(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()

    def answer() -> None:
        asked = b""
        while not asked.endswith(b"\x1b[c"):
            asked += os.read(ours, 64)
        os.write(ours, b"\x1b[?62;4;22c")

    with open(theirs, closefd=False) as stdin, open(theirs, "w", closefd=False) as stdout:
        monkeypatch.setattr(inline_image, "_ANSWER_S", 60.0)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        terminal = threading.Thread(target=answer)
        terminal.start()
        told = inline_image.ask_terminal()
        terminal.join(60)
    os.close(ours)
    os.close(theirs)
    assert inline_image.protocol({"TERM": "xterm-256color"}, told) == "sixel"


@pytest.mark.parametrize(
    ("files", "view", "told"),
    [
        ((), a_view(counts=Counts(ready=3)), "no frame of it is done yet"),
        ((), an_ended_view(), "none of its files is a picture"),
        (("/nowhere/f.png",), a_view(), "not on this machine"),
    ],
)
def test_why_there_is_nothing_to_show(
    cli: Cli, farm: FakeFarm, files: tuple[str, ...], view: Any, told: str
) -> None:
    farm.answer("GET", "/jobs/12", view)
    listed = [accepted(Path(path), number) for number, path in enumerate(files)]
    farm.answer("GET", "/jobs/12/attempts", page(*listed))
    assert told in cli.bad("preview", "12")


@pytest.mark.parametrize(
    ("environment", "answer", "chosen"),
    [
        ({"KITTY_WINDOW_ID": "1"}, "", "kitty"),
        ({"TERM": "xterm-kitty"}, "", "kitty"),
        ({"TERM_PROGRAM": "ghostty"}, "", "kitty"),
        ({"TERM_PROGRAM": "WezTerm"}, "", "iterm"),
        ({"LC_TERMINAL": "iTerm2"}, "", "iterm"),
        ({"TERM": "xterm-256color"}, "\x1b[?65;4;9c", "sixel"),
        ({"TERM": "xterm-256color"}, "\x1b[?64;14;22c", None),
        ({"TERM": "xterm-256color"}, "", None),
        ({"TERM": "tmux-256color", "TMUX": "x", "KITTY_WINDOW_ID": "1"}, "\x1b[?1;2c", None),
        ({"TMUX": "x", "KITTY_WINDOW_ID": "1"}, "\x1b[?1;2;4c", "sixel"),
    ],
)
def test_what_a_terminal_can(environment: dict[str, str], answer: str, chosen: str | None) -> None:
    assert inline_image.protocol(environment, answer) == chosen


def unsixel(text: str) -> list[list[int]]:
    """Colour numbers by row, read as a terminal reads them."""
    match = re.fullmatch(r'\x1bPq"1;1;(\d+);(\d+)(.*)\x1b\\\n', text, re.DOTALL)
    assert match is not None
    width, height = int(match[1]), int(match[2])
    rows = [[-1] * width for _ in range(-(-height // 6) * 6)]
    x, top, colour = 0, 0, 0
    for token in re.finditer(r"#(\d+);2;\d+;\d+;\d+|#(\d+)|!(\d+)(.)|([$-])|([?-~])", match[3]):
        if token[2]:
            colour = int(token[2])
        elif token[5]:
            x, top = 0, top + 6 * (token[5] == "-")
        elif token[4] or token[6]:
            length = int(token[3] or 1)
            bits = ord(token[4] or token[6]) - 63
            for bit in (bit for bit in range(6) if bits >> bit & 1):
                rows[top + bit][x : x + length] = [colour] * length
            x += length
    return rows[:height]


def test_sixel_says_every_pixel() -> None:
    width, height = 11, 13
    colours = [[(x * y) % 216 for x in range(width)] for y in range(height)]
    rgb = bytes(
        part * 51 for row in colours for number in row for part in (number // 36, number // 6 % 6, number % 6)
    )
    assert unsixel("".join(inline_image.sixel(width, height, rgb))) == colours


def test_frames_are_in_the_order_of_their_numbers() -> None:
    assert sorted(["f10", "f9", "f1b", "f"], key=preview.natural) == ["f", "f1b", "f9", "f10"]


@pytest.mark.parametrize(
    ("count", "expected"), [(1, ["c"]), (2, ["a", "e"]), (3, ["a", "c", "e"]), (9, list("abcde"))]
)
def test_spread(count: int, expected: list[str]) -> None:
    assert preview.spread_out(list("abcde"), count) == expected


def test_a_job_s_own_number_is_watched_once(cli: Cli, farm: FakeFarm, told: list[tuple[str, str]]) -> None:
    farm.answer("GET", "/jobs/12", an_ended_view(id=JobId(12)))
    assert cli("watch", "12", "#12").status == 0
    assert len(told) == 1
