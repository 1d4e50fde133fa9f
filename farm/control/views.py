"""What the API shows beyond the nouns themselves: the same types for the server, the CLI and live view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from farm.flow.stats import Calibration, Spread, Within
from farm.model.attempts import Attempt
from farm.model.hooks import HookEvent
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.limits import LimitScope
from farm.model.machines import Demand
from farm.model.stalls import MoveCosts, Stall, StallPolicy
from farm.model.states import TaskState
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
class ModelTime:
    """What a task of a step takes on a device model, by what was learnt."""

    model: str
    runs: int
    median_s: float
    upper_s: float
    """9 times in 10 not more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    step: str
    declared: Profile
    """By tag, hints or what is usual for the renderer."""
    learnt: Profile
    """By what runs have taught; as declared until they have."""
    runs: int
    load_s: float | None = None
    vram_peak_mib: int | None = None
    spread: Spread | None = None
    """Of completion times: a task's first start to its delivery."""
    within: Within | None = None
    """The same, with the floor that is left when devices are alike."""
    times: tuple[ModelTime, ...] = ()
    """Of each device model that the farm knows, the quickest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    steps: tuple[StepProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWorth:
    """What a device model is worth to the work that waits."""

    model: str
    slots: int
    price: float
    """Of a second, in parts of the whole farm's: all slots together cost 1."""
    one_more_saves_s: float
    """Of the time that the waiting work takes at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFactor:
    node: str
    factor: float
    """How much longer it takes than others of its device model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpread:
    """The spread while one policy with its weights held."""

    policy: str
    weights: dict[str, Any]
    """Those that differ from their defaults."""
    since: float
    """Seconds since the epoch on the database's clock."""
    within: Within | None
    """None: nothing looked at was done in that time."""


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
class MatchingView:
    """How matching does: spread of completion, prices, predictions, and nodes slow for no visible reason."""

    policy: str
    tasks: int
    """Looked at: the newest 200 done tasks of each of the 25 jobs that changed last."""
    spread: Spread | None
    """Of completion times: a task's first start to its delivery."""
    within: Within | None
    """Around each step's own mean."""
    policies: tuple[PolicySpread, ...]
    """The policy that holds, and the one before it: before and after a change."""
    predictions: Calibration | None
    """Of tasks' run times, told when they were sent. Guesses at steps that had not run yet do not count."""
    etas: Calibration | None
    """Of jobs' ends, told as a quarter, half and three quarters of their tasks were done."""
    waiting_bound_s: float
    """In which time no schedule drains what waits."""
    models: tuple[ModelWorth, ...]
    slow_nodes: tuple[NodeFactor, ...]
    moves: MoveCosts = MoveCosts()
    """What moving stalled attempts has cost and saved, of all jobs that are kept."""


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
    failing: int = 0
    """Calls of the last day that did not go well yet: they are tried again, or were given up."""
    error: str = ""
    """Why the newest of them did not; empty for who is no admin."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    name: str
    user: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokenView:
    token: str
    """Shown this once."""
    name: str
    user: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteView:
    """A code with which one machine may join."""

    code: str
    """Shown this once."""
    until: float
    """When it runs out, on the database's clock."""
    node_id: NodeId | None
    needs_approval: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinView:
    """What a machine that has joined is told."""

    node_id: NodeId
    token: str
    """Of the node; shown this once."""
    is_pending: bool
    at: float
    """The database's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """A node's account at the broker."""

    node_id: NodeId
    is_pending: bool
    """It waits for an administrator: ask again."""
    broker_url: str | None
    """With the account's password, new each time; None while it is pending."""
    missing: str = ""
    """Why the farm could not make the account itself; empty: it did."""
    to_type: tuple[str, ...] = ()
    """What somebody types on the broker's machine instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """One thing that somebody asked for."""

    id: int
    at: float
    actor: str
    token: str
    """The token's name."""
    ip: str
    method: str
    path: str
    target: str
    """What it was about: "job 12", "node blade-3"."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    status: int
    """HTTP; 400 and above: it was refused."""


# --- requests -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What to change of a job; None (or left out) leaves a thing as it is."""

    priority: int | None = None
    """0 to 100."""
    max_running: int | None = None
    """0 takes the limit away."""
    pool: str | None = None
    """"" means any pool."""
    is_paused: bool | None = None
    name: str | None = None
    max_retries: int | None = None
    max_failed_tasks: int | None = None
    timeout_s: float | None = None
    """0 takes the limit away. Attempts that run keep the one that they began with."""
    tag: Tag | None = None
    """What the work costs most."""
    order: str | None = None
    """forward, reverse, first-middle-last or every-N."""
    replace_existing: bool | None = None
    project: str | None = None
    """Whose share of the farm it uses from now on; "" means of no project."""
    on_stall: StallPolicy | None = None
    limits: dict[str, int] | None = None
    """What each of its tasks takes of the farm's limits, beyond what its template says: {"arnold": 1}. What
    runs counts as if it had always taken so much."""
    hooks: tuple[str, ...] | None = None
    """The hooks that are called from now on."""
    preempts: bool | None = None
    """Whether tasks of a lower priority may be stopped for its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Frames to add to a job."""

    frames: str
    """As people type it: "101-120"."""
    step: str | None = None
    """Of which step; null: of those with the most frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChoice:
    """Which tasks of a job; nothing given: all of them. Several together narrow the choice."""

    frames: str | None = None
    """A frame range as people type it: "1-100x2"."""
    task_ids: tuple[int, ...] | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryChoice(TaskChoice):
    states: tuple[TaskState, ...] = (TaskState.FAILED, TaskState.CANCELLED)
    """"done" renders accepted frames again; "held" says that the lost attempt is dead for certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRequest:
    amount: int
    """How much of it there is, 0 to 1,000,000."""
    per: LimitScope = LimitScope.TASK


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteRequest:
    node_id: str | None = None
    """The one name that may join by it, also if a node has it already; None: any free name."""
    life_s: float = 900.0
    needs_approval: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    code: str
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    name: str
    user: str
    role: str = "user"
