"""From a submission to a job's steps, as they will be stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from farm.errors import UserError
from farm.flow.classify import classify
from farm.flow.demand import demand_of
from farm.flow.order import parse_order
from farm.flow.outputs import outputs_by_step
from farm.flow.task_space import TaskSpace
from farm.flow.template import MAX_NAME, check_paths, create_job
from farm.flow.template_text import MAX_INT, check_text, shown
from farm.model.frames import canonical
from farm.model.limits import MAX_LIMIT, check_limit_name
from farm.model.machines import Demand
from farm.model.work import MAX_TASKS_PER_JOB, Isolation, JobSettings, OutputSpec, Profile, Submission
from farm.text import clean

MAX_RETRIES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """A step as it will be stored."""

    name: str
    position: int
    depends_on: tuple[str, ...]
    """Names of steps of the same job."""
    demand: Demand
    profile: Profile
    isolation: Isolation
    output: OutputSpec | None
    frames: str | None
    """The frames of the whole step in canonical form; None when it has no frame parameter."""
    task_count: int
    indexes: tuple[int, ...] | None = None
    """Of the tasks; None: 0 to `task_count`."""
    chunk_target_s: float | None = None
    """Waiting tasks are cut anew, so that one takes about so long; None: they stay as they are."""
    by_frame: tuple[str, ...] = ()
    """Those of `depends_on` that are waited for frame by frame, and "#12" for job 12."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job as it will be stored."""

    name: str
    uid: str
    steps: tuple[StepPlan, ...]
    """In the template's order."""
    parameters: dict[str, tuple[str, str]]
    """Job parameter name -> (OpenJD type, value as text), defaults filled in."""
    output_directories: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """What the submitter should know, one line each."""


def plan_job(submission: Submission, *, uid: str) -> JobPlan:
    """Check a submission and lay out its steps. Nothing is stored; no path is looked at.

    Raises UserError for anything wrong with the submission; where several things are wrong with the template
    or its parameters, each has its line.
    """
    _check_name("the job's name", submission.name)
    _check_settings(submission.settings)
    _check_hints(submission.hints)
    for software in submission.software:
        _check_name("a software name", software)
    job, parameters = create_job(submission.template, submission.parameters)
    check_paths(parameters)
    outputs = outputs_by_step(submission.outputs, job, parameters)
    space = TaskSpace.of_job(job, outputs)
    warnings: list[str] = []
    steps = []
    total = 0
    for position, step in enumerate(job.steps):
        count = space.count(step.name)
        total += count
        if total > MAX_TASKS_PER_JOB:
            raise UserError(
                f"the job holds more than {MAX_TASKS_PER_JOB:,} tasks (up to step '{shown(step.name)}'); "
                "use chunks of frames, or several jobs"
            )
        demand, tag, is_probe = demand_of(step, submission)
        output = outputs.get(step.name)
        if output is not None:
            space.check_output(step.name)
            if is_probe:
                raise UserError(f"step '{shown(step.name)}' is a probe, and keeps no output")
        values = space.frame_values(step.name)
        steps.append(
            StepPlan(
                name=step.name,
                position=position,
                depends_on=tuple(dependency.dependsOn for dependency in step.dependencies or ()),
                demand=demand,
                profile=classify(submission.settings.tag or tag, submission.hints, submission.kind),
                isolation=_isolation(output, is_probe=is_probe),
                output=output,
                frames=None if values is None else canonical(values),
                task_count=count,
                indexes=space.first_indexes(step.name),
                chunk_target_s=space.chunk_target_s(step.name),
            )
        )
        if space.is_adaptive(step.name) and space.chunk_target_s(step.name) is None:
            warnings.append(
                f"step '{shown(step.name)}' asks for chunks of a target run time, and has other parameters "
                "or gaps in its frames: the farm makes chunks of the template's default size"
            )
    directories = dict.fromkeys(parameters[output.directory_parameter][1] for output in submission.outputs)
    return JobPlan(
        name=submission.name,
        uid=uid,
        steps=tuple(steps),
        parameters=parameters,
        output_directories=tuple(directories),
        warnings=tuple(warnings),
    )


def _isolation(output: OutputSpec | None, *, is_probe: bool) -> Isolation:
    if output is not None:
        return Isolation.STAGED
    return Isolation.PROBE if is_probe else Isolation.EXCLUSIVE


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise UserError(f"{what} is empty")
    if len(name) > MAX_NAME:
        raise UserError(f"{what} is {len(name):,} characters long; the most is {MAX_NAME}")
    unseen = next((char for char in name if clean(char, one_line=True) != char), None)
    if unseen is not None:
        raise UserError(f"{what} holds a control character, U+{ord(unseen):04X}: '{shown(name)}'")


def _check_settings(settings: JobSettings) -> None:
    _check_range("the priority", settings.priority, 0, 100)
    _check_range("the retries of a task", settings.max_retries, 0, MAX_RETRIES)
    _check_range("the failed tasks allowed", settings.max_failed_tasks, 0, MAX_TASKS_PER_JOB)
    if settings.max_running is not None:
        _check_range("the tasks running at once", settings.max_running, 1, MAX_TASKS_PER_JOB)
    for name, amount in settings.limits.items():
        check_limit_name(name)
        _check_range(f"what a task takes of limit {shown(name)}", amount, 1, MAX_LIMIT)
    for job_id in settings.depends_on:
        _check_range("the job waited for", job_id, 1, MAX_INT)
    if settings.pool is not None:
        for pool in settings.pool.split(","):
            _check_name("the pool's name", pool)
    if settings.user:
        _check_name("the user's name", settings.user)
    if settings.order and parse_order(settings.order) != settings.order:
        raise UserError(f"the order '{shown(settings.order)}' must be written {parse_order(settings.order)}")
    if settings.project:
        _check_name("the project's name", settings.project)
    timeout_s = settings.timeout_s
    if timeout_s is not None and not (math.isfinite(timeout_s) and timeout_s > 0):
        raise UserError(f"the timeout is {timeout_s} s; give a number of seconds above 0, or none")


def _check_range(what: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{what}: {shown(str(value))} is no whole number from {least:,} to {most:,}")


def _check_hints(hints: Mapping[str, float | str]) -> None:
    if len(hints) > 100:
        raise UserError(f"there are {len(hints):,} hints; the most is 100")
    for name, value in hints.items():
        _check_name("a hint's name", name)
        if isinstance(value, str):
            if len(value) > MAX_NAME:
                raise UserError(f"the hint {name} is longer than {MAX_NAME} characters")
            check_text(value, f"the hint {name}")
        elif not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"the hint {name} is {value}, which is no finite number")
