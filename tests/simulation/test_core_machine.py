"""The farm's core as a state machine: any message ever sent may come at any time, and come again.

Real: the scheduler's rounds, the store's verbs on SQLite, the decisions of `farm.flow`. Hypothesis plays the
nodes, the clock, a second scheduler and people, and makes what it finds short. Each history ends with nodes
that do as they are told: then every task must end.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from farm.control.scheduler import Scheduler
from farm.errors import FarmError, NotLeader
from farm.model.ids import AttemptId, JobId, NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.states import Outcome, TaskState
from farm.settings import load_settings
from farm.store import steering, submitting
from farm.store.engine import writing
from farm.wire import queues as names
from farm.wire.messages import Finished, Heartbeat, Launch, Reports, Started, dump, load
from tests.simulation.database import Database
from tests.simulation.farm import new_database, planned
from tests.simulation.kernel import Kernel, Violation
from tests.simulation.mutants import MUTANTS, Cut, Mutant, planted
from tests.simulation.truth import Truth

NODES = ("node0", "node1")
ENDS_WITHIN = 60
"""Times that obedient nodes are heard, two minutes apart, until every task must have ended."""
_index = st.integers(0, 1_000)


@dataclass
class _Broker:
    """Keeps everything; hands over what it is told to."""

    due: list[bytes] = field(default_factory=list)
    launched: list[tuple[str, str]] = field(default_factory=list)
    """(node, attempt) of every order that was sent."""
    unroutable: set[str] = field(default_factory=set)
    is_connected: bool = True

    def drain(self, timeout_s: float, most: int, *, linger_s: float = 0.0) -> list[bytes]:
        taken, self.due = self.due, []
        return taken

    def publish(
        self, routing_key: str, body: bytes, *, persistent: bool, celery_task: str | None = None
    ) -> None:
        if celery_task is not None:
            launch = load(Launch, body)
            node_id = routing_key.removeprefix(names.launch_queue(NodeId("")))
            self.launched += [(node_id, order.attempt_id) for order in launch.orders]

    def park(self, body: bytes, **_: str) -> None:
        raise Violation(f"parked: {body[:200]!r}")

    def nothing(self, *_: Any, **__: Any) -> None:
        pass

    acknowledge = close = flush = heartbeat = nothing


@dataclass
class _Actor:
    """Who writes, for the checks."""

    name: str
    trouble: None = None


class Core(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 3))
    def begin(self, seed: int) -> None:
        self.kernel = Kernel(seed)
        self.database: Database = new_database()
        self.truth = Truth(self.kernel, self.database)
        self.database.begin_seed(self.kernel, self.truth.committed)
        self.broker = _Broker()
        self.sent: list[bytes] = []
        self.sequence = 0
        self.is_broken = False
        self.promised: dict[str, JobId] = {}
        """Idempotency key to the job that its client was told."""
        self.actors = [_Actor("scheduler0"), _Actor("scheduler1")]
        self.schedulers = [
            Scheduler(
                self.database.engine,
                load_settings(environment={}, node_name=actor.name, state_dir="/nonexistent"),
                intake=self.broker,  # type: ignore[arg-type]
                publisher=self.broker,  # type: ignore[arg-type]
                clock=lambda: self.kernel.now,
                new_id=self.kernel.new_id,
            )
            for actor in self.actors
        ]
        for node in NODES:
            self.beat(0, NODES.index(node))
        self.submit("staged", 2)

    def teardown(self) -> None:
        if hasattr(self, "kernel") and not self.is_broken:
            self._come_to_an_end()

    def _come_to_an_end(self) -> None:
        """I3: whatever came before, when nodes do as they are told every task ends."""
        ask = self.database.ask
        for _ in range(ENDS_WITHIN):
            left = ask("SELECT id, state FROM task WHERE state NOT IN ('done', 'failed', 'cancelled')")
            if not left:
                self.the_rows_agree()
                return
            for index, _ in enumerate(ask("SELECT id FROM job")):
                self.retry(index, TaskState.HELD)
            for index, node in enumerate(NODES):
                self.beat(0, index)
                self.beat(1, index)
                for which in (0, 1):
                    self._round(which)
                for (attempt_id,) in self._given_to(node):
                    for item in (
                        Started(attempt_id=AttemptId(attempt_id)),
                        Finished(attempt_id=AttemptId(attempt_id), outcome=Outcome.SUCCEEDED),
                    ):
                        self._report(0, node, item)
                        self._report(1, node, item)
            self.kernel.now += 120.0
        raise Violation(f"I3: {len(left)} tasks never end, such as {left[0]}")

    def _given_to(self, node: str) -> list[Any]:
        return self.database.ask(
            "SELECT id FROM attempt WHERE node_id = ? AND state IN ('assigned', 'running', 'cancelling')",
            node,
        )

    # --- the farm ---

    def _round(self, which: int, *bodies: bytes, renews: bool = True) -> None:
        scheduler, actor = self.schedulers[which], self.actors[which]
        self.sent += bodies
        self.broker.due = list(bodies)
        self.kernel.current = actor  # type: ignore[assignment]
        was_broken, self.is_broken = self.is_broken, True
        try:
            if (not renews or scheduler._leads()) and scheduler._lead is not None:
                with contextlib.suppress(NotLeader):
                    scheduler._round()
            self.is_broken = was_broken
        finally:
            self.kernel.current = None

    @rule(which=st.integers(0, 1), renews=st.booleans())
    def round(self, which: int, renews: bool) -> None:
        """Without renewing: it was stopped since, and believes that it leads."""
        self._round(which, renews=renews)

    @rule(which=st.integers(0, 1), node=st.integers(0, 1))
    def overtaken(self, which: int, node: int) -> None:
        """It is stopped for longer than its lease, the other leads meanwhile, and it goes on."""
        if self.schedulers[which]._lead is not None:
            self.kernel.now += 12.0
            self._round(1 - which)
            self._round(which, self._heartbeat(NODES[node]), renews=False)

    @rule(seconds=st.sampled_from((0.5, 4.0, 12.0, 31.0)))
    def wait(self, seconds: float) -> None:
        self.kernel.now += seconds

    @rule(which=st.integers(0, 1), index=_index)
    def again(self, which: int, index: int) -> None:
        """A message that was sent once comes (again)."""
        if self.sent:
            body = self.sent[index % len(self.sent)]
            self._round(which, body)
            self.sent.pop()

    # --- nodes ---

    def _order(self, index: int) -> tuple[str, str] | None:
        return self.broker.launched[index % len(self.broker.launched)] if self.broker.launched else None

    @rule(which=st.integers(0, 1), node=st.integers(0, 1), is_behind=st.booleans())
    def beat(self, which: int, node: int, is_behind: bool = False) -> None:
        self._round(which, self._heartbeat(NODES[node], is_behind=is_behind))

    def _heartbeat(self, node: str, *, is_behind: bool = False) -> bytes:
        """It lists what the farm has given it, and the farm has not been told the end of.

        A node that is behind has read no answer yet, and lists all that it ever had.
        """
        self.sequence += 1
        given = self.database.ask("SELECT id FROM attempt WHERE node_id = ?", node)
        return dump(
            Heartbeat(
                node_id=NodeId(node),
                session=f"session of {node}",
                boot_id=f"boot of {node}",
                sequence=self.sequence,
                attempts=tuple(AttemptId(row[0]) for row in (given if is_behind else self._given_to(node))),
                capabilities=_machine(),
            )
        )

    @rule(which=st.integers(0, 1), node=st.integers(0, 1))
    def falls_silent(self, which: int, node: int) -> None:
        """For longer than a lease, while the other node is heard and the leader leads on."""
        for _ in range(5):
            self.kernel.now += 8.0
            self._round(which, self._heartbeat(NODES[1 - node]))

    @rule(which=st.integers(0, 1), index=_index)
    def start(self, which: int, index: int) -> None:
        order = self._order(index)
        if order is not None:
            self._report(which, order[0], Started(attempt_id=AttemptId(order[1])))

    @rule(which=st.integers(0, 1), index=_index, outcome=st.sampled_from(list(Outcome)))
    def end(self, which: int, index: int, outcome: Outcome) -> None:
        order = self._order(index)
        if order is not None:
            self._report(which, order[0], Finished(attempt_id=AttemptId(order[1]), outcome=outcome))

    @rule(which=st.integers(0, 1), index=_index, other=_index)
    def end_with_files_of_another(self, which: int, index: int, other: int) -> None:
        """It found an earlier attempt's files published; or says so, of an attempt at any task."""
        order, publisher = self._order(index), self._order(other)
        if order is not None and publisher is not None:
            end = Finished(
                attempt_id=AttemptId(order[1]),
                outcome=Outcome.SUCCEEDED,
                published_by=AttemptId(publisher[1]),
            )
            self._report(which, order[0], end)

    @rule(which=st.integers(0, 1), index=_index, outcome=st.sampled_from(list(Outcome)))
    def lie(self, which: int, index: int, outcome: Outcome) -> None:
        """G7: a node tells of another node's attempt; that attempt must stay as it is."""
        order = self._order(index)
        if order is None:
            return
        liar = next(node for node in NODES if node != order[0])
        for item in (
            Started(attempt_id=AttemptId(order[1])),
            Finished(attempt_id=AttemptId(order[1]), outcome=outcome),
        ):
            before = self._attempt(order[1])
            self._report(which, liar, item)
            # The round has also looked for leases that are over: that is no doing of the liar.
            after = self._attempt(order[1])
            if after != before and not after[1].endswith("is silent"):
                raise Violation(f"G7: {liar} changed {order[1][:8]} of {order[0]}: {before} -> {after}")

    def _attempt(self, attempt_id: str) -> Any:
        return self.database.ask("SELECT state, reason FROM attempt WHERE id = ?", attempt_id)[0]

    def _report(self, which: int, node: str, item: Started | Finished) -> None:
        report = Reports(node_id=NodeId(node), session=f"session of {node}", items=(item,))
        self._round(which, dump(report))

    # --- people ---

    @rule(kind=st.sampled_from(("staged", "two", "exclusive")), frames=st.integers(1, 3))
    def submit(self, kind: str, frames: int) -> None:
        if len(self.database.ask("SELECT id FROM job")) < 3:
            submission, plan = planned(frames, kind, 1)
            with writing(self.database.engine) as db:
                submitting.submit(db, submission, replace(plan, uid=self.kernel.new_id()), actor="anna")

    @rule(key=st.sampled_from(("a", "b")), is_changed=st.booleans())
    def submit_with_a_key(self, key: str, is_changed: bool) -> None:
        """I9: a client that had no answer asks again: the same key is the same job."""
        if key not in self.promised and len(self.database.ask("SELECT id FROM job")) >= 3:
            return
        submission, plan = planned(1, "staged", 1)
        digest = "another" if is_changed and key in self.promised else "d"
        with contextlib.suppress(FarmError), writing(self.database.engine) as db:
            plan = replace(plan, uid=self.kernel.new_id())
            job_id, _ = submitting.submit(db, submission, plan, actor="anna", key=key, digest=digest)
            if self.promised.setdefault(key, job_id) != job_id:
                raise Violation(f"I9: key {key} is job {self.promised[key]} and job {job_id}")

    def _a_job(self, index: int) -> JobId:
        found = self.database.ask("SELECT id FROM job ORDER BY id")
        return JobId(found[index % len(found)][0])

    @rule(index=_index)
    def cancel(self, index: int) -> None:
        with writing(self.database.engine) as db:
            steering.cancel(db, self._a_job(index), actor="anna", reason="enough")

    @rule(
        index=_index,
        state=st.sampled_from((TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.HELD)),
    )
    def retry(self, index: int, state: TaskState) -> None:
        job_id = self._a_job(index)
        self.truth.requeued.add(job_id)
        with writing(self.database.engine) as db:
            steering.retry(db, job_id, actor="anna", states=[state])

    # --- always ---

    @invariant()
    def the_rows_agree(self) -> None:
        if not hasattr(self, "truth"):
            return
        was_broken, self.is_broken = self.is_broken, True
        self.truth._check_counts()
        self.truth._check_counters()
        ask = self.database.ask
        doubled = ask(
            "SELECT task_id FROM attempt WHERE state = 'succeeded'"
            " GROUP BY task_id, generation HAVING count(*) > 1"
        )
        assert not doubled, f"I1: {doubled}"
        homeless = ask(
            "SELECT t.id FROM task t LEFT JOIN attempt a ON a.id = t.attempt_id WHERE t.state IN"
            " ('assigned', 'running', 'cancelling', 'held', 'done')"
            " AND (a.id IS NULL OR"
            "  (t.state = 'done') <> (a.state = 'succeeded' AND a.generation = t.generation))"
        )
        assert not homeless, f"tasks whose state their attempt does not bear out: {homeless}"
        for (payload,) in ask("SELECT payload FROM outbox"):
            assert json.loads(payload)
        for key, job_id in self.promised.items():
            assert ask("SELECT 1 FROM job WHERE id = ?", job_id), f"I9: job {job_id} of {key} is gone"
        self.is_broken = was_broken


def _machine() -> Capabilities:
    cpu = Device(id="cpu", kind=DeviceKind.CPU, model="test", slots=2)
    return Capabilities(cpus=2, memory_mib=8_000, devices=(cpu,))


def run(examples: int, *, steps: int = 30, phases: Collection[Phase] = tuple(Phase)) -> None:
    random.seed(0)
    run_state_machine_as_test(
        Core,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=phases,
        ),
    )


def test_the_core_keeps_its_promises_whatever_comes() -> None:
    run(12)


@pytest.mark.faults
def test_the_core_keeps_its_promises_in_a_thousand_histories() -> None:
    run(1_000, steps=50)


FOUND_HERE = (
    Mutant(
        name="a node's report on another node's attempt counts",
        cuts=(
            Cut(
                "farm.store.settling:_finished_apart",
                'if row is None or row["node_id"] != node_id:',
                "if row is None:",
            ),
        ),
    ),
    Mutant(
        name="a node's start of another node's attempt counts",
        cuts=(
            Cut(
                "farm.store.settling:_starting",
                '            _ATTEMPT.c.node_id == sa.bindparam("of_node"),\n',
                '            sa.bindparam("of_node", type_=sa.String()).is_not(None),\n',
            ),
        ),
    ),
    Mutant(
        name="an attempt of another task is taken for the publisher",
        cuts=(
            Cut(
                "farm.store.settling:_finished_apart",
                'if publisher_row is not None and publisher_row["task_id"] != row["task_id"]:',
                "if False:",
            ),
        ),
    ),
    Mutant(
        name="a step whose turn has come is not opened",
        cuts=(
            Cut(
                "farm.flow.report:advance",
                "(by_frame if step.by_frame else unlock).append(step.id)",
                "pass",
            ),
        ),
    ),
    *(
        mutant
        for mutant in MUTANTS
        if mutant.name
        in (
            "the leader's epoch is not checked",
            "a second end of an attempt counts",
            "a step's counts do not move along",
            "the lease of a dead attempt is renewed",
            "a lost node spends the task's retries",
            "a submit with a known key makes another job",
        )
    ),
)


def test_every_mutant_fits_the_code() -> None:
    assert len(FOUND_HERE) == 10
    for mutant in FOUND_HERE:
        with planted(mutant):
            pass


@pytest.mark.faults
@pytest.mark.parametrize("mutant", FOUND_HERE, ids=lambda m: m.name)
def test_a_bug_that_is_planted_is_found(mutant: Mutant) -> None:
    with planted(mutant), pytest.raises((Violation, AssertionError, FarmError, sa.exc.SQLAlchemyError)):
        # To find it is enough, and ends the search. Which histories are drawn follows from what else the
        # process has imported: two in twelve searches of 200 missed a bug.
        run(2_000, phases=(Phase.generate,))
