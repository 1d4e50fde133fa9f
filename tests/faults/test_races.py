"""Two writers, one final name: 10,000 races."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.model.attempts import PublishedFile
from farm.model.ids import AttemptId, TaskId
from workers import staging


@pytest.fixture
def memory_disk() -> Iterator[Path]:
    """Where fsync costs nothing."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        yield Path(folder)


def write(folder: Path, me: int, races: int, together: multiprocessing.synchronize.Barrier) -> None:
    for race in range(races):
        stage = staging.open_stage(
            str(folder),
            allowed_roots=(),
            job_uid="job",
            task_id=TaskId(race),
            generation=1,
            attempt_id=AttemptId(f"a{race}-{me}"),
        )
        name = f"frame_{race:05d}.exr"
        text = f"{stage.attempt_id}\n" * 20
        (stage.directory / name).write_text(text)
        together.wait(60)
        publication = staging.publish(stage, [PublishedFile(path=name, size_bytes=len(text))])
        told = folder / "told" / f"{race}-{me}"
        told.write_text(publication.by)
        if publication.by != stage.attempt_id:
            staging.discard(stage)


def race(folder: Path, races: int) -> None:
    (folder / "told").mkdir()
    context = multiprocessing.get_context("fork")
    together = context.Barrier(2)
    writers = [context.Process(target=write, args=(folder, me, races, together)) for me in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(600)
        assert writer.exitcode == 0
    won = [0, 0]
    for number in range(races):
        winner = (folder / "told" / f"{number}-0").read_text()
        assert (folder / "told" / f"{number}-1").read_text() == winner, "each was told that it had won"
        lines = (folder / f"frame_{number:05d}.exr").read_text().splitlines()
        assert lines == [winner] * 20, "the file is torn, or not the winner's"
        won[int(winner[-1])] += 1
    assert sum(won) == races


def test_one_of_two_writers_wins_and_its_file_is_whole(memory_disk: Path) -> None:
    race(memory_disk, 100)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_ten_thousand_races_on_a_final_name(memory_disk: Path) -> None:
    race(memory_disk, 10_000)
