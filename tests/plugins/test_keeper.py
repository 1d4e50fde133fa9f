"""The keeper with a renderer of a few lines: who serves which task, and what ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from plugins import keeper
from tests.waiting import wait_until

RENDERER = """
import json, os, signal, socket, sys
print("loading", os.getpid(), flush=True)
if "--broken" in sys.argv: sys.exit(3)
channel = socket.socket(fileno=int(os.environ["RIDGELINE_KEEPER"]))
held = []
null = os.open(os.devnull, os.O_WRONLY)
while True:
    data, outputs, _, _ = socket.recv_fds(channel, 1 << 20, 2)
    if not data: break
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number); os.close(output)
    words = json.loads(data)["arguments"]
    print("rendering", words[0], "as", os.getpid(), flush=True)
    if words[0] == "crash": os.kill(os.getpid(), signal.SIGSEGV)
    if words[0] == "hang": signal.pause()
    if words[0] == "grow": held.append(bytearray(os.urandom(1024) * 60000))
    for number in (1, 2): os.dup2(null, number)
    answer = {"status": 5 if words[0] == "fail" else 0, "watch": words[1:]}
    channel.sendall(json.dumps(answer).encode() + b"\\n")
"""


class Kept:
    """A keeper, started as an environment starts it."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.scene = directory / "scene"
        self.scene.write_text("one")
        script = directory / "renderer.py"
        script.write_text(RENDERER)
        os.utime(self.scene, (1e9, 1e9))
        self.keeper("start", "--", sys.executable, str(script), *options)

    def keeper(self, verb: str, *words: str) -> None:
        with self.popen(verb, *words) as done:
            assert done.wait(60) == 0

    def popen(self, verb: str, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-IS", keeper.__file__, verb, str(self.directory), *words]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def start_task(self, *words: str) -> subprocess.Popen[str]:
        return self.popen("run", str(self.scene), "--", *words)

    def task(self, *words: str) -> tuple[int, list[str]]:
        """Exit status and lines."""
        process = self.start_task(*words)
        told, _ = process.communicate(timeout=60)
        return process.returncode, told.splitlines()

    def pid(self, *words: str) -> int:
        """Of the renderer that did the task."""
        status, lines = self.task(*words)
        assert status == 0, lines
        return int(lines[-1].rpartition(" ")[2])


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.keeper("stop")


def is_gone(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True


def test_one_renderer_does_one_task_after_the_other_and_each_hears_its_own(kept: Kept) -> None:
    status, first = kept.task("a")
    assert status == 0
    assert [line.split()[0] for line in first] == ["loading", "rendering"]
    pid = first[0].split()[1]
    assert kept.task("b") == (0, [f"rendering b as {pid}"])


def test_a_scene_or_a_file_of_it_that_changes_is_loaded_anew(kept: Kept, tmp_path: Path) -> None:
    texture = tmp_path / "texture"
    texture.write_text("one")
    os.utime(texture, (1e9, 1e9))
    first = kept.pid("a", str(texture))
    assert kept.pid("b", str(texture)) == first
    texture.write_text("two!")
    status, lines = kept.task("c", str(texture))
    assert lines[0] == f"ridgeline| fresh {texture} has changed"
    assert status == 0
    assert is_gone(first)
    second = kept.pid("d")
    kept.scene.write_text("two!")
    assert kept.pid("e") != second


def test_a_file_written_after_the_start_may_have_been_read_before(kept: Kept, tmp_path: Path) -> None:
    first = kept.pid("a")
    cache = tmp_path / "cache"
    cache.write_text("new")
    future = time.time() + 100
    os.utime(cache, (future, future))
    assert kept.pid("b", str(cache)) == first
    assert kept.pid("c", str(cache)) != first


def test_a_crash_fails_the_task_at_hand_alone(kept: Kept) -> None:
    first = kept.pid("a")
    status, lines = kept.task("crash")
    assert status == 128 + signal.SIGSEGV
    assert lines == [f"rendering crash as {first}"]
    assert kept.pid("b") != first


def test_a_status_is_the_tasks_and_the_renderer_stays(kept: Kept) -> None:
    first = kept.pid("a")
    assert kept.task("fail")[0] == 5
    assert kept.pid("b") == first


def test_a_task_that_is_killed_takes_its_renderer_along(kept: Kept) -> None:
    task = kept.start_task("hang")
    assert task.stdout is not None
    loading, rendering = task.stdout.readline(), task.stdout.readline()
    assert rendering.startswith("rendering hang")
    task.kill()
    task.communicate()
    wait_until(lambda: is_gone(int(loading.split()[1])), "the renderer is gone")
    assert kept.task("b")[0] == 0


def test_a_renderer_that_cannot_load_tells_its_own_status_to_each_task(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "--broken")
    for _ in range(2):
        status, lines = kept.task("a")
        assert (status, [line.split()[0] for line in lines]) == (3, ["loading"])
    kept.keeper("stop")


def test_a_renderer_that_is_not_there_is_named(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keeper("stop")
    wait_until(lambda: kept.task("a")[0] == 1, "the keeper is gone")
    (tmp_path / "keeper.socket").unlink()
    kept.keeper("start", "--", "/no/such/blender")
    status, lines = kept.task("a")
    assert status == 127
    assert "/no/such/blender" in lines[0]
    kept.keeper("stop")


def test_a_renderer_that_has_grown_far_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_GROWTH_MIB", 10)
    script = tmp_path / "renderer.py"
    script.write_text(RENDERER)
    null = os.open(os.devnull, os.O_WRONLY)
    renderer = keeper.Renderer([sys.executable, str(script)], str(script), null, null)

    def do(words: Sequence[str]) -> None:
        renderer.ask(words, null, null)
        answer, _ = keeper.receive(renderer.socket)
        renderer.answered(answer["watch"])

    try:
        do(["a"])
        do(["b"])
        assert renderer.staleness() == ""
        do(["grow"])
        assert "it has grown from" in renderer.staleness()
    finally:
        renderer.end()
        os.close(null)


def test_the_keeper_can_travel_in_a_template() -> None:
    text = Path(keeper.__file__).read_text(encoding="utf-8")
    assert "{{" not in text
    assert "}}" not in text
