"""What happens to an agent: what `workers.lifecycle` takes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.model.ids import AttemptId
from farm.wire.messages import Finished, HeartbeatAnswer, Launch, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConnected:
    """The agent consumes its queues (again); before the first time it says nothing to the farm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReceived:
    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The journal holds these attempts."""

    attempt_ids: tuple[AttemptId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReceived:
    stop: Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswered:
    answer: HeartbeatAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsStored:
    """The farm has stored these attempts' ends."""

    attempt_ids: tuple[AttemptId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloAsked:
    """The farm wants a full heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadsChanged:
    """A device crossed a threshold: the farm should hear of it before the next heartbeat is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFailed:
    """A device is lost, for as long as this agent lives."""

    device_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesChanged:
    """The node has other devices now: a GPU was cut up anew."""

    slots: Mapping[str, int]
    """As in Rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReady:
    host_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStarted:
    host_id: int
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFinished:
    host_id: int
    finished: Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDied:
    """The host's process is gone, and so is every process that it started."""

    host_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wedged:
    """A process of an attempt cannot be killed: it hangs in the kernel."""

    attempt_id: AttemptId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwedged:
    """It has gone after all."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """Take no more work; hand back what still runs after `grace_s`."""

    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


Event = (
    BrokerConnected
    | LaunchReceived
    | Recorded
    | StopReceived
    | HeartbeatAnswered
    | ReportsStored
    | HelloAsked
    | LoadsChanged
    | DeviceFailed
    | DevicesChanged
    | HostReady
    | HostStarted
    | HostFinished
    | HostDied
    | Wedged
    | Unwedged
    | DrainAsked
    | Tick
)
