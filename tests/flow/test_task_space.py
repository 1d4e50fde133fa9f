from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.flow.task_space import TaskSpace
from farm.model.frames import parse_frames
from farm.model.work import OutputSpec
from tests.flow.templates import chunks, frame, output, planned, step, template


def space_of(source: dict[str, Any], *outputs: OutputSpec) -> TaskSpace:
    return TaskSpace(source, planned(source, outputs=outputs).parameters, outputs)


def test_a_frame_task_knows_its_value_label_frames_and_files() -> None:
    space = space_of(template(step(space=[frame("-1-2")])), output())
    assert space.steps == ("Render",)
    assert [space.label("Render", at) for at in range(space.count("Render"))] == ["-1", "0", "1", "2"]
    assert space.parameters("Render", 3) == {"Frame": ("INT", "2")}
    assert space.frames("Render", 0) == (-1,)
    assert space.files("Render", 0) == ("shot_-0001.png",)


def test_a_chunk_knows_all_its_frames_and_files() -> None:
    source = template(step(space=[chunks("1-7", 3)]))
    space = space_of(source, output(frames_parameter="Frames"))
    assert [space.label("Render", at) for at in range(3)] == ["1-3", "4-5", "6-7"]
    assert space.frames("Render", 1) == (4, 5)
    assert space.files("Render", 2) == ("shot_0006.png", "shot_0007.png")
    assert space.parameters("Render", 2) == {"Frames": ("CHUNK[INT]", "6-7")}


def test_a_chunk_of_one_is_labelled_as_one_frame() -> None:
    space = space_of(template(step(space=[chunks("-7,3", 1)])))
    assert [space.label("Render", at) for at in range(2)] == ["-7", "3"]
    assert space.frames("Render", 0) == (-7,)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(-60, 60), min_size=1, max_size=40), st.integers(1, 9), st.booleans())
def test_chunks_hold_every_frame_once(frames: list[int], size: int, contiguous: bool) -> None:
    text = ",".join(str(each) for each in sorted(set(frames)))
    source = template(step(space=[chunks(text, size, "CONTIGUOUS" if contiguous else "NONCONTIGUOUS")]))
    space = TaskSpace(source, {})
    made = [each for at in range(space.count("Render")) for each in space.frames("Render", at)]
    assert sorted(made) == sorted(set(frames))
    assert made == list(parse_frames(text))
    assert max(len(space.frames("Render", at)) for at in range(space.count("Render"))) <= size


def test_the_right_most_parameter_moves_fastest() -> None:
    tiles = {"name": "Tile", "type": "STRING", "range": ["a", "b"]}
    space = space_of(template(step(space=[frame("1-2"), tiles])))
    assert [space.label("Render", at) for at in range(4)] == [
        "Frame=1 Tile=a",
        "Frame=1 Tile=b",
        "Frame=2 Tile=a",
        "Frame=2 Tile=b",
    ]


def test_a_step_without_parameters_is_one_task_without_label() -> None:
    space = space_of(template(step()))
    assert (space.count("Render"), space.parameters("Render", 0), space.label("Render", 0)) == (1, {}, "")
    assert (space.frames("Render", 0), space.files("Render", 0)) == ((), ())


def test_a_single_file_output_needs_no_frame() -> None:
    space = space_of(template(step()), output(frames_parameter=None, file_pattern="film.mp4"))
    assert space.files("Render", 0) == ("film.mp4",)


@pytest.mark.parametrize("index", [-1, 10])
def test_a_task_that_is_not_there_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError):
        space_of(template()).parameters("Render", index)


def test_a_long_value_is_cut_in_the_label_only() -> None:
    space = space_of(template(step(space=[{"name": "Text", "type": "STRING", "range": ["x" * 1000]}])))
    assert len(space.label("Render", 0)) == 100
    assert space.parameters("Render", 0)["Text"] == ("STRING", "x" * 1000)


def test_a_hundred_thousand_frames_are_cheap() -> None:
    source = template(step(space=[frame("1-100000")]))
    planned(source)  # the library's import is not measured
    began = time.process_time()
    job = planned(source)
    space = TaskSpace(source, job.parameters)
    assert space.count("Render") == 100_000
    assert space.label("Render", 99_999) == "100000"
    assert job.steps[0].frames == "1-100000"
    assert time.process_time() - began < 1.0  # 0.04 s when nothing else runs


def test_a_million_chunked_frames_are_still_a_few_seconds() -> None:
    began = time.process_time()
    assert planned(template(step(space=[chunks("1-1000000", 10)]))).steps[0].task_count == 100_000
    assert time.process_time() - began < 10


def test_a_label_leaves_out_padded_copies_of_the_frame() -> None:
    template = {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "t",
        "steps": [
            {
                "name": "run",
                "parameterSpace": {
                    "taskParameterDefinitions": [
                        {"name": "Frame", "type": "INT", "range": [7, -3]},
                        {"name": "Frame4", "type": "STRING", "range": ["0007", "-0003"]},
                    ],
                    "combination": "(Frame, Frame4)",
                },
                "script": {"actions": {"onRun": {"command": "x", "args": ["{{Task.Param.Frame4}}"]}}},
            }
        ],
    }
    space = TaskSpace(template, {})
    assert [space.label("run", index) for index in range(2)] == ["7", "-3"]
