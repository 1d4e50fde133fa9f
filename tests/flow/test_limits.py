"""Limits by example, and every policy against a naive count of what runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.errors import UserError
from farm.flow.ahead import queue_ahead
from farm.flow.bundle_settings import read_bundle_settings, read_limit_needs
from farm.flow.groups import Assignment, Group
from farm.flow.limits import Ledger, causes, counted, user_room
from farm.flow.match import fifo, plan
from farm.flow.predictive import Predictive
from farm.flow.refusals import fits
from farm.flow.submit import plan_job
from farm.flow.weights import Weights
from farm.model.ids import JobId, NodeId, StepId
from farm.model.limits import (
    LIMIT_PREFIX,
    Hold,
    Limit,
    LimitScope,
    check_limit_name,
    limits_needed,
    read_limit,
)
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, NodeView, Use
from farm.model.work import JobSettings, Submission

FREE = Weights(slow_penalty=0.0, slow_cap=1e6, idle_in_tail=False, probe_tasks=10**6)


def limit(name: str = "arnold", amount: int = 2, per: LimitScope = LimitScope.TASK) -> Limit:
    return Limit(name=name, amount=amount, per=per)


def hold(node: str, job: int, *, tasks: int = 1, amount: int = 1, name: str = "arnold") -> Hold:
    return Hold(limit=name, amount=amount, node_id=NodeId(node), job_id=JobId(job), tasks=tasks)


def group(step: int, *needs: tuple[str, int], **changed: object) -> Group:
    amounts = tuple((LIMIT_PREFIX + name, float(amount)) for name, amount in needs)
    plain = Group(step_id=StepId(step), job_id=JobId(step), demand=Demand(amounts=amounts), ready=9)
    return replace(plain, submitted_at=float(step), **changed)  # type: ignore[arg-type]


def node(name: str, slots: int = 4, uses: Sequence[Use] = ()) -> NodeView:
    cpu = Device(
        id="cpu", kind=DeviceKind.CPU, model="cpu", slots=slots, fp32_tflops=1, memory_bandwidth_gbps=20
    )
    has = Capabilities(cpus=8, memory_mib=32_000, devices=(cpu,))
    return NodeView(id=NodeId(name), capabilities=has, uses=tuple(uses))


def may(ledger: Ledger, needs: Sequence[tuple[str, int]], job: int, node: str, wanted: int = 99) -> int:
    return ledger.how_many(needs, job_id=JobId(job), node_id=NodeId(node), wanted=wanted)


def test_a_limit_for_each_task_counts_each_task() -> None:
    ledger = Ledger({"arnold": limit(amount=5)}, [hold("a", 1, tasks=2), hold("b", 1)])
    assert (ledger.used("arnold"), ledger.free("arnold")) == (3, 2)
    assert may(ledger, [("arnold", 1)], 2, "c") == 2
    assert may(ledger, [("arnold", 2)], 2, "c") == 1
    assert may(ledger, [("arnold", 3)], 2, "c") == 0


def test_a_limit_for_each_node_counts_a_node_once_however_many_run_there() -> None:
    ledger = Ledger({"arnold": limit(per=LimitScope.NODE)}, [hold("a", 1, tasks=7), hold("a", 2, amount=2)])
    assert ledger.used("arnold") == 2
    assert may(ledger, [("arnold", 2)], 3, "a") == 99
    assert may(ledger, [("arnold", 1)], 3, "b") == 0


def test_a_limit_for_each_job_counts_a_job_once_wherever_it_runs() -> None:
    ledger = Ledger({"arnold": limit(per=LimitScope.JOB)}, [hold("a", 1, tasks=7), hold("b", 1)])
    assert ledger.used("arnold") == 1
    assert may(ledger, [("arnold", 1)], 1, "c") == 99
    assert may(ledger, [("arnold", 1)], 2, "c") == 99
    ledger.take([("arnold", 1)], job_id=JobId(2), node_id=NodeId("c"), tasks=3)
    assert may(ledger, [("arnold", 1)], 3, "c") == 0


def test_what_is_over_a_lowered_limit_runs_on_and_nothing_more_starts() -> None:
    ledger = Ledger({"arnold": limit(amount=1)}, [hold("a", 1, tasks=3)])
    assert (ledger.used("arnold"), ledger.free("arnold")) == (3, 0)
    assert may(ledger, [("arnold", 1)], 1, "a") == 0


def test_a_limit_that_does_not_exist_holds_nobody_up() -> None:
    assert may(Ledger({}), [("arnold", 1)], 1, "a") == 99
    assert counted([group(1, ("arnold", 1))], [node("a")], Ledger({})).free == {}


@pytest.mark.parametrize("per", LimitScope)
def test_why_names_the_limit_who_holds_it_and_what_would_have_to_change(per: LimitScope) -> None:
    ledger = Ledger({"arnold": limit(amount=1, per=per)}, [hold("a", 7)])
    (cause,) = causes(group(1, ("arnold", 1)), ledger)
    assert cause.is_momentary
    assert "limit arnold: 1 of 1 in use by job 7 (1 task)" in cause.text
    assert "farm limits set arnold N" in cause.text
    (cause,) = causes(group(1, ("arnold", 3)), ledger)
    assert not cause.is_momentary
    assert "the farm has 1: needs `farm limits set arnold 3`" in cause.text
    assert causes(group(1), ledger) == []


def test_why_names_a_user_s_limit() -> None:
    room = user_room({"anna": 3, "ben": 1}, ["anna", "ben", "carl"], each=3, named={"ben": 1, "carl": 0})
    assert room == {"anna": 0, "ben": 0, "carl": 0}
    (cause,) = causes(group(1, user="anna"), Ledger({}), user_room=room)
    assert "max_running_per_user" in cause.text
    assert user_room({}, ["anna"], each=None, named={}) == {}


@pytest.mark.parametrize("name", ["", "1a", "a b", "ä", "a" * 64, "a=b", "../x"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot be named"):
        check_limit_name(name)


@pytest.mark.parametrize("value", [-1, 1.5, True, "ten", None, {"amount": 1, "per": "frame"}, {"count": 1}])
def test_a_setting_that_is_no_limit_is_refused_by_name(value: object) -> None:
    with pytest.raises(UserError, match="limit 'arnold'"):
        read_limit("arnold", value)


def test_settings_and_amounts_are_read() -> None:
    assert read_limit("Arnold", {"amount": 3, "per": "node"}) == Limit(
        name="arnold", amount=3, per=LimitScope.NODE, is_from_settings=True
    )
    assert limits_needed(
        ((f"{LIMIT_PREFIX}a", 1.5), ("amount.worker.x", 3.0), (f"{LIMIT_PREFIX}b", 0.1))
    ) == (
        ("a", 2),
        ("b", 1),
    )


def test_short_tasks_do_not_queue_past_a_limit() -> None:
    short = group(1, ("arnold", 1), mean_runtime_s=0.1, runtimes=99)
    busy = node("a", 1, [Use(device_id="cpu", mean_runtime_s=0.1)])
    told = counted([short], [busy], Ledger({"arnold": limit()}))
    assert queue_ahead(told.groups, [busy], (), limit=99) == ()
    free = group(1, mean_runtime_s=0.1, runtimes=99)
    assert queue_ahead(counted([free], [busy], Ledger({"arnold": limit()})).groups, [busy], (), limit=99)


# --- against a naive count ----------------------------------------------------------------------------


@dataclass
class Farm:
    """What runs, one entry a task: (job, node, limit needs, user)."""

    limits: dict[str, Limit]
    most: Mapping[str, int]
    slots: dict[str, int]
    groups: list[Group]
    running: list[tuple[JobId, NodeId, tuple[tuple[str, int], ...], str]] = field(default_factory=list)

    def ledger(self) -> Ledger:
        holds = [
            Hold(limit=name, amount=amount, node_id=node_id, job_id=job_id)
            for job_id, node_id, needs, _ in self.running
            for name, amount in needs
        ]
        return Ledger(self.limits, holds)

    def room(self) -> dict[str, int]:
        running = Counter(user for *_, user in self.running)
        return user_room(running, {g.user for g in self.groups}, each=None, named=self.most)

    def views(self) -> list[NodeView]:
        held = Counter(node_id for _, node_id, _, _ in self.running)
        use = Use(device_id="cpu")
        return [node(name, slots, [use] * held[NodeId(name)]) for name, slots in self.slots.items()]

    def start(self, assignments: Sequence[Assignment]) -> None:
        by_step = {g.step_id: at for at, g in enumerate(self.groups)}
        for each in assignments:
            at = by_step[each.step_id]
            found = self.groups[at]
            assert each.count <= found.ready
            self.groups[at] = replace(found, ready=found.ready - each.count)
            needs = limits_needed(found.demand.amounts)
            self.running += [(found.job_id, each.node_id, needs, found.user)] * each.count

    def check(self) -> None:
        """Nothing is over its count, by counting it all anew."""
        for name, each in self.limits.items():
            taken = [
                (job, at, amount) for job, at, needs, _ in self.running for n, amount in needs if n == name
            ]
            if each.per is LimitScope.TASK:
                used = sum(amount for _, _, amount in taken)
            elif each.per is LimitScope.NODE:
                used = sum(max(a for _, n, a in taken if n == at) for at in {n for _, n, _ in taken})
            else:
                used = sum(max(a for j, _, a in taken if j == job) for job in {j for j, _, _ in taken})
            assert used <= each.amount, name
        users = Counter(user for *_, user in self.running)
        assert all(users[user] <= most for user, most in self.most.items())
        held = Counter(node_id for _, node_id, _, _ in self.running)
        assert all(held[NodeId(name)] <= slots for name, slots in self.slots.items())

    def could_start(self) -> list[StepId]:
        """Steps of which one more task could start somewhere."""
        ledger, room = self.ledger(), self.room()
        return [
            g.step_id
            for g in self.groups
            if g.ready > 0
            and room.get(g.user, 1) > 0
            and any(
                fits(g.demand, view)
                and may(ledger, limits_needed(g.demand.amounts), g.job_id, view.id, 1) == 1
                for view in self.views()
            )
        ]


@st.composite
def farms(draw: st.DrawFn) -> Farm:
    names = ["arnold", "nuke"]
    limits = {
        name: limit(name, draw(st.integers(0, 4)), draw(st.sampled_from(list(LimitScope)))) for name in names
    }
    groups = [
        replace(
            group(
                step,
                *(
                    (name, draw(st.integers(1, 2)))
                    for name in draw(st.sampled_from([(), ("arnold",), ("nuke",), ("arnold", "nuke")]))
                ),
            ),
            job_id=JobId(draw(st.integers(1, 3))),
            user=draw(st.sampled_from(["anna", "ben"])),
            ready=draw(st.integers(0, 5)),
        )
        for step in range(1, draw(st.integers(2, 6)))
    ]
    slots = {name: draw(st.integers(1, 3)) for name in "abcd"[: draw(st.integers(1, 4))]}
    most = draw(st.sampled_from([{}, {"anna": 2}, {"anna": 0, "ben": 3}]))
    return Farm(limits=limits, most=most, slots=slots, groups=groups)


@pytest.mark.parametrize("policy", ["fifo", "predictive"])
@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_policy_exceeds_a_limit_and_none_leaves_work_that_could_start(
    policy: str, data: st.DataObject
) -> None:
    farm = data.draw(farms())
    predictive = Predictive(weights=FREE)

    def ask(asked: Predictive, now: float) -> tuple[Assignment, ...]:
        told = counted(farm.groups, farm.views(), farm.ledger(), user_room=farm.room())
        if policy == "fifo":
            return plan(told.groups, farm.views(), score=fifo, limit=99, free=told.free)
        return asked.plan(told.groups, farm.views(), now=now, hour=12.0, limit=99, free=told.free)

    for turn in range(40):
        if turn % 4 == 3 and farm.running:
            farm.running.pop(data.draw(st.integers(0, len(farm.running) - 1)))
        assignments = ask(predictive, float(turn))
        if turn == 0:
            assert ask(Predictive(weights=FREE), 0.0) == assignments, "same input, same plan"
        farm.start(assignments)
        farm.check()
        if not assignments and turn % 4 != 3:
            assert farm.could_start() == []
            if turn > 20 or not any(g.ready for g in farm.groups):
                return


# --- how a job says what it takes -----------------------------------------------------------------------


def test_a_template_a_bundle_and_a_person_may_name_limits_and_the_most_counts() -> None:
    step = {
        "name": "run",
        "hostRequirements": {"amounts": [{"name": "amount.limit.Arnold", "min": 1}]},
        "script": {"actions": {"onRun": {"command": "x"}}},
    }
    template = {"specificationVersion": "jobtemplate-2023-09", "name": "t", "steps": [step]}
    _, bundled = read_bundle_settings([{"name": "farm:limits", "value": {"arnold": 2, "nuke": 1}}])
    made = Submission(name="t", template=template, settings=JobSettings(**bundled))
    assert limits_needed(plan_job(made, uid="").steps[0].demand.amounts) == (("arnold", 2), ("nuke", 1))
    plain = replace(made, settings=JobSettings())
    assert limits_needed(plan_job(plain, uid="").steps[0].demand.amounts) == (("arnold", 1),)


@pytest.mark.parametrize("value", [["arnold", "nuke=2"], {"arnold": 1, "nuke": "2"}])
def test_a_bundle_lists_limits_in_either_way(value: object) -> None:
    _, told = read_bundle_settings([{"name": "farm:limits", "value": value}])
    assert told == {"limits": {"arnold": 1, "nuke": 2}}
    assert read_limit_needs(["arnold", "nuke=2"], what="--limit") == told["limits"]


@pytest.mark.parametrize("texts", [["arnold=x"], ["arnold", "arnold=2"], ["=2"], ["a b"]])
def test_what_a_person_mistypes_is_named(texts: list[str]) -> None:
    with pytest.raises(UserError, match=r"--limit|cannot be named"):
        read_limit_needs(texts, what="--limit")


@pytest.mark.parametrize("amount", [0, -1, 10**7, True])
def test_a_job_takes_a_whole_number_of_a_limit(amount: int) -> None:
    template = {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "t",
        "steps": [{"name": "run", "script": {"actions": {"onRun": {"command": "x"}}}}],
    }
    made = Submission(name="t", template=template, settings=JobSettings(limits={"arnold": amount}))
    with pytest.raises(UserError, match="what a task takes of limit arnold"):
        plan_job(made, uid="")
