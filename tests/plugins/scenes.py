"""Makes small scenes inside Blender 3.4 to 5.0: `blender -b --factory-startup -P scenes.py -- DIRECTORY`."""

from __future__ import annotations

import os
import sys

import bpy


def save(directory: str, name: str) -> None:
    bpy.ops.wm.save_as_mainfile(filepath=os.path.join(directory, name), copy=True)


def main() -> None:
    directory = sys.argv[sys.argv.index("--") + 1]
    bpy.ops.wm.read_factory_settings()
    scene = bpy.context.scene
    scene.render.engine = "CYCLES"
    scene.cycles.samples = 4
    scene.cycles.use_denoising = False
    scene.render.resolution_x, scene.render.resolution_y = 128, 72
    scene.render.resolution_percentage = 50
    scene.frame_start, scene.frame_end = 1, 3
    cube = bpy.data.objects["Cube"]
    for frame in (-5, 5):  # it leaves the picture on one side, so that each frame looks different
        cube.location.x = frame * 0.6
        cube.keyframe_insert("location", frame=frame)
    save(directory, "small.blend")

    scene.cycles.use_denoising = True
    save(directory, "denoised.blend")
    scene.cycles.use_denoising = False

    settings = scene.render.image_settings
    if hasattr(settings, "media_type"):
        settings.media_type = "VIDEO"
    settings.file_format = "FFMPEG"
    save(directory, "film.blend")
    if hasattr(settings, "media_type"):
        settings.media_type = "IMAGE"
    settings.file_format = "PNG"

    camera = scene.camera
    scene.camera = None
    save(directory, "no camera.blend")
    scene.camera = camera

    text = bpy.data.texts.new("rig_ui.py")
    text.use_module = True
    cube.driver_add("location", 1).driver.expression = "__import__('math').pi"
    save(directory, "scripts.blend")
    bpy.data.texts.remove(text)
    cube.driver_remove("location", 1)

    surface = cube.data.materials[0]
    surface.use_nodes = True
    picture = bpy.data.images.new("wood", 16, 16)
    picture.source = "FILE"
    picture.filepath = "//textures/wood.png"
    node = surface.node_tree.nodes.new("ShaderNodeTexImage")
    node.image = picture
    surface.node_tree.links.new(
        node.outputs["Color"], surface.node_tree.nodes["Principled BSDF"].inputs["Base Color"]
    )
    save(directory, "no texture.blend")

    surface.node_tree.nodes.remove(node)
    for name in ("Base Color", "Roughness", "Metallic"):  # made at loading: the file stays small
        node = surface.node_tree.nodes.new("ShaderNodeTexImage")
        node.image = bpy.data.images.new(name, 2048, 2048)
        node.image.generated_type = "UV_GRID"
        surface.node_tree.links.new(
            node.outputs["Color"], surface.node_tree.nodes["Principled BSDF"].inputs[name]
        )
    save(directory, "textures.blend")


main()
