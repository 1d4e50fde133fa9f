"""What the store keeps of GPUs: use, probes, peaks, devices that were lost. On both databases."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from farm.flow.refusals import VRAM_RESERVE_MIB
from farm.model.attempts import DeviceUsage
from farm.model.events import EventKind
from farm.model.ids import AttemptId, JobId, NodeId
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, DeviceLoad
from farm.model.probes import Probe, Tier
from farm.model.states import NodeState, Outcome
from farm.model.work import Isolation, Tag
from farm.store import attempts, events, jobs, moves, nodes, ready, settling
from farm.store.engine import reading, writing
from farm.wire.messages import Finished, Heartbeat
from tests.contract.stored_farm import a_step, submit
from tests.leasing import lease

NODE = NodeId("n1")
USAGE = DeviceUsage(
    device_model="RTX",
    devices=2,
    seconds=1800.0,
    busy=0.9,
    memory_busy=0.3,
    vram_peak_mib=10_000,
    energy_j=3.6e6,
    throttled_s=2.0,
)
PROBE = Probe(
    tag=Tag.COMPUTE,
    compute_share=0.8,
    bandwidth_share=0.2,
    confidence=0.7,
    tier=Tier.BUSY_TIME,
    busy_samples=8,
    device_model="RTX",
)


_SEQUENCE = itertools.count(1)


def beat(**other: Any) -> Heartbeat:
    machine = Capabilities(devices=(Device(id="GPU-1", kind=DeviceKind.GPU, model="RTX", vram_mib=24000),))
    fields = {
        "node_id": NODE,
        "session": "s",
        "boot_id": "b",
        "sequence": next(_SEQUENCE),
        "capabilities": machine,
    }
    return Heartbeat(**{**fields, **other})


def hear(engine: sa.Engine, **other: Any) -> None:
    with writing(engine) as db:
        hearing = nodes.heard(db, beat(**other), rival_s=30)
    assert hearing == nodes.Hearing(is_first=hearing.is_first)


def submitted(engine: sa.Engine, *, gpus: int = 0) -> JobId:
    step = a_step()
    return submit(engine, replace(step, demand=Demand(gpus=gpus)))


def finish(engine: sa.Engine, job_id: JobId, name: str, **told: Any) -> None:
    with writing(engine) as db:
        step = jobs.read_job(db, job_id).steps[-1]
        lease(db, step.id, NODE, 1, device_id="GPU-1,GPU-2", name=lambda task: name)
    report = Finished(
        attempt_id=AttemptId(name), outcome=Outcome.SUCCEEDED, published_by=AttemptId(name), runtime_s=1800.0
    )
    with writing(engine) as db:
        moves.lock_jobs(db, {job_id})
        settling.finished(db, {NODE: [replace(report, **told)]})


def test_use_is_kept_with_the_attempt_and_summed_per_job(engine: sa.Engine) -> None:
    hear(engine)
    job_id = submitted(engine)
    finish(engine, job_id, "a1", usage=USAGE)
    finish(engine, job_id, "a2", usage=replace(USAGE, energy_j=None), outcome=Outcome.NODE_FAULT)
    finish(engine, job_id, "a3")
    with reading(engine) as db:
        used = attempts.usage(db, job_id)
        assert attempts.read_attempt(db, AttemptId("a1")).usage == USAGE
        assert attempts.read_attempt(db, AttemptId("a3")).usage is None
    assert (used.attempts, used.energy_attempts, used.models) == (2, 1, ("RTX",))
    assert used.gpu_hours == pytest.approx(2.0)
    assert used.wasted_gpu_hours == pytest.approx(1.0)
    assert used.energy_kwh == pytest.approx(1.0)
    assert used.busy == pytest.approx(0.9)
    assert used.throttled_s == pytest.approx(4.0)


def test_a_job_that_used_no_gpu_used_nothing(engine: sa.Engine) -> None:
    job_id = submitted(engine)
    with reading(engine) as db:
        used = attempts.usage(db, job_id)
    assert (used.attempts, used.gpu_hours, used.energy_kwh, used.busy) == (0, 0, None, None)


def test_a_probe_becomes_the_step_s_profile_with_its_device(engine: sa.Engine) -> None:
    hear(engine)
    job_id = submitted(engine)
    finish(engine, job_id, "a1", probe=PROBE)
    with reading(engine) as db:
        profile = jobs.read_job(db, job_id).steps[0].profile
        assert attempts.read_attempt(db, AttemptId("a1")).probe == PROBE
    assert (profile.tag, profile.source, profile.device_model) == (Tag.COMPUTE, "probe", "RTX")
    finish(engine, job_id, "a2", probe=replace(PROBE, tag=Tag.BANDWIDTH, confidence=0.6))
    with reading(engine) as db:
        assert jobs.read_job(db, job_id).steps[0].profile == profile


def test_what_a_probe_step_showed_is_learnt_by_those_that_depend_on_it(engine: sa.Engine) -> None:
    hear(engine)
    render = a_step(after=("probe",))
    other = replace(a_step(), name="comp", position=1)
    probe = replace(a_step(), name="probe", position=2, isolation=Isolation.PROBE, output=None)
    job_id = submit(engine, render, other, probe)
    finish(engine, job_id, "a1", probe=PROBE, usage=USAGE)
    with reading(engine) as db:
        learnt = [step.profile.source for step in jobs.read_job(db, job_id).steps]
        seen = {group.step_id: group.demand.vram_seen_mib for group in ready.groups(db)}
        job = jobs.read_job(db, job_id)
    assert learnt == ["probe", "prior", "probe"]
    assert job.steps[0].profile.device_model == "RTX"
    assert seen.get(job.steps[1].id) == 0


def test_the_most_vram_that_was_seen_counts_for_the_next(engine: sa.Engine) -> None:
    hear(engine)
    job_id = submitted(engine, gpus=1)
    finish(engine, job_id, "a1", usage=USAGE)
    finish(engine, job_id, "a2", usage=replace(USAGE, vram_peak_mib=8_000))
    with reading(engine) as db:
        (group,) = ready.groups(db)
    assert group.demand.vram_seen_mib == 10_000
    with writing(engine) as db:
        lease(db, group.step_id, NODE, 1, device_id="GPU-1")
    with reading(engine) as db:
        (use,) = ready.uses(db)[NODE]
    assert use.vram_mib == 11_500 + VRAM_RESERVE_MIB


def test_figures_that_are_none_do_no_harm(engine: sa.Engine) -> None:
    hear(engine)
    job_id = submitted(engine)
    odd = replace(USAGE, seconds=math.nan, energy_j=-1.0, busy=math.inf, vram_peak_mib=2**40, devices=10**9)
    finish(engine, job_id, "a1", usage=odd, probe=replace(PROBE, compute_share=7.0))
    with reading(engine) as db:
        used = attempts.usage(db, job_id)
        assert attempts.read_attempt(db, AttemptId("a1")).probe is None
    assert (used.gpu_hours, used.energy_kwh, used.busy, used.vram_peak_mib) == (0, None, None, None)


def test_a_node_s_failures_of_late_are_counted(engine: sa.Engine) -> None:
    hear(engine)
    job_id = submitted(engine)
    finish(engine, job_id, "a1")
    finish(engine, job_id, "a2", outcome=Outcome.JOB_ERROR)
    finish(engine, job_id, "a3", outcome=Outcome.NODE_FAULT)
    with reading(engine) as db:
        assert nodes.failures(db, window_s=3600) == {NODE: 2}
        assert nodes.failures(db, window_s=-3600) == {}


def test_a_device_that_is_lost_is_told_once(engine: sa.Engine) -> None:
    hear(engine, loads=(DeviceLoad(device_id="GPU-1"),))
    for _ in range(2):
        hear(engine, loads=(DeviceLoad(device_id="GPU-1", fault="lost (Xid 79)"),))
    with reading(engine) as db:
        told = [e for e in events.read(db) if e.kind is EventKind.DEVICE_LOST]
        (node,) = nodes.list_nodes(db)
    assert [event.text for event in told] == ["GPU-1: lost (Xid 79)"]
    assert node.state is NodeState.ONLINE, "it goes on with the rest"
    assert node.loads[0].fault == "lost (Xid 79)"


def test_a_node_that_needs_a_reboot_drains_itself(engine: sa.Engine) -> None:
    hear(engine, fault="driver and library differ: reboot this node")
    hear(engine, fault="driver and library differ: reboot this node")
    with reading(engine) as db:
        (node,) = nodes.list_nodes(db)
        (view,) = nodes.views(db, {})
    assert (node.state, node.reason) == (NodeState.DRAINING, "driver and library differ: reboot this node")
    assert not view.accepts_work
    hear(engine)
    with reading(engine) as db:
        assert nodes.list_nodes(db)[0].state is NodeState.ONLINE
