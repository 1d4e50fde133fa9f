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
from dataclasses import dataclass
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
from workers.command import GRACE_S, Control
from workers.endings import Ending
from workers.evidence import Sampler
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
_log = logging.getLogger(__name__)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One task of a step, in the farm's words."""

    template: Mapping[str, Any]
    step: str
    job_parameters: Parameters
    task_parameters: Parameters
    timeout_s: float | None
    """For the task's action, on top of the template's own timeout."""


class StepSession:
    """A session of one step: environments are entered for the first task, and exited when it closes.

    Every task has the template and the job parameters of the first, but for those that no environment reads
    (the output directory is each attempt's own).
    """

    def __init__(self, session_id: str, *, environment: Mapping[str, str], directory: str) -> None:
        """environment: variables on top of this process's own. directory: for all that it writes."""
        self.directory = directory
        self.roots: frozenset[int] = frozenset()
        """Processes that the environments left running: they and what they start live as long as it."""
        self.is_open = False
        """Another task can be run."""
        self._id = session_id
        self._environment = dict(environment)
        self._session: Session | None = None
        self._run: _Run | None = None
        self._actions: _Actions | None = None

    def run(
        self,
        work: Work,
        *,
        environment: Mapping[str, str],
        output: Output,
        control: Control,
        sampler: Sampler,
        keeps: bool = False,
    ) -> Ending:
        """Run a task. Its own processes may still live when this returns.

        environment: of this task alone. keeps: leave the session open when all has gone well.
        """
        self._actions = actions = _Actions(output, control, sampler)
        _listener.output, _listener.not_found = output, ""
        try:
            try:
                made = self._prepare(work)
            except Exception as error:  # noqa: BLE001  they raise IndexError and TypeError for bad templates
                self.is_open = False
                refusal = (Outcome.JOB_ERROR, f"the template cannot be run: {error}")
                return Ending(command=work.step, refusal=refusal, is_final=True)
            try:
                ending = made.to_the_end(work.timeout_s, environment, keeps=keeps)
                self.roots = made.roots
                self.is_open = bool(made.entered) and keeps
                return ending
            except (RuntimeError, ValueError) as error:  # what the libraries raise on purpose
                self.is_open = False
                return Ending(command=work.step, refusal=(Outcome.JOB_ERROR, str(error)))
        finally:
            if not self.is_open:
                self._clean_up()
            _listener.output = None
            actions.close()

    def close(self, control: Control) -> None:
        """Exit the environments, within `EXIT_AFTER_STOP_LIMIT_S`. What they leave is the caller's to end."""
        if not self.is_open or self._run is None:
            return
        self.is_open = False
        silent = Output(send_text=lambda _text: None, send_progress=lambda _fraction, _message: None)
        self._actions = actions = _Actions(silent, control, Sampler.silent())
        try:
            self._run.leave(actions)
        except (RuntimeError, ValueError) as error:
            _log.warning("a session cannot be closed in order: %s", error)
        finally:
            self._clean_up()
            actions.close()

    def _prepare(self, work: Work) -> _Run:
        decoded = decode_job_template(template=dict(work.template), supported_extensions=EXTENSIONS)
        values = preprocess_job_parameters(
            job_template=decoded,
            job_parameter_values={name: text for name, (_, text) in work.job_parameters.items()},
            # Paths came from another machine: nothing here is relative to anything.
            job_template_dir=Path(),
            current_working_dir=Path(),
            allow_job_template_dir_walk_up=True,
        )
        created = create_job_with_symbol_tables(job_template=decoded, job_parameter_values=values)
        step = next((step for step in created.job.steps if step.name == work.step), None)
        if step is None:
            raise ValueError(f"it has no step {work.step!r}")
        task = {
            name: ParameterValue(type=_read_as(ParameterValueType(kind)), value=text)
            for name, (kind, text) in work.task_parameters.items()
        }
        if self._session is None:
            self._session = Session(
                session_id=self._id,
                job_parameter_values=values,
                job_name=created.job.name,
                callback=self._on_status,
                os_env_vars=self._environment,
                session_root_directory=Path(self.directory),
                revision_extensions=RevisionExtensions(
                    spec_rev=SpecificationRevision.v2023_09,
                    supported_extensions=[extension.value for extension in created.job.extensions or ()],
                ),
            )
        else:
            # The libraries have no other way to say that this task's output directory is another one.
            self._session._job_parameter_values = dict(values)
        assert self._actions is not None
        entered = self._run.entered if self._run is not None else None
        self._run = _Run(self._session, self._actions, created, step, task, entered, self.roots)
        return self._run

    def _on_status(self, session_id: str, status: ActionStatus) -> None:
        if self._actions is not None:
            self._actions.on_status(session_id, status)

    def _clean_up(self) -> None:
        # Their clean-up waits for every process, for ever: first there must be none.
        if self._session is not None and not containment.kill_leftovers():
            self._session.cleanup()


class _Actions:
    """Waits for the end of one action after the other, and ends them when the agent or a limit says so."""

    def __init__(self, output: Output, control: Control, sampler: Sampler) -> None:
        self.is_timed_out = False
        self.sampler = sampler
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


def _read_as(kind: ParameterValueType) -> ParameterValueType:
    """A chunk is a range expression, as other runtimes of the format have it: with `list()`, `len()`. The
    libraries leave it a text."""
    return ParameterValueType.RANGE_EXPR if kind is ParameterValueType.CHUNK_INT else kind


class _Run:
    """One task: environments in, unless they are; task; environments out, unless it keeps them."""

    def __init__(
        self,
        session: Session,
        actions: _Actions,
        created: Any,
        step: Any,
        task: dict[str, ParameterValue],
        entered: list[tuple[Any, str, Any]] | None,
        roots: frozenset[int],
    ) -> None:
        """entered: of the task before in this session; None: it is the first."""
        self.entered: list[tuple[Any, str, Any]] = entered or []
        """Environments to be exited: identifier, name, symbols."""
        self.roots = roots
        """Processes that entering them left running."""
        self._is_first = entered is None
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

    def to_the_end(self, timeout_s: float | None, environment: Mapping[str, str], *, keeps: bool) -> Ending:
        ending = self._enter_all() if self._is_first else None
        if ending is None:
            ending = self._run_task(timeout_s, environment)
        is_well = ending.exit_code == 0 and ending.refusal is None and ending.stop is None
        is_well = is_well and not self._actions.output.readings.fail_message
        if keeps and is_well and self.entered:
            return ending
        after = self._exit_all(hurries=ending.stop is not None or ending.timeout_s is not None)
        if is_well and after:
            ending = self._ending(refusal=(Outcome.JOB_ERROR, after))
        return ending

    def leave(self, actions: _Actions) -> None:
        """Exit the environments in a hurry, with no task at hand."""
        self._actions = actions
        self._exit_all(hurries=True)

    def _enter_all(self) -> Ending | None:
        """Enter the environments; an Ending when one cannot be. Those in `entered` must be exited."""
        for environment, step_name, symbols in self._environments:
            start = partial(self._enter, environment, step_name, symbols)
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
            self.roots = frozenset(containment.descendants())
        return None

    def _enter(self, environment: Any, step_name: str | None, symbols: Any) -> None:
        identifier = self._session.enter_environment(
            environment=environment, step_name=step_name, resolved_symtab=symbols
        )
        self.entered.append((identifier, environment.name, symbols))

    def _run_task(self, timeout_s: float | None, environment: Mapping[str, str]) -> Ending:
        started = time.monotonic()
        status = self._actions.finish(
            self._session,
            lambda: self._session.run_task(
                step_script=self._step.script,
                task_parameter_values=self._task,
                os_env_vars=dict(environment),
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

    def _exit_all(self, *, hurries: bool) -> str:
        """Exit what was entered, last first; the first problem, if any."""
        first_problem = ""
        hurry_until = time.monotonic() + EXIT_AFTER_STOP_LIMIT_S
        while self.entered:
            identifier, name, symbols = self.entered.pop()
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
