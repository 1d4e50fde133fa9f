"""Boards of a few nodes and groups, and what was learnt before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farm.flow.board import Board
from farm.flow.groups import Assignment, Group
from farm.flow.predict import RunTimeModel
from farm.flow.run_times import Run, model_key, rates_of
from farm.flow.weights import Weights
from farm.model.ids import JobId, NodeId, StepId
from farm.model.machines import Capabilities, Demand, Device, DeviceKind, NodeView
from farm.model.work import Profile, Tag

COMPUTE = Profile(compute_share=0.85, bandwidth_share=0.15, confidence=1.0, source="user", tag=Tag.COMPUTE)
BANDWIDTH = Profile(
    compute_share=0.15, bandwidth_share=0.85, confidence=1.0, source="user", tag=Tag.BANDWIDTH
)
GPU = Demand(gpus=1)
MODELS = [("m1", 80.0, 600.0), ("m2", 20.0, 2400.0), ("m3", 8.0, 300.0)]


def device(model: str, flops: float, gbps: float, *, vram_mib: int = 24_000, slots: int = 1) -> Device:
    return Device(
        id="gpu",
        kind=DeviceKind.GPU,
        model=model,
        slots=slots,
        fp32_tflops=flops,
        memory_bandwidth_gbps=gbps,
        vram_mib=vram_mib,
        source="measured",
    )


FAST = device("fast", 80, 600)
WIDE = device("wide", 20, 2400)
SLOW = device("slow", 8, 300)


def node(name: str, *devices: Device, **changed: object) -> NodeView:
    has = Capabilities(cpus=8, memory_mib=32_000, devices=devices or (FAST,))
    return replace(NodeView(id=NodeId(name), capabilities=has), **changed)  # type: ignore[arg-type]


def group(step: int, **changed: object) -> Group:
    plain = Group(step_id=StepId(step), job_id=JobId(step), demand=GPU, ready=1, submitted_at=float(step))
    return replace(plain, **changed)  # type: ignore[arg-type]


def board(
    nodes: Sequence[NodeView],
    groups: Sequence[Group],
    *,
    weights: Weights | None = None,
    runs: Sequence[Run] = (),
    shares: dict[str, float] | None = None,
    project_shares: dict[str, float] | None = None,
    limits: dict[str, int] | None = None,
) -> Board:
    model = RunTimeModel()
    for view in nodes:
        for each in view.capabilities.devices:
            model.add_model(model_key(each), rates_of(each))
    for each_group in groups:
        model.add_step(str(each_group.step_id), each_group.profile)
    for run in runs:
        model.observe(run)
    made = Board(model, weights=weights, shares=shares, project_shares=project_shares, limits=limits)
    for view in nodes:
        made.put_node(view, 0.0)
    for each_group in groups:
        made.put_group(each_group, 0.0)
    made.reprice(0.0)
    return made


def known(step: int, seconds: float, on: str = "fast", times: int = 6) -> list[Run]:
    return [Run(step=str(step), model=on, node="x", runtime_s=seconds)] * times


def where(plan: Sequence[Assignment]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for each in plan:
        found.setdefault(int(each.step_id), []).extend([str(each.node_id)] * each.count)
    return found


EVERYTHING = Weights(probe_tasks=10**6, slow_cap=1e6, idle_in_tail=False)
"""Nothing is held back."""
