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
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from farm.flow.groups import Assignment
from farm.flow.limits import Ledger
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
from farm.store.leader import Lead, acquire, is_led_by_another, leading, resign
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


@dataclass(slots=True)
class _Settled:
    """What came of messages that were stored."""

    answers: list[tuple[NodeId, object]] = field(default_factory=list)
    has_news: bool = False
    """Something that matching looks at now, and not only every second: most heartbeats say nothing new."""

    def add(self, other: _Settled) -> None:
        self.answers += other.answers
        self.has_news |= other.has_news


@dataclass(frozen=True, slots=True, kw_only=True)
class _Silent:
    """What silence there is, and the leases that ran out in it."""

    silence: Silence
    is_patient: bool
    """Most nodes are silent: their leases are given up later."""
    expired: Sequence[tuple[AttemptId, JobId]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owed:
    """What is to be sent to nodes."""

    messages: Sequence[outbox.Owed] = ()
    leased: Mapping[AttemptId, dispatching.Leased] = field(default_factory=dict)
    """What launches among them name, as far as it is still to be started."""

    def of(self, launch: outbox.Owed) -> list[dispatching.Leased]:
        return [self.leased[a] for a in launch.payload["attempt_ids"] if a in self.leased]


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
        lead = None
        if self._lead is not None or not is_led_by_another(self._engine, self._holder):
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
            settled = self._settle(heard)
        except DBAPIError:
            settled = self._settle_one_by_one(bodies)
        reach("scheduler.settled")
        self._intake.acknowledge()
        reach("scheduler.acknowledged")
        is_due = self._clock() - self._watched_at >= _WATCH_EVERY_S
        if is_due:
            self._watched_at = self._clock()
            if self._sent:
                with self._leading() as db:
                    self._take_out_sent(db)
            self._look_around()
            if self._matcher.is_save_due:
                with self._leading() as db:
                    self._matcher.save(db)
            if self._stalls.is_due:
                heard_for_s = self._clock() - self._settled_since
                self._stalls.look(lambda: reading(self._engine), self._leading, heard_for_s=heard_for_s)
            if self._settings.preempt_from is not None:
                self._make_way(self._settings.preempt_from)
            self._publisher.heartbeat()
        if settled.has_news or heard.is_nudged or is_due or not self._may_wait:
            assigned, owed = self._dispatch()
            self._send(owed, settled.answers)
            # With work still flowing the next round must not wait; otherwise a message will wake it.
            self._may_wait = not assigned and len(owed.messages) < self._settings.batch
        else:
            self._send(_Owed(), settled.answers)
        self._linger_s = _AHEAD_LINGER_S if self._matcher.is_ahead else _LINGER_S

    def _leading(self) -> contextlib.AbstractContextManager[sa.Connection]:
        assert self._lead is not None
        return leading(self._engine, self._lead)

    def _settle_one_by_one(self, bodies: Sequence[bytes]) -> _Settled:
        """Something in a batch that the database will not take must not keep the rest out for ever."""
        settled = _Settled()
        for body in bodies:
            heard = sort_messages([body])
            if heard.unreadable:
                continue  # parked already
            try:
                settled.add(self._settle(heard))
            except DBAPIError:
                _LOG.exception("parked a message that the database does not take")
                self._intake.park(body, by=self._holder, reason="the database does not take it")
        return settled

    def _settle(self, heard: Heard) -> _Settled:
        """Store what was heard, in one transaction."""
        settled = _Settled()
        if not (heard.reports or heard.heartbeats or heard.telemetry):
            return settled
        with self._leading() as db:
            self._take_out_sent(db)
            self._settle_reports(db, heard.reports, settled)
            for beat in heard.heartbeats.values():
                self._settle_heartbeat(db, beat, settled)
            for node_id, progress, chunks in _by_node(heard.telemetry):
                settling.progressed(db, node_id, progress)
                logs.append(db, node_id, chunks)
        return settled

    def _settle_reports(self, db: sa.Connection, reports: Sequence[Reports], settled: _Settled) -> None:
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
            settled.answers.append((node_id, ReportsAccepted(attempt_ids=tuple(finished))))
            settled.has_news = True
            self._ended.update(finished)

    def _settle_heartbeat(self, db: sa.Connection, beat: Heartbeat, settled: _Settled) -> None:
        settings = self._settings
        hearing = nodes.heard(db, beat, rival_s=settings.lease_s)
        if hearing.refused:
            _LOG.warning("refused %s: %s", beat.node_id, hearing.refused)
            # Twice: two agents of one name take from the node's queue in turn, and with one answer to each
            # of them every refusal would go to the other one, for ever.
            refusal = HeartbeatAnswer(sequence=beat.sequence, refused=hearing.refused)
            settled.answers += [(beat.node_id, refusal)] * 2
            return
        if hearing.wants_hello:
            settled.answers.append((beat.node_id, SayHello()))
            return
        if hearing.is_old:
            return
        stalling.witness(db, beat.node_id, beat.evidence)
        settling.lock_jobs_of(db, beat.attempts)
        renewal = leases.renew(
            db, beat.node_id, beat.attempts, lease_s=settings.lease_s, relaunch_s=settings.relaunch_s
        )
        if renewal.unsent:
            outbox.owe_launches(db, {beat.node_id: renewal.unsent})
        settled.has_news |= hearing.is_news or bool(renewal.unsent or renewal.gone)
        if renewal.gone and not hearing.is_first:
            settling.lock_jobs_of(db, renewal.gone)
            reason = f"{beat.node_id} says that it does not run it any more"
            lost = [Finished(attempt_id=a, outcome=Outcome.NODE_LOST, reason=reason) for a in renewal.gone]
            settling.finished(db, {beat.node_id: lost})
        answer = HeartbeatAnswer(
            sequence=beat.sequence,
            keep=tuple(renewal.kept),
            stop=tuple(renewal.stop),
            heard_at=hearing.at,
        )
        settled.answers.append((beat.node_id, answer))

    def _look_around(self) -> None:
        """What no message tells: silent nodes, leases that ran out, chunks to be cut anew.

        Nearly always there is none of it: one reading says so, and nothing is written.
        """
        # Of silence only after nodes could be heard for a whole lease.
        is_settled = self._clock() - self._settled_since >= self._settings.lease_s
        with reading(self._engine) as db:
            seen = self._see_silence(db) if is_settled else None
            steps = chunking.adaptive_steps(db)
            slots = sum(v.capabilities.slots for v in nodes.views(db, {}) if v.accepts_work) if steps else 0
        if seen is not None:
            self._act_on_silence(seen)
        if steps:
            self._cut_chunks(steps, slots)

    def _see_silence(self, db: sa.Connection) -> _Silent | None:
        """None: there is nothing to be done about it."""
        settings = self._settings
        silence = leases.silence(db, heard_s=settings.suspect_s)
        if settings.outage_s and is_outage(silence):
            self._outage_at = self._clock()
        # Nodes do not come back all at once: they get a whole lease from when most are heard again.
        is_patient = self._clock() - self._outage_at < settings.lease_s
        grace_s = settings.outage_s if is_patient else 0.0
        expired = leases.expired(db, grace_s=grace_s) if silence.silent else []
        is_news = nodes.is_silence_news(db, suspect_s=settings.suspect_s, offline_s=settings.lease_s)
        if not expired and not is_news and is_patient is self._is_patient:
            return None
        return _Silent(silence=silence, is_patient=is_patient, expired=expired)

    def _act_on_silence(self, seen: _Silent) -> None:
        settings, expired = self._settings, seen.expired
        if expired:
            reach("scheduler.expiring")
        with self._leading() as db:
            nodes.watch(db, suspect_s=settings.suspect_s, offline_s=settings.lease_s)
            if seen.is_patient is not self._is_patient:
                self._is_patient = seen.is_patient
                _tell_of_outage(db, seen.silence if seen.is_patient else None, settings.outage_s)
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

    def _cut_chunks(self, steps: Sequence[chunking.AdaptiveStep], slots: int) -> None:
        """Cut waiting chunks anew where what was rendered says that others would take their time.

        slots: of all nodes that take work.
        """
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

    def _dispatch(self) -> tuple[int, _Owed]:
        """Match and lease; returns how many tasks were assigned, and all that is owed to nodes then."""
        with reading(self._engine) as db:
            if self._ended:
                self._matcher.learn(db, self._ended)
                self._ended.clear()
            groups = ready.groups(db)
            plan: Sequence[Assignment] = ()
            if groups:
                views = nodes.views(db, ready.uses(db))
                plan = self._matcher.plan(db, groups, views, limit=self._settings.batch)
            else:
                self._matcher.nothing_waits()
            if not plan:
                return 0, self._read_owed(db)
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
            owed = self._read_owed(db)
        reach("scheduler.leased")
        return len(given), owed

    def _read_owed(self, db: sa.Connection) -> _Owed:
        """The outbox, less what was sent."""
        messages = [m for m in outbox.read(db, limit=self._settings.batch) if m.id not in self._sent]
        attempts = [a for m in messages if m.kind == "launch" for a in m.payload["attempt_ids"]]
        leased = dispatching.leased(db, attempts) if attempts else ()
        return _Owed(messages=messages, leased={each.attempt_id: each for each in leased})

    # --- sending ----------------------------------------------------------------------------------

    def _send(self, owed: _Owed, answers: Sequence[tuple[NodeId, object]]) -> None:
        """Send answers and what is owed; what the broker confirmed is taken out of the outbox later."""
        if not owed.messages and not answers:
            return
        launches = {m.id: self._launches(owed.of(m)) for m in owed.messages if m.kind == "launch"}
        reach("scheduler.sending")
        for message in owed.messages:
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
        self._sent.update(message.id for message in owed.messages)

    def _take_out_sent(self, db: sa.Connection) -> None:
        """What was sent leaves the outbox with the next transaction; a crash before that sends it twice."""
        outbox.sent(db, self._sent)
        self._sent.clear()

    def _launches(self, waiting: Sequence[dispatching.Leased]) -> list[Launch]:
        """Launch messages for attempts that wait to be started, one for each step."""
        by_step: dict[StepId, list[Order]] = {}
        scripts: dict[StepId, StepScript] = {}
        for leased in waiting:
            script = self._script(leased.job_id, leased.step_id, leased.edition)
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

    def _script(self, job_id: JobId, step_id: StepId, edition: int) -> StepScript:
        """What all attempts of the step share: read once for each edition of the job."""
        key = (step_id, edition)
        if key in self._scripts:
            self._scripts.move_to_end(key)
            return self._scripts[key]
        submission, parameters = self._spaces.source(job_id, edition=edition)
        with reading(self._engine) as db:
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
