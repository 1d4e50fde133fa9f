"""What the person looks at, what is typed, and what the keys do. Pure: keys in, the next view out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final
from urllib.parse import quote


class Pane(StrEnum):
    JOBS = "jobs"
    NODES = "nodes"
    EVENTS = "events"
    TASKS = "tasks"
    """Of one job."""
    STALLED = "stalled"
    LOG = "log"
    """Of one task's newest attempt."""
    HELP = "help"


OVERVIEW: Final = (Pane.JOBS, Pane.NODES, Pane.EVENTS)
"""These share the screen; each of the others fills it."""
SORTS: Final[Mapping[Pane, tuple[str, ...]]] = {
    Pane.JOBS: ("", "-progress", "left", "-failed", "name", "user", "-age"),
    Pane.NODES: ("", "-load", "-free", "-tflops", "-bandwidth", "-silent", "state"),
    Pane.TASKS: ("", "-time", "-failures", "state", "node"),
    Pane.STALLED: ("", "-for", "-time", "job", "node", "kind"),
}
"""Fields that the key `o` orders a pane by, one after the other; "": as the farm tells them."""
FILTERED: Final = (Pane.JOBS, Pane.NODES, Pane.EVENTS, Pane.TASKS, Pane.STALLED, Pane.LOG)
"""Of the log a filter is a text that lines hold, whatever the case; of the rest a test of their fields."""
MOST_TYPED: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to ask of the farm."""

    method: str
    path: str
    body: Mapping[str, Any] = field(default_factory=dict)
    question: str = ""
    """What it will do, for the person to confirm: "cancel job 12 shot_010"."""
    done: str = ""
    """What it has done: "job 12 is cancelled"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the keys act on: the item under the cursor, as far as they need to know it."""

    id: str = ""
    """Empty: there is none."""
    name: str = ""
    """For people: "job 12 shot_010"."""
    job_id: int | None = None
    task_id: int | None = None
    node_id: str | None = None
    is_paused: bool = False
    is_drained: bool = False
    priority: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Typing:
    """A line that is being typed at the bottom."""

    what: str
    """"filter" or "priority"."""
    text: str = ""
    target: Target = Target()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    focus: Pane = Pane.JOBS
    is_enlarged: bool = False
    """The pane in focus fills the screen."""
    cursor: Mapping[Pane, int] = field(default_factory=dict)
    """Number of the item under the cursor; 0 when missing. In the log: lines up from its end."""
    chosen: Mapping[Pane, str] = field(default_factory=dict)
    """Its id, which the cursor follows when the list changes."""
    filters: Mapping[Pane, str] = field(default_factory=dict)
    sorts: Mapping[Pane, str] = field(default_factory=dict)
    job_id: int | None = None
    """Whose tasks are shown."""
    task_id: int | None = None
    """Whose log is shown."""
    task_job_id: int | None = None
    """That task's job; from the stalled pane it need not be the one whose tasks were shown."""
    task_name: str = ""
    before: tuple[Pane, ...] = ()
    """Where Escape leads back to, the last first."""
    typing: Typing | None = None
    asking: Action | None = None
    """Waits for y or n."""
    said: str = ""
    """What the last key led to, when that was nothing."""


QUIT: Final = "q"
PAGE: Final = 10
"""Items that page-up and page-down move by."""
_PANES: Final = {"j": Pane.JOBS, "n": Pane.NODES, "e": Pane.EVENTS, "s": Pane.STALLED, "?": Pane.HELP}
_MOVES: Final = {
    "up": -1,
    "down": 1,
    "page-up": -PAGE,
    "page-down": PAGE,
    "home": -(10**9),
    "end": 10**9,
    "k": -1,
}
_SEQUENCES: Final = {
    b"A": "up",
    b"B": "down",
    b"5~": "page-up",
    b"6~": "page-down",
    b"H": "home",
    b"F": "end",
    b"1~": "home",
    b"4~": "end",
}
_NAMED: Final = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x15": "clear"}
_KEY: Final = re.compile(
    rb"\x1b[\[O]([0-9;]*[A-Za-z~])|([\x00-\x1a\x1c-\x7f]|[\xc2-\xf4][\x80-\xbf]{1,3})|[\x80-\xff](?!$)"
    rb"|\x1b(?![\[O]|$)",
    re.DOTALL,
)


def keys(typed: bytes) -> tuple[list[str], bytes]:
    """The keys in what a terminal sent, and the beginning of one that has not come whole."""
    found = []
    at = 0
    while (match := _KEY.match(typed, at)) is not None:
        at = match.end()
        sequence, char = match.groups()
        if sequence is not None:
            found.append(_SEQUENCES.get(sequence, ""))
        elif char is not None:
            text = char.decode("utf-8", "replace")
            found.append(_NAMED.get(text, text))
    rest = typed[at:]
    # An escape key pressed alone looks like a beginning too; a long one is no key at all.
    return [key for key in found if key], rest if len(rest) < 16 else b""


def pressed(
    view: View, key: str, ids: Mapping[Pane, Sequence[str]], target: Target = Target()
) -> tuple[View, Action | None]:
    """The view after a key, and what the farm is to be asked; a key that means nothing changes nothing.

    ids: of each pane's items in the order shown; of the log its lines. target: the item under the cursor of
    the pane in focus. Nothing is asked of the farm before the person has said yes, or has typed a value.
    """
    if view.typing is not None:
        return _type(view, view.typing, key)
    if view.asking is not None:
        action = view.asking if key.lower() == "y" else None
        return replace(view, asking=None, said="" if action else "nothing was done"), action
    view = replace(view, said="")
    if key in _MOVES:
        return _move(view, _MOVES[key], ids.get(view.focus, ())), None
    if key == "escape":
        return _back(view), None
    key = key if len(key) > 1 else key.lower()
    if key in _PANES:
        return _to_pane(view, _PANES[key]), None
    if key in ("enter", "t", "l"):
        return _deeper(view, key, target), None
    if key == "/" and view.focus in FILTERED:
        return replace(view, typing=Typing(what="filter", text=view.filters.get(view.focus, ""))), None
    if key == "o" and view.focus in SORTS:
        sorts = SORTS[view.focus]
        following = sorts[(sorts.index(view.sorts.get(view.focus, "")) + 1) % len(sorts)]
        return replace(view, sorts={**view.sorts, view.focus: following}), None
    return _act(view, key, target), None


def _to_pane(view: View, pane: Pane) -> View:
    """A pane's key brings it into focus, once more enlarges it, and once more makes it small again."""
    if pane in OVERVIEW:
        is_enlarged = view.focus is pane and not view.is_enlarged
        return replace(view, focus=pane, is_enlarged=is_enlarged, before=())
    if view.focus is pane:
        return _back(view)
    return replace(view, focus=pane, before=(*view.before, view.focus))


def _back(view: View) -> View:
    if view.before:
        return replace(view, focus=view.before[-1], before=view.before[:-1])
    if view.filters.get(view.focus):
        return replace(view, filters={**view.filters, view.focus: ""})
    return replace(view, is_enlarged=False)


def _move(view: View, by: int, ids: Sequence[str]) -> View:
    if view.focus is Pane.LOG:
        by = -by  # counted from the end
    at = min(max(place(view, view.focus, ids) + by, 0), max(len(ids) - 1, 0))
    chosen = {**view.chosen, view.focus: ids[at]} if ids and view.focus is not Pane.LOG else view.chosen
    return replace(view, cursor={**view.cursor, view.focus: at}, chosen=chosen)


def place(view: View, pane: Pane, ids: Sequence[str]) -> int:
    """Where the cursor of a pane stands: on what was chosen, wherever that is now."""
    chosen = view.chosen.get(pane)
    if pane is not Pane.LOG and chosen is not None and chosen in ids:
        return ids.index(chosen)
    return min(view.cursor.get(pane, 0), max(len(ids) - 1, 0))


def _deeper(view: View, key: str, target: Target) -> View:
    """From a job to its tasks, from a task to its log."""
    if key == "t" or (key == "enter" and view.focus in (Pane.JOBS, Pane.NODES, Pane.EVENTS)):
        if target.job_id is None:
            return replace(view, said="no job is chosen")
        if view.focus is Pane.TASKS:
            return view
        forget = {Pane.TASKS} if view.job_id != target.job_id else set()
        return replace(
            view,
            focus=Pane.TASKS,
            before=(*view.before, view.focus),
            job_id=target.job_id,
            cursor={pane: at for pane, at in view.cursor.items() if pane not in forget},
            chosen={pane: at for pane, at in view.chosen.items() if pane not in forget},
            filters={pane: at for pane, at in view.filters.items() if pane not in forget},
        )
    if target.task_id is None:
        return replace(view, said="no task is chosen: Enter on a job shows its tasks")
    is_other = view.task_id != target.task_id
    return _at_the_end(
        replace(
            view,
            focus=Pane.LOG,
            before=(*view.before, view.focus),
            task_id=target.task_id,
            task_job_id=target.job_id,
            task_name=target.name,
            filters={**view.filters, Pane.LOG: ""} if is_other else view.filters,
        )
    )


def _at_the_end(view: View) -> View:
    """The newest lines of the log are shown."""
    return replace(view, cursor={**view.cursor, Pane.LOG: 0})


def _act(view: View, key: str, target: Target) -> View:
    """Ask whether to do what the key means to the item under the cursor."""
    if key not in ("p", "c", "r", "+", "-", "d"):
        return view
    action = None
    job, task, node = target.job_id, target.task_id, target.node_id
    if key == "d" and node is not None:
        action = _drain(target, node)
    elif key == "c" and task is not None:
        action = Action(
            method="POST",
            path=f"/jobs/{job}/cancel",
            body={"task_ids": [task]},
            question=f"cancel {target.name}",
            done=f"{target.name} is cancelled",
        )
    elif key == "r" and task is not None:
        action = Action(
            method="POST",
            path=f"/jobs/{job}/retry",
            body={"task_ids": [task]},
            question=f"try {target.name} again",
            done=f"{target.name} will be tried again",
        )
    elif job is not None and task is None and node is None:
        if key in "+-":
            return replace(view, typing=Typing(what="priority", target=target))
        action = _job_action(key, target, job)
    if action is None:
        wanted = {"d": "a node", "p": "a job", "+": "a job", "-": "a job"}.get(key, "a job or a task")
        return replace(view, said=f"{key} is for {wanted}: choose one first")
    return replace(view, asking=action)


def _job_action(key: str, target: Target, job: int) -> Action | None:
    if key == "p":
        verb, done = ("resume", "goes on") if target.is_paused else ("pause", "is paused")
        return Action(
            method="PATCH",
            path=f"/jobs/{job}",
            body={"is_paused": not target.is_paused},
            question=f"{verb} {target.name}",
            done=f"{target.name} {done}",
        )
    if key == "c":
        return Action(
            method="POST",
            path=f"/jobs/{job}/cancel",
            question=f"cancel all of {target.name} that has not ended",
            done=f"{target.name} is cancelled",
        )
    if key == "r":
        return Action(
            method="POST",
            path=f"/jobs/{job}/retry",
            question=f"try what failed or was cancelled of {target.name} again",
            done=f"{target.name}: will be tried again",
        )
    return None


def _drain(target: Target, node: str) -> Action:
    path = f"/nodes/{quote(node, safe='')}"
    if target.is_drained:
        return Action(
            method="POST",
            path=f"{path}/undrain",
            question=f"let {node} work again",
            done=f"{node} may work again",
        )
    return Action(
        method="POST",
        path=f"{path}/drain",
        question=f"drain {node}: it finishes what it runs and takes no more",
        done=f"{node} takes no more work",
    )


def _type(view: View, typing: Typing, key: str) -> tuple[View, Action | None]:
    if key == "escape":
        return replace(view, typing=None, said="nothing was changed"), None
    if key == "backspace":
        return replace(view, typing=replace(typing, text=typing.text[:-1])), None
    if key == "clear":
        return replace(view, typing=replace(typing, text="")), None
    if key != "enter":
        is_text = len(key) == 1 and key.isprintable() and len(typing.text) < MOST_TYPED
        return (replace(view, typing=replace(typing, text=typing.text + key)) if is_text else view), None
    view = replace(view, typing=None)
    if typing.what == "filter":
        text = typing.text.strip()
        view = replace(view, filters={**view.filters, view.focus: text}, said="")
        return (view if view.focus is not Pane.LOG else _at_the_end(view)), None
    if not (typing.text.isascii() and typing.text.strip().isdigit() and int(typing.text) <= 100):
        return replace(view, said="a priority is a number from 0 to 100; nothing was changed"), None
    target, wanted = typing.target, int(typing.text)
    return view, Action(
        method="PATCH",
        path=f"/jobs/{target.job_id}",
        body={"priority": wanted},
        done=f"{target.name} has priority {wanted} now",
    )
