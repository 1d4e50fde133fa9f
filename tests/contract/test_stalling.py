"""What the stall watch makes of evidence: verdicts kept, second copies, ends, and their price."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from farm.control.stallwatch import StallWatch
from farm.flow.stall import Expectation
from farm.model.attempts import Attempt
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, NodeId
from farm.model.machines import Capabilities, Device, DeviceKind, DeviceLoad
from farm.model.stalls import Evidence, Origin, StallKind, StallPolicy
from farm.model.states import AttemptState, JobState, NodeState, Outcome, TaskState
from farm.model.work import Isolation
from farm.settings import load_settings
from farm.store import events, nodes, outbox, ready, settling, stalling, steering
from farm.store.attempts import read_attempt
from farm.store.engine import reading, writing
from farm.store.tables import AttemptRow
from farm.store.tasks import list_tasks
from tests.contract.stored_farm import (
    BLADE,
    a_step,
    claim,
    enrol,
    expire_all,
    finish,
    read,
    start,
    submit,
    task_states,
)

_ATTEMPT = AttemptRow.__table__  # type: ignore[attr-defined]
OTHER = NodeId("other")
USUAL = Expectation(median_s=60.0, upper_s=80.0)


class Watch:
    """A stall watch over the store, with a clock and run times of the test's own."""

    def __init__(self, engine: sa.Engine, **settings: Any) -> None:
        self.engine = engine
        self.now = 0.0
        self.expected: Expectation | None = USUAL
        ids = itertools.count(1)
        self.watch = StallWatch(
            load_settings(environment={}, **settings),
            run_times=lambda step, node, device: self.expected,
            clock=lambda: self.now,
            new_id=lambda: f"copy-{next(ids)}",
        )

    def see(self, attempt_id: AttemptId, *, node: NodeId = BLADE, **seen: Any) -> int:
        """The node tells, and the farm looks."""
        with writing(self.engine) as db:
            stalling.witness(db, node, [Evidence(attempt_id=attempt_id, processes=1, **seen)])
        return self.look()

    def look(self, *, heard_for_s: float = 3_600.0) -> int:
        self.now += 10

        @contextlib.contextmanager
        def lead() -> Iterator[sa.Connection]:
            with writing(self.engine) as db:
                yield db

        return self.watch.look(lambda: reading(self.engine), lead, heard_for_s=heard_for_s)


HUNG: dict[str, Any] = {"age_s": 200.0, "cpu_idle_s": 150.0, "io_idle_s": 150.0, "silent_s": 150.0}
SLOW: dict[str, Any] = {"age_s": 300.0, "cores": 1.3, "progress": 0.1, "progress_idle_s": 0.0}


def begin(
    engine: sa.Engine, *, on: tuple[NodeId, ...] = (BLADE, OTHER), **job: Any
) -> tuple[JobId, AttemptId]:
    """A job whose first task runs on blade."""
    for name in on:
        enrol(engine, name)
    job_id = submit(engine, a_step(tasks=1), **job)
    attempts = claim(engine, job_id)
    start(engine, attempts)
    return job_id, attempts[0]


def attempt(engine: sa.Engine, attempt_id: AttemptId) -> Attempt:
    with reading(engine) as db:
        return read_attempt(db, attempt_id)


def stops(engine: sa.Engine) -> list[tuple[str, dict[str, Any]]]:
    with reading(engine) as db:
        return [
            (m.node_id, m.payload)
            for m in outbox.read(db)
            if m.kind == "control" and m.payload["kind"] == "stop"
        ]


def kinds(engine: sa.Engine) -> list[EventKind]:
    with reading(engine) as db:
        return [event.kind for event in events.read(db, limit=1_000)]


def test_one_that_works_is_left_alone(engine: sa.Engine) -> None:
    _, first = begin(engine)
    watch = Watch(engine)
    assert watch.see(first, age_s=70.0, cores=3.0, silent_s=65.0) == 0
    kept = attempt(engine, first)
    assert kept.stall is not None
    assert kept.stall.kind is StallKind.SILENT
    assert kept.evidence is not None
    assert kept.evidence.age_s == 70.0
    assert EventKind.ATTEMPT_STALLED not in kinds(engine)
    assert watch.see(first, age_s=75.0, cores=3.0, silent_s=0.0) == 0
    assert attempt(engine, first).stall is None


def test_one_that_hangs_is_ended_and_runs_on_another_node(engine: sa.Engine) -> None:
    job_id, first = begin(engine)
    watch = Watch(engine)
    assert watch.see(first, **HUNG, last_line="Developing out.exr") == 1
    (node_id, stop), *_ = stops(engine)
    assert (node_id, stop["attempt_ids"], stop["takes_output"]) == (BLADE, [first], False)
    kept = attempt(engine, first)
    assert kept.stall is not None
    assert "Developing out.exr" in kept.stall.text
    assert kept.stall.action == "ended, to run on another node"
    assert task_states(engine, job_id) == ["running"]  # until it is proven dead
    assert watch.look() == 0
    finish(engine, [first], Outcome.CANCELLED, reason="as told", runtime_s=200.0)
    ended = attempt(engine, first)
    assert (ended.state, ended.outcome) == (AttemptState.CANCELLED, Outcome.STALLED)
    assert ended.reason.startswith("hung: no CPU, no I/O for 2:30")
    with writing(engine) as db:
        db.execute(sa.text("UPDATE task SET not_before = not_before - 30"))
    assert claim(engine, job_id, node=BLADE) == []
    assert len(claim(engine, job_id, node=OTHER)) == 1
    with reading(engine) as db:
        costs = stalling.costs(db, job_id)
    assert (costs.moved, costs.lost_s) == (1, 200.0)


def test_a_node_that_cannot_end_it_in_time_loses_it(engine: sa.Engine) -> None:
    job_id, first = begin(engine)
    assert Watch(engine).see(first, **HUNG) == 1
    expire_all(engine)
    assert attempt(engine, first).state is AttemptState.LOST
    assert task_states(engine, job_id) == ["ready"]
    with reading(engine) as db:
        (task,) = list_tasks(db, job_id)
    assert "blade has not ended it in time" in task.reason


def test_an_exclusive_one_is_never_copied_and_held_until_it_is_proven_dead(engine: sa.Engine) -> None:
    job_id, first = begin(engine, isolation=Isolation.EXCLUSIVE)
    watch = Watch(engine, on_stall="copy")
    assert watch.see(first, **HUNG) == 0
    assert Watch(engine).see(first, **HUNG) == 1
    expire_all(engine)
    assert task_states(engine, job_id) == ["held"]
    with writing(engine) as db:
        steering.retry(db, job_id, actor="anna", states=[TaskState.HELD])
    assert attempt(engine, first).state is AttemptState.LOST


@pytest.mark.parametrize(
    ("policy", "outcome", "failures"), [(StallPolicy.KILL, Outcome.JOB_ERROR, 1), (StallPolicy.WARN, None, 0)]
)
def test_a_job_says_what_is_done(
    engine: sa.Engine, policy: StallPolicy, outcome: Outcome | None, failures: int
) -> None:
    job_id, first = begin(engine, on_stall=policy)
    done = Watch(engine).see(first, **HUNG)
    assert kinds(engine).count(EventKind.ATTEMPT_STALLED) == 1
    assert done == (outcome is not None)
    if outcome is not None:
        finish(engine, [first], Outcome.CANCELLED, runtime_s=200.0)
        assert attempt(engine, first).outcome is outcome
    with reading(engine) as db:
        assert list_tasks(db, job_id)[0].failures == failures
        costs = stalling.costs(db, job_id)
    assert (costs.moved, costs.killed, costs.lost_s) == (0, failures, 200.0 * failures)


def test_what_has_written_its_files_is_asked_for_them(engine: sa.Engine) -> None:
    job_id, first = begin(engine)
    idle: dict[str, Any] = {"age_s": 100.0, "cpu_idle_s": 61.0, "io_idle_s": 61.0, "files_done_s": 61.0}
    assert Watch(engine).see(first, **idle) == 1
    assert stops(engine)[0][1]["takes_output"] is True
    finish(engine, [first], runtime_s=100.0)
    assert read(engine, job_id).state is JobState.DONE


def test_one_that_waits_for_a_licence_gives_its_slot_back_and_no_retry(engine: sa.Engine) -> None:
    job_id, first = begin(engine)
    watch = Watch(engine)
    waits: dict[str, Any] = {"licence": "waiting for a license", "silent_s": 5.0, "io_idle_s": 0.0}
    assert watch.see(first, age_s=200.0, cpu_idle_s=190.0, **waits) == 0
    assert watch.see(first, age_s=700.0, cpu_idle_s=690.0, **waits) == 1
    finish(engine, [first], Outcome.CANCELLED)
    assert attempt(engine, first).outcome is Outcome.LICENCE
    with reading(engine) as db:
        (task,) = list_tasks(db, job_id)
    assert (task.failures, task.state) == (0, TaskState.READY)


# --- second copies --------------------------------------------------------------------------------------


def copied(engine: sa.Engine, **job: Any) -> tuple[JobId, AttemptId, AttemptId]:
    """A slow attempt on blade, and its copy that runs on the other node."""
    job_id, first = begin(engine, **job)
    watch = Watch(engine)
    assert watch.see(first, **SLOW) == 1
    second = AttemptId("copy-1")
    made = attempt(engine, second)
    assert (made.node_id, made.origin, made.state) == (OTHER, Origin.COPY, AttemptState.ASSIGNED)
    start(engine, [second], node=OTHER)
    assert watch.see(first, **SLOW) == 0, "two at most"
    return job_id, first, second


def test_the_copy_wins_and_the_slow_one_is_told_to_stop(engine: sa.Engine) -> None:
    job_id, first, second = copied(engine)
    finish(engine, [second], node=OTHER, runtime_s=60.0)
    assert read(engine, job_id).state is JobState.DONE
    assert [(n, s["attempt_ids"]) for n, s in stops(engine)] == [(BLADE, [first])]
    finish(engine, [first], Outcome.CANCELLED, runtime_s=400.0)
    assert attempt(engine, second).state is AttemptState.SUCCEEDED
    assert attempt(engine, first).state is AttemptState.CANCELLED
    with reading(engine) as db:
        costs = stalling.costs(db, job_id)
        task = list_tasks(db, job_id)[0]
    assert (costs.copies, costs.copies_won, costs.lost_s) == (1, 1, 400.0)
    assert costs.saved_s > 2_000  # 300 s for 10 % leaves 2,700 s
    assert (task.starts, task.node_id) == (2, OTHER)


def test_the_slow_one_wins_after_all(engine: sa.Engine) -> None:
    job_id, first, second = copied(engine)
    finish(engine, [first], runtime_s=310.0)
    assert read(engine, job_id).state is JobState.DONE
    assert [(n, s["attempt_ids"]) for n, s in stops(engine)] == [(OTHER, [second])]
    finish(engine, [second], Outcome.CANCELLED, node=OTHER, runtime_s=5.0)
    with reading(engine) as db:
        costs = stalling.costs(db, job_id)
    assert (costs.copies_won, costs.lost_s, costs.saved_s) == (0, 5.0, 0.0)


def test_the_copy_goes_on_when_the_first_one_fails_or_is_lost(engine: sa.Engine) -> None:
    for end in ("fails", "is lost"):
        job_id, first, second = copied(engine)
        if end == "fails":
            finish(engine, [first], Outcome.JOB_ERROR, reason="crashed")
        else:
            with writing(engine) as db:
                db.execute(sa.update(_ATTEMPT).where(_ATTEMPT.c.id == first).values(lease_until=0.0))
                settling.lock_jobs_of(db, [first])
                settling.expire_leases(db, [first])
        assert task_states(engine, job_id) == ["running"]
        finish(engine, [second], node=OTHER)
        assert read(engine, job_id).state is JobState.DONE
        with writing(engine) as db:
            db.execute(sa.delete(_ATTEMPT))


def test_both_fail_in_one_report_and_the_task_runs_again(engine: sa.Engine) -> None:
    job_id, first, second = copied(engine)
    with writing(engine) as db:
        db.execute(sa.update(_ATTEMPT).values(node_id=BLADE))
    finish(engine, [first, second], Outcome.NODE_LOST, reason="the agent was restarted")
    assert task_states(engine, job_id) == ["ready"]


def test_cancelling_a_task_stops_both(engine: sa.Engine) -> None:
    job_id, first, second = copied(engine)
    with writing(engine) as db:
        steering.cancel(db, job_id, actor="anna", reason="no")
    assert sorted(s["attempt_ids"][0] for _, s in stops(engine)) == sorted([first, second])
    finish(engine, [first], Outcome.CANCELLED)
    assert task_states(engine, job_id) == ["cancelling"]
    finish(engine, [second], Outcome.CANCELLED, node=OTHER)
    assert task_states(engine, job_id) == ["cancelled"]


def test_no_copy_where_it_would_not_pay_or_there_is_no_place(engine: sa.Engine) -> None:
    _, first = begin(engine)
    watch = Watch(engine)
    assert watch.see(first, age_s=200.0, cores=1.0, progress=0.9, progress_idle_s=0.0) == 0
    assert attempt(engine, first).stall is not None
    begin(engine, on=())  # takes the other slot of blade
    watch.expected = Expectation(median_s=60.0, upper_s=80.0)
    with writing(engine) as db:
        db.execute(sa.text("UPDATE node SET is_drained = true WHERE id = 'other'"))
    assert watch.see(first, **SLOW) == 0


def test_a_device_of_another_model_and_in_health_is_preferred(engine: sa.Engine) -> None:
    _, first = begin(engine)
    third = Capabilities(devices=(Device(id="cpu", kind=DeviceKind.CPU, model="another", slots=1),))
    enrol(engine, "third", capabilities=third)
    enrol(engine, "ill", capabilities=third, loads=(DeviceLoad(device_id="cpu", health=0.5),))
    assert Watch(engine).see(first, **SLOW) == 1
    assert attempt(engine, AttemptId("copy-1")).node_id == "third"


def test_many_nodes_that_wait_for_one_file_server_move_nothing(engine: sa.Engine) -> None:
    names = [NodeId(f"n{i}") for i in range(4)]
    job_id = submit(engine, a_step(tasks=3))
    watch = Watch(engine)
    firsts = []
    for name in names:
        enrol(engine, name)
        if name == "n3":
            continue
        firsts += claim(engine, job_id, node=name)
        start(engine, firsts[-1:], node=name)
        with writing(engine) as db:
            told = Evidence(attempt_id=firsts[-1], age_s=300.0, cpu_idle_s=200.0, blocked_s=200.0)
            stalling.witness(db, name, [told])
    assert watch.look() == 0
    assert all(a.stall and a.stall.kind is StallKind.WEDGED for a in (attempt(engine, f) for f in firsts))


def test_the_last_task_gets_a_copy_on_an_idle_device_where_that_pays(engine: sa.Engine) -> None:
    job_id, first = begin(engine)
    watch = Watch(engine)
    works: dict[str, Any] = {"age_s": 50.0, "cores": 1.0, "progress": 0.1, "progress_idle_s": 0.0}
    waiting = submit(engine, a_step(tasks=1))
    assert watch.see(first, **works) == 0, "something still waits to start"
    with writing(engine) as db:
        steering.cancel(db, waiting, actor="anna", reason="no")
    assert watch.see(first, **works) == 1
    made = attempt(engine, AttemptId("copy-1"))
    assert (made.origin, made.node_id) == (Origin.SPECULATION, OTHER)
    assert attempt(engine, first).stall is None
    with reading(engine) as db:
        assert stalling.costs(db, job_id).speculations == 1
    assert Watch(engine, speculate=False).look() == 0


def aged(engine: sa.Engine, **columns: float) -> None:
    """As if this had happened so many seconds earlier."""
    with writing(engine) as db:
        db.execute(sa.update(_ATTEMPT).values({n: _ATTEMPT.c[n] - s for n, s in columns.items()}))


def test_what_was_told_before_an_outage_is_not_judged_after_it(engine: sa.Engine) -> None:
    _, first = begin(engine)
    watch = Watch(engine)
    with writing(engine) as db:
        stalling.witness(db, BLADE, [Evidence(attempt_id=first, processes=1, **HUNG)])
    aged(engine, evidence_at=20.0)
    assert watch.look(heard_for_s=15.0) == 0, "the farm could not hear for 5 s since it came"
    assert attempt(engine, first).stall is None
    assert watch.look(heard_for_s=25.0) == 1


def test_after_an_outage_nodes_get_their_time_to_tell(engine: sa.Engine) -> None:
    _, first = begin(engine)
    watch = Watch(engine)
    with writing(engine) as db:
        stalling.witness(db, BLADE, [Evidence(attempt_id=first, processes=1, **HUNG)])
    assert watch.look(heard_for_s=5.0) == 0
    assert watch.look(heard_for_s=13.0) == 1


def test_nothing_is_taken_back_from_a_silent_node(engine: sa.Engine) -> None:
    """It may have begun: what it says of that is on its way."""
    for name in ("blade", "other"):
        enrol(engine, name)
    claim(engine, submit(engine, a_step(tasks=1)))
    aged(engine, assigned_at=60.0)
    with writing(engine) as db:
        db.execute(sa.text("UPDATE node SET seen_at = seen_at - 20, state = 'suspect' WHERE id = 'blade'"))
    watch = Watch(engine)
    assert watch.look() == 0
    with writing(engine) as db:
        db.execute(sa.text("UPDATE node SET seen_at = seen_at + 20 WHERE id = 'blade'"))
    assert watch.look() == 1, "one that is heard, and takes no work, gives back what it has not begun"


def test_what_waits_on_an_ill_device_moves_to_one_that_is_free(engine: sa.Engine) -> None:
    for name in ("blade", "other"):
        enrol(engine, name)
    job_id = submit(engine, a_step(tasks=1))
    (first,) = claim(engine, job_id)
    watch = Watch(engine)
    aged(engine, assigned_at=60.0)
    assert watch.look() == 0
    enrol(engine, "blade", loads=(DeviceLoad(device_id="cpu", health=0.4, complaint="throttled"),))
    assert watch.look() == 1
    finish(engine, [first], Outcome.CANCELLED, reason="not running here")
    assert attempt(engine, first).outcome is Outcome.NODE_LOST
    assert claim(engine, job_id, node=BLADE) == []
    assert len(claim(engine, job_id, node=OTHER)) == 1


def test_nonsense_of_a_node_stops_nobody(engine: sa.Engine) -> None:
    _, first = begin(engine)
    watch = Watch(engine)
    nan = float("nan")
    assert (
        watch.see(
            first, age_s=nan, cores=float("inf"), cpu_idle_s=-5.0, progress=nan, memory_mib=10**15,
            last_line="x" * 10_000, states={"many letters": 1},
        )
        == 0
    )  # fmt: skip
    kept = attempt(engine, first).evidence
    assert kept is not None
    assert (kept.age_s, kept.progress, len(kept.last_line)) == (0.0, None, 500)


# --- failure classes and budgets ---------------------------------------------------------------------------


def machine(memory_mib: int) -> Capabilities:
    return Capabilities(
        memory_mib=memory_mib,
        devices=(Device(id="cpu", kind=DeviceKind.CPU, model="test", slots=8),),
    )


def later(engine: sa.Engine, seconds: float = 120) -> None:
    """As if so much time had passed for tasks that must wait."""
    with writing(engine) as db:
        db.execute(
            sa.text(
                "UPDATE task SET not_before = not_before - :s, avoid_until = avoid_until - :s "
                "WHERE not_before > 0"
            ),
            {"s": seconds},
        )


def test_what_ran_out_of_memory_is_tried_where_there_is_more(engine: sa.Engine) -> None:
    enrol(engine, "blade", capabilities=machine(32_000))
    enrol(engine, "other", capabilities=machine(64_000))
    job_id = submit(engine, a_step(tasks=1))
    attempts = claim(engine, job_id)
    start(engine, attempts)
    finish(engine, attempts, Outcome.OUT_OF_MEMORY, exit_code=-9, peak_memory_mib=30_000)
    later(engine)  # longer than other failures keep a task away
    with reading(engine) as db:
        group = next(g for g in ready.groups(db) if g.ready)
        (task,) = list_tasks(db, job_id)
        waits = ready.delay(db, task.id)
    assert (group.demand.memory_mib, set(group.avoid)) == (45_000, {BLADE})
    assert waits.avoids == "needs 45,000 MiB of memory after running out of it"
    assert claim(engine, job_id, node=BLADE) == []
    assert len(claim(engine, job_id, node=OTHER)) == 1


def test_a_task_that_takes_nodes_down_is_given_up(engine: sa.Engine) -> None:
    names = [NodeId(f"n{i}") for i in range(6)]
    for name in names:
        enrol(engine, name)
    job_id = submit(engine, a_step(tasks=1))
    tried = 0
    for name in names:
        later(engine, 10_000)
        attempts = claim(engine, job_id, node=name)
        if not attempts:
            break
        tried += 1
        start(engine, attempts, node=name)
        expire_all(engine)
    assert tried == 4
    with reading(engine) as db:
        (task,) = list_tasks(db, job_id)
    assert task.state is TaskState.FAILED
    assert task.reason.startswith("gave up: it ended badly on 4 different nodes (n0, n1, n2, n3)")


def test_a_node_is_closed_after_failures_across_jobs_and_one_command_opens_it(engine: sa.Engine) -> None:
    for name in ("blade", "other", "third"):
        enrol(engine, name)
    for job in range(2):
        job_id = submit(engine, a_step(tasks=3))
        for outcome in (Outcome.STORAGE, Outcome.NODE_FAULT, Outcome.NODE_FAULT):
            attempts = claim(engine, job_id)
            start(engine, attempts)
            finish(engine, attempts, outcome, reason="GPU driver gone")
        with reading(engine) as db:
            node = nodes.read_node(db, BLADE)
        assert node.state is (NodeState.ONLINE if job == 0 else NodeState.DRAINING)
    assert "4 attempts of 2 jobs ended badly one after the other (node-fault)" in node.reason
    assert "farm undrain blade" in node.reason
    with reading(engine) as db:
        view = next(v for v in nodes.views(db, {}) if v.id == BLADE)
    assert not view.accepts_work
    assert EventKind.NODE_QUARANTINED in kinds(engine)
    with writing(engine) as db:
        nodes.drain(db, BLADE, is_drained=False, actor="anna")
    with reading(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.ONLINE


def test_a_quarantine_ends_by_itself_and_a_good_end_forgives(engine: sa.Engine) -> None:
    for name in ("blade", "other"):
        enrol(engine, name)
    firsts = []
    for _ in range(2):
        job_id = submit(engine, a_step(tasks=3))
        firsts += claim(engine, job_id, 3)
    start(engine, firsts)
    finish(engine, firsts[:3], Outcome.NODE_FAULT)
    finish(engine, firsts[3:4], Outcome.SUCCEEDED)
    finish(engine, firsts[4:5], Outcome.NODE_FAULT)
    with reading(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.ONLINE
    with writing(engine) as db:
        db.execute(sa.text("UPDATE node SET quarantined_until = 1.0, quarantines = 1 WHERE id = 'blade'"))
    with reading(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.ONLINE
