"""What the first seconds of a render say of its demand: arithmetic or memory traffic. The light probe.

Three tiers, by what the device can report (facts and a simulation of 3-GPU pools stand behind the figures):

1. hardware counters (GPM): shares of peak memory bandwidth and of the arithmetic pipes, each against what
   code reaches in practice (0.80 and 0.70);
2. busy time: the memory controller's over the GPU's. A ratio of up to 0.35 is compute, from 0.60 on
   bandwidth, between them balanced. Three classes, because that reading's gain differs by 15 % from one
   device to another;
3. neither: the prior stays.

A longer probe does not help: its error is bias, not noise. And a label is relative to the device that
probed: of random kernels more than half change theirs within a mixed pool, so that the shares are kept
together with the device's model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from farm.model.probes import Probe, ProbeSample, Tier
from farm.model.work import Profile, Tag

PROBE_S: Final = 20.0
"""Samples later than this after an attempt's start are not looked at."""
BUSY: Final = 0.80
"""From this share of a sample's time on a kernel was running: before the first such sample the scene was
being loaded."""
LEAST_BUSY_SAMPLES: Final = 6
LATENCY_BELOW: Final = 0.50
"""A mean utilisation below this means that host or I/O hold the device up."""
COMPUTE_UP_TO: Final = 0.35
BANDWIDTH_FROM: Final = 0.60
_DRAM_REACHES: Final = 0.80
_PIPES_REACH: Final = 0.70
_IDLE_MULTIPROCESSORS: Final = 0.50
_IDLE_DRAM: Final = 0.40


def read(samples: Sequence[ProbeSample], device_model: str) -> Probe:
    """The verdict on an attempt's first samples, in order of time."""
    if any(sample.is_disturbed for sample in samples):
        return _unknown(device_model, "the device was throttled or used by others")
    told = [sample for sample in samples if _busy(sample) is not None]
    if not told:
        return _unknown(device_model, "the device does not report how busy it is")
    busy = [sample for sample in told if (_busy(sample) or 0.0) >= BUSY]
    if len(busy) < LEAST_BUSY_SAMPLES:
        mean = sum(_busy(sample) or 0.0 for sample in told) / len(told)
        if len(told) >= LEAST_BUSY_SAMPLES and mean < LATENCY_BELOW:
            return _latency(device_model, Tier.BUSY_TIME, len(busy))
        return _unknown(device_model, f"{len(busy)} busy samples, {LEAST_BUSY_SAMPLES} are needed")
    counted = [
        (s.dram_active, s.arithmetic_active, s.multiprocessors_active)
        for s in busy
        if s.dram_active is not None and s.arithmetic_active is not None
    ]
    if len(counted) >= LEAST_BUSY_SAMPLES:
        return _by_counters(counted, device_model)
    ratios = [(s.busy, s.memory_busy) for s in busy if s.busy is not None and s.memory_busy is not None]
    if len(ratios) >= LEAST_BUSY_SAMPLES:
        return _by_busy_time(ratios, device_model)
    return _unknown(device_model, "the device does not report its memory's use")


def _busy(sample: ProbeSample) -> float | None:
    """GPM has no "a kernel runs"; where only that is there, any work of the multiprocessors counts."""
    if sample.busy is not None:
        return sample.busy
    if sample.multiprocessors_active is None:
        return None
    return 1.0 if sample.multiprocessors_active >= 0.05 else 0.0


def _by_counters(counted: Sequence[tuple[float, float, float | None]], device_model: str) -> Probe:
    count = len(counted)
    dram = sum(d for d, _, _ in counted) / count
    arithmetic = sum(a for _, a, _ in counted) / count
    active = [m for _, _, m in counted if m is not None]
    if active and sum(active) / len(active) < _IDLE_MULTIPROCESSORS and dram < _IDLE_DRAM:
        return _latency(device_model, Tier.COUNTERS, count)
    d, a = min(dram / _DRAM_REACHES, 1.0), min(arithmetic / _PIPES_REACH, 1.0)
    if d + a <= 0:
        return _unknown(device_model, "the counters stand still")
    beta = d / (d + a)
    tag = Tag.BANDWIDTH if beta >= 0.6 else Tag.COMPUTE if beta <= 0.4 else Tag.BALANCED
    return _found(tag, beta, 0.9, Tier.COUNTERS, count, device_model)


def _by_busy_time(ratios: Sequence[tuple[float, float]], device_model: str) -> Probe:
    ratio = sum(memory for _, memory in ratios) / sum(gpu for gpu, _ in ratios)
    beta = min(max((ratio - 0.25) / 0.5, 0.0), 1.0)
    if ratio >= BANDWIDTH_FROM:
        tag = Tag.BANDWIDTH
    else:
        tag = Tag.COMPUTE if ratio <= COMPUTE_UP_TO else Tag.BALANCED
    return _found(tag, beta, 0.7, Tier.BUSY_TIME, len(ratios), device_model)


def _found(tag: Tag, beta: float, confidence: float, tier: Tier, count: int, device_model: str) -> Probe:
    return Probe(
        tag=tag,
        compute_share=round(1 - beta, 3),
        bandwidth_share=round(beta, 3),
        confidence=confidence,
        tier=tier,
        busy_samples=count,
        device_model=device_model,
    )


def _latency(device_model: str, tier: Tier, busy_samples: int) -> Probe:
    """Neither matters much: the cheapest device will do."""
    return Probe(
        tag=Tag.LATENCY,
        compute_share=0.2,
        bandwidth_share=0.2,
        confidence=0.6,
        tier=tier,
        busy_samples=busy_samples,
        device_model=device_model,
    )


def _unknown(device_model: str, reason: str) -> Probe:
    return Probe(tag=Tag.UNKNOWN, device_model=device_model, reason=reason)


def learned(profile: Profile, probe: Probe) -> Profile:
    """The step's profile after a probe: what a person said stays, and so does what is surer."""
    is_better = probe.confidence > profile.confidence and profile.source not in ("user", "history")
    if not is_better or probe.compute_share is None or probe.bandwidth_share is None:
        return profile
    return replace(
        profile,
        compute_share=probe.compute_share,
        bandwidth_share=probe.bandwidth_share,
        confidence=probe.confidence,
        source="probe",
        tag=probe.tag,
        device_model=probe.device_model,
    )
