"""A farm as the API tells of it, for the live view's tests and bench."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

NOW = 1_800_000_000.0
HOSTILE = "[/]\x1b[31m\x1b]52;c;aGk=\x07\u202eevil\u200d\ufe0f 渲染農場 \x9b2J\r\n\ud800" + "é" * 255


def a_job(number: int, **changes: Any) -> dict[str, Any]:
    counts = {"ready": 120, "running": 6, "done": 80, "failed": 2} | changes.pop("counts", {})
    total = sum(counts.values())
    job = {
        "id": number,
        "uid": f"uid-{number}",
        "name": f"shot_{number:03d}",
        "kind": "blender",
        "state": "active",
        "settings": {"priority": 50, "user": "anna"},
        "submitted_at": NOW - 600,
        "steps": [
            {
                "id": number,
                "job_id": number,
                "name": "render",
                "position": 0,
                "counts": counts,
                "mean_runtime_s": 9.0,
                "demand": {"vram_mib": 12288, "gpus": 1},
            }
        ],
        "reason": "",
    }
    view = {
        "job": job,
        "counts": counts,
        "progress": counts["done"] / total,
        "tag": "compute",
        "eta_s": [187.0, 250.0],
        "spread": {"count": 80, "mean_s": 9.0, "sd_s": 1.0, "p50_s": 9.0, "p95_s": 11.0},
        "waiting": "",
    }
    for key, value in changes.items():
        (view if key in view else job)[key] = value
    return view


def a_node(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "state": "online",
        "reason": "",
        "capabilities": {
            "cpus": 32,
            "memory_mib": 131072,
            "devices": [
                {"id": "cpu", "kind": "cpu", "model": "EPYC 7543", "slots": 0},
                {
                    "id": "GPU-1",
                    "kind": "gpu",
                    "model": "NVIDIA L40S",
                    "slots": 2,
                    "fp32_tflops": 91.6,
                    "memory_bandwidth_gbps": 864.0,
                    "vram_mib": 46068,
                },
            ],
        },
        "loads": [{"device_id": "GPU-1", "utilisation": 0.97, "memory_occupancy": 0.41}],
        "silent_s": 1.4,
        "attempts": ["a", "b"],
        "running": ["7 shot_007 31", "7 shot_007 32"],
        "agent_version": "0.1.0",
        "fails": 2,
    } | changes


def a_task(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": 7000 + number,
        "job_id": 7,
        "step_id": 7,
        "step": "render",
        "index": number - 1,
        "label": str(number),
        "state": "running",
        "starts": 1,
        "node_id": "gpu-01",
        "progress": 0.4,
    } | changes


def an_attempt(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"attempt-{number}",
        "task_id": 7000 + number,
        "job_id": 7,
        "step_id": 7,
        "node_id": "gpu-01",
        "device_id": "GPU-1",
        "state": "running",
        "assigned_at": NOW - 31,
        "started_at": NOW - 30,
        "message": "Sample 205/512",
        "evidence": {"attempt_id": f"attempt-{number}", "age_s": 30.0, "silent_s": 4.0},
        "decision": {
            "model": "NVIDIA L40S",
            "predicted_s": 24.0,
            "upper_s": 31.0,
            "load_s": 2.0,
            "price": 0.1,
            "advantage": 0.87,
            "best_advantage": 0.9,
            "near_equals": 1,
        },
    } | changes


def an_event(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": number,
        "at": NOW - 60 + number,
        "kind": "task-done",
        "text": f"shot_007 frame {number} on gpu-01",
    } | changes


def jobs() -> list[dict[str, Any]]:
    return [
        a_job(7, settings={"priority": 80, "user": "anna"}, name="sq010_sh020_lighting_v012"),
        a_job(8, tag="bandwidth", counts={"ready": 0, "running": 3, "done": 250, "failed": 0}),
        a_job(
            9,
            counts={"ready": 240, "running": 0, "done": 0, "failed": 0},
            eta_s=None,
            tag="unknown",
            waiting="12 nodes: VRAM 24 GB < 31 GB needed; 3: quarantined",
        ),
        a_job(10, counts={"ready": 4, "running": 0, "held": 2}, eta_s=None, tag="balanced"),
        a_job(11, state="paused", eta_s=None, waiting="paused by bob", settings={"user": "bob"}),
        a_job(
            5,
            state="failed",
            eta_s=None,
            counts={"ready": 0, "running": 0, "failed": 101},
            reason="101 tasks failed; the most is 100",
        ),
        a_job(6, state="done", eta_s=None, counts={"ready": 0, "running": 0, "done": 48, "failed": 0}),
    ]


def nodes() -> list[dict[str, Any]]:
    return [
        a_node("gpu-01"),
        a_node("gpu-02", state="draining", reason="drained by bob", loads=[]),
        a_node(
            "ws-anna",
            state="suspect",
            reason="silent for 14 s",
            silent_s=14.0,
            attempts=[],
            running=[],
            capabilities={"devices": [{"id": "cpu", "kind": "cpu", "model": "Ryzen 5950X", "slots": 8}]},
            loads=[{"device_id": "cpu"}],
        ),
    ]


def events() -> list[dict[str, Any]]:
    return [
        an_event(1, kind="job-submitted", text="job 11 shot_011", actor="bob"),
        an_event(2, kind="job-changed", text="job 11 paused", actor="bob"),
        *(an_event(number) for number in range(3, 12)),
        an_event(12, kind="attempt-failed", text="shot_007 frame 12 on gpu-02: out of VRAM"),
    ]


def tasks() -> list[dict[str, Any]]:
    return [
        *(a_task(number) for number in range(1, 4)),
        a_task(
            4,
            state="failed",
            failures=3,
            starts=3,
            reason="out of VRAM: 11 GiB asked for, 2 free",
            progress=None,
        ),
        *(a_task(number, state="done", runtime_s=9.0 + number / 4, progress=1.0) for number in range(5, 9)),
        *(a_task(number, state="ready", starts=0, node_id=None, progress=None) for number in range(9, 13)),
    ]


def attempts() -> list[dict[str, Any]]:
    usage = {"device_model": "NVIDIA L40S", "vram_peak_mib": 8400}
    return [
        *(an_attempt(number) for number in range(1, 4)),
        an_attempt(4, state="failed", reason="out of VRAM: 11 GiB asked for, 2 free"),
        *(an_attempt(number, state="succeeded", message="", usage=usage) for number in range(5, 9)),
    ]


def stalled() -> list[dict[str, Any]]:
    def line(number: int, kind: str, text: str, action: str, **evidence: Any) -> dict[str, Any]:
        stall = {"kind": kind, "text": text, "since": NOW - 40 * number, "action": action}
        seen = {"attempt_id": f"attempt-{number}", "age_s": 300.0, "silent_s": 131.0} | evidence
        attempt = an_attempt(number, stall=stall, evidence=seen, started_at=NOW - 300)
        label = {
            "job_name": "sq010_sh020_lighting_v012",
            "user": "anna",
            "step": "render",
            "label": str(number),
        }
        return label | {"stall": stall, "attempt": attempt}

    return [
        line(
            2,
            "hung",
            "no CPU, no I/O for 2:10; last output 2:11 ago: Developing out.exr",
            "ended, to run on another node",
        ),
        line(1, "slow", "runs for 5:00, nine in ten take less than 12 s here; CPU 0.9 cores", ""),
    ]


def log_text() -> str:
    lines = [f"Fra:31 Mem:512M | Sample {number}/512" for number in range(1, 61)]
    return "\n".join(["Read blend: /shots/sq010.blend", *lines]) + "\n"


class FakeFarm:
    """Answers like the API. Its lists may be changed while it is asked; `error` is raised when set."""

    def __init__(self) -> None:
        self.jobs = jobs()
        self.nodes = nodes()
        self.events = events()
        self.tasks = tasks()
        self.attempts = attempts()
        self.log = log_text()
        self.stalled = stalled()
        self.sent: list[tuple[str, str, dict[str, Any]]] = []
        self.reply: dict[str, Any] = {}
        self.refusal: Exception | None = None
        self.error: Exception | None = None
        self.now = NOW

    def get(self, path: str, params: Mapping[str, Any]) -> Any:
        if self.error is not None:
            raise self.error
        if path == "/farm":
            return self._farm()
        if path.startswith(("/jobs/", "/tasks/", "/attempts/")):
            return self._deeper(path, params)
        items = {"/jobs": self.jobs, "/nodes": self.nodes, "/events": self.events, "/stalled": self.stalled}[
            path
        ]
        if path == "/jobs":
            items = [item for item in items if item["job"]["state"] in params["state"]]
        return {"items": copy.deepcopy(items), "next": None}

    def send(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append((method, path, dict(body)))
        return self.reply

    def _deeper(self, path: str, params: Mapping[str, Any]) -> Any:
        _, kind, name, what = path.split("/")
        if kind == "attempts":
            is_first = params["after"] < 0
            return {"chunks": [{"sequence": 0, "text": self.log}] if is_first else [], "is_ended": False}
        if kind == "tasks":
            found = [each for each in self.attempts if each["task_id"] == int(name)]
            return {"items": found, "next": None}
        states = params.get("state")
        listed = self.attempts if what == "attempts" else self.tasks
        return {"items": [each for each in listed if not states or each["state"] in states], "next": None}

    def _farm(self) -> dict[str, Any]:
        open_jobs = [j for j in self.jobs if j["job"]["state"] in ("active", "waiting", "paused")]
        states = {state for job in open_jobs for state in job["counts"]}
        return {
            "version": "0.1.0",
            "now": self.now,
            "policy": "fitness",
            "leader": "farm-a",
            "nodes_online": sum(node["state"] == "online" for node in self.nodes),
            "nodes": len(self.nodes),
            "slots": 12,
            "slots_used": 4,
            "counts": {state: sum(job["counts"].get(state, 0) for job in open_jobs) for state in states},
            "user": "anna",
            "role": "admin",
        }
