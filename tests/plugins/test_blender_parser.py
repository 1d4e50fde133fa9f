from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.model.states import Outcome
from plugins.blender.parser import BlenderParser
from tests.plugins.replay import LOGS, feed, first_fatal, fractions, lines

VERSIONS = ("3.4", "4.2.23", "4.3.2", "4.5.15", "5.0.1")
FRAGMENTS = (
    "ridgeline| frame 1 of 3: -3",
    "ridgeline| frame 2 of 3: -2",
    "ridgeline| stats Mem: 5M | Sample 7/10",
    "ridgeline| saved 9 of 3: x",
    "ridgeline| layers 99999999999999999999999",
    "ridgeline| size 0 0",
    "ridgeline| stats Sample 5/0",
    "ridgeline| missing image",
    "Fra:1 Mem:1M (Peak 1M) | Time:00:00.01 | Mem:0.00M, Peak:0.00M | Scene, ViewLayer | Sample 513/3000",
    "Fra:1 Mem:1M | Time:00:01 | Rendering 26 / 64 samples",
    "Fra:-12 Mem:",
    "Rendered 4/12 Tiles, Sample 1500/1500",
    "Saved: '",
    " | ",
    "No space left on device",
    "Error: ",
    "00:00.664  render           | Saved: '/x",
)
TEXT = st.one_of(
    st.sampled_from(FRAGMENTS),
    st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=30)), max_size=5).map("".join),
)


@pytest.mark.parametrize("version", VERSIONS)
def test_progress_of_two_frames_grows_from_zero_to_one(version: str) -> None:
    readings = feed(BlenderParser((-2, 3)), lines(f"blender-{version}-cycles.log"))
    seen = fractions(readings)
    assert seen == sorted(seen)
    assert seen[0] == 0.0
    assert seen[-1] == 1.0
    assert any(0.0 < fraction < 0.5 for fraction in seen), "there is progress inside the first frame"
    assert any(0.5 < fraction < 1.0 for fraction in seen), "there is progress inside the second frame"
    assert not any(reading.fatal or reading.warning for reading in readings)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_size_that_files_must_have_is_read(version: str) -> None:
    readings = feed(BlenderParser((-2, 3)), lines(f"blender-{version}-cycles.log"))
    assert [(each.width, each.height) for each in readings if each.width] == [(128, 72)]


def test_loading_is_over_when_the_first_frame_begins() -> None:
    readings = feed(BlenderParser((1,)), lines("blender-3.4-missing-texture.log"))
    first = next(index for index, reading in enumerate(readings) if reading.is_rendering)
    assert readings[first].message == "frame 1 (1 of 1)"
    assert any(reading.width for reading in readings[:first])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_texture_is_a_warning_once(version: str) -> None:
    readings = feed(BlenderParser((1,)), lines(f"blender-{version}-missing-texture.log"))
    warnings = [reading.warning for reading in readings if reading.warning]
    assert warnings == [f"missing image 'gone': /show/s{version}/textures/gone.png"]


def test_a_missing_texture_is_seen_in_plain_output_of_5_0() -> None:
    line = "00:00.482  cycles           | ERROR Image file '/show/it's gone.png' does not exist."
    parser = BlenderParser((1, 2))
    readings = feed(parser, [line, line])
    assert [reading.warning for reading in readings] == ["missing image: /show/it's gone.png"]


@pytest.mark.parametrize("version", ["3.4", "4.3.2", "5.0.1"])
def test_a_missing_library_is_a_warning_once(version: str) -> None:
    readings = feed(BlenderParser((1,)), lines(f"blender-{version}-missing-library.log"))
    assert [reading.warning for reading in readings if reading.warning] == [
        "missing library: /show/lib/gone.blend"
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_scene_without_a_camera_has_failed_for_good(version: str) -> None:
    fatal = first_fatal(feed(BlenderParser((1,)), lines(f"blender-{version}-no-camera.log")))
    assert "no camera" in fatal.fatal
    assert fatal.is_final


@pytest.mark.parametrize(
    ("log", "part"),
    [
        ("blender-3.4-no-file.log", "Cannot read file '/show/nope.blend'"),
        ("blender-5.0.1-no-file.log", 'Cannot read file "/show/nope.blend"'),
        ("blender-3.4-too-new.log", "not a blend file"),
        ("blender-3.4-crash.log", "Blender crashed"),
    ],
)
def test_a_scene_that_cannot_be_loaded_may_be_tried_elsewhere(log: str, part: str) -> None:
    fatal = first_fatal(feed(BlenderParser((1,)), lines(log)))
    assert part in fatal.fatal
    assert not fatal.is_final


@pytest.mark.parametrize(
    "log",
    [
        "blender-3.4-full-png.log",
        "blender-3.4-full-exr.log",
        "blender-4.3.2-full-exr.log",
        "blender-5.0.1-full-exr.log",
    ],
)
def test_a_full_disk_is_a_storage_failure_though_blender_says_saved(log: str) -> None:
    fatal = first_fatal(feed(BlenderParser((1,)), lines(log)))
    assert fatal.outcome is Outcome.STORAGE
    assert "No space left on device" in fatal.fatal


@pytest.mark.parametrize(
    "line",
    [
        "System is out of GPU memory",
        "Error: System is out of GPU and shared host memory",
        "Out of memory in cuStreamCreate(&cuda_stream_, CU_STREAM_NON_BLOCKING) (cuda/queue.cpp:21)",
        "CUDA error: Out of memory in cuMemAlloc(&device_pointer, size), line 568",
        "00:12.100  cycles           | ERROR System is out of GPU memory",
        "Fra:1 Mem:9M | Time:00:01.00 | Mem:1M, Peak:1M | Scene, ViewLayer | System is out of GPU memory",
        "Malloc returns null: len=3836072 in new_bhead, total 8693725308",
        "Calloc array returns null: len=8x4 in x, total 1",
        "ridgeline| error frame 7: System is out of GPU memory",
    ],
)
def test_out_of_memory_is_told_apart(line: str) -> None:
    reading = BlenderParser((1,)).feed(line)
    assert reading is not None
    assert reading.outcome is Outcome.OUT_OF_MEMORY
    assert reading.fatal


@pytest.mark.parametrize(
    "line",
    [
        "Fra:1 Mem:1M | Time:00:00.00 | Scene, ViewLayer | Synchronizing object | Out of memory in x",
        "Saved: '/show/No space left on device'",
        "Read blend: /show/Error: Cannot render, no camera",
        "Info: Read library: '/show/System is out of GPU memory', '/show/No space left on device'",
        "EGL Error (0x3009): EGL_BAD_MATCH: Arguments are inconsistent",
        "ridgeline| stats Mem: 0M | Synchronizing object | System is out of GPU memory",
    ],
)
def test_names_of_things_are_not_taken_for_errors(line: str) -> None:
    reading = BlenderParser((1,)).feed(line)
    assert reading is None or not (reading.fatal or reading.warning)


def test_tiles_are_counted_and_not_the_samples_that_start_again() -> None:
    readings = feed(BlenderParser((1,)), lines("blender-3.4-tiles.log"))
    seen = fractions(readings)
    assert seen == sorted(seen)
    assert len(set(seen)) >= 8


@pytest.mark.parametrize("version", ["3.4", "4.3.2", "5.0.1"])
def test_a_second_view_layer_is_the_second_half_of_the_frame(version: str) -> None:
    parser = BlenderParser((1,))
    ends = []
    for line in lines(f"blender-{version}-two-layers.log"):
        reading = parser.feed(line)
        if reading is not None and line.endswith("| Finished"):
            ends.append(reading.fraction)
    assert ends == [0.5, 1.0]


def test_eevee_tells_its_samples() -> None:
    seen = fractions(feed(BlenderParser((1,)), lines("blender-3.4-eevee.log")))
    assert any(0.0 < fraction < 1.0 for fraction in seen)


@pytest.mark.parametrize("version", ["3.4", "5.0.1"])
def test_plain_blender_without_the_driver_is_counted_by_its_files(version: str) -> None:
    seen = fractions(feed(BlenderParser((2, 3)), lines(f"blender-{version}-plain.log")))
    assert 0.5 in seen
    assert seen[-1] == 1.0


def test_every_recorded_log_is_read_without_an_exception() -> None:
    logs = sorted(LOGS.glob("blender-*.log"))
    assert logs
    for log in logs:
        feed(BlenderParser((1, 2)), lines(log.name))


@settings(deadline=None)
@given(log=st.lists(TEXT, max_size=12), frames=st.lists(st.integers(-5, 5), max_size=4))
def test_no_text_makes_the_parser_raise_or_go_back(log: list[str], frames: list[int]) -> None:
    seen = fractions(feed(BlenderParser(tuple(frames)), log))
    assert seen == sorted(seen)
    assert all(0.0 <= fraction <= 1.0 for fraction in seen)
