"""Getting a scene's files to where nodes read them: copied by blender-asset-tracer, or looked at in place.

Knows nothing of Blender. blender-asset-tracer is not a part of the add-on: whoever has it in Blender's Python
can pack.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from farm.errors import UserError
from farm.text import plural, size

TRACER = "blender_asset_tracer"
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "afpfs", "9p", "virtiofs")
_CLUSTER = ("ceph", "glusterfs", "lustre", "beegfs", "gpfs", "gfs2", "ocfs2")
_FUSE = ("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs")
_SHARED = frozenset((*_NETWORK, *_CLUSTER, *_FUSE))
"""Kinds of file systems that several machines see."""
_SHOWN_S = 0.2


def can_pack() -> bool:
    return importlib.util.find_spec(TRACER) is not None


def pack(scene: Path, target: Path, tell: Callable[[str], None]) -> Path:
    """Copy `scene` and all that it links into a new directory below `target`; returns the scene there.

    `tell` hears what is done now. Raises UserError.
    """
    if not can_pack():
        raise UserError(
            "Pack Into needs blender-asset-tracer in Blender's Python, and it is not there: clear Pack Into, "
            "and keep the scene where the nodes can read it"
        )
    from blender_asset_tracer import pack as packing
    from blender_asset_tracer.pack import progress

    # The tracer imports multiprocessing, which keeps `__main__` under another name, too. That of `blender -P`
    # is freed while it is still listed, and Blender 3.4 crashes when it ends.
    sys.modules.pop("__mp_main__", None)
    folder = target / f"{scene.stem}-{time.strftime('%Y%m%d-%H%M%S')}"

    class Heard(progress.Callback):
        told_at = 0.0
        done = 0

        def trace_asset(self, filename: Path) -> None:
            self._tell(f"packing: looking at {filename.name}")

        def transfer_file(self, src: Path, dst: Any) -> None:
            self.done += 1
            self._tell(f"packing: file {self.done}, {src.name}")

        def transfer_progress(self, total_bytes: int, transferred_bytes: int) -> None:
            self._tell(f"packing: {size(transferred_bytes)} of {size(total_bytes)}")

        def _tell(self, text: str) -> None:
            now = time.monotonic()
            if now - self.told_at > _SHOWN_S:
                self.told_at = now
                tell(text)

    try:
        with packing.Packer(scene, scene.parent, str(folder)) as packer:
            packer.progress_cb = Heard()
            packer.strategise()
            packer.execute()
            missing = sorted(str(path) for path in packer.missing_files)
            packed = Path(str(packer.output_path))
    except Exception as error:
        raise UserError(f"the scene cannot be packed into {folder}: {error}") from error
    if not packed.is_file():
        raise UserError(f"the scene cannot be packed into {folder}: {packed} was not written")
    tell(f"packed into {folder}" + (f", {plural(len(missing), 'file')} missing" if missing else ""))
    return packed


def mounts() -> dict[str, str]:
    """Mount point to the kind of its file system; empty where the system does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    fields = (line.split(" ") for line in lines)
    return {words[1].replace("\\040", " "): words[2] for words in fields if len(words) > 2}


def only_here(paths: Iterable[str], mounted: dict[str, str]) -> list[str]:
    """Those of `paths` that lie on a disk of this computer alone, as far as it can tell."""
    points = sorted(mounted, key=len, reverse=True)
    found = []
    for path in paths:
        point = next(
            (each for each in points if path == each or path.startswith(each.rstrip("/") + "/")), None
        )
        if point is not None and mounted[point] not in _SHARED and os.path.exists(path):
            found.append(path)
    return found
