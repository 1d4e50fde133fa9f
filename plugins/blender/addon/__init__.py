"""Ridgeline in Blender 3.4 to 5.0: submit the open scene, and watch it render, in the Output properties.

The zip that `make addon` builds holds this folder and, in `farm` and `plugins` inside it, those modules of
the project that it imports: the add-on makes its jobs with the very code of `farm submit`. Only `scene.py`
reads the scene; `properties.py`, `operators.py` and `panel.py` are the interface; the rest knows nothing of
Blender.
"""

bl_info = {
    "name": "Ridgeline",
    "description": "Send the scene to a Ridgeline render farm, and watch it render",
    "author": "The Ridgeline authors",
    "version": (0, 1, 0),
    "blender": (3, 4, 0),
    "location": "Properties > Output > Ridgeline",
    "category": "Render",
}


def register() -> None:
    # Not above: the modules without bpy are tested outside Blender.
    from . import operators, panel, properties

    properties.register()
    operators.register()
    panel.register()


def unregister() -> None:
    from . import operators, panel, properties

    panel.unregister()
    operators.unregister()
    properties.unregister()
