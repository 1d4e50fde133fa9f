"""`farm resubmit`: a job again, with changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from farm.cli.answers import read
from farm.cli.bundle import absolute_paths, read_parameters, unknown_parameter
from farm.cli.client import Client
from farm.cli.naming import find_job
from farm.cli.plugins import load_plugins
from farm.cli.show import shown
from farm.cli.submit import Made, Wish, chosen_settings
from farm.cli.submit_command import Way, send
from farm.control.fields import label_frames
from farm.errors import UserError
from farm.flow.extend import with_frames
from farm.flow.submit import plan_job
from farm.model.frames import parse_frames
from farm.model.plugin import Plugin
from farm.model.work import JobSettings, Submission, Task

_NOT_AGAIN: Final = frozenset({"is_paused", "depends_on"})
"""Settings of that one time."""


def resubmit(
    connect: Callable[[], Client],
    job: str,
    wish: Wish,
    way: Way,
    *,
    is_failed_only: bool,
) -> int:
    """The exit status. Of `wish`: frames, parameters, name and settings."""
    if is_failed_only and wish.frames is not None:
        raise UserError("choose one of --frames and --failed")
    chosen = chosen_settings(wish)
    frames = None if wish.frames is None else parse_frames(wish.frames)
    given = read_parameters(wish.parameters, Path.cwd())
    client = connect()
    view, _ = find_job(client, job)
    submission = read(Submission, client.get(f"/jobs/{view.job.id}/submission"))
    if is_failed_only:
        frames = _failed_frames(client, view.job.id)
    if wish.output is not None:
        given = given | into_directory(submission, wish.output)
    made = changed(submission, frames=frames, parameters=given, settings=chosen, name=wish.name)
    plugin = _plugin_of(made) if way.is_pretend else None
    return send(lambda: client, Made(submission=made, plugin=plugin), way)


def _plugin_of(submission: Submission) -> Plugin | None:
    """None where there is none, or where the job is not as the plugin that is installed here makes it."""
    plugin = load_plugins()[0].get(submission.kind)
    if plugin is not None:
        try:
            plugin.preview(submission)
        except (LookupError, ValueError, UserError):
            return None
    return plugin


def changed(
    submission: Submission,
    *,
    frames: Sequence[int] | None,
    parameters: Mapping[str, str],
    settings: Mapping[str, Any],
    name: str | None,
) -> Submission:
    """`parameters` as typed: relative paths start here. Raises UserError."""
    for parameter in parameters:
        told = unknown_parameter(submission.template, parameter, "the job")
        if told:
            raise UserError(told)
    kept = {
        field.name: getattr(submission.settings, field.name)
        for field in fields(JobSettings)
        if field.name not in _NOT_AGAIN
    }
    made = replace(
        submission,
        name=name or submission.name,
        parameters=submission.parameters | absolute_paths(submission.template, parameters, Path.cwd()),
        settings=JobSettings(**kept | dict(settings)),
    )
    return made if frames is None else with_frames(made, plan_job(made, uid="").parameters, frames)


def into_directory(submission: Submission, directory: str) -> dict[str, str]:
    """The parameters that let all the job's files go there. Raises UserError."""
    if "#" in directory:
        raise UserError(f"--output {shown(directory, 80)}: give a directory, the names of the files stay")
    names = dict.fromkeys(output.directory_parameter for output in submission.outputs)
    if not names:
        raise UserError("the farm does not know where this job writes: set its parameters with -p")
    if len(names) > 1:
        told = ", ".join(names)
        raise UserError(f"the job writes into several directories: set -p of {told}")
    return dict.fromkeys(names, str(Path.cwd() / Path(directory).expanduser()))


def _failed_frames(client: Client, job_id: int) -> tuple[int, ...]:
    tasks = [read(Task, item) for item in client.items(f"/jobs/{job_id}/tasks", state="failed")]
    frames = tuple(dict.fromkeys(frame for task in tasks for frame in label_frames(task.label)))
    if tasks and not frames:
        raise UserError(
            f"what failed of job {job_id} has no frames: leave --failed away, to do all of it again"
        )
    if not frames:
        raise UserError(f"no frame of job {job_id} failed")
    return frames
