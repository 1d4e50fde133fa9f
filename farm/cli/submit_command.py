"""What `farm submit` does with a submission: show it, send it, follow it."""

from __future__ import annotations

import getpass
import shlex
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from farm.cli import show
from farm.cli.answers import read
from farm.cli.client import Client
from farm.cli.progress import follow, is_all_done, tell_end
from farm.cli.show import shown
from farm.cli.submit import (
    SHOWN_FILES,
    Made,
    Wish,
    existing_files,
    job_frames,
    make,
    patterns,
    preview,
    refuse_existing,
    summary,
)
from farm.control.views import JobView, PlanView
from farm.errors import FarmError, Forbidden, Unavailable, UserError
from farm.model.states import JobState
from farm.text import plural

MAX_KEY: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a job is submitted and told of. Raises UserError for what does not go together."""

    is_pretend: bool
    is_waiting: bool
    is_quiet: bool
    is_json: bool
    key: str | None
    """Of idempotency; None: a random one."""

    def __post_init__(self) -> None:
        if self.is_pretend and self.is_waiting:
            raise UserError("--pretend submits nothing, so there is nothing to --wait for")
        key = self.key
        if key is not None and not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
            raise UserError(f"--idempotency-key: give 1 to {MAX_KEY} plain characters")


def run_submit(connect: Callable[[], Client], wish: Wish, way: Way) -> int:
    """The exit status. `connect` is called once the submission stands: most mistakes need no farm."""
    return send(connect, make(wish, cwd=Path.cwd(), login=_login()), way, user=wish.user)


def send(connect: Callable[[], Client], made: Made, way: Way, *, user: str | None = None) -> int:
    """Show it, or submit it and tell; the exit status. `user`: whose it should be, where somebody said so."""
    for text in made.notes:
        show.note(f"note: {text}")
    if way.is_pretend:
        _pretend(connect, made, is_json=way.is_json)
        return 0
    found = [] if made.submission.settings.replace_existing else existing_files(made.submission)
    if way.key is None:
        refuse_existing(found)
    client = connect()
    answer, is_new = client.create("/jobs", made.submission, key=way.key or str(uuid.uuid4()))
    view = read(JobView, answer)
    if is_new and found:
        # With a key of the caller's own they may be the work of an earlier try; they are not.
        client.post(f"/jobs/{view.job.id}/cancel")
        refuse_existing(found)
    if way.is_quiet:
        print(view.job.id, flush=True)
    elif not (way.is_json and way.is_waiting):
        warnings = (_about_pool(client, made.submission.settings.pool), _about_user(view, user))
        _tell(view, made, answer, is_json=way.is_json, warnings=tuple(filter(None, warnings)))
    return _wait(client, view, is_quiet=way.is_quiet, is_json=way.is_json) if way.is_waiting else 0


def _wait(client: Client, view: JobView, *, is_quiet: bool, is_json: bool) -> int:
    try:
        ended = follow(client, [view.job.id], is_quiet=is_quiet)
    except KeyboardInterrupt:
        show.note(
            f"the job goes on; `farm cancel {view.job.id}` ends it, `farm wait {view.job.id}` waits again"
        )
        raise
    if is_json:
        show.data(client.get(f"/jobs/{view.job.id}"))
    elif not is_quiet:
        for last in ended:
            tell_end(client, last)
    return 0 if is_all_done(ended) else 1


def _about_pool(client: Client, pool: str | None) -> str:
    """What to say of a pool that no node is in: it may come, or be misspelt."""
    if not pool:
        return ""
    known: list[str] = []
    with suppress(FarmError):  # the job is submitted: a hint must not make it look otherwise
        known = sorted({name for node in client.items("/nodes") for name in node["capabilities"]["pools"]})
    if not known or pool in known:
        return ""
    near = get_close_matches(pool, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"no node is in the pool '{shown(pool, 60)}' now; {hint}"


def _about_user(view: JobView, user: str | None) -> str:
    """What to say of a job that is not whose it was said to be."""
    whose = view.job.settings.user
    return f"the job is {whose}'s: only an admin submits for others" if user not in (None, "", whose) else ""


def _tell(view: JobView, made: Made, answer: Any, *, is_json: bool, warnings: Sequence[str]) -> None:
    if is_json:
        show.data(answer)
        return
    job = view.job
    show.line(f"job {job.id} {job.name}: {plural(view.counts.total, 'task')}, {summary(made.submission)}")
    for pattern in patterns(made.submission):
        show.line(f"  writes {pattern}")
    if job.state is JobState.PAUSED:
        show.line(f"  paused: `farm resume {job.id}` starts it")
    elif view.waiting:
        show.line(f"  waits: {view.waiting}")
    for warning in warnings:
        show.note(f"  note: {warning}")
    sys.stdout.flush()


def _pretend(connect: Callable[[], Client], made: Made, *, is_json: bool) -> None:
    submission = made.submission
    first = preview(made)
    found = existing_files(submission)
    plan, unplanned = _plan(connect, made)
    if is_json:
        frames = job_frames(submission)
        show.data(
            {
                "submission": asdict(submission),
                "frames": None if frames is None else list(frames),
                "command": list(first.command),
                "first_output": first.first_output,
                "existing_files": found,
                "plan": plan,
            }
        )
        return
    settings = submission.settings
    told = [f"priority {settings.priority}", f"user {settings.user}"]
    told += [f"pool {settings.pool}"] * bool(settings.pool) + ["paused"] * settings.is_paused
    pairs: list[tuple[str, str]] = [
        ("job", f"{submission.name} ({submission.kind})"),
        ("frames", summary(submission)),
        ("command", shlex.join(first.command)),
        ("first file", first.first_output or "not known: the command writes where it likes"),
        ("settings", ", ".join(told)),
    ]
    if plan is not None:
        planned = read(PlanView, plan)
        pairs += [(f"step {step.name}", plural(step.tasks, "task")) for step in planned.steps]
        pairs += [("warning", text) for text in planned.warnings]
    if found:
        shown = ", ".join(found[:SHOWN_FILES])
        more = f" and {len(found) - SHOWN_FILES:,} more" if len(found) > SHOWN_FILES else ""
        advice = (
            "moved aside"
            if settings.replace_existing
            else "in the way: the job would be refused without --overwrite"
        )
        pairs.append((plural(len(found), "file"), f"{shown}{more}: {advice}"))
    show.facts((name, show.words(text)) for name, text in pairs)
    show.note(f"nothing was submitted{unplanned}")


def _plan(connect: Callable[[], Client], made: Made) -> tuple[Any, str]:
    """What the farm says of it, when one answers; a refusal of the job itself is raised."""
    try:
        return connect().post("/jobs", made.submission, dry_run="true"), ""
    except (Unavailable, Forbidden) as error:
        return None, f"; checked on this machine alone ({error})"


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name
        return "nobody"
