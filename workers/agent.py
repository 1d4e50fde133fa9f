"""The node agent: a Celery worker takes messages in, one supervisor decides, others do the slow things.

Threads, and what each owns:

- *celery*: the consuming connection. Hands messages to the supervisor's inbox.
- *supervisor*: the lifecycle, the session hosts and their pipes (one selector loop). Waits for nothing else.
- *scribe*: journal and spool. *sender*: the publishing connection.
- *gauges*: how busy CPU and disk are. *telemetry*: how the GPUs are, and what attempts use of them.
- *errands*: removing private directories, which may hang on a dead file server.

The supervisor decides with `workers.lifecycle`, which is pure; this module carries its instructions out.
"""

from __future__ import annotations

import base64
import fcntl
import logging
import os
import queue
import secrets
import selectors
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import farm
from farm.broker.publisher import Publisher
from farm.errors import FarmError, UserError
from farm.failpoints import reach
from farm.model.ids import AttemptId, NodeId
from farm.model.machines import Capabilities, Device
from farm.model.paths import PathRule, map_parameters, map_path, path_rules
from farm.model.stalls import Evidence
from farm.model.states import Outcome
from farm.settings import Settings, inherited_environment
from farm.text import clean, plural
from farm.wire.messages import (
    Finished,
    Heartbeat,
    HeartbeatAnswer,
    HostCancel,
    HostEvidence,
    HostKeep,
    HostOutput,
    HostReady,
    HostRendered,
    HostRun,
    HostVerdict,
    Launch,
    LogChunk,
    Order,
    ParkedMessage,
    Progress,
    ReportsAccepted,
    SayHello,
    Started,
    Stop,
    TidyJob,
    dump,
)
from workers import capabilities as machine
from workers import containment, lifecycle, staging
from workers.celery_worker import CeleryWorker
from workers.gauges import Gauges
from workers.gpu.isolation import device_environment
from workers.hosts import ADDRESS_SUFFIX, AdoptedHost, Found, HostProcess, SessionHost, find_hosts
from workers.inbox import Inbox
from workers.journal import Entry, Journal
from workers.lifecycle import Lifecycle, Rules, Stage
from workers.processes import boot_id, boottime, descendants, kill_one, kill_tagged, start_time
from workers.scribe import Accepted, Note, OnHost, Received, Scribe
from workers.sender import Sender
from workers.spool import Spool
from workers.telemetry import Telemetry

_LOG = logging.getLogger(__name__)
_LET_THROUGH = ("PATH", "HOME", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "USER", "LOGNAME")
"""Variables that renderers see of the agent's own. Never the broker's address or a token."""
_BUSY_TICK_S = 0.25
_EVIDENCE_OLD_S = 15.0
"""What a host has not said anew for so long is told no more: it may be stopped itself."""
HOSTS = "hosts"
"""Below the state directory: where session hosts listen for the next agent."""
_REAP_S = 5.0
_STUCK_LEAST_S = 30.0
"""A node that was wedged takes no work for at least so long."""
_LAST_WORDS_S = 3.0
"""How long a stopping agent waits for the broker to take its last reports."""

UNUSED_GPU = (
    "it asked for a GPU and rendered on the CPU: in {seconds:.0f} s the GPU was never busy and none of its "
    "memory was taken"
)

HostCommand = Callable[[Path], list[str]]
"""The argument list that starts a session host, given the socket where it may wait for the next agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What the supervisor works with, once the machine has been looked at."""

    core: Lifecycle
    environment: dict[str, str]
    sender: Sender
    scribe: Scribe
    gauges: Gauges
    telemetry: Telemetry


def start_agent(
    settings: Settings,
    *,
    host_command: HostCommand | None = None,
    capabilities: Capabilities | None = None,
) -> AgentHandle:
    """Start this node's agent in threads of this process, and return at once.

    capabilities: instead of looking at the machine (tests). Raises UserError when `settings.state_dir`
    cannot be used or another agent uses it.
    """
    return AgentHandle(settings, host_command=host_command, capabilities=capabilities)


class AgentHandle:
    """A running agent, for whoever started it. Methods may be called from any thread."""

    def __init__(
        self, settings: Settings, *, host_command: HostCommand | None, capabilities: Capabilities | None
    ) -> None:
        self._lock_file = _lock(settings.state_dir)
        self._supervisor = _Supervisor(
            settings, host_command or partial(_contained_host, sys.executable), capabilities
        )
        self._grace_s = settings.drain_grace_s
        self._kill_s = settings.kill_grace_s + lifecycle.KILL_MARGIN_S
        self._supervisor.start()

    @property
    def is_alive(self) -> bool:
        return self._supervisor.is_alive

    def drain(self, grace_s: float | None = None) -> None:
        """Take no more work; running attempts may finish for `grace_s` (None: as set), then go back."""
        self._supervisor.post(
            lifecycle.DrainAsked(grace_s=self._grace_s if grace_s is None else max(grace_s, 0.0))
        )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until a draining agent has nothing left to do, or the agent has failed; True when so."""
        return self._supervisor.idle.wait(timeout_s)

    def stop(self, timeout_s: float = 15.0) -> bool:
        """Hand back what still runs, tell the farm, end all threads. True when all went well in time."""
        self.drain(0.0)
        self.wait(min(timeout_s, self._kill_s + 2.0))
        is_over = self._supervisor.stop(timeout_s)
        self._lock_file.close()
        return is_over

    def leave(self, timeout_s: float = 15.0) -> bool:
        """End all threads and let renderers run on, for the agent that comes next. True when in time.

        They wait for it as long as the farm does: see `Lifecycle.fence_at`.
        """
        is_over = self._supervisor.stop(timeout_s, leaves_hosts=True)
        self._lock_file.close()
        return is_over


def _contained_host(python: str, address: Path) -> list[str]:
    return containment.host_command(python, address=address)


def _lock(state_dir: Path) -> IO[str]:
    """One agent for each state directory: two would answer for each other's attempts. Raises UserError."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = (state_dir / "agent.lock").open("a+")
    except OSError as error:
        raise UserError(f"the state directory {state_dir} cannot be used: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        pid = lock.read().strip()
        lock.close()
        raise UserError(
            f"another agent (process {pid or 'unknown'}) runs on {state_dir}; "
            "stop it, or set another state_dir"
        ) from error
    lock.seek(0)
    lock.truncate()
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


class _Supervisor:
    """Everything below `_main` runs in its one thread; `post` and `stop` may be called from others."""

    def __init__(
        self, settings: Settings, host_command: HostCommand, capabilities: Capabilities | None
    ) -> None:
        self.idle = threading.Event()
        """Draining and nothing left to do, or dead."""
        self._settings = settings
        self._path_rules = path_rules(settings.path_mapping)
        self._node_id = NodeId(settings.node_name)
        self._session = str(uuid.uuid4())
        self._boot_id = boot_id()
        self._host_command = host_command
        self._given_capabilities = capabilities
        self._parts: _Parts | None = None
        self._capabilities = Capabilities()
        """Replaced whole when devices change, which another thread does."""
        self._inbox: Inbox[lifecycle.Event] = Inbox()
        self._notes: list[Note] = []
        """For the scribe, at the end of this turn of the loop."""
        self._selector = selectors.DefaultSelector()
        self._is_stopping = threading.Event()
        self._leaves_hosts = False
        self._errands = _Errands()
        self._hosts: dict[int, SessionHost] = {}
        self._addresses: dict[int, Path] = {}
        self._found: list[Found] = []
        """Hosts of an earlier agent that are to be adopted."""
        self._adopted: set[AttemptId] = set()
        self._host_started: dict[int, float | None] = {}
        self._attempt_on: dict[int, AttemptId] = {}
        self._devices_of: dict[AttemptId, tuple[str, ...]] = {}
        self._evidence: dict[AttemptId, tuple[Evidence, float]] = {}
        """What was last told of each running attempt, and when."""
        self._celery = CeleryWorker(
            settings,
            on_launch=self._launch_came,
            on_control=self._control_came,
            on_unreadable=self._park,
            on_connected=lambda: self.post(lifecycle.BrokerConnected()),
        )
        self._thread = threading.Thread(target=self._main, name="supervisor", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def post(self, event: lifecycle.Event) -> None:
        """Hand an event over; never blocks."""
        self._inbox.put(event)

    def stop(self, timeout_s: float, *, leaves_hosts: bool = False) -> bool:
        self._leaves_hosts = leaves_hosts
        self._is_stopping.set()
        self.post(lifecycle.Tick())
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- from other threads ---

    def _launch_came(self, launch: Launch) -> None:
        reach("agent.launch-taken")
        self.post(lifecycle.LaunchReceived(launch=_as_seen_here(launch, self._path_rules)))

    def _control_came(self, control: Any) -> None:
        match control:
            case Stop():
                self.post(lifecycle.StopReceived(stop=control))
            case HeartbeatAnswer():
                self.post(lifecycle.HeartbeatAnswered(answer=control))
            case ReportsAccepted():
                self.post(lifecycle.ReportsStored(attempt_ids=control.attempt_ids))
            case SayHello():
                self.post(lifecycle.HelloAsked())
            case TidyJob():
                self._errands.add(partial(_tidy, control, self._path_rules))

    def _devices_changed(self, gpus: tuple[Device, ...]) -> None:
        if self._parts is None:
            return
        with_slots = machine.with_gpus(self._capabilities, gpus, self._settings)
        self._capabilities = with_slots
        slots = {device.id: device.slots for device in with_slots.devices}
        self.post(lifecycle.DevicesChanged(slots=slots))

    def _park(self, queue: str, body: bytes, reason: str) -> None:
        if self._parts is not None:
            parked = ParkedMessage(
                queue=queue,
                by=self._node_id,
                reason=reason,
                body=base64.b64encode(body).decode(),
                at=time.time(),
            )
            self._parts.sender.park(dump(parked))

    # --- the supervisor's thread ---

    def _main(self) -> None:
        try:
            self._parts = parts = self._set_up()
            self._adopt(parts)
            self._celery.start()
            self._loop(parts)
            self._tear_down(parts)
        except Exception:  # noqa: BLE001 - a loop's edge: whoever holds the handle must see it end
            _LOG.critical("the agent failed", exc_info=True)
            self._celery.ask_to_stop()  # what it took in now would reach nobody
            for host in self._hosts.values():
                host.close()  # its renderer is the next agent's, or ends when none comes
        finally:
            self.idle.set()

    def _set_up(self) -> _Parts:
        settings = self._settings
        journal = Journal(settings.state_dir / "journal")
        spool = Spool(settings.state_dir / "spool")
        journal.load()
        spool.load()
        self._take_over(journal, spool)
        providers = machine.providers(settings)
        environment = renderer_environment(settings)
        capabilities = self._given_capabilities
        if capabilities is None:
            software = machine.software_versions()
            shim = machine.bpy_shim(software, settings.state_dir / "bin")
            if shim is not None:
                environment["PATH"] += os.pathsep + str(shim)
            capabilities = machine.capabilities(settings, providers, software)
        self._capabilities = capabilities
        sender = Sender(
            self._node_id,
            self._session,
            lambda: Publisher(settings.broker_url),
            waiting=spool.waiting.values(),
        )
        scribe = Scribe(
            journal,
            spool,
            on_recorded=lambda ids: self.post(lifecycle.Recorded(attempt_ids=ids)),
            on_reports=sender.reports,
        )
        core = Lifecycle(
            rules=Rules(
                node_id=self._node_id,
                slots={device.id: device.slots for device in capabilities.devices},
                heartbeat_s=settings.heartbeat_s,
                fence_s=settings.fence_s,
                lease_s=settings.lease_s,
                kill_grace_s=settings.kill_grace_s,
            ),
            first_sequence=secrets.randbits(30),
        )
        core.restore(
            ended=[(a, e.stage) for a, e in journal.entries.items() if e.has_ended],
            forgotten=journal.accepted_ids,
        )
        gauges = Gauges(settings.state_dir, period_s=settings.heartbeat_s)
        gauges.start()
        telemetry = Telemetry(
            providers,
            capabilities.devices,
            own_pids=descendants,
            on_change=lambda: self.post(lifecycle.LoadsChanged()),
            on_fault=lambda device_id, reason: self.post(
                lifecycle.DeviceFailed(device_id=device_id, reason=reason)
            ),
            on_devices=self._devices_changed,
        )
        telemetry.start()
        scribe.start()
        sender.start()
        self._errands.start()
        self._selector.register(self._inbox.descriptor, selectors.EVENT_READ, self._inbox.hear)
        _LOG.info(
            "node %s offers %s",
            self._node_id,
            ", ".join(f"{d.model} ({plural(d.slots, 'slot')})" for d in capabilities.devices),
        )
        return _Parts(
            core=core,
            environment=environment,
            sender=sender,
            scribe=scribe,
            gauges=gauges,
            telemetry=telemetry,
        )

    def _take_over(self, journal: Journal, spool: Spool) -> None:
        """Find what an earlier agent left: hosts that still run, ends that it was not told, and the lost."""
        hosts = self._settings.state_dir.absolute() / HOSTS
        hosts.mkdir(mode=0o700, exist_ok=True)
        found, mute = find_hosts(hosts)
        for pid in mute:
            kill_one(pid, start_time(pid))
        live = {a for a, e in journal.entries.items() if not e.has_ended and a not in spool.waiting}
        ends = {end.attempt_id: end for host in found for end in host.holds.ended if end.attempt_id in live}
        if ends:
            spool.add(ends.values())
            live -= ends.keys()
        for host in found:
            run = host.holds.run
            if run is not None and run.order.attempt_id in live and self._is_the_one(journal, run, host):
                self._found.append(host)
                live.remove(run.order.attempt_id)
                continue
            if run is not None:
                kill_one(host.pid, host.started)
            host.connection.close()
            host.address.unlink(missing_ok=True)
        self._bury(journal, spool, live)

    def _is_the_one(self, journal: Journal, run: HostRun, host: Found) -> bool:
        """Whether the journal agrees that this process has the attempt (or was not told yet)."""
        entry = journal.entries[run.order.attempt_id]
        return entry.pid is None or (entry.pid, entry.started, entry.boot_id) == (
            host.pid,
            host.started,
            self._boot_id,
        )

    def _bury(self, journal: Journal, spool: Spool, lost: Collection[AttemptId]) -> None:
        """End what is left of these attempts, and report them as lost."""
        is_here = False
        for attempt_id in lost:
            entry = journal.entries[attempt_id]
            is_here |= entry.boot_id in ("", self._boot_id)
            if entry.pid is not None and entry.boot_id == self._boot_id:
                kill_one(entry.pid, entry.started)
        if is_here and kill_tagged(lost):
            _LOG.error("a process of an earlier agent cannot be killed")

        def why(entry: Entry) -> str:
            if entry.boot_id not in ("", self._boot_id):
                return f"{self._node_id} was rebooted"
            if entry.pid is None:
                return f"handed back by {self._node_id}: its agent was restarted before it began"
            return f"the agent on {self._node_id} was restarted; its renderers died with it"

        spool.add(
            Finished(attempt_id=a, outcome=Outcome.NODE_LOST, reason=why(journal.entries[a])) for a in lost
        )
        journal.ended({*lost, *(a for a in spool.waiting if not _has_ended(journal, a))})
        if lost:
            _LOG.warning("%s of an earlier agent reported as lost", plural(len(lost), "attempt"))

    def _adopt(self, parts: _Parts) -> None:
        """Go on with the renderers that an earlier agent has started."""
        for found in self._found:
            run = found.holds.run
            assert run is not None
            host_id = parts.core.adopt(
                script=run.script, order=run.order, until=found.holds.until, now=boottime()
            )
            host = AdoptedHost(host_id, found, self._selector, self._host_says, self._host_ended)
            self._take_on(host, found.address, found.started)
            self._give(host_id, run.order)
            self._adopted.add(run.order.attempt_id)
            self._host_says(host, Started(attempt_id=run.order.attempt_id))
            host.listen()
        if self._found:
            _LOG.info("took over %s that an earlier agent has started", plural(len(self._found), "renderer"))
        self._found.clear()

    def _loop(self, parts: _Parts) -> None:
        core = parts.core
        self._handle(parts, lifecycle.Tick())
        next_tick = 0.0
        while not self._is_stopping.is_set():
            now = boottime()
            if now >= next_tick:
                self._handle(parts, lifecycle.Tick())
                next_tick = now + _BUSY_TICK_S
            wait_s = _BUSY_TICK_S if core.is_busy else max(core.next_heartbeat - now, 0.01)
            for key, _ in self._selector.select(wait_s):
                key.data()
            for event in self._inbox.take():
                self._handle(parts, event)
            self._hand_over(parts)
            if core.is_draining and core.live == 0:
                self.idle.set()

    def _tear_down(self, parts: _Parts) -> None:
        self._celery.ask_to_stop()
        parts.gauges.stop()
        parts.telemetry.stop()
        self._keep_hosts(parts)
        for host in self._hosts.values():
            if not self._leaves_hosts or host.host_id not in self._attempt_on:
                host.leave()
        for host in list(self._hosts.values()):
            if not self._leaves_hosts:
                host.kill()
                host.reap(_REAP_S)
            host.close()
        if not self._leaves_hosts:
            kill_tagged(self._attempt_on.values())
            for address in self._addresses.values():
                address.unlink(missing_ok=True)
        self._hand_over(parts)
        parts.scribe.stop(_LAST_WORDS_S)
        if not parts.sender.stop(_LAST_WORDS_S):
            _LOG.warning("the broker did not take the last reports; they are kept for the next start")
        self._celery.join(_LAST_WORDS_S)
        self._errands.stop()
        self._selector.close()
        self._inbox.close()

    def _handle(self, parts: _Parts, event: lifecycle.Event) -> None:
        for instruction in parts.core.handle(event, boottime()):
            self._carry_out(parts, instruction)

    def _hand_over(self, parts: _Parts) -> None:
        """Let the scribe write what this turn has brought. Which host has an attempt waits for its start."""
        if any(not isinstance(note, OnHost) for note in self._notes):
            parts.scribe.write(*self._notes)
            self._notes.clear()

    def _carry_out(self, parts: _Parts, instruction: lifecycle.Instruction) -> None:
        match instruction:
            case lifecycle.Report(item=item):
                self._notes.append(item)
            case lifecycle.RunOnHost():
                self._run(parts, instruction)
            case lifecycle.Record(attempts=attempts):
                self._notes.append(Received(attempts=attempts))
            case lifecycle.Forget(attempts=attempts):
                ids = tuple(attempt_id for attempt_id, _ in attempts)
                parts.sender.accepted(ids)
                self._notes.append(Accepted(attempt_ids=ids))
                for attempt_id, stage in attempts:
                    if stage is not None:
                        self._errands.add(partial(_remove_stage, stage, attempt_id))
            case lifecycle.SendHeartbeat():
                self._send_heartbeat(parts, instruction)
            case lifecycle.StartHost(host_id=host_id):
                self._start_host(parts, host_id)
            case lifecycle.CancelHost(host_id=host_id):
                if host_id in self._hosts:
                    self._hosts[host_id].send(
                        HostCancel(
                            reason=instruction.reason,
                            outcome=instruction.outcome,
                            takes_output=instruction.takes_output,
                        )
                    )
            case lifecycle.KillHost(host_id=host_id):
                if host_id in self._hosts:
                    self._hosts[host_id].kill()
            case lifecycle.RetireHost(host_id=host_id):
                if host_id in self._hosts:
                    self._hosts[host_id].leave()
            case lifecycle.Resend(attempt_id=attempt_id):
                parts.sender.resend(attempt_id)
            case lifecycle.TakeWork(is_wanted=is_wanted):
                self._celery.take_work(is_wanted)
            case lifecycle.Say(text=text):
                _LOG.warning("%s", clean(text, limit=500, one_line=True))

    def _keep_hosts(self, parts: _Parts) -> None:
        """Tell each running attempt's host how long it may go on should this agent die now."""
        now = boottime()
        for host_id, attempt_id in self._attempt_on.items():
            self._hosts[host_id].send(HostKeep(until=parts.core.fence_at(attempt_id, now)))

    def _send_heartbeat(self, parts: _Parts, instruction: lifecycle.SendHeartbeat) -> None:
        self._keep_hosts(parts)
        parts.sender.heartbeat(
            Heartbeat(
                node_id=self._node_id,
                session=self._session,
                boot_id=self._boot_id,
                sequence=instruction.sequence,
                attempts=instruction.attempts,
                capabilities=self._capabilities if instruction.is_full else None,
                loads=parts.gauges.loads + parts.telemetry.loads,
                disk_free_mib=parts.gauges.disk_free_mib,
                is_draining=instruction.is_draining,
                evidence=self._fresh_evidence(parts),
                fault=instruction.fault or parts.telemetry.node_fault,
                agent_version=farm.__version__,
            )
        )

    def _fresh_evidence(self, parts: _Parts) -> tuple[Evidence, ...]:
        now = boottime()
        found = []
        for evidence, told_at in self._evidence.values():
            if now - told_at <= _EVIDENCE_OLD_S:
                on_gpu, gpu_idle_s = parts.telemetry.idle_s(evidence.attempt_id)
                found.append(replace(evidence, on_gpu=on_gpu, gpu_idle_s=gpu_idle_s))
        return tuple(found)

    # --- session hosts ---

    def _start_host(self, parts: _Parts, host_id: int) -> None:
        address = self._settings.state_dir.absolute() / HOSTS / (uuid.uuid4().hex + ADDRESS_SUFFIX)
        try:
            host = HostProcess(
                host_id,
                self._host_command(address),
                parts.environment,
                self._settings.state_dir,
                self._selector,
                self._host_says,
                self._host_ended,
            )
        except OSError as error:
            self.post(lifecycle.HostDied(host_id=host_id, reason=str(error)))
            return
        self._take_on(host, address, start_time(host.pid))

    def _take_on(self, host: SessionHost, address: Path, started: float | None) -> None:
        self._hosts[host.host_id] = host
        self._addresses[host.host_id] = address
        self._host_started[host.host_id] = started

    def _give(self, host_id: int, order: Order) -> None:
        self._attempt_on[host_id] = order.attempt_id
        self._devices_of[order.attempt_id] = tuple(order.device_id.split(","))

    def _run(self, parts: _Parts, instruction: lifecycle.RunOnHost) -> None:
        host = self._hosts.get(instruction.host_id)
        if host is None:
            return  # its death is on the way
        order = instruction.order
        self._give(host.host_id, order)
        self._notes.append(
            OnHost(
                attempt_id=order.attempt_id,
                pid=host.pid,
                started=self._host_started[host.host_id],
                boot_id=self._boot_id,
            )
        )
        host.send(
            HostRun(
                script=instruction.script,
                order=order,
                environment=device_environment(self._capabilities, order.device_id),
                allowed_roots=tuple(str(root) for root in self._settings.allowed_roots),
                asks_before_publishing=self._settings.gpu_use_check_s > 0 and order.device_id != "cpu",
                until=parts.core.fence_at(order.attempt_id, boottime()),
            )
        )

    def _host_says(self, host: SessionHost, message: Any) -> None:
        parts = self._parts
        if parts is None:
            return
        match message:
            case HostOutput(text=text, sequence=sequence):
                attempt_id = self._attempt_on.get(host.host_id)
                if attempt_id is not None:
                    parts.sender.log(LogChunk(attempt_id=attempt_id, sequence=sequence, text=text))
            case Progress():
                parts.sender.progress(message)
            case HostEvidence(evidence=evidence):
                if self._attempt_on.get(host.host_id) == evidence.attempt_id:
                    self._evidence[evidence.attempt_id] = evidence, boottime()
            case Started(attempt_id=attempt_id):
                device_ids = self._devices_of.get(attempt_id, ())
                parts.telemetry.begin(attempt_id, device_ids)
                self._handle(parts, lifecycle.HostStarted(host_id=host.host_id, attempt_id=attempt_id))
            case HostRendered(attempt_id=attempt_id):
                unused_s = parts.telemetry.unused_s(attempt_id)
                # What was used before this agent came is not known.
                is_used = attempt_id in self._adopted or unused_s < self._settings.gpu_use_check_s
                refusal = "" if is_used else UNUSED_GPU.format(seconds=unused_s)
                host.send(HostVerdict(attempt_id=attempt_id, refusal=refusal))
            case Finished():
                self._attempt_on.pop(host.host_id, None)
                self._devices_of.pop(message.attempt_id, None)
                self._evidence.pop(message.attempt_id, None)
                self._adopted.discard(message.attempt_id)
                usage, probe = parts.telemetry.end(message.attempt_id)
                finished = message
                if usage is not None or probe is not None:
                    finished = replace(message, usage=usage, probe=probe)
                ended = lifecycle.HostFinished(host_id=host.host_id, finished=finished)
                if finished.stuck and self._watch_stuck(parts.core, ended):
                    return
                self._handle(parts, ended)
            case HostReady():
                self._handle(parts, lifecycle.HostReady(host_id=host.host_id))

    def _host_ended(self, host: SessionHost) -> None:
        """Its death counts only when nothing that it started is left; that is looked for elsewhere."""
        host_id = host.host_id
        del self._hosts[host_id]
        del self._host_started[host_id]
        self._addresses.pop(host_id).unlink(missing_ok=True)
        attempt_id = self._attempt_on.pop(host_id, None)
        if attempt_id is not None:
            self._devices_of.pop(attempt_id, None)
            self._evidence.pop(attempt_id, None)
            if self._parts is not None:
                self._parts.telemetry.end(attempt_id)

        def look() -> None:
            reason = host.reap(_REAP_S)
            if attempt_id is not None:
                self._end_stuck(attempt_id, kill_tagged([attempt_id]))
            self.post(lifecycle.HostDied(host_id=host_id, reason=reason))

        threading.Thread(target=look, name=f"undertaker-{host_id}", daemon=True).start()

    def _watch_stuck(self, core: Lifecycle, ended: lifecycle.HostFinished) -> bool:
        """Its host could not end it: look until it is gone, and tell.

        True when the attempt's end is told only then: another start could meet it in the same files.
        """
        attempt_id = ended.finished.attempt_id
        held = core.held.get(attempt_id)
        waits = held is not None and held.is_exclusive
        self.post(lifecycle.Wedged(attempt_id=attempt_id, reason=ended.finished.stuck))

        def watch() -> None:
            # One that has cleared its environment is not found, and may be there: not forgotten at once.
            time.sleep(_STUCK_LEAST_S)
            while kill_tagged([attempt_id]):
                pass
            if waits:
                self.post(ended)
            self.post(lifecycle.Unwedged(attempt_id=attempt_id))

        threading.Thread(target=watch, name="stuck", daemon=True).start()
        return waits

    def _end_stuck(self, attempt_id: AttemptId, left: int) -> None:
        """Return when no process of the attempt is left, of `left` that a first try has not ended."""
        if not left:
            return
        reason = f"{left} of the processes of {attempt_id} cannot be killed"
        self.post(lifecycle.Wedged(attempt_id=attempt_id, reason=reason))
        while kill_tagged([attempt_id]):
            pass
        self.post(lifecycle.Unwedged(attempt_id=attempt_id))


class _Errands:
    """Slow file work, two at a time. Nothing waits for it, and it may be lost."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"errands-{number}", daemon=True) for number in (1, 2)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, errand: Callable[[], None]) -> None:
        self._queue.put(errand)

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _run(self) -> None:
        while (errand := self._queue.get()) is not None:
            try:
                errand()
            except (OSError, FarmError) as error:
                _LOG.warning("tidying up failed: %s", clean(str(error), one_line=True))


def _as_seen_here(launch: Launch, rules: tuple[PathRule, ...]) -> Launch:
    """The message with paths as this node has them."""
    if not rules:
        return launch
    return replace(
        launch,
        script=replace(launch.script, parameters=map_parameters(launch.script.parameters, rules)),
        orders=tuple(
            replace(order, parameters=map_parameters(order.parameters, rules)) for order in launch.orders
        ),
    )


def _tidy(message: TidyJob, rules: tuple[PathRule, ...]) -> None:
    for directory in message.directories:
        staging.tidy_job(Path(map_path(directory, rules)), message.job_uid)


def _remove_stage(stage: Stage, attempt_id: AttemptId) -> None:
    staging.remove_stage(Path(stage.directory), stage.job_uid, attempt_id)


def _has_ended(journal: Journal, attempt_id: AttemptId) -> bool:
    entry = journal.entries.get(attempt_id)
    return entry is not None and entry.has_ended


def renderer_environment(settings: Settings) -> dict[str, str]:
    """What session hosts, and so renderers, see of the agent's own variables."""
    environment = inherited_environment((*_LET_THROUGH, *settings.renderer_environment))
    # Last: `python` exists on machines that have none, and nothing of the system's is shadowed. An activated
    # virtual environment comes first: a Python inside a renderer (Debian's Blender) would take its library.
    own = str(Path(sys.executable).parent)
    others = [folder for folder in (environment.get("PATH") or os.defpath).split(os.pathsep) if folder != own]
    environment["PATH"] = os.pathsep.join((*others, own))
    return environment
