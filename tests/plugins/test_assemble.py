"""Parts of frames without Blender: putting together, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import OpenImageIO
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import UserError
from farm.flow.submit import plan_job
from farm.flow.task_space import TaskSpace
from farm.model.frames import part_name
from farm.model.plugin import SubmitOptions
from plugins.blender import assemble
from plugins.blender.assemble import Layer, Part, Refusal, join
from plugins.blender.plugin import PLUGIN
from tests.plugins.test_blendfile import blend

CHANNELS = ("R", "G", "B", "A")


def layer(pixels: assemble.Pixels, channels: tuple[str, ...] = CHANNELS) -> Layer:
    return Layer(name="", channels=channels, pixels=pixels)


def noise(width: int, height: int, channels: int = 4, seed: int = 1) -> assemble.Pixels:
    return np.random.default_rng(seed).random((height, width, channels), dtype=np.float32)


def tiles_of(whole: assemble.Pixels, columns: int, rows: int) -> list[Part]:
    height, width = whole.shape[:2]
    made = []
    for row in range(rows):
        for column in range(columns):
            box = (
                *(width * column // columns, height * row // rows),
                *(width * (column + 1) // columns, height * (row + 1) // rows),
            )
            cut = whole[box[1] : box[3], box[0] : box[2]]
            made.append(
                Part(
                    name=f"{column} {row}",
                    size=(width, height),
                    box=box,
                    samples=(0, 4, 4),
                    layers=(layer(cut),),
                )
            )
    return made


def chunk(pixels: assemble.Pixels, first: int, last: int, total: int) -> Part:
    height, width = pixels.shape[:2]
    return Part(
        name=str(first),
        size=(width, height),
        box=(0, 0, width, height),
        samples=(first, last, total),
        layers=(layer(pixels),),
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5), st.integers(1, 5), st.randoms())
def test_tiles_make_the_frame_they_were_cut_of(
    width: int, height: int, columns: int, rows: int, random: object
) -> None:
    whole = noise(width, height)
    parts = tiles_of(whole, min(columns, width), min(rows, height))
    random.shuffle(parts)  # type: ignore[attr-defined]
    if len(parts) > 1:
        assert np.array_equal(join(parts)[0].pixels, whole)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_chunks_count_by_their_samples(counts: list[int]) -> None:
    total, at = sum(counts), 0
    parts, expected = [], np.zeros((3, 5, 4))
    for number, count in enumerate(counts):
        pixels = noise(5, 3, seed=number)
        parts.append(chunk(pixels, at, at + count, total))
        expected += pixels.astype(np.float64) * count / total
        at += count
    found = join(parts[::-1])[0].pixels
    assert np.abs(found - expected).max() < 1e-6


def test_depths_and_identities_are_those_of_the_first_chunk() -> None:
    channels = ("Layer.Combined.R", "Layer.Depth.Z", "Layer.IndexOB.X", "Layer.CryptoObject00.r")
    parts = [
        replace(
            chunk(np.full((1, 1, 4), value, dtype=np.float32), first, first + 2, 4),
            layers=(layer(np.full((1, 1, 4), value, dtype=np.float32), channels),),
        )
        for value, first in ((3.0, 2), (1.0, 0))
    ]
    assert join(parts)[0].pixels[0, 0].tolist() == [2.0, 1.0, 1.0, 1.0]


def test_what_makes_no_frame_is_refused() -> None:
    whole = noise(8, 8)
    tiles = tiles_of(whole, 2, 2)
    wrong = {
        "16 pixels": tiles[:3],
        "cover": [*tiles, tiles[0]],
        "another frame": [tiles[0], replace(tiles[1], size=(9, 8))],
        "other channels": [tiles[0], replace(tiles[1], layers=(layer(whole[:, :, :1], ("R",)),))],
        "missing": [chunk(whole, 0, 4, 8), chunk(whole, 6, 8, 8)],
        "4 to 8 are missing": [chunk(whole, 0, 4, 8)],
        "twice": [chunk(whole, 0, 4, 8), chunk(whole, 0, 4, 8)],
    }
    for told, parts in wrong.items():
        with pytest.raises(Refusal, match=told):
            join(parts)


def write_part(path: Path, pixels: assemble.Pixels, note: object) -> None:
    height, width, channels = pixels.shape
    spec = OpenImageIO.ImageSpec(width, height, channels, OpenImageIO.FLOAT)
    spec.attribute("Note", note if isinstance(note, str) else json.dumps(note))
    target = OpenImageIO.ImageOutput.create(str(path))
    assert target is not None
    assert target.open(str(path), spec)
    assert target.write_image(np.ascontiguousarray(pixels))
    assert target.close()


def run(verb: str, directory: Path) -> int:
    where = ("--parts-dir", str(directory), "--output-dir", str(directory))
    return assemble.main((verb, "--frame", "7", "--parts", "2", "--pattern", "a_##.exr", *where))


def test_files_are_put_together_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = noise(6, 4)
    for number, box in ((1, [0, 0, 3, 4]), (2, [3, 0, 6, 4])):
        note = {"size": [6, 4], "box": box, "samples": [0, 8, 8]}
        write_part(tmp_path / part_name("a_07.exr", number), whole[:, box[0] : box[2]], note)
    assert run("join", tmp_path) == 0
    layers, _ = assemble.read_layers(tmp_path / "a_07.exr")
    assert np.array_equal(layers[0].pixels, whole)
    assert run("verify", tmp_path) == 0
    assert json.loads((tmp_path / "a_07.json").read_text())["rmse"] == 0.0
    write_part(tmp_path / "a_07.exr", whole + np.float32(1e-4), "")
    assert run("verify", tmp_path) == assemble.EXIT_REFUSED
    assert "differs from its parts" in capsys.readouterr().out


@pytest.mark.parametrize(
    "note", ["", "[]", {"size": [6, 4]}, {"size": [6, 4], "box": [0, 0, 9, 4], "samples": [0, 1, 1]}]
)
def test_a_file_that_does_not_say_which_part_it_is_is_refused(
    tmp_path: Path, note: object, capsys: pytest.CaptureFixture[str]
) -> None:
    write_part(tmp_path / part_name("a_07.exr", 1), noise(6, 4), note)
    assert run("join", tmp_path) == assemble.EXIT_REFUSED
    assert "openjd_fail: " in capsys.readouterr().out


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "shot.blend"
    path.write_bytes(blend(scenes=((1, 12, "Main"),)))
    return path


def test_a_still_in_tiles_is_four_steps_that_wait_for_each_other(scene: Path, tmp_path: Path) -> None:
    made = PLUGIN.submission(
        scene, SubmitOptions(cwd=tmp_path, frames=(3,), output="out/still.png", tiles=(3, 2))
    )
    plan = plan_job(made, uid="u")
    assert [(step.name, step.task_count, step.depends_on) for step in plan.steps] == [
        ("parts", 6, ()),
        ("assemble", 1, ("parts",)),
        ("finish", 1, ("assemble",)),
        ("verify", 1, ("assemble", "finish")),
    ]
    space = TaskSpace(made.template, plan.parameters, made.outputs)
    names = [space.files("parts", index) for index in range(6)]
    assert sorted(names) == [(f"still.part{number:03d}.exr",) for number in range(1, 7)]
    assert space.files("finish", 0) == ("still.png",)
    assert made.parameters["PartsDir"] == str(tmp_path / "out" / "still.parts")
    preview = PLUGIN.preview(made)
    assert preview.first_output == str(tmp_path / "out" / "still.png")
    assert "--tiles=3x2" in preview.command


@pytest.mark.parametrize(
    ("wish", "part"),
    [
        ({"tiles": (2, 2), "sample_chunks": 2}, "not both"),
        ({"tiles": (1, 1)}, "2 to 256"),
        ({"tiles": (20, 20)}, "2 to 256"),
        ({"sample_chunks": 0}, "2 to 256"),
        ({"sample_chunks": 4, "chunk_size": 2}, "chunk size"),
        ({"sample_chunks": 4, "film": ""}, "a film"),
        ({"tiles": (2, 2), "is_preview_first": True}, "a preview"),
    ],
)
def test_parts_that_cannot_be_are_refused(
    scene: Path, tmp_path: Path, wish: dict[str, object], part: str
) -> None:
    with pytest.raises(UserError, match=part):
        PLUGIN.submission(scene, SubmitOptions(cwd=tmp_path, **wish))  # type: ignore[arg-type]
