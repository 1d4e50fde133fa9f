"""The rows. Never seen outside `farm/store`; `rows.py` maps them to the nouns.

Times are seconds since the epoch on the database's clock. JSON columns hold what is only ever read whole.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    literal_column,
    text,
)
from sqlmodel import Field, SQLModel

_BIG = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts only INTEGER PRIMARY KEY up by itself


def _json() -> Any:
    return Column(JSON, nullable=False)


class State(TypeDecorator[str]):
    """A word of our own that a column is compared with by its text in the statement, not by a parameter.

    A parameter that may decide whether one of our partial indexes helps has SQLite plan the statement anew
    each time it runs, which takes many times as long as running it.
    """

    impl = String
    cache_ok = True

    class Comparator(TypeDecorator.Comparator[str]):
        def operate(self, op: Any, *others: Any, **kwargs: Any) -> Any:
            return super().operate(op, *map(_written_out, others), **kwargs)

    comparator_factory = Comparator


def _written_out(value: Any) -> Any:
    if isinstance(value, str):
        assert value.isidentifier(), "a state"
        return literal_column(f"'{value}'", String())
    return [_written_out(each) for each in value] if isinstance(value, list | tuple) else value


class JobRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "job"

    id: int | None = Field(default=None, primary_key=True)
    uid: str = Field(unique=True)
    name: str
    kind: str
    state: str = Field(index=True)
    user: str = Field(default="", index=True)
    project: str = Field(default="", sa_column_kwargs={"server_default": ""})
    priority: int
    pool: str | None = None
    is_paused: bool = False
    max_retries: int
    max_failed_tasks: int
    max_running: int | None = None
    replaces_existing: bool = False
    settings: dict[str, Any] = Field(sa_column=_json())
    """All of JobSettings; the columns above are what queries look at and what may change."""
    output_directories: list[str] = Field(sa_column=_json())
    edition: int = Field(default=1, sa_column_kwargs={"server_default": "1"})
    """Grows with each change of the source: who keeps what follows from it looks at this."""
    submitted_at: float
    changed_at: float = Field(index=True)
    finished_at: float | None = None
    reason: str = ""


class JobSourceRow(SQLModel, table=True):
    """What was submitted. Apart from the job, because lists of jobs must not load templates."""

    __tablename__: ClassVar[Any] = "job_source"

    job_id: int = Field(primary_key=True, foreign_key="job.id", ondelete="CASCADE")
    submission: dict[str, Any] = Field(sa_column=_json())
    parameters: dict[str, Any] = Field(sa_column=_json())
    """Name -> [OpenJD type, text], defaults filled in."""


class JobDependencyRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "job_dependency"

    job_id: int = Field(primary_key=True, foreign_key="job.id", ondelete="CASCADE")
    needs_job_id: int = Field(primary_key=True, foreign_key="job.id", ondelete="CASCADE", index=True)
    by_frame: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    """Tasks wait for single tasks of it, see TaskNeedRow, not the job for the job."""


class TaskNeedRow(SQLModel, table=True):
    """A task that waits for another one: the same frame of a step or a job before it."""

    __tablename__: ClassVar[Any] = "task_need"

    task_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    needs_task_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))


class StepRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "step"
    __table_args__ = (Index("step_ready", "n_ready"),)

    id: int | None = Field(default=None, primary_key=True)
    job_id: int = Field(foreign_key="job.id", index=True, ondelete="CASCADE")
    position: int
    name: str
    depends_on: list[str] = Field(sa_column=_json())
    by_frame: list[str] = Field(sa_column=Column(JSON, nullable=False, server_default="[]"))
    """Those of `depends_on` that are waited for task by task, and "#12" for a job."""
    demand: dict[str, Any] = Field(sa_column=_json())
    profile: dict[str, Any] = Field(sa_column=_json())
    isolation: str
    output: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON, nullable=True))
    frames: str | None = Field(default=None, sa_column=Column(Text, nullable=True))
    # Tasks by state, kept in the same transaction as the tasks; a test compares them with a count.
    n_waiting: int = 0
    n_ready: int = 0
    n_assigned: int = 0
    n_running: int = 0
    n_cancelling: int = 0
    n_held: int = 0
    n_done: int = 0
    n_failed: int = 0
    n_cancelled: int = 0
    runtime_count: int = 0
    runtime_sum_s: float = 0.0
    vram_peak_mib: int | None = None
    """The most that one of its attempts was seen to hold on a GPU."""
    chunk_target_s: float | None = None
    """Its waiting chunks are cut anew, so that one takes about so long."""
    licence_until: float = Field(default=0.0, sa_column_kwargs={"server_default": "0"})
    """Nothing of it starts before: its renderers found no licence."""


class TaskRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "task"
    # The claim reads (step, state, rank) in this very order: the wrong direction is 600 times slower.
    __table_args__ = (
        Index("task_claim", "step_id", "state", "rank"),
        Index("task_of_job", "job_id", "id"),
        # Few tasks at any time: each round of matching asks which must wait, or avoid a node.
        Index(
            "task_held_back",
            "step_id",
            "avoid_node",
            "not_before",
            sqlite_where=text("state = 'ready' AND not_before > 0"),
            postgresql_where=text("state = 'ready' AND not_before > 0"),
        ),
    )

    id: int | None = Field(default=None, sa_column=Column(_BIG, primary_key=True, autoincrement=True))
    job_id: int = Field(foreign_key="job.id", ondelete="CASCADE")
    step_id: int = Field(foreign_key="step.id", ondelete="CASCADE")
    idx: int
    rank: int
    """Order of dispatch in the step."""
    state: str = Field(sa_type=State)
    attempt_id: str | None = None
    """The attempt that owns the task, or owned it last."""
    starts: int = 0
    failures: int = 0
    faults: int = 0
    """Failures that are not the job's own (storage, node, stall): a cap, not a budget."""
    generation: int = 1
    not_before: float = 0.0
    avoid_node: str | None = None
    """Where it is not tried until `avoid_until`: see `farm/flow/avoid.py`."""
    avoid_until: float = Field(default=0.0, sa_column_kwargs={"server_default": "0"})
    reason: str = ""
    runtime_s: float | None = None


class AttemptRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "attempt"
    __table_args__ = (
        Index("attempt_live", "state", "node_id"),
        Index("attempt_of_task", "task_id"),
        Index("attempt_of_job", "job_id", "finished_at"),
        # G2: at most one accepted attempt for each generation of a task, whatever the code does.
        Index(
            "attempt_accepted",
            "task_id",
            "generation",
            unique=True,
            sqlite_where=Column("state") == "succeeded",
            postgresql_where=Column("state") == "succeeded",
        ),
    )

    id: str = Field(primary_key=True)
    task_id: int = Field(sa_column=Column(_BIG, nullable=False))
    job_id: int = Field(foreign_key="job.id", ondelete="CASCADE")
    step_id: int
    generation: int = 1
    node_id: str
    device_id: str
    state: str = Field(sa_type=State)
    assigned_at: float
    started_at: float | None = None
    finished_at: float | None = None
    lease_until: float
    outcome: str | None = None
    exit_code: int | None = None
    reason: str = ""
    progress: float | None = None
    message: str = ""
    runtime_s: float | None = None
    load_s: float | None = None
    peak_memory_mib: int | None = None
    cpu_s: float | None = None
    # Of GPUs, see DeviceUsage; all None for an attempt on the CPU.
    gpu_model: str | None = None
    gpu_count: int | None = None
    gpu_s: float | None = None
    gpu_busy: float | None = None
    gpu_memory_busy: float | None = None
    vram_peak_mib: int | None = None
    energy_j: float | None = None
    throttled_s: float | None = None
    decision: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON, nullable=True))
    probe: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON, nullable=True))
    origin: str = Field(default="match", sa_column_kwargs={"server_default": "match"})
    evidence: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON, nullable=True))
    """What its processes were last seen to do, and when that came."""
    evidence_at: float | None = None
    stall: str | None = None
    """What it was last taken for (StallKind), and since when."""
    stall_text: str | None = None
    stall_since: float | None = None
    stall_action: str | None = None
    ends_as: str | None = None
    """The farm asked for its end: the outcome that this is, and why."""
    ends_because: str | None = None
    left_until: float | None = None
    """When it was expected to end, at the time when a second copy of it was started."""
    warnings: list[str] = Field(sa_column=_json())
    files: list[dict[str, Any]] = Field(sa_column=_json())


class NodeRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "node"

    id: str = Field(primary_key=True)
    state: str
    reason: str = ""
    session: str
    boot_id: str
    sequence: int = 0
    """Of the newest heartbeat of the session: an older one says nothing more."""
    seen_at: float
    enrolled_at: float
    quarantined_until: float = Field(default=0.0, sa_column_kwargs={"server_default": "0"})
    """It takes no work before that: attempts of several jobs ended badly there, one after the other."""
    quarantine_reason: str = Field(default="", sa_column_kwargs={"server_default": ""})
    quarantines: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    """How often since a person released it last: each one is longer."""
    bad_ends: list[dict[str, Any]] | None = Field(default=None, sa_column=Column(JSON, nullable=True))
    """Attempts that ended badly since the last good one (quarantine.Bad)."""
    user_ids: list[int] | None = Field(default=None, sa_column=Column(JSON, nullable=True))
    """Those that its agents ran as, the newest last: see `farm/flow/node_users.py`."""
    is_drained: bool = False
    """By a person; outlives the agent's restarts."""
    drained_by: str = ""
    capabilities: dict[str, Any] = Field(sa_column=_json())
    loads: list[dict[str, Any]] = Field(sa_column=_json())
    disk_free_mib: int | None = None
    agent_version: str = ""


class OutboxRow(SQLModel, table=True):
    """A message owed to a node, written in the transaction that owes it."""

    __tablename__: ClassVar[Any] = "outbox"

    id: int | None = Field(default=None, sa_column=Column(_BIG, primary_key=True, autoincrement=True))
    node_id: str
    kind: str
    """"launch" (payload: attempt ids) or "control" (payload: the message)."""
    payload: dict[str, Any] = Field(sa_column=_json())
    created_at: float


class LeaderRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "leader"

    name: str = Field(primary_key=True)
    holder: str
    epoch: int
    until: float


class EventRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "event"

    id: int | None = Field(default=None, sa_column=Column(_BIG, primary_key=True, autoincrement=True))
    at: float
    kind: str
    text: str = Field(default="", sa_column=Column(Text, nullable=False))
    actor: str = ""
    job_id: int | None = Field(default=None, index=True)
    task_id: int | None = Field(default=None, sa_column=Column(_BIG, nullable=True))
    attempt_id: str | None = None
    node_id: str | None = None


class LogRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "log"

    attempt_id: str = Field(primary_key=True)
    sequence: int = Field(primary_key=True)
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """zlib-compressed UTF-8."""


class LimitRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "farm_limit"

    name: str = Field(primary_key=True)
    amount: int
    per: str
    """A LimitScope."""
    is_from_settings: bool = False


class StepLimitRow(SQLModel, table=True):
    """What each task of a step takes of a limit. The limit itself need not exist (any more)."""

    __tablename__: ClassVar[Any] = "step_limit"

    step_id: int = Field(primary_key=True, foreign_key="step.id", ondelete="CASCADE")
    name: str = Field(primary_key=True)
    amount: int


class LearntFarmRow(SQLModel, table=True):
    """One row: what the run-time model has learnt of device models and nodes."""

    __tablename__: ClassVar[Any] = "learnt_farm"

    id: int | None = Field(default=None, primary_key=True)
    state: dict[str, Any] = Field(sa_column=_json())


class LearntStepRow(SQLModel, table=True):
    """What the run-time model has learnt of a step; goes with its job."""

    __tablename__: ClassVar[Any] = "learnt_step"

    step_id: int = Field(primary_key=True, foreign_key="step.id", ondelete="CASCADE")
    state: dict[str, Any] = Field(sa_column=_json())


class ForecastRow(SQLModel, table=True):
    """When a job was expected to end, as it passed a mark."""

    __tablename__: ClassVar[Any] = "forecast"

    job_id: int = Field(primary_key=True, foreign_key="job.id", ondelete="CASCADE")
    mark: int = Field(primary_key=True)
    """Percent of its tasks that had ended."""
    at: float
    likely_s: float
    worst_s: float
    """From `at` on; 9 times in 10 not more."""


class PolicyChangeRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "policy_change"

    id: int | None = Field(default=None, primary_key=True)
    at: float
    policy: str
    weights: dict[str, Any] = Field(sa_column=_json())


class TokenRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "token"
    __table_args__ = (UniqueConstraint("name"),)

    digest: str = Field(primary_key=True)
    """SHA-256 of the token: the database never holds a usable one."""
    name: str
    user: str
    role: str
    """"admin", "user", or "node": that one may ask for its own account at the broker, no more."""
    created_at: float


class InviteRow(SQLModel, table=True):
    """A code with which a machine may join, once."""

    __tablename__: ClassVar[Any] = "invite"

    digest: str = Field(primary_key=True)
    """SHA-256 of the code."""
    node_id: str | None = None
    """The one name that may join by it; None: any that is free."""
    needs_approval: bool
    made_by: str
    made_at: float
    until: float
    used_at: float | None = None
    used_by: str | None = None
    """The node that joined by it."""


class IdempotencyRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "idempotency"

    key: str = Field(primary_key=True)
    digest: str
    """SHA-256 of the request, so that a key used for another request is refused."""
    job_id: int = Field(foreign_key="job.id", ondelete="CASCADE")
    created_at: float


class AuditRow(SQLModel, table=True):
    """What somebody asked for through the API. Rows are added, never changed."""

    __tablename__: ClassVar[Any] = "audit"

    id: int | None = Field(default=None, sa_column=Column(_BIG, primary_key=True, autoincrement=True))
    at: float
    actor: str
    token: str
    """The token's name."""
    ip: str
    method: str
    path: str
    target: str
    before: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON, nullable=True))
    after: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON, nullable=True))
    status: int


class HookCursorRow(SQLModel, table=True):
    """How far events have been looked at for hooks, and from which on each hook is told of all jobs."""

    __tablename__: ClassVar[Any] = "hook_cursor"

    name: str = Field(primary_key=True)
    event_id: int = Field(sa_column=Column(BigInteger, nullable=False))


class HookCallRow(SQLModel, table=True):
    """A call of a hook that is owed, or was made lately."""

    __tablename__: ClassVar[Any] = "hook_call"
    __table_args__ = (UniqueConstraint("event_id", "hook"), Index("hook_call_due", "over_at", "due_at"))

    id: int | None = Field(default=None, sa_column=Column(_BIG, primary_key=True, autoincrement=True))
    event_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    hook: str
    event: str
    job_id: int = Field(foreign_key="job.id", index=True, ondelete="CASCADE")
    at: float
    text: str = Field(default="", sa_column=Column(Text, nullable=False))
    tries: int = 0
    due_at: float
    over_at: float | None = None
    """When it went well or was given up."""
    error: str = Field(default="", sa_column=Column(Text, nullable=False))
