"""Steps with environments, embedded files or expressions, run by the OpenJD libraries.

The one module that imports `openjd.sessions`. Imported when the first such step comes (half a second). What
the libraries leave to their user is done here: a limit on every action, a bound on buffered output, the end
of what an action leaves behind, and `openjd_fail` counts as a failure whatever the exit status.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import re
import select
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from openjd.model import (
    ParameterValue,
    ParameterValueType,
    RevisionExtensions,
    SpecificationRevision,
    create_job_with_symbol_tables,
    decode_job_template,
    preprocess_job_parameters,
)
from openjd.sessions import LOG, ActionState, ActionStatus, LogContent, Session, SessionState
from openjd.sessions import _subprocess as session_subprocess

from farm.model.states import Outcome
from workers import containment
from workers.command import GRACE_S, Control, MemorySampler
from workers.endings import Ending
from workers.output import Output
from workers.plain import Parameters

EXTENSIONS = ("TASK_CHUNKING", "REDACTED_ENV_VARS", "FEATURE_BUNDLE_1", "EXPR", "WRAP_ACTIONS")
ENTER_LIMIT_S = 1800.0
"""For an `onEnter` without a timeout of its own; the libraries would wait for ever."""
EXIT_LIMIT_S = 300.0
EXIT_AFTER_STOP_LIMIT_S = 5.0
"""For all `onExit` together when the attempt is being stopped: somebody waits for the slot."""
_SETTLE_S = 0.3
"""When entering environments has left a process behind: a daemon needs a moment until it listens."""
_SETTLE_LIMIT_S = 2.0
"""A busy machine gives it no time to start: longer, as long as it is at work."""
_SETTLE_POLL_S = 0.05
_CALLBACK_LIMIT_S = 5.0
"""For the libraries to notice that a killed process has ended."""
_BUFFERED_LINES = 1000
_QUEUE_POLL_S = 0.001
_SHELL_NOT_FOUND = re.compile(r": exec: (?:line \d+: )?(.+): not found$")
_COMMAND_NOT_FOUND = 127


class _BoundedQueue(queue.Queue[str]):
    """A full one makes `put` wait until it is half empty, so that the two threads do not take turns."""

    def put(self, item: str, block: bool = True, timeout: float | None = None) -> None:
        if self.qsize() >= _BUFFERED_LINES:
            while self.qsize() > _BUFFERED_LINES // 2:
                time.sleep(_QUEUE_POLL_S)
        super().put(item, block, timeout)


# The libraries read a process's output into a queue without bound, faster than they empty it: a flood of
# output would fill the memory. A bound makes the reader, and so the process, wait.
session_subprocess.Queue = _BoundedQueue  # type: ignore[attr-defined, assignment]


class _Listener(logging.Handler):
    """Takes the libraries' log, which is where an action's output appears."""

    def __init__(self) -> None:
        super().__init__()
        self.output: Output | None = None
        self.not_found = ""

    def emit(self, record: logging.LogRecord) -> None:
        output = self.output
        if output is None:
            return
        content = getattr(record, "openjd_log_content", None) or LogContent(0)
        if LogContent.COMMAND_OUTPUT in content:
            line = record.getMessage()
            output.feed_line(line)
            match = _SHELL_NOT_FOUND.search(line)
            if match is not None:
                self.not_found = match[1]
        elif record.levelno >= logging.WARNING or LogContent.EXCEPTION_INFO in content:
            output.note(record.getMessage())


_listener = _Listener()
LOG.addHandler(_listener)
LOG.setLevel(logging.INFO)
LOG.propagate = False


def run_session(
    template: Mapping[str, Any],
    step_name: str,
    job_parameters: Parameters,
    task_parameters: Parameters,
    *,
    session_id: str,
    environment: Mapping[str, str],
    directory: str,
    output: Output,
    control: Control,
    timeout_s: float | None,
) -> Ending:
    """Enter the environments, run the task, exit them in reverse. Processes may still live when this returns.

    environment: variables on top of this process's own. timeout_s: for the task's action, on top of the
    template's own timeout.
    """
    actions = _Actions(output, control)
    try:
        decoded = decode_job_template(template=dict(template), supported_extensions=EXTENSIONS)
        values = preprocess_job_parameters(
            job_template=decoded,
            job_parameter_values={name: text for name, (_, text) in job_parameters.items()},
            # Paths came from another machine: nothing here is relative to anything.
            job_template_dir=Path(),
            current_working_dir=Path(),
            allow_job_template_dir_walk_up=True,
        )
        created = create_job_with_symbol_tables(job_template=decoded, job_parameter_values=values)
        step = next((step for step in created.job.steps if step.name == step_name), None)
        if step is None:
            raise ValueError(f"it has no step {step_name!r}")
        task = {
            name: ParameterValue(type=ParameterValueType(kind), value=text)
            for name, (kind, text) in task_parameters.items()
        }
        session = Session(
            session_id=session_id,
            job_parameter_values=values,
            job_name=created.job.name,
            callback=actions.on_status,
            os_env_vars=dict(environment),
            session_root_directory=Path(directory),
            revision_extensions=RevisionExtensions(
                spec_rev=SpecificationRevision.v2023_09,
                supported_extensions=[extension.value for extension in created.job.extensions or ()],
            ),
        )
    except Exception as error:  # noqa: BLE001  the libraries raise IndexError and TypeError for bad templates
        actions.close()
        refusal = (Outcome.JOB_ERROR, f"the template cannot be run: {error}")
        return Ending(command=step_name, refusal=refusal, is_final=True)
    _listener.output, _listener.not_found = output, ""
    run = _Run(session, actions, created, step, task)
    try:
        return run.to_the_end(timeout_s)
    except (RuntimeError, ValueError) as error:  # what the libraries raise on purpose
        return Ending(command=step_name, refusal=(Outcome.JOB_ERROR, str(error)))
    finally:
        # Their clean-up waits for every process, for ever: first there must be none.
        if not containment.kill_leftovers():
            session.cleanup()
        _listener.output = None
        actions.close()


class _Actions:
    """Waits for the end of one action after the other, and ends them when the agent or a limit says so."""

    def __init__(self, output: Output, control: Control) -> None:
        self.is_timed_out = False
        self.sampler = MemorySampler(time.monotonic())
        self.control = control
        self.output = output
        self._final: ActionStatus | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def close(self) -> None:
        os.close(self._wake)

    def on_status(self, _session_id: str, status: ActionStatus) -> None:
        """The session's callback; comes on any thread."""
        if status.progress is not None or status.status_message:
            fraction = None if status.progress is None else status.progress / 100
            self.output.progress(fraction, status.status_message or "")
        if status.state is not ActionState.RUNNING:
            self._final = status
            os.eventfd_write(self._wake, 1)

    def _has_ended(self) -> bool:
        return self._final is not None

    def finish(
        self, session: Session, start: Callable[[], object], *, limit_s: float, heeds_stop: bool = True
    ) -> ActionStatus | None:
        """Start an action and wait for its end; None when it could not be ended."""
        self._final = None
        start()
        limit_at = time.monotonic() + limit_s
        kill_at = give_up_at = math.inf
        is_stopping = False
        poller = select.poll()
        poller.register(self.control.descriptor, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while not self._has_ended():
            now = time.monotonic()
            is_wanted_dead = heeds_stop and self.control.stop is not None
            if not is_stopping and (is_wanted_dead or now >= limit_at):
                self.is_timed_out |= not is_wanted_dead
                is_stopping, kill_at, limit_at = True, now + GRACE_S, math.inf
                _cancel(session)
            if now >= kill_at:
                containment.kill_leftovers()
                kill_at, give_up_at = math.inf, time.monotonic() + _CALLBACK_LIMIT_S
            if now >= give_up_at:
                return None
            waits = [min(limit_at, kill_at, give_up_at) - now, self.sampler.tick(now)]
            output_wait = self.output.tick(now)
            if output_wait is not None:
                waits.append(output_wait)
            for descriptor, _ in poller.poll(math.ceil(max(0.0, min(waits)) * 1000)):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    self.control.receive()
        return self._final


def _cancel(session: Session) -> None:
    if session.state is SessionState.RUNNING:
        try:
            session.cancel_action(time_limit=timedelta(seconds=GRACE_S))
        except RuntimeError:  # it has ended by itself meanwhile
            pass


class _Run:
    """One attempt: environments in, task, environments out."""

    def __init__(
        self, session: Session, actions: _Actions, created: Any, step: Any, task: dict[str, ParameterValue]
    ) -> None:
        self._session = session
        self._actions = actions
        self._step = step
        self._task = task
        step_symbols = created.step_symbol_tables.get(step.name)
        self._step_symbols = step_symbols
        self._environments = [
            *(
                (environment, None, created.job_symbol_table)
                for environment in created.job.jobEnvironments or ()
            ),
            *((environment, step.name, step_symbols) for environment in step.stepEnvironments or ()),
        ]
        command = str(step.script.actions.onRun.command)
        self._command = step.name if "{{" in command else os.path.basename(command)

    def to_the_end(self, timeout_s: float | None) -> Ending:
        entered: list[tuple[Any, str, Any]] = []
        ending = self._enter_all(entered) or self._run_task(timeout_s)
        after = self._exit_all(entered, hurries=ending.stop is not None or ending.timeout_s is not None)
        is_well = ending.exit_code == 0 and ending.refusal is None and ending.stop is None
        if is_well and after and not self._actions.output.readings.fail_message:
            ending = self._ending(refusal=(Outcome.JOB_ERROR, after))
        return ending

    def _enter_all(self, entered: list[tuple[Any, str, Any]]) -> Ending | None:
        """Enter the environments; an Ending when one cannot be. Those in `entered` must be exited."""
        for environment, step_name, symbols in self._environments:
            start = partial(self._enter, entered, environment, step_name, symbols)
            status = self._actions.finish(self._session, start, limit_s=ENTER_LIMIT_S)
            problem = _problem(status)
            if problem:
                outcome, reason = self._class_of(status, problem)
                return self._ending(refusal=(outcome, f"environment {environment.name}: {reason}"))
        containment.reap()
        if self._environments and containment.descendants():
            deadline = time.monotonic() + _SETTLE_LIMIT_S
            time.sleep(_SETTLE_S)
            while containment.is_busy() and time.monotonic() < deadline:
                time.sleep(_SETTLE_POLL_S)
        return None

    def _enter(
        self, entered: list[tuple[Any, str, Any]], environment: Any, step_name: str | None, symbols: Any
    ) -> None:
        identifier = self._session.enter_environment(
            environment=environment, step_name=step_name, resolved_symtab=symbols
        )
        entered.append((identifier, environment.name, symbols))

    def _run_task(self, timeout_s: float | None) -> Ending:
        started = time.monotonic()
        status = self._actions.finish(
            self._session,
            lambda: self._session.run_task(
                step_script=self._step.script,
                task_parameter_values=self._task,
                step_name=self._step.name,
                resolved_symtab=self._step_symbols,
            ),
            limit_s=math.inf if timeout_s is None else timeout_s,
        )
        if self._actions.is_timed_out and timeout_s is not None:
            return self._ending(timeout_s=timeout_s)
        if status is not None and status.state is ActionState.TIMEOUT:
            return self._ending(timeout_s=time.monotonic() - started)
        if status is None or status.exit_code is None or (status.exit_code == 0 and _problem(status)):
            return self._ending(refusal=self._class_of(status, _problem(status)))
        if status.exit_code == _COMMAND_NOT_FOUND and _listener.not_found:
            return self._ending(refusal=self._class_of(status, ""))
        self._actions.output.readings.fail_message = status.fail_message or ""
        return self._ending(exit_code=status.exit_code)

    def _exit_all(self, entered: list[tuple[Any, str, Any]], *, hurries: bool) -> str:
        """Exit what was entered, last first; the first problem, if any."""
        first_problem = ""
        hurry_until = time.monotonic() + EXIT_AFTER_STOP_LIMIT_S
        while entered:
            identifier, name, symbols = entered.pop()
            hurries = hurries or self._actions.control.stop is not None
            limit_s = max(0.0, hurry_until - time.monotonic()) if hurries else EXIT_LIMIT_S
            start = partial(self._session.exit_environment, identifier=identifier, resolved_symtab=symbols)
            status = self._actions.finish(self._session, start, limit_s=limit_s, heeds_stop=not hurries)
            problem = _problem(status)
            if problem and not first_problem:
                first_problem = f"environment {name} could not be exited: {problem}"
            if status is None:
                break
        return first_problem

    def _class_of(self, status: ActionStatus | None, problem: str) -> tuple[Outcome, str]:
        if status is not None and status.exit_code == _COMMAND_NOT_FOUND and _listener.not_found:
            return Outcome.NODE_FAULT, f"command not found: {_listener.not_found}"
        return Outcome.JOB_ERROR, problem

    def _ending(
        self,
        *,
        exit_code: int | None = None,
        refusal: tuple[Outcome, str] | None = None,
        timeout_s: float | None = None,
    ) -> Ending:
        return Ending(
            command=self._command,
            exit_code=exit_code,
            refusal=refusal,
            timeout_s=timeout_s,
            stop=self._actions.control.stop,
            peak_memory_mib=self._actions.sampler.peak_mib or None,
        )


def _problem(status: ActionStatus | None) -> str:
    """What went wrong in an action, in one line; empty when nothing did."""
    if status is None:
        return "it cannot be ended"
    if status.fail_message:
        return status.fail_message
    if status.state is ActionState.SUCCESS:
        return ""
    if status.state is ActionState.FAILED and status.exit_code:
        return f"exit status {status.exit_code}"
    return {ActionState.TIMEOUT: "timed out", ActionState.CANCELED: "stopped"}.get(status.state, "failed")
