"""Blender kept open between frames, against one started for each: two slots, 100 frames, 3 s of loading."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

from farm.model.plugin import SubmitOptions
from farm.model.states import Outcome
from farm.wire.messages import Finished, HostRun
from plugins.blender.plugin import PLUGIN
from tests.workers.host_driver import HostDriver, runs_of

FRAMES = 100
COLD_FRAMES = 20
SLOTS = 2


def bench_warm(frames: int = FRAMES, cold_frames: int = COLD_FRAMES) -> None:
    """Throughput of both kinds, and what loading and rendering take of a frame's time."""
    with tempfile.TemporaryDirectory() as folder:
        scene = Path(folder) / "heavy.blend"
        script = Path(__file__).with_name("heavy_scene.py")
        make = ["blender", "-b", "--factory-startup", "-P", str(script), "--", str(scene)]
        subprocess.run(make, check=True, capture_output=True)
        rates = {}
        for is_cold, count in ((True, cold_frames), (False, frames)):
            rates[is_cold] = _rate(scene, count, is_cold=is_cold)
    print(f"warm sessions: {rates[False] / rates[True]:.1f} x the throughput of cold starts", flush=True)


def _rate(scene: Path, count: int, *, is_cold: bool) -> float:
    """Frames a second."""
    name = "cold" if is_cold else "warm"
    options = SubmitOptions(
        cwd=scene.parent,
        frames=tuple(range(1, count + 1)),
        output=f"{name}_####.png",
        is_cold=is_cold,
        arguments=("-t", "1"),
    )
    waiting = deque(runs_of(PLUGIN.submission(scene, options), name=name))
    ended: list[Finished] = []
    cpu_s, begun = _cpu_s(), time.monotonic()
    slots = [threading.Thread(target=_slot, args=(waiting, ended)) for _ in range(SLOTS)]
    for slot in slots:
        slot.start()
    for slot in slots:
        slot.join()
    took_s, used_s = time.monotonic() - begun, _cpu_s() - cpu_s
    assert len(ended) == count
    load_s = statistics.mean(each.load_s or 0.0 for each in ended)
    render_s = statistics.mean(each.runtime_s for each in ended) - load_s
    print(
        f"{name}: {count} frames in {took_s:.0f} s, {used_s / count:.2f} s of CPU a frame; "
        f"loading {load_s:.2f} s, rendering {render_s:.2f} s a frame",
        flush=True,
    )
    return count / took_s


def _slot(waiting: deque[HostRun], ended: list[Finished]) -> None:
    with HostDriver() as host:
        while waiting:
            finished = host.run(waiting.popleft())
            assert finished.outcome is Outcome.SUCCEEDED, finished
            ended.append(finished)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    bench_warm(*map(int, sys.argv[1:]))
