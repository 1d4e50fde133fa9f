"""How many rays Cycles traces on a device: measured inside Blender, on a scene of known size.

The scene is a grid of spheres that give off light: 327,680 triangles. A ray ends where it hits one, so that
each sample of a pixel is one ray, and no shading, textures or denoising count. What one render takes longer
than another of fewer samples is the time of the rays between them; loading and building the tree drop out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

LIMIT_S = 90.0
WIDTH, HEIGHT = 960, 540
ENOUGH_S = 3.0
"""More than what building the tree varies by."""
_MOST_SAMPLES = 4096
_LINE = re.compile(r"^ridgeline\| ray-rate ([0-9.]+)$", re.MULTILINE)
_REFUSED = re.compile(r"^ridgeline\| error (.+)$", re.MULTILINE)


def ray_rate(is_gpu: bool, environment: Mapping[str, str], *, enough_s: float = ENOUGH_S) -> float | str:
    """10^6 rays/s on the CPU, or on the GPU that `environment` leaves visible; else why it is not known.

    enough_s: of rendering; less is quicker, and worth less.
    """
    program = shutil.which("blender")
    if program is None:
        return "no Blender to measure it with"
    command = [program, "--background", "--factory-startup", "--python", str(Path(__file__).resolve()), "--"]
    try:
        done = subprocess.run(
            [*command, "GPU" if is_gpu else "CPU", str(enough_s)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Blender had not measured it within {LIMIT_S:.0f} s"
    except OSError as error:
        return f"Blender does not start: {error.strerror}"
    told = done.stdout.decode("utf-8", "replace")
    rate, refused = _LINE.search(told), _REFUSED.search(told)
    if rate is not None and float(rate[1]) > 0:
        return float(rate[1])
    return refused[1] if refused is not None else f"Blender ended with status {done.returncode}"


def main() -> None:
    """Runs inside Blender."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from plugins.blender import driver

    kind, enough_s = sys.argv[sys.argv.index("--") + 1 :]
    code = 0
    try:
        driver.say("ray-rate", f"{_measure(kind, float(enough_s)) / 1e6:.4g}")
    except Exception as error:  # noqa: BLE001  the edge: whatever it is, it is told in one line
        driver.say("error", error)
        code = 1
    os._exit(code)


def _measure(kind: str, enough_s: float) -> float:
    """Rays per second."""
    import bpy

    from plugins.blender import driver

    scene = bpy.context.scene
    for each in list(bpy.data.objects):
        if each.type == "MESH" or each.type == "LIGHT":
            bpy.data.objects.remove(each)
    light = bpy.data.materials.new("light")
    light.use_nodes = True
    nodes = light.node_tree.nodes
    emission = nodes.new("ShaderNodeEmission")
    surface = next(node for node in nodes if node.type == "OUTPUT_MATERIAL")
    light.node_tree.links.new(emission.outputs[0], surface.inputs["Surface"])
    bpy.ops.mesh.primitive_ico_sphere_add(subdivisions=6, radius=0.6)
    mesh = bpy.context.object.data
    mesh.materials.append(light)
    bpy.data.objects.remove(bpy.context.object)
    for number in range(16):  # each with a mesh of its own: instances would be a tree of trees
        ball = bpy.data.objects.new("ball", mesh.copy())
        ball.location = (number % 4 - 1.5, number // 4 - 1.5, 0)
        scene.collection.objects.link(ball)
    camera = scene.camera
    camera.location, camera.rotation_euler = (0, 0, 6), (0, 0, 0)
    scene.render.engine = "CYCLES"
    scene.render.resolution_x, scene.render.resolution_y = WIDTH, HEIGHT
    scene.render.resolution_percentage = 100
    cycles = scene.cycles
    cycles.use_adaptive_sampling = cycles.use_denoising = False
    cycles.max_bounces = 0
    driver.use_device(scene, kind)

    def seconds(samples: int) -> float:
        cycles.samples = samples
        begin = time.perf_counter()
        bpy.ops.render.render()
        return time.perf_counter() - begin

    seconds(1)  # compiles kernels, builds the tree
    least, most = 1, 4
    base_s = seconds(least)
    while (spent_s := seconds(most) - base_s) < enough_s and most < _MOST_SAMPLES:
        most *= 4 if spent_s < enough_s / 4 else 2
    return (most - least) * WIDTH * HEIGHT / max(spent_s, 1e-6)


if __name__ == "__main__":
    main()
