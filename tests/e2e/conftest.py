"""Servers of our own that tests may kill, shared by all of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import drop_postgres_database, new_postgres_database
from tests.e2e.farm_under_test import FarmUnderTest, run
from tests.e2e.services import RABBITMQ, PrivatePostgres, PrivateRabbit, add_vhost, remove_vhost


@pytest.fixture(scope="session")
def sample_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small images, a film of them, and a POV-Ray scene."""
    directory = tmp_path_factory.mktemp("frames")
    (directory / "ball.pov").write_text(
        "camera { location <0, 0, -4> look_at 0 } light_source { <2, 4, -3> rgb 1 }"
        "sphere { 0, 1 pigment { rgb x } }"
    )
    for number in (1, 2, 3):
        ppm = directory / f"f.{number}.ppm"
        ppm.write_bytes(b"P6 64 36 255\n" + bytes([number * 60]) * (64 * 36 * 3))
    run("ffmpeg", "-loglevel", "error", "-i", directory / "f.%d.ppm", directory / "f_%04d.png")
    film = ("-i", directory / "f_%04d.png", "-pix_fmt", "yuv420p", directory / "film.mp4")
    run("ffmpeg", "-loglevel", "error", *film)
    return directory


@pytest.fixture(scope="session")
def sample_pictures(sample_inputs: Path, blender_scenes: Path) -> Path:
    """Beside the inputs, what the samples render, rendered by hand."""
    both = ("-F", "PNG", "-f", "1..3", "-F", "JPEG", "-f", "1..3")
    run("blender", "-b", blender_scenes / "small.blend", "-o", sample_inputs / "hand_####", *both)
    if shutil.which("povray") is not None:
        scene = (f"+I{sample_inputs}/ball.pov", f"+O{sample_inputs}/hand.png")
        run("povray", *scene, "+W64", "+H36", "+Q9", "+A0.3", "-D")
    return sample_inputs


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateRabbit]:
    server = PrivateRabbit(tmp_path_factory.mktemp("rabbit"))
    server.create()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivatePostgres]:
    server = PrivatePostgres(tmp_path_factory.mktemp("postgres"))
    server.create()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A disk of 1 MiB, there before any agent starts; None where mounting is not permitted."""
    place = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        yield None
        return
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def small_disk(mounted: Path | None) -> Path:
    if mounted is None:
        pytest.skip("mounting is not permitted here")
    return mounted


NewServices = Callable[[], tuple[str, str]]
"""Makes an empty database and a virtual host; returns their URLs."""


@pytest.fixture(scope="session")
def lasting_services(request: pytest.FixtureRequest) -> Iterator[NewServices]:
    """On servers that nobody kills: the machine's. To start one of our own costs ten seconds of CPU."""
    tried: PrivateRabbit | None = request.getfixturevalue("rabbit") if RABBITMQ else None
    with ExitStack() as undo:

        def make() -> tuple[str, str]:
            database_url = new_postgres_database()
            undo.callback(drop_postgres_database, database_url)
            if tried is not None:
                return database_url, tried.add_vhost()
            broker_url = add_vhost()
            undo.callback(remove_vhost, broker_url)
            return database_url, broker_url

        yield make


@pytest.fixture(scope="session")
def facility(
    tmp_path_factory: pytest.TempPathFactory, lasting_services: NewServices, mounted: Path | None
) -> Iterator[FarmUnderTest]:
    """Four agents on RabbitMQ and PostgreSQL, which nobody kills."""
    farm = FarmUnderTest(
        tmp_path_factory.mktemp("facility"), *lasting_services(), extra={"FARM_DRAIN_GRACE_S": "1"}
    )
    try:
        farm.start_all(agents=4)
        yield farm
    finally:
        farm.stop_all()
