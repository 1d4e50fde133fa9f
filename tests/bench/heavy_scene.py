"""A scene that takes about 3 s of CPU to load: `blender -b --factory-startup -P heavy_scene.py -- PATH`.

A library of materials that nothing uses: they are read with the file, and cost the frames nothing.
"""

from __future__ import annotations

import sys

import bpy

MATERIALS = 10_000
NODES = 20

bpy.ops.wm.read_factory_settings()
scene = bpy.context.scene
scene.render.engine = "CYCLES"
scene.cycles.samples = 1
scene.cycles.use_denoising = False
scene.render.resolution_x, scene.render.resolution_y = 64, 36
scene.render.resolution_percentage = 100
scene.frame_start, scene.frame_end = 1, 100
base = bpy.data.materials.new("base")
base.use_nodes = True
for _ in range(NODES):
    base.node_tree.nodes.new("ShaderNodeValToRGB")
for _ in range(MATERIALS):
    base.copy().use_fake_user = True
bpy.ops.wm.save_as_mainfile(filepath=sys.argv[sys.argv.index("--") + 1], compress=True)
