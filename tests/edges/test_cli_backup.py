"""`farm backup`, `farm restore` and `farm reconcile`, on both databases and real files."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from farm.control.reconcile import PRIVATE, marker
from farm.flow.reconcile import Difference
from farm.flow.submit import plan_job
from farm.model.attempts import PublishedFile
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.states import Outcome, TaskState
from farm.model.work import OutputSpec, Submission
from farm.store import jobs, moves, settling, submitting, tasks
from farm.store.engine import open_engine, reading, writing
from farm.store.leader import acquire, resign
from farm.wire.messages import Finished
from tests.conftest import missing
from tests.edges.cli_farm import Cli
from tests.leasing import lease
from workers import staging

NODE = NodeId("blade")


@dataclass
class Kept:
    """A farm's database, and a folder that its jobs write to."""

    cli: Cli
    engine: sa.Engine
    out: Path

    def submit(self, frames: str = "1-3") -> JobId:
        frame = {"name": "Frame", "type": "INT", "range": frames}
        template = {
            "specificationVersion": "jobtemplate-2023-09",
            "name": "shot",
            "parameterDefinitions": [{"name": "Out", "type": "PATH"}],
            "steps": [
                {
                    "name": "render",
                    "parameterSpace": {"taskParameterDefinitions": [frame]},
                    "script": {"actions": {"onRun": {"command": "x", "args": ["{{Task.Param.Frame}}"]}}},
                }
            ],
        }
        spec = OutputSpec(
            step="render", directory_parameter="Out", file_pattern="#.bin", frames_parameter="Frame"
        )
        submission = Submission(
            name="shot", template=template, parameters={"Out": str(self.out)}, outputs=(spec,)
        )
        plan = plan_job(submission, uid=str(uuid.uuid4()))
        with writing(self.engine) as db:
            return submitting.submit(db, submission, plan, actor="anna")[0]

    def finish(self, job_id: JobId, count: int) -> None:
        """Tasks 1 to `count` are done, and their files are there."""
        with writing(self.engine) as db:
            moves.lock_jobs(db, [job_id])
            step_id = jobs.read_job(db, job_id).steps[0].id
            for given in lease(db, step_id, NODE, count):
                attempt_id = given.attempt_id
                path = self.out / f"{given.task.index + 1}.bin"
                path.write_bytes(b"frame")
                file = PublishedFile(path=str(path), size_bytes=5)
                end = Finished(
                    attempt_id=attempt_id,
                    outcome=Outcome.SUCCEEDED,
                    files=(file,),
                    published_by=attempt_id,
                )
                settling.finished(db, {NODE: [end]})

    def states(self, job_id: JobId) -> list[TaskState]:
        with reading(self.engine) as db:
            return [task.state for task in tasks.list_tasks(db, job_id)]

    def count(self) -> int:
        with reading(self.engine) as db:
            return len(jobs.list_jobs(db))

    def reconcile(self, *options: str, status: int) -> list[dict[str, object]]:
        result = self.cli("reconcile", "--json", *options)
        assert result.status == status, result.out + result.err
        found: list[dict[str, object]] = json.loads(result.out)["findings"]
        return found


@pytest.fixture
def farm(lonely_cli: Cli, database_url: str, tmp_path: Path) -> Iterator[Kept]:
    if database_url.startswith("postgresql") and shutil.which("pg_dump") is None:
        missing("pg_dump", "it is not installed")
    lonely_cli.patch.setenv("FARM_DATABASE_URL", database_url)
    out = tmp_path / "out"
    out.mkdir()
    engine = open_engine(database_url)
    yield Kept(lonely_cli, engine, out)
    engine.dispose()


def test_what_was_backed_up_is_there_after_the_restore_and_nothing_else(farm: Kept) -> None:
    before = farm.submit()
    told = json.loads(farm.cli.good("backup", "monday", "--json"))
    assert told == {"path": "monday", "size_bytes": Path("monday").stat().st_size}
    farm.submit()
    assert farm.count() == 2
    farm.engine.dispose()
    assert "farm reconcile" in farm.cli.good("restore", "monday")
    assert farm.count() == 1
    assert farm.states(before) == [TaskState.READY] * 3
    farm.engine.dispose()
    again = json.loads(farm.cli.good("restore", "monday", "--json"))  # nothing is left over that hinders it
    assert (again["path"], again.keys()) == ("monday", {"path", "kept", "needs_upgrade"})


def test_a_restore_under_a_running_farm_is_refused(farm: Kept) -> None:
    farm.cli.good("backup", "monday")
    lead = acquire(farm.engine, holder="blade-1", ttl_s=60)
    assert lead is not None
    farm.submit()
    assert "blade-1 leads this farm" in farm.cli.bad("restore", "monday")
    assert farm.count() == 1
    resign(farm.engine, lead)


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 99])
def test_what_is_no_backup_replaces_nothing(lonely_cli: Cli, content: bytes, tmp_path: Path) -> None:
    lonely_cli.good("db", "upgrade")
    (tmp_path / "monday").write_bytes(content)
    assert "is no backup of a farm" in lonely_cli.bad("restore", "monday")
    assert "no file" in lonely_cli.bad("restore", "tuesday")
    assert "needs" in lonely_cli.good("db", "version")
    assert not list((tmp_path / "state").glob("*.partial"))


def test_where_disk_and_database_agree_nothing_is_told(farm: Kept) -> None:
    farm.finish(farm.submit(), 3)
    assert farm.reconcile(status=0) == []
    assert "agree" in farm.cli.good("reconcile")


def test_a_done_task_whose_file_is_gone_is_found_and_rendered_again(farm: Kept) -> None:
    job_id = farm.submit()
    farm.finish(job_id, 3)
    (farm.out / "2.bin").unlink()
    (farm.out / "3.bin").write_bytes(b"cut")
    found = farm.reconcile(status=1)
    assert [finding["difference"] for finding in found] == [Difference.FILES_GONE] * 2
    assert "2.bin is not there" in str(found[0]["text"])
    assert "3.bin is of another size" in str(found[1]["text"])
    table = farm.cli("reconcile", "--columns", "difference,job")
    assert (table.status, table.out.count(Difference.FILES_GONE)) == (1, 2)
    farm.reconcile("--fix", status=0)
    assert farm.states(job_id) == [TaskState.DONE, TaskState.READY, TaskState.READY]


def test_a_published_frame_that_the_database_does_not_know_is_found(farm: Kept) -> None:
    job_id = farm.submit()
    (farm.out / "1.bin").write_bytes(b"frame")
    [foreign] = farm.reconcile(status=1)
    assert foreign["difference"] == Difference.NOT_RECORDED
    assert "look at the file" in str(foreign["advice"])
    with reading(farm.engine) as db:
        job = jobs.read_job(db, job_id)
        task = tasks.list_tasks(db, job_id)[0]
    record = marker(farm.out, job.uid, task.id, task.generation)
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    [ours] = farm.reconcile(status=1)
    assert "taken over" in str(ours["advice"])


def test_a_job_that_came_after_the_backup_is_found_by_its_private_directory(farm: Kept) -> None:
    farm.submit()
    (farm.out / PRIVATE / "another-job").mkdir(parents=True)
    [found] = farm.reconcile(status=1)
    assert (found["difference"], "another-job" in str(found["text"])) == (Difference.JOB_UNKNOWN, True)


def test_what_cannot_be_seen_from_here_is_not_taken_for_gone(farm: Kept) -> None:
    job_id = farm.submit()
    farm.finish(job_id, 3)
    farm.out.rename(farm.out.with_name("unmounted"))
    [found] = farm.reconcile("--fix", status=1)
    assert found["difference"] == Difference.NOT_SEEN
    assert farm.states(job_id) == [TaskState.DONE] * 3


def test_the_names_are_those_of_the_nodes(tmp_path: Path) -> None:
    stage = staging.Stage(
        final=tmp_path,
        shown=str(tmp_path),
        job_uid="uid",
        task_id=TaskId(7),
        generation=2,
        attempt_id=AttemptId("a"),
    )
    assert marker(tmp_path, "uid", TaskId(7), 2) == stage.marker
    assert PRIVATE == staging.PRIVATE
