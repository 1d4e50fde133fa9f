"""Jobs, their settings, steps, and what a task is expected to write."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from farm.model.ids import JobId, StepId, TaskId
from farm.model.machines import Demand
from farm.model.stalls import StallPolicy
from farm.model.states import JobState, TaskState


class Tag(StrEnum):
    """The short form of a profile."""

    COMPUTE = "compute"
    BANDWIDTH = "bandwidth"
    BALANCED = "balanced"
    LATENCY = "latency"
    """Neither: the host or I/O holds the device up."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How a step's run time splits. Shares are 0 to 1 and need not add up to 1 (the rest is I/O, latency)."""

    compute_share: float = 0.5
    bandwidth_share: float = 0.5
    """Memory bandwidth."""
    confidence: float = 0.0
    source: str = "prior"
    """"user", "hint", "probe", "history" or "prior"."""
    tag: Tag = Tag.UNKNOWN
    device_model: str = ""
    """Of a probe: the device that the shares are relative to."""
    is_ray_traced: bool = False
    """Its arithmetic is done by ray-tracing hardware where there is any."""


class Isolation(StrEnum):
    """What may happen when an attempt's fate is unknown."""

    STAGED = "staged"
    """Writes into a private directory; a second start is harmless."""
    EXCLUSIVE = "exclusive"
    """Writes where it likes; no second start before the first is proven dead."""
    PROBE = "probe"
    """Nothing it writes is kept, so that a second start is harmless; what its device showed is learnt by the
    steps that depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """What each task of a step writes, for a job whose output can be redirected.

    The node gives the attempt a private directory as the value of the job parameter `directory_parameter`,
    checks the expected files there, and publishes them into that parameter's real value.
    """

    step: str
    directory_parameter: str
    """A PATH job parameter of the template; its value is the final directory."""
    file_pattern: str
    """File name relative to the directory, `#` runs stand for the frame: "shot_####.png"."""
    frames_parameter: str | None = None
    """The INT or CHUNK[INT] task parameter that holds the frame(s); None: one file, no `#`."""
    part_parameter: str | None = None
    """The INT task parameter that numbers the parts of a frame, each a file of its own: `part_name`."""
    is_image: bool = True
    """Decode the files fully before accepting them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    priority: int = 50
    """0 to 100; higher first."""
    user: str = ""
    project: str = ""
    """Within whose share of the farm the user has theirs; empty: none."""
    pool: str | None = None
    is_paused: bool = False
    max_retries: int = 2
    """Failures of the job's own making that each task may have before it is failed, on top of the first."""
    max_failed_tasks: int = 100
    """The job is stopped when more tasks have failed."""
    max_running: int | None = None
    limits: dict[str, int] = field(default_factory=dict)
    """What each of its tasks takes of the farm's limits at least, such as {"arnold": 1}."""
    preempts: bool = False
    """Running tasks of a lower priority may be stopped for its own, where the farm allows it."""
    depends_on: tuple[JobId, ...] = ()
    frame_by_frame: bool = False
    """Frames wait for the same frames of the steps before them, and of `depends_on`, not for the whole."""
    replace_existing: bool = False
    """Move files that are in the way aside, instead of failing."""
    tag: Tag | None = None
    """What the user says the work is; None: find out."""
    reverse: bool = False
    """Hand tasks out from the last to the first."""
    order: str = ""
    """`forward`, `reverse`, `first-middle-last` or `every-N`; empty: as `reverse` says."""
    trust_scripts: bool = False
    """Let scripts in scene files run (Blender drivers and the like)."""
    hooks: tuple[str, ...] = ()
    """Names of the farm's hooks that are called when the job is done, failed or stalls."""
    timeout_s: float | None = None
    """An attempt that runs longer is stopped as stalled."""
    on_stall: StallPolicy | None = None
    """What is done about stalled attempts; None: what the farm does."""
    keep_sessions: bool = False
    """Enter a step's environments once for several tasks on a node, not for each."""


MAX_TASKS_PER_JOB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One request to render: the body of `POST /api/v1/jobs`."""

    name: str
    template: dict[str, Any]
    """An OpenJD job template, as an object."""
    parameters: dict[str, str] = field(default_factory=dict)
    """Job parameter values as text; paths absolute."""
    settings: JobSettings = JobSettings()
    outputs: tuple[OutputSpec, ...] = ()
    """Steps that are not named here run in exclusive mode."""
    kind: str = "openjd"
    """The plugin that made it; its output parser reads the log."""
    hints: dict[str, float | str] = field(default_factory=dict)
    """What the client knows of the scene's cost: "engine", "samples", "width", "height", "texture_mib" ..."""
    software: tuple[str, ...] = ()
    """Renderers that a node must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tasks by state. The sum is the number of tasks."""

    waiting: int = 0
    ready: int = 0
    assigned: int = 0
    running: int = 0
    cancelling: int = 0
    held: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, state) for state in TaskState)

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.cancelled

    @property
    def live(self) -> int:
        return self.assigned + self.running + self.cancelling


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A part of a job with its own script."""

    id: StepId
    job_id: JobId
    name: str
    position: int
    depends_on: tuple[str, ...] = ()
    """Names of steps of the same job."""
    by_frame: tuple[str, ...] = ()
    """Those of `depends_on` that are waited for frame by frame, and "#12" for job 12."""
    demand: Demand = Demand()
    profile: Profile = Profile()
    isolation: Isolation = Isolation.EXCLUSIVE
    output: OutputSpec | None = None
    frames: str | None = None
    """The frames of the whole step in canonical form, for people; None when it has no frame parameter."""
    counts: Counts = Counts()
    mean_runtime_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one person submitted, whole."""

    id: JobId
    uid: str
    """A random UUID: names the job's private directories, so that two farms cannot meet in one."""
    name: str
    kind: str
    state: JobState
    settings: JobSettings
    submitted_at: float
    """Seconds since the epoch, on the database's clock, as all times below."""
    finished_at: float | None = None
    steps: tuple[Step, ...] = ()
    output_directories: tuple[str, ...] = ()
    reason: str = ""
    """One line: why it failed or waits."""
    edition: int = 1
    """Grows when what its tasks are changes: frames were appended, a time limit set."""

    @property
    def counts(self) -> Counts:
        return Counts(
            **{state.value: sum(getattr(s.counts, state) for s in self.steps) for state in TaskState}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The smallest thing dispatched: a frame, or a chunk of frames."""

    id: TaskId
    job_id: JobId
    step_id: StepId
    step: str
    index: int
    label: str
    """For people: "7", "1-4", "Frame=7 Tile=2"."""
    state: TaskState
    starts: int = 0
    """How many attempts were made (G3: a task may be started more than once)."""
    failures: int = 0
    """Those that count against the job's retries."""
    generation: int = 1
    """Grows when a person requeues a done task."""
    node_id: str | None = None
    progress: float | None = None
    """0 to 1, of the live attempt."""
    runtime_s: float | None = None
    load_s: float | None = None
    """Of `runtime_s`: what the renderer took to load the scene; None: it does not say, or had it loaded."""
    reason: str = ""
    warnings: tuple[str, ...] = ()
