"""What an agent does with its attempts, as a machine without I/O: `handle(event, now)` returns instructions.

An attempt on its node goes

    recording -> (unconfirmed) -> queued -> starting -> running -> ended -> forgotten

- *recording*: its launch has arrived, the journal is being written.
- *unconfirmed*: exclusive, and nobody knows how long its launch was on its way, so that the farm may have
  given it up: it starts only when a heartbeat answer says keep. A launch that is shown to be new skips this.
- *queued*: no slot of its device is free.
- *starting*, *running*: a session host has it.
- *ended*: its `Finished` waits for the farm's acceptance.

Every attempt that was received ends with exactly one `Finished`, whatever happens in between. `now` is
seconds of CLOCK_BOOTTIME (it goes on while the machine is suspended) and always an argument.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from farm.model.ids import AttemptId, NodeId
from farm.model.states import Outcome
from farm.model.work import Isolation
from farm.text import clean
from farm.wire.messages import Finished, HeartbeatAnswer, Launch, Order, Started, StepScript, Stop
from workers.events import (
    BrokerConnected,
    DeviceFailed,
    DevicesChanged,
    DrainAsked,
    Event,
    HeartbeatAnswered,
    HelloAsked,
    HostDied,
    HostFinished,
    HostReady,
    HostStarted,
    LaunchReceived,
    LoadsChanged,
    Recorded,
    ReportsStored,
    StopReceived,
    Tick,
    Unwedged,
    Wedged,
)
from workers.heartbeats import NEWS_S, Heartbeats
from workers.instructions import (
    CancelHost,
    Forget,
    Instruction,
    KillHost,
    Record,
    Report,
    Resend,
    RetireHost,
    RunOnHost,
    Say,
    SendHeartbeat,
    StagePlace,
    StartHost,
    TakeWork,
    stage_place,
)

REMEMBERED = 10_000
"""Ids of forgotten attempts that are kept, so that a late double of their launch starts nothing."""
HOST_IDLE_S = 300.0
"""A warm session host that had nothing to do for this long is let go."""
HOST_START_S = 60.0
"""A session host that is not ready after this long is replaced."""
START_TRIES = 3
"""Session hosts that may die before an attempt has started on them."""
KILL_MARGIN_S = 1.0
"""A session host kills its renderer itself within `kill_grace_s`; this much later it is killed whole."""
LOOK_AT_FILES_S = 60.0
"""For a session host to verify and publish what a renderer that had to be ended has written."""


class Phase(StrEnum):
    RECORDING = "recording"
    UNCONFIRMED = "unconfirmed"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


_ON_HOST = frozenset({Phase.STARTING, Phase.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What does not change while an agent lives."""

    node_id: NodeId
    slots: Mapping[str, int]
    """Device id -> attempts at once."""
    heartbeat_s: float
    fence_s: float
    kill_grace_s: float
    lease_s: float = 30.0
    """After so long without this node the farm gives its attempts to others."""


@dataclass(slots=True, kw_only=True)
class Held:
    """An attempt that this node has and the farm has not accepted the end of."""

    attempt_id: AttemptId
    phase: Phase
    stage: StagePlace | None = None
    script: StepScript | None = None
    """None once ended."""
    order: Order | None = None
    renewed_at: float = 0.0
    """When the last heartbeat was sent that the farm answered with keep, or took in before it assigned this
    attempt: its lease began no earlier. Of a staged one at first, when it was received."""
    needs_confirming: bool = False
    """It does not begin before such an answer."""
    host_id: int | None = None
    tries: int = 0
    stopping: tuple[Outcome, str] | None = None
    kill_at: float | None = None

    @property
    def device_id(self) -> str:
        """One, or several joined by commas."""
        return self.order.device_id if self.order is not None else ""

    @property
    def device_ids(self) -> tuple[str, ...]:
        return tuple(self.device_id.split(","))

    @property
    def is_exclusive(self) -> bool:
        return self.script is not None and self.script.isolation is Isolation.EXCLUSIVE


@dataclass(slots=True, kw_only=True)
class _Host:
    is_ready: bool = False
    is_leaving: bool = False
    attempt_id: AttemptId | None = None
    job_uid: str = ""
    """Of its last attempt: its sessions are warm for that job."""
    started_at: float = 0.0
    idle_since: float = 0.0


@dataclass(slots=True, kw_only=True)
class Lifecycle:
    """All that an agent knows of its attempts and hosts. Owned by one thread."""

    rules: Rules
    heartbeats: Heartbeats
    held: dict[AttemptId, Held] = field(default_factory=dict)
    is_draining: bool = False
    refusal: str = ""
    """Why the farm does not take this node; empty when it does."""
    wedged: dict[AttemptId, str] = field(default_factory=dict)
    """Attempts whose processes cannot be killed, and what is known of those."""
    _hosts: dict[int, _Host] = field(default_factory=dict)
    _next_host_id: int = 1
    _waiting: dict[str, deque[AttemptId]] = field(default_factory=dict)
    _busy: dict[str, int] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)
    """Device id -> why it is of no use any more."""
    _forgotten: OrderedDict[AttemptId, None] = field(default_factory=OrderedDict)
    _has_said_hello: bool = False
    _has_connected: bool = False
    _drain_at: float | None = None

    @property
    def live(self) -> int:
        """Attempts that have not ended."""
        return sum(held.phase is not Phase.ENDED for held in self.held.values())

    @property
    def is_busy(self) -> bool:
        """Time matters: look again within a quarter of a second, not only at the next heartbeat."""
        return self._drain_at is not None or any(h.phase is not Phase.ENDED for h in self.held.values())

    def hosts(self) -> tuple[int, ...]:
        return tuple(self._hosts)

    def restore(
        self, *, ended: Iterable[tuple[AttemptId, StagePlace | None]], forgotten: Iterable[AttemptId]
    ) -> None:
        """Take over what the journal and the spool hold of earlier sessions."""
        for attempt_id, stage in ended:
            self.held[attempt_id] = Held(attempt_id=attempt_id, phase=Phase.ENDED, stage=stage)
        for attempt_id in forgotten:
            self._remember(attempt_id)

    def take_over(self, *, script: StepScript, order: Order, until: float | None, now: float) -> int:
        """Take over an attempt that runs on a host which an earlier session has started; returns its id.

        until: what `fence_at` said to that host last.
        """
        host_id = self._next_host_id
        self._next_host_id += 1
        self._hosts[host_id] = _Host(
            is_ready=True, attempt_id=order.attempt_id, job_uid=script.job_uid, started_at=now, idle_since=now
        )
        held = Held(
            attempt_id=order.attempt_id,
            phase=Phase.STARTING,
            stage=stage_place(script),
            script=script,
            order=order,
            renewed_at=now if until is None else min(now, until - self.rules.fence_s),
            host_id=host_id,
        )
        if not held.is_exclusive:
            held.renewed_at = now
        self.held[order.attempt_id] = held
        for device_id in held.device_ids:
            self._busy[device_id] = self._busy.get(device_id, 0) + 1
        return host_id

    def fence_at(self, attempt_id: AttemptId, now: float) -> float:
        """Until when the attempt may run on if this agent says nothing more from `now` on.

        An exclusive one: as long as this agent would let it. A staged one can do no harm, and is of use until
        the farm gives it to another node.
        """
        held = self.held.get(attempt_id)
        if held is not None and held.is_exclusive:
            return held.renewed_at + self.rules.fence_s
        return now + self.rules.lease_s

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take the event in; returns what to do, in order."""
        out: list[Instruction] = []
        match event:
            case Tick():
                self._tick(now, out)
            case LaunchReceived(launch=launch):
                self._launch(launch, now, out)
            case Recorded(attempt_ids=attempt_ids):
                self._recorded(attempt_ids, now, out)
            case HostReady(host_id=host_id):
                self._host_ready(host_id, now, out)
            case HostStarted(host_id=host_id, attempt_id=attempt_id):
                self._host_started(host_id, attempt_id, out)
            case HostFinished(host_id=host_id, finished=finished):
                self._host_finished(host_id, finished, now, out)
            case HostDied(host_id=host_id, reason=reason):
                self._host_died(host_id, reason, now, out)
            case StopReceived(stop=stop):
                self._stop_received(stop, now, out)
            case HeartbeatAnswered(answer=answer):
                self._answered(answer, now, out)
            case ReportsStored(attempt_ids=attempt_ids):
                self._stored(attempt_ids, out)
            case HelloAsked():
                self._has_said_hello = False
                if self._has_connected:
                    self._heartbeat(now, out)
            case LoadsChanged():
                self.heartbeats.soon(now)
            case DeviceFailed(device_id=device_id, reason=reason):
                self._device_failed(device_id, reason, now, out)
            case DevicesChanged(slots=slots):
                self._devices_changed(slots, now, out)
            case BrokerConnected():
                self._has_connected = True
                self._heartbeat(now, out)
            case Wedged(attempt_id=attempt_id, reason=reason):
                self._now_wedged(attempt_id, reason, now, out)
            case Unwedged(attempt_id=attempt_id):
                self._no_longer_wedged(attempt_id, now, out)
            case DrainAsked(grace_s=grace_s):
                self._drain(grace_s, now, out)
        return out

    # --- attempts come ---

    def _launch(self, launch: Launch, now: float, out: list[Instruction]) -> None:
        script = launch.script
        stage = stage_place(script)
        fresh: list[tuple[AttemptId, StagePlace | None]] = []
        is_exclusive = script.isolation is Isolation.EXCLUSIVE
        for order in launch.orders:
            known = self.held.get(order.attempt_id)
            if known is not None:
                if known.phase is Phase.ENDED:
                    out.append(Resend(attempt_id=order.attempt_id))
                continue
            if order.attempt_id in self._forgotten:
                continue
            # The lease began when it was assigned, however long the launch was on its way. What could be
            # fenced too late begins at once only if that is known to be no longer ago than we think.
            since: float | None = now
            if is_exclusive:
                # What has less than half of its time left is to be renewed first.
                within_s = self.rules.fence_s / 2
                since = self.heartbeats.assigned_since(order.assigned_at, now, within_s=within_s)
            held = Held(
                attempt_id=order.attempt_id,
                phase=Phase.RECORDING,
                stage=stage,
                script=script,
                order=order,
                renewed_at=now if since is None else since,
                needs_confirming=since is None,
            )
            self.held[order.attempt_id] = held
            if self._is_closed:
                self._end(held, Outcome.NODE_LOST, self._handing_back(), out)
            elif wrong := self._cannot_use(held.device_ids):
                self._end(held, Outcome.NODE_FAULT, wrong, out)
            else:
                fresh.append((order.attempt_id, stage))
        if fresh:
            out.append(Record(attempts=tuple(fresh)))

    def _cannot_use(self, device_ids: Iterable[str]) -> str:
        """Why an attempt cannot run on these devices; empty: it can."""
        for device_id in device_ids:
            if device_id not in self.rules.slots:
                return f"{self.rules.node_id} has no device {device_id!r}"
            if device_id in self._failed:
                return f"{device_id} of {self.rules.node_id}: {self._failed[device_id]}"
        return ""

    def _recorded(self, attempt_ids: Iterable[AttemptId], now: float, out: list[Instruction]) -> None:
        asks = False
        for attempt_id in attempt_ids:
            held = self.held.get(attempt_id)
            if held is None or held.phase is not Phase.RECORDING:
                continue  # stopped meanwhile
            if held.needs_confirming:
                held.phase = Phase.UNCONFIRMED
                asks = True
            else:
                self._queue(held)
        if asks:
            self._heartbeat(now, out)
        self._fill(now, out)

    def _queue(self, held: Held, *, first: bool = False) -> None:
        held.phase = Phase.QUEUED
        line = self._waiting.setdefault(held.device_id, deque())
        if first:
            line.appendleft(held.attempt_id)
        else:
            line.append(held.attempt_id)

    def _fill(self, now: float, out: list[Instruction]) -> None:
        """Give free slots to waiting attempts."""
        for device_id, line in self._waiting.items():
            parts = device_id.split(",")
            while line and all(self._busy.get(part, 0) < self.rules.slots.get(part, 0) for part in parts):
                held = self.held.get(line.popleft())
                if held is None or held.phase is not Phase.QUEUED or held.script is None:
                    continue  # ended while it waited
                for part in parts:
                    self._busy[part] = self._busy.get(part, 0) + 1
                held.phase = Phase.STARTING
                host_id = self._idle_host(held.script.job_uid)
                if host_id is None:
                    host_id = self._next_host_id
                    self._next_host_id += 1
                    self._hosts[host_id] = _Host(started_at=now, idle_since=now)
                    out.append(StartHost(host_id=host_id))
                self._give(host_id, held, out)

    def _idle_host(self, job_uid: str) -> int | None:
        """A host without an attempt; one that is warm for the job if there is any, else the latest used."""
        idle = [
            (host.job_uid == job_uid, host.idle_since, host_id)
            for host_id, host in self._hosts.items()
            if host.attempt_id is None and not host.is_leaving
        ]
        return max(idle)[2] if idle else None

    def _give(self, host_id: int, held: Held, out: list[Instruction]) -> None:
        host = self._hosts[host_id]
        host.attempt_id = held.attempt_id
        held.host_id = host_id
        if host.is_ready and held.script is not None and held.order is not None:
            host.job_uid = held.script.job_uid
            out.append(RunOnHost(host_id=host_id, script=held.script, order=held.order))

    # --- hosts speak ---

    def _host_ready(self, host_id: int, now: float, out: list[Instruction]) -> None:
        host = self._hosts.get(host_id)
        if host is None or host.is_ready:
            return
        host.is_ready = True
        held = self.held.get(host.attempt_id) if host.attempt_id is not None else None
        if held is not None:
            self._give(host_id, held, out)
        else:
            self._fill(now, out)

    def _host_started(self, host_id: int, attempt_id: AttemptId, out: list[Instruction]) -> None:
        held = self._on_host(host_id, attempt_id)
        if held is not None and held.phase is Phase.STARTING:
            held.phase = Phase.RUNNING
            out.append(Report(item=Started(attempt_id=attempt_id)))

    def _host_finished(self, host_id: int, finished: Finished, now: float, out: list[Instruction]) -> None:
        held = self._on_host(host_id, finished.attempt_id)
        if held is None:
            out.append(Say(text=f"host {host_id} finished {finished.attempt_id}, which it was not given"))
            return
        self._leave_host(held, now)
        self._conclude(held, finished, out)
        self._fill(now, out)

    def _host_died(self, host_id: int, reason: str, now: float, out: list[Instruction]) -> None:
        host = self._hosts.pop(host_id, None)
        if host is None:
            return
        held = self.held.get(host.attempt_id) if host.attempt_id is not None else None
        if held is not None and held.phase in _ON_HOST:
            had_started = held.phase is Phase.RUNNING
            self._leave_host(held, now)
            held.tries += 1
            if held.stopping is not None:
                self._end(held, *held.stopping, out)
            elif had_started:
                self._end(held, Outcome.NODE_FAULT, f"its session host died: {reason}", out)
            elif held.tries >= START_TRIES:
                self._end(held, Outcome.NODE_FAULT, f"no session host could be started: {reason}", out)
            elif self._is_closed:
                self._end(held, Outcome.NODE_LOST, self._handing_back(), out)
            else:
                self._queue(held, first=True)
        self._fill(now, out)

    def _on_host(self, host_id: int, attempt_id: AttemptId) -> Held | None:
        host = self._hosts.get(host_id)
        if host is None or host.attempt_id != attempt_id:
            return None
        held = self.held.get(attempt_id)
        return held if held is not None and held.phase in _ON_HOST else None

    def _leave_host(self, held: Held, now: float) -> None:
        host = self._hosts.get(held.host_id) if held.host_id is not None else None
        if host is not None:
            host.attempt_id = None
            host.idle_since = now
        held.host_id = None
        for device_id in held.device_ids:
            self._busy[device_id] -= 1

    # --- attempts end ---

    def _stop(
        self,
        held: Held,
        outcome: Outcome,
        reason: str,
        grace_s: float,
        now: float,
        out: list[Instruction],
        *,
        takes_output: bool = False,
    ) -> None:
        """End the attempt; a second wish keeps the first reason but may shorten the grace."""
        if held.phase is Phase.ENDED:
            return
        if held.phase not in _ON_HOST:
            self._end(held, outcome, reason, out)
            return
        host_id = held.host_id
        if host_id is None:
            return
        if not self._hosts[host_id].is_ready:
            # The host has not been given it: nothing to wait for.
            self._leave_host(held, now)
            self._end(held, outcome, reason, out)
            return
        kill_at = now + grace_s
        if held.stopping is None:
            held.stopping = (outcome, reason)
            held.kill_at = kill_at
            out.append(CancelHost(host_id=host_id, reason=reason, outcome=outcome, takes_output=takes_output))
        elif held.kill_at is not None:
            held.kill_at = min(held.kill_at, kill_at)

    def _end(self, held: Held, outcome: Outcome, reason: str, out: list[Instruction]) -> None:
        self._conclude(
            held,
            Finished(
                attempt_id=held.attempt_id, outcome=outcome, reason=clean(reason, limit=500, one_line=True)
            ),
            out,
        )

    def _conclude(self, held: Held, finished: Finished, out: list[Instruction]) -> None:
        lost = next((device_id for device_id in held.device_ids if device_id in self._failed), None)
        if lost is not None and finished.outcome not in (Outcome.SUCCEEDED, Outcome.CANCELLED):
            # A renderer that its GPU took along blames itself: it is not to pay for that with a retry.
            outcome = Outcome.NODE_LOST if finished.outcome is Outcome.NODE_LOST else Outcome.NODE_FAULT
            finished = replace(
                finished,
                outcome=outcome,
                reason=self._cannot_use([lost]),
                is_device_fault=True,
                is_final=False,
            )
        held.phase = Phase.ENDED
        held.script = held.order = held.stopping = held.kill_at = None
        out.append(Report(item=finished))

    def _stop_received(self, stop: Stop, now: float, out: list[Instruction]) -> None:
        grace_s = self.rules.kill_grace_s + KILL_MARGIN_S
        if stop.takes_output:
            grace_s += LOOK_AT_FILES_S
        for attempt_id in stop.attempt_ids:
            held = self.held.get(attempt_id)
            if held is None:
                # Its launch may still be on the way, in the other queue: it must then start nothing.
                held = Held(attempt_id=attempt_id, phase=Phase.RECORDING)
                self.held[attempt_id] = held
                self._end(held, Outcome.CANCELLED, "not running here", out)
            elif held.phase is Phase.ENDED:
                out.append(Resend(attempt_id=attempt_id))
            else:
                takes = stop.takes_output
                self._stop(held, Outcome.CANCELLED, stop.reason, grace_s, now, out, takes_output=takes)
        self._fill(now, out)

    def _stored(self, attempt_ids: Iterable[AttemptId], out: list[Instruction]) -> None:
        gone: list[tuple[AttemptId, StagePlace | None]] = []
        for attempt_id in attempt_ids:
            held = self.held.get(attempt_id)
            if held is None or held.phase is not Phase.ENDED:
                continue
            del self.held[attempt_id]
            self._remember(attempt_id)
            gone.append((attempt_id, held.stage))
        if gone:
            out.append(Forget(attempts=tuple(gone)))

    def _remember(self, attempt_id: AttemptId) -> None:
        self._forgotten[attempt_id] = None
        if len(self._forgotten) > REMEMBERED:
            self._forgotten.popitem(last=False)

    # --- leases ---

    def _heartbeat(self, now: float, out: list[Instruction]) -> None:
        out.append(
            SendHeartbeat(
                sequence=self.heartbeats.send(now, every_s=self.rules.heartbeat_s),
                attempts=tuple(self.held),
                is_full=not self._has_said_hello,
                is_draining=self.is_draining,
                fault=self._wedged_because(),
            )
        )
        self._has_said_hello = True

    def _device_failed(self, device_id: str, reason: str, now: float, out: list[Instruction]) -> None:
        """End what runs or waits on the device; it runs elsewhere, no retry spent."""
        if device_id in self._failed:
            return
        self._failed[device_id] = reason
        for held in list(self.held.values()):
            if held.phase is Phase.ENDED or device_id not in held.device_ids:
                continue
            grace_s = self.rules.kill_grace_s + KILL_MARGIN_S
            outcome = Outcome.NODE_FAULT if held.phase in _ON_HOST else Outcome.NODE_LOST
            self._stop(held, outcome, self._cannot_use([device_id]), grace_s, now, out)
        self.heartbeats.soon(now)
        self._fill(now, out)

    def _devices_changed(self, slots: Mapping[str, int], now: float, out: list[Instruction]) -> None:
        for device_id in self.rules.slots.keys() - slots.keys():
            self._device_failed(device_id, "it is there no more", now, out)
            # An instance that is cut the same way again may have the name that it had.
            del self._failed[device_id]
            self._waiting.pop(device_id, None)
        self.rules = replace(self.rules, slots=dict(slots))
        self._has_said_hello = False
        self._heartbeat(now, out)

    def _answered(self, answer: HeartbeatAnswer, now: float, out: list[Instruction]) -> None:
        sent_at = self.heartbeats.answered(answer)
        if sent_at is not None:
            for attempt_id in answer.keep:
                held = self.held.get(attempt_id)
                if held is None:
                    continue
                held.renewed_at = max(held.renewed_at, sent_at)
                held.needs_confirming = False
                if held.phase is Phase.UNCONFIRMED:
                    self._queue(held)
            self._take_refusal(answer.refused, now, out)
        for attempt_id in answer.stop:
            held = self.held.get(attempt_id)
            if held is not None:
                grace_s = self.rules.kill_grace_s + KILL_MARGIN_S
                self._stop(
                    held, Outcome.CANCELLED, "the farm no longer wants this attempt", grace_s, now, out
                )
        self._fill(now, out)

    def _take_refusal(self, refusal: str, now: float, out: list[Instruction]) -> None:
        if refusal == self.refusal:
            return
        was_closed, self.refusal = self._is_closed, refusal
        if refusal:
            out.append(Say(text=f"the farm refuses this node: {refusal}"))
            self._hand_back_waiting(out)
        else:
            out.append(Say(text="the farm takes this node again"))
        if was_closed and not self._is_closed:
            out.append(TakeWork(is_wanted=True))
        elif self._is_closed and not was_closed:
            out.append(TakeWork(is_wanted=False))

    def _tick(self, now: float, out: list[Instruction]) -> None:
        if now >= self.heartbeats.next_at:
            if self._has_connected:
                self._heartbeat(now, out)
            else:
                # A farm that knows of this node gives it work at once: its queues must be there first.
                self.heartbeats.next_at = now + NEWS_S
        is_over = self._drain_at is not None and now >= self._drain_at
        for held in list(self.held.values()):
            if held.phase is Phase.ENDED:
                continue
            if held.is_exclusive and now - held.renewed_at >= self.rules.fence_s:
                reason = f"fenced: no answer from the farm for {self.rules.fence_s:.0f} s"
                self._stop(held, Outcome.NODE_LOST, reason, self.rules.kill_grace_s, now, out)
            if is_over:
                self._stop(held, Outcome.NODE_LOST, self._handing_back(), self.rules.kill_grace_s, now, out)
            if held.kill_at is not None and now >= held.kill_at and held.host_id is not None:
                held.kill_at = None
                self._hosts[held.host_id].is_leaving = True
                out.append(KillHost(host_id=held.host_id))
        for host_id, host in self._hosts.items():
            if host.is_leaving:
                continue
            if not host.is_ready and now - host.started_at >= HOST_START_S:
                host.is_leaving = True
                out.append(KillHost(host_id=host_id))
            elif host.attempt_id is None and now - host.idle_since >= HOST_IDLE_S:
                host.is_leaving = True
                out.append(RetireHost(host_id=host_id))
        self._fill(now, out)

    # --- wedged ---

    @property
    def _is_closed(self) -> bool:
        """Takes no more work."""
        return self.is_draining or bool(self.refusal or self.wedged)

    def _wedged_because(self) -> str:
        return f"wedged: {next(iter(self.wedged.values()))}" if self.wedged else ""

    def _now_wedged(self, attempt_id: AttemptId, reason: str, now: float, out: list[Instruction]) -> None:
        """What hangs in the kernel holds memory, a device, a mount: more work would most likely hang too."""
        was_closed = self._is_closed
        self.wedged[attempt_id] = reason
        out.append(Say(text=f"this node takes no more work: {self._wedged_because()}"))
        self._hand_back_waiting(out)
        if not was_closed:
            out.append(TakeWork(is_wanted=False))
        self._heartbeat(now, out)

    def _no_longer_wedged(self, attempt_id: AttemptId, now: float, out: list[Instruction]) -> None:
        if self.wedged.pop(attempt_id, None) is None:
            return
        out.append(Say(text="a process that could not be killed has gone"))
        if not self._is_closed:
            out.append(TakeWork(is_wanted=True))
        self._heartbeat(now, out)

    # --- drain ---

    def _drain(self, grace_s: float, now: float, out: list[Instruction]) -> None:
        drain_at = now + grace_s
        self._drain_at = drain_at if self._drain_at is None else min(drain_at, self._drain_at)
        if not self.is_draining:
            was_closed, self.is_draining = self._is_closed, True
            if not was_closed:
                out.append(TakeWork(is_wanted=False))
            self._hand_back_waiting(out)
            self._heartbeat(now, out)
        if grace_s <= 0:
            self._tick(now, out)

    def _hand_back_waiting(self, out: list[Instruction]) -> None:
        for held in self.held.values():
            if held.phase not in _ON_HOST and held.phase is not Phase.ENDED:
                self._end(held, Outcome.NODE_LOST, self._handing_back(), out)

    def _handing_back(self) -> str:
        if self.is_draining:
            why = "the agent is stopping"
        elif self.refusal:
            why = f"the farm refuses this node: {self.refusal}"
        else:
            why = self._wedged_because()
        return f"handed back by {self.rules.node_id}: {why}"
