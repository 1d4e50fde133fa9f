"""Waiting chunks that are cut anew: the same frames, other tasks, and what was handed out stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from farm.flow.chunks import Chunk, cut, packed, unpacked
from farm.model.ids import JobId
from farm.model.states import JobState, Outcome
from farm.store import chunking, dispatching, moves
from farm.store.engine import reading, writing
from farm.store.tasks import list_tasks
from tests.contract.stored_farm import BLADE, a_step, check_counts, claim, enrol, finish, read, submit


def submitted(engine: sa.Engine, frames: int, **settings: Any) -> JobId:
    indexes = tuple(map(packed, cut(0, frames, most=1)))
    step = replace(a_step(tasks=frames), indexes=indexes, chunk_target_s=60.0)
    return submit(engine, step, **settings)


def recut(engine: sa.Engine, job_id: JobId, length: int) -> None:
    with writing(engine) as db:
        moves.lock_jobs(db, [job_id])
        (step,) = chunking.adaptive_steps(db)
        tasks = chunking.waiting(db, step.step_id)
        places = [chunk.first for chunk in tasks.values()]
        assert sum(chunk.length for chunk in tasks.values()) == max(places) + 1 - min(places)
        chunking.cut_anew(db, step, list(tasks), cut(min(places), max(places) + 1, most=length))
    check_counts(engine)


def handed_out(engine: sa.Engine, job_id: JobId) -> list[Chunk]:
    with reading(engine) as db:
        found = list_tasks(db, job_id, limit=1000)
    return [unpacked(task.index) for task in found]


def test_waiting_chunks_are_cut_anew_and_all_frames_are_rendered_once(engine: sa.Engine) -> None:
    job_id = submitted(engine, 20)
    enrol(engine, "blade")
    with reading(engine) as db:
        assert chunking.adaptive_steps(db) == [], "nothing was rendered yet"
    finish(engine, claim(engine, job_id, 2), runtime_s=3.0, load_s=1.0)
    running = claim(engine, job_id, 1)
    recut(engine, job_id, 5)
    with reading(engine) as db:
        (step,) = chunking.adaptive_steps(db)
        assert step.target_s == 60.0
        assert [(run.length, run.runtime_s, run.load_s) for run in chunking.runs(db, step.step_id)] == [
            (1, 3.0, 1.0)
        ] * 2
    assert read(engine, job_id).counts.total == 3 + 4
    finish(engine, running)
    while attempts := claim(engine, job_id, 2):
        finish(engine, attempts)
    assert read(engine, job_id).state is JobState.DONE
    frames = [at for chunk in handed_out(engine, job_id) for at in range(chunk.first, chunk.end)]
    assert sorted(frames) == list(range(20))


def test_a_task_that_was_handed_out_once_is_never_cut(engine: sa.Engine) -> None:
    job_id = submitted(engine, 4)
    enrol(engine, "blade")
    finish(engine, claim(engine, job_id, 2), runtime_s=1.0)
    finish(engine, claim(engine, job_id, 1), Outcome.JOB_ERROR)
    with reading(engine) as db:
        (step,) = chunking.adaptive_steps(db)
        assert list(chunking.waiting(db, step.step_id).values()) == [Chunk(first=3, length=1)]


def test_the_last_frames_come_first_in_a_job_that_is_reversed(engine: sa.Engine) -> None:
    job_id = submitted(engine, 12, reverse=True)
    enrol(engine, "blade")
    finish(engine, claim(engine, job_id, 2), runtime_s=1.0)
    recut(engine, job_id, 4)
    with writing(engine) as db:
        moves.lock_jobs(db, [job_id])
        ((claimed,),) = dispatching.claim(db, read(engine, job_id).steps[0].id, [(BLADE, 1)])
    assert claimed.index == packed(Chunk(first=8, length=2))
