from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farm.model.attempts import PublishedFile
from farm.model.ids import AttemptId, TaskId
from farm.model.states import Outcome
from workers import staging
from workers.staging import Stage, StagingError

PUBLISHER = Path(__file__).with_name("publisher.py")
SIZE = 100_000


def open_stage(directory: Path, attempt: str = "a1", *, generation: int = 1, task: int = 1) -> Stage:
    return staging.open_stage(
        str(directory),
        allowed_roots=(),
        job_uid="job",
        task_id=TaskId(task),
        generation=generation,
        attempt_id=AttemptId(attempt),
    )


def fill(stage: Stage, text: str, *names: str) -> list[PublishedFile]:
    """Write files into the stage; as `check_files` would tell of them."""
    for name in names or ("a.txt",):
        path = stage.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [PublishedFile(path=name, size_bytes=len(text)) for name in names or ("a.txt",)]


def tree(directory: Path) -> dict[str, str]:
    """Published files and their content."""
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in directory.rglob("*")
        if path.is_file() and staging.PRIVATE not in path.parts and staging.REPLACED not in path.parts
    }


def replaced(directory: Path) -> list[str]:
    return sorted(path.read_text() for path in (directory / staging.REPLACED).rglob("*") if path.is_file())


def refused(call: Callable[[], object]) -> StagingError:
    with pytest.raises(StagingError) as raised:
        call()
    return raised.value


# --- the ordinary way -------------------------------------------------------------------------------------


def test_everything_in_the_stage_is_published_under_directories_too(tmp_path: Path) -> None:
    stage = open_stage(tmp_path / "new" / "out")
    checked = fill(stage, "x", "a.txt")
    fill(stage, "y", "layers/z/depth.txt", "extra.txt")
    publication = staging.publish(stage, checked)
    assert publication.by == "a1"
    final = tmp_path / "new" / "out"
    assert tree(final) == {"a.txt": "x", "layers/z/depth.txt": "y", "extra.txt": "y"}
    assert {file.path for file in publication.files} == {
        str(final / name) for name in ("a.txt", "layers/z/depth.txt", "extra.txt")
    }
    staging.remove_stage(final, "job", "a1")
    assert not stage.directory.exists()
    assert stage.marker.exists()
    assert tree(final)["a.txt"] == "x"


def test_publishing_twice_changes_nothing(tmp_path: Path) -> None:
    stage = open_stage(tmp_path)
    checked = fill(stage, "x")
    assert staging.publish(stage, checked) == staging.publish(stage, checked)
    assert tree(tmp_path) == {"a.txt": "x"}


def test_names_may_be_long_and_strange(tmp_path: Path) -> None:
    names = ("é" * 127, "-rf *", "ü ñ\n.png", "a" * 255)
    stage = open_stage(tmp_path / "ö ' \"")
    final = tmp_path / "ö ' \""
    for name in names:
        (final / name).write_text("old")
    publication = staging.publish(stage, fill(stage, "new", *names), may_replace=True)
    assert len(publication.files) == 4
    assert set(tree(final).values()) == {"new"}
    assert replaced(final) == ["old"] * 4


def test_links_and_unfit_names_are_left_out_with_a_warning(tmp_path: Path) -> None:
    stage = open_stage(tmp_path)
    checked = fill(stage, "x")
    (stage.directory / "link").symlink_to("/etc/passwd")
    os.mkfifo(stage.directory / "pipe")
    (stage.directory / ".farm").mkdir()
    Path(os.fsdecode(os.fsencode(stage.directory) + b"/bad\xff")).touch()
    publication = staging.publish(stage, checked)
    assert tree(tmp_path) == {"a.txt": "x"}
    assert sorted(warning.partition(" was ")[0] for warning in publication.warnings) == [
        ".farm",
        "bad?",
        "link",
        "pipe",
    ]


# --- others' files ------------------------------------------------------------------------------------------


def test_a_file_that_is_in_the_way_is_never_overwritten_and_nothing_is_committed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("precious")
    stage = open_stage(tmp_path)
    checked = fill(stage, "x", "a.txt", "b.txt")
    error = refused(lambda: staging.publish(stage, checked))
    assert (error.outcome, error.is_final) == (Outcome.STORAGE, True)
    assert "a.txt already exists and was not made by this job; submit with --overwrite" in str(error)
    assert tree(tmp_path) == {"a.txt": "precious"}
    assert not stage.marker.exists()


def test_a_file_that_is_in_the_way_is_moved_aside_when_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("precious")
    stage = open_stage(tmp_path)
    staging.publish(stage, fill(stage, "x"), may_replace=True)
    assert tree(tmp_path) == {"a.txt": "x"}
    assert replaced(tmp_path) == ["precious"]


def test_a_new_generation_replaces_the_files_of_the_old_one_only(tmp_path: Path) -> None:
    first = open_stage(tmp_path)
    staging.publish(first, fill(first, "first", "a.txt"))
    staging.discard(first)
    second = open_stage(tmp_path, "a2", generation=2)
    assert staging.adopt(second) is None
    assert staging.publish(second, fill(second, "second", "a.txt")).by == "a2"
    assert tree(tmp_path) == {"a.txt": "second"}
    assert replaced(tmp_path) == ["first"]
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").write_text("painted over")
    third = open_stage(tmp_path, "a3", generation=3)
    assert "already exists" in str(refused(lambda: staging.publish(third, fill(third, "third"))))
    assert tree(tmp_path) == {"a.txt": "painted over"}


def test_a_link_in_the_output_directory_does_not_lead_files_elsewhere(tmp_path: Path) -> None:
    outside, final = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    final.mkdir()
    (final / "layers").symlink_to(outside)
    stage = open_stage(final)
    checked = fill(stage, "x", "layers/a.txt")
    assert "leads out of the output directory" in str(refused(lambda: staging.publish(stage, checked)))
    assert list(outside.iterdir()) == []
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / ".farm").symlink_to(outside)
    assert "symbolic link" in str(refused(lambda: open_stage(tmp_path / "trap")))
    staging.tidy_job(tmp_path / "trap", "job")
    staging.remove_stage(tmp_path / "trap", "job", "a1")
    assert outside.exists()


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../../x", ".farm/x", "a\0b"])
def test_a_name_that_leads_out_of_the_directory_is_refused(name: str) -> None:
    assert refused(lambda: staging.check_names([name])).is_final


@pytest.mark.parametrize("uid", ["", ".", "..", "a/b"])
def test_an_identity_that_is_no_plain_name_is_refused(tmp_path: Path, uid: str) -> None:
    for call in (
        lambda: staging.tidy_job(tmp_path, uid),
        lambda: staging.remove_stage(tmp_path, "job", uid),
        lambda: staging.remove_stage(tmp_path, uid, "a1"),
    ):
        refused(call)


# --- several at once ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("may_replace", [False, True])
def test_of_many_publishers_one_wins_and_its_files_are_whole(tmp_path: Path, may_replace: bool) -> None:
    names = ("a.txt", "sub/b.txt")
    for turn in range(15):
        final = tmp_path / str(turn)
        stages = [open_stage(final, f"a{number}") for number in range(6)]
        if may_replace:
            (final / "sub").mkdir()
            for name in names:
                (final / name).write_text("old")
        files = [fill(stage, stage.attempt_id * SIZE, *names) for stage in stages]
        (winner,) = set(_publish_all_at_once(stages, files, may_replace))
        assert tree(final) == dict.fromkeys(names, winner * SIZE)
        assert set(replaced(final)) == ({"old"} if may_replace else set())


def _publish_all_at_once(
    stages: list[Stage], files: list[list[PublishedFile]], may_replace: bool
) -> list[str]:
    ready = threading.Barrier(len(stages))

    def publish(stage: Stage, checked: list[PublishedFile]) -> str:
        ready.wait()
        by = staging.publish(stage, checked, may_replace=may_replace).by
        staging.discard(stage)
        return by

    with ThreadPoolExecutor(len(stages)) as pool:
        return list(pool.map(publish, stages, files))


def test_a_final_name_holds_a_whole_file_at_every_moment_of_a_replacement(tmp_path: Path) -> None:
    final = tmp_path / "a.txt"
    final.write_text("old" * SIZE)
    seen: set[str] = set()
    stages = [open_stage(tmp_path, f"a{number}") for number in range(3)]
    files = [fill(stage, "new" * SIZE) for stage in stages]
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.add(final.read_text()[:3] if final.stat().st_size == 3 * SIZE else "torn")

    watcher = threading.Thread(target=watch)
    watcher.start()
    threads = [
        threading.Thread(target=staging.publish, args=pair, kwargs={"may_replace": True})
        for pair in zip(stages, files, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    assert seen <= {"old", "new"}
    assert final.read_text() == "new" * SIZE


# --- crashes ------------------------------------------------------------------------------------------------


def publisher(directory: Path, attempt: str, *, may_replace: bool, die_at: int = -1) -> list[str]:
    command = [sys.executable, str(PUBLISHER), str(directory), attempt, str(SIZE)]
    words = ["yes" if may_replace else "no", str(die_at)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("may_replace", [False, True])
def test_a_publisher_that_dies_at_any_step_leaves_whole_files_and_the_next_one_completes(
    tmp_path: Path, may_replace: bool
) -> None:
    old = {"a.txt": "old"} if may_replace else {}
    steps = 0
    while True:
        final = tmp_path / str(steps)
        final.mkdir()
        for name, text in old.items():
            (final / name).write_text(text)
        said = publisher(final, "a1", may_replace=may_replace, die_at=steps)
        is_over = said[-1:] == ["published by a1"]
        for name, text in tree(final).items():
            assert text in (old.get(name), "a1" * SIZE), f"{name} is torn after {said}"
        again = publisher(final, "a2", may_replace=may_replace)[-1]
        committed = "step commit" in said
        winner = "a1" if committed else "a2"
        assert again == f"published by {winner}", said
        assert tree(final) == {"a.txt": winner * SIZE, "sub/b.txt": winner * SIZE}, said
        assert set(replaced(final)) <= {"old", winner * SIZE}
        assert ("old" in replaced(final)) == may_replace
        if is_over:
            break
        steps += 1
    assert steps >= (10 if may_replace else 8)


def test_files_that_are_committed_and_not_published_outlive_the_removal_of_their_stage(
    tmp_path: Path,
) -> None:
    stage = open_stage(tmp_path)
    checked = fill(stage, "x")

    def full(step: str) -> None:
        if step == "link":
            raise OSError(errno.ENOSPC, "No space left on device")

    error = refused(lambda: staging.publish(stage, checked, fault=full))
    assert (error.outcome, str(error)) == (Outcome.STORAGE, f"the disk of {tmp_path} is full")
    staging.discard(stage)
    staging.remove_stage(tmp_path, "job", "a1")
    assert tree(tmp_path) == {}
    adopted = staging.adopt(open_stage(tmp_path, "a2"))
    assert adopted is not None
    assert adopted.by == "a1"
    assert tree(tmp_path) == {"a.txt": "x"}
    staging.remove_stage(tmp_path, "job", "a1")
    assert not stage.directory.exists()


def test_a_file_of_an_earlier_generation_is_not_taken_for_one_that_is_as_long(tmp_path: Path) -> None:
    """Uncompressed images of one job all have the same size."""
    first = open_stage(tmp_path)
    staging.publish(first, fill(first, "old"))
    second = open_stage(tmp_path, "a2", generation=2)

    def die(step: str) -> None:
        if step.startswith("publish "):
            raise OSError(errno.EIO, "Input/output error")

    refused(lambda: staging.publish(second, fill(second, "new"), may_replace=True, fault=die))
    staging.discard(second)
    adopted = staging.adopt(open_stage(tmp_path, "a3", generation=2), may_replace=True)
    assert adopted is not None
    assert adopted.by == "a2"
    assert tree(tmp_path) == {"a.txt": "new"}


def test_files_that_somebody_removed_are_told_and_a_new_generation_makes_them_anew(tmp_path: Path) -> None:
    stage = open_stage(tmp_path)
    staging.publish(stage, fill(stage, "x"))
    staging.discard(stage)
    (tmp_path / "a.txt").unlink()
    second = open_stage(tmp_path, "a2")
    error = refused(lambda: staging.publish(second, fill(second, "y")))
    assert (error.outcome, str(error)) == (
        Outcome.STORAGE,
        "a.txt was finished by attempt a1, but somebody removed it",
    )
    third = open_stage(tmp_path, "a3", generation=2)
    assert staging.publish(third, fill(third, "z")).by == "a3"
    assert tree(tmp_path) == {"a.txt": "z"}


# --- fences and tidying -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moment", ["sync files", "manifest", "sync manifest", "commit", "publish a.txt", "link"]
)
def test_a_job_that_was_tidied_away_publishes_nothing_more(tmp_path: Path, moment: str) -> None:
    stage = open_stage(tmp_path)
    checked = fill(stage, "x")

    def tidy(step: str) -> None:
        if step == moment:
            staging.tidy_job(tmp_path, "job")

    error = refused(lambda: staging.publish(stage, checked, fault=tidy))
    assert (error.outcome, str(error)) == (Outcome.CANCELLED, "the job has been tidied away")
    assert list(tmp_path.iterdir()) == []


def test_tidying_keeps_published_files_and_other_jobs(tmp_path: Path) -> None:
    stage = open_stage(tmp_path)
    staging.publish(stage, fill(stage, "x"))
    other = tmp_path / ".farm" / "other job"
    other.mkdir()
    staging.tidy_job(tmp_path, "job")
    assert [path.name for path in (tmp_path / ".farm").iterdir()] == ["other job"]
    staging.tidy_job(tmp_path, "other job")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    staging.tidy_job(tmp_path, "job")
    staging.tidy_job(tmp_path / "nowhere", "job")


def test_tidying_follows_no_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    final = tmp_path / "out"
    stage = open_stage(final)
    (stage.directory / "link").symlink_to(outside)
    staging.tidy_job(final, "job")
    assert (outside / "precious").exists()
    (final / ".farm").mkdir()
    (final / ".farm" / "job").symlink_to(outside)
    staging.tidy_job(final, "job")
    assert (outside / "precious").exists()


def test_a_damaged_marker_is_told(tmp_path: Path) -> None:
    stage = open_stage(tmp_path)
    stage.marker.write_text("{")
    assert "is damaged" in str(refused(lambda: staging.publish(stage, fill(stage, "x"))))


# --- poor file systems --------------------------------------------------------------------------------------


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_files_are_moved_and_still_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("old")
    first, second = open_stage(tmp_path), open_stage(tmp_path, "a2")
    files = fill(first, "x", "a.txt", "b.txt")
    assert "already exists" in str(refused(lambda: staging.publish(first, files)))
    assert staging.publish(first, files, may_replace=True).by == "a1"
    assert staging.publish(second, fill(second, "y", "a.txt", "b.txt"), may_replace=True).by == "a1"
    assert tree(tmp_path) == {"a.txt": "x", "b.txt": "x"}
    assert replaced(tmp_path) == ["old"]


def test_without_the_swap_what_was_there_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = staging._rename

    def no_swap(source: Path, target: Path, flag: int) -> None:
        if flag == staging._RENAME_EXCHANGE:
            raise OSError(errno.EINVAL, "Invalid argument")
        rename(source, target, flag)

    monkeypatch.setattr(staging, "_rename", no_swap)
    (tmp_path / "a.txt").write_text("old")
    stage = open_stage(tmp_path)
    staging.publish(stage, fill(stage, "x"), may_replace=True)
    assert tree(tmp_path) == {"a.txt": "x"}
    assert replaced(tmp_path) == ["old"]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk of {0} is full"),
        (errno.EDQUOT, "the disk quota of {0} is used up"),
        (errno.EROFS, "{0} is read-only"),
        (errno.EIO, "{0}: Input/output error"),
        (errno.ESTALE, "{0}: Stale file handle"),
    ],
)
@pytest.mark.parametrize("moment", ["sync files", "manifest", "commit", "link", "sync directories"])
def test_a_failing_file_system_is_a_storage_failure_and_the_next_attempt_converges(
    tmp_path: Path, number: int, reason: str, moment: str
) -> None:
    stage = open_stage(tmp_path)
    checked = fill(stage, "x")

    def fail(step: str) -> None:
        if step == moment:
            raise OSError(number, os.strerror(number))

    error = refused(lambda: staging.publish(stage, checked, fault=fail))
    assert (error.outcome, str(error)) == (Outcome.STORAGE, reason.format(tmp_path))
    staging.discard(stage)
    second = open_stage(tmp_path, "a2")
    by = staging.publish(second, fill(second, "y")).by
    assert tree(tmp_path) == {"a.txt": "x" if by == "a1" else "y"}


def test_a_directory_that_cannot_be_made_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refused(lambda: open_stage(tmp_path / "file" / "out")).outcome is Outcome.STORAGE
    assert refused(lambda: open_stage(Path("relative"))).outcome is Outcome.JOB_ERROR
