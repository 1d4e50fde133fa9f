"""The panel in the Output properties. Draws only: no farm is asked here."""

from typing import Any

import bpy
import bpy.utils.previews

from farm.errors import UserError
from farm.text import plural

from . import scene
from .job import first_output, frames_of, submission
from .live import JobNow
from .properties import LIVE, wish
from .wrapping import characters, lines_of, thumbnails


class _Thumbnails:
    """Of the finished frames, by path; Blender loads each when it is first drawn."""

    loaded: Any = None


class _Panel:
    bl_space_type = "PROPERTIES"
    bl_region_type = "WINDOW"
    bl_context = "output"


class RIDGELINE_PT_main(_Panel, bpy.types.Panel):
    bl_label = "Ridgeline"

    def draw(self, context: Any) -> None:
        layout = self.layout
        layout.use_property_split = True
        layout.use_property_decorate = False
        width = _characters(context)
        settings = context.scene.ridgeline
        layout.prop(settings, "job_name", text="Job Name")
        _draw_frames(layout, context.scene, settings)
        column = layout.column()
        column.prop(settings, "output")
        column.prop(settings, "priority")
        column.prop(settings, "pool")
        column.prop(settings, "profile")
        column.prop(settings, "device")
        column.prop(settings, "split")
        if settings.split == "NONE":
            chunk = column.column(align=True)
            chunk.prop(settings, "chunk_size")
            chunk.prop(settings, "chunk_s")
        elif settings.split == "TILES":
            column.prop(settings, "tile_columns")
            column.prop(settings, "tile_rows")
        else:
            column.prop(settings, "sample_chunks")
        column = layout.column(heading="Job")
        column.prop(settings, "is_paused")
        column.prop(settings, "is_film")
        column.prop(settings, "replaces_existing")
        layout.prop(settings, "pack_into")
        column = layout.column(heading="Scene")
        column.prop(settings, "trusts_scripts")
        column.prop(settings, "in_spite")
        _draw_summary(layout, context.scene, settings, width)
        column = layout.column()
        column.operator_context = "INVOKE_DEFAULT"
        row = column.row()
        row.scale_y = 1.5
        row.operator("ridgeline.submit", icon="RENDER_ANIMATION")
        column.operator("ridgeline.check", icon="CHECKMARK")
        shown = LIVE.shown
        if shown.text:
            _label(layout, shown.text, width, icon="ERROR" if shown.is_error else "INFO")


def _draw_frames(layout: Any, of: Any, settings: Any) -> None:
    layout.prop(settings, "use_own_frames")
    column = layout.column(align=True)
    if settings.use_own_frames:
        column.prop(settings, "frames")
    else:
        column.prop(of, "frame_start", text="Frame Start")
        column.prop(of, "frame_end", text="End")
        column.prop(of, "frame_step", text="Step")
    layout.prop(settings, "is_preview_first")


class _Summary:
    """Of what was drawn last: a submission is made when something has changed, not at every redraw."""

    of: Any = None
    text: str = ""
    is_error: bool = False


def _draw_summary(layout: Any, of: Any, settings: Any, width: int) -> None:
    """What would be sent, and where the first frame would go."""
    facts, wanted = scene.read(of, is_thorough=False), wish(settings)
    if not facts.path:
        _label(layout, "Save the file first", width, icon="ERROR")
        return
    if _Summary.of != (facts, wanted):
        _Summary.of = (facts, wanted)
        try:
            count = plural(len(frames_of(facts, wanted)), "frame")
            _Summary.text = f"{count}, the first: {first_output(submission(facts, wanted))}"
            _Summary.is_error = False
        except UserError as error:
            _Summary.text, _Summary.is_error = str(error), True
    _label(layout, _Summary.text, width, icon="ERROR" if _Summary.is_error else "OUTPUT")
    if not facts.has_camera:
        _label(layout, "The scene has no camera", width, icon="ERROR")
    if facts.is_changed:
        _label(layout, "The file will be saved before it is sent", width, icon="FILE_TICK")


class RIDGELINE_PT_job(_Panel, bpy.types.Panel):
    bl_label = "Job"
    bl_parent_id = "RIDGELINE_PT_main"

    def draw(self, context: Any) -> None:
        layout = self.layout
        job = LIVE.shown.job
        if job is None:
            layout.operator("ridgeline.watch", icon="VIEWZOOM")
            return
        width = _characters(context)
        _label(layout, f"{job.id}  {job.name}: {job.state}", width, icon=_ICONS.get(job.state, "SORTTIME"))
        if hasattr(layout, "progress"):  # since 4.0
            layout.progress(factor=job.progress, text=f"{job.progress:.0%}")
        else:
            filled = round(job.progress * 20)
            layout.label(text=f"{'█' * filled}{'░' * (20 - filled)}  {job.progress:.0%}")
        layout.label(text=job.counts)
        if job.note:
            _label(layout, job.note, width, icon="INFO")
        columns = thumbnails(context.region.width, context.preferences.system.ui_scale)
        _draw_thumbnails(layout, job, columns)
        column = layout.column(align=True)
        column.operator("ridgeline.folder", icon="FILE_FOLDER")
        column.operator_context = "INVOKE_DEFAULT"
        column.operator("ridgeline.cancel", icon="CANCEL")


_ICONS = {"done": "CHECKMARK", "failed": "ERROR", "cancelled": "CANCEL", "paused": "PAUSE", "active": "PLAY"}


def _draw_thumbnails(layout: Any, job: JobNow, columns: int) -> None:
    if not job.files:
        return
    if _Thumbnails.loaded is None:
        _Thumbnails.loaded = bpy.utils.previews.new()
    grid = layout.grid_flow(row_major=True, columns=columns, even_columns=True, align=True)
    for path in job.files:
        if path not in _Thumbnails.loaded:
            _Thumbnails.loaded.load(path, path, "IMAGE")
        cell = grid.column(align=True)
        cell.template_icon(_Thumbnails.loaded[path].icon_id, scale=5.0)
        cell.label(text=path.replace("\\", "/").rpartition("/")[2])


def _characters(context: Any) -> int:
    """That fit into a line of what is drawn now."""
    return characters(context.region.width, context.preferences.system.ui_scale)


def _label(layout: Any, text: str, width: int, *, icon: str) -> None:
    """Text over as many lines as it needs."""
    column = layout.column(align=True)
    column.scale_y = 0.8
    for line in lines_of(text, width):
        column.label(text=line, icon=icon)
        icon = "BLANK1"


_CLASSES = (RIDGELINE_PT_main, RIDGELINE_PT_job)


def register() -> None:
    for each in _CLASSES:
        bpy.utils.register_class(each)


def unregister() -> None:
    for each in reversed(_CLASSES):
        bpy.utils.unregister_class(each)
    if _Thumbnails.loaded is not None:
        bpy.utils.previews.remove(_Thumbnails.loaded)
        _Thumbnails.loaded = None
