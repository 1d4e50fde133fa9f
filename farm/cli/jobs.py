"""`farm jobs`, `farm job` and `farm why`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.listing import Listing, Wanted
from farm.cli.naming import Connected, check_states, find_job, label
from farm.cli.show import Column, cell, words
from farm.cli.stalled import costs_told
from farm.control.fields import job_fields
from farm.control.views import JobView, WhyView
from farm.model.attempts import JobUsage
from farm.model.states import ENDED_JOBS, JobState, TaskState
from farm.model.work import Step, Task
from farm.text import duration, plural, size

_SHOWN_JOBS: Final = 30


_SHOWN_FAILURES: Final = 10
_LOOKED_FOR_WARNINGS: Final = 1_000


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
    answers: Iterable[Any] = () if is_none else job_answers(client(), query, is_whole=is_whole)
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


def job_answers(client: Client, query: dict[str, Any], *, is_whole: bool) -> Iterator[Any]:
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


def job(client: Connected, text: str, wanted: Wanted) -> None:
    from farm.control.detail_fields import STEP_FIELDS

    listing = Listing(Step, STEP_FIELDS, "steps", wanted)
    connected = client()
    view, answer = find_job(connected, text)
    if listing.put_chosen(view.job.steps, empty="no steps"):
        return
    if wanted.is_json:
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
    _failures(connected, view)
    _warnings(connected, view)


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
            show.put(words(f"  {label(task)}{where}: {task.reason or 'no reason was given'}"))
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
