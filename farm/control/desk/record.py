"""What the farm did, read from the store, to be played again by `farm simulate`."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from farm.errors import UserError
from farm.flow.predict import RunTimeModel
from farm.flow.recording import RecordedDevice, RecordedStep, Recording
from farm.flow.run_times import Run, model_key, rates_of
from farm.model.machines import Device, Node
from farm.model.work import Job, Step
from farm.store import attempts, jobs, nodes
from farm.store.engine import read_clock

MOST_TASKS: Final = 200_000
_RUNS_LEARNT: Final = 300
"""Of a step: more would say nothing new of its device models."""


def record(db: sa.Connection, hours: float) -> Recording:
    """The farm as it is, and the jobs that came in the last `hours`. Raises UserError for too many."""
    now = read_clock(db)
    begin = now - hours * 3600
    known = nodes.list_nodes(db)
    devices = {(str(node.id), device.id): device for node in known for device in node.capabilities.devices}
    steps: list[RecordedStep] = []
    for job_id in jobs.submitted_since(db, begin):
        steps += _job(db, jobs.read_job(db, job_id), devices, begin)
        if sum(len(step.content) for step in steps) > MOST_TASKS:
            raise UserError(f"more than {MOST_TASKS:,} tasks came in {hours:g} hours: record fewer hours")
    return Recording(hours=hours, devices=_devices(known), steps=tuple(steps))


def _devices(known: list[Node]) -> tuple[RecordedDevice, ...]:
    found: dict[str, RecordedDevice] = {}
    for node in known:
        for device in node.capabilities.devices:
            if device.slots <= 0:
                continue
            name = model_key(device)
            before = found.get(name)
            found[name] = RecordedDevice(
                model=name,
                kind=device.kind,
                slots=device.slots + (before.slots if before is not None else 0),
                pools=tuple(
                    sorted({*node.capabilities.pools, *(before.pools if before is not None else ())})
                ),
                fp32_tflops=device.fp32_tflops,
                memory_bandwidth_gbps=device.memory_bandwidth_gbps,
                vram_mib=device.vram_mib,
                watts=device.tdp_w,
            )
    return tuple(found.values())


def _job(
    db: sa.Connection, job: Job, devices: dict[tuple[str, str], Device], begin: float
) -> list[RecordedStep]:
    done = attempts.newest_done(db, job.id, limit=MOST_TASKS)
    starts = attempts.first_starts(db, job.id) if any(step.depends_on for step in job.steps) else {}
    found = []
    for step in job.steps:
        mine = [
            (each, device)
            for each in reversed(done)
            if each.step_id == step.id and (device := devices.get((each.node_id, each.device_id))) is not None
        ]
        if step.demand.gpus > 1 or not mine:
            continue
        at = starts.get(step.id, job.submitted_at) if step.depends_on else job.submitted_at
        found.append(_step(job, step, mine, list(devices.values()), max(at - begin, 0.0)))
    return found


def _step(
    job: Job, step: Step, mine: list[tuple[attempts.Done, Device]], devices: list[Device], at_s: float
) -> RecordedStep:
    model = RunTimeModel()
    for device in devices:
        model.add_model(model_key(device), rates_of(device))
    name = str(step.id)
    model.add_step(name, step.profile)
    for each, device in mine[:_RUNS_LEARNT]:
        model.observe(
            Run(
                step=name,
                model=model_key(device),
                node=each.node_id,
                runtime_s=each.runtime_s,
                load_s=each.load_s,
            )
        )
    load_s = sum(each.load_s for each, _ in mine) / len(mine)
    told = {of: model.estimate(name, of) for of in model.models}
    seconds = {of: max(each.median_s - each.load_s, 1e-3) for of, each in told.items()}
    content = []
    for each, device in mine:
        render_s = max(each.runtime_s - each.load_s, 1e-3)
        content.append(round(render_s / seconds[model_key(device)], 4))
    # Tasks that are not done are taken to be like those that are.
    content += [content[at % len(content)] for at in range(step.counts.total - len(content))]
    return RecordedStep(
        name=f"{job.name}/{step.name}",
        at_s=round(at_s, 3),
        user=job.settings.user,
        priority=job.settings.priority,
        profile=step.profile,
        compute_share=model.profile(name, step.profile).compute_share,
        gpus=step.demand.gpus,
        vram_mib=step.demand.vram_mib,
        pool=step.demand.pool or "",
        load_s=round(load_s, 3),
        seconds={of: round(value, 4) for of, value in seconds.items()},
        content=tuple(content),
    )
