"""A database that fails over to a standby which lags behind: what was committed last is lost (F17)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.e2e import marked_renderer
from tests.e2e.farm_under_test import ON_A_NODE
from tests.e2e.marked_jobs import MarkedJob
from tests.e2e.services import PrivatePostgres
from tests.faults.conftest import BreakableFarm
from tests.waiting import wait_until
from tests.workers.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.faults, pytest.mark.services, pytest.mark.e2e]
NewJob = Callable[[int], MarkedJob]

FRAMES = 24


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PrivatePostgres]:
    """Of the test's own: it does not come back."""
    server = PrivatePostgres(tmp_path / "primary")
    server.folder.mkdir()
    server.create()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_f17_a_standby_without_the_last_commits_takes_over(
    farm: BreakableFarm, new_job: NewJob, primary: PrivatePostgres, tmp_path: Path
) -> None:
    """Ends that the farm had accepted are forgotten: their files are taken, not rendered over."""
    standby = PrivatePostgres(tmp_path / "standby")
    standby.folder.mkdir()
    with (
        closing(TcpProxy("127.0.0.1", primary.port)) as replication,
        closing(TcpProxy("127.0.0.1", primary.port)) as way,
    ):
        try:
            farm.database_url = primary.add_database().replace(f":{primary.port}/", f":{way.port}/")
            standby.follow(primary, through=replication.port)
            standby.start()
            farm.start_all(agents=2)
            job = new_job(FRAMES).submit("seconds", "0.5")
            farm.wait_for_done(job.id, 3)
            wait_until(lambda: standby.has_caught_up(primary), "the standby has all so far", pause_s=0.01)
            replication.hold(back=True)
            before = farm.job(job.id)["counts"]["done"]
            farm.wait_for_done(job.id, before + 6)
            primary.kill()
            files = {path: path.stat().st_ino for path in job.output.glob("frame_*.dat")}
            standby.promote()
            way.target = ("127.0.0.1", standby.port)
            wait_until(lambda: farm.try_get(f"/jobs/{job.id}"), "the farm is back", timeout_s=60)
            assert farm.wait_for_job(job.id, timeout_s=180) == "done"
            tasks = job.tasks()
            assert [task["state"] for task in tasks] == ["done"] * FRAMES
            assert [task["failures"] for task in tasks] == [0] * FRAMES
            assert sum(task["starts"] for task in tasks) <= FRAMES + 2 * ON_A_NODE
            for path, inode in files.items():
                assert path.stat().st_ino == inode, "an accepted file was replaced"
            for path in sorted(job.output.glob("frame_*.dat")):
                assert marked_renderer.whose(path)
            job.check_nothing_left(FRAMES)
        finally:
            standby.remove()


def test_the_standby_of_these_tests_is_one(primary: PrivatePostgres, tmp_path: Path) -> None:
    """It has what was committed before, and takes writes only when it was promoted."""
    standby = PrivatePostgres(tmp_path / "standby")
    standby.folder.mkdir()
    try:
        standby.follow(primary, through=primary.port)
        standby.start()
        primary.sql("CREATE TABLE kept ()")
        wait_until(lambda: standby.has_caught_up(primary), "it has caught up")
        with pytest.raises(sa.exc.DBAPIError, match="read-only"):
            standby.sql("CREATE TABLE x ()")
        standby.promote()
        standby.sql("CREATE TABLE x ()")
        assert standby.sql("SELECT count(*) FROM kept") == 0
    finally:
        standby.remove()
