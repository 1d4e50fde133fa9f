"""Commands that look at jobs, tasks, logs, nodes and events."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import quote

from farm.cli import show
from farm.cli.client import Client, read
from farm.cli.listing import Listing, Wanted
from farm.cli.notify import notify
from farm.cli.progress import follow, is_all_done, outcome
from farm.cli.show import Column, cell, shown, words
from farm.cli.stalled import costs_told
from farm.control.fields import NODE_FIELDS, TASK_FIELDS, event_fields, job_fields, node_notes
from farm.control.views import FoundLine, HookView, JobView, LogView, WhyView
from farm.errors import NotFound, Unavailable, UserError
from farm.model.attempts import Attempt, JobUsage
from farm.model.events import Event
from farm.model.frames import canonical, parse_frames
from farm.model.machines import Device, DeviceKind, DeviceLoad, Node
from farm.model.states import ENDED_JOBS, LIVE_ATTEMPTS, AttemptState, JobState, NodeState, TaskState
from farm.model.work import Step, Task
from farm.text import clean, duration, plural, size

_MOST_JOBS: Final = 2**31 - 1
_SHOWN_JOBS: Final = 30
_SHOWN_TASKS: Final = 1_000
_SHOWN_FAILURES: Final = 10
_LOOKED_FOR_WARNINGS: Final = 1_000
_LOOKED_FOR_EVENTS: Final = 1_000
"""The newest that a filter is held against: the API's largest page."""
_LOG_PAGE: Final = 500
_LOG_LOOK_S: Final = 0.5
_RECONNECT_S: Final = 1.0

_Name = TypeVar("_Name", bound=StrEnum)
Connected = Callable[[], Client]
"""Called once what was typed is understood: most mistakes need no farm."""


# --- naming things ------------------------------------------------------------------------------------


def find_job(client: Client, text: str) -> tuple[JobView, Any]:
    """The job that `text` names, as a view and as the API's JSON. Raises NotFound that names the nearest."""
    if not re.fullmatch(r"#?[0-9]{1,18}", text):
        told = shown(text, 60)
        named = client.get("/jobs", name=text, limit=1)["items"] if text.strip() else []
        hint = f"did you mean {_named(named[0])}?" if named else _newest(client)
        raise NotFound(f"a job is named by its number, not '{told}'; {hint}")
    number = int(text.lstrip("#"))
    if number > _MOST_JOBS:
        raise NotFound(f"there is no job {number}; {_newest(client)}")
    try:
        answer = client.get(f"/jobs/{number}")
    except NotFound:
        raise NotFound(f"there is no job {number}; {_newest(client)}") from None
    return read(JobView, answer), answer


def _newest(client: Client) -> str:
    newest = client.get("/jobs", limit=3)["items"]
    if not newest:
        return "there are no jobs yet"
    return f"the newest: {', '.join(map(_named, newest))}; `farm jobs` lists them"


def _named(view: Any) -> str:
    job = view["job"]
    return f"{job['id']} {shown(str(job['name']), 60)}"


def check_states(texts: Iterable[str], kind: type[_Name], what: str) -> list[_Name]:
    """Raises UserError that names the nearest state."""
    states = []
    for text in texts:
        if text not in list(kind):
            near = get_close_matches(text.lower(), list(kind), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(kind)}"
            raise UserError(f"--state {shown(text, 40)}: no {what} has that state; {hint}")
        states.append(kind(text))
    return states


def check_frames(text: str | None) -> str | None:
    """The canonical form; a wrong range is told here, before the farm is asked. Raises UserError."""
    return None if text is None else canonical(parse_frames(text))


# --- jobs ---------------------------------------------------------------------------------------------


def jobs(
    client: Connected,
    *,
    states: Sequence[str],
    user: str | None,
    name: str | None,
    is_all: bool,
    wanted: Wanted,
) -> None:
    listing = Listing(JobView, job_fields(time.time()), "jobs", wanted)
    chosen = check_states(states, JobState, "job")
    pinned = listing.filter.pinned("state")
    if pinned is not None:
        chosen = [state for state in JobState if state in pinned and (not chosen or state in chosen)]
    is_none = pinned is not None and not chosen
    is_whole = is_all or wanted.is_filtered
    query: dict[str, Any] = {"state": tuple(chosen), "user": user, "name": name}
    answers: Iterable[Any] = () if is_none else _job_answers(client(), query, is_whole=is_whole)
    is_wide = show.width() >= 110
    columns = [
        Column("Job", is_right=True),
        Column("Name", shrinks=True, least=8),
        Column("User", shrinks=True),
    ]
    columns += [Column("Prio", is_right=True), Column("Kind")] if is_wide else []
    columns += [Column("State"), Column("Done", is_right=True), Column("Left")]
    columns += [Column("Since")] if is_wide else []
    columns += [Column("Why it waits", shrinks=True, least=12)]
    now = time.time()

    def row(view: JobView) -> list[Any]:
        job = view.job
        cells: list[Any] = [cell(job.id), cell(job.name), cell(job.settings.user)]
        cells += [cell(job.settings.priority), cell(view.tag)] if is_wide else []
        cells += [show.state(job.state), show.counted(view.counts), cell(show.eta(_left(view)))]
        cells += [cell(show.when(job.submitted_at, now))] if is_wide else []
        return [*cells, cell(job.reason or _waits(view))]

    empty = "no such jobs" if wanted.is_filtered or states or user or name else "no jobs"
    listing.put(listing.matching(answers), columns, row, empty=empty)


def _job_answers(client: Client, query: dict[str, Any], *, is_whole: bool) -> Iterator[Any]:
    limit = None if is_whole else _SHOWN_JOBS
    seen = set()
    for answer in client.items("/jobs", cursor="before", limit=limit, **query):
        seen.add(answer["job"]["id"])
        yield answer
    if is_whole or query["state"]:
        return
    # What still goes on is shown however old it is.
    going = tuple(state for state in JobState if state not in ENDED_JOBS)
    for answer in client.items("/jobs", cursor="before", **query | {"state": going}):
        if answer["job"]["id"] not in seen:
            yield answer


def _waits(view: JobView) -> str:
    """Empty too when it says no more than the state does."""
    return "" if view.waiting == view.job.state else view.waiting


def _left(view: JobView) -> tuple[float, float] | None:
    return None if view.job.state in ENDED_JOBS else view.eta_s


def job(client: Client, text: str, *, is_json: bool) -> None:
    view, answer = find_job(client, text)
    if is_json:
        show.data(answer)
        return
    job, settings, now = view.job, view.job.settings, time.time()
    spread = view.spread
    limits = [f"{settings.max_retries} retries a frame", f"stops after {settings.max_failed_tasks} failed"]
    if settings.max_running is not None:
        limits.append(f"at most {settings.max_running} at once")
    if settings.timeout_s is not None:
        limits.append(f"a frame may take {duration(settings.timeout_s)}")
    if settings.on_stall is not None:
        limits.append(f"a stalled frame: {settings.on_stall}")
    took = "" if job.finished_at is None else duration(job.finished_at - job.submitted_at)
    show.facts(
        [
            ("job", cell(f"{job.id} {job.name}")),
            ("state", words(f"{job.state}, {job.reason}") if job.reason else show.state(job.state)),
            ("waits", words(_waits(view), "yellow")),
            ("user", cell(settings.user)),
            ("kind", cell(f"{job.kind}, {view.tag}")),
            ("priority", str(settings.priority)),
            ("pool", cell(settings.pool or "")),
            ("depends on", ", ".join(f"job {other}" for other in settings.depends_on)),
            ("limits", ", ".join(limits)),
            ("submitted", show.when(job.submitted_at, now)),
            ("took", took),
            ("tasks", words(f"{view.counts.total:,}: {show.every_count(view.counts)}")),
            (
                "left",
                "" if _left(view) is None else f"{show.eta(view.eta_s)} (likely - at worst 9 times in 10)",
            ),
            (
                "a frame takes",
                ""
                if spread is None
                else f"{duration(spread.p50_s)} (half), {duration(spread.p95_s)} (95 of 100), "
                f"{duration(spread.p99_s)} (99); SD {duration(spread.sd_s)}, "
                f"{spread.relative * 100:.0f} % of the mean {duration(spread.mean_s)}",
            ),
            ("moved", costs_told(view.moves)),
            *(("writes", words(place)) for place in _places(job.steps, job.output_directories)),
        ]
    )
    if len(job.steps) > 1:
        print()
        _steps(job.steps)
    _failures(client, view)
    _warnings(client, view)


def usage(client: Client, text: str, *, is_json: bool) -> None:
    view, _ = find_job(client, text)
    answer = client.get(f"/jobs/{view.job.id}/usage")
    if is_json:
        show.data(answer)
        return
    used = read(JobUsage, answer)
    if not used.attempts:
        print(f"nothing of job {view.job.id} has ended on a GPU yet")
        return
    known = ""
    if used.energy_attempts < used.attempts:
        known = f" (known of {used.energy_attempts:,} of {plural(used.attempts, 'attempt')})"
    show.facts(
        [
            ("job", cell(f"{view.job.id} {view.job.name}")),
            ("attempts on GPUs", f"{used.attempts:,}"),
            ("GPU-hours", f"{used.gpu_hours:.3g}"),
            ("in vain", f"{used.wasted_gpu_hours:.3g} GPU-hours of attempts that did not succeed"),
            ("energy", "n/a" if used.energy_kwh is None else f"{used.energy_kwh:.3g} kWh{known}"),
            ("GPU busy", show.percent(used.busy)),
            ("its memory busy", show.percent(used.memory_busy)),
            ("most VRAM", "n/a" if used.vram_peak_mib is None else size(used.vram_peak_mib * 2**20)),
            ("throttled", "n/a" if used.throttled_s is None else duration(used.throttled_s)),
            ("on", cell(", ".join(used.models))),
        ]
    )


def _places(steps: Sequence[Step], directories: Sequence[str]) -> list[str]:
    patterns = [f": {step.output.file_pattern}" for step in steps if step.output is not None]
    if len(directories) == len(patterns) == 1:
        return [f"{directories[0].rstrip('/')}/{patterns[0].removeprefix(': ')}"]
    return list(directories)


def _steps(steps: Sequence[Step]) -> None:
    show.table(
        [
            Column("Step", shrinks=True, least=8),
            Column("Done", is_right=True),
            Column("Kind"),
            Column("Mean", is_right=True),
            Column("Frames", shrinks=True),
            Column("After", shrinks=True),
        ],
        (
            [
                cell(step.name),
                show.counted(step.counts),
                cell(step.profile.tag),
                duration(step.mean_runtime_s),
                cell(step.frames or "", limit=200),
                cell(", ".join(step.depends_on)),
            ]
            for step in steps
        ),
        empty="no steps",
    )


def _failures(client: Client, view: JobView) -> None:
    for name in (TaskState.FAILED, TaskState.HELD):
        count = getattr(view.counts, name)
        if not count:
            continue
        print()
        print(f"{name}:")
        found = client.items(f"/jobs/{view.job.id}/tasks", state=name, limit=_SHOWN_FAILURES)
        for task in (read(Task, item) for item in found):
            where = f" on {task.node_id}" if task.node_id else ""
            show.put(words(f"  {_label(task)}{where}: {task.reason or 'no reason was given'}"))
        if count > _SHOWN_FAILURES:
            print(f"  and {count - _SHOWN_FAILURES:,} more: `farm tasks {view.job.id} --state {name}`")
        if name is TaskState.HELD:
            print(
                f"  their node vanished; once its renderer is dead for certain: `farm release {view.job.id}`"
            )


def _warnings(client: Client, view: JobView) -> None:
    if not view.counts.done and not view.counts.failed and not view.counts.live:
        return
    told: Counter[str] = Counter()
    looked = 0
    for item in client.items(f"/jobs/{view.job.id}/tasks", limit=_LOOKED_FOR_WARNINGS):
        looked += 1
        told.update(set(item.get("warnings") or ()))
    if not told:
        return
    print()
    print("warnings:" if looked < _LOOKED_FOR_WARNINGS else f"warnings of the first {looked:,} tasks:")
    for text, count in told.most_common(_SHOWN_FAILURES):
        show.put(words(f"  {plural(count, 'task')}: {text}", "yellow"))
    if len(told) > _SHOWN_FAILURES:
        print(f"  and {len(told) - _SHOWN_FAILURES:,} others")


def _label(task: Task) -> str:
    return f"{task.step} {task.label}".strip()


def why(client: Client, text: str, *, is_json: bool) -> None:
    view, _ = find_job(client, text)
    answer = client.get(f"/jobs/{view.job.id}/why")
    if is_json:
        show.data(answer)
        return
    lines = read(WhyView, answer).lines
    if not lines:
        print("nothing waits" if view.counts.ready + view.counts.waiting == 0 else "nothing is in the way")
    for line in lines:
        where = f"step {line.step}: " if line.step and len(view.job.steps) > 1 else ""
        names = ""
        if len(line.node_ids) > 1:  # the text itself names a single one
            few = ", ".join(line.node_ids[:4])
            names = f" ({few}{', ...' if len(line.node_ids) > 4 else ''})"
        show.put(words(f"{where}{line.text}{names}"))


def wait(client: Client, texts: Sequence[str], *, is_quiet: bool, is_json: bool) -> int:
    """The exit status: 0 when all jobs are done."""
    numbers = [find_job(client, text)[0].job.id for text in texts]
    ended = follow(client, numbers, is_quiet=is_quiet)
    if is_json:
        show.data([client.get(f"/jobs/{number}") for number in numbers])
    else:
        for view in ended:
            show.line(outcome(view))
    return 0 if is_all_done(ended) else 1


CANCELLED_STATUS: Final = 4


def watch(
    client: Client, texts: Sequence[str], *, is_failing_fast: bool, is_quiet: bool, is_json: bool
) -> int:
    """As `wait`, with a notification for each job that ends, and at its first failed frame.

    The exit status: 0 all done, 1 one failed, 4 one was cancelled and none failed.
    """
    numbers = list(dict.fromkeys(find_job(client, text)[0].job.id for text in texts))
    told: set[tuple[int, str]] = set()

    def seen(view: JobView) -> bool:
        job = view.job
        name = f"job {job.id} {job.name}"
        if job.state in ENDED_JOBS:
            _tell_once(told, job.id, "end", f"{name} is {job.state}", outcome(view).removeprefix(f"{name}: "))
        elif view.counts.failed:
            failed = f"{plural(view.counts.failed, 'frame')} failed"
            _tell_once(told, job.id, "failure", failed, f"{name}: `farm logs {job.id}` says why")
        return is_failing_fast and bool(view.counts.failed)

    ended = follow(client, numbers, is_quiet=is_quiet, is_enough=seen)
    for view in ended:
        seen(view)
    if is_json:
        show.data([client.get(f"/jobs/{number}") for number in numbers])
    elif not is_quiet:
        for view in ended:
            show.line(outcome(view))
    if is_all_done(ended):
        return 0
    is_cancelled = all(view.job.state in (JobState.DONE, JobState.CANCELLED) for view in ended)
    return CANCELLED_STATUS if is_cancelled else 1


def _tell_once(told: set[tuple[int, str]], job_id: int, what: str, title: str, text: str) -> None:
    if (job_id, what) not in told:
        told.add((job_id, what))
        notify(title, text)


# --- tasks and logs -----------------------------------------------------------------------------------


def tasks(
    client: Connected, *, states: Sequence[str], frames: str | None, step: str | None, wanted: Wanted
) -> None:
    """The first of the typed words may be a job; without one, tasks of all jobs are listed."""
    job_text, words = _job_and_filter(wanted.words)
    wanted = replace(wanted, words=words)
    listing = Listing(Task, TASK_FIELDS, "tasks", wanted)
    chosen = check_states(states, TaskState, "task")
    pinned = listing.filter.pinned("state")
    if pinned is not None:
        chosen = [state for state in TaskState if state in pinned and (not chosen or state in chosen)]
    query: dict[str, Any] = {"state": tuple(chosen), "frames": check_frames(frames), "step": step}
    connected = client()
    if job_text is None:
        if frames is not None or step is not None:
            raise UserError("--frames and --step need a job: farm tasks JOB --frames 1-20")
        views = [read(JobView, answer) for answer in _job_answers(connected, {"state": ()}, is_whole=False)]
    else:
        views = [find_job(connected, job_text)[0]]
    has_steps = job_text is None or len(views[0].job.steps) > 1
    columns = [Column("Job", is_right=True)] if job_text is None else []
    columns += [Column("Task", is_right=True), *([Column("Step", shrinks=True)] if has_steps else [])]
    columns += [Column("Frame", shrinks=True), Column("State"), Column("Node", shrinks=True)]
    columns += [
        Column("Tries", is_right=True),
        Column("Time", is_right=True),
        Column("Note", shrinks=True, least=12),
    ]

    def row(task: Task) -> list[Any]:
        note = task.reason or "; ".join(task.warnings)
        if not note and task.progress is not None and task.state is TaskState.RUNNING:
            note = show.percent(task.progress)
        return [
            *([cell(task.job_id)] if job_text is None else []),
            cell(task.id),
            *([cell(task.step)] if has_steps else []),
            cell(task.label),
            show.state(task.state),
            cell(task.node_id or ""),
            cell(task.starts),
            duration(task.runtime_s),
            cell(note),
        ]

    def answers() -> Iterator[Any]:
        if pinned is not None and not chosen:
            return
        for view in views:
            if job_text or not chosen or any(getattr(view.counts, state.value) for state in chosen):
                yield from connected.items(f"/jobs/{view.job.id}/tasks", **query)

    is_cut = listing.put(listing.matching(answers()), columns, row, empty="no such tasks", limit=_SHOWN_TASKS)
    if is_cut:
        show.note(f"only the first {_SHOWN_TASKS:,} tasks are shown: use a filter, --frames or --json")


def _job_and_filter(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """A word that compares nothing, at the front, is a job."""
    first, rest = (words[0].strip(), tuple(words[1:])) if words else ("", ())
    is_filter = (
        not first
        or re.search(r"[=~<>(]", first) is not None
        or first.lower() == "not"
        or (rest and re.match(r"\s*[=~<>!]", rest[0]) is not None)
    )
    return (None, tuple(words)) if is_filter else (first, rest)


def logs(
    client: Client,
    text: str,
    *,
    frame: int | None,
    task_id: int | None,
    attempt_id: str | None,
    is_following: bool,
    tail: int | None,
) -> None:
    if sum(choice is not None for choice in (frame, task_id, attempt_id)) > 1:
        raise UserError("choose one of --frame, --task and --attempt")
    view, _ = find_job(client, text)
    attempt = _attempt(client, view, frame=frame, task_id=task_id, attempt_id=attempt_id)
    task = read(Task, client.get(f"/tasks/{attempt.task_id}"))
    show.note(f"{_label(task)} on {attempt.node_id}: {attempt.state} (attempt {attempt.id})")
    if attempt.stall is not None and attempt.stall.is_stall:
        show.note(f"taken for {show.shown(attempt.stall.told, 500)}")
    pieces = _log(client, attempt.id, is_following=is_following, is_whole=tail is not None)
    if tail is None:
        for piece in pieces:
            _write(piece)
    else:
        for kept in _last_lines(pieces, tail):
            _write(kept)


def grep(
    client: Client, text: str, pattern: str, *, frames: str | None, states: Sequence[str], is_json: bool
) -> int:
    """The exit status, as grep's: 1 when no line holds the text."""
    query: dict[str, Any] = {
        "text": pattern,
        "frames": check_frames(frames),
        "state": tuple(check_states(states, TaskState, "task")),
    }
    view, _ = find_job(client, text)
    lines = _found_lines(client, f"/jobs/{view.job.id}/grep", query)
    if is_json:
        answers = list(lines)
        show.data(answers)
        return 0 if answers else 1
    is_found = False
    for line in (read(FoundLine, answer) for answer in lines):
        is_found = True
        where = f"{line.step} {line.label}".strip() if len(view.job.steps) > 1 else line.label or line.step
        show.line(f"{where} {line.node_id}:{line.number}: {line.text}")
    if not is_found:
        show.note(f"no output of job {view.job.id} holds '{shown(pattern, 60)}'")
    return 0 if is_found else 1


def _found_lines(client: Client, path: str, query: dict[str, Any]) -> Iterator[Any]:
    """A page without lines is not the last one."""
    after: Any = None
    while True:
        page = client.get(path, **query, after=after, limit=_LOG_PAGE)
        yield from page["items"]
        after = page["next"]
        if after is None:
            return


def _last_lines(pieces: Iterable[str], count: int) -> Iterator[str]:
    """The last `count` lines of what is there now, then whatever follows. An empty piece marks "now"."""
    lines: deque[str] = deque(maxlen=count)
    rest = ""
    is_now = False
    for piece in pieces:
        if is_now:
            yield piece
        elif piece:
            *whole, rest = (rest + piece).split("\n")
            lines.extend(line + "\n" for line in whole)
        else:
            is_now = True
            yield from [*lines, rest][-count:] if rest and count else lines
            lines.clear()


def _log(client: Client, attempt_id: str, *, is_following: bool, is_whole: bool) -> Iterator[str]:
    """Pieces of raw text. With `is_whole`, an empty piece after what is there now."""
    after = -1
    is_caught_up = False
    while True:
        try:
            log = read(LogView, client.get(f"/attempts/{attempt_id}/log", after=after, limit=_LOG_PAGE))
        except Unavailable as error:
            if not is_following:
                raise
            show.note(f"{error}; trying again")
            time.sleep(_RECONNECT_S)
            continue
        for chunk in log.chunks:
            after = max(after, chunk.sequence)
            if chunk.text:
                yield chunk.text
        if log.chunks:
            continue
        if is_whole and not is_caught_up:
            is_caught_up = True
            yield ""
        if log.is_ended or not is_following:
            return
        time.sleep(_LOG_LOOK_S)


def _write(text: str) -> None:
    sys.stdout.write(clean(text, limit=len(text)))
    sys.stdout.flush()


def _attempt(
    client: Client, view: JobView, *, frame: int | None, task_id: int | None, attempt_id: str | None
) -> Attempt:
    job = view.job
    if attempt_id is not None:
        attempt = read(Attempt, client.get(f"/attempts/{quote(attempt_id, safe='')}"))
        if attempt.job_id != job.id:
            raise UserError(f"attempt {attempt.id} is of job {attempt.job_id}, not of job {job.id}")
        return attempt
    what = f"job {job.id}"
    if frame is not None:
        found = client.get(f"/jobs/{job.id}/tasks", frames=str(frame), limit=10)["items"]
        if not found:
            known = "; ".join(step.frames for step in job.steps if step.frames)
            has = f"; it has {shown(known, 100)}" if known else ""
            raise NotFound(f"job {job.id} has no frame {frame}{has}")
        listed = [a for item in found for a in client.get(f"/tasks/{item['id']}/attempts")["items"]]
        what = f"frame {frame} of job {job.id}"
    elif task_id is not None:
        task = read(Task, client.get(f"/tasks/{task_id}"))
        if task.job_id != job.id:
            raise UserError(f"task {task_id} is of job {task.job_id}, not of job {job.id}")
        listed = client.get(f"/tasks/{task_id}/attempts")["items"]
        what = f"task {task_id}"
    else:
        for states in (tuple(LIVE_ATTEMPTS), (AttemptState.FAILED, AttemptState.LOST), ()):
            listed = client.get(f"/jobs/{job.id}/attempts", state=states, limit=50)["items"]
            if listed:
                break
    if not listed:
        waits = f": {view.waiting}" if view.waiting else ""
        raise NotFound(f"nothing has run of {what} yet{waits}")
    return min((read(Attempt, item) for item in listed), key=_interest)


def _interest(attempt: Attempt) -> tuple[int, float]:
    """The running one first, then the last failed one, then the last."""
    if attempt.state in LIVE_ATTEMPTS:
        rank = 0
    elif attempt.state in (AttemptState.FAILED, AttemptState.LOST):
        rank = 1
    else:
        rank = 2
    return rank, -attempt.assigned_at


# --- nodes --------------------------------------------------------------------------------------------


def nodes(client: Connected, wanted: Wanted) -> None:
    listing = Listing(Node, NODE_FIELDS, "nodes", wanted)
    columns = [
        Column("Node", shrinks=True, least=8),
        Column("State"),
        Column("Device", shrinks=True, least=10),
        Column("Busy", is_right=True),
        Column("Load", is_right=True),
        Column("Running", shrinks=True, least=10),
        Column("Note", shrinks=True, least=8),
    ]
    empty = "no such nodes" if wanted.is_filtered else "no nodes: start one with `farm worker`"
    listing.put(listing.matching(client().items("/nodes")), columns, _node_row, empty=empty)


def _node_row(node: Node) -> list[Any]:
    able = node.capabilities
    best = max(able.devices, key=lambda device: device.fp32_tflops or 0.0, default=None)
    loads = {load.device_id: load.utilisation for load in node.loads}
    models = Counter(_model(device) for device in able.devices if device.kind != "cpu") or Counter(
        device.model for device in able.devices
    )
    device = ", ".join(f"{count} x {model}" if count > 1 else model for model, count in models.items())
    note = "; ".join(node_notes(node))
    if node.state in (NodeState.OFFLINE, NodeState.SUSPECT):
        note = f"silent for {duration(node.silent_s)}{'; ' if note else ''}{note}"
    return [
        cell(node.id),
        show.state(node.state),
        cell(device),
        cell(f"{len(node.attempts)}/{able.slots}"),
        cell(show.percent(None if best is None else loads.get(best.id))),
        cell(", ".join(node.running)),
        cell(note),
    ]


def node(client: Client, name: str, *, is_json: bool) -> None:
    answer = find_node(client, name)
    if is_json:
        show.data(answer)
        return
    node = read(Node, answer)
    able = node.capabilities
    show.facts(
        [
            ("node", cell(node.id)),
            ("state", words(f"{node.state}, {node.reason}") if node.reason else show.state(node.state)),
            ("last heard", f"{duration(node.silent_s)} ago"),
            ("system", cell(f"{able.os_family} {able.cpu_arch}, {plural(able.cpus, 'core')}")),
            ("memory", size(able.memory_mib * 2**20)),
            ("disk free", "n/a" if node.disk_free_mib is None else size(node.disk_free_mib * 2**20)),
            (
                "disk rate",
                ""
                if able.disk_write_mbps is None or able.disk_read_mbps is None
                else f"writes {able.disk_write_mbps:,.0f}, reads {able.disk_read_mbps:,.0f} MB/s (measured)",
            ),
            ("pools", cell(", ".join(able.pools))),
            (
                "renderers",
                words(", ".join(f"{name} {version}" for name, version in sorted(able.software.items()))),
            ),
            (
                "attributes",
                words(", ".join(f"{k}={'|'.join(v)}" for k, v in sorted(able.attributes.items()))),
            ),
            ("amounts", words(", ".join(f"{k}={v:g}" for k, v in sorted(able.amounts.items())))),
            ("agent", cell(node.agent_version)),
            *(("note", words(text)) for text in able.notes),
            ("busy", f"{len(node.attempts)} of {plural(able.slots, 'slot')}"),
            *(("running", words(text)) for text in node.running),
        ]
    )
    loads = {load.device_id: load for load in node.loads}
    print()
    show.table(
        [
            Column("Device", shrinks=True, least=10),
            Column("Kind"),
            Column("Slots", is_right=True),
            Column("FP32", is_right=True),
            Column("Mem. bandwidth", is_right=True),
            Column("Ridge", is_right=True),
            Column("VRAM", is_right=True),
            Column("Load", is_right=True),
            Column("Mem.", is_right=True),
            Column("Temp.", is_right=True),
            Column("Power", is_right=True),
        ],
        (_device_row(device, loads.get(device.id)) for device in able.devices),
        empty="no devices",
    )
    told = [line for device in able.devices for line in _device_notes(device, loads.get(device.id))]
    if told:
        print()
    for line in told:
        show.put(words(line))


def _model(device: Device) -> str:
    """Nobody has seen a declared device: every view says so."""
    return f"{device.model} (declared)" if device.is_declared else device.model


def _device_notes(device: Device, load: DeviceLoad | None) -> list[str]:
    """What a table has no room for: where the figures come from, what is unknown and why, what is wrong."""
    if device.kind is DeviceKind.CPU:
        rate = device.ray_rate_mrays
        return [] if rate is None else [f"{_model(device)}: {rate:.3g} million rays/s (measured)"]
    facts = [device.id, device.architecture, device.api, device.pci]
    if device.pcie_generation and device.pcie_width:
        facts.append(f"PCIe {device.pcie_generation}.0 x{device.pcie_width}")
    if device.ray_tracing_generation is not None:
        generation = device.ray_tracing_generation
        facts.append(f"ray tracing generation {generation}" if generation else "no ray-tracing hardware")
    if device.tdp_w is not None:
        facts.append(f"{device.tdp_w:.0f} W")
    if device.host_bandwidth_gbps is not None:
        facts.append(f"{device.host_bandwidth_gbps:.3g} GB/s from the host")
    if device.ray_rate_mrays is not None:
        facts.append(f"{device.ray_rate_mrays:.3g} million rays/s")
    if device.driver:
        facts.append(f"driver {device.driver}")
    lines = [f"{_model(device)}: {', '.join(filter(None, facts))}"]
    by_source: dict[str, list[str]] = {}
    for name, source in device.sources.items():
        by_source.setdefault(source, []).append(_SHORT.get(name, name))
    if by_source:
        lines.append("  " + "; ".join(f"{', '.join(names)}: {source}" for source, names in by_source.items()))
    lines += [f"  {_SHORT.get(name, name)} is not known: {why}" for name, why in device.unknown.items()]
    if load is None and not device.is_declared:
        lines.append("  its load is not known")
    for text in (load.fault, load.closed, load.complaint) if load is not None else ():
        if text:
            lines.append(f"  {text}")
    return lines


def _device_row(device: Device, load: DeviceLoad | None) -> list[Any]:
    tflops, bandwidth = device.fp32_tflops, device.memory_bandwidth_gbps
    return [
        cell(_model(device)),
        cell(device.kind),
        cell(device.slots),
        "n/a" if tflops is None else f"{tflops:.3g} TFLOPS",
        "n/a" if bandwidth is None else f"{bandwidth:.4g} GB/s",
        "n/a" if device.ridge is None else f"{device.ridge:.3g} FLOP/B",
        "-" if device.vram_mib is None else size(device.vram_mib * 2**20),
        show.percent(None if load is None else load.utilisation),
        show.percent(None if load is None else load.memory_occupancy),
        "n/a" if load is None or load.temperature_c is None else f"{load.temperature_c:.0f} °C",
        "n/a" if load is None or load.power_w is None else f"{load.power_w:.0f} W",
    ]


_SHORT: Final = {
    "fp32_tflops": "FP32",
    "memory_bandwidth_gbps": "memory bandwidth",
    "vram_mib": "VRAM",
    "tdp_w": "power",
    "host_bandwidth_gbps": "rate from the host",
    "ray_rate_mrays": "ray rate",
}


def find_node(client: Client, name: str) -> Any:
    """The API's node. Raises NotFound that names the nearest."""
    known = {answer["id"]: answer for answer in client.items("/nodes")}
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    told = shown(name, 60)
    if near:
        hint = f"did you mean {shown(near[0])}?"
    else:
        few = shown(", ".join(sorted(known)[:8]))
        hint = f"there are {few}" if few else "there are none yet"
    raise NotFound(f"there is no node '{told}'; {hint}")


# --- events -------------------------------------------------------------------------------------------


def events(client: Connected, *, job: str | None, limit: int, is_following: bool, wanted: Wanted) -> None:
    if is_following and (wanted.columns is not None or wanted.sort is not None):
        raise UserError("--follow prints events as they come: leave --columns and --sort away")
    listing = Listing(Event, event_fields(time.time()), "events", wanted)
    connected = client()
    job_id = None if job is None else find_job(connected, job)[0].job.id
    looked = _LOOKED_FOR_EVENTS if wanted.is_filtered else limit
    newest = connected.get("/events", newest="true", limit=max(looked, limit), job_id=job_id)["items"]
    newest.sort(key=lambda item: int(item["id"]))
    found = list(listing.matching(newest))[-limit:]
    if wanted.columns is not None or wanted.sort is not None or (not is_following and _is_plain(wanted)):
        columns = [Column("Event", shrinks=True)]
        listing.put(found, columns, lambda event: [cell(event.text)], empty="nothing has happened yet")
        return
    for event, item in found:
        _event(event, item, is_json=wanted.is_json, is_quiet=wanted.is_quiet)
    if not found:
        show.note("no such events yet" if wanted.is_filtered else "nothing has happened yet")
    last = newest[-1]["id"] if newest else 0
    while is_following:
        try:
            for event in connected.events(after=last, job_id=job_id):
                last = event.id
                if listing.filter(event):
                    _event(event, None, is_json=wanted.is_json, is_quiet=wanted.is_quiet)
        except Unavailable as error:
            show.note(f"{error}; trying again")
        time.sleep(_RECONNECT_S)


def _is_plain(wanted: Wanted) -> bool:
    """For scripts: JSON in one piece, or numbers alone."""
    return wanted.is_json or wanted.is_quiet


def hooks(client: Client, *, is_json: bool) -> None:
    answers = list(client.items("/hooks"))
    if is_json:
        show.data(answers)
        return
    found = [read(HookView, answer) for answer in answers]
    show.table(
        [Column("Hook"), Column("Kind"), Column("When a job"), Column("Of")],
        (
            [
                cell(hook.name),
                cell(hook.kind),
                cell(", ".join(hook.on)),
                "every job" if hook.every_job else "jobs that ask for it",
            ]
            for hook in found
        ),
        empty="this farm has no hooks: its setting `hooks` defines them",
    )


def _event(event: Event, item: Any, *, is_json: bool, is_quiet: bool) -> None:
    if is_quiet:
        print(event.id, flush=True)
        return
    if is_json:
        from dataclasses import asdict

        show.data(asdict(event) if item is None else item)
        sys.stdout.flush()
        return
    who = f" by {event.actor}" if event.actor else ""
    at = time.strftime("%d %b %H:%M:%S", time.localtime(event.at))
    told = ": ".join(part for part in (event.subject, event.text) if part)
    show.line(f"{at} {event.kind} {told}{who}")
    sys.stdout.flush()
