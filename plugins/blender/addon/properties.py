"""What the artist sets: on the scene (saved with it), and in the preferences (the farm and the token)."""

import os
from pathlib import Path
from typing import Any

import bpy

from farm.errors import UserError

from . import keeping
from .client import Farm, is_private
from .job import Wish
from .live import Live

LIVE = Live()
"""What is sent and watched now; one for all windows."""

PROFILES = (
    ("AUTO", "Automatic", "The farm finds out what the frames need"),
    ("COMPUTE", "Compute", "Mostly arithmetic: send frames to the nodes with the most FLOPS"),
    (
        "BANDWIDTH",
        "Memory Bandwidth",
        "Mostly memory traffic: send frames to the nodes with the fastest memory",
    ),
)
DEVICES = (
    ("CPU", "CPU", "Cycles renders on processors"),
    ("GPU", "GPU", "Cycles renders on a graphics card; a node without one gets no frame"),
    ("SCENE", "As in the Scene", "What the scene and the node's own preferences say"),
)

SPLITS = (
    ("NONE", "Whole", "A task renders whole frames"),
    ("TILES", "Tiles", "Each frame in tiles, a task each: a still uses many nodes. Cycles only"),
    ("SAMPLES", "Samples", "Each frame several times with a share of its samples, a task each. Cycles only"),
)

# Annotations as a dictionary: `name: StringProperty(...)` is no type, and checkers say so.
_props = bpy.props


class RidgelineSettings(bpy.types.PropertyGroup):
    __annotations__ = {
        "job_name": _props.StringProperty(name="Job Name", description="Empty: the file's name"),
        "use_own_frames": _props.BoolProperty(
            name="Other Frames", description="Render other frames than the scene's range"
        ),
        "frames": _props.StringProperty(
            name="Frames", description="Such as 1-100, 1-100x2 (every second), 10-1 or 1,5,9-12"
        ),
        "is_preview_first": _props.BoolProperty(
            name="Preview First",
            description="Render the first, the middle and the last frame before the others",
        ),
        "output": _props.StringProperty(
            name="Output",
            description="Empty: the scene's output; # stands for the frame",
            subtype="FILE_PATH",
        ),
        "priority": _props.IntProperty(
            name="Priority", description="Higher first", default=50, min=0, max=100
        ),
        "pool": _props.StringProperty(name="Pool", description="The nodes to use; empty: any"),
        "profile": _props.EnumProperty(name="Profile", description="What takes the time", items=PROFILES),
        "device": _props.EnumProperty(name="Device", items=DEVICES),
        "chunk_size": _props.IntProperty(
            name="Chunk",
            description="Frames a task: more save the time to load the scene, fewer spread better",
            default=1,
            min=1,
            soft_max=100,
        ),
        "chunk_s": _props.IntProperty(
            name="Seconds",
            description="Chunks of as many frames as take about so long; 0: as many as said above",
            default=0,
            min=0,
            max=86400,
        ),
        "split": _props.EnumProperty(name="Parts", description="Let a still use several nodes", items=SPLITS),
        "tile_columns": _props.IntProperty(name="Tiles X", default=2, min=1, max=64),
        "tile_rows": _props.IntProperty(name="Y", default=2, min=1, max=64),
        "sample_chunks": _props.IntProperty(
            name="Chunks",
            description="How many shares the samples are split into",
            default=4,
            min=2,
            max=256,
        ),
        "pack_into": _props.StringProperty(
            name="Pack Into",
            description="First copy the scene and all that it links into this shared folder, by "
            "blender-asset-tracer; empty: nodes read the files where they lie",
            subtype="DIR_PATH",
        ),
        "is_paused": _props.BoolProperty(name="Start Paused", description="Submit the job, but let it wait"),
        "is_film": _props.BoolProperty(
            name="Film at the End", description="When every frame is done, encode them as an .mp4 beside them"
        ),
        "trusts_scripts": _props.BoolProperty(
            name="Trust Scripts",
            description="Let scripts in the scene run on the nodes: only for files you know",
        ),
        "replaces_existing": _props.BoolProperty(
            name="Replace Existing", description="Move old files aside when a new frame is there"
        ),
        "in_spite": _props.BoolProperty(
            name="Send Anyway",
            description="Send the scene although files are missing or scripts will not run",
        ),
    }


def wish(settings: Any) -> Wish:
    return Wish(
        name=settings.job_name,
        frames=settings.frames if settings.use_own_frames else None,
        output=bpy.path.abspath(settings.output) if settings.output else "",
        priority=settings.priority,
        pool=settings.pool,
        profile=settings.profile,
        device=settings.device,
        chunk_size=settings.chunk_size if settings.split == "NONE" else 1,
        chunk_s=settings.chunk_s if settings.split == "NONE" else 0,
        split=settings.split,
        tiles=(settings.tile_columns, settings.tile_rows),
        sample_chunks=settings.sample_chunks,
        pack_into=bpy.path.abspath(settings.pack_into) if settings.pack_into else "",
        is_paused=settings.is_paused,
        is_preview_first=settings.is_preview_first,
        is_film=settings.is_film,
        trusts_scripts=settings.trusts_scripts,
        replaces_existing=settings.replaces_existing,
        in_spite=settings.in_spite,
    )


# --- the farm -----------------------------------------------------------------------------------------


def directory() -> Path:
    """Where the add-on keeps files of its own."""
    if __package__.startswith("bl_ext."):  # since 4.2: an update removes the add-on's folder
        return Path(bpy.utils.extension_path_user(__package__, create=True))
    return Path(bpy.utils.user_resource("CONFIG", path="ridgeline", create=True))


def client_file() -> Path:
    return keeping.own_client_file(dict(os.environ), Path.home())


def preferences() -> Any:
    """Raises UserError: with `blender --addons` an add-on runs without preferences."""
    found = bpy.context.preferences.addons.get(__package__)
    if found is None or found.preferences is None:
        raise UserError("enable Ridgeline in the preferences: it was loaded without them")
    return found.preferences


def find_farm() -> Farm:
    """Raises UserError."""
    farm = keeping.find_farm(preferences().url, directory=directory(), client_file=client_file())
    if not (is_private(farm.url) or getattr(bpy.app, "online_access", True)):
        raise UserError(
            f"{farm.url} is on the internet, and Allow Online Access is off: see Preferences > System"
        )
    return farm


def _token(_preferences: Any) -> str:
    """Never the token itself: it is not in Blender's preferences, which anybody may read."""
    return "********" if keeping.has_token(_preferences.url, directory=directory()) else ""


def _set_token(preferences_: Any, value: str) -> None:
    if set(value) == {"*"}:
        return
    try:
        keeping.keep_token(preferences_.url, value, directory=directory(), client_file=client_file())
    except OSError as error:
        LIVE.say(f"the token cannot be kept: {error}", is_error=True)


class RidgelinePreferences(bpy.types.AddonPreferences):
    bl_idname = __package__
    __annotations__ = {
        "url": _props.StringProperty(
            name="Farm", description="Its address; empty: the farm that runs on this computer"
        ),
        "token": _props.StringProperty(
            name="Token",
            description="For this farm; kept in a file of its own that only you can read",
            subtype="PASSWORD",
            get=_token,
            set=_set_token,
        ),
    }

    def draw(self, context: Any) -> None:
        layout = self.layout
        layout.use_property_split = True
        layout.prop(self, "url")
        layout.prop(self, "token")
        try:
            layout.label(text=f"Farm: {find_farm().url}", icon="CHECKMARK")
        except UserError as error:
            layout.label(text=str(error), icon="INFO")
        layout.operator("ridgeline.test")
        if LIVE.shown.text:
            layout.label(text=LIVE.shown.text, icon="ERROR" if LIVE.shown.is_error else "INFO")


_CLASSES = (RidgelineSettings, RidgelinePreferences)


def register() -> None:
    for each in _CLASSES:
        bpy.utils.register_class(each)
    bpy.types.Scene.ridgeline = _props.PointerProperty(type=RidgelineSettings)


def unregister() -> None:
    LIVE.forget()
    del bpy.types.Scene.ridgeline
    for each in reversed(_CLASSES):
        bpy.utils.unregister_class(each)
