"""One slot's session host: makes one attempt after the other, and leaves no process of any behind.

Takes `HostRun` and `HostCancel` from its agent, and answers with `HostReady`, `Started`, `HostOutput`,
`Progress` and `Finished`: over its standard input and output with the agent that started it, over its socket
with the one that comes after a crash (`workers/agent_link.py`). Started by `containment.host_command`.
Without a socket it kills everything below it and exits when its input ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import logging
import os
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from farm.model.attempts import PublishedFile
from farm.model.ids import AttemptId
from farm.model.states import Outcome
from farm.model.work import Isolation
from farm.wire.messages import (
    Finished,
    HostEvidence,
    HostOutput,
    HostReady,
    HostRendered,
    HostRun,
    Progress,
    Started,
    StepScript,
)
from workers import containment, plain, staging
from workers.agent_link import AgentLink
from workers.command import BRIEF_S, run_command
from workers.endings import Conclusion, Ending, conclude, one_line
from workers.evidence import FileWatch, Sampler
from workers.output import Output, licence_statuses, parser_for
from workers.processes import TAG
from workers.verify import Unfit, check_files

if TYPE_CHECKING:
    from workers.session import StepSession

_UMASK = 0o022
_ROOT_PREFIX = "ridgeline-host-"
_CLOCK_SLACK_S = 2.0
"""File servers round time stamps down, and their clock is not ours."""
_HEADER_LIMIT = 2000
_STALE_S = 60.0
"""A directory as young as this may belong to a host that has not locked it yet."""
_DIE_LIMIT_S = 5.0
SESSION_IDLE_S = 60.0
"""A session that is kept for the next task holds memory: so long at most, when none comes."""


class Attempt:
    """What one attempt needs and learns, from `HostRun` to `Finished`."""

    def __init__(self, run: HostRun, host: Host) -> None:
        self._run = run
        self._script, self._order = run.script, run.order
        self._host = host
        self._parameters = dict(self._script.parameters)
        self._stage: staging.Stage | None = None
        self._published: tuple[PublishedFile, ...] = ()
        self._published_by: AttemptId | None = None
        self._started_at = time.time()
        self._started = time.monotonic()
        self._ended: float | None = None
        self._exit_code: int | None = None
        self._peak_memory_mib: int | None = None
        self._cpu_s = self._cpu_before_s = 0.0
        self._warnings: list[str] = []
        self._stuck = ""
        self._output: Output | None = None

    def make(self) -> Finished:
        """Run it to its end; afterwards none of its processes is left, or the reason says so."""
        self._cpu_before_s = _collected_cpu_s() + (0.0 if self._host.is_empty else containment.cpu_s())
        try:
            conclusion = self._to_the_end()
        except staging.StagingError as error:
            conclusion = Conclusion(outcome=error.outcome, reason=str(error), is_final=error.is_final)
        except Unfit as error:
            conclusion = self._unfit(error)
        except OSError as error:
            conclusion = Conclusion(outcome=Outcome.NODE_FAULT, reason=f"the session host failed: {error}")
        if self._stage is not None and self._published_by != self._order.attempt_id:
            staging.discard(self._stage)
        ended = self._ended if self._ended is not None else time.monotonic()
        readings = self._output.readings if self._output is not None else None
        warnings = (readings.warnings if readings is not None else []) + self._warnings
        rendering_since = readings.rendering_since if readings is not None else None
        return Finished(
            attempt_id=self._order.attempt_id,
            outcome=conclusion.outcome,
            reason=one_line(conclusion.reason),
            is_final=conclusion.is_final,
            exit_code=self._exit_code,
            files=self._published,
            published_by=self._published_by,
            warnings=tuple(map(one_line, warnings)),
            runtime_s=ended - self._started,
            load_s=None if rendering_since is None else rendering_since - self._started,
            peak_memory_mib=self._peak_memory_mib,
            cpu_s=self._cpu_s,
            stuck=self._stuck,
        )

    def _to_the_end(self) -> Conclusion:
        if not self._host.is_empty:
            stuck = containment.kill_leftovers(limit_s=0, spare=self._host.spared)
            if stuck:
                self._stuck = stuck
                return Conclusion(outcome=Outcome.NODE_FAULT, reason=stuck)
        if self._host.link.stop is not None:
            outcome, reason = self._host.link.stop
            return Conclusion(outcome=outcome, reason=reason)
        if self._script.output is not None and self._script.isolation is Isolation.STAGED:
            adopted = self._open_stage(self._script.output.directory_parameter)
            if adopted is not None:
                self._take(adopted)
                return Conclusion(outcome=Outcome.SUCCEEDED, reason="an earlier attempt had finished it")
        ending, output = self._run_processes()
        self._exit_code, self._peak_memory_mib = ending.exit_code, ending.peak_memory_mib
        conclusion = conclude(ending, output.readings, output.last_lines())
        if conclusion.outcome is Outcome.SUCCEEDED and self._run.asks_before_publishing:
            conclusion = self._ask_the_agent(conclusion)
        if conclusion.outcome is Outcome.JOB_ERROR and ending.exit_code in licence_statuses(
            self._script.kind
        ):
            conclusion = replace(conclusion, outcome=Outcome.LICENCE)
        if conclusion.outcome is Outcome.SUCCEEDED:
            return self._accept(output)
        if ending.stop is not None and self._host.link.takes_output:
            return self._accept_unfinished(output, ending.stop)
        is_own_fault = conclusion.outcome is Outcome.JOB_ERROR and not conclusion.is_final
        if is_own_fault and self._stage is not None and staging.is_full(self._stage.final):
            reason = f"{conclusion.reason} (the disk of {self._stage.shown} is full)"
            return Conclusion(outcome=Outcome.STORAGE, reason=reason)
        return conclusion

    def _ask_the_agent(self, conclusion: Conclusion) -> Conclusion:
        self._host.link.send(HostRendered(attempt_id=self._order.attempt_id))
        refusal = self._host.link.verdict_on(self._order.attempt_id)
        if self._host.link.stop is not None:
            outcome, reason = self._host.link.stop
            return Conclusion(outcome=outcome, reason=reason)
        return Conclusion(outcome=Outcome.JOB_ERROR, reason=refusal) if refusal else conclusion

    def _open_stage(self, parameter: str) -> staging.Publication | None:
        if parameter not in self._parameters:
            raise staging.StagingError(
                Outcome.JOB_ERROR, f"the job has no parameter {parameter!r}", is_final=True
            )
        kind, directory = self._parameters[parameter]
        staging.check_names(self._order.files)
        self._stage = staging.open_stage(
            directory,
            allowed_roots=self._run.allowed_roots,
            job_uid=self._script.job_uid,
            task_id=self._order.task_id,
            generation=self._order.generation,
            attempt_id=self._order.attempt_id,
        )
        may_replace = self._order.replace_existing
        adopted = staging.adopt(self._stage, may_replace=may_replace)
        if adopted is None:
            staging.refuse_overwrite(self._stage, self._order.files, may_replace=may_replace)
        self._parameters[parameter] = (kind, str(self._stage.directory))
        return adopted

    def _run_processes(self) -> tuple[Ending, Output]:
        kept = self._host.session
        directory = self._host.make_directory() if kept is None else kept.directory
        self._host.is_empty = False
        try:
            ending, output = self._run_in(directory)
            self._ended = time.monotonic()
            self._cpu_s = _collected_cpu_s() - self._cpu_before_s
            self._host.is_empty = not containment.descendants()
            if not self._host.is_empty:
                self._cpu_s += containment.cpu_s()
                ending = self._end_leftovers(ending)
            output.close()
            if ending.exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):
                ending = replace(ending, oom_kills=self._host.new_oom_kills())
            return ending, output
        finally:
            if self._host.session is None:
                self._host.leave_directory(directory)

    def _end_leftovers(self, ending: Ending) -> Ending:
        """What the attempt has left running, and has no business to."""
        stuck = containment.kill_leftovers(spare=self._host.spared)
        if not stuck:
            return ending
        self._stuck = stuck
        return replace(ending, stop=None, timeout_s=None, refusal=(Outcome.NODE_FAULT, stuck))

    def _run_in(self, directory: str) -> tuple[Ending, Output]:
        order, script = self._order, self._script
        added = {**self._run.environment, TAG: order.attempt_id}
        added.setdefault("TMPDIR", directory)
        action = self._host.plain_action(script)
        argv = (
            plain.fill(action, self._parameters, order.parameters, directory) if action is not None else None
        )
        self._output = output = Output(
            send_text=lambda text: self._host.link.send(HostOutput(text=text)),
            send_progress=lambda fraction, message: self._host.link.send(
                Progress(attempt_id=order.attempt_id, fraction=fraction, message=message)
            ),
            parser=parser_for(script.kind, order.frames),
            header="" if argv is None else f"$ {shlex.join(argv)}"[:_HEADER_LIMIT],
            reads_directives=argv is not None,
        )
        sampler = Sampler(
            attempt_id=order.attempt_id,
            readings=output.readings,
            tell=lambda evidence: self._host.link.send(HostEvidence(evidence=evidence)),
            files=FileWatch(self._expected()),
        )
        try:
            return self._watched(argv, action, added, directory, output, sampler), output
        finally:
            sampler.files.close()

    def _expected(self) -> list[Path]:
        """Where the attempt's files will be."""
        spec = self._script.output
        if spec is None:
            return []
        directory = Path(self._parameters[spec.directory_parameter][1])
        return [directory / name for name in self._order.files]

    def _watched(
        self,
        argv: list[str] | None,
        action: plain.PlainAction | None,
        added: dict[str, str],
        directory: str,
        output: Output,
        sampler: Sampler,
    ) -> Ending:
        order, script = self._order, self._script
        if action is not None and argv is not None:
            limits = [limit for limit in (action.timeout_s, script.timeout_s) if limit is not None]
            return run_command(
                argv,
                environment=self._host.environment | added,
                directory=directory,
                output=output,
                control=self._host.link,
                sampler=sampler,
                timeout_s=min(limits, default=None),
                when_lasting=self._host.link.flush,
            )
        self._host.link.flush()
        from workers import session  # half a second, and plain steps do without

        kept = self._host.session or session.StepSession(
            order.attempt_id, environment=added, directory=directory
        )
        self._host.session = None
        ending = kept.run(
            session.Work(
                template=script.template,
                step=script.step,
                job_parameters=self._parameters,
                task_parameters=order.parameters,
                timeout_s=script.timeout_s,
            ),
            environment={TAG: order.attempt_id},
            output=output,
            control=self._host.link,
            sampler=sampler,
            keeps=_may_keep(script),
        )
        if kept.is_open:
            self._host.keep(kept, self._run)
        return ending

    def _accept(self, output: Output) -> Conclusion:
        """The processes ended well: look at the files, and publish them."""
        spec, stage, order = self._script.output, self._stage, self._order
        if spec is None:
            return Conclusion(outcome=Outcome.SUCCEEDED)
        if stage is not None and not stage.directory.is_dir():
            return Conclusion(outcome=Outcome.CANCELLED, reason="the job has been tidied away")
        directory = Path(self._parameters[spec.directory_parameter][1])
        with staging.as_storage(stage.shown if stage is not None else str(directory)):
            checked = check_files(
                directory,
                order.files,
                is_image=spec.is_image,
                width=output.readings.width,
                height=output.readings.height,
                newer_than=None if stage is not None else self._started_at - _CLOCK_SLACK_S,
            )
        if stage is None:
            self._published = tuple(replace(file, path=str(directory / file.path)) for file in checked)
            self._published_by = order.attempt_id
        else:
            self._take(staging.publish(stage, checked, may_replace=order.replace_existing))
        return Conclusion(outcome=Outcome.SUCCEEDED)

    def _accept_unfinished(self, output: Output, stop: tuple[Outcome, str]) -> Conclusion:
        """The renderer had to be ended after its work: its files count if they are whole."""
        outcome, reason = stop
        if self._script.output is None:
            return Conclusion(outcome=outcome, reason=reason)
        try:
            conclusion = self._accept(output)
        except Unfit as error:
            return Conclusion(outcome=outcome, reason=f"{reason}; its output cannot be used: {error}")
        self._warnings.append(f"the renderer wrote its files and did not exit: {reason}")
        return conclusion

    def _take(self, publication: staging.Publication) -> None:
        self._published, self._published_by = publication.files, publication.by
        self._warnings += publication.warnings

    def _unfit(self, error: Unfit) -> Conclusion:
        """A bad file: the class depends on whether something hindered its writing."""
        readings = self._output.readings if self._output is not None else None
        hindrance = ""
        if error.is_cut_short:
            hindrance = readings.storage_sign if readings is not None else ""
            if not hindrance and self._stage is not None and staging.is_full(self._stage.final):
                hindrance = f"the disk of {self._stage.shown} is full"
        if hindrance:
            return Conclusion(outcome=Outcome.STORAGE, reason=f"{error}: {hindrance}")
        return Conclusion(outcome=Outcome.JOB_ERROR, reason=str(error))


class Host:
    """The process: what stays between attempts."""

    def __init__(self, link: AgentLink, environment: dict[str, str], root: Path) -> None:
        """environment: for renderers, scrubbed by the agent. root: this process's own directory."""
        self.link = link
        self.environment = environment
        self.session: StepSession | None = None
        """Open after the last task, for the next one of its step."""
        self._session_of: tuple[Any, ...] = ()
        self._brief: tuple[str, str] | None = None
        """The step of the last attempt, if that was a short one."""
        self._root = root
        self.is_empty = False
        """The last attempt has left no process: none of its own, none that is spared."""
        self._plain_of: tuple[dict[str, Any], str] | None = None
        self._plain: plain.PlainAction | None = None
        self._directories = 0
        self._identity: tuple[int, int, int] | None = None
        self._empty: str | None = None
        """A directory that an attempt has left as it found it: making one costs more than looking."""
        self._oom_kills = _oom_kills()

    def serve(self) -> NoReturn:
        """Make attempts until the agent is gone."""
        self.link.send(HostReady())
        while True:
            if self.session is not None and not self.link.wait(SESSION_IDLE_S):
                self._close_session()
            run = self.link.next_run()
            if self.session is not None and self._session_of != _session_key(run):
                self._close_session()
            started = Started(attempt_id=run.order.attempt_id)
            step = run.script.job_uid, run.script.step
            if step == self._brief:
                self.link.hold_back(started)  # it may have ended before anybody has read that
            else:
                self.link.send(started)
            finished = Attempt(run, self).make()
            self._brief = step if finished.runtime_s < BRIEF_S else None
            self.link.send(finished)

    @property
    def spared(self) -> frozenset[int]:
        """Processes that outlive an attempt: the open session's."""
        return frozenset() if self.session is None else self.session.roots

    def keep(self, session: StepSession, run: HostRun) -> None:
        """Leave the session open for tasks like this one."""
        self.session, self._session_of = session, _session_key(run)

    def _close_session(self) -> None:
        session, self.session, self._session_of = self.session, None, ()
        if session is not None:
            session.close(self.link)
            containment.kill_leftovers()
            self.leave_directory(session.directory)

    def plain_action(self, script: StepScript) -> plain.PlainAction | None:
        """As `plain.plain_action`, read once for all attempts of a step that come one after the other."""
        if self._plain_of != (script.template, script.step):
            self._plain = plain.plain_action(script.template, script.step)
            self._plain_of = script.template, script.step
        return self._plain

    def make_directory(self) -> str:
        """An empty, private working directory for the next attempt."""
        directory, self._empty = self._empty, None
        if directory is None:
            self._directories += 1
            directory = os.path.join(self._root, str(self._directories))
            os.mkdir(directory)
            self._identity = _identity(directory)
        return directory

    def leave_directory(self, directory: str) -> None:
        """Take back what `make_directory` gave. Nothing of the attempt runs any more."""
        try:
            is_untouched = _identity(directory) == self._identity and not os.listdir(directory)
        except OSError:
            is_untouched = False
        if is_untouched:
            self._empty = directory
        else:
            shutil.rmtree(directory, ignore_errors=True)

    def new_oom_kills(self) -> int | None:
        """Kills by the kernel for lack of memory since the last question; None: the system does not say."""
        before, self._oom_kills = self._oom_kills, _oom_kills()
        return None if before is None or self._oom_kills is None else self._oom_kills - before


def _may_keep(script: StepScript) -> bool:
    """Whether the step's session may serve other tasks: no environment has seen this attempt's directory."""
    if not script.keeps_sessions:
        return False
    step: dict[str, Any] = next(
        (step for step in script.template.get("steps", ()) if step.get("name") == script.step), {}
    )
    environments = (script.template.get("jobEnvironments"), step.get("stepEnvironments"))
    return script.output is None or f"Param.{script.output.directory_parameter}" not in json.dumps(
        environments
    )


def _session_key(run: HostRun) -> tuple[Any, ...]:
    """Tasks with equal ones may share a session: same step, same devices, same parameters."""
    script = run.script
    private = script.output.directory_parameter if script.output is not None else None
    return (
        script.job_uid,
        script.step,
        sorted(run.environment.items()),
        {name: value for name, value in script.parameters.items() if name != private},
    )


def _identity(directory: str) -> tuple[int, int, int]:
    """Which directory the name means, and who may do what in it."""
    status = os.lstat(directory)
    return status.st_ino, status.st_mode, status.st_uid


def _oom_kills() -> int | None:
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return None


def _collected_cpu_s() -> float:
    """CPU seconds of all that this host has started and that has ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _make_root() -> Path:
    """This host's own directory, locked while it lives; those of dead hosts are removed."""
    parent = Path(tempfile.gettempdir())
    for stale in parent.glob(f"{_ROOT_PREFIX}*"):
        with contextlib.suppress(OSError):
            if stale.lstat().st_uid == os.geteuid() and time.time() - stale.lstat().st_mtime > _STALE_S:
                descriptor = _lock(stale)
                shutil.rmtree(stale, ignore_errors=True)
                os.close(descriptor)
    root = Path(tempfile.mkdtemp(prefix=_ROOT_PREFIX))
    _lock(root)
    return root


def _lock(directory: Path) -> int:
    """Lock the directory for as long as the descriptor is open; raises OSError when somebody else has."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _private_streams() -> tuple[int, int]:
    """Keep the way from and to the agent for ourselves: what a library prints goes to standard error."""
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return incoming, outgoing


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    """A handler, not SIG_IGN: renderers would inherit that."""


def main() -> NoReturn:
    """Entry point of `python -m workers.session_host [SOCKET]`."""
    containment.become_init()
    incoming, outgoing = _private_streams()
    logging.basicConfig(level=logging.WARNING, format="session host: %(message)s", stream=sys.stderr)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore)
    os.umask(_UMASK)
    containment.become_reaper()
    root = _make_root()

    def die() -> NoReturn:
        containment.kill_leftovers(limit_s=_DIE_LIMIT_S)
        shutil.rmtree(root, ignore_errors=True)
        os._exit(0)

    # The agent has scrubbed it: the one thing of the environment that is read here is all of it.
    environment = dict(os.environ)  # noqa: TID251
    gc.freeze()
    address = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    Host(AgentLink(incoming, outgoing, address=address, when_gone=die), environment, root).serve()


if __name__ == "__main__":
    main()
