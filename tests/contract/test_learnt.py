"""From which earlier step a new one inherits what was learnt."""

from __future__ import annotations

import sqlalchemy as sa

from farm.model.ids import StepId
from farm.store import learnt
from farm.store.engine import reading, writing
from tests.contract.stored_farm import a_step, submit


def inherits(engine: sa.Engine, *ran: str) -> dict[str, str]:
    """By step of the newest job: the step whose model it takes over, with its job. ran: steps that have."""
    with writing(engine) as db:
        for name in ran:
            db.execute(sa.text("UPDATE step SET runtime_count = 1 WHERE name = :name"), {"name": name})
    with reading(engine) as db:
        steps = db.execute(sa.text("SELECT id, job_id, name FROM step ORDER BY id")).all()
        names = {step.id: step.name for step in steps if step.job_id == steps[-1].job_id}
        found = learnt.earlier(db, [StepId(step_id) for step_id in names])
    called = {step.id: f"{step.job_id} {step.name}" for step in steps}
    return {names[step_id]: called[earlier] for step_id, earlier in found.items()}


def test_appended_frames_inherit_from_the_step_that_they_are_added_to(engine: sa.Engine) -> None:
    steps = ("render", "render 2", "render left", "render 2x", "renders 2", "render%", "render% 7")
    job_id = submit(engine, *(a_step(name, position=at) for at, name in enumerate(steps)))
    assert inherits(engine, "render", "render%") == {
        "render 2": f"{job_id} render",
        "render% 7": f"{job_id} render%",
    }


def test_a_step_inherits_from_its_like_in_the_newest_job_that_has_run(engine: sa.Engine) -> None:
    first = submit(engine, a_step("render"))
    assert inherits(engine) == {}
    submit(engine, a_step("render"), a_step("comp", position=1))
    assert inherits(engine, "render") == {"render": f"{first} render"}
