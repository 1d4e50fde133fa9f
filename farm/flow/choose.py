"""Which tasks a person means by a range of frames."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from farm.errors import UserError
from farm.flow.task_space import TaskSpace
from farm.model.frames import describe
from farm.text import clean


def tasks_of_frames(
    space: TaskSpace,
    frames: Collection[int],
    *,
    step: str | None = None,
    indexes: Callable[[str], Sequence[int]] | None = None,
) -> dict[str, list[int]]:
    """Step name -> indexes of the tasks that render any of `frames`; of `step` only, when it is given.

    indexes: what tasks a step has now, asked for those whose chunks change; None: they are as at first.
    Raises UserError for a frame that no task renders: a piece of what was asked for is never lost silently.
    """
    steps = _steps(space, step)
    wanted = set(frames)
    chosen: dict[str, list[int]] = {}
    there: set[int] = set()
    for name in steps:
        values = space.frame_values(name)
        if values is None:
            continue
        there.update(values)
        here = wanted.intersection(values)
        if here:
            first = space.first_indexes(name)
            if first is None:
                chosen[name] = _indexes(space, name, here)
                continue
            now = first if indexes is None else indexes(name)
            chosen[name] = [index for index in now if not here.isdisjoint(space.frames(name, index))]
    if not there:
        where = f"step '{_shown(steps[0])}' has" if step is not None else "this job's tasks have"
        raise UserError(f"{where} no frames; choose tasks by id or by step")
    missing = wanted - there
    if missing:
        raise UserError(f"no task renders {describe(missing)}; there are {describe(there)}")
    return chosen


def check_step(space: TaskSpace, step: str) -> None:
    """Raise UserError when there is no such step."""
    _steps(space, step)


def _steps(space: TaskSpace, step: str | None) -> tuple[str, ...]:
    if step is None:
        return space.steps
    if step not in space.steps:
        known = ", ".join(_shown(name) for name in space.steps[:10])
        raise UserError(f"there is no step '{_shown(step)}' in this job; its steps are: {known}")
    return (step,)


def _indexes(space: TaskSpace, step: str, frames: set[int]) -> list[int]:
    values = space.frame_values(step) or ()
    if len(values) == space.count(step):
        # One frame a task and no other parameter: its place in the list is the index, looked up to be sure.
        near = [index for index, value in enumerate(values) if value in frames]
        if all(space.frames(step, index) == (values[index],) for index in near):
            return near
    return [index for index in range(space.count(step)) if not frames.isdisjoint(space.frames(step, index))]


def _shown(text: str) -> str:
    return clean(text, limit=60, one_line=True)
