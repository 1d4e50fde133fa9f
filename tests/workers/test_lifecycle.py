"""The agent's decisions, by examples and by random histories."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from farm.model.ids import AttemptId, JobId, NodeId, TaskId
from farm.model.states import Outcome
from farm.model.work import Isolation, OutputSpec
from farm.wire.messages import Finished, HeartbeatAnswer, Launch, Order, Started, StepScript, Stop
from workers import events, instructions
from workers import lifecycle as lc
from workers.heartbeats import Heartbeats

RULES = lc.Rules(node_id=NodeId("n1"), slots={"cpu": 2}, heartbeat_s=5.0, fence_s=20.0, kill_grace_s=2.0)


def script(isolation: Isolation = Isolation.STAGED, job_uid: str = "job") -> StepScript:
    output = OutputSpec(step="s", directory_parameter="Out", file_pattern="####.png")
    return StepScript(
        job_id=JobId(1),
        job_uid=job_uid,
        job_name="j",
        step="s",
        kind="openjd",
        template={},
        parameters={"Out": ("PATH", "/out")},
        output=output if isolation is Isolation.STAGED else None,
        isolation=isolation,
    )


def order(name: str, device_id: str = "cpu", assigned_at: float | None = None) -> Order:
    return Order(
        attempt_id=AttemptId(name),
        task_id=TaskId(1),
        label=name,
        parameters={},
        device_id=device_id,
        assigned_at=assigned_at,
    )


def launch(
    *names: str,
    isolation: Isolation = Isolation.STAGED,
    job_uid: str = "job",
    assigned_at: float | None = None,
) -> events.LaunchReceived:
    orders = tuple(order(name, assigned_at=assigned_at) for name in names)
    return events.LaunchReceived(launch=Launch(script=script(isolation, job_uid), orders=orders))


class Node:
    """A lifecycle with the shell's obedient parts: the journal writes at once, hosts get ready at once."""

    def __init__(
        self, rules: lc.Rules = RULES, *, hosts_get_ready: bool = True, disk_is_slow: bool = False
    ) -> None:
        self.core = lc.Lifecycle(rules=rules, heartbeats=Heartbeats(first_sequence=100))
        self.now = 1000.0
        self.hosts_get_ready = hosts_get_ready
        self.disk_is_slow = disk_is_slow
        self.unwritten: list[AttemptId] = []
        self.running: dict[int, str] = {}
        self.runs: Counter[str] = Counter()
        self.done: list[instructions.Instruction] = self.core.handle(events.BrokerConnected(), self.now)
        self.tell(events.Tick())

    def tell(self, event: events.Event, *, after_s: float = 0.0) -> list[instructions.Instruction]:
        self.now += after_s
        new = self.core.handle(event, self.now)
        self.done += new
        for instruction in list(new):
            match instruction:
                case instructions.Record(attempts=attempts):
                    self.unwritten += [attempt_id for attempt_id, _ in attempts]
                    if not self.disk_is_slow:
                        new += self.write()
                case instructions.StartHost(host_id=host_id) if self.hosts_get_ready:
                    new += self.tell(events.HostReady(host_id=host_id))
                case instructions.RunOnHost(host_id=host_id, order=order):
                    assert host_id not in self.running, "a host was given two attempts"
                    self.running[host_id] = order.attempt_id
                    self.runs[order.attempt_id] += 1
        return new

    def write(self) -> list[instructions.Instruction]:
        written, self.unwritten = self.unwritten, []
        return self.tell(events.Recorded(attempt_ids=tuple(written)))

    def host_of(self, name: str) -> int:
        return next(host_id for host_id, attempt in self.running.items() if attempt == name)

    def start(self, name: str) -> None:
        self.tell(events.HostStarted(host_id=self.host_of(name), attempt_id=AttemptId(name)))

    def finish(self, name: str, outcome: Outcome = Outcome.SUCCEEDED) -> list[instructions.Instruction]:
        host_id = self.host_of(name)
        del self.running[host_id]
        finished = Finished(attempt_id=AttemptId(name), outcome=outcome)
        return self.tell(events.HostFinished(host_id=host_id, finished=finished))

    def die(self, name: str, reason: str = "exit status 1") -> list[instructions.Instruction]:
        host_id = self.host_of(name)
        del self.running[host_id]
        return self.tell(events.HostDied(host_id=host_id, reason=reason))

    def answer(
        self,
        *,
        keep: tuple[str, ...] = (),
        stop: tuple[str, ...] = (),
        refused: str = "",
        heard_at: float | None = None,
    ) -> None:
        sequence = self.heartbeats()[-1].sequence
        self.tell(
            events.HeartbeatAnswered(
                answer=HeartbeatAnswer(
                    sequence=sequence,
                    keep=tuple(map(AttemptId, keep)),
                    stop=tuple(map(AttemptId, stop)),
                    refused=refused,
                    heard_at=heard_at,
                )
            )
        )

    def heartbeats(self) -> list[instructions.SendHeartbeat]:
        return [i for i in self.done if isinstance(i, instructions.SendHeartbeat)]

    def ends(self) -> list[Finished]:
        return [
            i.item for i in self.done if isinstance(i, instructions.Report) and isinstance(i.item, Finished)
        ]

    def end_of(self, name: str) -> Finished:
        (end,) = [end for end in self.ends() if end.attempt_id == name]
        return end

    def of(self, kind: type[instructions.Instruction]) -> list[instructions.Instruction]:
        return [i for i in self.done if isinstance(i, kind)]


def test_an_attempt_goes_from_launch_to_acceptance() -> None:
    node = Node()
    node.tell(launch("a"))
    assert node.of(instructions.Record) == [
        instructions.Record(
            attempts=((AttemptId("a"), instructions.StagePlace(directory="/out", job_uid="job")),)
        )
    ]
    node.start("a")
    assert instructions.Report(item=Started(attempt_id=AttemptId("a"))) in node.done
    node.finish("a")
    assert node.end_of("a").outcome is Outcome.SUCCEEDED
    assert not node.of(instructions.Forget)
    node.tell(events.ReportsStored(attempt_ids=(AttemptId("a"),)))
    assert node.of(instructions.Forget) == [
        instructions.Forget(
            attempts=((AttemptId("a"), instructions.StagePlace(directory="/out", job_uid="job")),)
        )
    ]
    assert not node.core.held


def test_nothing_runs_before_the_journal_has_it() -> None:
    core = lc.Lifecycle(rules=RULES, heartbeats=Heartbeats(first_sequence=0))
    done = core.handle(launch("a"), 1.0)
    assert [type(i) for i in done] == [instructions.Record]
    done = core.handle(events.Recorded(attempt_ids=(AttemptId("a"),)), 1.0)
    assert instructions.StartHost(host_id=1) in done


def test_an_attempt_that_is_stopped_while_the_journal_is_written_does_not_start() -> None:
    node = Node(disk_is_slow=True)
    node.tell(launch("a", "b"))
    node.tell(events.StopReceived(stop=Stop(attempt_ids=(AttemptId("a"),), reason="no more")))
    node.write()
    assert node.end_of("a").outcome is Outcome.CANCELLED
    assert list(node.running.values()) == ["b"]


def test_a_doubled_launch_starts_nothing_in_any_phase() -> None:
    node = Node()
    node.tell(launch("a"))
    node.tell(launch("a"))
    node.start("a")
    node.tell(launch("a"))
    node.finish("a")
    assert instructions.Resend(attempt_id=AttemptId("a")) in node.tell(launch("a"))
    node.tell(events.ReportsStored(attempt_ids=(AttemptId("a"),)))
    assert node.tell(launch("a")) == []
    assert node.runs == {"a": 1}
    assert len(node.ends()) == 1


def test_what_an_earlier_session_had_is_known() -> None:
    node = Node()
    node.core.restore(ended=[(AttemptId("a"), None)], forgotten=[AttemptId("b")])
    assert node.tell(launch("a", "b")) == [instructions.Resend(attempt_id=AttemptId("a"))]


def test_orders_beyond_the_slots_wait_in_order() -> None:
    node = Node()
    node.tell(launch("a", "b", "c", "d"))
    assert set(node.running.values()) == {"a", "b"}
    node.finish("b")
    assert set(node.running.values()) == {"a", "c"}
    assert len(node.of(instructions.StartHost)) == 2, "the warm host is used again"


def test_a_host_that_is_warm_for_the_job_is_preferred() -> None:
    node = Node()
    node.tell(launch("a", job_uid="one"))
    node.tell(launch("b", job_uid="two"))
    host_of_a = node.host_of("a")
    node.finish("a")
    node.finish("b")
    node.tell(launch("c", job_uid="one"))
    assert node.host_of("c") == host_of_a


def test_an_order_for_a_device_that_is_not_here_is_refused() -> None:
    node = Node()
    node.tell(events.LaunchReceived(launch=Launch(script=script(), orders=(order("a", device_id="GPU-1"),))))
    assert node.end_of("a").outcome is Outcome.NODE_FAULT
    assert node.end_of("a").reason == "n1 has no device 'GPU-1'"


def test_a_stop_cancels_then_kills() -> None:
    node = Node()
    node.tell(launch("a"))
    node.start("a")
    host_id = node.host_of("a")
    done = node.tell(events.StopReceived(stop=Stop(attempt_ids=(AttemptId("a"),), reason="no more")))
    assert done == [instructions.CancelHost(host_id=host_id, reason="no more", outcome=Outcome.CANCELLED)]
    assert instructions.KillHost(host_id=host_id) not in node.tell(events.Tick(), after_s=2.5)
    assert instructions.KillHost(host_id=host_id) in node.tell(events.Tick(), after_s=0.6)
    node.die("a", "killed by SIGKILL")
    assert (node.end_of("a").outcome, node.end_of("a").reason) == (Outcome.CANCELLED, "no more")


def test_what_the_host_says_of_a_stopped_attempt_is_what_counts() -> None:
    node = Node()
    node.tell(launch("a"))
    node.start("a")
    node.tell(events.StopReceived(stop=Stop(attempt_ids=(AttemptId("a"),), reason="no more")))
    node.finish("a", Outcome.SUCCEEDED)
    assert node.end_of("a").outcome is Outcome.SUCCEEDED
    assert node.core.live == 0


def test_a_waiting_attempt_is_stopped_at_once() -> None:
    node = Node()
    node.tell(launch("a", "b", "c"))
    node.tell(events.StopReceived(stop=Stop(attempt_ids=(AttemptId("c"),), reason="no more")))
    assert node.end_of("c").outcome is Outcome.CANCELLED
    node.finish("a")
    assert "c" not in node.runs


def test_an_attempt_whose_host_is_not_ready_is_stopped_at_once_and_the_host_is_used_for_another() -> None:
    node = Node(hosts_get_ready=False)
    node.tell(launch("a"))
    node.tell(events.StopReceived(stop=Stop(attempt_ids=(AttemptId("a"),), reason="no more")))
    assert node.end_of("a").outcome is Outcome.CANCELLED
    node.tell(launch("b"))
    node.tell(events.HostReady(host_id=1))
    assert node.running == {1: "b"}
    assert len(node.of(instructions.StartHost)) == 1


def test_a_stop_that_overtakes_its_launch_wins() -> None:
    node = Node()
    node.tell(events.StopReceived(stop=Stop(attempt_ids=(AttemptId("a"),), reason="no more")))
    assert (node.end_of("a").outcome, node.end_of("a").reason) == (Outcome.CANCELLED, "not running here")
    node.tell(launch("a"))
    node.tell(events.ReportsStored(attempt_ids=(AttemptId("a"),)))
    node.tell(launch("a"))
    assert not node.runs
    assert len(node.ends()) == 1


def test_a_stop_for_a_forgotten_attempt_is_answered_too() -> None:
    node = Node()
    node.core.restore(ended=[], forgotten=[AttemptId("a")])
    node.tell(events.StopReceived(stop=Stop(attempt_ids=(AttemptId("a"),), reason="no more")))
    assert node.end_of("a").reason == "not running here"


def test_a_node_with_a_process_that_cannot_be_killed_takes_no_work_until_it_is_gone() -> None:
    node = Node()
    node.tell(launch("a", "b", "c"))
    node.start("a")
    told = node.tell(events.Wedged(attempt_id=AttemptId("a"), reason="process 7 (blender) cannot be killed"))
    assert instructions.TakeWork(is_wanted=False) in told
    assert node.heartbeats()[-1].fault == "wedged: process 7 (blender) cannot be killed"
    handed_back = node.ends()[-1]
    assert handed_back.attempt_id == "c"
    assert (handed_back.outcome, "wedged" in handed_back.reason) == (Outcome.NODE_LOST, True)
    node.tell(launch("d"))
    assert (node.ends()[-1].attempt_id, node.ends()[-1].outcome) == ("d", Outcome.NODE_LOST)
    assert node.finish("b"), "what runs beside it goes on"
    assert instructions.TakeWork(is_wanted=True) not in node.tell(
        events.Unwedged(attempt_id=AttemptId("unknown"))
    )
    told = node.tell(events.Unwedged(attempt_id=AttemptId("a")))
    assert instructions.TakeWork(is_wanted=True) in told
    assert node.heartbeats()[-1].fault == ""
    node.tell(launch("e"))
    assert "e" in node.running.values()


def test_a_wedged_node_that_drains_stays_closed_when_it_is_free_again() -> None:
    node = Node()
    node.tell(events.Wedged(attempt_id=AttemptId("a"), reason="stuck"))
    node.tell(events.DrainAsked(grace_s=60.0))
    assert instructions.TakeWork(is_wanted=True) not in node.tell(events.Unwedged(attempt_id=AttemptId("a")))


def test_a_host_that_dies_under_a_running_attempt_is_the_nodes_fault() -> None:
    node = Node()
    node.tell(launch("a"))
    node.start("a")
    node.die("a", "killed by SIGSEGV")
    assert node.end_of("a").outcome is Outcome.NODE_FAULT
    assert node.end_of("a").reason == "its session host died: killed by SIGSEGV"


def test_a_host_that_dies_before_the_start_is_replaced_three_times() -> None:
    node = Node()
    node.tell(launch("a"))
    node.die("a")
    node.die("a")
    assert not node.ends()
    node.die("a")
    assert node.end_of("a").reason == "no session host could be started: exit status 1"
    assert node.runs["a"] == 3


def test_a_host_that_never_gets_ready_is_killed() -> None:
    node = Node(hosts_get_ready=False)
    node.tell(launch("a"))
    assert instructions.KillHost(host_id=1) not in node.tell(events.Tick(), after_s=lc.HOST_START_S - 1)
    assert instructions.KillHost(host_id=1) in node.tell(events.Tick(), after_s=2)


def test_an_idle_host_is_let_go() -> None:
    node = Node()
    node.tell(launch("a"))
    node.finish("a")
    assert instructions.RetireHost(host_id=1) in node.tell(events.Tick(), after_s=lc.HOST_IDLE_S)
    node.tell(launch("b"))
    assert node.host_of("b") == 2


# --- leases ---------------------------------------------------------------------------------------------


def test_an_exclusive_attempt_is_fenced_and_a_staged_one_goes_on() -> None:
    node = Node()
    node.tell(launch("e", isolation=Isolation.EXCLUSIVE))
    node.answer(keep=("e",))
    node.tell(launch("s"))
    node.start("e")
    node.start("s")
    assert not [i for i in node.tell(events.Tick(), after_s=19.5) if isinstance(i, instructions.CancelHost)]
    host_id = node.host_of("e")
    reason = "fenced: no answer from the farm for 20 s"
    assert instructions.CancelHost(host_id=host_id, reason=reason, outcome=Outcome.NODE_LOST) in node.tell(
        events.Tick(), after_s=0.5
    )
    assert instructions.KillHost(host_id=host_id) in node.tell(events.Tick(), after_s=2.0)
    node.die("e")
    assert (node.end_of("e").outcome, node.end_of("e").reason) == (Outcome.NODE_LOST, reason)
    assert "s" in node.running.values()


def test_a_lease_counts_from_when_the_answered_heartbeat_was_sent() -> None:
    node = Node()
    node.tell(launch("e", isolation=Isolation.EXCLUSIVE))
    node.answer(keep=("e",))
    node.start("e")
    node.tell(events.Tick(), after_s=5.0)  # sends one
    sent_at = node.now
    node.tell(events.Tick(), after_s=4.0)
    node.answer(keep=("e",))
    node.now = sent_at + 19.9
    assert not [i for i in node.tell(events.Tick()) if isinstance(i, instructions.CancelHost)]
    node.now = sent_at + 20.0
    assert [i for i in node.tell(events.Tick()) if isinstance(i, instructions.CancelHost)]


def test_an_answer_to_another_sessions_heartbeat_renews_nothing() -> None:
    node = Node()
    node.tell(launch("e", isolation=Isolation.EXCLUSIVE))
    node.answer(keep=("e",))
    node.start("e")
    node.now += 15
    answer = HeartbeatAnswer(sequence=7, keep=(AttemptId("e"),), refused="go away")
    node.tell(events.HeartbeatAnswered(answer=answer))
    assert not node.core.refusal
    assert [i for i in node.tell(events.Tick(), after_s=5) if isinstance(i, instructions.CancelHost)]


def test_a_waiting_exclusive_attempt_is_fenced_too() -> None:
    node = Node()
    node.tell(launch("a", "b"))
    node.tell(launch("e", isolation=Isolation.EXCLUSIVE))
    node.answer(keep=("a", "b", "e"))
    node.tell(events.Tick(), after_s=20)
    assert node.end_of("e").outcome is Outcome.NODE_LOST


def test_an_exclusive_launch_waits_for_the_farms_word() -> None:
    """Its lease began when it was assigned: a launch that was long on its way would be fenced too late, and
    one that waited while the node was closed may have been given up by a person."""
    node = Node()
    done = node.tell(launch("e", "f", isolation=Isolation.EXCLUSIVE), after_s=0.1)
    assert [i for i in done if isinstance(i, instructions.SendHeartbeat)], "it asks at once"
    node.tell(launch("s"))
    assert list(node.running.values()) == ["s"], "a staged one can do no harm"
    node.finish("s")
    node.answer(keep=("e",), stop=("f",))
    assert list(node.running.values()) == ["e"]
    assert node.end_of("f").outcome is Outcome.CANCELLED


FARM_CLOCK = 1_700_000_000.0


def heard_node() -> tuple[Node, float]:
    """A node of which the farm has just taken in a heartbeat, at FARM_CLOCK; and when it was sent."""
    node = Node()
    sent_at = node.now
    node.now += 1.0
    node.answer(heard_at=FARM_CLOCK)
    return node, sent_at


def test_an_exclusive_launch_assigned_after_an_answered_heartbeat_begins_at_once() -> None:
    node, sent_at = heard_node()
    node.tell(launch("e", isolation=Isolation.EXCLUSIVE, assigned_at=FARM_CLOCK + 0.5))
    assert list(node.running.values()) == ["e"]
    assert node.core.fence_at(AttemptId("e"), node.now) == sent_at + RULES.fence_s, "not from its arrival"


def test_an_exclusive_launch_assigned_before_the_last_answered_heartbeat_waits() -> None:
    node, _ = heard_node()
    node.tell(launch("e", isolation=Isolation.EXCLUSIVE, assigned_at=FARM_CLOCK - 0.5))
    assert not node.running


def test_an_exclusive_launch_is_counted_from_the_heartbeat_before_its_assignment() -> None:
    node, sent_at = heard_node()
    node.tell(events.Tick(), after_s=5.0)  # sends the next
    node.answer(heard_at=FARM_CLOCK + 5.0)
    node.tell(launch("e", isolation=Isolation.EXCLUSIVE, assigned_at=FARM_CLOCK + 4.5), after_s=0.5)
    assert list(node.running.values()) == ["e"]
    assert node.core.fence_at(AttemptId("e"), node.now) == sent_at + RULES.fence_s


def test_an_exclusive_launch_that_was_long_on_its_way_waits_though_nothing_was_answered_since() -> None:
    node, _ = heard_node()
    node.tell(launch("e", isolation=Isolation.EXCLUSIVE, assigned_at=FARM_CLOCK + 0.5), after_s=11.0)
    assert not node.running, "its lease may be nearly over"
    node.answer(keep=("e",))
    assert list(node.running.values()) == ["e"]


@given(
    sent=st.lists(st.floats(0.1, 8.0), min_size=1, max_size=6),
    ways=st.lists(st.floats(0.0, 3.0), min_size=6, max_size=6),
    assigned_at=st.floats(0.0, 60.0),
    late_s=st.floats(0.0, 40.0),
    skew_s=st.floats(-1e6, 1e6),
)
def test_an_exclusive_attempt_is_never_counted_from_after_its_assignment(
    sent: list[float], ways: list[float], assigned_at: float, late_s: float, skew_s: float
) -> None:
    """Whatever the clocks of farm and node show, and however long messages are on their way."""
    node = Node()
    begin = node.now
    for pause_s, way_s in zip(sent, ways, strict=False):
        node.tell(events.HelloAsked(), after_s=pause_s)  # sends a heartbeat
        node.now += way_s
        if node.now - begin > assigned_at + late_s:
            break
        node.answer(heard_at=node.now + skew_s)
    node.now = max(node.now, begin + assigned_at + late_s)
    node.tell(launch("e", isolation=Isolation.EXCLUSIVE, assigned_at=begin + assigned_at + skew_s))
    if node.running:
        assert node.core.fence_at(AttemptId("e"), node.now) <= begin + assigned_at + RULES.fence_s + 1e-6


def test_what_the_farm_no_longer_wants_is_stopped() -> None:
    node = Node()
    node.tell(launch("a"))
    node.start("a")
    node.answer(stop=("a",))
    assert node.of(instructions.CancelHost)


def test_the_first_heartbeat_is_full_and_others_when_asked() -> None:
    node = Node()
    node.tell(events.Tick(), after_s=5)
    node.tell(events.HelloAsked())
    assert [beat.is_full for beat in node.heartbeats()] == [True, False, True]
    assert [beat.sequence for beat in node.heartbeats()] == [101, 102, 103]


def test_a_heartbeat_names_all_that_is_not_accepted() -> None:
    node = Node()
    node.tell(launch("a", "b", "c"))
    node.finish("a")
    node.tell(events.Tick(), after_s=5)
    assert set(node.heartbeats()[-1].attempts) == {"a", "b", "c"}
    node.tell(events.ReportsStored(attempt_ids=(AttemptId("a"),)))
    node.tell(events.Tick(), after_s=5)
    assert set(node.heartbeats()[-1].attempts) == {"b", "c"}


def test_a_refused_node_hands_back_and_takes_work_again_when_it_may() -> None:
    node = Node()
    node.tell(launch("a", "b", "c"))
    node.answer(refused="another n1 is alive")
    assert node.end_of("c").outcome is Outcome.NODE_LOST
    assert node.of(instructions.TakeWork) == [instructions.TakeWork(is_wanted=False)]
    node.tell(launch("d"))
    assert node.end_of("d").reason == ("handed back by n1: the farm refuses this node: another n1 is alive")
    node.tell(events.Tick(), after_s=5)
    node.answer()
    assert node.of(instructions.TakeWork)[-1] == instructions.TakeWork(is_wanted=True)
    node.finish("a")
    node.tell(launch("e"))
    assert "e" in node.running.values()


def test_a_drain_lets_running_attempts_finish_and_hands_back_the_rest() -> None:
    node = Node()
    node.tell(launch("a", "b", "c"))
    node.start("a")
    node.start("b")
    node.tell(events.DrainAsked(grace_s=60))
    assert node.heartbeats()[-1].is_draining
    assert node.of(instructions.TakeWork) == [instructions.TakeWork(is_wanted=False)]
    assert node.end_of("c").outcome is Outcome.NODE_LOST
    node.tell(launch("d"))
    assert node.end_of("d").reason == "handed back by n1: the agent is stopping"
    node.finish("a")
    assert not node.of(instructions.CancelHost)
    node.tell(events.Tick(), after_s=60)
    assert [i.outcome for i in node.done if isinstance(i, instructions.CancelHost)] == [Outcome.NODE_LOST]
    node.die("b")
    assert node.core.live == 0


def test_a_second_drain_without_grace_ends_all_at_once() -> None:
    node = Node()
    node.tell(launch("a"))
    node.start("a")
    node.tell(events.DrainAsked(grace_s=600))
    assert node.tell(events.DrainAsked(grace_s=0))
    assert node.of(instructions.CancelHost)


# --- random histories -------------------------------------------------------------------------------------

NAMES = [f"t{number}" for number in range(8)]


class Histories(RuleBasedStateMachine):
    """Whatever comes in whatever order: no double run, one end each, never more than the slots."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node(disk_is_slow=True)
        self.seen: set[str] = set()
        self.started: set[str] = set()

    @rule(
        names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4),
        isolation=st.sampled_from(Isolation),
        device=st.sampled_from(["cpu", "cpu", "cpu", "gpu"]),
    )
    def launch(self, names: list[str], isolation: Isolation, device: str) -> None:
        orders = tuple(order(name, device) for name in names)
        self.node.tell(events.LaunchReceived(launch=Launch(script=script(isolation), orders=orders)))
        self.seen |= set(names)

    @rule(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
    def stop(self, names: list[str]) -> None:
        self.node.tell(
            events.StopReceived(stop=Stop(attempt_ids=tuple(map(AttemptId, names)), reason="stop"))
        )
        self.seen |= set(names)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 21.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.node.tell(events.Tick(), after_s=seconds)

    @rule(data=st.data())
    def a_host_starts(self, data: st.DataObject) -> None:
        if self.node.running:
            name = data.draw(st.sampled_from(sorted(self.node.running.values())))
            self.node.start(name)
            self.started.add(name)

    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def a_host_finishes(self, data: st.DataObject, outcome: Outcome) -> None:
        if self.node.running:
            self.node.finish(data.draw(st.sampled_from(sorted(self.node.running.values()))), outcome)

    @rule(data=st.data())
    def a_host_dies(self, data: st.DataObject) -> None:
        if self.node.running:
            self.node.die(data.draw(st.sampled_from(sorted(self.node.running.values()))))

    @rule(
        keep=st.sets(st.sampled_from(NAMES)), stop=st.sets(st.sampled_from(NAMES)), is_refused=st.booleans()
    )
    def the_farm_answers(self, keep: set[str], stop: set[str], is_refused: bool) -> None:
        self.node.answer(keep=tuple(keep), stop=tuple(stop - keep), refused="no" if is_refused else "")

    @rule(names=st.lists(st.sampled_from(NAMES)))
    def the_farm_accepts(self, names: list[str]) -> None:
        self.node.tell(events.ReportsStored(attempt_ids=tuple(map(AttemptId, names))))

    @rule()
    def the_journal_is_written(self) -> None:
        self.node.write()

    @rule()
    def reconnects(self) -> None:
        self.node.tell(events.BrokerConnected())

    @invariant()
    def no_more_run_than_there_are_slots(self) -> None:
        assert len(self.node.running) <= 2

    @invariant()
    def none_runs_again_once_it_has_started(self) -> None:
        assert all(self.node.runs[name] <= lc.START_TRIES for name in self.node.runs)
        assert max(Counter(self.node.running.values()).values(), default=0) <= 1

    @invariant()
    def none_ends_twice(self) -> None:
        # A stop for one that is long forgotten is answered anew: the farm may have lost its end to a restore.
        ends = Counter(end.attempt_id for end in self.node.ends() if end.reason != "not running here")
        assert max(ends.values(), default=0) <= 1, ends

    @invariant()
    def what_has_ended_does_not_run(self) -> None:
        ended = {end.attempt_id for end in self.node.ends()}
        assert ended.isdisjoint(self.node.running.values())

    def teardown(self) -> None:
        self.node.tell(events.DrainAsked(grace_s=0))
        for _ in range(20):
            for name in list(self.node.running.values()):
                self.node.die(name)
        assert {end.attempt_id for end in self.node.ends()} == self.seen
        assert self.node.core.live == 0


TestHistories = Histories.TestCase
TestHistories.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_node_is_silent_until_its_queues_are_there() -> None:
    """A farm with work to do sends it as soon as it hears of the node; without a queue it would be lost."""
    core = lc.Lifecycle(rules=RULES, heartbeats=Heartbeats(first_sequence=0))
    assert core.handle(events.Tick(), 1000.0) == []
    assert core.heartbeats.next_at > 1000.0, "it would look again without a pause"
    assert core.handle(events.Tick(), 1010.0) == []
    assert core.handle(events.HelloAsked(), 1010.2) == [], "its renderers have changed"
    said = core.handle(events.BrokerConnected(), 1010.5)
    assert [i.is_full for i in said if isinstance(i, instructions.SendHeartbeat)] == [True]
