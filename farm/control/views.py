"""What the API shows beyond the nouns themselves: the same types for the server, the CLI and live view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from farm.flow.stats import Spread
from farm.model.attempts import Attempt
from farm.model.hooks import HookEvent
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.limits import LimitScope
from farm.model.machines import Demand
from farm.model.stalls import MoveCosts, Stall
from farm.model.work import Counts, Isolation, Job, Profile, Tag

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A piece of a list."""

    items: tuple[T, ...]
    next: int | None = None
    """Give it as `after` (jobs: `before`) to read on; null: this was the last piece."""


MAX_PAGE: Final = 1_000
"""Items at most."""


def next_after(found: Sequence[Any], limit: int) -> int | None:
    """`next` of a page that holds `found`, each with its id, where up to `limit` were asked for."""
    return found[-1].id if len(found) == limit else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    job: Job
    counts: Counts
    """Tasks of all steps by state."""
    progress: float
    """0 to 1: the share of tasks that ended."""
    tag: Tag = Tag.UNKNOWN
    """Of the step with most tasks."""
    eta_s: tuple[float, float] | None = None
    """Seconds from now until the rest is done: (likely, at worst 9 times in 10). None: cannot say."""
    spread: Spread | None = None
    """Of completion times (a task's first start to its delivery), the newest 2,000 at most."""
    waiting: str = ""
    """Why nothing runs, one line; empty when something runs or the job has ended."""
    moves: MoveCosts | None = None
    """What moving its attempts has cost and saved; null in lists, and where none was moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmView:
    """The farm at a glance, and who asks."""

    version: str
    now: float
    """Seconds since the epoch on the database's clock: the clock of every time in the API."""
    policy: str
    leader: str | None
    """The scheduler that leads now; None: none does, nothing is dispatched."""
    nodes: int
    nodes_online: int
    """Those that take work."""
    slots: int
    """Of the nodes that are not offline."""
    slots_used: int
    counts: Counts
    """Tasks of all jobs that have not ended, by state."""
    user: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledView:
    """A live attempt that is taken for stalled, or works in silence."""

    job_name: str
    user: str
    step: str
    label: str
    """Of its task, for people."""
    stall: Stall
    attempt: Attempt
    """With the evidence as it came last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    name: str
    tasks: int
    frames: str | None
    depends_on: tuple[str, ...]
    isolation: Isolation
    demand: Demand
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """What a submission would become; nothing was stored."""

    name: str
    steps: tuple[PlannedStep, ...]
    output_directories: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHolder:
    job_id: JobId
    tasks: int
    """That run, and hold of the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitView:
    """A count that the whole farm shares, such as licences."""

    name: str
    amount: int
    per: LimitScope
    """What takes of it: each task, each node that runs such tasks, or each job."""
    used: int
    free: int
    waiting: int
    """Ready tasks that need it."""
    is_from_settings: bool
    """The scheduler's settings name it: they say what it is."""
    holders: tuple[LimitHolder, ...] = ()
    """Those with most tasks first, at most 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyLine:
    """One cause for waiting."""

    step: str
    """Empty: the whole job."""
    text: str
    count: int = 0
    """For how many nodes it holds; 0: it is not about nodes."""
    node_ids: tuple[NodeId, ...] = ()
    is_momentary: bool = True
    """It may pass without anybody changing a node or the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyView:
    lines: tuple[WhyLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedView:
    changed: int
    """How many tasks."""
    job: JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    sequence: int
    text: str
    """Raw: show it through `clean()`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    chunks: tuple[LogPiece, ...]
    is_ended: bool
    """The attempt has ended and nothing more is to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookView:
    """A hook that jobs may ask for."""

    name: str
    kind: str
    """webhook, command or mail."""
    on: tuple[HookEvent, ...]
    every_job: bool
    """It is called for jobs that did not ask, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLine:
    """A line of the output of a task's newest attempt."""

    task_id: TaskId
    step: str
    label: str
    """Of the task: "7"."""
    attempt_id: AttemptId
    node_id: NodeId
    number: int
    """From 1."""
    text: str
    """Raw, cut at 2,000 characters: show it through `clean()`."""
