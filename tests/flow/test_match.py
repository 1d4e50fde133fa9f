from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.flow.groups import Assignment, Group, merged
from farm.flow.match import Score, fifo, fitness, plan, unknowns, why
from farm.flow.refusals import DISK_SCRATCH, RefusalKind, fits, refusals
from farm.model.ids import JobId, NodeId, StepId
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, DeviceLoad, NodeView, Use
from farm.model.work import Profile

CPU = Device(id="cpu", kind=DeviceKind.CPU, model="EPYC", slots=2, fp32_tflops=1, memory_bandwidth_gbps=200)
GPU = Device(
    id="GPU-a",
    kind=DeviceKind.GPU,
    model="RTX",
    fp32_tflops=80,
    memory_bandwidth_gbps=1000,
    vram_mib=24_000,
)
COMPUTE = Profile(compute_share=0.8, bandwidth_share=0.2)
BANDWIDTH = Profile(compute_share=0.2, bandwidth_share=0.8)


def node(name: str = "n1", *devices: Device, uses: tuple[Use, ...] = (), **has: object) -> NodeView:
    found = Capabilities(
        **{"cpus": 8, "memory_mib": 32_000, "software": {"blender": "4.5.1"}} | has,  # type: ignore[arg-type]
        devices=devices or (CPU, GPU),
    )
    return NodeView(id=NodeId(name), capabilities=found, uses=uses)


def group(step: int = 1, **values: object) -> Group:
    plain: dict[str, object] = {"step_id": StepId(step), "job_id": JobId(step), "ready": 1}
    return Group(**plain | values)  # type: ignore[arg-type]


def texts(demand: Demand, view: NodeView) -> list[str]:
    return [refusal.text for refusal in refusals(demand, view)]


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "view", "text"),
    [
        (Demand(pool="gpu"), node(), "not in pool 'gpu'"),
        (Demand(software=("maya",)), node(), "has no maya"),
        (Demand(cpus=16), node(), "CPUs 8 < 16 needed"),
        (Demand(memory_mib=64_000), node(), "memory 32,000 MiB < 64,000 MiB needed"),
        (Demand(gpus=1, vram_mib=31_000), node(), "VRAM 24,000 MiB < 31,000 MiB needed"),
        (Demand(gpus=1), node("n", CPU), "has no GPU"),
        (Demand(gpus=2), node(), "GPUs 1 < 2 needed"),
        (
            Demand(gpus=1, vram_mib=1),
            node("n", replace(GPU, vram_mib=None)),
            "VRAM is not known, 1 MiB needed",
        ),
        (Demand(), node("n", replace(CPU, slots=0)), "offers no slot"),
        (
            Demand(any_of=(("attr.worker.os.family", ("windows",)),)),
            node(),
            "attr.worker.os.family is linux, not windows",
        ),
        (
            Demand(all_of=(("attr.site", ("a", "b")),)),
            node(attributes={"attr.site": ("A",)}),
            "attr.site is a, not b",
        ),
        (Demand(any_of=(("attr.site", ("a",)),)), node(), "attr.site is not set, not a"),
        (Demand(amounts=(("amount.x", 2),)), node(), "has no amount.x"),
        (Demand(amounts=(("amount.x", 2),)), node(amounts={"amount.x": 1.5}), "amount.x 1.5 < 2 needed"),
    ],
)
def test_a_node_that_can_never_take_the_task_says_why(demand: Demand, view: NodeView, text: str) -> None:
    assert texts(demand, view) == [text]
    assert not any(refusal.is_momentary for refusal in refusals(demand, view))


@pytest.mark.parametrize(
    ("demand", "view", "text"),
    [
        (Demand(), replace(node(), accepts_work=False, refusal="draining by anna"), "draining by anna"),
        (Demand(), node(uses=(Use(device_id="cpu"), Use(device_id="cpu"))), "all 2 slots busy"),
        (Demand(gpus=1), node(uses=(Use(device_id="GPU-a"),)), "its slot is busy"),
        (Demand(cpus=4), node(uses=(Use(device_id="GPU-a", cpus=6),)), "2 of 8 CPUs free < 4 needed"),
        (
            Demand(memory_mib=20_000),
            node(uses=(Use(device_id="GPU-a", memory_mib=20_000),)),
            "free memory 12,000 MiB < 20,000 MiB needed",
        ),
        (
            Demand(gpus=1, vram_mib=16_000),
            node("n", replace(GPU, slots=2), uses=(Use(device_id="GPU-a", vram_mib=16_000),)),
            "free VRAM 8,000 MiB < 16,000 MiB needed",
        ),
        (
            Demand(amounts=((DISK_SCRATCH, 10),)),
            replace(node(), disk_free_mib=2048),
            "free disk 2 GiB < 10 GiB needed",
        ),
        (Demand(amounts=((DISK_SCRATCH, 10),)), node(), "free disk is not known < 10 GiB needed"),
    ],
)
def test_a_node_that_could_take_it_later_says_so(demand: Demand, view: NodeView, text: str) -> None:
    assert texts(demand, view) == [text]
    assert all(refusal.is_momentary for refusal in refusals(demand, view))


def test_every_reason_is_told_not_only_the_first() -> None:
    demand = Demand(pool="film", software=("maya", "houdini"), cpus=99, gpus=1, vram_mib=99_000)
    assert len(texts(demand, node())) == 5


def test_attribute_values_compare_without_regard_to_case() -> None:
    view = node(attributes={"attr.site": ("Berlin",)}, os_family="Linux")
    assert fits(
        Demand(any_of=(("attr.site", ("berlin", "paris")), ("attr.worker.os.family", ("linux",)))), view
    )


def test_work_for_the_cpu_leaves_the_gpus_slots_alone() -> None:
    busy = node(uses=(Use(device_id="cpu"), Use(device_id="cpu")))
    assert [refusal.kind for refusal in refusals(Demand(), busy)] == [RefusalKind.SLOTS_BUSY]
    assert fits(Demand(), node("gpu-only", GPU))


def test_a_use_of_a_device_that_has_gone_holds_cpus_only() -> None:
    assert fits(Demand(), node(uses=(Use(device_id="GPU-gone"),)))


# --- scores -----------------------------------------------------------------------------------------------


def test_fitness_is_the_published_formula() -> None:
    load = DeviceLoad(device_id="GPU-a", utilisation=0.25, memory_occupancy=0.5)
    assert fitness(COMPUTE, GPU, load) == pytest.approx(80 * 0.75)
    assert fitness(BANDWIDTH, GPU, load) == pytest.approx(1000 * 0.5 - 20)
    assert fitness(BANDWIDTH, CPU, None) == pytest.approx(200)


def test_fitness_counts_what_ray_tracing_hardware_adds_for_a_ray_tracer_alone() -> None:
    traced = replace(COMPUTE, is_ray_traced=True)
    tracing, computing = (replace(GPU, ray_tracing_generation=generation) for generation in (3, 0))
    assert fitness(COMPUTE, tracing, None) == fitness(COMPUTE, computing, None)
    assert (fitness(traced, tracing, None) or 0) > 2 * (fitness(traced, computing, None) or 0)
    assert fitness(traced, replace(CPU, ray_tracing_generation=0), None) == fitness(COMPUTE, CPU, None)


def test_an_unknown_use_costs_nothing_and_is_told() -> None:
    assert fitness(COMPUTE, GPU, DeviceLoad(device_id="GPU-a")) == 80
    assert unknowns(COMPUTE, GPU, None) == ("utilisation",)
    assert unknowns(BANDWIDTH, replace(GPU, memory_bandwidth_gbps=None), None) == (
        "memory bandwidth",
        "memory occupancy",
    )


def test_an_unknown_figure_gives_no_score_rather_than_zero() -> None:
    assert fitness(COMPUTE, replace(GPU, fp32_tflops=None), None) is None
    assert fitness(BANDWIDTH, replace(GPU, memory_bandwidth_gbps=None), None) is None


def test_a_device_of_unknown_speed_is_taken_after_the_better_half() -> None:
    nodes = [
        node("fast", replace(GPU, fp32_tflops=90)),
        node("slow", replace(GPU, fp32_tflops=10)),
        node("unknown", replace(GPU, fp32_tflops=None)),
    ]
    want = group(demand=Demand(gpus=1), profile=COMPUTE, ready=2)
    assert [got.node_id for got in plan([want], nodes, score=fitness, limit=9)] == ["fast", "unknown"]
    even = [nodes[2], node("mean", replace(GPU, fp32_tflops=50))]
    assert plan([replace(want, ready=1)], even, score=fitness, limit=9)[0].node_id == "mean"


# --- plan -------------------------------------------------------------------------------------------------


def test_compute_goes_to_flops_and_traffic_to_bandwidth() -> None:
    nodes = [
        node("flops", replace(GPU, fp32_tflops=100, memory_bandwidth_gbps=500)),
        node("bandwidth", replace(GPU, fp32_tflops=50, memory_bandwidth_gbps=3000)),
    ]
    for profile, best in ((COMPUTE, "flops"), (BANDWIDTH, "bandwidth")):
        want = group(demand=Demand(gpus=1), profile=profile)
        assert [got.node_id for got in plan([want], nodes, score=fitness, limit=9)] == [best]


def test_priority_comes_before_age_and_age_before_step() -> None:
    view = [node("n", replace(CPU, slots=1))]
    old, new, urgent = (
        group(3, submitted_at=1.0),
        group(1, submitted_at=2.0),
        group(4, priority=90, submitted_at=3.0),
    )
    assert plan([old, new, urgent], view, score=fifo, limit=9)[0].step_id == 4
    assert plan([old, new], view, score=fifo, limit=9)[0].step_id == 3
    assert plan([replace(old, submitted_at=2.0), new], view, score=fifo, limit=9)[0].step_id == 1


def test_equal_devices_are_filled_evenly() -> None:
    nodes = [node(name, replace(CPU, slots=4)) for name in ("a", "b")]
    got = plan([group(ready=4)], nodes, score=fifo, limit=9)
    assert {(each.node_id, each.count) for each in got} == {("a", 2), ("b", 2)}


def test_a_job_never_gets_more_than_its_max_running() -> None:
    nodes = [node("n", replace(CPU, slots=8))]
    steps = [group(step, job_id=JobId(7), ready=5, max_running=4, job_running=1) for step in (1, 2)]
    assert sum(got.count for got in plan(steps, nodes, score=fifo, limit=9)) == 3


def test_no_more_than_the_limit_is_given_out() -> None:
    assert sum(got.count for got in plan([group(ready=50)], [node("n", CPU)], score=fifo, limit=1)) == 1
    assert plan([group(ready=50)], [node()], score=fifo, limit=0) == ()


def test_an_avoided_node_gets_nothing_of_that_group_but_of_others() -> None:
    got = plan([group(1, avoid=frozenset({NodeId("n1")})), group(2)], [node()], score=fifo, limit=9)
    assert [each.step_id for each in got] == [2]


def test_groups_that_share_devices_but_not_pools_are_told_apart() -> None:
    groups = [group(1, ready=1), group(2, ready=1, demand=Demand(pool="film"))]
    nodes = [node("other", replace(CPU, slots=2)), node("film", replace(CPU, slots=1), pools=("film",))]
    got = plan(groups, nodes, score=fifo, limit=9)
    assert {(each.step_id, each.node_id) for each in got if each.step_id == 2} <= {(2, "film")}
    assert plan(groups[1:], nodes[:1], score=fifo, limit=9) == ()


def test_several_gpus_are_given_together_and_never_a_mig_instance() -> None:
    gpus = tuple(
        replace(GPU, id=f"GPU-{name}", fp32_tflops=speed) for name, speed in (("a", 1), ("b", 3), ("c", 2))
    )
    want = group(demand=Demand(gpus=2), ready=5, profile=COMPUTE)
    got = plan([want], [node("n", *gpus)], score=fitness, limit=9)
    assert [(each.device_id, each.count) for each in got] == [("GPU-b,GPU-c", 1)]
    used = node("n", *gpus, uses=(Use(device_id="GPU-b,GPU-c"),))
    assert plan([want], [used], score=fitness, limit=9) == ()
    migs = tuple(replace(gpu, kind=DeviceKind.MIG) for gpu in gpus)
    assert texts(want.demand, node("n", *migs)) == ["has no GPU"]


def mostly(usual: object, *others: object) -> st.SearchStrategy[Any]:
    """So that most tasks fit most nodes: a refusal hides all others from a plan."""
    return st.integers(0, 3 + len(others)).map(lambda at: usual if at < 4 else others[at - 4])


DEVICES = st.builds(
    Device,
    id=st.just(""),
    kind=st.sampled_from(DeviceKind),
    model=st.just("m"),
    slots=mostly(2, 0, 1, 3),
    fp32_tflops=st.none() | st.sampled_from([1.0, 5.0, 20.0]),
    memory_bandwidth_gbps=st.none() | st.sampled_from([100.0, 900.0]),
    vram_mib=mostly(24_000, 8_000, None),
)
DEMANDS = st.builds(
    Demand,
    pool=mostly(None, "default", "gpu"),
    cpus=st.sampled_from([0, 1.5, 4]),
    memory_mib=st.sampled_from([0, 1_000, 9_000]),
    gpus=mostly(0, 1, 1, 2),
    vram_mib=st.sampled_from([0, 4_000, 12_000]),
    software=mostly((), ("blender",), ("maya",)),
    any_of=mostly((), (("attr.site", ("a",)),)),
    amounts=mostly((), ((DISK_SCRATCH, 1.0),), (("amount.x", 1.0),)),
).map(lambda demand: demand if demand.gpus else replace(demand, vram_mib=0))


@st.composite
def views(draw: st.DrawFn, name: str) -> NodeView:
    devices = tuple(
        replace(device, id=f"d{at}")
        for at, device in enumerate(draw(st.lists(DEVICES, min_size=draw(st.integers(0, 2)), max_size=3)))
    )
    uses = st.builds(
        Use,
        device_id=st.sampled_from([device.id for device in devices] or ["gone"]),
        cpus=st.sampled_from([0, 2.5]),
        memory_mib=st.sampled_from([0, 4_000]),
        vram_mib=st.sampled_from([0, 5_000]),
    )
    return NodeView(
        id=NodeId(name),
        capabilities=Capabilities(
            cpus=draw(st.integers(1, 8)),
            memory_mib=draw(st.sampled_from([4_000, 16_000])),
            pools=draw(st.sampled_from([("default",), ("default", "gpu")])),
            software=draw(mostly({"blender": "4"}, {})),
            attributes=draw(mostly({"attr.site": ("A",)}, {})),
            amounts=draw(mostly({"amount.x": 2.0}, {})),
            devices=devices,
        ),
        accepts_work=draw(mostly(True, False)),
        uses=tuple(draw(st.lists(uses, max_size=2))),
        disk_free_mib=draw(st.sampled_from([None, 500, 5_000])),
    )


@st.composite
def farms(draw: st.DrawFn) -> tuple[list[Group], list[NodeView]]:
    nodes = [draw(views(f"n{at}")) for at in range(draw(st.integers(0, 4)))]
    demands = draw(st.lists(DEMANDS, min_size=1, max_size=3))
    caps = st.none() | st.integers(0, 4)
    limits = {JobId(job): draw(caps) for job in (1, 2, 3)}
    groups = []
    for step in range(draw(st.integers(0, 6))):
        job = JobId(draw(st.integers(1, 3)))
        groups.append(
            Group(
                step_id=StepId(step),
                job_id=job,
                demand=draw(st.sampled_from(demands)),
                profile=draw(st.sampled_from([COMPUTE, BANDWIDTH])),
                ready=draw(mostly(3, 0, 1, 6)),
                max_running=limits[job],
                job_running=1 if limits[job] else 0,
                priority=draw(st.sampled_from([10, 50])),
                submitted_at=draw(st.sampled_from([1.0, 2.0])),
                avoid=draw(st.sampled_from([frozenset(), frozenset({NodeId("n0")})])),
            )
        )
    return groups, nodes


def after(nodes: Sequence[NodeView], demand: Demand, got: Assignment) -> list[NodeView]:
    use = Use(
        device_id=got.device_id, cpus=demand.cpus, memory_mib=demand.memory_mib, vram_mib=demand.vram_mib
    )
    return [replace(n, uses=(*n.uses, use)) if n.id == got.node_id else n for n in nodes]


@given(farms(), st.sampled_from([fitness, fifo]), st.integers(0, 8))
@settings(max_examples=300, deadline=None)
def test_a_plan_never_gives_what_is_not_there(
    farm: tuple[list[Group], list[NodeView]], score: Score, limit: int
) -> None:
    groups, nodes = farm
    by_step = {each.step_id: each for each in groups}
    got = plan(groups, nodes, score=score, limit=limit)
    assert sum(each.count for each in got) <= limit
    by_job: Counter[JobId] = Counter()
    by_group: Counter[StepId] = Counter()
    # The oracle: start the tasks one by one; each must fit the node, on just that device, as it then is.
    for each in got:
        want = by_step[each.step_id]
        assert each.count > 0
        assert each.node_id not in want.avoid
        for _ in range(each.count):
            view = next(n for n in nodes if n.id == each.node_id)
            chosen = each.device_id.split(",")
            assert len(chosen) == len(set(chosen)) == max(want.demand.gpus, 1)
            only = tuple(d for d in view.capabilities.devices if d.id in chosen)
            narrowed = replace(view, capabilities=replace(view.capabilities, devices=only))
            assert not texts(want.demand, narrowed)
            assert fits(want.demand, view)
            nodes = after(nodes, want.demand, each)
        by_job[want.job_id] += each.count
        by_group[want.step_id] += each.count
    for want in groups:
        assert by_group[want.step_id] <= want.ready
        if want.max_running is not None:
            assert by_job[want.job_id] + want.job_running <= max(want.max_running, want.job_running)
    # Nothing is left undone: a group that still has ready tasks fits nowhere.
    if sum(each.count for each in got) < limit:
        for want in groups:
            may_run = want.max_running is None or by_job[want.job_id] + want.job_running < want.max_running
            if by_group[want.step_id] < want.ready and may_run:
                assert not [n.id for n in nodes if n.id not in want.avoid and fits(want.demand, n)]


@given(farms(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_same_farm_gives_the_same_plan_in_whatever_order_it_is_read(
    farm: tuple[list[Group], list[NodeView]], random: object
) -> None:
    groups, nodes = farm
    first = plan(groups, nodes, score=fifo, limit=100)
    random.shuffle(groups)  # type: ignore[attr-defined]
    random.shuffle(nodes)  # type: ignore[attr-defined]
    assert plan(groups, nodes, score=fifo, limit=100) == first


@given(farms())
@settings(max_examples=100, deadline=None)
def test_a_task_starts_exactly_where_nothing_refuses_it(farm: tuple[list[Group], list[NodeView]]) -> None:
    groups, nodes = farm
    for want in groups:
        alone = replace(want, ready=1, max_running=None, avoid=frozenset())
        for view in nodes:
            refused = list(refusals(want.demand, view))
            assert fits(want.demand, view) is (not refused)
            assert bool(plan([alone], [view], score=fitness, limit=1)) is (not refused)


def test_a_round_over_300_groups_and_100_nodes_is_quick() -> None:
    nodes = [node(f"n{at:03}", replace(CPU, slots=1), replace(GPU, id=f"GPU-{at}")) for at in range(100)]
    groups = [
        group(at, demand=Demand(gpus=at % 2, memory_mib=1_000 * (at % 5)), ready=1 + 999 * (at % 3 == 0))
        for at in range(300)
    ]
    seconds = []
    for _ in range(3):
        began = time.process_time()
        got = plan(groups, nodes, score=fitness, limit=10_000)
        seconds.append(time.process_time() - began)
    assert sum(each.count for each in got) == 200
    assert min(seconds) < 0.2  # about 8 ms when nothing else runs


# --- why --------------------------------------------------------------------------------------------------


def test_why_tells_each_cause_once_with_the_most_nodes_first() -> None:
    want = group(demand=Demand(gpus=1, vram_mib=31_000))
    nodes = [node(f"n{at}") for at in range(3)] + [node("cpu-only", CPU)]
    assert [(cause.text, cause.count, cause.is_momentary) for cause in why(want, nodes)] == [
        ("3 nodes: VRAM 24,000 MiB < 31,000 MiB needed", 3, False),
        ("cpu-only: has no GPU", 1, False),
    ]


@pytest.mark.parametrize(
    ("want", "nodes", "lines"),
    [
        (group(), [], ["no node has enrolled yet"]),
        (group(ready=0, holds=("waits for job 12",)), [node()], ["waits for job 12"]),
        (
            group(max_running=4, job_running=4),
            [node()],
            [
                "max running 4 reached: waits for one of its tasks to end, or for "
                "`farm change 1 --max-running N`",
                "n1: fits and has room: starts with the next match",
            ],
        ),
        (
            group(),
            [node(name, uses=(Use(device_id="cpu"),) * 2) for name in ("a", "b")],
            ["2 nodes: fits, but all 2 slots busy"],
        ),
        (
            group(avoid=frozenset({NodeId("n1")})),
            [node()],
            ["n1: avoided, tasks of this step failed there"],
        ),
        (
            group(),
            [replace(node(uses=(Use(device_id="cpu"),) * 2), accepts_work=False, refusal="draining by anna")],
            ["n1: draining by anna"],
        ),
        (group(ready=0), [node()], []),
    ],
)
def test_why_says_what_a_wrangler_would_ask(want: Group, nodes: list[NodeView], lines: list[str]) -> None:
    assert [cause.text for cause in why(want, nodes)] == lines


@given(farms())
@settings(max_examples=100, deadline=None)
def test_why_speaks_of_every_node(farm: tuple[list[Group], list[NodeView]]) -> None:
    groups, nodes = farm
    for want in groups:
        spoken: dict[NodeId, int] = defaultdict(int)
        for cause in why(want, nodes):
            assert cause.count == len(set(cause.node_ids))
            for node_id in cause.node_ids:
                spoken[node_id] += 1
        assert set(spoken) == ({n.id for n in nodes} if want.ready else set())


def test_a_merged_plan_has_one_assignment_for_each_step_on_a_device() -> None:
    def to(step: int, node: str, count: int) -> Assignment:
        return Assignment(
            step_id=StepId(step), job_id=JobId(1), node_id=NodeId(node), device_id="gpu0", count=count
        )

    given_plan = [to(1, "a", 2), to(2, "a", 1), to(1, "b", 1), to(1, "a", 3)]
    assert merged(given_plan) == (to(1, "a", 5), to(2, "a", 1), to(1, "b", 1))
