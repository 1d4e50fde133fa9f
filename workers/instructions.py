"""What an agent is to do next: what `workers.lifecycle` gives out, and `workers.supervisor` carries out."""

from __future__ import annotations

from dataclasses import dataclass

from farm.model.ids import AttemptId
from farm.model.states import Outcome
from farm.wire.messages import Finished, Order, Started, StepScript


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """Where an attempt's private directory is: below `directory`, by job and attempt."""

    directory: str
    job_uid: str


def stage_place(script: StepScript) -> StagePlace | None:
    """None for a step that writes where it likes."""
    if script.output is None or script.output.directory_parameter not in script.parameters:
        return None
    return StagePlace(
        directory=script.parameters[script.output.directory_parameter][1],
        job_uid=script.job_uid,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Write these into the journal, then say `Recorded`."""

    attempts: tuple[tuple[AttemptId, StagePlace | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartHost:
    host_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnHost:
    host_id: int
    script: StepScript
    order: Order


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHost:
    """Ask the host to end its attempt."""

    host_id: int
    reason: str
    outcome: Outcome
    takes_output: bool = False
    """Once it has ended, its files count if they are whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillHost:
    """End the host's process and everything it started."""

    host_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireHost:
    """Let an idle host go."""

    host_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    item: Started | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """The farm seems not to know this attempt's end yet."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The farm has these ends: drop the reports, remove the private directories."""

    attempts: tuple[tuple[AttemptId, StagePlace | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHeartbeat:
    sequence: int
    attempts: tuple[AttemptId, ...]
    is_full: bool
    """With capabilities."""
    is_draining: bool
    fault: str = ""
    """Why the node takes no work, found out by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeWork:
    """Consume the launch queue, or stop doing so."""

    is_wanted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """One line for the agent's log."""

    text: str


Instruction = (
    Record
    | StartHost
    | RunOnHost
    | CancelHost
    | KillHost
    | RetireHost
    | Report
    | Resend
    | Forget
    | SendHeartbeat
    | TakeWork
    | Say
)
