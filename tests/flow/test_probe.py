"""The light probe's rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.flow.probe import LEAST_BUSY_SAMPLES, learned, read
from farm.model.probes import ProbeSample, Tier
from farm.model.work import Profile, Tag


def busy(memory: float, gpu: float = 0.97, count: int = 8) -> list[ProbeSample]:
    return [ProbeSample(busy=gpu, memory_busy=memory)] * count


@pytest.mark.parametrize(
    ("memory", "tag"),
    [
        (0.09, Tag.COMPUTE),
        (0.33, Tag.COMPUTE),
        (0.45, Tag.BALANCED),
        (0.60, Tag.BANDWIDTH),
        (0.75, Tag.BANDWIDTH),
    ],
)
def test_three_classes_by_the_ratio_of_busy_times(memory: float, tag: Tag) -> None:
    found = read(busy(memory), "NVIDIA L4")
    assert (found.tag, found.tier, found.device_model) == (tag, Tier.BUSY_TIME, "NVIDIA L4")
    assert found.compute_share is not None
    assert found.bandwidth_share is not None
    assert found.compute_share + found.bandwidth_share == pytest.approx(1)


def test_samples_from_before_the_work_began_do_not_count() -> None:
    loading = [ProbeSample(busy=0.05, memory_busy=0.04)] * 10
    assert read(loading + busy(0.1), "x").tag is Tag.COMPUTE
    found = read(loading[:2] + busy(0.1, count=LEAST_BUSY_SAMPLES - 1), "x")
    assert found.tag is Tag.UNKNOWN
    assert found.reason == "5 busy samples, 6 are needed"


def test_a_gpu_that_waits_for_the_host_is_bound_by_latency() -> None:
    assert read([ProbeSample(busy=0.3, memory_busy=0.2)] * 10, "x").tag is Tag.LATENCY


def test_a_throttled_or_shared_device_proves_nothing() -> None:
    found = read([*busy(0.1), ProbeSample(busy=0.9, memory_busy=0.1, is_disturbed=True)], "x")
    assert found.tag is Tag.UNKNOWN
    assert found.compute_share is None
    assert "throttled" in found.reason


def test_a_device_that_cannot_say_is_unknown_and_why() -> None:
    assert read([ProbeSample()] * 10, "MIG").tier is Tier.NONE
    assert read([ProbeSample(busy=0.95)] * 10, "x").reason == "the device does not report its memory's use"
    assert read([], "x").tag is Tag.UNKNOWN


@pytest.mark.parametrize(
    ("dram", "pipes", "tag"),
    [(0.78, 0.1, Tag.BANDWIDTH), (0.1, 0.68, Tag.COMPUTE), (0.5, 0.45, Tag.BALANCED)],
)
def test_counters_are_believed_before_busy_times(dram: float, pipes: float, tag: Tag) -> None:
    sample = ProbeSample(
        busy=0.98, memory_busy=0.5, dram_active=dram, arithmetic_active=pipes, multiprocessors_active=0.9
    )
    found = read([sample] * 8, "NVIDIA H100 80GB HBM3")
    assert (found.tag, found.tier) == (tag, Tier.COUNTERS)
    assert found.confidence > read(busy(0.1), "x").confidence


def test_idle_multiprocessors_mean_latency() -> None:
    sample = ProbeSample(busy=0.9, dram_active=0.2, arithmetic_active=0.1, multiprocessors_active=0.3)
    assert read([sample] * 8, "x").tag is Tag.LATENCY


def test_counters_alone_will_do_where_nothing_tells_busy_time() -> None:
    sample = ProbeSample(dram_active=0.7, arithmetic_active=0.1, multiprocessors_active=0.95)
    assert read([sample] * 8, "MIG of an H100").tag is Tag.BANDWIDTH


shares = st.one_of(st.none(), st.floats(0, 1))


@given(
    st.lists(
        st.builds(
            ProbeSample,
            busy=shares,
            memory_busy=shares,
            dram_active=shares,
            arithmetic_active=shares,
            multiprocessors_active=shares,
            is_disturbed=st.booleans(),
        ),
        max_size=40,
    )
)
def test_whatever_was_sampled_the_verdict_is_one(samples: list[ProbeSample]) -> None:
    found = read(samples, "x")
    for share in (found.compute_share, found.bandwidth_share, found.confidence):
        assert share is None or 0 <= share <= 1
    assert (found.compute_share is None) == (found.tag is Tag.UNKNOWN)
    assert bool(found.reason) == (found.tag is Tag.UNKNOWN)
    assert learned(Profile(), found).tag is found.tag
    assert learned(Profile(is_ray_traced=True), found).is_ray_traced


def test_what_a_person_said_stays() -> None:
    found = read(busy(0.7), "NVIDIA L4")
    said = Profile(source="user", tag=Tag.COMPUTE, confidence=0.5)
    assert learned(said, found) is said
    guessed = Profile(source="prior", confidence=0.1)
    better = learned(guessed, found)
    assert (better.source, better.device_model, better.tag) == ("probe", "NVIDIA L4", Tag.BANDWIDTH)
    assert learned(better, read(busy(0.1), "T4")) is better, "no surer than what is known"
