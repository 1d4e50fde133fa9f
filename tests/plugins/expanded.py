"""A submission through the OpenJD library, as the farm and the node see it."""

from __future__ import annotations

from pathlib import Path

from openjd.model import (
    StepParameterSpaceIterator,
    create_job,
    decode_job_template,
    preprocess_job_parameters,
)

from farm.model.work import Submission

EXTENSIONS = ["TASK_CHUNKING", "REDACTED_ENV_VARS", "FEATURE_BUNDLE_1", "EXPR", "WRAP_ACTIONS"]


def tasks(made: Submission) -> list[dict[str, str]]:
    """The task parameters of the only step; one empty task when it has no parameter space."""
    template = decode_job_template(template=made.template, supported_extensions=EXTENSIONS)
    values = preprocess_job_parameters(
        job_template=template,
        job_parameter_values=dict(made.parameters),
        job_template_dir=Path(),
        current_working_dir=Path(),
        allow_job_template_dir_walk_up=True,
    )
    (step,) = create_job(job_template=template, job_parameter_values=values).steps
    if step.parameterSpace is None:
        return [{}]
    space = StepParameterSpaceIterator(space=step.parameterSpace)
    return [{name: value.value for name, value in task.items()} for task in space]
