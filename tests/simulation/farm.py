"""One seed: a farm, its jobs, its faults until 60 % of the time, and then the proof that all is well."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from farm.control.scheduler import Scheduler
from farm.errors import FarmError, Unavailable
from farm.flow.submit import JobPlan, plan_job
from farm.model.ids import JobId, NodeId
from farm.model.limits import LIMIT_PREFIX, Limit, LimitScope
from farm.model.stalls import StallPolicy
from farm.model.states import Outcome, TaskState
from farm.model.work import JobSettings, OutputSpec, Submission
from farm.settings import Settings, load_settings
from farm.silence import no_log
from farm.store import limits, nodes, steering, submitting
from farm.store.engine import writing
from farm.store.jobs import read_job
from tests.simulation.broker import Broker, Chaos, Link, SimIntake, SimPublisher
from tests.simulation.database import Database
from tests.simulation.kernel import Kernel, Process, Violation
from tests.simulation.node import Machine
from tests.simulation.truth import Truth

FAULTS_S = 90.0
"""60 % of the time that a seed is given before it must begin to end."""
AFTERWARDS_S = 25.0
REST_S = 60.0
LIMIT = "licence"
LIVENESS_S = 600.0
"""Nothing is wrong any more; within this time every task must have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What may go wrong in a seed, and what it may cost."""

    faults: tuple[str, ...] = ()
    every_s: float = 8.0
    """Mean time between faults."""
    doubled: float = 0.0
    delayed: float = 0.0
    most_delay_s: float = 30.0
    frames: int = 4
    """At most, in each step of a job."""
    kinds: tuple[str, ...] = ("staged", "staged", "two")
    """Of jobs. Exclusive ones are ended by their nodes when the farm is away for long: those cost renders."""
    most_seconds: float = 25.0
    """That a renderer takes, on a machine of middling speed."""
    most_renders: float = 1.0
    """For each task; 1.0: nothing may be rendered twice."""
    share: float = 1.0
    """Of seeds."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the farm, other than usual."""
    is_shared: bool = False
    """Jobs take of the farm's limits, or wait for other jobs, whole or frame by frame."""


_ALL = (
    "scheduler paused", "scheduler killed", "scheduler cut off",
    "agent paused", "agent killed", "agent restarted", "agent drained",
    "node loses power", "node suspended", "node cut off", "node deaf", "node dumb", "confirms lost",
    "node's clock jumps", "node's disk slow", "node's disk fails", "host killed", "renderer fails",
    "broker killed", "broker wiped",
    "database away", "commits in doubt", "database's clock jumps",
    "person cancels", "person requeues", "person submits", "person releases",
)  # fmt: skip

_KINDS = ("staged", "staged", "two", "exclusive")

PROFILES: dict[str, Profile] = {
    "storm": Profile(
        faults=_ALL, doubled=0.1, delayed=0.1, kinds=_KINDS, most_renders=8.0, every_s=6.0, share=6
    ),
    "calm": Profile(kinds=_KINDS, share=1),
    "messages": Profile(doubled=0.3, delayed=0.2, most_delay_s=4.0, most_seconds=5.0, share=1),
    "short": Profile(doubled=0.2, delayed=0.2, most_delay_s=3.0, most_seconds=0.25, frames=12, share=0.5),
    "restarts": Profile(faults=("agent restarted",), every_s=5.0, share=1),
    "scheduler": Profile(
        faults=("scheduler paused", "scheduler killed", "commits in doubt"), doubled=0.1, every_s=6.0, share=1
    ),
    "database": Profile(faults=("database away", "commits in doubt"), share=0.5),
    "broker": Profile(faults=("broker killed", "confirms lost"), share=0.5),
    "nodes": Profile(
        faults=("agent killed", "node loses power", "agent paused", "node suspended", "node cut off"),
        kinds=_KINDS,
        most_renders=6.0,
        share=1,
    ),
    "exclusive": Profile(
        faults=("agent killed", "agent paused", "node suspended", "node cut off", "node loses power"),
        kinds=("exclusive",),
        delayed=0.1,
        most_renders=6.0,
        every_s=5.0,
        share=1,
    ),
    "cut": Profile(
        faults=("node cut off", "node deaf", "node dumb"),
        most_seconds=60.0,
        most_renders=4.0,
        every_s=4.0,
        share=0.5,
    ),
    "fences": Profile(
        faults=("node cut off", "node deaf", "node dumb"),
        kinds=("exclusive",),
        most_seconds=60.0,
        most_renders=6.0,
        every_s=4.0,
        share=0.5,
    ),
    "requeues": Profile(
        faults=("person requeues", "host killed", "node's disk fails"),
        most_seconds=6.0,
        most_renders=8.0,
        every_s=2.0,
        share=1,
    ),
    "clocks": Profile(
        faults=("node's clock jumps", "database's clock jumps"), kinds=_KINDS, every_s=4.0, share=0.5
    ),
    "people": Profile(
        faults=("person cancels", "person requeues", "person submits", "scheduler killed"),
        most_renders=1.5,
        share=1,
    ),
    "shared": Profile(
        faults=(
            "person changes", "person changes", "limit changes", "person cancels tasks", "person requeues",
            "person submits", "person submits", "person submits", "person drains node",
            "person removes node", "scheduler paused", "scheduler killed", "commits in doubt",
            "agent restarted", "node cut off",
        ),
        kinds=("staged", "two", "exclusive"),
        frames=6,
        most_renders=6.0,
        every_s=3.0,
        share=2,
        settings={"preempt_from": 60},
        is_shared=True,
    ),
    "stalls": Profile(
        faults=(
            "renderer hangs", "renderer hangs", "renderer hangs", "renderer does not exit", "agent killed",
            "agent restarted", "node cut off", "node loses power", "scheduler killed", "person requeues",
            "person cancels",
        ),
        kinds=_KINDS,
        most_renders=6.0,
        every_s=4.0,
        share=1,
        settings={"stall_after_s": 5.0},
    ),
}  # fmt: skip


@dataclass(slots=True)
class Result:
    seed: int
    profile: str
    violation: str = ""
    renders_per_task: float = 0.0
    tasks: int = 0
    steps: int = 0
    simulated_s: float = 0.0
    done_after_s: float = 0.0
    """From the end of the faults to the last task done."""
    digest: float = 0.0
    """The same for the same history."""


@cache
def planned(frames: int, kind: str, max_retries: int, takes: int = 0) -> tuple[Submission, JobPlan]:
    """Planned once: what is tested is not the parser of templates."""
    directory = {"name": "OutputDir", "type": "PATH", "objectType": "DIRECTORY", "dataFlow": "OUT"}

    def step(name: str, needs: Sequence[str] = ()) -> dict[str, Any]:
        return {
            "name": name,
            "parameterSpace": {
                "taskParameterDefinitions": [{"name": "Frame", "type": "INT", "range": f"1-{frames}"}]
            },
            "script": {
                "actions": {
                    "onRun": {"command": "render", "args": ["{{Task.Param.Frame}}", "{{Param.OutputDir}}"]}
                }
            },
            **({"dependencies": [{"dependsOn": n} for n in needs]} if needs else {}),
        }

    steps = {
        "staged": [step("run")],
        "exclusive": [step("run")],
        "two": [step("run"), step("after", ["run"])],
    }[kind]
    outputs = tuple(
        OutputSpec(
            step=s["name"],
            directory_parameter="OutputDir",
            file_pattern=f"{s['name']}_####.dat",
            frames_parameter="Frame",
            is_image=False,
        )
        for s in steps
        if kind != "exclusive"
    )
    submission = Submission(
        name=kind,
        template={
            "specificationVersion": "jobtemplate-2023-09",
            "name": kind,
            "parameterDefinitions": [directory],
            "steps": steps,
        },
        parameters={"OutputDir": "/out"},
        outputs=outputs,
        settings=JobSettings(
            user="anna",
            max_retries=max_retries,
            max_failed_tasks=1_000,
            limits={LIMIT: takes} if takes else {},
        ),
    )
    return submission, plan_job(submission, uid="-")


class _Stop:
    """In place of the event that ends a scheduler."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        # One that stands by looks every second: a third of the looks makes seeds a sixth cheaper.
        self._kernel.sleep(3.0 if seconds == 1.0 else seconds)
        return False


@dataclass
class _Scheduling:
    """A scheduler's process, over its lives."""

    name: str
    link: Link = field(default_factory=Link)
    process: Process | None = None
    intake: SimIntake | None = None


class Farm:
    def __init__(
        self, seed: int, database: Database, folder: Path, *, profile: str = "", tracing: bool = False
    ):
        self.kernel = kernel = Kernel(seed, tracing=tracing)
        draw = kernel.draw
        names = list(PROFILES)
        drawn = draw.choices(names, [PROFILES[n].share for n in names])[0]
        self.profile_name = profile or drawn
        self.profile = chosen = PROFILES[self.profile_name]
        self.chaos = Chaos(doubled=chosen.doubled, delayed=chosen.delayed, most_delay_s=chosen.most_delay_s)
        self.database = database
        self.folder = folder
        self.settings = _settings().model_copy(update=chosen.settings)
        self.truth = Truth(kernel, database)
        self.truth.keeps_logs = self.profile_name == "calm"
        self.truth.tells_evidence = "stall_after_s" in chosen.settings
        self.truth.most_seconds = chosen.most_seconds
        self.truth.fence_s = self.settings.fence_s + self.settings.kill_grace_s + 1.0
        database.begin_seed(kernel, self.truth.committed)
        database.state.draw = random.Random(seed)
        self.broker = Broker(kernel, self.chaos)
        self.machines = [
            Machine(
                kernel, self.broker, self.truth, self.settings, folder / f"node{i}", draw.choice((1, 1, 2))
            )
            for i in range(draw.choice((2, 3, 3)))
        ]
        self.schedulers = [_Scheduling(f"scheduler{i}") for i in range(2)]
        self.is_faulty = True
        self._number = itertools.count(1)
        self._unanswered = 0
        """Submits whose clients still ask."""

    def run(self) -> Result:
        kernel, draw = self.kernel, self.kernel.draw
        kernel.say(f"profile {self.profile_name}, {[m.slots for m in self.machines]} slots")
        if self.profile.is_shared:
            self._ask(lambda db: limits.put(db, Limit(name=LIMIT, amount=draw.randint(1, 3))))
        for machine in self.machines:
            kernel.at(draw.uniform(0, 1), machine.start_agent)
        for scheduling in self.schedulers:
            kernel.at(draw.uniform(0, 1), self._start_scheduler, scheduling)
        for _ in range(draw.choice((1, 1, 2))):
            self._submit(f"key{next(self._number)}")
        if self.profile.faults:
            kernel.at(draw.expovariate(1 / self.profile.every_s), self._fault)
        is_over = self._is_over
        if kernel.run(is_over, FAULTS_S) and self.profile.faults:
            # Late messages and stale processes may still do harm.
            kernel.run(lambda: False, min(AFTERWARDS_S, FAULTS_S - (kernel.now - kernel.begun_at)))
        self._heal()
        healed_at = kernel.now
        self.truth.has_changed = True
        kernel.run(is_over, LIVENESS_S)
        self._rest()
        self.truth.check_end(most_renders=self.profile.most_renders, is_calm=self.profile_name in ("calm",))
        return Result(
            seed=0,
            profile=self.profile_name,
            renders_per_task=self.truth.renders_per_task(),
            tasks=len(self.truth.starts),
            steps=kernel.steps,
            simulated_s=kernel.now - kernel.begun_at,
            done_after_s=max(self.truth.done_at - healed_at, 0.0),
            digest=draw.random(),
        )

    def _is_over(self) -> bool:
        return not self._unanswered and self.truth.is_over()

    def close(self) -> None:
        """End what still runs and close its files."""
        self.kernel.close()
        for machine in self.machines:
            machine.kill_agent()

    def _rest(self) -> None:
        """Let reports be taken, messages be sent and renderers that nobody wants be stopped."""
        ask = self.database.ask

        def is_quiet() -> bool:
            if self.truth.renderings or ask("SELECT 1 FROM outbox LIMIT 1"):
                return False
            return not ask(
                "SELECT 1 FROM attempt WHERE state IN ('assigned', 'running', 'cancelling') LIMIT 1"
            )

        for _ in range(int(REST_S / 2)):
            self.kernel.run(lambda: False, 2.0)
            if is_quiet():
                return

    # --- schedulers ---

    def _start_scheduler(self, scheduling: _Scheduling) -> None:
        if scheduling.process is not None and scheduling.process.is_alive:
            return
        kernel = self.kernel
        intake = SimIntake(self.broker, scheduling.link)
        settings = self.settings.model_copy(update={"node_name": scheduling.name})

        def main() -> None:
            scheduler = Scheduler(
                self.database.engine,
                settings,
                intake=intake,  # type: ignore[arg-type]
                publisher=SimPublisher(self.broker, scheduling.link),  # type: ignore[arg-type]
                clock=lambda: kernel.now,
                new_id=kernel.new_id,
            )
            scheduler.run(_Stop(kernel))  # type: ignore[arg-type]

        scheduling.intake = intake
        scheduling.process = Process(kernel, scheduling.name, main)
        scheduling.process.on_end = lambda: self._scheduler_ended(scheduling, intake)

    def _scheduler_ended(self, scheduling: _Scheduling, intake: SimIntake) -> None:
        """It was killed: the broker gives its messages to the next, and somebody starts it again."""
        intake.close()
        self.kernel.at(
            self.kernel.draw.uniform(1, 30) if self.is_faulty else 1.0, self._start_scheduler, scheduling
        )

    # --- people ---

    def _submit(self, key: str) -> None:
        draw = self.kernel.draw
        kind = draw.choice(self.profile.kinds)
        frames = draw.randint(1, self.profile.frames)
        takes = draw.choice((0, 0, 1, 2)) if self.profile.is_shared else 0
        submission, plan = planned(frames, kind, 3, takes)
        uid = self.kernel.new_id()
        output = str(self.folder / f"out-{uid[:8]}")
        outputs = (output,) if plan.output_directories else ()
        given = {"OutputDir": ("PATH", output)}
        plan = replace(plan, uid=uid, parameters=given, output_directories=outputs)
        submission = replace(submission, parameters={"OutputDir": output})
        if self.profile.is_shared:
            submission = replace(submission, settings=self._drawn_settings(submission.settings))
        if self.truth.tells_evidence and kind != "exclusive":
            on_stall = draw.choice(
                (StallPolicy.COPY, StallPolicy.COPY, StallPolicy.MIGRATE, StallPolicy.KILL)
            )
            submission = replace(submission, settings=replace(submission.settings, on_stall=on_stall))
        self._unanswered += 1
        self._post(submission, plan, key)

    def _drawn_settings(self, settings: JobSettings) -> JobSettings:
        """Priority, pre-emption, another job to wait for."""
        draw = self.kernel.draw
        others = list(self.truth.promised.values())
        return replace(
            settings,
            priority=draw.choice((20, 50, 90)),
            preempts=draw.random() < 0.8,
            is_paused=draw.random() < 0.1,
            max_running=draw.choice((None, None, 1, 2)),
            order=draw.choice(("", "reverse", "first-middle-last")),
            depends_on=(JobId(draw.choice(others)),) if others and draw.random() < 0.4 else (),
        )

    def _post(self, submission: Submission, plan: JobPlan, key: str) -> None:
        """What a client does: the same request with the same key, until it has an answer."""
        state = self.database.state
        try:
            if state.away_until > self.kernel.now:
                raise Unavailable("the database is away")
            with writing(self.database.engine) as db:
                job_id, _ = submitting.submit(db, submission, plan, actor="anna", key=key, digest="d")
            if self.is_faulty and self.profile.faults and self.kernel.draw.random() < 0.2:
                raise Unavailable("the answer was lost")
        except Unavailable:
            self.kernel.at(1.0, self._post, submission, plan, key)
            return
        self._unanswered -= 1
        self.truth.has_changed = True
        self.truth.promised[key] = job_id
        for (task_id,) in self.database.ask("SELECT id FROM task WHERE job_id = ?", job_id):
            if self.profile.faults and self.kernel.draw.random() < 0.15:
                kinds = (Outcome.JOB_ERROR, Outcome.JOB_ERROR, Outcome.NODE_FAULT, Outcome.STORAGE)
                count = self.kernel.draw.randint(1, 2)
                self.truth.failures_left[task_id] = [self.kernel.draw.choice(kinds) for _ in range(count)]

    def _ask_of_job(self, change: Callable[[Any, JobId], object]) -> None:
        ids = [row[0] for row in self.database.ask("SELECT id FROM job ORDER BY id")]
        if ids and self.database.state.away_until <= self.kernel.now:
            self._ask(lambda db: change(db, JobId(self.kernel.draw.choice(ids))))

    def _ask(self, change: Callable[[Any], object]) -> None:
        """What a server does for a person, in a transaction of its own."""
        if self.database.state.away_until > self.kernel.now:
            return
        try:
            with writing(self.database.engine) as db:
                change(db)
        except FarmError as error:
            self.kernel.say(f"refused: {error}")

    # --- faults ---

    def _fault(self) -> None:
        if not self.is_faulty:
            return
        draw = self.kernel.draw
        self.kernel.at(draw.expovariate(1 / self.profile.every_s), self._fault)
        what = draw.choice(self.profile.faults)
        machine, scheduling = draw.choice(self.machines), draw.choice(self.schedulers)
        seconds = draw.choice((draw.uniform(0.1, 6.0), draw.uniform(1.0, 45.0), draw.uniform(20.0, 80.0)))
        self.kernel.say(f"FAULT {what}: {machine.node_id} / {scheduling.name}, {seconds:.1f} s")
        getattr(self, "_" + what.replace("'s", "").replace(" ", "_"))(machine, scheduling, seconds)

    def _scheduler_paused(self, _: Machine, scheduling: _Scheduling, seconds: float) -> None:
        if scheduling.process is not None:
            scheduling.process.trouble = (self.kernel.draw.randrange(8), "pause", min(seconds, 40.0))

    def _scheduler_killed(self, _: Machine, scheduling: _Scheduling, seconds: float) -> None:
        if scheduling.process is not None:
            scheduling.process.trouble = (self.kernel.draw.randrange(8), "kill", 0.0)

    def _scheduler_cut_off(self, _: Machine, scheduling: _Scheduling, seconds: float) -> None:
        until = self.kernel.now + min(seconds, 30.0)
        scheduling.link.cannot_hear_until = scheduling.link.cannot_send_until = until

    def _agent_paused(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        if machine.agent is not None:
            machine.agent.pause(seconds)

    def _agent_killed(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        machine.kill_agent()
        self.kernel.at(seconds, machine.start_agent)

    def _agent_restarted(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        """It comes back before its lease is over: what it had started goes on."""
        machine.kill_agent()
        self.kernel.at(min(seconds, 10.0), machine.start_agent)

    def _agent_drained(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        """SIGTERM; whoever started it waits a while, and starts it again."""
        if machine.agent is not None:
            machine.agent.drain(min(seconds, 10.0))
            self.kernel.at(min(seconds, 10.0) + 5.0, self._restart, machine, machine.agent)

    def _restart(self, machine: Machine, agent: object) -> None:
        if machine.agent is agent:
            machine.kill_agent()
            self.kernel.at(1.0, machine.start_agent)

    def _node_loses_power(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        machine.lose_power()
        self.kernel.at(seconds, machine.start_agent)

    def _node_suspended(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        machine.suspend(seconds)

    def _node_cut_off(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        machine.link.cannot_hear_until = machine.link.cannot_send_until = self.kernel.now + seconds

    def _node_deaf(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        machine.link.cannot_hear_until = self.kernel.now + seconds

    def _node_dumb(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        machine.link.cannot_send_until = self.kernel.now + seconds

    def _confirms_lost(self, machine: Machine, scheduling: _Scheduling, seconds: float) -> None:
        link = self.kernel.draw.choice((machine.link, scheduling.link))
        link.loses_confirms_until = self.kernel.now + min(seconds, 10.0)

    def _node_clock_jumps(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        machine.wall_error_s += self.kernel.draw.choice((-1e6, -3_600.0, -30.0, 30.0, 3_600.0, 1e6))

    def _node_disk_slow(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        machine.slow_disk_until = self.kernel.now + seconds

    def _node_disk_fails(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        machine.disk_fails_until = self.kernel.now + min(seconds, 15.0)

    def _host_killed(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        """By the kernel, for lack of memory; now, or in the middle of publishing."""
        if machine.agent is not None and machine.agent.hosts:
            host = machine.agent.hosts[self.kernel.draw.choice(sorted(machine.agent.hosts))]
            if self.kernel.draw.random() < 0.5:
                host.process.trouble = (self.kernel.draw.randrange(8), "kill", 0.0)
            else:
                host.die("killed")

    def _renderer_fails(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        for rendering in self.truth.renderings.values():
            if not self.truth.failed[rendering.task_id]:
                self.truth.failures_left.setdefault(rendering.task_id, [Outcome.JOB_ERROR])
                return

    def _broker_killed(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        self.broker.die(min(seconds, 45.0))

    def _broker_wiped(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        if self.kernel.draw.random() < 0.3:
            self.broker.wipe(min(seconds, 20.0))

    def _database_away(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        self.database.state.away_until = self.kernel.now + min(seconds, 45.0)

    def _commits_in_doubt(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        self.database.state.commits_in_doubt = self.kernel.draw.randint(1, 3)

    def _database_clock_jumps(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        self.database.state.clock_error_s += self.kernel.draw.uniform(-8.0, 8.0)

    def _person_cancels(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        if self.kernel.draw.random() < 0.4:
            self._ask_of_job(
                lambda db, job_id: steering.cancel(db, job_id, actor="anna", reason="enough") and None
            )

    def _person_requeues(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        states = self.kernel.draw.choice(([TaskState.DONE], [TaskState.FAILED, TaskState.CANCELLED]))

        def requeue(db: Any, job_id: JobId) -> None:
            self.truth.requeued.add(job_id)
            steering.retry(db, job_id, actor="anna", states=states)

        self._ask_of_job(requeue)

    def _person_releases(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        def release(db: Any, job_id: JobId) -> None:
            held = self.database.ask("SELECT id FROM task WHERE job_id = ? AND state = 'held'", job_id)
            self.truth.released |= {row[0] for row in held}
            self.truth.requeued |= {job_id} if held else set()
            steering.retry(db, job_id, actor="anna", states=[TaskState.HELD])

        self._ask_of_job(release)

    def _person_submits(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        if len(self.truth.promised) < 4:
            self._submit(f"key{next(self._number)}")

    def _person_changes(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        draw = self.kernel.draw
        values: dict[str, Any] = draw.choice(
            (
                {"is_paused": True},
                {"is_paused": False},
                {"priority": draw.choice((10, 60, 90)), "preempts": True},
                {"max_running": draw.choice((None, 1, 2))},
                {"order": draw.choice(("reverse", "forward", "every-2"))},
                {"limits": {LIMIT: draw.choice((1, 2))}},
                {"limits": {}},
            )
        )

        def change(db: Any, job_id: JobId) -> None:
            if "limits" in values:
                amounts = tuple((LIMIT_PREFIX + name, float(n)) for name, n in values["limits"].items())
                for step in read_job(db, job_id).steps:
                    limits.need_otherwise(db, step, amounts)
            steering.change(db, job_id, values, actor="anna", text="changed")

        self._ask_of_job(change)

    def _person_cancels_tasks(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        draw = self.kernel.draw

        def cancel(db: Any, job_id: JobId) -> None:
            ids = [row[0] for row in self.database.ask("SELECT id FROM task WHERE job_id = ?", job_id)]
            chosen = draw.sample(ids, draw.randint(1, len(ids)))
            steering.cancel(db, job_id, actor="anna", reason="not these", task_ids=chosen)

        self._ask_of_job(cancel)

    def _limit_changes(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        limit = Limit(
            name=LIMIT, amount=self.kernel.draw.randint(0, 4), per=self.kernel.draw.choice(list(LimitScope))
        )
        self._ask(lambda db: limits.put(db, limit))

    def _person_drains_node(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        is_drained = self.kernel.draw.random() < 0.5
        self._ask(lambda db: nodes.drain(db, machine.node_id, is_drained=is_drained, actor="anna"))

    def _person_removes_node(self, machine: Machine, _: _Scheduling, seconds: float) -> None:
        self._ask(lambda db: nodes.remove(db, machine.node_id, actor="anna"))

    def _renderer_hangs(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        self._hang(is_done=False)

    def _renderer_does_not_exit(self, _: Machine, __: _Scheduling, seconds: float) -> None:
        self._hang(is_done=True)

    def _hang(self, *, is_done: bool) -> None:
        """One renderer of a task, once: what hangs everywhere never ends."""
        for host, rendering in self.truth.renderings.items():
            if rendering.task_id not in self.truth.hung:
                self.truth.hung.add(rendering.task_id)
                host.hang(is_done=is_done)
                return

    def _heal(self) -> None:
        """Everything works from now on; what was down is started, and nobody holds anything back."""
        kernel = self.kernel
        kernel.say("HEALED")
        self.is_faulty = False
        self.chaos.doubled = self.chaos.delayed = 0.0
        self.broker.away_until = min(self.broker.away_until, kernel.now)
        state = self.database.state
        state.away_until = 0.0
        state.commits_in_doubt = 0
        for machine in self.machines:
            machine.link.cannot_hear_until = machine.link.cannot_send_until = 0.0
            machine.link.loses_confirms_until = 0.0
            machine.disk_fails_until = machine.slow_disk_until = 0.0
            machine.start_agent()
        for process in kernel.processes:
            process.trouble = None
        for scheduling in self.schedulers:
            scheduling.link.cannot_hear_until = scheduling.link.cannot_send_until = 0.0
            scheduling.link.loses_confirms_until = 0.0
            self._start_scheduler(scheduling)
        if self.profile.is_shared:
            self._let_all_go_on()
        self._wake_the_copied()

    def _wake_the_copied(self) -> None:
        """`copy` ends nothing: when every slot hangs, somebody has to see to it."""
        for host, rendering in self.truth.renderings.items():
            policy = self.database.ask(
                "SELECT json_extract(j.settings, '$.on_stall') FROM job j JOIN task t ON t.job_id = j.id"
                " WHERE t.id = ?",
                rendering.task_id,
            )[0][0]
            if policy == StallPolicy.COPY:
                host.go_on()

    def _let_all_go_on(self) -> None:
        with writing(self.database.engine) as db:
            limits.put(db, Limit(name=LIMIT, amount=2))
            for (job_id,) in self.database.ask("SELECT id FROM job WHERE is_paused"):
                steering.change(db, JobId(job_id), {"is_paused": False}, actor="anna", text="resumed")
            for (node_id,) in self.database.ask("SELECT id FROM node WHERE is_drained"):
                nodes.drain(db, NodeId(node_id), is_drained=False, actor="anna")
            # A job waits for ever for one that did not get done: somebody has to give it up.
            for (job_id,) in self.database.ask(
                "SELECT d.job_id FROM job_dependency d JOIN job n ON n.id = d.needs_job_id"
                " WHERE n.state <> 'done' ORDER BY 1"
            ):
                steering.cancel(db, JobId(job_id), actor="anna", reason="no longer wanted")


@cache
def _settings() -> Settings:
    # An idle scheduler's looks cost most of a seed's time; messages wake it anyway.
    return load_settings(environment={}, idle_tick_s=2.0, state_dir=Path("/nonexistent"))


@cache
def new_database(*, is_short: bool = True) -> Database:
    return Database(is_short=is_short)


def run_seed(
    seed: int, *, profile: str = "", tracing: bool = False, database: Database | None = None
) -> Result:
    """Never raises for what the farm does: a violation is in the result."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        nullcontext() if tracing else no_log(),  # of thousands of faults
        tempfile.TemporaryDirectory(prefix="farm-simulation-", dir=base) as folder,
        closing(
            Farm(seed, database or new_database(), Path(folder), profile=profile, tracing=tracing)
        ) as farm,
    ):
        try:
            result = farm.run()
        except Violation as violation:
            result = Result(seed=seed, profile=farm.profile_name, violation=str(violation))
        except Exception as error:
            if tracing:
                raise
            result = Result(
                seed=seed, profile=farm.profile_name, violation=f"{type(error).__name__}: {error}"
            )
    result.seed = seed
    return result
