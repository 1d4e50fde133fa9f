"""Jobs taken out of the store: nothing of them is left, and nothing of others goes."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlmodel import SQLModel

from farm.errors import NotFound, Rejected
from farm.model.events import EventKind
from farm.model.ids import JobId
from farm.model.states import JobState
from farm.store import events, jobs, logs, removing, steering
from farm.store.engine import reading, writing
from farm.wire.messages import LogChunk
from tests.contract.stored_farm import BLADE, a_step, claim, enrol, finish, read, start, submit


def done_job(engine: sa.Engine) -> JobId:
    """With a log."""
    enrol(engine)
    job_id = submit(engine, a_step(tasks=2))
    attempts = claim(engine, job_id, 2)
    start(engine, attempts)
    with writing(engine) as db:
        logs.append(db, BLADE, [LogChunk(attempt_id=a, sequence=0, text="Fra:1") for a in attempts])
    finish(engine, attempts)
    assert read(engine, job_id).state is JobState.DONE
    return job_id


def remove(engine: sa.Engine, job_id: JobId) -> None:
    with writing(engine) as db:
        removing.remove_job(db, job_id, actor="anna")


def rows_of_jobs(engine: sa.Engine) -> dict[str, int]:
    """How many rows each table has that holds what belongs to jobs."""
    apart = {
        "audit",
        "node",
        "leader",
        "outbox",
        "token",
        "invite",
        "farm_limit",
        "learnt_farm",
        "alembic_version",
    }
    with reading(engine) as db:
        return {
            name: db.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for name, table in SQLModel.metadata.tables.items()
            if name not in apart
        }


def test_nothing_of_a_removed_job_is_left_and_all_of_the_others(engine: sa.Engine) -> None:
    done_job(engine)
    before = rows_of_jobs(engine)
    old = done_job(engine)
    newest = done_job(engine)
    with_two = rows_of_jobs(engine)
    remove(engine, old)
    after = rows_of_jobs(engine)
    added = {name: with_two[name] - before[name] for name in before}
    assert (added["task"], added["attempt"], added["log"]) == (4, 4, 4)
    left = {name: after[name] - before[name] for name in before}
    assert left == {name: count // 2 + (name == "event") for name, count in added.items()}, "one tells of it"
    with pytest.raises(NotFound):
        read(engine, old)
    assert read(engine, newest).state is JobState.DONE
    with reading(engine) as db:
        told = events.read(db, newest=True, limit=1)[0]
    assert (told.kind, told.job_id) == (EventKind.JOB_REMOVED, None)
    assert f"job {old} " in told.text


def test_a_job_that_goes_on_is_not_removed(engine: sa.Engine) -> None:
    job_id = submit(engine, a_step(tasks=2))
    done_job(engine)
    with pytest.raises(Rejected, match="cancel it first"):
        remove(engine, job_id)
    enrol(engine)
    start(engine, claim(engine, job_id))
    with writing(engine) as db:
        steering.cancel(db, job_id, actor="anna", reason="enough")
    with pytest.raises(Rejected, match=r"cancel it first|still to be stopped"):
        remove(engine, job_id)
    assert read(engine, job_id).counts.total == 2


def test_a_job_that_another_one_waits_for_is_not_removed(engine: sa.Engine) -> None:
    first = submit(engine, a_step(tasks=1))
    with writing(engine) as db:
        steering.cancel(db, first, actor="anna", reason="enough")
    second = submit(engine, a_step(tasks=1), depends_on=(first,))
    done_job(engine)
    with pytest.raises(Rejected, match=f"job {second} waits for job {first}"):
        remove(engine, first)
    with writing(engine) as db:
        steering.cancel(db, second, actor="anna", reason="enough")
    remove(engine, first)
    with reading(engine) as db:
        assert jobs.read_job(db, second).state is JobState.CANCELLED


def test_the_newest_job_stays_so_that_its_number_is_not_given_again(engine: sa.Engine) -> None:
    job_id = done_job(engine)
    with pytest.raises(Rejected, match="is the newest"):
        remove(engine, job_id)
    after = done_job(engine)
    remove(engine, job_id)
    assert submit(engine, a_step(tasks=1)) > after
