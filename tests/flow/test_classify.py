from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.flow.classify import classify
from farm.model.work import Tag

HEAVY_SAMPLES: dict[str, float | str] = {
    "engine": "CYCLES",
    "samples": 1024,
    "width": 3840,
    "height": 2160,
    "texture_mib": 500,
    "triangles": 1e6,
}
HEAVY_TEXTURES: dict[str, float | str] = {
    "engine": "CYCLES",
    "samples": 4,
    "width": 240,
    "height": 135,
    "texture_mib": 256,
    "triangles": 5e5,
}


@pytest.mark.parametrize("tag", [Tag.COMPUTE, Tag.BANDWIDTH, Tag.BALANCED])
def test_what_the_user_says_wins(tag: Tag) -> None:
    for hints in ({}, HEAVY_SAMPLES, HEAVY_TEXTURES):
        profile = classify(tag, hints, "blender")
        assert (profile.tag, profile.confidence, profile.source) == (tag, 1.0, "user")


@pytest.mark.parametrize(
    ("engine", "kind", "is_traced"),
    [
        ("CYCLES", "blender", True),
        ("BLENDER_EEVEE", "blender", False),
        ("", "luxcore", True),
        ("V-Ray GPU", "", True),
        ("", "ffmpeg", False),
        ("", "", False),
    ],
)
def test_an_engine_that_traces_rays_is_known(engine: str, kind: str, is_traced: bool) -> None:
    hints = {"engine": engine} if engine else {}
    for tag in (None, Tag.BANDWIDTH):
        assert classify(tag, hints, kind).is_ray_traced is is_traced


def test_many_samples_are_compute_and_large_textures_with_few_are_bandwidth() -> None:
    assert classify(None, HEAVY_SAMPLES, "blender").tag is Tag.COMPUTE
    assert classify(None, HEAVY_TEXTURES, "blender").tag is Tag.BANDWIDTH


def test_the_generated_scenes_are_told_apart() -> None:
    compute: dict[str, float | str] = {
        "engine": "CYCLES",
        "samples": 24,
        "width": 240,
        "height": 135,
        "texture_mib": 0,
        "triangles": 40_000,
    }
    memory: dict[str, float | str] = {
        "engine": "CYCLES",
        "samples": 4,
        "width": 240,
        "height": 135,
        "texture_mib": 256,
        "triangles": 524_288,
    }
    assert classify(None, compute, "blender").compute_share > 0.8
    assert classify(None, memory, "blender").bandwidth_share > 0.8


def test_a_user_who_says_unknown_leaves_it_to_the_hints() -> None:
    assert classify(Tag.UNKNOWN, HEAVY_SAMPLES, "blender").source == "hint"


def test_without_hints_the_engine_decides_then_the_kind() -> None:
    assert classify(None, {"engine": "BLENDER_EEVEE_NEXT"}, "blender").tag is Tag.BANDWIDTH
    assert classify(None, {"engine": "CYCLES"}, "blender").tag is Tag.COMPUTE
    assert classify(None, {}, "povray").tag is Tag.COMPUTE
    assert classify(None, {}, "povray").source == "prior"


def test_nothing_known_is_said_so() -> None:
    profile = classify(None, {}, "openjd")
    assert (profile.tag, profile.confidence) == (Tag.UNKNOWN, 0.0)


def test_confidence_grows_with_what_is_known() -> None:
    nothing = classify(None, {}, "blender").confidence
    half = classify(None, {"samples": 128}, "blender").confidence
    both = classify(None, HEAVY_SAMPLES, "blender").confidence
    assert nothing < half < both < classify(Tag.COMPUTE, {}, "blender").confidence


def test_more_samples_never_make_a_scene_less_compute_bound() -> None:
    shares = [
        classify(None, HEAVY_TEXTURES | {"samples": samples}, "blender").compute_share
        for samples in (1, 8, 64, 512)
    ]
    assert shares == sorted(shares)


NAMES = st.sampled_from(["engine", "samples", "width", "height", "texture_mib", "triangles", "volumes", "x"])


@given(
    st.none() | st.sampled_from(Tag),
    st.dictionaries(NAMES, st.floats() | st.text(max_size=5) | st.integers(0, 10**9).map(float)),
    st.sampled_from(["blender", "povray", "command", "openjd", ""]),
)
def test_shares_are_shares_whatever_the_hints(
    tag: Tag | None, hints: dict[str, float | str], kind: str
) -> None:
    profile = classify(tag, hints, kind)
    for share in (profile.compute_share, profile.bandwidth_share, profile.confidence):
        assert 0 <= share <= 1
