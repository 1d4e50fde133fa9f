"""What really happens, seen from outside, and what must never be: the invariants.

Only rows, files and running renderers are looked at, never the state of the code under test.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.flow.report import MAX_FAULTS, MAX_STARTS
from farm.model.stalls import Origin
from farm.model.states import ATTEMPT_MOVES, TASK_MOVES, AttemptState, Outcome, TaskState
from farm.model.work import Isolation
from farm.wire.messages import Order, StepScript
from tests.simulation.database import Change, Database
from tests.simulation.kernel import Kernel, Violation

if TYPE_CHECKING:
    from tests.simulation.node import Host

START_S = 2.0
LIVE = ("assigned", "running", "cancelling")
_TASK_LAW = {str(old): {str(new) for new in news} for old, news in TASK_MOVES.items()}
_ATTEMPT_LAW = {str(old): {str(new) for new in news} for old, news in ATTEMPT_MOVES.items()}


@dataclass(slots=True)
class Rendering:
    attempt_id: str
    task_id: int
    is_exclusive: bool
    since: float


class Truth:
    def __init__(self, kernel: Kernel, database: Database) -> None:
        self.kernel = kernel
        self.database = database
        self.renderings: dict[Host, Rendering] = {}
        self.starts: Counter[int] = Counter()
        """Renderers started, by task."""
        self.begun: dict[str, object] = {}
        """Attempt to the machine that has started it."""
        self.failures_left: dict[int, list[Outcome]] = {}
        self.failed: Counter[int] = Counter()
        """Renderers that failed by themselves, by task."""
        self.seconds: dict[int, float] = {}
        self.most_seconds = 25.0
        self.keeps_logs = False
        self.fence_s = 0.0
        self.leased_at: dict[str, float] = {}
        self.slowest_start_s = 0.0
        """From a lease to its renderer."""
        self.requeued: set[int] = set()
        """Jobs whose done tasks a person has let run again."""
        self.asked_anew = 0
        """How often people had a task that was started before done again."""
        self.released: set[int] = set()
        """Tasks whose held attempt a person has given up."""
        self.promised: dict[str, int] = {}
        """Idempotency key to the job that its client was told."""
        self.tells_evidence = False
        """Heartbeats say what renderers do."""
        self.hung: set[int] = set()
        """Tasks of which a renderer has hung."""
        self.has_changed = True
        self.done_at = 0.0

    # --- what rows do ---------------------------------------------------------------------------------

    def committed(self, changes: list[Change]) -> None:
        """Called with each transaction's changes, just before they count."""
        self.has_changed = True
        process = self.kernel.current
        now = self.database.now()
        for change in changes:
            if self.kernel.tracing:
                who = process.name if process is not None else "a person"
                what = f"{change.what} {str(change.id)[:8]}"
                self.kernel.say(f"{who}: {what} {change.old} -> {change.new} {change.second or ''}")
            if change.what == "task":
                self._task_changed(change, by_person=process is None)
            elif change.what == "attempt":
                self._attempt_changed(change, now)
            elif change.new not in LIVE:
                raise Violation(
                    f"I8: the lease of attempt {change.id[:8]}, which is {change.new}, was renewed"
                )
        if process is not None:
            (lead,) = self.database.ask("SELECT holder, until FROM leader") or (("nobody", 0.0),)
            if not lead[0].startswith(process.name) or lead[1] <= now:
                raise Violation(
                    f"I7: {process.name} wrote tasks while {lead[0]} leads until {lead[1] - now:+.1f} s"
                )

    def _task_changed(self, change: Change, *, by_person: bool) -> None:
        if change.new != change.old and change.new not in _TASK_LAW[change.old]:
            raise Violation(f"I4: task {change.id} went from {change.old} to {change.new}")
        if change.old == TaskState.DONE and not by_person:
            raise Violation(f"I5: task {change.id} was done and became {change.new}")
        if by_person and change.new == TaskState.READY and self.starts[change.id]:
            self.asked_anew += 1
        if change.new == TaskState.ASSIGNED:
            self._check_parents(change.id)
        if change.new == TaskState.HELD:
            self._check_fenced(change.second)
        if change.new == TaskState.DONE:
            self.done_at = self.kernel.now

    def _attempt_changed(self, change: Change, now: float) -> None:
        if change.old == "":
            self._check_given(change)
            return
        if change.new not in _ATTEMPT_LAW[change.old]:
            raise Violation(f"I4: attempt {change.id[:8]} went from {change.old} to {change.new}")
        if change.new == AttemptState.LOST and change.second.endswith("is silent") and change.first > now:
            raise Violation(
                f"I8: attempt {change.id[:8]} was given up {change.first - now:.1f} s before its lease ended"
            )

    def _check_given(self, change: Change) -> None:
        """What holds at the moment at which a task is given out."""
        live = self.database.ask(
            "SELECT a.id, s.isolation, a.node_id FROM attempt a JOIN attempt new ON new.id = ?"
            " JOIN step s ON s.id = a.step_id"
            " WHERE a.task_id = ? AND a.id <> new.id AND a.state IN ('assigned', 'running', 'cancelling')"
            # A staged one that was told to stop harms nobody when a person asks for the frame again.
            " AND (a.generation = new.generation OR s.isolation = 'exclusive')",
            change.id,
            change.first,
        )
        self.leased_at[change.id] = self.kernel.now
        origin, job_id, state, is_paused = self.database.ask(
            "SELECT a.origin, j.id, j.state, j.is_paused FROM attempt a JOIN job j ON j.id = a.job_id"
            " WHERE a.id = ?",
            change.id,
        )[0]
        if origin == Origin.MATCH:
            if live:
                raise Violation(f"task {change.first} was given out while attempt {live[0][0][:8]} lives")
            if state != "active" or is_paused:
                raise Violation(f"I16: task {change.first} was given out, and job {job_id} is {state}")
            self._check_limits(change.id)
        elif len(live) != 1 or live[0][1] == Isolation.EXCLUSIVE or live[0][2] == change.node_id:
            raise Violation(f"second copy {change.id[:8]} of task {change.first} beside {live}")

    def _check_limits(self, attempt_id: str) -> None:
        """I16: what is given out takes of a limit only what is left of it then."""
        for name, amount, per in self.database.ask("SELECT name, amount, per FROM farm_limit"):
            holder = {"task": "a.id", "node": "a.node_id", "job": "a.job_id"}[per]
            without, held = (
                self.database.ask(
                    "SELECT coalesce(sum(most), 0) FROM (SELECT max(n.amount) AS most FROM attempt a"
                    " JOIN step_limit n ON n.step_id = a.step_id"
                    " WHERE n.name = ? AND a.id <> ? AND a.state IN ('assigned', 'running', 'cancelling')"
                    f" GROUP BY {holder})",
                    name,
                    left_out,
                )[0][0]
                for left_out in (attempt_id, "")
            )
            if held > max(without, amount):
                raise Violation(f"I16: {held} of {amount} of the limit {name} for each {per} are held")

    def _check_fenced(self, attempt_id: str) -> None:
        """G6: when the farm finds a lease over, the node has long ended an exclusive attempt, if it could."""
        for host, rendering in self.renderings.items():
            slept_s = self.fence_s - (self.kernel.now - host.machine.awake_since)
            if rendering.attempt_id == attempt_id and slept_s <= 0:
                raise Violation(f"G6: {attempt_id[:8]} renders on after its lease ended")

    def _check_parents(self, task_id: int) -> None:
        rows = self.database.ask(
            "SELECT s.job_id, s.depends_on FROM task t JOIN step s ON s.id = t.step_id WHERE t.id = ?",
            task_id,
        )
        job_id, depends_on = rows[0]
        if depends_on == "[]" or job_id in self.requeued:
            return
        undone = self.database.ask(
            "SELECT count(*) FROM task t JOIN step s ON s.id = t.step_id"
            " JOIN json_each(?) n ON n.value = s.name WHERE t.job_id = ? AND t.state <> 'done'",
            depends_on,
            job_id,
        )[0][0]
        if undone:
            raise Violation(
                f"I15: task {task_id} was given out before {undone} tasks that it needs were done"
            )

    # --- what renderers do ----------------------------------------------------------------------------

    def renderer_started(self, host: Host, script: StepScript, order: Order) -> float:
        """Returns how long it will take."""
        task_id = int(order.task_id)
        if order.attempt_id in self.begun:
            raise Violation(f"attempt {order.attempt_id[:8]} was started twice")
        self.begun[order.attempt_id] = host.machine
        rendering = Rendering(
            attempt_id=order.attempt_id,
            task_id=task_id,
            is_exclusive=script.isolation is Isolation.EXCLUSIVE,
            since=self.kernel.now,
        )
        if rendering.is_exclusive and task_id not in self.released:
            for other_host, other in self.renderings.items():
                if other.task_id == task_id:
                    raise Violation(
                        f"two renderers of the exclusive task {task_id}: on {other_host.machine.node_id} "
                        f"and {host.machine.node_id}"
                    )
        self.renderings[host] = rendering
        here = sum(h.machine is host.machine for h in self.renderings)
        if here > host.machine.slots:
            raise Violation(
                f"I11: {here} renderers on {host.machine.node_id}, which has {host.machine.slots} slots"
            )
        self.starts[task_id] += 1
        waited_s = self.kernel.now - self.leased_at.get(order.attempt_id, self.kernel.now)
        self.slowest_start_s = max(self.slowest_start_s, waited_s)
        self.kernel.say(f"{host.machine.node_id}: renders {order.attempt_id[:8]} of task {task_id}")
        if task_id not in self.seconds:
            self.seconds[task_id] = self.kernel.draw.uniform(self.most_seconds / 12, self.most_seconds)
        return self.seconds[task_id]

    def forgotten_by(self, machine: object) -> None:
        self.begun = {a: m for a, m in self.begun.items() if m is not machine}

    def renderer_ended(self, host: Host) -> None:
        if self.renderings.pop(host, None) is not None:
            self.kernel.say(f"{host.machine.node_id}: a renderer ended")

    def failure_of(self, order: Order) -> Outcome | None:
        """How this attempt's renderer fails, if it does."""
        left = self.failures_left.get(int(order.task_id))
        if not left:
            return None
        self.failed[int(order.task_id)] += 1
        return left.pop()

    def tidied(self, job_uid: str) -> None:
        self.kernel.say(f"the private directories of job {job_uid[:8]} are removed")

    # --- the end ----------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """Every task has ended, and every job with it."""
        if not self.has_changed:
            return False
        self.has_changed = False
        left = self.database.ask(
            "SELECT 1 FROM task WHERE state NOT IN ('done', 'failed', 'cancelled') LIMIT 1"
        )
        return not left

    def check_end(self, *, most_renders: float, is_calm: bool) -> None:
        """After everything has come to rest."""
        ask = self.database.ask
        stuck = ask(
            "SELECT id, state, reason FROM task"
            " WHERE state NOT IN ('done', 'failed', 'cancelled') ORDER BY id"
        )
        if stuck:
            raise Violation(f"I3: {len(stuck)} tasks never end, such as {stuck[0]}")
        for key, job_id in self.promised.items():
            if not ask("SELECT 1 FROM job WHERE id = ?", job_id):
                raise Violation(f"I9: job {job_id} of key {key}, which was acknowledged, is not there")
        doubled = ask("SELECT key FROM idempotency GROUP BY key HAVING count(*) > 1")
        if doubled:
            raise Violation(f"I9: submitted twice: {doubled}")
        wrong = ask("SELECT id, state FROM job WHERE state NOT IN ('done', 'failed', 'cancelled')")
        if wrong:
            raise Violation(f"jobs that never end although their tasks did: {wrong}")
        self._check_counts()
        self._check_failed()
        self._check_accepted()
        self._check_counters()
        if self.renderings:
            host, rendering = next(iter(self.renderings.items()))
            raise Violation(f"I6: {rendering.attempt_id[:8]} renders on {host.machine.node_id} for nobody")
        live = ask("SELECT id, state FROM attempt WHERE state IN ('assigned', 'running', 'cancelling')")
        if live:
            raise Violation(f"attempts live on although their tasks have ended: {live}")
        owed = ask("SELECT kind, node_id FROM outbox")
        if owed:
            raise Violation(f"{len(owed)} messages are owed for ever, such as {owed[0]}")
        renders = self.renders_per_task()
        if renders > most_renders:
            raise Violation(f"I13: {renders:.2f} renders for each task, at most {most_renders:.2f} here")
        if is_calm:
            self._check_calm()

    def renders_per_task(self) -> float:
        """Renderers started, for each task that any was started for.

        Those that failed by themselves are left out, and those that people asked for anew.
        """
        spent = sum(self.starts.values()) - sum(self.failed.values()) - self.asked_anew
        return spent / max(len(self.starts), 1)

    def _check_failed(self) -> None:
        """I3: no task is given up but for what its own attempts did: here none fails often enough."""
        for task_id, job_id, faults, starts, reason in self.database.ask(
            "SELECT id, job_id, faults, starts, reason FROM task WHERE state = 'failed'"
        ):
            if job_id in self.requeued and "already exists" in reason:
                continue  # published by an attempt that failed after it, in a job that was tidied away since
            if faults < MAX_FAULTS and starts < MAX_STARTS:
                raise Violation(f"I3: task {task_id} was given up: {reason}")

    def _check_counts(self) -> None:
        columns = ", ".join(f"s.n_{state}" for state in TaskState)
        counted: dict[int, Counter[str]] = defaultdict(Counter)
        for step_id, state, count in self.database.ask(
            "SELECT step_id, state, count(*) FROM task GROUP BY 1, 2"
        ):
            counted[step_id][state] = count
        for step_id, *kept in self.database.ask(f"SELECT s.id, {columns} FROM step s"):
            real = [counted[step_id][str(state)] for state in TaskState]
            if kept != real:
                raise Violation(f"the counts of step {step_id} are {kept}, its tasks say {real}")

    def _check_accepted(self) -> None:
        rows = self.database.ask(
            "SELECT t.id, t.generation, t.attempt_id, s.isolation, t.state,"
            " (SELECT count(*) FROM attempt a WHERE a.task_id = t.id AND a.generation = t.generation"
            "  AND a.state = 'succeeded')"
            " FROM task t JOIN step s ON s.id = t.step_id"
        )
        for task_id, generation, attempt_id, isolation, state, accepted in rows:
            if state != "done":
                continue
            if accepted != 1:
                raise Violation(
                    f"I1: {accepted} accepted attempts of task {task_id}, generation {generation}"
                )
            found = self.database.ask("SELECT state, files FROM attempt WHERE id = ?", attempt_id)
            if not found or found[0][0] != "succeeded":
                raise Violation(f"I1: task {task_id} points at attempt {attempt_id}, which is {found}")
            if isolation == Isolation.STAGED:
                self._check_files(task_id, attempt_id, found[0][1])

    def _check_files(self, task_id: int, attempt_id: str, files: str) -> None:
        (path,) = [
            row[0]
            for row in self.database.ask("SELECT json_extract(value, '$.path') FROM json_each(?)", files)
        ]
        try:
            text = Path(path).read_text()
        except FileNotFoundError:
            raise Violation(f"I2: task {task_id} is done, and its file {path} is not there") from None
        if text != f"{attempt_id}\nwhole\n":
            raise Violation(f"I2: the file of task {task_id} is not whole and of {attempt_id[:8]}: {text!r}")

    def _check_counters(self) -> None:
        """I12: what a task has spent is what its attempts say; a lost node spends nothing.

        One that a job's `--on-stall kill` had ended is cancelled, and failed all the same.
        Of a task that is done, one that failed may be the accepted one by now: its files were found whole.
        """
        for task_id, starts, failures, job_id, state in self.database.ask(
            "SELECT id, starts, failures, job_id, state FROM task"
        ):
            if job_id in self.requeued:
                continue
            made, failed = self.database.ask(
                "SELECT count(*), sum(state IN ('failed', 'cancelled')"
                " AND outcome IN ('job-error', 'out-of-memory'))"
                " FROM attempt WHERE task_id = ?",
                task_id,
            )[0]
            if starts != made:
                raise Violation(f"I12: task {task_id} counts {starts} starts, {made} attempts were made")
            if failures > (failed or 0) + (state == TaskState.DONE):
                text = f"task {task_id} has spent {failures} retries, and failed {failed} times by itself"
                raise Violation(f"I12: {text}")

    def _check_calm(self) -> None:
        """What holds when nothing went wrong."""
        if self.slowest_start_s > START_S:
            raise Violation(
                f"I13: {self.slowest_start_s:.1f} s from a lease to its renderer, and nothing is wrong"
            )
        chunks = dict(self.database.ask("SELECT attempt_id, count(*) FROM log GROUP BY 1"))
        for (attempt_id,) in self.database.ask("SELECT id FROM attempt WHERE state = 'succeeded'"):
            if chunks.get(attempt_id) != 2:
                raise Violation(f"I14: {chunks.get(attempt_id)} of 2 pieces of the log of {attempt_id[:8]}")
        self._check_litter()

    def _check_litter(self) -> None:
        for (directories,) in self.database.ask("SELECT output_directories FROM job"):
            for directory in json.loads(directories):
                private = sorted(str(path) for path in Path(directory).rglob(".farm/*"))
                if private:
                    raise Violation(f"I10: private directories are left of a job that has ended: {private}")
