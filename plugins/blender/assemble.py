"""Puts the parts of a frame together, and proves it: `ridgeline-assemble join|verify`. With OpenImageIO.

Parts are 32-bit EXR as `driver.Part` writes them, each with a note of where it belongs. Tiles are laid side
by side; chunks of samples are averaged, weighted by their samples, which is exact for colours. Depths,
indices and identities cannot be averaged: they are the first chunk's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.model.frames import expand_pattern, part_name

Pixels = npt.NDArray[np.float32]

MOST_RMSE = 1e-6
"""Of what is on the disk against what the parts make."""
EXIT_REFUSED = 66
_NOT_AVERAGED = re.compile(r"(?:^|\.)(?:Depth|Z|IndexOB|IndexMA|Crypto[A-Za-z]*[0-9]*)(?:\.[A-Za-z]+)?$")


class Refusal(Exception):
    """The parts do not make a frame; the text says which and why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One subimage of an EXR."""

    name: str
    channels: tuple[str, ...]
    pixels: Pixels
    """Height x width x channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    size: tuple[int, int]
    """Of the whole frame: width, height."""
    box: tuple[int, int, int, int]
    """Left, top, right, bottom, in pixels of the frame."""
    samples: tuple[int, int, int]
    """First, behind the last, of how many."""
    layers: tuple[Layer, ...]


def join(parts: Sequence[Part]) -> tuple[Layer, ...]:
    """The whole frame. Raises Refusal when something is missing, doubled or of another frame."""
    first = parts[0]
    for part in parts:
        if part.size != first.size or part.samples[2] != first.samples[2]:
            raise Refusal(f"{part.name} is of another frame than {first.name}: {part.size}, {first.size}")
        if [layer.channels for layer in part.layers] != [layer.channels for layer in first.layers]:
            raise Refusal(f"{part.name} has other channels than {first.name}")
    if all(part.box == (0, 0, *first.size) for part in parts):
        return _averaged(parts)
    return _laid_out(parts)


def _laid_out(parts: Sequence[Part]) -> tuple[Layer, ...]:
    width, height = parts[0].size
    covered = np.zeros((height, width), dtype=np.uint16)
    for part in parts:
        left, top, right, bottom = part.box
        covered[top:bottom, left:right] += 1
    if covered.min() != 1 or covered.max() != 1:
        raise Refusal(f"the tiles do not cover the frame once: {int((covered != 1).sum())} pixels are not")
    layers = []
    for index, layer in enumerate(parts[0].layers):
        whole = np.zeros((height, width, len(layer.channels)), dtype=np.float32)
        for part in parts:
            left, top, right, bottom = part.box
            whole[top:bottom, left:right] = part.layers[index].pixels
        layers.append(Layer(name=layer.name, channels=layer.channels, pixels=whole))
    return tuple(layers)


def _averaged(parts: Sequence[Part]) -> tuple[Layer, ...]:
    ordered = sorted(parts, key=lambda part: part.samples)
    at, total = 0, ordered[0].samples[2]
    for part in ordered:
        if part.samples[0] != at:
            raise Refusal(f"samples {at} to {part.samples[0]} of {total} are missing, or there twice")
        at = part.samples[1]
    if at != total:
        raise Refusal(f"samples {at} to {total} are missing")
    layers = []
    for index, layer in enumerate(ordered[0].layers):
        mean = np.zeros(layer.pixels.shape, dtype=np.float64)
        for part in ordered:
            mean += part.layers[index].pixels.astype(np.float64) * (part.samples[1] - part.samples[0])
        pixels = (mean / total).astype(np.float32)
        for channel, name in enumerate(layer.channels):
            if _NOT_AVERAGED.search(name):
                pixels[..., channel] = layer.pixels[..., channel]
        layers.append(Layer(name=layer.name, channels=layer.channels, pixels=pixels))
    return tuple(layers)


def rmse(one: Sequence[Layer], other: Sequence[Layer]) -> float:
    """Root of the mean squared difference over all channels. Raises Refusal for frames of other shapes."""
    if [layer.pixels.shape for layer in one] != [layer.pixels.shape for layer in other]:
        raise Refusal("the frames have other sizes or channels")
    squares = [
        np.square(left.pixels.astype(np.float64) - right.pixels).ravel()
        for left, right in zip(one, other, strict=True)
    ]
    return float(np.sqrt(np.concatenate(squares).mean()))


# --- files ----------------------------------------------------------------------------------------------


def read_layers(path: Path) -> tuple[tuple[Layer, ...], str]:
    """The subimages, and the note of the first. Raises Refusal."""
    import OpenImageIO

    source = OpenImageIO.ImageInput.open(str(path))
    if source is None:
        raise Refusal(f"{path} cannot be read: {OpenImageIO.geterror() or 'no such file'}")
    layers: list[Layer] = []
    note = ""
    try:
        while source.seek_subimage(len(layers), 0):
            spec = source.spec()
            note = note or str(spec.getattribute("Note") or "")
            pixels = source.read_image(OpenImageIO.FLOAT)
            if pixels is None:
                raise Refusal(f"{path} is damaged: {source.geterror()}")
            name = str(spec.getattribute("oiio:subimagename") or "")
            shaped = np.asarray(pixels, dtype=np.float32).reshape(spec.height, spec.width, spec.nchannels)
            layers.append(Layer(name=name, channels=tuple(spec.channelnames), pixels=shaped))
    finally:
        source.close()
    return tuple(layers), note


def read_part(path: Path) -> Part:
    """Raises Refusal."""
    layers, note = read_layers(path)
    try:
        told = json.loads(note)
        size, box, samples = tuple(told["size"]), tuple(told["box"]), tuple(told["samples"])
        left, top, right, bottom = box
        is_right = all(isinstance(each, int) for each in (*size, *box, *samples))
    except (ValueError, KeyError, TypeError) as error:
        raise Refusal(f"{path} does not say which part it is") from error
    is_right = is_right and 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
    if not is_right or any(layer.pixels.shape[:2] != (bottom - top, right - left) for layer in layers):
        raise Refusal(f"{path} has another size than it says")
    return Part(name=path.name, size=size, box=box, samples=samples, layers=layers)


def write_layers(path: Path, layers: Sequence[Layer]) -> None:
    """32-bit EXR. Raises Refusal."""
    import OpenImageIO

    specs: list[Any] = []
    for layer in layers:
        height, width, channels = layer.pixels.shape
        spec = OpenImageIO.ImageSpec(width, height, channels, OpenImageIO.FLOAT)
        spec.channelnames = layer.channels
        spec.attribute("compression", "zip")
        if layer.name:
            spec.attribute("oiio:subimagename", layer.name)
        specs.append(spec)
    target = OpenImageIO.ImageOutput.create(str(path))
    if target is None:
        raise Refusal(f"{path} cannot be written: {OpenImageIO.geterror()}")
    is_well = target.open(str(path), tuple(specs) if len(specs) > 1 else specs[0])
    for index, (layer, spec) in enumerate(zip(layers, specs, strict=True)):
        is_well = is_well and (index == 0 or target.open(str(path), spec, "AppendSubimage"))
        is_well = is_well and target.write_image(np.ascontiguousarray(layer.pixels))
    if not (target.close() and is_well):
        raise Refusal(f"{path} cannot be written: {target.geterror()}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="ridgeline-assemble", description="Put the parts of frames together."
    )
    parser.add_argument("verb", choices=("join", "verify"))
    parser.add_argument("--frame", type=int, required=True)
    parser.add_argument("--parts", type=int, required=True, help="how many there are")
    parser.add_argument("--parts-dir", type=Path, required=True)
    parser.add_argument("--pattern", required=True, help="of the frame put together; #### is the frame")
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--assembled-dir", type=Path, help="verify: where the frame put together is")
    options = parser.parse_args(arguments)
    name = expand_pattern(options.pattern, options.frame)
    try:
        parts = [
            read_part(options.parts_dir / part_name(name, number)) for number in range(1, options.parts + 1)
        ]
        whole = join(parts)
        if options.verb == "join":
            write_layers(options.output_dir / name, whole)
            print(f"openjd_status: {options.parts} parts put together", flush=True)
            return 0
        assembled = options.assembled_dir or options.parts_dir
        difference = rmse(whole, read_layers(assembled / name)[0])
        is_finite = all(bool(np.isfinite(layer.pixels).all()) for layer in whole)
        report = {
            "frame": options.frame,
            "parts": options.parts,
            "size": list(parts[0].size),
            "samples": parts[0].samples[2],
            "rmse": difference,
            "is_finite": is_finite,
        }
        if not difference <= MOST_RMSE:
            raise Refusal(f"{name} differs from its parts by {difference:.2e} (RMSE)")
        path = options.output_dir / f"{os.path.splitext(name)[0]}.json"
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"openjd_status: {name} is what its {options.parts} parts make", flush=True)
    except (Refusal, OSError) as error:
        print(f"openjd_fail: {error}", flush=True)
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
