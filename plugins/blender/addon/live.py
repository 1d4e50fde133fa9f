"""Sending a job and watching it, in threads. Blender's interface only ever looks at `Live.shown`."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from farm.errors import FarmError, Unavailable
from farm.model.work import Submission
from farm.text import clean, duration, plural
from plugins.blender.parts import PARTS_SUFFIX

from .client import Farm
from .job import SceneFacts, Wish, refuse_existing, refuse_versions

ENDED = frozenset({"done", "failed", "cancelled"})
FILES = 6
"""Finished frames that are shown."""
POLL_S = 2.0
_TRIES = 4
_PICTURES = (".png", ".exr", ".jpg", ".jpeg", ".tif", ".tiff", ".tga", ".webp", ".bmp", ".hdr")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """A job as the panel shows it."""

    id: int
    name: str
    state: str
    total: int
    done: int
    failed: int
    running: int
    progress: float
    """0 to 1: what is done; the farm's own figure counts what was cancelled, too."""
    note: str = ""
    """When it will end, or why nothing runs."""
    directories: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """The newest finished frames, the oldest of them first."""

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def counts(self) -> str:
        parts = [f"{self.done} of {plural(self.total, 'task')}"]
        parts += [f"{self.running} running"] if self.running else []
        parts += [f"{self.failed} failed"] if self.failed else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    text: str = ""
    is_error: bool = False
    is_busy: bool = False
    job: JobNow | None = None


def job_now(view: Any, attempts: Any = ()) -> JobNow:
    """From a JobView, and attempts of the job, the newest first."""
    job, counts = view["job"], view["counts"]
    total = sum(counts.values())
    note = view["waiting"] or job["reason"]
    if not note and view["eta_s"] and job["state"] not in ENDED:
        likely, worst = (duration(seconds) for seconds in view["eta_s"])
        note = f"done in {likely}" if likely == worst else f"done in {likely} to {worst}"
    files = [
        file["path"]
        for attempt in attempts
        for file in reversed(attempt["files"])
        if file["path"].lower().endswith(_PICTURES) and not _is_part(file["path"])
    ]
    return JobNow(
        id=job["id"],
        name=clean(job["name"], limit=100, one_line=True),
        state=job["state"],
        total=total,
        done=counts["done"],
        failed=counts["failed"],
        running=counts["assigned"] + counts["running"] + counts["cancelling"],
        progress=counts["done"] / max(total, 1),
        note=clean(note, limit=300, one_line=True),
        directories=tuple(job["output_directories"]),
        files=tuple(reversed(files[:FILES])),
    )


def _is_part(path: str) -> bool:
    """Of a frame that is rendered in parts: no picture for people."""
    return path.replace("\\", "/").rpartition("/")[0].endswith(PARTS_SUFFIX)


def read_job(farm: Farm, job_id: int) -> JobNow:
    """Raises FarmError."""
    view = farm.get(f"/jobs/{job_id}")
    attempts = farm.get(f"/jobs/{job_id}/attempts", state="succeeded", limit=FILES)["items"]
    return job_now(view, attempts)


def send(farm: Farm, made: Submission, facts: SceneFacts, wish: Wish, *, pause_s: float = 1.0) -> JobNow:
    """Look at the files and the nodes, then submit; a lost answer is asked for again. Raises FarmError."""
    refuse_existing(made)
    nodes = farm.get("/nodes")["items"]
    if not wish.in_spite:
        refuse_versions(facts, nodes)
    body, key = asdict(made), str(uuid.uuid4())
    for left in reversed(range(_TRIES)):
        try:
            return job_now(farm.post("/jobs", body, key=key))
        except Unavailable:
            if not left:
                raise
            time.sleep(pause_s)
    raise AssertionError("unreachable")


class Live:
    """What happens now. Its threads never touch Blender; `shown` is replaced whole."""

    def __init__(self, *, poll_s: float = POLL_S) -> None:
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._shown = Shown()
        self._watch = threading.Event()
        """Of the present watcher; set when it is to end, or has ended."""
        self._watch.set()

    @property
    def shown(self) -> Shown:
        with self._lock:
            return self._shown

    @property
    def is_watching(self) -> bool:
        with self._lock:
            return not self._watch.is_set()

    def say(self, text: str, *, is_error: bool = False) -> None:
        with self._lock:
            self._shown = replace(self._shown, text=text, is_error=is_error, is_busy=False)

    def progress(self, text: str) -> None:
        """What the work that was begun does now."""
        with self._lock:
            self._shown = replace(self._shown, text=text)

    def begin(self, text: str, work: Callable[[], str]) -> threading.Thread:
        """Run `work` in a thread, and show the text that it returns, or the FarmError that it raises."""
        with self._lock:
            self._shown = replace(self._shown, text=text, is_error=False, is_busy=True)

        def run() -> None:
            try:
                self.say(work())
            except FarmError as error:
                self.say(str(error), is_error=True)
            except Exception as error:  # noqa: BLE001  the thread's edge: the panel must not stay busy for ever
                self.say(f"the add-on made an error: {type(error).__name__}: {error}", is_error=True)

        thread = threading.Thread(target=run, name="ridgeline", daemon=True)
        thread.start()
        return thread

    def watch(self, farm: Farm, job_id: int) -> None:
        """Follow a job until it ends, instead of the one before."""
        self.forget()
        stop = threading.Event()
        with self._lock:
            self._watch = stop
        threading.Thread(
            target=self._follow, args=(farm, job_id, stop), name="ridgeline-watch", daemon=True
        ).start()

    def forget(self) -> None:
        """Show no job."""
        with self._lock:
            self._watch.set()
            self._shown = replace(self._shown, job=None)

    def _follow(self, farm: Farm, job_id: int, stop: threading.Event) -> None:
        try:
            self._follow_until(farm, job_id, stop)
        finally:
            stop.set()

    def _follow_until(self, farm: Farm, job_id: int, stop: threading.Event) -> None:
        is_lost = False
        while not stop.is_set():
            try:
                job = read_job(farm, job_id)
            except Unavailable as error:
                is_lost = True
                self._show(stop, text=f"{error}; asking again", is_error=True)
            except FarmError as error:
                self._show(stop, text=str(error), is_error=True)
                return
            else:
                self._show(stop, job=job)
                if is_lost:
                    self._show(stop, text="the farm answers again", is_error=False)
                    is_lost = False
                if job.is_ended:
                    return
            stop.wait(self._poll_s)

    def _show(self, stop: threading.Event, **changes: Any) -> None:
        with self._lock:
            if not stop.is_set():
                self._shown = replace(self._shown, **changes)
