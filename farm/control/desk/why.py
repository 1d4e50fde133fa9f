"""Why a job or a task waits: what is known of it, as lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from farm.control import sharing
from farm.control.matcher import weights_now
from farm.control.views import WhyLine, WhyView
from farm.flow import match
from farm.flow.groups import Cause, Group
from farm.flow.keep import Kept
from farm.flow.run_times import UseState
from farm.flow.turn import ahead
from farm.model.ids import JobId, TaskId
from farm.model.machines import NodeView
from farm.model.states import ENDED_JOBS, ENDED_TASKS, JobState, Outcome, TaskState
from farm.model.work import Job, Step, Task
from farm.settings import Settings
from farm.store import attempts, jobs, learnt, nodes, ready, stalling, tasks
from farm.store.engine import read_clock, reading
from farm.text import duration, plural


class WhyDesk:
    """Thread-safe."""

    def __init__(self, engine: sa.Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    def why_job(self, job_id: JobId) -> WhyView:
        """Every reason why tasks of the job do not run. Raises NotFound."""
        with reading(self._engine) as db:
            job = jobs.read_job(db, job_id)
            coming = NextRound(db, self._settings, tells_turns=True)
            return WhyView(lines=(*_why_job(db, job, coming), *_whose_files(db, job)))

    def why_task(self, task_id: TaskId) -> WhyView:
        """Why this task does not run, or what it does. Raises NotFound."""
        with reading(self._engine) as db:
            task = tasks.read_task(db, task_id)
            job = jobs.read_job(db, task.job_id)
            return WhyView(
                lines=tuple(_why_task(db, job, task, NextRound(db, self._settings, tells_turns=True)))
            )


class NextRound:
    """What matching looks at, read once and only when a job needs it."""

    def __init__(self, db: sa.Connection, settings: Settings, *, tells_turns: bool = False) -> None:
        """tells_turns: also whose work goes before whose, which takes a look at all groups for each."""
        self._db = db
        self._settings = settings
        self._tells_turns = tells_turns
        self._sharing: sharing.Sharing | None = None
        self._kept: Kept | None = None
        self._use: UseState | None = None
        self._nodes: list[NodeView] | None = None
        self._groups: dict[int, list[Group]] | None = None

    @property
    def nodes(self) -> list[NodeView]:
        if self._nodes is None:
            self._nodes = nodes.views(self._db, ready.uses(self._db))
        return self._nodes

    def groups(self, job_id: JobId) -> list[Group]:
        if self._groups is None:
            self._groups = {}
            for group in ready.groups(self._db):
                self._groups.setdefault(group.job_id, []).append(group)
        return self._groups.get(job_id, [])

    @property
    def sharing(self) -> sharing.Sharing:
        if self._sharing is None:
            found = sharing.read(self._db, self._settings, self._everything)
            self._sharing = sharing.with_preemption(self._db, self._settings, found)
        return self._sharing

    @property
    def kept(self) -> Kept:
        """What is kept free of the nodes, as in the next round of matching."""
        if self._kept is None:
            self._kept = self.sharing.round(self._everything, self.nodes)[2]
        return self._kept

    def seen_by(self, group: Group) -> Sequence[NodeView]:
        """The nodes as the group finds them: with what is kept, unless it is kept for this very group."""
        mine = {view.id: view for view in self.kept.held if self.kept.holds[view.id].step_id == group.step_id}
        return [mine.get(view.id, view) for view in self.kept.views]

    def ahead(self, group: Group) -> Sequence[Cause]:
        """Whose work goes before the group's."""
        if not self._tells_turns:
            return ()
        if self._use is None:
            kept = learnt.read_farm(self._db).use if self._settings.policy == "predictive" else {}
            self._use = UseState(**kept)
        now = read_clock(self._db)
        return ahead(group, self._everything, weights_now(self._settings, now), self._use)

    @property
    def _everything(self) -> list[Group]:
        return [group for groups in (self._groups or {}).values() for group in groups]


def waiting_line(db: sa.Connection, job: Job, coming: NextRound) -> str:
    """One line; empty when something runs or the job has ended."""
    if job.state in ENDED_JOBS or job.counts.live:
        return ""
    lines = list(_why_job(db, job, coming))
    if not lines:
        return ""
    more = f" (and {len(lines) - 1} more: see why)" if len(lines) > 1 else ""
    return lines[0].text + more


def _why_job(db: sa.Connection, job: Job, coming: NextRound) -> Iterable[WhyLine]:
    counts = job.counts
    if job.state in ENDED_JOBS:
        yield WhyLine(step="", text=f"the job is {job.state}" + (f": {job.reason}" if job.reason else ""))
        return
    if job.state is JobState.PAUSED:
        yield WhyLine(step="", text="paused", is_momentary=False)
    yield from _needed_jobs(db, job)
    for step in job.steps:
        if step.counts.held:
            yield WhyLine(
                step=step.name,
                text=f"{plural(step.counts.held, 'task')} held: the node fell silent, and the output cannot "
                "be staged; waits for the node to come back, or for `farm release`",
                is_momentary=False,
            )
    for found in stalling.stalled(db, job_id=job.id, limit=20) if counts.live else ():
        yield WhyLine(step=found.step, text=f"on {found.attempt.node_id} taken for {found.stall.told}")
    for group in coming.groups(job.id):
        step = next(step for step in job.steps if step.id == group.step_id)
        yield from _why_group(db, step, group, coming)
    for step in job.steps:
        if step.counts.waiting and job.state is JobState.ACTIVE:
            yield _waits_for_steps(job, step)
        if step.counts.ready:
            yield from _waits_for_licence(db, step)
    if job.state is JobState.ACTIVE and not counts.ready and not counts.waiting and not counts.held:
        yield WhyLine(step="", text=f"nothing waits: {plural(counts.live, 'task')} on nodes")


def _whose_files(db: sa.Connection, job: Job) -> Iterable[WhyLine]:
    """Nodes that run as another user than the rest, where that may be why the storage refused something."""
    if not attempts.any_ended_with(db, job.id, Outcome.STORAGE):
        return
    for node_id, remark in nodes.remarks(db).items():
        text = f"tasks of it failed at the storage, and of {node_id} is known: {remark}"
        yield WhyLine(step="", text=text, count=1, node_ids=(node_id,), is_momentary=False)


def _needed_jobs(db: sa.Connection, job: Job) -> Iterable[WhyLine]:
    is_by_frame = job.settings.frame_by_frame and job.counts.waiting > 0
    if job.state not in (JobState.WAITING, JobState.PAUSED) and not is_by_frame:
        return
    for needed in job.settings.depends_on:
        other = jobs.read_job(db, needed)
        if other.state is JobState.DONE:
            continue
        is_over = other.state in ENDED_JOBS
        told = (
            f"which is {other.state}: retry it, or cancel this one" if is_over else f"which is {other.state}"
        )
        yield WhyLine(
            step="", text=f"waits for job {needed} ({other.name}), {told}", is_momentary=not is_over
        )


def _waits_for_licence(db: sa.Connection, step: Step) -> Iterable[WhyLine]:
    wait_s = ready.licence_wait_s(db, step.id)
    if wait_s > 0:
        yield WhyLine(
            step=step.name,
            text=f"tries again in {duration(wait_s)}, or when one of its tasks is done: its renderers found "
            "no licence; no retry is spent. With `farm limits` the farm counts licences itself",
        )


def _why_group(db: sa.Connection, step: Step, group: Group, coming: NextRound) -> Iterable[WhyLine]:
    due_s = ready.next_due_s(db, step.id)
    if due_s > 0:
        yield WhyLine(step=step.name, text=f"tries again in {duration(due_s)} after failures")
        return
    shared = coming.sharing.causes(group, coming.kept) if group.ready > 0 else ()
    for cause in match.why(group, coming.seen_by(group), shared=shared):
        yield WhyLine(
            step=step.name,
            text=cause.text,
            count=cause.count,
            node_ids=cause.node_ids,
            is_momentary=cause.is_momentary,
        )
    if group.ready > 0:
        for cause in coming.ahead(group):
            yield WhyLine(step=step.name, text=cause.text)


def _waits_for_steps(job: Job, step: Step) -> WhyLine:
    by_name = {other.name: other for other in job.steps}
    needs = [by_name[name] for name in step.depends_on if name in by_name]
    open_steps = [other for other in needs if other.counts.done < other.counts.total]
    told = ", ".join(
        f"{other.name} ({other.counts.done:,} of {other.counts.total:,} done)" for other in open_steps
    )
    return WhyLine(step=step.name, text=f"waits for step {told}" if told else "opens with the next match")


def _why_task(db: sa.Connection, job: Job, task: Task, coming: NextRound) -> Iterable[WhyLine]:
    def line(text: str, *, is_momentary: bool = True) -> WhyLine:
        return WhyLine(step=task.step, text=text, is_momentary=is_momentary)

    if task.state in ENDED_TASKS:
        yield line(
            f"the task is {task.state}" + (f": {task.reason}" if task.reason else ""), is_momentary=False
        )
        return
    if task.state is TaskState.HELD:
        yield line(f"held: {task.reason}", is_momentary=False)
        return
    if task.state in (TaskState.ASSIGNED, TaskState.RUNNING, TaskState.CANCELLING):
        yield line(f"{task.state} on {task.node_id}")
        for found in stalling.stalled(db, job_id=job.id, with_silent=True):
            if found.attempt.task_id == task.id:
                yield line(f"on {found.attempt.node_id} taken for {found.stall.told}")
        return
    if task.state is TaskState.WAITING or job.state is not JobState.ACTIVE:
        yield from (why for why in _why_job(db, job, coming) if why.step in ("", task.step))
        return
    delay = ready.delay(db, task.id)
    if delay.seconds > 0:
        last = f" after: {task.reason}" if task.reason else ""
        yield line(f"tries again in {duration(delay.seconds)}{last}")
        return
    if delay.avoids:
        yield line(f"{delay.avoids}: other nodes may try first, for a while")
    step = next(step for step in job.steps if step.id == task.step_id)
    yield from _waits_for_licence(db, step)
    for group in coming.groups(job.id):
        if group.step_id == step.id:
            yield from _why_group(db, step, group, coming)
