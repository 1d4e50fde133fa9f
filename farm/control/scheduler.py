"""The scheduler's loop: hear the nodes, settle what they report, match what is ready, send what is owed.

One thread, one leader. A standby only tries for the lease. Everything a message says is stored before it is
acknowledged; everything owed to a node is stored before it is sent. A crash between any two lines below
leaves rows that the next leader finds and goes on with.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from farm.broker.intake import Intake
from farm.broker.publisher import Publisher
from farm.broker.queues import farm_queues
from farm.control import sharing
from farm.control.matcher import Matcher
from farm.control.spaces import Spaces
from farm.control.stallwatch import StallWatch
from farm.errors import NotLeader, Unavailable
from farm.failpoints import reach
from farm.flow.chunks import recut
from farm.flow.limits import Ledger
from farm.flow.match import Assignment
from farm.flow.outage import Silence, is_outage
from farm.flow.preempt import make_way
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, NodeId, StepId
from farm.model.limits import limits_needed
from farm.model.states import Outcome
from farm.model.work import Isolation
from farm.settings import Settings
from farm.store import (
    chunking,
    dispatching,
    events,
    jobs,
    leases,
    limits,
    logs,
    moves,
    nodes,
    outbox,
    preempting,
    ready,
    settling,
    stalling,
)
from farm.store.engine import reading
from farm.store.leader import Lead, acquire, leading, resign
from farm.text import clean, duration, plural
from farm.trouble import Trouble
from farm.wire import queues as names
from farm.wire.messages import (
    Finished,
    FromNode,
    Heartbeat,
    HeartbeatAnswer,
    Launch,
    LogChunk,
    Order,
    Progress,
    Reports,
    ReportsAccepted,
    SayHello,
    Started,
    StepScript,
    Telemetry,
    UnknownMessage,
    dump,
    load,
)

_LOG = logging.getLogger(__name__)

_WATCH_EVERY_S = 1.0
_LINGER_S = 0.008
_AHEAD_LINGER_S = 0.1
"""Reports come in crowds: a round for each would cost more than this wait. It is longer while short tasks
queue on the nodes: no slot waits for the next round then."""
_SCRIPTS_KEPT = 1_000
_SETTLED_S = 10.0
"""A broker that takes nothing answers as long as it is told nothing: that is not the end of the trouble."""


@dataclass(slots=True)
class Heard:
    """A batch of messages, sorted by what they are."""

    reports: list[Reports] = field(default_factory=list)
    heartbeats: dict[NodeId, Heartbeat] = field(default_factory=dict)
    """The newest of each node: an older one says nothing more."""
    telemetry: list[Telemetry] = field(default_factory=list)
    is_nudged: bool = False
    unreadable: list[bytes] = field(default_factory=list)


def sort_messages(bodies: Iterable[bytes]) -> Heard:
    heard = Heard()
    for body in bodies:
        if body == b'"nudge"':
            heard.is_nudged = True
            continue
        try:
            message = load(FromNode, body)
        except UnknownMessage as error:
            _LOG.warning("parked a message that cannot be read: %s", error)
            heard.unreadable.append(body)
            continue
        if isinstance(message, Reports):
            heard.reports.append(message)
        elif isinstance(message, Heartbeat):
            known = heard.heartbeats.get(message.node_id)
            if known is None or known.session != message.session or known.sequence < message.sequence:
                heard.heartbeats[message.node_id] = message
        else:
            heard.telemetry.append(message)
    return heard


def _random_id() -> str:
    return str(uuid.uuid4())


class Scheduler:
    """Owned by one thread: `run`."""

    def __init__(
        self,
        engine: sa.Engine,
        settings: Settings,
        *,
        intake: Intake | None = None,
        publisher: Publisher | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = _random_id,
    ) -> None:
        """The named arguments are the doors to the world, for simulations: None is the settings' broker."""
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._holder = f"{settings.node_name}-{new_id()[:8]}"
        self._spaces = Spaces(engine)
        self._matcher = Matcher(settings, clock=clock)
        self._ended: set[AttemptId] = set()
        """Attempts that ended and have yet to teach the matcher."""
        self._intake = intake or Intake(settings.broker_url, farm_queues(), prefetch=settings.batch * 2)
        self._publisher = publisher or Publisher(settings.broker_url)
        self._stalls = StallWatch(settings, run_times=self._matcher.expected, clock=clock, new_id=new_id)
        self._lead: Lead | None = None
        self._stands_by = False
        self._renewed_at = 0.0
        self._watched_at = 0.0
        self._settled_since = 0.0
        """Since when (monotonic) nodes could be heard without a break; silence before that proves nothing."""
        self._outage_at = float("-inf")
        """When (monotonic) most nodes were last silent at once."""
        self._is_patient = False
        """Leases are not given up, because of such an outage."""
        self._scripts: OrderedDict[tuple[StepId, int], StepScript] = OrderedDict()
        """By step and edition of the job."""
        self._sent: set[int] = set()
        """Confirmed by the broker, and still in the outbox."""
        self._may_wait = False
        self._linger_s = _LINGER_S
        self._trouble = Trouble()

    def run(self, stop: threading.Event) -> None:
        """Until `stop`. Trouble with the broker or the database is logged and outlived."""
        pause_s = 0.2
        while not stop.is_set():
            try:
                if self._leads():
                    self._round()
                    pause_s = 0.2
                else:
                    stop.wait(min(1.0, self._settings.leader_ttl_s / 4))
                self._say_if_over()
            except NotLeader as error:
                _LOG.warning("%s", error)
                self._step_down()
            except Unavailable as error:
                if self._trouble.is_news(str(error), self._clock()):
                    _LOG.warning("%s; trying again until it answers", clean(str(error), one_line=True))
                self._intake.close()
                self._settled_since = self._clock()
                stop.wait(pause_s)
                # Not so long that the lease runs out meanwhile.
                pause_s = min(pause_s * 2, 3.0, self._settings.leader_ttl_s / 3)
        self._end()

    def _say_if_over(self) -> None:
        lasted_s = self._trouble.lasted_s(self._clock(), settled_s=_SETTLED_S)
        if lasted_s is not None:
            _LOG.info("database and broker answer again; the trouble lasted %s", duration(lasted_s))

    # --- leading ----------------------------------------------------------------------------------

    def _leads(self) -> bool:
        """Hold the lease, renewed after a third of its time, or try for it."""
        now = self._clock()
        if self._lead is not None and now - self._renewed_at < self._settings.leader_ttl_s / 3:
            return True
        lead = acquire(self._engine, holder=self._holder, ttl_s=self._settings.leader_ttl_s)
        if lead is None:
            self._step_down()
            if not self._stands_by:
                _LOG.info("standing by: another scheduler leads")
            self._stands_by = True
            return False
        self._stands_by = False
        if self._lead != lead:
            _LOG.info("leading: %s, epoch %d", lead.holder, lead.epoch)
            with reading(self._engine) as db:
                self._matcher.take_over(db)
            with leading(self._engine, lead) as db:
                limits.follow_settings(db, self._settings.declared_limits)
            self._settled_since = now
            self._may_wait = False
        self._lead, self._renewed_at = lead, now
        return True

    def _step_down(self) -> None:
        if self._lead is not None:
            _LOG.warning("no longer leading")
        self._lead = None
        # Unacknowledged messages go back to the broker, for the next leader.
        self._intake.close()

    def _end(self) -> None:
        self._intake.close()
        self._publisher.close()
        if self._lead is not None:
            try:
                resign(self._engine, self._lead)
            except Unavailable as error:
                _LOG.warning("%s", error)

    # --- one round --------------------------------------------------------------------------------

    def _round(self) -> None:
        """Everything once. Raises NotLeader, Unavailable."""
        wait_s = self._settings.idle_tick_s if self._may_wait else 0.001
        was_connected = self._intake.is_connected
        bodies = self._intake.drain(wait_s, self._settings.batch, linger_s=self._linger_s)
        heard = sort_messages(bodies)
        reach("scheduler.taken")
        if not was_connected:
            self._settled_since = self._clock()
        for body in heard.unreadable:
            self._intake.park(body, by=self._holder, reason="this version cannot read it")
        try:
            answers = self._settle(heard)
        except DBAPIError:
            answers = self._settle_one_by_one(bodies)
        reach("scheduler.settled")
        self._intake.acknowledge()
        reach("scheduler.acknowledged")
        has_work = bool(heard.reports or heard.heartbeats or heard.is_nudged)
        is_due = self._clock() - self._watched_at >= _WATCH_EVERY_S
        if is_due:
            self._watched_at = self._clock()
            if self._sent:
                with self._leading() as db:
                    self._take_out_sent(db)
            self._watch()
            self._cut_chunks()
            if self._matcher.is_save_due:
                with self._leading() as db:
                    self._matcher.save(db)
            if self._stalls.is_due:
                heard_for_s = self._clock() - self._settled_since
                self._stalls.look(lambda: reading(self._engine), self._leading, heard_for_s=heard_for_s)
            if self._settings.preempt_from is not None:
                self._make_way(self._settings.preempt_from)
            self._publisher.heartbeat()
        assigned = self._dispatch() if has_work or is_due or not self._may_wait else 0
        sent = self._send(answers)
        # With work still flowing the next round must not wait; otherwise a message will wake it.
        self._may_wait = not (assigned or sent)
        self._linger_s = _AHEAD_LINGER_S if self._matcher.is_ahead else _LINGER_S

    def _leading(self) -> contextlib.AbstractContextManager[sa.Connection]:
        assert self._lead is not None
        return leading(self._engine, self._lead)

    def _settle_one_by_one(self, bodies: Sequence[bytes]) -> list[tuple[NodeId, object]]:
        """Something in a batch that the database will not take must not keep the rest out for ever."""
        answers: list[tuple[NodeId, object]] = []
        for body in bodies:
            heard = sort_messages([body])
            if heard.unreadable:
                continue  # parked already
            try:
                answers += self._settle(heard)
            except DBAPIError:
                _LOG.exception("parked a message that the database does not take")
                self._intake.park(body, by=self._holder, reason="the database does not take it")
        return answers

    def _settle(self, heard: Heard) -> list[tuple[NodeId, object]]:
        """Store what was heard, in one transaction; returns the answers to be sent."""
        if not (heard.reports or heard.heartbeats or heard.telemetry):
            return []
        answers: list[tuple[NodeId, object]] = []
        with self._leading() as db:
            self._take_out_sent(db)
            self._settle_reports(db, heard.reports, answers)
            for beat in heard.heartbeats.values():
                self._settle_heartbeat(db, beat, answers)
            for node_id, progress, chunks in _by_node(heard.telemetry):
                settling.progressed(db, node_id, progress)
                logs.append(db, node_id, chunks)
        return answers

    def _settle_reports(
        self, db: sa.Connection, reports: Sequence[Reports], answers: list[tuple[NodeId, object]]
    ) -> None:
        begun: dict[NodeId, dict[AttemptId, None]] = {}
        ended: dict[NodeId, dict[AttemptId, Finished]] = {}
        for report in reports:
            for item in report.items:
                if isinstance(item, Started):
                    begun.setdefault(report.node_id, {})[item.attempt_id] = None
                else:
                    ended.setdefault(report.node_id, {})[item.attempt_id] = item
        touched = [a for found in (begun, ended) for per_node in found.values() for a in per_node]
        if not touched:
            return
        settling.lock_jobs_of(db, touched)
        for node_id, attempt_ids in begun.items():
            # One that ended in the same batch goes straight to its end.
            still = [a for a in attempt_ids if a not in ended.get(node_id, {})]
            if still:
                settling.started(db, node_id, still)
        settling.finished(db, {node_id: list(found.values()) for node_id, found in ended.items()})
        for node_id, finished in ended.items():
            answers.append((node_id, ReportsAccepted(attempt_ids=tuple(finished))))
            self._ended.update(finished)

    def _settle_heartbeat(
        self, db: sa.Connection, beat: Heartbeat, answers: list[tuple[NodeId, object]]
    ) -> None:
        settings = self._settings
        hearing = nodes.heard(db, beat, rival_s=settings.lease_s)
        if hearing.refused:
            _LOG.warning("refused %s: %s", beat.node_id, hearing.refused)
            # Twice: two agents of one name take from the node's queue in turn, and with one answer to each
            # of them every refusal would go to the other one, for ever.
            refusal = HeartbeatAnswer(sequence=beat.sequence, refused=hearing.refused)
            answers += [(beat.node_id, refusal)] * 2
            return
        if hearing.wants_hello:
            answers.append((beat.node_id, SayHello()))
            return
        if hearing.is_old:
            return
        stalling.witness(db, beat.node_id, beat.evidence)
        settling.lock_jobs_of(db, beat.attempts)
        kept, stop = leases.renew(db, beat.node_id, beat.attempts, lease_s=settings.lease_s)
        unsent, gone = leases.unheard(db, beat.node_id, set(beat.attempts), relaunch_s=settings.relaunch_s)
        if unsent:
            outbox.owe_launches(db, {beat.node_id: unsent})
        if gone and not hearing.is_first:
            settling.lock_jobs_of(db, gone)
            reason = f"{beat.node_id} says that it does not run it any more"
            lost = [Finished(attempt_id=a, outcome=Outcome.NODE_LOST, reason=reason) for a in gone]
            settling.finished(db, {beat.node_id: lost})
        answer = HeartbeatAnswer(
            sequence=beat.sequence, keep=tuple(kept), stop=tuple(stop), heard_at=hearing.at
        )
        answers.append((beat.node_id, answer))

    def _watch(self) -> None:
        """Silent nodes and leases that ran out: only after nodes could be heard for a whole lease."""
        settings = self._settings
        if self._clock() - self._settled_since < settings.lease_s:
            return
        suspect_s = settings.suspect_s
        with reading(self._engine) as db:
            silence = leases.silence(db, heard_s=suspect_s)
            if settings.outage_s and is_outage(silence):
                self._outage_at = self._clock()
            # Nodes do not come back all at once: they get a whole lease from when most are heard again.
            is_patient = self._clock() - self._outage_at < settings.lease_s
            expired = leases.expired(db, grace_s=settings.outage_s if is_patient else 0.0)
        if expired:
            reach("scheduler.expiring")
        with self._leading() as db:
            nodes.watch(db, suspect_s=suspect_s, offline_s=settings.lease_s)
            if is_patient is not self._is_patient:
                self._is_patient = is_patient
                _tell_of_outage(db, silence if is_patient else None, settings.outage_s)
            if expired:
                moves.lock_jobs(db, {job_id for _, job_id in expired})
                settling.expire_leases(db, [attempt_id for attempt_id, _ in expired])

    def _make_way(self, from_priority: int) -> None:
        """Stop what loses little for urgent tasks that find no room, where their jobs ask for it."""
        settings = self._settings
        with reading(self._engine) as db:
            asking = preempting.asking(db, from_priority=from_priority)
            if not asking:
                return
            waiting = ready.groups(db)
            views = nodes.views(db, ready.uses(db))
            groups, free, kept = sharing.read(db, settings, waiting).round(waiting, views)
            most = max((group.priority for group in groups if group.job_id in asking), default=0)
            ways = make_way(
                groups,
                kept.views,
                preempting.victims(db, below=most, ran_s=settings.preempt_loss_s),
                asking=asking,
                from_priority=from_priority,
                loss_s=settings.preempt_loss_s,
                stopping=preempting.stopping(db),
                free=free,
            )
        if ways:
            with self._leading() as db:
                moves.lock_jobs(db, {way.victim.job_id for way in ways})
                preempting.stop(db, ways)

    def _cut_chunks(self) -> None:
        """Cut waiting chunks anew where what was rendered says that others would take their time."""
        with reading(self._engine) as db:
            steps = chunking.adaptive_steps(db)
            if not steps:
                return
            slots = sum(v.capabilities.slots for v in nodes.views(db, {}) if v.accepts_work)
        with self._leading() as db:
            moves.lock_jobs(db, {step.job_id for step in steps})
            for step in steps:
                tasks = chunking.waiting(db, step.step_id)
                made = recut(
                    list(tasks.values()),
                    chunking.runs(db, step.step_id),
                    target_s=step.target_s,
                    slots=slots,
                )
                if made is not None:
                    chunking.cut_anew(db, step, list(tasks), made)

    def _dispatch(self) -> int:
        """Match and lease; returns how many tasks were assigned."""
        with reading(self._engine) as db:
            if self._ended:
                self._matcher.learn(db, self._ended)
                self._ended.clear()
            groups = ready.groups(db)
            if not groups:
                self._matcher.nothing_waits()
                return 0
            views = nodes.views(db, ready.uses(db))
            plan = self._matcher.plan(db, groups, views, limit=self._settings.batch)
        if not plan:
            return 0
        reach("scheduler.matched")
        needs = {g.step_id: limits_needed(g.demand.amounts) for g in groups if g.demand.amounts}
        by_step: dict[StepId, list[Assignment]] = {}
        for assignment in plan:
            by_step.setdefault(assignment.step_id, []).append(assignment)
        given: list[dispatching.Lease] = []
        with self._leading() as db:
            self._take_out_sent(db)
            moves.lock_jobs(db, {a.job_id for a in plan})
            # Counted again where nobody else can start attempts: a limit may have been lowered meanwhile.
            ledger = limits.ledger(db) if any(needs.get(step_id) for step_id in by_step) else Ledger({})
            for step_id, assignments in by_step.items():
                places = _within_limits(ledger, needs.get(step_id, ()), assignments)
                claimed = dispatching.claim(db, step_id, [(a.node_id, a.count) for a in places])
                given += (
                    dispatching.Lease(
                        attempt_id=AttemptId(self._new_id()),
                        task=task,
                        node_id=place.node_id,
                        device_id=place.device_id,
                        decision=decision,
                    )
                    for place, tasks in zip(places, claimed, strict=True)
                    for decision in [self._matcher.decision(place)]
                    for task in tasks
                )
            dispatching.lease(db, given, lease_s=self._settings.lease_s)
        reach("scheduler.leased")
        return len(given)

    # --- sending ----------------------------------------------------------------------------------

    def _send(self, answers: Sequence[tuple[NodeId, object]]) -> int:
        """Send answers and everything in the outbox; what the broker confirmed is taken out of it."""
        with reading(self._engine) as db:
            owed = [m for m in outbox.read(db, limit=self._settings.batch) if m.id not in self._sent]
            attempts = [a for m in owed if m.kind == "launch" for a in m.payload["attempt_ids"]]
            leased = {each.attempt_id: each for each in dispatching.leased(db, attempts)} if attempts else {}
            launches = {
                message.id: self._launches(
                    db, [leased[a] for a in message.payload["attempt_ids"] if a in leased]
                )
                for message in owed
                if message.kind == "launch"
            }
        if not owed and not answers:
            return 0
        reach("scheduler.sending")
        for message in owed:
            node_id = NodeId(message.node_id)
            if message.kind == "launch":
                for launch in launches[message.id]:
                    self._publisher.publish(
                        names.launch_queue(node_id),
                        dump(launch),
                        persistent=True,
                        celery_task=names.LAUNCH_HANDLER,
                    )
            else:
                body = json.dumps(message.payload).encode()
                self._publisher.publish(names.control_queue(node_id), body, persistent=True)
        for node_id, answer in answers:
            self._publisher.publish(names.control_queue(node_id), dump(answer), persistent=False)
        self._publisher.flush(timeout_s=5.0)
        if self._publisher.unroutable:
            # The node's queue is gone: its heartbeats will bring the launch about again, or its lease ends.
            _LOG.warning("no queue for %s", ", ".join(sorted(self._publisher.unroutable)))
            self._publisher.unroutable.clear()
        reach("scheduler.sent")
        self._sent.update(message.id for message in owed)
        return len(owed)

    def _take_out_sent(self, db: sa.Connection) -> None:
        """What was sent leaves the outbox with the next transaction; a crash before that sends it twice."""
        outbox.sent(db, self._sent)
        self._sent.clear()

    def _launches(self, db: sa.Connection, waiting: Sequence[dispatching.Leased]) -> list[Launch]:
        """Launch messages for attempts that wait to be started, one for each step."""
        by_step: dict[StepId, list[Order]] = {}
        scripts: dict[StepId, StepScript] = {}
        for leased in waiting:
            script = self._script(db, leased.job_id, leased.step_id, leased.edition)
            scripts[leased.step_id] = script
            space = self._spaces.of(leased.job_id, edition=leased.edition)
            order = Order(
                attempt_id=leased.attempt_id,
                task_id=leased.task_id,
                label=space.label(script.step, leased.index),
                parameters=space.parameters(script.step, leased.index),
                files=space.files(script.step, leased.index),
                frames=space.frames(script.step, leased.index),
                generation=leased.generation,
                replace_existing=leased.replace_existing or leased.generation > 1,
                device_id=leased.device_id,
                assigned_at=leased.assigned_at,
            )
            by_step.setdefault(leased.step_id, []).append(order)
        return [Launch(script=scripts[s], orders=tuple(orders)) for s, orders in by_step.items()]

    def _script(self, db: sa.Connection, job_id: JobId, step_id: StepId, edition: int) -> StepScript:
        """What all attempts of the step share: read once for each edition of the job."""
        key = (step_id, edition)
        if key in self._scripts:
            self._scripts.move_to_end(key)
            return self._scripts[key]
        submission, parameters = self._spaces.source(job_id, edition=edition)
        job = jobs.read_job(db, job_id)
        for step in job.steps:
            self._scripts[step.id, edition] = StepScript(
                job_id=job_id,
                job_uid=job.uid,
                job_name=job.name,
                step=step.name,
                kind=submission.kind,
                template=submission.template,
                parameters=parameters,
                output=step.output,
                # To a node a probe is a step that publishes nothing, and may be started again.
                isolation=Isolation.STAGED if step.isolation is Isolation.PROBE else step.isolation,
                timeout_s=submission.settings.timeout_s,
                keeps_sessions=submission.settings.keep_sessions,
            )
        found = self._scripts[key]
        while len(self._scripts) > _SCRIPTS_KEPT:
            self._scripts.popitem(last=False)
        return found


def _within_limits(
    ledger: Ledger, needed: Sequence[tuple[str, int]], assignments: Sequence[Assignment]
) -> list[Assignment]:
    """The assignments of one step, as far as its limits allow; what they take is taken from the ledger."""
    allowed = []
    for each in assignments:
        count = ledger.how_many(needed, job_id=each.job_id, node_id=each.node_id, wanted=each.count)
        if count:
            ledger.take(needed, job_id=each.job_id, node_id=each.node_id, tasks=count)
            allowed.append(replace(each, count=count))
    return allowed


def _tell_of_outage(db: sa.Connection, silence: Silence | None, outage_s: float) -> None:
    if silence is None:
        events.happened(db, EventKind.OUTAGE_ENDED, "most nodes are heard again")
        return
    text = (
        f"{plural(silence.silent, 'node')} at work fell silent, {silence.heard} are heard: the network is "
        f"likelier broken than the nodes. Their tasks are left to them for up to {duration(outage_s)}"
    )
    _LOG.warning("%s", text)
    events.happened(db, EventKind.OUTAGE_SUSPECTED, text)


def _by_node(
    telemetry: Sequence[Telemetry],
) -> list[tuple[NodeId, list[Progress], list[LogChunk]]]:
    """The newest progress of each attempt, and all log chunks, by node."""
    progress: dict[NodeId, dict[AttemptId, Progress]] = {}
    chunks: dict[NodeId, list[LogChunk]] = {}
    for message in telemetry:
        for item in message.items:
            if isinstance(item, Progress):
                progress.setdefault(message.node_id, {})[item.attempt_id] = item
            else:
                chunks.setdefault(message.node_id, []).append(item)
    return [
        (node_id, list(progress.get(node_id, {}).values()), chunks.get(node_id, []))
        for node_id in sorted({*progress, *chunks})
    ]
