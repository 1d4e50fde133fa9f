"""The agent's supervisor: one thread that asks `workers.lifecycle`, which is pure, and does what it says."""

from __future__ import annotations

import base64
import logging
import os
import secrets
import selectors
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import farm
from farm.broker.publisher import Publisher
from farm.failpoints import reach
from farm.model.ids import AttemptId, NodeId
from farm.model.machines import Capabilities, Device
from farm.model.paths import path_rules
from farm.model.stalls import Evidence
from farm.settings import Settings
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
from workers import events, instructions, renderers
from workers.celery_worker import CeleryWorker
from workers.errands import Errands, remove_stage, tidy
from workers.gauges import Gauges
from workers.gpu.isolation import device_environment
from workers.heartbeats import Heartbeats
from workers.hosts import ADDRESS_SUFFIX, Found, HostProcess, SessionHost, TakenOverHost
from workers.inbox import Inbox
from workers.journal import Journal
from workers.lifecycle import Lifecycle, Rules
from workers.local_paths import as_seen_here
from workers.processes import boot_id, boottime, descendants, kill_tagged, start_time
from workers.renderer_environment import renderer_environment
from workers.scribe import Accepted, Note, OnHost, Received, Scribe
from workers.sender import Sender
from workers.spool import Spool
from workers.takeover import HOSTS, take_over
from workers.telemetry import Telemetry

_LOG = logging.getLogger(__name__)
_BUSY_TICK_S = 0.25
_EVIDENCE_OLD_S = 15.0
"""What a host has not said anew for so long is told no more: it may be stopped itself."""
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


class Supervisor:
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
        self._hosts_dir = settings.state_dir.absolute() / HOSTS
        self._host_command = host_command
        self._given_capabilities = capabilities
        self._parts: _Parts | None = None
        self._capabilities = Capabilities()
        """Replaced whole when devices or renderers change, which other threads do, one at a time."""
        self._changing = threading.Lock()
        self._asks_again = False
        """What it says of its renderers is what the agent before it was told: nobody has asked them yet."""
        self._inbox: Inbox[events.Event] = Inbox()
        self._notes: list[Note] = []
        """For the scribe, at the end of this turn of the loop."""
        self._selector = selectors.DefaultSelector()
        self._is_stopping = threading.Event()
        self._leaves_hosts = False
        self._errands = Errands()
        self._hosts: dict[int, SessionHost] = {}
        self._addresses: dict[int, Path] = {}
        self._found: list[Found] = []
        """Hosts of an earlier agent that are to be taken over."""
        self._taken_over: set[AttemptId] = set()
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
            on_connected=lambda: self.post(events.BrokerConnected()),
        )
        self._thread = threading.Thread(target=self._main, name="supervisor", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def post(self, event: events.Event) -> None:
        """Hand an event over; never blocks."""
        self._inbox.put(event)

    def stop(self, timeout_s: float, *, leaves_hosts: bool = False) -> bool:
        self._leaves_hosts = leaves_hosts
        self._is_stopping.set()
        self.post(events.Tick())
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- from other threads ---

    def _launch_came(self, launch: Launch) -> None:
        reach("agent.launch-taken")
        self.post(events.LaunchReceived(launch=as_seen_here(launch, self._path_rules)))

    def _control_came(self, control: Any) -> None:
        match control:
            case Stop():
                self.post(events.StopReceived(stop=control))
            case HeartbeatAnswer():
                self.post(events.HeartbeatAnswered(answer=control))
            case ReportsAccepted():
                self.post(events.ReportsStored(attempt_ids=control.attempt_ids))
            case SayHello():
                self.post(events.HelloAsked())
            case TidyJob():
                self._errands.add(partial(tidy, control, self._path_rules))

    def _devices_changed(self, gpus: tuple[Device, ...]) -> None:
        if self._parts is None:
            return
        with self._changing:
            with_slots = machine.with_gpus(self._capabilities, gpus, self._settings)
            self._capabilities = with_slots
        slots = {device.id: device.slots for device in with_slots.devices}
        self.post(events.DevicesChanged(slots=slots))

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
            self._take_over_hosts(parts)
            self._celery.start()
            if self._asks_again:
                threading.Thread(target=self._ask_renderers, args=(parts,), daemon=True).start()
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
        self._found = take_over(self._hosts_dir, journal, spool, node_id=self._node_id)
        providers = machine.providers(settings)
        environment = renderer_environment(settings)
        capabilities = self._given_capabilities
        if capabilities is None:
            software = renderers.remembered(settings.state_dir) if self._found else None
            self._asks_again = software is not None
            if software is None:
                software = renderers.software_versions()
                renderers.remember(settings.state_dir, software)
            self._add_shim(software, environment)
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
            on_recorded=lambda ids: self.post(events.Recorded(attempt_ids=ids)),
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
            heartbeats=Heartbeats(first_sequence=secrets.randbits(30)),
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
            on_change=lambda: self.post(events.LoadsChanged()),
            on_fault=lambda device_id, reason: self.post(
                events.DeviceFailed(device_id=device_id, reason=reason)
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

    def _add_shim(self, software: dict[str, str], environment: dict[str, str]) -> None:
        shim = renderers.bpy_shim(software, self._settings.state_dir / "bin")
        if shim is not None and str(shim) not in environment["PATH"].split(os.pathsep):
            environment["PATH"] += os.pathsep + str(shim)

    def _ask_renderers(self, parts: _Parts) -> None:
        """Later than at other starts, and in a thread of its own: it takes seconds of a busy machine."""
        software = renderers.software_versions()
        if software == self._capabilities.software:
            return
        renderers.remember(self._settings.state_dir, software)
        self._add_shim(software, parts.environment)
        with self._changing:
            self._capabilities = replace(self._capabilities, software=software)
        self.post(events.HelloAsked())

    def _take_over_hosts(self, parts: _Parts) -> None:
        """Go on with the renderers that an earlier agent has started."""
        for found in self._found:
            run = found.holds.run
            assert run is not None
            host_id = parts.core.take_over(
                script=run.script, order=run.order, until=found.holds.until, now=boottime()
            )
            host = TakenOverHost(host_id, found, self._selector, self._host_says, self._host_ended)
            self._take_on(host, found.address, found.started)
            self._give(host_id, run.order)
            self._taken_over.add(run.order.attempt_id)
            self._host_says(host, Started(attempt_id=run.order.attempt_id))
            host.listen()
        if self._found:
            _LOG.info("took over %s that an earlier agent has started", plural(len(self._found), "renderer"))
        self._found.clear()

    def _loop(self, parts: _Parts) -> None:
        core = parts.core
        self._handle(parts, events.Tick())
        next_tick = 0.0
        while not self._is_stopping.is_set():
            now = boottime()
            if now >= next_tick:
                self._handle(parts, events.Tick())
                next_tick = now + _BUSY_TICK_S
            wait_s = _BUSY_TICK_S if core.is_busy else max(core.heartbeats.next_at - now, 0.01)
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

    def _handle(self, parts: _Parts, event: events.Event) -> None:
        for instruction in parts.core.handle(event, boottime()):
            self._carry_out(parts, instruction)

    def _hand_over(self, parts: _Parts) -> None:
        """Let the scribe write what this turn has brought. Which host has an attempt waits for its start."""
        if any(not isinstance(note, OnHost) for note in self._notes):
            parts.scribe.write(*self._notes)
            self._notes.clear()

    def _carry_out(self, parts: _Parts, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Report(item=item):
                self._notes.append(item)
            case instructions.RunOnHost():
                self._run(parts, instruction)
            case instructions.Record(attempts=attempts):
                self._notes.append(Received(attempts=attempts))
            case instructions.Forget(attempts=attempts):
                ids = tuple(attempt_id for attempt_id, _ in attempts)
                parts.sender.accepted(ids)
                self._notes.append(Accepted(attempt_ids=ids))
                for attempt_id, stage in attempts:
                    if stage is not None:
                        self._errands.add(partial(remove_stage, stage, attempt_id))
            case instructions.SendHeartbeat():
                self._send_heartbeat(parts, instruction)
            case instructions.StartHost(host_id=host_id):
                self._start_host(parts, host_id)
            case instructions.CancelHost(host_id=host_id):
                if host_id in self._hosts:
                    self._hosts[host_id].send(
                        HostCancel(
                            reason=instruction.reason,
                            outcome=instruction.outcome,
                            takes_output=instruction.takes_output,
                        )
                    )
            case instructions.KillHost(host_id=host_id):
                if host_id in self._hosts:
                    self._hosts[host_id].kill()
            case instructions.RetireHost(host_id=host_id):
                if host_id in self._hosts:
                    self._hosts[host_id].leave()
            case instructions.Resend(attempt_id=attempt_id):
                parts.sender.resend(attempt_id)
            case instructions.TakeWork(is_wanted=is_wanted):
                self._celery.take_work(is_wanted)
            case instructions.Say(text=text):
                _LOG.warning("%s", clean(text, limit=500, one_line=True))

    def _keep_hosts(self, parts: _Parts) -> None:
        """Tell each running attempt's host how long it may go on should this agent die now."""
        now = boottime()
        for host_id, attempt_id in self._attempt_on.items():
            self._hosts[host_id].send(HostKeep(until=parts.core.fence_at(attempt_id, now)))

    def _send_heartbeat(self, parts: _Parts, instruction: instructions.SendHeartbeat) -> None:
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
        address = self._hosts_dir / (uuid.uuid4().hex + ADDRESS_SUFFIX)
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
            self.post(events.HostDied(host_id=host_id, reason=str(error)))
            return
        self._take_on(host, address, start_time(host.pid))

    def _take_on(self, host: SessionHost, address: Path, started: float | None) -> None:
        self._hosts[host.host_id] = host
        self._addresses[host.host_id] = address
        self._host_started[host.host_id] = started

    def _give(self, host_id: int, order: Order) -> None:
        self._attempt_on[host_id] = order.attempt_id
        self._devices_of[order.attempt_id] = tuple(order.device_id.split(","))

    def _run(self, parts: _Parts, instruction: instructions.RunOnHost) -> None:
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
                self._handle(parts, events.HostStarted(host_id=host.host_id, attempt_id=attempt_id))
            case HostRendered(attempt_id=attempt_id):
                unused_s = parts.telemetry.unused_s(attempt_id)
                # What was used before this agent came is not known.
                is_used = attempt_id in self._taken_over or unused_s < self._settings.gpu_use_check_s
                refusal = "" if is_used else UNUSED_GPU.format(seconds=unused_s)
                host.send(HostVerdict(attempt_id=attempt_id, refusal=refusal))
            case Finished():
                self._attempt_on.pop(host.host_id, None)
                self._devices_of.pop(message.attempt_id, None)
                self._evidence.pop(message.attempt_id, None)
                self._taken_over.discard(message.attempt_id)
                usage, probe = parts.telemetry.end(message.attempt_id)
                finished = message
                if usage is not None or probe is not None:
                    finished = replace(message, usage=usage, probe=probe)
                ended = events.HostFinished(host_id=host.host_id, finished=finished)
                if finished.stuck and self._watch_stuck(parts.core, ended):
                    return
                self._handle(parts, ended)
            case HostReady():
                self._handle(parts, events.HostReady(host_id=host.host_id))

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
            self.post(events.HostDied(host_id=host_id, reason=reason))

        threading.Thread(target=look, name=f"undertaker-{host_id}", daemon=True).start()

    def _watch_stuck(self, core: Lifecycle, ended: events.HostFinished) -> bool:
        """Its host could not end it: look until it is gone, and tell.

        True when the attempt's end is told only then: another start could meet it in the same files.
        """
        attempt_id = ended.finished.attempt_id
        held = core.held.get(attempt_id)
        waits = held is not None and held.is_exclusive
        self.post(events.Wedged(attempt_id=attempt_id, reason=ended.finished.stuck))

        def watch() -> None:
            # One that has cleared its environment is not found, and may be there: not forgotten at once.
            time.sleep(_STUCK_LEAST_S)
            while kill_tagged([attempt_id]):
                pass
            if waits:
                self.post(ended)
            self.post(events.Unwedged(attempt_id=attempt_id))

        threading.Thread(target=watch, name="stuck", daemon=True).start()
        return waits

    def _end_stuck(self, attempt_id: AttemptId, left: int) -> None:
        """Return when no process of the attempt is left, of `left` that a first try has not ended."""
        if not left:
            return
        reason = f"{left} of the processes of {attempt_id} cannot be killed"
        self.post(events.Wedged(attempt_id=attempt_id, reason=reason))
        while kill_tagged([attempt_id]):
            pass
        self.post(events.Unwedged(attempt_id=attempt_id))
