"""A farm that is a script: an HTTP server in this process whose answers a test lays out; and a runner."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, is_dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from farm.control.views import FarmView, JobView
from farm.flow.stats import Spread
from farm.main import main
from farm.model.attempts import Attempt
from farm.model.events import Event, EventKind
from farm.model.ids import AttemptId, JobId, NodeId, StepId, TaskId
from farm.model.machines import Capabilities, Device, DeviceKind, DeviceLoad, Node
from farm.model.states import AttemptState, JobState, NodeState, Outcome, TaskState
from farm.model.work import (
    Counts,
    Isolation,
    Job,
    JobSettings,
    OutputSpec,
    Profile,
    Step,
    Tag,
    Task,
)

TOKEN = "rl_a-token-for-tests"


@dataclass
class Seen:
    """A request that came in."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


@dataclass
class FakeFarm:
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    answers: dict[tuple[str, str], list[tuple[int, Any, dict[str, str]]]] = field(default_factory=dict)

    def answer(self, method: str, path: str, body: Any, *, status: int = 200, **headers: str) -> None:
        """Answers to one request are given in turn; the last one stays."""
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.setdefault((method, path), []).append((status, plain(body), told))

    def fail(self, method: str, path: str, status: int, kind: str, message: str) -> None:
        self.answer(method, path, {"error": {"kind": kind, "message": message}}, status=status)

    def last(self, method: str, path: str) -> Seen:
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)][-1]


def plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def page(*items: Any, following: int | None = None) -> dict[str, Any]:
    return {"items": plain(items), "next": following}


@contextlib.contextmanager
def fake_farm() -> Iterator[FakeFarm]:
    farm = FakeFarm()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            path = parts.path.removeprefix("/api/v1")
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = json.loads(raw) if raw else None
            farm.seen.append(Seen(self.command, path, parse_qs(parts.query), headers, body))
            listed = farm.answers.get((self.command, path))
            if listed is None:
                message = f"there is nothing at {path}"
                listed = [(404, {"error": {"kind": "not-found", "message": message}}, {})]
            status, answer, more = listed.pop(0) if len(listed) > 1 else listed[0]
            if status == 0:  # the connection breaks before an answer
                self.close_connection = True
                return
            is_text = isinstance(answer, str)
            content = answer.encode() if is_text else b"" if status == 204 else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if is_text else "application/json")
            if status != 204:
                self.send_header("Content-Length", str(len(content)))
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve  # noqa: N815 - http.server asks for these

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    farm.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield farm
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@dataclass
class Result:
    status: int
    out: str
    err: str


@dataclass
class Cli:
    """Runs `farm` in this process, as a script would: no terminal."""

    folder: Path
    patch: pytest.MonkeyPatch

    def __call__(self, *arguments: str) -> Result:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(arguments)
        return Result(status, out.getvalue(), err.getvalue())

    def good(self, *arguments: str) -> str:
        result = self(*arguments)
        assert result.status == 0, f"{arguments} ended with {result.status}: {result.out}{result.err}"
        return result.out

    def bad(self, *arguments: str, status: int = 2) -> str:
        """What standard error says."""
        result = self(*arguments)
        assert result.status == status, f"{arguments} ended with {result.status}: {result.out}{result.err}"
        assert "Traceback" not in result.err
        return result.err


# --- things to answer with ----------------------------------------------------------------------------


def a_job(**changes: Any) -> Job:
    counts = Counts(done=12, running=2, ready=236)
    step = Step(
        id=StepId(1),
        job_id=JobId(12),
        name="render",
        position=0,
        profile=Profile(compute_share=0.8, bandwidth_share=0.2, tag=Tag.COMPUTE, source="hint"),
        isolation=Isolation.STAGED,
        output=OutputSpec(step="render", directory_parameter="OutputDir", file_pattern="shot_####.png"),
        frames="1-250",
        counts=counts,
        mean_runtime_s=41.5,
    )
    values: dict[str, Any] = {
        "id": JobId(12),
        "uid": "b7a4c8a2-6f0e-4a5e-9d3e-0a9c1b2d3e4f",
        "name": "shot_010",
        "kind": "blender",
        "state": JobState.ACTIVE,
        "settings": JobSettings(user="anna", priority=60),
        "submitted_at": 1_796_000_000.0,
        "steps": (step,),
        "output_directories": ("/projects/shot_010/render",),
    }
    return Job(**values | changes)


def a_view(job: Job | None = None, **changes: Any) -> JobView:
    job = job or a_job()
    values: dict[str, Any] = {
        "job": job,
        "counts": job.counts,
        "progress": job.counts.ended / max(job.counts.total, 1),
        "tag": Tag.COMPUTE,
        "eta_s": (3600.0, 4000.0),
        "spread": Spread(count=12, mean_s=41.5, sd_s=3.0, p50_s=41.0, p95_s=47.5),
    }
    return JobView(**values | changes)


def an_ended_view(state: JobState = JobState.DONE, **changes: Any) -> JobView:
    job = a_job(state=state, finished_at=1_796_000_100.0, **changes)
    counts = Counts(done=250) if state is JobState.DONE else Counts(done=240, failed=10)
    return a_view(job, counts=counts, progress=1.0, eta_s=None)


def a_task(**changes: Any) -> Task:
    values: dict[str, Any] = {
        "id": TaskId(4711),
        "job_id": JobId(12),
        "step_id": StepId(1),
        "step": "render",
        "index": 6,
        "label": "7",
        "state": TaskState.FAILED,
        "starts": 3,
        "failures": 3,
        "node_id": "blade-3",
        "runtime_s": 12.0,
        "reason": "the camera is missing",
    }
    return Task(**values | changes)


def an_attempt(**changes: Any) -> Attempt:
    values: dict[str, Any] = {
        "id": AttemptId("0d6f6f0a-0000-4000-8000-000000000001"),
        "task_id": TaskId(4711),
        "job_id": JobId(12),
        "step_id": StepId(1),
        "node_id": NodeId("blade-3"),
        "device_id": "cpu",
        "state": AttemptState.FAILED,
        "assigned_at": 1_796_000_010.0,
        "outcome": Outcome.JOB_ERROR,
    }
    return Attempt(**values | changes)


def a_node(**changes: Any) -> Node:
    values: dict[str, Any] = {
        "id": NodeId("blade-3"),
        "state": NodeState.ONLINE,
        "capabilities": Capabilities(
            cpus=16,
            memory_mib=65536,
            devices=(
                Device(id="cpu", kind=DeviceKind.CPU, model="EPYC 7302", slots=8, fp32_tflops=0.6),
                Device(
                    id="GPU-1",
                    kind=DeviceKind.GPU,
                    model="RTX 4090",
                    fp32_tflops=82.6,
                    memory_bandwidth_gbps=1008.0,
                    vram_mib=24564,
                ),
            ),
            software={"blender": "3.4.1"},
            attributes={"attr.site": ("berlin",)},
            amounts={"amount.licence": 2.0},
        ),
        "loads": (DeviceLoad(device_id="GPU-1", utilisation=0.42, memory_occupancy=0.1),),
        "disk_free_mib": 100_000,
        "attempts": (AttemptId("0d6f6f0a-0000-4000-8000-000000000001"),),
        "running": ("12 shot_010 7",),
        "agent_version": "0.1.0",
    }
    return Node(**values | changes)


def an_event(**changes: Any) -> Event:
    values: dict[str, Any] = {
        "id": 90210,
        "at": 1_796_000_020.0,
        "kind": EventKind.TASK_FAILED,
        "text": "frame 7: the camera is missing",
        "job_id": JobId(12),
    }
    return Event(**values | changes)


def a_farm(**changes: Any) -> FarmView:
    values: dict[str, Any] = {
        "version": "0.1.0",
        "now": 1_796_000_000.0,
        "policy": "fitness",
        "leader": "server:1",
        "nodes": 1,
        "nodes_online": 1,
        "slots": 9,
        "slots_used": 1,
        "counts": Counts(done=12),
        "user": "anna",
        "role": "admin",
    }
    return FarmView(**values | changes)
