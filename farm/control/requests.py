"""What people ask of the API: the bodies of requests, the same for the server and the CLI."""

from __future__ import annotations

from dataclasses import dataclass

from farm.model.limits import LimitScope
from farm.model.stalls import StallPolicy
from farm.model.states import TaskState
from farm.model.work import Tag


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
