"""The add-on in Blender itself, against a real farm API: what is sent, and what is refused and why."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blender_asset_tracer
import httpx
import pytest

from farm.http.server import ensure_first_token, serve
from farm.settings import Settings
from farm.store.engine import open_engine
from plugins.blender.build_addon import build

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.renderer,
    pytest.mark.skipif(
        os.environ.get("FARM_TEST_SERVICES") != "required" and shutil.which("blender") is None,
        reason="Blender is not installed",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Drive:
    told: dict[str, Any]
    jobs: dict[str, Any]
    """By name."""
    scenes: Path
    log: str


def blender(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FARM_")}
    own = str(
        Path(sys.executable).parent
    )  # of an activated virtual environment Blender's Python takes the library
    environment |= {
        "PATH": os.pathsep.join(each for each in os.environ["PATH"].split(os.pathsep) if each != own),
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "BLENDER_USER_RESOURCES": str(home),
        "BLENDER_USER_SCRIPTS": str(home / "scripts"),
        "BLENDER_USER_CONFIG": str(home / "config"),
    }
    return subprocess.run(
        ["blender", "-b", "--factory-startup", "--python-exit-code", "3", "-P", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Drive]:
    """One run of `addon_driver.py`; the tests look at what came of it."""
    home = tmp_path_factory.mktemp("home")
    scenes = tmp_path_factory.mktemp("schöne Szenen")
    assert blender(home, str(HERE / "scenes.py"), "--", str(scenes)).returncode == 0
    shutil.copy(sqlite_template, home / "farm.db")
    engine = open_engine(f"sqlite:///{home / 'farm.db'}")
    settings = Settings(state_dir=home / "farm", api_port=0)
    serving = serve(engine, settings, nudge=lambda: None)
    try:
        token = ensure_first_token(engine, settings, url=serving.url)
        assert token is not None
        zip_path = build(home / "dist")
        tracer = Path(blender_asset_tracer.__file__).parents[1]
        given = (str(zip_path), serving.url, token, str(scenes), str(tracer))
        done = blender(home, str(HERE / "addon_driver.py"), "--", *given)
        assert done.returncode == 0, done.stdout
        told = {
            name: json.loads(value)
            for name, value in re.findall(r"^RESULT ([a-z ]+) (.*)$", done.stdout, re.M)
        }
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"{serving.url}/api/v1", headers=headers, timeout=60) as client:
            jobs = {view["job"]["name"]: view["job"] for view in client.get("/jobs").json()["items"]}
        yield Drive(told=told, jobs=jobs, scenes=scenes, log=done.stdout)
    finally:
        serving.stop()
        engine.dispose()


def test_the_scene_is_sent_with_what_the_panel_says(drive: Drive) -> None:
    assert drive.told["sent"] is None, drive.log
    assert drive.told["checked"].endswith(f"{drive.scenes}/render/small_0001.png")
    job = drive.jobs["all of it"]
    assert [(step["name"], step["frames"], step["output"]["file_pattern"]) for step in job["steps"]] == [
        ("preview", "1,4,6", "y_###.exr"),
        ("render", "2-3,5", "y_###.exr"),
        ("film", None, "y.mp4"),
    ]
    assert job["output_directories"] == [f"{drive.scenes}/out"]
    render = job["steps"][1]
    assert (render["demand"]["gpus"], render["demand"]["software"]) == (1, ["blender"])
    assert (render["profile"]["tag"], render["profile"]["source"]) == ("bandwidth", "user")
    assert job["state"] == "paused"


def test_a_still_in_tiles_is_four_steps(drive: Drive) -> None:
    assert drive.told["parts"] is None, drive.log
    steps = drive.jobs["in parts"]["steps"]
    assert [step["name"] for step in steps] == ["parts", "assemble", "finish", "verify"]
    assert sum(steps[0]["counts"].values()) == 4


def test_the_cost_of_the_scene_goes_along(drive: Drive) -> None:
    step = drive.jobs["small"]["steps"][0]
    assert step["profile"]["source"] == "hint"


@pytest.mark.parametrize(
    ("attempt", "parts"),
    [
        ("unsaved", ["never saved"]),
        ("no token", ["no token", "farm token create"]),
        ("wrong frames", ["'1-x'", "cannot be read"]),
        ("no node", ["no node", "Send Anyway"]),
        ("no parts", ["only Cycles", "in parts"]),
        ("no tracer", ["Pack Into", "blender-asset-tracer"]),
        ("existing", ["small_0002.png", "Replace Existing"]),
        ("no camera", ["no camera"]),
        ("no texture", ["'wood'", "textures/wood.png"]),
        ("scripts", ["rig_ui.py", "driver of Cube", "Trust Scripts"]),
        ("no farm", ["no farm answers at http://127.0.0.1:9"]),
    ],
)
def test_what_cannot_render_is_refused_with_the_reason(drive: Drive, attempt: str, parts: list[str]) -> None:
    refusal = drive.told[attempt]
    assert refusal is not None, drive.log
    assert [part for part in parts if part not in refusal] == []


@pytest.mark.parametrize("attempt", ["test", "check", "sent", "all", "packed", "replaced", "trusted"])
def test_what_is_right_is_taken(drive: Drive, attempt: str) -> None:
    assert drive.told[attempt] is None, drive.log


def test_a_scene_is_packed_and_blender_can_end_afterwards(drive: Drive) -> None:
    (packed,) = (drive.scenes / "shared").glob("small-*/small.blend")
    assert packed.stat().st_size > 0
    assert drive.told["kept main"] is False, "Blender 3.4 crashes at its end"


def test_the_internet_needs_blenders_leave_where_blender_has_such_a_switch(drive: Drive) -> None:
    reason = "Allow Online Access" if drive.told["version"] >= [4, 2, 0] else "no farm answers"
    assert reason in drive.told["internet"]


def test_the_token_is_kept_for_this_user_alone_and_not_in_the_preferences(drive: Drive) -> None:
    assert drive.told["token mode"] == 0o600
    assert drive.told["token in preferences"] == ["********", True, False]


def test_the_folder_is_opened_without_a_wait_or_told_where_nothing_opens_it(drive: Drive) -> None:
    assert drive.told["opened"] is None
    opened, folder = drive.told["folder"]
    assert opened == folder
    assert folder in drive.told["no opener"]
    assert "xdg-open" in drive.told["no opener"]


def test_the_job_is_watched_and_the_add_on_leaves_without_a_trace(drive: Drive) -> None:
    assert drive.told["watched"] == ["paused", "0 of 3 tasks"]
    assert drive.told["gone"] is True
