"""Tasks change state here and nowhere else: the law is checked and the steps' counts move along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from farm.model.ids import StepId
from farm.model.states import TaskState, check_task_move
from farm.store.bulk import add_many, update_many
from farm.store.engine import among, among_ids
from farm.store.tables import JobRow, StepRow, TaskRow

_TASK = TaskRow.__table__  # type: ignore[attr-defined]
_STEP = StepRow.__table__  # type: ignore[attr-defined]
_JOB = JobRow.__table__  # type: ignore[attr-defined]


def lock_jobs(db: sa.Connection, job_ids: Iterable[int]) -> None:
    """One writer at a time for a job's tasks and counts. Always in the order of ids, against deadlock."""
    wanted = sorted(set(job_ids))
    if wanted and db.dialect.name != "sqlite":  # a SQLite writer holds the whole database already
        db.execute(_locking(db.dialect.name), {"ids": wanted})


@cache
def _locking(dialect: str) -> sa.Select[Any]:
    of_these = sa.select(_JOB.c.id).where(among_ids(dialect, _JOB.c.id))
    return of_these.order_by(_JOB.c.id).with_for_update()


def move_all(
    db: sa.Connection,
    step_id: StepId,
    old: TaskState,
    new: TaskState,
    *,
    values: Mapping[str, Any] | None = None,
    task_ids: Collection[int] | None = None,
) -> int:
    """Move every task of the step that is `old` (and in `task_ids`) to `new`; returns how many moved."""
    check_task_move(old, new)
    query = sa.update(_TASK).where(_TASK.c.step_id == step_id, _TASK.c.state == str(old))
    if task_ids is not None:
        query = query.where(among(db, _TASK.c.id, task_ids))
    moved = db.execute(query.values(state=str(new), **(values or {}))).rowcount
    count(db, {(step_id, old, new): moved})
    return moved


def move_each(db: sa.Connection, changes: Sequence[dict[str, Any]]) -> None:
    """Write single changes: dicts with `task_id`, `step_id`, `old`, `new` and further columns.

    All dicts must have the same keys. The caller has read `old` under `lock_jobs`, so it still holds.
    """
    if not changes:
        return
    columns = [key for key in changes[0] if key not in ("task_id", "step_id", "old", "new")]
    tally: Counter[tuple[StepId, TaskState, TaskState]] = Counter()
    for change in changes:
        if change["old"] != change["new"]:
            check_task_move(TaskState(change["old"]), TaskState(change["new"]))
            tally[change["step_id"], change["old"], change["new"]] += 1
    update_many(
        db,
        _TASK,
        [
            {"id": c["task_id"], "state": str(c["new"]), **{column: c[column] for column in columns}}
            for c in changes
        ],
    )
    count(db, tally)


def count(db: sa.Connection, tally: Mapping[tuple[StepId, TaskState, TaskState], int]) -> None:
    """Move the steps' counts along with tasks that moved."""
    deltas: dict[StepId, Counter[TaskState]] = {}
    for (step_id, old, new), moved in tally.items():
        if moved and old is not new:
            delta = deltas.setdefault(step_id, Counter())
            delta[old] -= moved
            delta[new] += moved
    changed = [step_id for step_id in sorted(deltas) if any(deltas[step_id].values())]
    add_many(
        db, _STEP, [{"id": s, **{f"n_{state}": deltas[s][state] for state in TaskState}} for s in changed]
    )
