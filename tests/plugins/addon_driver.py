"""Runs inside Blender: `blender -b --factory-startup -P addon_driver.py -- ZIP URL TOKEN SCENES TRACER`.

Installs the add-on as an artist would, drives it, and prints what came of each step as `RESULT name json`.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
import traceback
from typing import Any

import bpy

ZIP, URL, TOKEN, SCENES, TRACER = sys.argv[sys.argv.index("--") + 1 :][:5]


def tell(name: str, value: object) -> None:
    print(f"RESULT {name} {json.dumps(value)}", flush=True)


def install() -> str:
    """The name of the module."""
    if bpy.app.version >= (4, 2, 0):
        bpy.ops.extensions.package_install_files(
            filepath=ZIP, repo="user_default", enable_on_install=True, overwrite=True
        )
        return "bl_ext.user_default.ridgeline"
    bpy.ops.preferences.addon_install(filepath=ZIP, overwrite=True)
    bpy.ops.preferences.addon_enable(module="ridgeline")
    return "ridgeline"


def attempt(name: str, operator: Any = None, **changes: object) -> None:
    """Send the open scene with these settings; tells the refusal, or None."""
    settings = bpy.context.scene.ridgeline
    for key, value in changes.items():
        setattr(settings, key, value)
    try:
        (operator or bpy.ops.ridgeline.submit)()
    except RuntimeError as error:
        tell(name, str(error).strip())
    else:
        tell(name, None)
    for key in changes:
        settings.property_unset(key)


def open_scene(name: str) -> None:
    bpy.ops.wm.open_mainfile(filepath=os.path.join(SCENES, name))


def open_folders(folder: str) -> None:
    """With a program that takes its time, and without any."""
    path, programs = os.environ["PATH"], os.path.join(SCENES, "programs")
    os.makedirs(folder, exist_ok=True)
    os.makedirs(programs)
    opener, opened, may_end = (os.path.join(programs, name) for name in ("xdg-open", "opened", "may end"))
    with open(opener, "w") as file:
        file.write(
            f'#!/bin/sh\necho "$1" > "{opened}.new"; mv "{opened}.new" "{opened}"\n'
            f'for turn in $(seq 600); do [ -e "{may_end}" ] && exit; sleep 0.1; done\n'
        )
    os.chmod(opener, 0o755)
    os.environ["PATH"] = os.pathsep.join([programs, path])
    attempt("opened", bpy.ops.ridgeline.folder)  # the program goes on: it was not waited for
    open(may_end, "w").close()
    deadline = time.monotonic() + 20
    while not os.path.exists(opened) and time.monotonic() < deadline:
        time.sleep(0.05)
    with open(opened) as file:
        tell("folder", [file.read().strip(), folder])
    os.environ["PATH"] = os.path.join(SCENES, "shared")
    attempt("no opener", bpy.ops.ridgeline.folder)
    os.environ["PATH"] = path


def main() -> None:
    module = install()
    preferences = bpy.context.preferences.addons[module].preferences
    tell("version", list(bpy.app.version))
    attempt("unsaved")
    open_scene("small.blend")
    preferences.url = URL
    attempt("no token")
    preferences.token = TOKEN
    live = sys.modules[f"{module}.properties"]
    kept = live.directory() / "token.json"
    tell("token mode", stat.S_IMODE(kept.stat().st_mode))
    bpy.ops.wm.save_userpref()
    with open(os.path.join(bpy.utils.user_resource("CONFIG"), "userpref.blend"), "rb") as file:
        saved = file.read()
    tell("token in preferences", [preferences.token, URL.encode() in saved, TOKEN.encode() in saved])
    attempt("test", bpy.ops.ridgeline.test)
    attempt("check", bpy.ops.ridgeline.check)
    tell("checked", live.LIVE.shown.text)
    attempt("wrong frames", use_own_frames=True, frames="1-x")
    attempt("sent", in_spite=True, use_own_frames=True, frames="1-9x2", priority=70, is_paused=True)
    attempt(
        "all",
        in_spite=True,
        job_name="all of it",
        profile="BANDWIDTH",
        is_film=True,
        is_preview_first=True,
        output="//out/y_###.exr",
        use_own_frames=True,
        frames="1-6",
        is_paused=True,
        device="GPU",
    )
    attempt("no node", is_paused=True)
    parts = {"split": "TILES", "job_name": "in parts", "in_spite": True, "is_paused": True}
    attempt("parts", use_own_frames=True, frames="2", output="//parts/x.png", **parts)
    bpy.context.scene.render.engine = "BLENDER_WORKBENCH"
    attempt("no parts", **parts)
    bpy.context.scene.render.engine = "CYCLES"
    attempt("no tracer", job_name="packed", in_spite=True, is_paused=True, pack_into=SCENES)
    sys.path.append(TRACER)  # where blender-asset-tracer is
    shared = os.path.join(SCENES, "shared")
    attempt("packed", job_name="packed", in_spite=True, is_paused=True, pack_into=shared)
    tell("kept main", "__mp_main__" in sys.modules)
    os.makedirs(os.path.join(SCENES, "render"), exist_ok=True)
    with open(os.path.join(SCENES, "render", "small_0002.png"), "w") as file:
        file.write("in the way")
    attempt("existing", in_spite=True)
    attempt("replaced", in_spite=True, replaces_existing=True, is_paused=True)
    bpy.ops.ridgeline.watch()
    deadline = time.monotonic() + 20
    while live.LIVE.shown.job is None and time.monotonic() < deadline:
        time.sleep(0.05)  # the threads are this very process's: nothing else can be waited for
    job = live.LIVE.shown.job
    tell("watched", None if job is None else [job.state, job.counts])
    if job is not None:
        open_folders(job.directories[0])
    open_scene("no camera.blend")
    attempt("no camera")
    open_scene("no texture.blend")
    attempt("no texture")
    open_scene("scripts.blend")
    attempt("scripts")
    attempt("trusted", in_spite=True, trusts_scripts=True, is_paused=True)
    open_scene("small.blend")
    preferences.url = "http://127.0.0.1:9"
    preferences.token = TOKEN
    attempt("no farm", in_spite=True, replaces_existing=True)
    preferences.url = "https://render.example.com"
    preferences.token = TOKEN
    attempt("internet", in_spite=True, replaces_existing=True)
    bpy.ops.preferences.addon_disable(module=module)
    tell("gone", not hasattr(bpy.types.Scene, "ridgeline"))


try:
    main()
except BaseException:  # noqa: BLE001 - Blender would go on and end with 0
    traceback.print_exc()
    os._exit(3)
sys.stdout.flush()
os._exit(0)
