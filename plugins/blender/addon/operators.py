"""What the buttons do. A button works in a thread; called from a script, an operator waits."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import bpy

from farm.errors import FarmError, UserError

from . import keeping, scene
from .client import Farm
from .job import (
    SceneFacts,
    Wish,
    blocking,
    first_output,
    packed,
    problems,
    refuse_local_files,
    submission,
)
from .live import JobNow, send
from .packing import pack
from .properties import LIVE, directory, find_farm, wish


def refuse(operator: Any, text: str) -> set[str]:
    LIVE.say(text, is_error=True)
    operator.report({"ERROR"}, text)
    return {"CANCELLED"}


class RIDGELINE_OT_submit(bpy.types.Operator):
    """Save the scene and send it to the farm"""

    bl_idname = "ridgeline.submit"
    bl_label = "Send to the Farm"
    __annotations__ = {
        "saves": bpy.props.BoolProperty(
            name="Save First", description="Save the file when it has changed", default=True
        )
    }

    @classmethod
    def poll(cls, context: Any) -> bool:
        return context.scene is not None and not LIVE.shown.is_busy

    def execute(self, context: Any) -> set[str]:
        """Waits for the farm. A refusal is an error of the operator: RuntimeError in a script."""
        return self._run(context, waits=True)

    def invoke(self, context: Any, _event: Any) -> set[str]:
        return self._run(context, waits=False)

    def _run(self, context: Any, *, waits: bool) -> set[str]:
        try:
            facts, wanted = _ready(context, saves=self.saves)
            farm = find_farm()
            made = submission(facts, wanted)
        except UserError as error:
            return refuse(self, str(error))
        kept = directory()

        def work() -> str:
            sent = made
            if wanted.pack_into:
                there = pack(Path(facts.path), Path(wanted.pack_into), LIVE.progress)
                sent = packed(made, there)
            elif not wanted.in_spite:
                refuse_local_files(facts, farm.url)
            job = send(farm, sent, facts, wanted)
            _keep(farm, facts.path, job, kept)
            if not waits:
                LIVE.watch(farm, job.id)
            return f"sent as job {job.id}: {job.counts}"

        if not waits:
            LIVE.begin("sending ...", work)
            redraw_while_needed()
            return {"FINISHED"}
        try:
            text = work()
        except FarmError as error:
            return refuse(self, str(error))
        LIVE.say(text)
        self.report({"INFO"}, text)
        return {"FINISHED"}


def _ready(context: Any, *, saves: bool) -> tuple[SceneFacts, Wish]:
    """The scene, checked and saved. Raises UserError with all that is wrong, a line each."""
    wanted = wish(context.scene.ridgeline)
    facts = scene.read(context.scene, is_thorough=True)
    found = problems(facts, wanted)
    wrong = blocking(found, wanted)
    if wrong:
        raise UserError("\n".join(problem.text for problem in wrong))
    if facts.is_changed:
        if not saves:
            raise UserError("the scene has changes that are not saved, and nodes read the file: save it")
        bpy.ops.wm.save_mainfile()
    return facts, wanted


def _keep(farm: Farm, path: str, job: JobNow, kept: Path) -> None:
    try:
        keeping.keep_job(path, farm.url, job.id, directory=kept)
    except OSError as error:
        LIVE.say(f"job {job.id} cannot be remembered: {error}", is_error=True)


class RIDGELINE_OT_check(bpy.types.Operator):
    """Look for everything that keeps the scene from rendering on the farm, and send nothing"""

    bl_idname = "ridgeline.check"
    bl_label = "Check"

    def execute(self, context: Any) -> set[str]:
        wanted = wish(context.scene.ridgeline)
        facts = scene.read(context.scene, is_thorough=True)
        found = problems(facts, wanted)
        if found:
            return refuse(self, "\n".join(problem.text for problem in found))
        text = f"nothing is wrong; the first frame goes to {first_output(submission(facts, wanted))}"
        LIVE.say(text)
        self.report({"INFO"}, text)
        return {"FINISHED"}


class RIDGELINE_OT_cancel(bpy.types.Operator):
    """Cancel what has not ended of the job; finished frames stay"""

    bl_idname = "ridgeline.cancel"
    bl_label = "Cancel Job"

    @classmethod
    def poll(cls, context: Any) -> bool:
        job = LIVE.shown.job
        return job is not None and not job.is_ended

    def invoke(self, context: Any, event: Any) -> set[str]:
        result: set[str] = context.window_manager.invoke_confirm(self, event)
        return result

    def execute(self, context: Any) -> set[str]:
        job = LIVE.shown.job
        if job is None:
            return refuse(self, "there is no job to cancel")
        try:
            farm = find_farm()
        except UserError as error:
            return refuse(self, str(error))
        number = job.id

        def work() -> str:
            changed = farm.post(f"/jobs/{number}/cancel", {})["changed"]
            LIVE.watch(farm, number)
            return f"cancelled {changed} tasks of job {number}"

        LIVE.begin("cancelling ...", work)
        redraw_while_needed()
        return {"FINISHED"}


class RIDGELINE_OT_watch(bpy.types.Operator):
    """Show the job that this file was last sent as"""

    bl_idname = "ridgeline.watch"
    bl_label = "Show Last Job"

    def execute(self, context: Any) -> set[str]:
        try:
            farm = find_farm()
            number = keeping.last_job(bpy.data.filepath, farm.url, directory=directory())
        except UserError as error:
            return refuse(self, str(error))
        if number is None:
            return refuse(self, f"this file was not sent to the farm at {farm.url} from here")
        LIVE.say("")
        LIVE.watch(farm, number)
        redraw_while_needed()
        return {"FINISHED"}


class RIDGELINE_OT_folder(bpy.types.Operator):
    """Open the folder with the frames"""

    bl_idname = "ridgeline.folder"
    bl_label = "Open Folder"

    @classmethod
    def poll(cls, context: Any) -> bool:
        job = LIVE.shown.job
        return job is not None and bool(job.directories)

    def execute(self, context: Any) -> set[str]:
        job = LIVE.shown.job
        folder = Path(job.directories[0]) if job is not None and job.directories else None
        if folder is None or not folder.is_dir():
            return refuse(self, f"{folder or 'the folder'} is not there (yet, or not on this computer)")
        if sys.platform != "linux":
            bpy.ops.wm.path_open(filepath=str(folder))
            return {"FINISHED"}
        # Blender's own waits until xdg-open has ended, and says nothing where there is none.
        opener = shutil.which("xdg-open")
        if opener is None:
            return refuse(
                self, f"this computer has no xdg-open to open folders with; the frames are in {folder}"
            )
        quiet = subprocess.DEVNULL
        subprocess.Popen(
            [opener, str(folder)], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
        return {"FINISHED"}


class RIDGELINE_OT_test(bpy.types.Operator):
    """Ask the farm who you are"""

    bl_idname = "ridgeline.test"
    bl_label = "Test Connection"

    def execute(self, context: Any) -> set[str]:
        try:
            text = _who(find_farm())
        except FarmError as error:
            return refuse(self, str(error))
        LIVE.say(text)
        self.report({"INFO"}, text)
        return {"FINISHED"}

    def invoke(self, context: Any, _event: Any) -> set[str]:
        try:
            farm = find_farm()
        except UserError as error:
            return refuse(self, str(error))
        LIVE.begin("asking ...", lambda: _who(farm))
        redraw_while_needed()
        return {"FINISHED"}


def _who(farm: Farm) -> str:
    told = farm.get("/farm")
    nodes = f"{told['nodes_online']} of {told['nodes']} nodes take work"
    return f"{farm.url} knows you as {told['user']}; {nodes}"


# --- drawing what the threads found -------------------------------------------------------------------

_REDRAW_S = 0.25


class _Drawn:
    shown: Any = None


def redraw_while_needed() -> None:
    """Look at the threads' state from Blender's own loop until nothing changes any more."""
    if not bpy.app.background and not bpy.app.timers.is_registered(_redraw):
        bpy.app.timers.register(_redraw, persistent=True)


def _redraw() -> float | None:
    shown = LIVE.shown
    if shown is not _Drawn.shown:
        _Drawn.shown = shown
        for window in bpy.context.window_manager.windows:
            for area in window.screen.areas:
                if area.type in ("PROPERTIES", "PREFERENCES"):
                    area.tag_redraw()
    is_watching = shown.job is not None and not shown.job.is_ended
    return _REDRAW_S if shown.is_busy or is_watching or LIVE.is_watching else None


_CLASSES = (
    RIDGELINE_OT_submit,
    RIDGELINE_OT_check,
    RIDGELINE_OT_cancel,
    RIDGELINE_OT_watch,
    RIDGELINE_OT_folder,
    RIDGELINE_OT_test,
)


def register() -> None:
    for each in _CLASSES:
        bpy.utils.register_class(each)


def unregister() -> None:
    if bpy.app.timers.is_registered(_redraw):
        bpy.app.timers.unregister(_redraw)
    for each in reversed(_CLASSES):
        bpy.utils.unregister_class(each)
