"""What the agent remembers across a crash, however the crash cut its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from farm.model.ids import AttemptId
from farm.model.states import Outcome
from farm.wire.messages import Finished, Started
from workers.instructions import StagePlace
from workers.journal import Journal
from workers.lifecycle import REMEMBERED
from workers.linefile import LineFile, line_of
from workers.scribe import Accepted, Received, Scribe
from workers.spool import Spool

A, B = AttemptId("a"), AttemptId("b")
STAGE = StagePlace(directory="/out/ä b", job_uid="job")


def end(attempt_id: AttemptId, reason: str = "") -> Finished:
    return Finished(attempt_id=attempt_id, outcome=Outcome.JOB_ERROR, reason=reason)


class Desk:
    """Opens journals and spools in a directory, as one agent after the other would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: list[Journal | Spool] = []

    def journal(self) -> Journal:
        journal = Journal(self.path / "journal")
        journal.load()
        self._opened.append(journal)
        return journal

    def spool(self) -> Spool:
        spool = Spool(self.path / "spool")
        spool.load()
        self._opened.append(spool)
        return spool

    def close(self) -> None:
        for file in self._opened:
            file.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with closing(Desk(tmp_path)) as desk:
        yield desk


def test_a_journal_tells_the_next_agent_what_was_open(desk: Desk) -> None:
    journal = desk.journal()
    journal.received([(A, STAGE), (B, None)])
    journal.on_host(A, pid=7, started=12.0, boot_id="boot")
    journal.ended([B])
    entries = desk.journal().entries
    assert entries[A].stage == STAGE
    assert (entries[A].pid, entries[A].started, entries[A].boot_id) == (7, 12.0, "boot")
    assert not entries[A].has_ended
    assert entries[B].has_ended


def test_a_journal_remembers_accepted_attempts_but_not_for_ever(desk: Desk) -> None:
    journal = desk.journal()
    journal.received([(A, None)])
    many = [AttemptId(f"t{number}") for number in range(REMEMBERED + 5)]
    for start in range(0, len(many), 1000):
        journal.accepted(many[start : start + 1000])
    again = desk.journal()
    assert A in again.entries, "what is open is never forgotten"
    assert list(again.accepted_ids) == many[-REMEMBERED:]
    again.ended([A])
    again.accepted([A])
    last = desk.journal()
    assert not last.entries
    assert list(last.accepted_ids)[-1] == A
    assert len(last.accepted_ids) == REMEMBERED


def test_a_journal_does_not_grow_without_end(desk: Desk, tmp_path: Path) -> None:
    journal = desk.journal()
    for number in range(400):
        ids = [AttemptId(f"t{number}-{part}") for part in range(100)]
        journal.received([(attempt_id, None) for attempt_id in ids])
        journal.ended(ids)
        journal.accepted(ids)
    assert (tmp_path / "journal").stat().st_size < 3_000_000
    assert len(journal.accepted_ids) == REMEMBERED


def test_a_spool_keeps_ends_until_they_are_accepted(desk: Desk) -> None:
    spool = desk.spool()
    spool.add([end(A, "no camera \u202e"), end(B)])
    spool.accept([B, AttemptId("unknown")])
    again = desk.spool()
    assert again.waiting == {A: end(A, "no camera \u202e")}


def test_a_spool_does_not_grow_without_end(desk: Desk, tmp_path: Path) -> None:
    spool = desk.spool()
    for number in range(200):
        ids = [AttemptId(f"t{number}-{part}") for part in range(50)]
        spool.add(map(end, ids))
        spool.accept(ids)
    assert (tmp_path / "spool").stat().st_size < 1_500_000


@hypothesis_settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(min_value=0, max_value=200))
def test_a_line_that_was_cut_short_harms_no_other(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "lines"
    path.unlink(missing_ok=True)
    lines = LineFile(path)
    lines.append([line_of({"n": 1}), line_of({"n": 2, "text": "x" * 50})])
    lines.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: max(len(whole) - cut, 0)])
    again = LineFile(path)
    again.append([line_of({"n": 3})])
    again.close()
    read = list(LineFile(path).read())
    assert read[-1] == {"n": 3}
    assert read[:-1] == [{"n": 1}, {"n": 2, "text": "x" * 50}][: len(read) - 1]
    assert len(read) >= (3 if cut <= 1 else 1)


@pytest.mark.parametrize("garbage", [b"\x00\xff\n", b"[]\n", b'{"finished": {}}\n', b'{"received": 5}\n'])
def test_garbage_is_skipped(desk: Desk, tmp_path: Path, garbage: bytes) -> None:
    journal, spool = desk.journal(), desk.spool()
    journal.received([(A, None)])
    spool.add([end(A)])
    for name in ("journal", "spool"):
        with (tmp_path / name).open("ab") as file:
            file.write(garbage)
    assert list(desk.journal().entries) == [A]
    again = desk.spool()
    assert list(again.waiting) == [A]


def run_scribe(path: Path) -> tuple[list[AttemptId], list[Started | Finished]]:
    recorded: list[AttemptId] = []
    reports: list[Started | Finished] = []
    journal, spool = Journal(path / "journal"), Spool(path / "spool")
    scribe = Scribe(journal, spool, on_recorded=recorded.extend, on_reports=reports.extend)
    scribe.start()
    scribe.write(Received(attempts=((A, None), (B, None))))
    scribe.write(Started(attempt_id=A))
    scribe.write(end(A))
    scribe.write(end(B))
    scribe.write(Accepted(attempt_ids=(B,)))
    scribe.stop(10)
    return recorded, reports


def test_the_scribe_writes_before_it_reports(desk: Desk, tmp_path: Path) -> None:
    recorded, reports = run_scribe(tmp_path)
    assert recorded == [A, B]
    assert reports == [Started(attempt_id=A), end(A), end(B)]
    assert list(desk.journal().accepted_ids) == [B]
    spool = desk.spool()
    assert list(spool.waiting) == [A]


def test_a_disk_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("a file where a directory should be")
    recorded, reports = run_scribe(tmp_path / "file")
    assert recorded == [A, B]
    assert reports == [Started(attempt_id=A), end(A), end(B)]
    assert "work goes on without them" in caplog.text
