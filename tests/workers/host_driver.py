"""Starts a real session host and plays the agent's part."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from farm.flow.submit import plan_job
from farm.flow.task_space import TaskSpace
from farm.model.ids import AttemptId, JobId, TaskId
from farm.model.stalls import Evidence
from farm.model.states import Outcome
from farm.model.work import Isolation, OutputSpec, Submission
from farm.wire.messages import (
    Finished,
    FromHost,
    HostCancel,
    HostEvidence,
    HostOutput,
    HostReady,
    HostRun,
    Order,
    Progress,
    Started,
    StepScript,
    dump,
    load,
)
from workers import containment
from workers.containment import Containment

RENDERER = Path(__file__).with_name("fake_renderer.py")
DEADLINE_S = 30.0


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Wait until `condition()` is true; fail with the last thing seen."""
    end = time.monotonic() + deadline_s
    while not (seen := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}; the last thing seen was {seen!r}")
        time.sleep(0.01)
    return seen


def is_alive(pid: int) -> bool:
    """A zombie is dead: whoever adopted it is slow to collect it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def outer_pids(tag: str) -> list[int]:
    """Living processes, as seen from here, that carry `FARM_ATTEMPT_ID=tag`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"FARM_ATTEMPT_ID={tag}".encode() in environment.split(b"\0") and is_alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def command_template(command: str, args: tuple[str, ...], **more: Any) -> dict[str, Any]:
    """A template with one step "render" that runs a command; `more` goes into the template."""
    return {
        "specificationVersion": "jobtemplate-2023-09",
        "name": "job",
        "steps": [
            {"name": "render", "script": {"actions": {"onRun": {"command": command, "args": list(args)}}}}
        ],
        **more,
    }


def renderer_template(*words: str, **more: Any) -> dict[str, Any]:
    return command_template(sys.executable, ("-S", str(RENDERER), *words), **more)


def make_run(
    template: dict[str, Any],
    attempt_id: str = "attempt-1",
    *,
    output: Path | None = None,
    files: tuple[str, ...] = (),
    is_image: bool = False,
    isolation: Isolation = Isolation.STAGED,
    parameters: dict[str, tuple[str, str]] | None = None,
    task_parameters: dict[str, tuple[str, str]] | None = None,
    kind: str = "none",
    timeout_s: float | None = None,
    environment: dict[str, str] | None = None,
    allowed_roots: tuple[str, ...] = (),
    replace_existing: bool = False,
    generation: int = 1,
    task_id: int = 7,
    job_uid: str = "",
    keeps_sessions: bool = False,
) -> HostRun:
    """With `output`, the parameter `Output` is that directory."""
    known = dict(parameters or {})
    spec = None
    if output is not None:
        known["Output"] = ("PATH", str(output))
        spec = OutputSpec(step="render", directory_parameter="Output", file_pattern="#", is_image=is_image)
        template = {**template, "parameterDefinitions": [{"name": "Output", "type": "PATH"}]}
    script = StepScript(
        job_id=JobId(1),
        job_uid=job_uid or f"job-{attempt_id}",
        job_name="job",
        step="render",
        kind=kind,
        template=template,
        parameters=known,
        output=spec,
        isolation=isolation,
        timeout_s=timeout_s,
        keeps_sessions=keeps_sessions,
    )
    order = Order(
        attempt_id=AttemptId(attempt_id),
        task_id=TaskId(task_id),
        label="7",
        parameters=task_parameters or {},
        files=files,
        frames=(7,),
        generation=generation,
        replace_existing=replace_existing,
    )
    return HostRun(script=script, order=order, environment=environment or {}, allowed_roots=allowed_roots)


def runs_of(made: Submission, step: str = "render", *, name: str) -> list[HostRun]:
    """What the farm's nodes would be given for each task of the step."""
    plan = plan_job(made, uid=name)
    space = TaskSpace(made.template, plan.parameters, made.outputs)
    script = StepScript(
        job_id=JobId(1),
        job_uid=name,
        job_name=name,
        step=step,
        kind=made.kind,
        template=made.template,
        parameters=plan.parameters,
        output=next((output for output in made.outputs if output.step == step), None),
        isolation=next(each for each in plan.steps if each.name == step).isolation,
        keeps_sessions=made.settings.keep_sessions,
    )
    return [
        HostRun(
            script=script,
            order=Order(
                attempt_id=AttemptId(f"{name}-{step}-{index}"),
                task_id=TaskId(space.steps.index(step) * 1000 + index),
                label=space.label(step, index),
                parameters=space.parameters(step, index),
                files=space.files(step, index),
                frames=space.frames(step, index),
            ),
        )
        for index in space.indexes(step)
    ]


@dataclass
class Seen:
    """What a host has said about one attempt."""

    finished: Finished | None = None
    started: int = 0
    text: str = ""
    texts: list[str] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)


class HostDriver:
    """A context: at its end the host is told that the agent is gone, and must go."""

    def __init__(self, containment_: Containment | None = None, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            containment.host_command(sys.executable, containment_),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
        self._buffer = b""
        self._messages: list[Any] = []
        self.seen = Seen()
        assert isinstance(self.read(), HostReady)

    def __enter__(self) -> HostDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(DEADLINE_S)
            raise
        finally:
            self.process.stdout.close()

    def send(self, message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(dump(message) + b"\n")
        self.process.stdin.flush()

    def read(self, deadline_s: float = DEADLINE_S) -> Any:
        """The next message."""
        assert self.process.stdout is not None
        end = time.monotonic() + deadline_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the host said nothing for {deadline_s} s; so far: {self.seen}"
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            assert data, f"the host went away; so far: {self.seen}"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return load(FromHost, line)

    def start(self, run: HostRun) -> None:
        self.seen = Seen()
        self.send(run)

    def step(self) -> Any:
        """Take one message into `seen`."""
        message = self.read()
        match message:
            case Started():
                self.seen.started += 1
            case HostOutput(text=text):
                self.seen.text += text
                self.seen.texts.append(text)
            case Progress():
                self.seen.progress.append(message)
            case HostEvidence(evidence=evidence):
                self.seen.evidence.append(evidence)
            case Finished():
                self.seen.finished = message
        return message

    def finish(self) -> Finished:
        while self.seen.finished is None:
            self.step()
        return self.seen.finished

    def run(self, run: HostRun) -> Finished:
        self.start(run)
        return self.finish()

    def wait_for_text(self, text: str) -> None:
        while text not in self.seen.text:
            assert self.seen.finished is None, self.seen
            self.step()

    def cancel(
        self,
        reason: str = "cancelled by anna",
        outcome: Outcome = Outcome.CANCELLED,
        *,
        takes_output: bool = False,
    ) -> None:
        self.send(HostCancel(reason=reason, outcome=outcome, takes_output=takes_output))
