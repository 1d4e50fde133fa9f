"""What the farm and its nodes say to each other. `docs/protocol.md` has the answer to every message.

Each message is a frozen dataclass; `dump` and `load` are the only serialisers. A newer peer may say what this
version does not know: unknown fields are ignored, unknown values of an enum are read as what does no harm
(`_END`, `_PROBE`, `_MACHINE`), and what cannot be read at all raises `UnknownMessage` and is parked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from farm.errors import FarmError
from farm.model.attempts import DeviceUsage, PublishedFile
from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.machines import Capabilities, DeviceKind, DeviceLoad
from farm.model.probes import Probe, Tier
from farm.model.stalls import Evidence
from farm.model.states import Outcome
from farm.model.work import Isolation, OutputSpec, Tag

WIRE_VERSION = 1
OLDEST_WIRE = max(WIRE_VERSION - 1, 1)
"""Farm and nodes may be one version apart, so that they can be upgraded one after the other."""


class UnknownMessage(FarmError):
    """A message that this version cannot read."""


# --- what only a newer version knows ------------------------------------------------------------------


def _is_news(value: Any, kind: type[StrEnum]) -> bool:
    return isinstance(value, str) and value not in [member.value for member in kind]


def _known_end(value: Any) -> Any:
    """An attempt has ended for a reason that has no name here: it is over, and the job is not to blame."""
    return Outcome.NODE_LOST if _is_news(value, Outcome) else value


def _known_probe(value: Any) -> Any:
    """What a probe was taken for is unknown, its shares are still shares."""
    if not isinstance(value, dict):
        return value
    tag = {"tag": Tag.UNKNOWN} if _is_news(value.get("tag"), Tag) else {}
    tier = {"tier": Tier.NONE} if _is_news(value.get("tier"), Tier) else {}
    return value | tag | tier


def _known_devices(value: Any) -> Any:
    """A device of a kind that this version knows nothing of is left out: the node's others can work."""
    devices = value.get("devices") if isinstance(value, dict) else None
    if not isinstance(devices, list):
        return value
    known = [d for d in devices if not (isinstance(d, dict) and _is_news(d.get("kind"), DeviceKind))]
    return value | {"devices": known}


_END = BeforeValidator(_known_end)
_PROBE = BeforeValidator(_known_probe)
_MACHINE = BeforeValidator(_known_devices)


# --- farm -> node -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScript:
    """What all attempts of a step share."""

    job_id: JobId
    job_uid: str
    job_name: str
    step: str
    kind: str
    """The plugin whose parser reads the output."""
    template: dict[str, Any]
    """The OpenJD job template."""
    parameters: dict[str, tuple[str, str]]
    """Job parameter name -> (OpenJD type, value as text), defaults filled in."""
    output: OutputSpec | None = None
    isolation: Isolation = Isolation.EXCLUSIVE
    """One that is not known is parked with its launch: what it may do to the output cannot be told. The
    lease runs out, and the task goes to another node."""
    timeout_s: float | None = None
    keeps_sessions: bool = False
    """One OpenJD session may serve several attempts of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One attempt to be made."""

    attempt_id: AttemptId
    task_id: TaskId
    label: str
    parameters: dict[str, tuple[str, str]]
    """Task parameter name -> (OpenJD type, value as text)."""
    files: tuple[str, ...] = ()
    """Expected names, relative to the output directory."""
    frames: tuple[int, ...] = ()
    generation: int = 1
    replace_existing: bool = False
    device_id: str = "cpu"
    assigned_at: float | None = None
    """When its lease began, by the farm's clock (seconds since 1970); None: the farm does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start these attempts. Sent to the node's Celery queue; safe to deliver twice."""

    script: StepScript
    orders: tuple[Order, ...]
    wire: int = WIRE_VERSION
    kind: Literal["launch"] = "launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End these attempts and report. Unknown ones are reported as cancelled too."""

    attempt_ids: tuple[AttemptId, ...]
    reason: str
    takes_output: bool = False
    """They have done their work and do not exit: once ended, accept their files if these are whole."""
    kind: Literal["stop"] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """Answers heartbeat `sequence`: leases of `keep` are renewed, `stop` must end now."""

    sequence: int
    keep: tuple[AttemptId, ...] = ()
    stop: tuple[AttemptId, ...] = ()
    refused: str = ""
    """Not empty: the farm does not take this node (another one of its name is alive; wire too old)."""
    heard_at: float | None = None
    """When the heartbeat was taken in, by the clock of `Order.assigned_at`; None: the farm does not say."""
    kind: Literal["heartbeat-answer"] = "heartbeat-answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsAccepted:
    """The farm has stored these attempts' ends: drop them from the spool, remove their staging."""

    attempt_ids: tuple[AttemptId, ...]
    kind: Literal["reports-accepted"] = "reports-accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TidyJob:
    """The job has ended: remove its private directories below these output directories."""

    job_uid: str
    directories: tuple[str, ...]
    kind: Literal["tidy-job"] = "tidy-job"


@dataclass(frozen=True, slots=True, kw_only=True)
class SayHello:
    """The farm does not know this node (or its capabilities): send a full heartbeat now."""

    kind: Literal["say-hello"] = "say-hello"


Control = Annotated[
    Stop | HeartbeatAnswer | ReportsAccepted | TidyJob | SayHello, Field(discriminator="kind")
]


# --- node -> farm -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """I am here, and I hold these attempts. Renews their leases."""

    node_id: NodeId
    session: str
    """A UUID made when the agent process started."""
    boot_id: str
    sequence: int
    attempts: tuple[AttemptId, ...] = ()
    """Everything received and not yet reported as ended."""
    capabilities: Annotated[Capabilities | None, _MACHINE] = None
    """On the first heartbeat of a session, when asked, and when they changed."""
    loads: tuple[DeviceLoad, ...] = ()
    disk_free_mib: int | None = None
    is_draining: bool = False
    evidence: tuple[Evidence, ...] = ()
    """What the attempts that run have been doing; those that have just begun are left out."""
    fault: str = ""
    """Not empty: this node should take no work until somebody has looked: "reboot needed"."""
    agent_version: str = ""
    wire: int = WIRE_VERSION
    kind: Literal["heartbeat"] = "heartbeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The attempt's renderer is being started."""

    attempt_id: AttemptId
    kind: Literal["started"] = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The attempt ended, and no process of it is left."""

    attempt_id: AttemptId
    outcome: Annotated[Outcome, _END]
    reason: str = ""
    exit_code: int | None = None
    is_final: bool = False
    """Trying again cannot help: the scene has no camera, the output exists already."""
    is_device_fault: bool = False
    """Its device failed; the node's other devices may try again."""
    files: tuple[PublishedFile, ...] = ()
    published_by: AttemptId | None = None
    """Whose files are under the final names: itself, or an earlier attempt whose publication it found
    committed and completed. None when nothing was published."""
    warnings: tuple[str, ...] = ()
    """Missing textures and libraries, one line each."""
    runtime_s: float = 0.0
    load_s: float | None = None
    """Seconds until the first frame began, where the parser can tell."""
    peak_memory_mib: int | None = None
    cpu_s: float | None = None
    usage: DeviceUsage | None = None
    """Of the attempt's GPUs; None on the CPU."""
    probe: Annotated[Probe | None, _PROBE] = None
    """What its first seconds on the GPU said of its demand."""
    stuck: str = ""
    """Not empty: the exception to the above, a process that not even SIGKILL has ended, mostly on a dead
    mount. Its node takes no more work until it is gone."""
    kind: Literal["finished"] = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Starts and ends, in order. Durable; spooled by the node until accepted."""

    node_id: NodeId
    session: str
    items: tuple[Annotated[Started | Finished, Field(discriminator="kind")], ...]
    wire: int = WIRE_VERSION
    kind: Literal["reports"] = "reports"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    attempt_id: AttemptId
    fraction: float | None = None
    """0 to 1 over the whole task."""
    message: str = ""
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of an attempt's output. `sequence` counts from 0; a doubled one is ignored."""

    attempt_id: AttemptId
    sequence: int
    text: str
    kind: Literal["log-chunk"] = "log-chunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Progress and log. May be lost without harm."""

    node_id: NodeId
    items: tuple[Annotated[Progress | LogChunk, Field(discriminator="kind")], ...]
    kind: Literal["telemetry"] = "telemetry"


FromNode = Annotated[Heartbeat | Reports | Telemetry, Field(discriminator="kind")]


# --- what could not be read -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedMessage:
    """A message that its receiver could not read, kept whole for a newer version or a person."""

    queue: str
    """Where it was on its way to."""
    by: str
    """Who could not read it."""
    reason: str
    body: str
    """Base64: it may be no text at all."""
    at: float = 0.0
    """Seconds since the epoch, by the clock of who parked it."""
    kind: Literal["parked"] = "parked"


# --- agent <-> session host (JSON lines over pipes, or the host's socket) -------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRun:
    """Agent to host: make this attempt. One at a time."""

    script: StepScript
    order: Order
    environment: dict[str, str] = field(default_factory=dict)
    """Variables for the renderer on top of the host's own (device isolation)."""
    allowed_roots: tuple[str, ...] = ()
    """Output directories must lie below one of these; empty: anywhere."""
    asks_before_publishing: bool = False
    """Send `HostRendered` when the processes have ended well, and heed the `HostVerdict`."""
    until: float | None = None
    """As in HostKeep."""
    kind: Literal["run"] = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKeep:
    """Agent to host: the running attempt may go on until then without another word from an agent."""

    until: float
    """Seconds of CLOCK_BOOTTIME, which both read on the same machine."""
    kind: Literal["keep"] = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLeave:
    """Agent to host: go, and leave nothing behind."""

    kind: Literal["leave"] = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCancel:
    """Agent to host: end the running attempt, kill what is left."""

    reason: str
    outcome: Annotated[Outcome, _END] = Outcome.CANCELLED
    takes_output: bool = False
    """As in Stop."""
    kind: Literal["cancel"] = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostVerdict:
    """Agent to host, the answer to `HostRendered`: publish the files, or fail the attempt."""

    attempt_id: AttemptId
    refusal: str = ""
    """Why it has failed, one line; empty: go on."""
    kind: Literal["verdict"] = "verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRendered:
    """Host to agent: the attempt's processes have ended well, and its files are not published yet."""

    attempt_id: AttemptId
    kind: Literal["rendered"] = "rendered"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReady:
    """Host to agent: can take a run."""

    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOutput:
    """Host to agent: decoded, capped output text of the running attempt."""

    text: str
    sequence: int = 0
    """Counts from 0 in each attempt."""
    kind: Literal["output"] = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvidence:
    """Host to agent: what the running attempt's processes have been doing."""

    evidence: Evidence
    kind: Literal["evidence"] = "evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHolds:
    """Host to the agent that has just connected to it: what another agent had it do.

    After it come the running attempt's output, from the first line, and its newest progress.
    """

    run: HostRun | None = None
    """The attempt that runs."""
    until: float | None = None
    """As last said by HostKeep."""
    ended: tuple[Finished, ...] = ()
    """The last ends, oldest first."""
    kind: Literal["holds"] = "holds"


ToHost = Annotated[HostRun | HostCancel | HostVerdict | HostKeep | HostLeave, Field(discriminator="kind")]
FromHost = Annotated[
    HostReady | Started | HostOutput | HostEvidence | Progress | HostRendered | Finished | HostHolds,
    Field(discriminator="kind"),
]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def dump(message: Any) -> bytes:
    """The message as one line of JSON."""
    kind: Any = type(message)
    return _adapter(kind).dump_json(message)


def load(kind: Any, data: bytes | str) -> Any:
    """Read a message of type (or union) `kind`; raises UnknownMessage.

    NUL characters, which PostgreSQL cannot hold in text, are read as U+FFFD.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    try:
        return _adapter(kind).validate_json(raw.replace(rb"\u0000", rb"\ufffd"))
    except ValidationError as error:
        raise _unknown(error) from error


def load_parsed(kind: Any, value: Any) -> Any:
    """As `load`, of JSON that somebody else has parsed; NUL characters stay."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise _unknown(error) from error


def _unknown(error: ValidationError) -> UnknownMessage:
    return UnknownMessage(f"unreadable message: {error.errors(include_url=False)[:2]}")
