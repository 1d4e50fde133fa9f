"""Writes docs/states.md from the tables in farm/model/states.py: `python docs/make_states.py`.

A test compares the file with what this would write, so that page, code and law cannot drift apart.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from farm.model import states

State = TypeVar("State", bound=StrEnum)
PAGE = Path(__file__).with_name("states.md")

_INTRO = """\
# States

Written by `docs/make_states.py` from `farm/model/states.py`; do not edit by hand. The tables there are the
only law: `check_task_move` and `check_attempt_move` raise `IllegalMove` for anything else, and that is a bug,
never caught. Only `farm/store` writes states: of tasks and attempts with `moves.py`, from `submitting.py`,
`dispatching.py`, `leases.py`, `settling.py`, `steering.py` and `advancing.py`; of jobs in `advance_jobs` of
`advancing.py`; of nodes in `nodes.py`.
"""
_JOBS = """\
A job's state follows from its tasks' states (`advance` in `farm/flow/report.py`); it has no table of moves.
"""


def page() -> str:
    """The whole of docs/states.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRO
    yield from _section("Tasks", states.TaskState, states.TASK_MOVES)
    yield from _groups(LIVE_TASKS=states.LIVE_TASKS, ENDED_TASKS=states.ENDED_TASKS)
    yield from _section("Attempts", states.AttemptState, states.ATTEMPT_MOVES)
    yield from _groups(LIVE_ATTEMPTS=states.LIVE_ATTEMPTS)
    yield "## Jobs\n"
    yield _JOBS
    yield from _meanings(states.JobState)
    yield from _groups(ENDED_JOBS=states.ENDED_JOBS)
    yield "## Nodes\n"
    yield from _meanings(states.NodeState)
    yield ""
    yield "## Outcomes of an attempt\n"
    yield "| outcome | spends one of the job's retries |"
    yield "|---|---|"
    for outcome in states.Outcome:
        yield f"| {outcome} | {'yes' if outcome in states.SPENDS_RETRY else 'no'} |"


def _section(title: str, kind: type[State], moves: Mapping[State, frozenset[State]]) -> Iterator[str]:
    meaning = meanings(kind)
    yield f"## {title}\n"
    yield "| state | means | may become |"
    yield "|---|---|---|"
    for state in kind:
        targets = ", ".join(target for target in kind if target in moves[state]) or "nothing: it is final"
        yield f"| {state} | {meaning[state]} | {targets} |"
    yield "\n```mermaid\nstateDiagram-v2"
    for state in kind:
        for target in kind:
            if target in moves[state]:
                yield f"    {state} --> {target}"
    yield "```\n"


def _meanings(kind: type[StrEnum]) -> Iterator[str]:
    meaning = meanings(kind)
    yield "| state | means |"
    yield "|---|---|"
    for state in kind:
        yield f"| {state} | {meaning[state]} |"
    yield ""


def _groups(**groups: frozenset[StrEnum]) -> Iterator[str]:
    for name, members in groups.items():
        yield f"`{name}`: {', '.join(sorted(members))}."
    yield ""


def meanings(kind: type[State]) -> dict[State, str]:
    """Each member with the text written below it in the source; empty where there is none."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    found = dict.fromkeys(kind, "")
    last: State | None = None
    for node in definition.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            last = kind[node.targets[0].id]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last is not None:
            found[last] = " ".join(str(node.value.value).split())
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
