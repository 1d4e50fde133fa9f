"""The only reader of the open file: `bpy.data` and a scene in, plain facts out. Main thread only."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import bpy

from plugins.blender.driver import FORMATS, FinalRefusal, missing_files, refuse_what_joins_pixels
from plugins.output import extension_of

from .job import MissingFile, SceneFacts

_PROBE = 987654
"""A frame whose number is found again in a path."""
_FACTORY_OUTPUTS = ("", "/tmp/", "/tmp\\")
_DECODED = {".jpg": 12.0, ".jpeg": 12.0, ".png": 3.0, ".webp": 12.0, ".exr": 2.0, ".hdr": 3.0}
"""Bytes in memory for each byte of the file: rough, for pictures that are not loaded."""


def read(scene: Any, *, is_thorough: bool) -> SceneFacts:
    """Facts of `scene`. What takes long (files, scripts, cost) only with `is_thorough`."""
    return SceneFacts(
        path=bpy.data.filepath,
        is_changed=bpy.data.is_dirty,
        name=scene.name,
        first=scene.frame_start,
        last=scene.frame_end,
        step=scene.frame_step,
        has_camera=_has_camera(scene),
        output=_output(scene),
        file_format=scene.render.image_settings.file_format,
        rate=_rate(scene.render),
        blender=tuple(bpy.app.version[:2]),
        missing=tuple(MissingFile(kind=kind, name=name, path=path) for kind, name, path in missing_files())
        if is_thorough
        else (),
        scripts=tuple(_scripts()) if is_thorough else (),
        joins_pixels=_joins_pixels(scene),
        files=_files() if is_thorough else (),
        hints=_hints(scene) if is_thorough else {},
    )


def _joins_pixels(scene: Any) -> str:
    try:
        refuse_what_joins_pixels(scene)
    except FinalRefusal as refusal:
        return str(refusal)
    return ""


def _files() -> tuple[str, ...]:
    linked = (os.path.abspath(path) for path in bpy.utils.blend_paths(absolute=True))
    return tuple(dict.fromkeys((bpy.data.filepath, *linked)))


def _has_camera(scene: Any) -> bool:
    if scene.camera is not None or any(marker.camera for marker in scene.timeline_markers):
        return True
    editor = scene.sequence_editor
    strips = getattr(editor, "strips", None) or getattr(editor, "sequences", None)  # renamed in 4.4
    return bool(scene.render.use_sequencer and strips)


def _output(scene: Any) -> str:
    """Where Blender itself would write, `#` for the frame; empty for the factory's /tmp/ and for films."""
    render = scene.render
    suffix = next(
        (suffix for suffix, names in FORMATS.items() if render.image_settings.file_format in names), None
    )
    if render.filepath in _FACTORY_OUTPUTS or suffix is None:
        return ""
    directory, name = os.path.split(os.path.abspath(render.frame_path(frame=_PROBE)))
    head, found, tail = name.rpartition(str(_PROBE))
    if not found:
        return ""
    digits = max(os.path.basename(render.filepath).count("#"), 0) or 4
    name = f"{head}{'#' * digits}{tail}"
    return os.path.join(directory, name if extension_of(name) in FORMATS else name + suffix)


def _rate(render: Any) -> str:
    if render.fps_base == 1.0:
        return str(render.fps)
    return (
        f"{render.fps * 1000}/1001"
        if abs(render.fps_base - 1.001) < 1e-6
        else f"{render.fps / render.fps_base:.4f}"
    )


def _scripts() -> Iterator[str]:
    for text in bpy.data.texts:
        if text.use_module:
            yield f"text {text.name}"
    for kind in dir(bpy.data):
        items = getattr(bpy.data, kind)
        if not isinstance(items, bpy.types.bpy_prop_collection):
            continue
        for item in items:
            animation = getattr(item, "animation_data", None)
            for curve in animation.drivers if animation is not None else ():
                if curve.driver.type == "SCRIPTED" and not curve.driver.is_simple_expression:
                    yield f"driver of {item.name} ({curve.data_path})"


def _hints(scene: Any) -> dict[str, float | str]:
    """What the frame will cost, as far as it can be told without evaluating the scene."""
    render = scene.render
    percent = render.resolution_percentage / 100
    known: dict[str, float | str] = {
        "engine": render.engine,
        "width": float(int(render.resolution_x * percent)),
        "height": float(int(render.resolution_y * percent)),
        "texture_mib": round(sum(_image_bytes(image) for image in bpy.data.images) / 2**20, 3),
        "triangles": float(sum(_triangles(item) for item in scene.objects if not item.hide_render)),
        "volumes": float(sum(_is_volume(item) for item in scene.objects if not item.hide_render)),
    }
    if render.engine == "CYCLES":
        known["samples"] = float(scene.cycles.samples)
    elif "EEVEE" in render.engine:
        known["samples"] = float(scene.eevee.taa_render_samples)
    return known


def _image_bytes(image: Any) -> float:
    """In memory. A picture that is not loaded is not loaded for this: its header, or a usual ratio, tells."""
    if not image.users or image.source not in ("FILE", "GENERATED", "SEQUENCE", "TILED"):
        return 0.0
    if image.has_data or image.source == "GENERATED":
        return float(image.size[0] * image.size[1] * image.channels * (4 if image.is_float else 1))
    path = bpy.path.abspath(image.filepath, library=image.library)
    try:
        with open(path, "rb") as file:
            head = file.read(26)
        if head.startswith(b"\x89PNG") and len(head) == 26:
            width, height, depth, colour = struct.unpack(">IIBB", head[16:26])
            return float(width * height * max(depth // 8, 1) * {0: 1, 2: 3, 4: 2, 6: 4}.get(colour, 3))
        return os.path.getsize(path) * _DECODED.get(os.path.splitext(path)[1].lower(), 1.0)
    except OSError:
        return 0.0


def _triangles(item: Any) -> int:
    """At render time; what modifiers other than subdivision add is not known without evaluating them."""
    if item.type != "MESH":
        return 0
    mesh = item.data
    count = len(mesh.loops) - 2 * len(mesh.polygons)
    for modifier in item.modifiers:
        if modifier.show_render and modifier.type in ("SUBSURF", "MULTIRES") and modifier.render_levels > 0:
            count = 2 * len(mesh.loops) * 4 ** (modifier.render_levels - 1)
    return count


def _is_volume(item: Any) -> bool:
    return item.type == "VOLUME" or any(
        modifier.type == "FLUID" and modifier.fluid_type == "DOMAIN" for modifier in item.modifiers
    )
