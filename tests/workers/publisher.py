"""A process that publishes one attempt's stage and may die at a given step.

publisher.py DIRECTORY ATTEMPT COUNT REPLACE STEP: the stage gets the files a.txt and sub/b.txt, that hold
ATTEMPT so many times, STEP is the number of the step to die before (-1: none). Prints the steps, then who
published, or the reason.
"""

from __future__ import annotations

import os
import signal
import sys

from farm.model.ids import AttemptId, TaskId
from workers import staging
from workers.verify import check_files


def main(directory: str, attempt: str, count: int, may_replace: bool, die_at: int) -> None:
    steps = 0

    def fault(step: str) -> None:
        nonlocal steps
        if steps == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1
        print("step", step, flush=True)

    stage = staging.open_stage(
        directory,
        allowed_roots=(),
        job_uid="job",
        task_id=TaskId(1),
        generation=1,
        attempt_id=AttemptId(attempt),
    )
    (stage.directory / "sub").mkdir()
    for name in ("a.txt", "sub/b.txt"):
        (stage.directory / name).write_text(attempt * count)
    try:
        checked = check_files(stage.directory, ("a.txt",), is_image=False)
        publication = staging.publish(stage, checked, may_replace=may_replace, fault=fault)
    except staging.StagingError as error:
        print("failed", error.outcome, error, flush=True)
    else:
        print("published by", publication.by, flush=True)
    staging.discard(stage)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "yes", int(sys.argv[5]))
