"""`farm demo`, and the command line against a real farm in one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import OpenImageIO as oiio  # noqa: N813 - its customary name
import psutil
import pytest

from farm.cli.contact_sheet import GAP, TILE_WIDTH, contact_sheet
from farm.errors import UserError
from tests.edges.cli_farm import Cli
from tests.waiting import wait_until

FARM = (sys.executable, "-m", "farm.main")


def picture(path: Path, colour: tuple[float, ...], *, size: tuple[int, int] = (32, 18)) -> Path:
    image = oiio.ImageBuf(oiio.ImageSpec(*size, len(colour), oiio.UINT8))
    oiio.ImageBufAlgo.fill(image, colour)
    assert image.write(str(path))
    return path


# --- the contact sheet --------------------------------------------------------------------------------


def test_a_contact_sheet_shows_every_frame_in_its_place(tmp_path: Path) -> None:
    red, green, grey = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.5), (0.5,)
    colours: list[tuple[float, ...]] = [red, green, grey, red, green]
    frames = [picture(tmp_path / f"{number}.png", colour) for number, colour in enumerate(colours)]
    contact_sheet(frames, tmp_path / "sheet.png")
    sheet = oiio.ImageBuf(str(tmp_path / "sheet.png"))
    height = round(TILE_WIDTH * 18 / 32)
    assert (sheet.spec().width, sheet.spec().height) == (
        4 * (TILE_WIDTH + GAP) + GAP,
        2 * (height + GAP) + GAP,
    )

    def middle(column: int, row: int) -> list[float]:
        x = GAP + column * (TILE_WIDTH + GAP) + TILE_WIDTH // 2
        y = GAP + row * (height + GAP) + height // 2
        return [round(value, 1) for value in sheet.getpixel(x, y)]

    assert middle(0, 0) == [1.0, 0.0, 0.0]
    assert middle(1, 0) == [0.0, 0.5, 0.0], "half of it is seen through"
    assert middle(2, 0) == [0.5, 0.5, 0.5]
    assert middle(3, 0) == [1.0, 0.0, 0.0]
    assert middle(0, 1) == [0.0, 0.5, 0.0]
    assert middle(1, 1) == [0.1, 0.1, 0.1], "nothing is there"


def test_a_frame_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    good = picture(tmp_path / "a.png", (1.0, 0.0, 0.0))
    bad = tmp_path / "b.png"
    bad.write_bytes(good.read_bytes()[:50])
    with pytest.raises(UserError, match=r"b\.png"):
        contact_sheet([good, bad], tmp_path / "sheet.png")
    with pytest.raises(UserError, match="at least one"):
        contact_sheet([], tmp_path / "sheet.png")


# --- the demo -----------------------------------------------------------------------------------------


@pytest.fixture
def bare(lonely_cli: Cli, tmp_path: Path) -> dict[str, str]:
    """An environment without renderers, and with settings that the demo must not heed."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    return dict(
        os.environ,
        PATH=str(tmp_path / "bin"),
        TMPDIR=str(tmp_path / "tmp"),
        FARM_BROKER_URL="amqp://nobody@127.0.0.1:9//",
    )


def left_running(folder: Path) -> list[str]:
    """Processes that know of `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            told = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(folder) in text for text in told):
            found.append(f"{process.pid} {process.cmdline()}")
    return found


@pytest.mark.e2e
def test_the_demo_ends_with_frames_a_sheet_and_nothing_left(tmp_path: Path, bare: dict[str, str]) -> None:
    done = subprocess.run(
        [*FARM, "demo", "--frames", "3", "--output", "out"],
        env=bare,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    paths = [Path(line.strip()) for line in done.stdout.splitlines() if line.startswith("  ")]
    assert [path.name for path in paths] == [
        *("demo_0001.png", "demo_0002.png", "demo_0003.png", "contact-sheet.png")
    ]
    for path in paths:
        assert oiio.ImageBuf(str(path)).read()
    assert "no renderer is here" in done.stderr or "Blender" in done.stderr
    assert not list((tmp_path / "tmp").glob("ridgeline-demo-*"))
    assert not left_running(tmp_path / "tmp")
    again = subprocess.run(
        [*FARM, "demo", "--frames", "1", "--output", "out", "--keep"],
        env=bare,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert again.returncode == 0, "a second demo moves the first one's frames aside: " + again.stderr
    assert list((tmp_path / "tmp").glob("ridgeline-demo-*/farm.log"))


@pytest.mark.e2e
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_stopped_leaves_nothing_running(
    tmp_path: Path, bare: dict[str, str], number: int, status: int
) -> None:
    with (tmp_path / "err").open("wb") as err:
        demo = subprocess.Popen([*FARM, "demo", "--frames", "24"], env=bare, stdout=err, stderr=err)
    try:
        wait_until(lambda: b"submitted job" in (tmp_path / "err").read_bytes(), "a job begins", timeout_s=60)
        demo.send_signal(number)
        assert demo.wait(60) == status
    finally:
        demo.kill()
        demo.wait(10)
    told = (tmp_path / "err").read_bytes()
    assert b"Traceback" not in told
    assert not list((tmp_path / "tmp").glob("ridgeline-demo-*"))
    wait_until(lambda: not left_running(tmp_path / "tmp"), "all processes end")


# --- a real farm --------------------------------------------------------------------------------------


@pytest.fixture
def real(lonely_cli: Cli, tmp_path: Path) -> Iterator[Cli]:
    """A command line with a whole farm behind it."""
    lonely_cli.patch.delenv("FARM_API_URL")
    lonely_cli.patch.setenv("FARM_NODE_NAME", "here")
    lonely_cli.patch.setenv("FARM_SLOTS", "2")
    log = (tmp_path / "farm.log").open("wb")
    farm = subprocess.Popen(
        [*FARM, "up"], env=dict(os.environ, FARM_API_PORT="0"), stdout=log, stderr=log, start_new_session=True
    )
    try:
        wait_until(lambda: (tmp_path / "state" / "client.json").exists(), "the farm's token", timeout_s=60)
        wait_until(lambda: "online" in lonely_cli("nodes").out, "a node online", timeout_s=60)
        yield lonely_cli
    finally:
        farm.terminate()
        try:
            farm.wait(30)
        finally:
            farm.kill()
            farm.wait(10)
            log.close()


@pytest.mark.e2e
def test_every_command_works_with_a_real_farm(real: Cli) -> None:
    job = real.good(
        "submit", "-q", "-f", "1-4", "--", "sh", "-c", "echo frame {frame}; test {frame} != 3"
    ).strip()
    assert real("wait", job).status == 1
    assert "3/4, 1 failed" in real.good("jobs")
    told = real.good("job", job)
    assert "3 done, 1 failed" in told
    assert "sh exited with status 1" in told
    assert json.loads(real.good("tasks", job, "--state", "failed", "--json"))[0]["label"] == "3"
    assert "frame 3" in real.good("logs", job)
    assert real.good("logs", job, "--frame", "2", "--tail", "1") == "frame 2\n"
    assert "1 task will be tried again" in real.good("retry", job, "--frames", "3")
    assert "1 task" in real.good("requeue", job, "--frames", "1")
    assert real("wait", job, "-q").status == 1
    assert "job-failed" in real.good("events", "--job", job)

    other = real.good("submit", "-q", "--paused", "--", "sleep", "600").strip()
    assert "paused" in real.good("why", other)
    assert "resumed" in real.good("resume", other)
    assert "priority 90" in real.good("priority", other, "90")
    wait_until(lambda: "running" in real.good("tasks", other), "it runs", timeout_s=30)
    assert "cancelled" in real.good("cancel", other)
    assert real("wait", other, "-q").status == 1

    assert "takes no more work" in real.good("drain", "here")
    assert "drained" in real.good("nodes") or "draining" in real.good("nodes")
    real.good("undrain", "here")
    assert "command" in real.good("node", "here")

    token = real.good("token", "create", "bert", "--user", "bert").strip()
    assert "bert" in real.good("token", "list")
    assert f"newest: {other}" in real.bad("job", "99")
    assert real("doctor").status == 0
    real.patch.setenv("FARM_API_TOKEN", token)
    assert "bert" in real.bad("cancel", job)
    plan = json.loads(real.good("submit", "--pretend", "--json", "-f", "1-9", "--", "echo", "{frame}"))[
        "plan"
    ]
    assert plan["steps"][0]["tasks"] == 9
    real.patch.delenv("FARM_API_TOKEN")
    real.good("token", "revoke", "bert")
