"""A machine of the farm: its agent (the real parts of it), its session hosts and renderers, its power.

An agent and what it started are apart: the renderers of a stopped or killed agent go on, until their time is
over or the next agent takes them over. A machine that loses its power forgets the last lines of its journal.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm.errors import FarmError, Unavailable
from farm.model.attempts import PublishedFile
from farm.model.ids import AttemptId, NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.stalls import Evidence
from farm.model.states import Outcome
from farm.model.work import Isolation
from farm.settings import Settings
from farm.wire import queues as names
from farm.wire.messages import (
    Control,
    Finished,
    Heartbeat,
    HeartbeatAnswer,
    Launch,
    LogChunk,
    Order,
    ReportsAccepted,
    SayHello,
    StepScript,
    Stop,
    TidyJob,
    load,
)
from tests.simulation.broker import Broker, Link, SimPublisher
from tests.simulation.kernel import Kernel, Process, Violation
from tests.simulation.truth import Truth
from workers import events, instructions, staging
from workers.heartbeats import Heartbeats
from workers.journal import Journal
from workers.lifecycle import Lifecycle, Rules
from workers.scribe import Accepted, Note, OnHost, Received, Scribe
from workers.sender import RETRY_S, Sender
from workers.spool import Spool
from workers.verify import Unfit, check_files

_BUSY_TICK_S = 0.5
_LOOKS_FOR_BROKER_S = 1.0


class Machine:
    """Stays, whatever happens to its processes."""

    def __init__(
        self,
        kernel: Kernel,
        broker: Broker,
        truth: Truth,
        settings: Settings,
        folder: Path,
        slots: int,
    ) -> None:
        self.kernel = kernel
        self.broker = broker
        self.truth = truth
        self.settings = settings
        self.node_id = NodeId(folder.name)
        self.folder = folder
        self.folder.mkdir()
        self.slots = slots
        self.link = Link()
        self.wall_error_s = 0.0
        self.speed = kernel.draw.uniform(0.7, 1.5)
        self.disk_fails_until = 0.0
        """Publishing meets I/O errors."""
        self.slow_disk_until = 0.0
        """Journal and spool are written late."""
        self.agent: Agent | None = None
        self.hosts: list[Host] = []
        """Every session host that lives, whoever started it."""
        self.awake_since = 0.0
        self._boots = 1
        self._clock_error_s = kernel.draw.uniform(0, 1e6)

    @property
    def boot_id(self) -> str:
        return f"{self.node_id}-boot-{self._boots}"

    def boottime(self) -> float:
        """CLOCK_BOOTTIME: goes on in a suspend, nothing sets it."""
        return self.kernel.now + self._clock_error_s

    def wall(self) -> float:
        """What the machine thinks the time is; only wrong code looks."""
        return self.kernel.now + self.wall_error_s

    def start_agent(self) -> None:
        if self.agent is None:
            self.agent = Agent(self)

    def kill_agent(self) -> None:
        """kill -9: what renders goes on."""
        agent, self.agent = self.agent, None
        if agent is not None:
            agent.die()

    def lose_power(self) -> None:
        for host in list(self.hosts):
            host.die("the power is gone")
        self.kill_agent()
        self._boots += 1
        self._clock_error_s = self.kernel.draw.uniform(0, 1e3)
        journal = self.folder / "journal"
        if journal.exists():
            data = journal.read_bytes()
            cut = self.kernel.draw.choice((0, 0, self.kernel.draw.randrange(1, 200)))
            if cut:
                # A launch that comes again finds no trace of the first: nothing of that is left either.
                self.truth.forgotten_by(self)
            journal.write_bytes(data[: len(data) - cut] if cut else data)

    def suspend(self, seconds: float) -> None:
        """The whole machine sleeps; its clock of boot time does not."""
        self.awake_since = max(self.awake_since, self.kernel.now + seconds)
        if self.agent is not None:
            self.agent.pause(seconds)
        for host in self.hosts:
            host.process.pause(seconds)


class Agent:
    """One life of the agent's process. What `workers.supervisor` does with threads is events here."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.kernel = machine.kernel
        self.is_alive = True
        self.hosts: dict[int, Host] = {}
        self._session = self.kernel.new_id()
        self._paused_until = 0.0
        self._inbox: deque[events.Event] = deque()
        self._notes: list[Note] = []
        self._takes_work = True
        self._epoch: int | None = None
        self._log_sequence: dict[AttemptId, int] = {}
        self._failures = 0
        self._wants = {"run": False, "notes": False, "send": False, "send again": False}
        journal, spool = Journal(machine.folder / "journal"), Spool(machine.folder / "spool")
        journal.load()
        spool.load()
        found = self._take_over(journal, spool)
        self._publisher = SimPublisher(machine.broker, machine.link)
        self.sender = Sender(
            machine.node_id, self._session, lambda: self._publisher, waiting=spool.waiting.values()
        )
        self.scribe = Scribe(
            journal,
            spool,
            on_recorded=lambda ids: self.post(events.Recorded(attempt_ids=ids)),
            on_reports=self._reports_written,
        )
        settings = machine.settings
        self.core = Lifecycle(
            rules=Rules(
                node_id=machine.node_id,
                slots={"cpu": machine.slots},
                heartbeat_s=settings.heartbeat_s,
                fence_s=settings.fence_s,
                lease_s=settings.lease_s,
                kill_grace_s=settings.kill_grace_s,
            ),
            heartbeats=Heartbeats(first_sequence=self.kernel.draw.getrandbits(30)),
        )
        self.core.restore(
            ended=[(a, e.stage) for a, e in journal.entries.items() if e.has_ended],
            forgotten=journal.accepted_ids,
        )
        self._journal, self._spool = journal, spool
        self.kernel.say(f"{machine.node_id}: agent starts, session {self._session[:8]}")
        for host in found:
            self._go_on_with(host)
        self.kernel.at(0.0, self._tick)
        self.kernel.at(0.05, self._look_for_broker)

    def _take_over(self, journal: Journal, spool: Spool) -> list[Host]:
        """As `workers.takeover`: returns the hosts to go on with; what is lost is reported."""
        live = {a for a, e in journal.entries.items() if not e.has_ended and a not in spool.waiting}
        found = [host for host in self.machine.hosts if host.process.paused_until <= self.kernel.now]
        for host in set(self.machine.hosts) - set(found):
            host.die("it does not answer")
        ends = {end.attempt_id: end for host in found for end in host.ended if end.attempt_id in live}
        spool.add(ends.values())
        live -= ends.keys()
        ours = []
        for host in found:
            if host.running is not None and host.running[1].attempt_id in live:
                ours.append(host)
                live.remove(host.running[1].attempt_id)
            else:
                host.die("nobody knows it")
        reason = "the agent was restarted; its renderers died with it"
        lost = [a for a in journal.entries if a in live]
        spool.add(Finished(attempt_id=a, outcome=Outcome.NODE_LOST, reason=reason) for a in lost)
        ended = (a for a in spool.waiting if a not in journal.entries or not journal.entries[a].has_ended)
        journal.ended([*lost, *ended])
        return ours

    def _go_on_with(self, host: Host) -> None:
        assert host.running is not None
        script, order = host.running
        until = host.until if math.isfinite(host.until) else None
        host_id = self.core.take_over(script=script, order=order, until=until, now=self.machine.boottime())
        self.hosts[host_id] = host
        host.agent, host.host_id = self, host_id
        self.kernel.say(f"{self.machine.node_id}: takes over {order.attempt_id[:8]}")
        self._note(
            OnHost(attempt_id=order.attempt_id, pid=host.pid, started=0.0, boot_id=self.machine.boot_id)
        )
        self._handle(events.HostStarted(host_id=host_id, attempt_id=order.attempt_id))

    def die(self) -> None:
        self.is_alive = False
        for host in list(self.hosts.values()):
            host.agent_is_gone()
        self._journal.close()
        self._spool.close()

    # --- its time ---

    def pause(self, seconds: float) -> None:
        self._paused_until = max(self._paused_until, self.kernel.now + seconds)

    def is_awake(self) -> bool:
        return self.is_alive and self._paused_until <= self.kernel.now

    def _later(self, delay_s: float, name: str, call: Callable[[], None]) -> None:
        """Call once, when the process is awake."""
        if not self._wants[name]:
            self._wants[name] = True
            self.kernel.at(delay_s, self._now, name, call)

    def _now(self, name: str, call: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if not self.is_awake():
            self.kernel.at(self._paused_until - self.kernel.now, self._now, name, call)
            return
        self._wants[name] = False
        call()

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if not self.is_awake():
            self.kernel.at(self._paused_until - self.kernel.now, self._tick)
            return
        self._handle(events.Tick())
        now = self.machine.boottime()
        wait_s = _BUSY_TICK_S if self.core.is_busy else max(self.core.heartbeats.next_at - now, 0.01)
        self.kernel.at(wait_s, self._tick)

    # --- what it hears ---

    def _can_hear(self) -> bool:
        now = self.kernel.now
        link = self.machine.link
        return self.machine.broker.is_up() and max(link.cannot_hear_until, link.cannot_send_until) <= now

    def _look_for_broker(self) -> None:
        if not self.is_alive:
            return
        if self.is_awake():
            broker = self.machine.broker
            if not self._can_hear() or self._epoch != broker.epoch:
                self._epoch = None
            if self._epoch is None and self._can_hear():
                self._epoch = broker.epoch
                self._listen()
                self.post(events.BrokerConnected())
            self._hear()
        # One that has lost it comes back sooner or later than others.
        pause_s = _LOOKS_FOR_BROKER_S if self._epoch is not None else self.kernel.draw.uniform(0.2, 5.0)
        wait_s = max(pause_s, self._paused_until - self.kernel.now)
        self.kernel.at(wait_s, self._look_for_broker)

    def _listen(self) -> None:
        broker, node_id = self.machine.broker, self.machine.node_id
        for queue in (names.launch_queue(node_id), names.control_queue(node_id)):
            broker.declare(queue)
            broker.listeners[queue] = self._hear

    def _hear(self) -> None:
        """Take what waits for this node in the broker."""
        machine = self.machine
        if not self.is_awake() or self._epoch != machine.broker.epoch or not self._can_hear():
            return
        for message in machine.broker.take(names.control_queue(machine.node_id), 100):
            control = load(Control, message.body)
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
                    self.kernel.at(0.1, self._tidy, control)
        if self._takes_work:
            for message in machine.broker.take(names.launch_queue(machine.node_id), 100):
                self.post(events.LaunchReceived(launch=load(Launch, message.body)))

    def _tidy(self, message: TidyJob) -> None:
        if self.is_alive:
            for directory in message.directories:
                self.machine.truth.tidied(message.job_uid)
                with contextlib.suppress(OSError, FarmError):  # as the agent's errands
                    staging.tidy_job(Path(directory), message.job_uid)

    # --- what it does ---

    def post(self, event: events.Event) -> None:
        if self.is_alive:
            self._inbox.append(event)
            self._later(0.0, "run", self._run)

    def _run(self) -> None:
        while self._inbox and self.is_alive:
            self._handle(self._inbox.popleft())

    def _handle(self, event: events.Event) -> None:
        for instruction in self.core.handle(event, self.machine.boottime()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Report(item=item):
                self._note(item)
            case instructions.RunOnHost(host_id=host_id, script=script, order=order):
                host = self.hosts.get(host_id)
                if host is not None:
                    self._log_sequence[order.attempt_id] = 0
                    self._note(
                        OnHost(
                            attempt_id=order.attempt_id,
                            pid=host.pid,
                            started=0.0,
                            boot_id=self.machine.boot_id,
                        )
                    )
                    host.run(script, order, self.core.fence_at(order.attempt_id, self.machine.boottime()))
            case instructions.Record(attempts=attempts):
                self._note(Received(attempts=attempts))
            case instructions.Forget(attempts=attempts):
                ids = tuple(attempt_id for attempt_id, _ in attempts)
                self.sender.accepted(ids)
                self._note(Accepted(attempt_ids=ids))
                for attempt_id, stage in attempts:
                    if stage is not None:
                        self.kernel.at(0.05, self._remove_stage, stage, attempt_id)
            case instructions.SendHeartbeat():
                self._send_heartbeat(instruction)
            case instructions.StartHost(host_id=host_id):
                self.hosts[host_id] = Host(self, host_id)
            case instructions.CancelHost(host_id=host_id, reason=reason, outcome=outcome):
                if host_id in self.hosts:
                    self.hosts[host_id].cancel(outcome, reason, takes_output=instruction.takes_output)
            case instructions.KillHost(host_id=host_id) | instructions.RetireHost(host_id=host_id):
                if host_id in self.hosts:
                    self.hosts[host_id].die("killed")
            case instructions.Resend(attempt_id=attempt_id):
                self.sender.resend(attempt_id)
                self._later(0.01, "send", self._send)
            case instructions.TakeWork(is_wanted=is_wanted):
                self._takes_work = is_wanted
                self._hear()
            case instructions.Say(text=text):
                self.kernel.say(f"{self.machine.node_id}: {text}")
            case _:
                raise Violation(
                    f"the simulation does not know {type(instruction).__name__}: teach it to node.py"
                )

    def _remove_stage(self, stage: instructions.StagePlace, attempt_id: AttemptId) -> None:
        if self.is_alive:
            with contextlib.suppress(OSError, FarmError):
                staging.remove_stage(Path(stage.directory), stage.job_uid, attempt_id)

    def _note(self, note: Note) -> None:
        self._notes.append(note)
        slow = self.machine.slow_disk_until > self.kernel.now
        self._later(self.kernel.draw.uniform(0.5, 5.0) if slow else 0.002, "notes", self._write_notes)

    def _write_notes(self) -> None:
        notes, self._notes = self._notes, []
        self.scribe._take(notes)

    def _reports_written(self, items: Any) -> None:
        self.sender.reports(items)
        self._later(0.01, "send", self._send)

    def _send_heartbeat(self, instruction: instructions.SendHeartbeat) -> None:
        machine = self.machine
        for host in self.hosts.values():
            if host.running is not None:
                host.until = self.core.fence_at(host.running[1].attempt_id, machine.boottime())
        self.sender.heartbeat(
            Heartbeat(
                node_id=machine.node_id,
                session=self._session,
                boot_id=machine.boot_id,
                sequence=instruction.sequence,
                attempts=instruction.attempts,
                evidence=tuple(host.evidence() for host in self.hosts.values() if host.is_rendering)
                if machine.truth.tells_evidence
                else (),
                capabilities=_capabilities(machine.slots) if instruction.is_full else None,
                disk_free_mib=100_000,
                is_draining=instruction.is_draining,
                agent_version="simulated",
            )
        )
        self._later(0.01, "send", self._send)

    def _send(self) -> None:
        batch = self.sender._take(self.machine.boottime())
        if batch.is_empty:
            return
        try:
            self.sender._send(self._publisher, batch)
            self.sender._hear(self._publisher, 0.0)
            self._failures = 0
        except Unavailable:
            self.sender._put_back()
            self._publisher.close()
            self._failures += 1
        # Also for what has to be sent again.
        pause_s = RETRY_S[min(self._failures - 1, len(RETRY_S) - 1)] if self._failures else _BUSY_TICK_S
        if self._failures or self._spool.waiting:
            self._later(pause_s, "send again", self._send)

    # --- what its hosts say ---

    def heard(self, host: Host, event: events.Event) -> None:
        """A line from a host's pipe; it waits there while this process is stopped."""
        if self.is_alive and self.hosts.get(host.host_id) is host:
            self.post(event)

    def logged(self, attempt_id: AttemptId, text: str) -> None:
        if self.is_alive and self.machine.truth.keeps_logs:
            sequence = self._log_sequence.get(attempt_id, 0)
            self._log_sequence[attempt_id] = sequence + 1
            self.sender.log(LogChunk(attempt_id=attempt_id, sequence=sequence, text=text))
            self._later(0.01, "send", self._send)

    def host_died(self, host: Host, reason: str) -> None:
        if self.is_alive and self.hosts.get(host.host_id) is host:
            del self.hosts[host.host_id]
            self.post(events.HostDied(host_id=host.host_id, reason=reason))

    def drain(self, grace_s: float) -> None:
        self.post(events.DrainAsked(grace_s=grace_s))


def _capabilities(slots: int) -> Capabilities:
    cpu = Device(id="cpu", kind=DeviceKind.CPU, model="simulated", slots=slots)
    return Capabilities(cpus=slots, memory_mib=16_000, devices=(cpu,))


class Host:
    """A session host's process: the order of its steps is that of `workers.session_host.Attempt`."""

    def __init__(self, agent: Agent, host_id: int) -> None:
        self.agent: Agent | None = agent
        self.machine = agent.machine
        self.kernel = agent.kernel
        self.host_id = host_id
        self.pid = self.kernel.draw.getrandbits(22)
        self.running: tuple[StepScript, Order] | None = None
        self.ended: list[Finished] = []
        """Told again to the next agent."""
        self.until = math.inf
        """When the attempt is to end unless an agent says more, on the machine's clock of boot time."""
        self._next: tuple[StepScript, Order] | None = None
        self._stop: tuple[Outcome, str] | None = None
        self._takes_output = False
        self._rendering_since: float | None = None
        self._hung_since: float | None = None
        self._is_done = False
        """Its files are whole, and it does not exit."""
        self._is_stopped = False
        """By a signal."""
        self.process = Process(self.kernel, f"{self.machine.node_id}/host{self.pid}", self._main)
        self.process.on_end = self._ended
        self.machine.hosts.append(self)

    def run(self, script: StepScript, order: Order, until: float) -> None:
        self._next = self.running = (script, order)
        self._stop = None
        self._takes_output = False
        self.until = until
        self.process.wake()

    def cancel(self, outcome: Outcome, reason: str, *, takes_output: bool) -> None:
        if self.running is not None:
            self._takes_output = self._takes_output or (takes_output and self._stop is None)
            self._stop = self._stop or (outcome, reason)
            self.process.wake()

    @property
    def is_rendering(self) -> bool:
        return self._rendering_since is not None

    def hang(self, *, is_done: bool) -> None:
        """The renderer does nothing any more: before its end, or after the last file was written."""
        self._hung_since, self._is_done = self.kernel.now, is_done
        self._is_stopped = not is_done and self.kernel.draw.random() < 0.5
        self.process.wake()

    def go_on(self) -> None:
        """What it waited for has come."""
        if self._hung_since is not None:
            self._hung_since, self._is_done, self._is_stopped = None, False, False
            self.process.wake()

    def evidence(self) -> Evidence:
        assert self.running is not None
        assert self._rendering_since is not None
        now = self.kernel.now
        idle_s = 0.0 if self._hung_since is None else now - self._hung_since
        return Evidence(
            attempt_id=self.running[1].attempt_id,
            age_s=now - self._rendering_since,
            processes=1,
            command="render",
            cores=0.0 if idle_s else 1.0,
            cpu_idle_s=idle_s,
            io_idle_s=idle_s,
            silent_s=idle_s,
            states={"T" if self._is_stopped else "S": 1},
            stopped_s=idle_s if self._is_stopped else 0.0,
            files_done_s=idle_s if self._is_done else None,
        )

    def die(self, reason: str) -> None:
        self.process.kill()
        self._bury(reason)

    def agent_is_gone(self) -> None:
        """Its pipe is closed: an attempt goes on, an end is kept for a while, an idle host ends."""
        self.agent = None
        if self.running is None:
            if self.ended:
                self.kernel.at(self.machine.settings.lease_s, self._give_up)
            else:
                self.die("nobody is there")

    def _give_up(self) -> None:
        if self.agent is None and self.running is None:
            self.die("nobody came")

    def _ended(self) -> None:
        self._bury("it ended")

    def _bury(self, reason: str) -> None:
        self.machine.truth.renderer_ended(self)
        if self in self.machine.hosts:
            self.machine.hosts.remove(self)
        if self.agent is not None:
            self.kernel.at(0.05, self.agent.host_died, self, reason)

    def _tell(self, event: events.Event) -> None:
        if self.agent is not None:
            self.agent.heard(self, event)

    def _main(self) -> None:
        try:
            self.process.sleep(self.kernel.draw.uniform(0.05, 0.3))
            self._tell(events.HostReady(host_id=self.host_id))
            while True:
                while self._next is None:
                    self.process.sleep(1e9)
                script, order = self._next
                self._next = None
                self._tell(events.HostStarted(host_id=self.host_id, attempt_id=order.attempt_id))
                finished = self._attempt(script, order)
                self.running = self._stop = None
                self.ended = [*self.ended[-15:], finished]
                self._tell(events.HostFinished(host_id=self.host_id, finished=finished))
                if self.agent is None:
                    self.kernel.at(self.machine.settings.lease_s, self._give_up)
        finally:
            self.machine.truth.renderer_ended(self)

    def _log(self, attempt_id: AttemptId, text: str) -> None:
        if self.agent is not None:
            self.agent.logged(attempt_id, text)

    def _attempt(self, script: StepScript, order: Order) -> Finished:
        published: tuple[PublishedFile, ...] = ()
        by: AttemptId | None = None
        stage: staging.Stage | None = None
        outcome, reason, is_final = Outcome.SUCCEEDED, "", False
        begun_at = self.kernel.now
        try:
            if self._stop is not None:
                outcome, reason = self._stop
            elif script.output is not None and script.isolation is Isolation.STAGED:
                stage, found = self._open(script, order)
                if found is None:
                    outcome, reason = self._render(script, order, stage.directory)
                    if outcome is Outcome.SUCCEEDED:
                        found = self._publish(stage, order)
                if found is not None:
                    published, by = found.files, found.by
            else:
                outcome, reason = self._render(script, order, None)
        except staging.StagingError as error:
            outcome, reason, is_final = error.outcome, str(error), error.is_final
        except Unfit as error:
            outcome, reason = Outcome.JOB_ERROR, str(error)
        if stage is not None and by != order.attempt_id:
            staging.discard(stage)
        self._log(order.attempt_id, "the last line\n")
        return Finished(
            attempt_id=order.attempt_id,
            outcome=outcome,
            reason=reason,
            is_final=is_final,
            files=published,
            published_by=by,
            runtime_s=self.kernel.now - begun_at,
        )

    def _open(self, script: StepScript, order: Order) -> tuple[staging.Stage, staging.Publication | None]:
        assert script.output is not None
        staging.check_names(order.files)
        stage = staging.open_stage(
            script.parameters[script.output.directory_parameter][1],
            allowed_roots=(),
            job_uid=script.job_uid,
            task_id=order.task_id,
            generation=order.generation,
            attempt_id=order.attempt_id,
        )
        found = staging.adopt(stage, may_replace=order.replace_existing, fault=self._fault)
        if found is None:
            staging.refuse_overwrite(stage, order.files, may_replace=order.replace_existing)
        return stage, found

    def _render(self, script: StepScript, order: Order, into: Path | None) -> tuple[Outcome, str]:
        truth = self.machine.truth
        self._log(order.attempt_id, "the first line\n")
        seconds = truth.renderer_started(self, script, order)
        self._rendering_since, self._hung_since = self.kernel.now, None
        self._is_done = self._is_stopped = False
        try:
            if into is not None:
                for name in order.files:
                    (into / name).write_text(f"{order.attempt_id}\n")
            end = self.kernel.now + seconds * self.machine.speed
            while self._stop is None and (self.kernel.now < end or self._hung_since is not None):
                left_s = self.until - self.machine.boottime()
                if left_s <= 0:
                    self._stop = (Outcome.NODE_LOST, "fenced: the node's agent was silent for too long")
                else:
                    rest_s = 1e9 if self._hung_since is not None else end - self.kernel.now
                    self.process.sleep(min(rest_s, max(left_s, 0.01)))
            if self._stop is not None:
                self.process.sleep(self.kernel.draw.uniform(0.0, self.machine.settings.kill_grace_s))
                if not (self._is_done and self._takes_output):
                    return self._stop
            failure = truth.failure_of(order)
            if failure is not None:
                return failure, "the renderer failed"
            if into is not None:
                for name in order.files:
                    with (into / name).open("a") as file:
                        file.write("whole\n")
            return Outcome.SUCCEEDED, ""
        except FileNotFoundError:
            # The job has ended without this attempt, and its private directories were removed.
            return Outcome.JOB_ERROR, "the renderer cannot write"
        finally:
            self._rendering_since = None
            truth.renderer_ended(self)

    def _publish(self, stage: staging.Stage, order: Order) -> staging.Publication:
        if not stage.directory.is_dir():
            raise staging.StagingError(Outcome.CANCELLED, "the job has been tidied away")
        checked = check_files(stage.directory, order.files, is_image=False)
        return staging.publish(stage, checked, may_replace=order.replace_existing, fault=self._fault)

    def _fault(self, step: str) -> None:
        """Between the steps of publishing the host may be stopped or killed, and the disk may fail."""
        self.kernel.checkpoint(step)
        if self.machine.disk_fails_until > self.kernel.now and self.kernel.draw.random() < 0.3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.kernel.draw.random() < 0.05:
            self.process.sleep(self.kernel.draw.uniform(0.01, 1.0))
