"""Makes the demo's scene: `blender -b --factory-startup -P demo_scene.py -- PATH`, with Blender 3.4 to 5.0.

Bouncing spheres under a swinging camera: 24 frames of 320 x 180 in a loop, Cycles on the CPU without a
denoiser (Debian's Blender has none), a fixed seed, about a second a frame on two cores.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

FRAMES = 24
SPHERES = 9


def material(
    name: str, color: tuple[float, float, float], *, metallic: float, roughness: float, glow: float
) -> Any:
    import bpy

    made = bpy.data.materials.new(name)
    made.use_nodes = True
    inputs = made.node_tree.nodes["Principled BSDF"].inputs
    inputs["Base Color"].default_value = (*color, 1.0)
    inputs["Metallic"].default_value = metallic
    inputs["Roughness"].default_value = roughness
    emission = (
        inputs["Emission Color"] if "Emission Color" in inputs else inputs["Emission"]
    )  # renamed in 4.0
    emission.default_value = (*color, 1.0)
    inputs["Emission Strength"].default_value = glow
    return made


def rainbow(turn: float) -> tuple[float, float, float]:
    """A soft colour for 0 to 1 around the wheel, linear RGB."""
    red, green, blue = (0.5 + 0.45 * math.cos(2 * math.pi * (turn - third / 3)) for third in range(3))
    return red**1.6, green**1.6, blue**1.6


def add_mesh(scene: Any, name: str, shape: Any, surface: Any) -> Any:
    import bpy

    shape.materials.append(surface)
    made = bpy.data.objects.new(name, shape)
    scene.collection.objects.link(made)
    return made


def sphere_mesh(name: str, radius: float) -> Any:
    import bmesh
    import bpy

    mesh = bpy.data.meshes.new(name)
    builder = bmesh.new()
    bmesh.ops.create_uvsphere(builder, u_segments=48, v_segments=24, radius=radius)
    for face in builder.faces:
        face.smooth = True
    builder.to_mesh(mesh)
    builder.free()
    return mesh


def add_spheres(scene: Any) -> None:
    for index in range(SPHERES):
        turn = index / SPHERES
        surface = material(
            f"colour {index}",
            rainbow(turn),
            metallic=1.0 if index % 3 == 0 else 0.0,
            roughness=0.15 + 0.3 * (index % 2),
            glow=0.0,
        )
        sphere = add_mesh(scene, f"sphere {index}", sphere_mesh(f"sphere {index}", 0.5), surface)
        angle = 2 * math.pi * turn
        for frame in range(1, FRAMES + 2):
            phase = (frame - 1) / FRAMES + turn
            sphere.location = (
                2.2 * math.cos(angle),
                2.2 * math.sin(angle),
                0.5 + 1.1 * abs(math.sin(math.pi * phase)),
            )
            sphere.keyframe_insert("location", frame=frame)
    core = material("core", (1.0, 0.72, 0.4), metallic=0.0, roughness=0.4, glow=6.0)
    add_mesh(scene, "core", sphere_mesh("core", 0.7), core).location = (0.0, 0.0, 0.9)


def add_stage(scene: Any) -> None:
    import bmesh
    import bpy

    mesh = bpy.data.meshes.new("floor")
    builder = bmesh.new()
    bmesh.ops.create_grid(builder, x_segments=1, y_segments=1, size=30.0)
    builder.to_mesh(mesh)
    builder.free()
    add_mesh(
        scene, "floor", mesh, material("floor", (0.11, 0.12, 0.15), metallic=0.0, roughness=0.25, glow=0.0)
    )

    lamp = bpy.data.lights.new("key", "AREA")
    lamp.energy, lamp.size = 500.0, 4.0
    key = bpy.data.objects.new("key", lamp)
    key.location, key.rotation_euler = (4.0, -4.0, 7.0), (0.65, 0.0, 0.78)
    scene.collection.objects.link(key)

    world = bpy.data.worlds.new("night")
    world.use_nodes = True
    world.node_tree.nodes["Background"].inputs["Color"].default_value = (0.03, 0.05, 0.11, 1.0)
    scene.world = world


def add_camera(scene: Any) -> None:
    import bpy

    aim = bpy.data.objects.new("aim", None)
    aim.location = (0.0, 0.0, 0.8)
    camera = bpy.data.objects.new("camera", bpy.data.cameras.new("camera"))
    camera.data.lens = 38.0
    for each in (aim, camera):
        scene.collection.objects.link(each)
    follow = camera.constraints.new("TRACK_TO")
    follow.target, follow.track_axis, follow.up_axis = aim, "TRACK_NEGATIVE_Z", "UP_Y"
    for frame in range(1, FRAMES + 2):
        angle = 0.6 * math.sin(2 * math.pi * (frame - 1) / FRAMES) - 0.5
        camera.location = (7.5 * math.sin(angle), -7.5 * math.cos(angle), 3.0)
        camera.keyframe_insert("location", frame=frame)
    scene.camera = camera


def build() -> None:
    """Replaces whatever is loaded."""
    import bpy

    bpy.ops.wm.read_factory_settings(use_empty=True)
    scene = bpy.context.scene
    scene.name = "demo"
    render = scene.render
    render.engine = "CYCLES"
    render.resolution_x, render.resolution_y, render.resolution_percentage = 320, 180, 100
    render.image_settings.file_format = "PNG"
    render.filepath = "//render/demo_####"
    scene.cycles.device = "CPU"
    scene.cycles.samples = 16
    scene.cycles.seed = 1
    scene.cycles.use_adaptive_sampling = False
    scene.cycles.use_denoising = False
    scene.cycles.sample_clamp_indirect = 2.0  # no fireflies at few samples
    scene.cycles.max_bounces = 4
    scene.frame_start, scene.frame_end = 1, FRAMES
    add_stage(scene)
    add_spheres(scene)
    add_camera(scene)


def main() -> None:
    import bpy

    path = os.path.abspath(sys.argv[sys.argv.index("--") + 1])
    build()
    bpy.ops.wm.save_as_mainfile(filepath=path)
    print(f"demo scene saved: {path}", flush=True)


if __name__ == "__main__":
    main()
