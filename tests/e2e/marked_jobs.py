"""Jobs of the marked renderer, and everything that must be true of one when it has ended."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.e2e import marked_renderer
from tests.e2e.farm_under_test import FarmUnderTest, processes_with
from tests.waiting import wait_until

RENDERER = str(Path(marked_renderer.__file__))


def renderer(*words: str) -> tuple[str, ...]:
    """A command line of the marked renderer."""
    return (sys.executable, "-S", RENDERER, *words)


@dataclass
class MarkedJob:
    farm: FarmUnderTest
    output: Path
    """Its output directory."""
    frames: int
    id: int = 0
    last_seen: list[Any] = field(default_factory=list)

    def submit(self, *words: str, options: tuple[str, ...] = ()) -> MarkedJob:
        self.output.mkdir()
        where = ("--frames", f"1-{self.frames}", "--output", str(self.output / "frame_####.dat"))
        self.id = self.farm.submit(*where, *options, "--", *renderer("{output}", *words))
        return self

    def renderers(self) -> list[psutil.Process]:
        return processes_with(str(self.output))

    def tasks(self) -> list[Any]:
        return list(self.farm.get(f"/jobs/{self.id}/tasks", limit=1000)["items"])

    def wait_until_running_on(self, node_id: str, *, timeout_s: float = 60.0) -> None:
        """Until the node works for the job: by then some renderers are in the middle of a frame."""

        def runs() -> bool:
            view = self.farm.try_get(f"/jobs/{self.id}/attempts", state="running", limit=1000)
            return view is not None and any(a["node_id"] == node_id for a in view["items"])

        wait_until(runs, f"job {self.id} runs on {node_id}", timeout_s=timeout_s)

    def check_done(self, *, most_starts: int, timeout_s: float = 120.0) -> None:
        """Wait for the end. Every frame done once, whole, of the accepted attempt; nothing else left."""
        assert self.farm.wait_for_job(self.id, timeout_s=timeout_s) == "done"
        tasks = self.tasks()
        assert [t["state"] for t in tasks] == ["done"] * self.frames
        assert [t["failures"] for t in tasks] == [0] * self.frames, "retries were spent"
        starts = sum(t["starts"] for t in tasks)
        assert self.frames <= starts <= most_starts, f"{starts} starts for {self.frames} frames"
        attempts = self.farm.attempts(self.id)
        assert len(attempts) == starts
        accepted = {a["task_id"]: a for a in attempts if a["state"] == "succeeded"}
        assert len([a for a in attempts if a["state"] == "succeeded"]) == len(accepted) == self.frames
        for task in tasks:
            (file,) = accepted[task["id"]]["files"]
            assert Path(file["path"]).name == f"frame_{task['index'] + 1:04d}.dat"
            assert marked_renderer.whose(Path(file["path"])) == accepted[task["id"]]["id"]
        self.check_nothing_left(self.frames)

    def check_nothing_left(self, files: int) -> None:
        """No renderer lives, and the output directory holds so many files and nothing private."""
        wait_until(lambda: not self.renderers(), f"no renderer of job {self.id}", timeout_s=20)
        names = [f"frame_{number:04d}.dat" for number in range(1, self.frames + 1)]

        def is_tidy() -> bool:
            self.last_seen = sorted(os.listdir(self.output))
            return all(name in names for name in self.last_seen)

        try:
            wait_until(is_tidy, "a tidy output directory")
        except AssertionError as error:
            litter = [str(p) for p in self.output.rglob("*") if p.name not in names]
            raise AssertionError(f"{error}: {litter}\n{self.farm.logs()}") from error
        assert len(self.last_seen) == files
