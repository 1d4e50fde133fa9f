"""A whole farm of real processes that a test may kill one by one."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import farm.main
from tests.conftest import make_tables
from tests.e2e.services import ENDS_WITH_US, free_port
from tests.waiting import wait_until
from workers.cpu_benchmark import measured, usable_cpus

ENDED = ("done", "failed", "cancelled")
HURRY = {
    "FARM_HEARTBEAT_S": "0.5",
    "FARM_FENCE_S": "1.5",
    "FARM_KILL_GRACE_S": "0.2",
    "FARM_LEASE_S": "3",
    "FARM_RELAUNCH_S": "1.5",
    "FARM_LEADER_TTL_S": "2",
    "FARM_DRAIN_GRACE_S": "1",
}
"""Settings with which what is lost is missed within seconds."""
ON_A_NODE = 12
"""What a node may hold at once: one that runs and a few that are queued ahead."""


@functools.cache
def _cpu_figures() -> bytes:
    """The CPU's figures, measured once: four agents that start at the same time would measure each other."""
    with tempfile.TemporaryDirectory() as directory:
        measured(Path(directory), usable_cpus())
        return (Path(directory) / "cpu.json").read_bytes()


@functools.cache
def _client() -> httpx.Client:
    """One for all: making one reads the certificates, in tens of milliseconds."""
    return httpx.Client(timeout=30, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass
class FarmUnderTest:
    """`serve`, `scheduler` and agents, each a process of its own."""

    folder: Path
    database_url: str
    broker_url: str
    extra: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)
    in_front: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Process name to a command that runs it."""

    def environment(self, name: str) -> dict[str, str]:
        """For the process `name`; its state directory is its own but for clients, who share the server's."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("FARM_")}
        return {
            **kept,
            "FARM_STATE_DIR": str(self.folder / name),
            "FARM_DATABASE_URL": self.database_url,
            "FARM_BROKER_URL": self.broker_url,
            "FARM_API_PORT": str(self.port),
            "FARM_NODE_NAME": f"{name}-{self.port}",
            **self.extra,
        }

    def farm_process(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a `farm` command as a user would."""
        return subprocess.run(
            [sys.executable, "-m", "farm.main", *arguments],
            env=self._client_environment(),
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    def try_farm(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """The same in this process: most of a command's time goes into starting a Python."""
        out, error = io.StringIO(), io.StringIO()
        environment = self._client_environment()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
            for name in set(os.environ) - set(environment):
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.chdir(cwd or self.folder)
            status = farm.main.main(arguments)
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), error.getvalue())

    def _client_environment(self) -> dict[str, str]:
        ours = self.environment("server")
        told = {n: v for n, v in ours.items() if n not in ("FARM_DATABASE_URL", "FARM_BROKER_URL")}
        # Wide enough that no table cuts what a test looks for, whatever terminal the tests run in.
        return told | {"COLUMNS": "250"}

    def farm(self, *arguments: str, cwd: Path | None = None) -> str:
        """The same, and it must succeed. Returns its output."""
        done = self.try_farm(*arguments, cwd=cwd)
        if done.returncode != 0:
            told = f"{done.stdout}{done.stderr}\n{self.logs()}"
            raise AssertionError(f"farm {arguments} ended with {done.returncode}: {told}")
        return done.stdout

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        if command[0] in ("worker", "up"):
            state = self.folder / name
            state.mkdir(exist_ok=True)
            (state / "cpu.json").write_bytes(_cpu_figures())
        before = self.in_front.get(name, ())
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*ENDS_WITH_US, "--", *before, sys.executable, "-m", "farm.main", *command],
                env=self.environment(name),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[name] = process
        self.commands[name] = command
        return process

    def start_again(self, name: str) -> subprocess.Popen[bytes]:
        return self.start(name, *self.commands[name])

    def start_all(self, *, agents: int = 1, schedulers: int = 1, slots: int = 1) -> None:
        make_tables(self.database_url)
        self.start("server", "serve")
        for number in range(schedulers):
            self.start(f"scheduler{number}", "scheduler")
        for number in range(agents):
            self.start_agent(number, slots=slots)
        token = self.folder / "server" / "client.json"
        wait_until(token.exists, "the server's token", timeout_s=60)
        wait_until(lambda: len(self.nodes_online()) == agents, "agents online", timeout_s=60)

    def start_agent(self, number: int, *, slots: int = 1) -> None:
        self.start(f"agent{number}", "worker", "--slots", str(slots))

    def kill(self, name: str, signal_number: int = signal.SIGKILL) -> None:
        process = self.processes[name]
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal_number)
        if signal_number == signal.SIGKILL:
            process.wait(60)

    def stop_all(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 15
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    # --- what a script would ask ---

    def get(self, path: str, **parameters: Any) -> Any:
        client = json.loads((self.folder / "server" / "client.json").read_text())
        answer = _client().get(
            f"http://127.0.0.1:{self.port}/api/v1{path}",
            params=parameters,
            headers={"Authorization": f"Bearer {client['token']}"},
            timeout=30,
        )
        answer.raise_for_status()
        return answer.json()

    def try_get(self, path: str, **parameters: Any) -> Any:
        """None while the server or its database is away."""
        try:
            return self.get(path, **parameters)
        except (httpx.HTTPError, OSError):
            return None

    def nodes_online(self) -> list[str]:
        nodes = self.try_get("/nodes") or {"items": []}
        return [node["id"] for node in nodes["items"] if node["state"] == "online"]

    def leader(self, *, but: str = "") -> str:
        """The name of the process that leads, once one does that is not `but`."""

        def look() -> str:
            view = self.try_get("/farm")
            name = str(view["leader"] or "").rpartition(f"-{self.port}")[0] if view else ""
            return "" if name == but else name

        return wait_until(look, "another leader" if but else "a leader", pause_s=0.1)

    def submit(self, *arguments: str, cwd: Path | None = None) -> int:
        return int(self.farm("submit", "--quiet", *arguments, cwd=cwd))

    def job(self, job_id: int) -> Any:
        return self.get(f"/jobs/{job_id}")

    def wait_for_job(self, job_id: int, *, timeout_s: float = 120.0, pause_s: float = 0.2) -> str:
        """Until the job has ended; returns its state."""

        def ended() -> str:
            view = self.try_get(f"/jobs/{job_id}")
            self.last = view
            return str(view["job"]["state"]) if view and view["job"]["state"] in ENDED else ""

        try:
            return wait_until(ended, f"job {job_id} ends", timeout_s=timeout_s, pause_s=pause_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.last}\n{self.logs()}") from error

    def wait_for_done(self, job_id: int, count: int, *, timeout_s: float = 60.0) -> None:
        """Until at least `count` tasks are done."""

        def seen() -> bool:
            view = self.try_get(f"/jobs/{job_id}")
            return view is not None and view["counts"]["done"] >= count

        wait_until(seen, f"{count} tasks of job {job_id} done", timeout_s=timeout_s, pause_s=0.1)

    def attempts(self, job_id: int) -> list[Any]:
        return list(self.get(f"/jobs/{job_id}/attempts", limit=1000)["items"])

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        told = []
        for path in sorted(self.folder.glob("*.log")):
            told.append(f"--- {path.name}\n{self.log(path.stem)[-3000:]}")
        return "\n".join(told)


def run(*command: str | Path, timeout_s: float = 100.0) -> None:
    """Run a program to its good end."""
    done = subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")


def processes_with(text: str) -> list[psutil.Process]:
    """Living processes whose command line holds `text`; those that are dead but not reaped do not count."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        if any(text in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


def check_accepted(farm: FarmUnderTest, job_id: int) -> None:
    """G2: every task of the job has exactly one accepted attempt, whichever node it was on."""
    accepted = Counter(a["task_id"] for a in farm.attempts(job_id) if a["state"] == "succeeded")
    tasks = [task["id"] for task in farm.get(f"/jobs/{job_id}/tasks", limit=1000)["items"]]
    assert accepted == dict.fromkeys(tasks, 1), (accepted, tasks)
