"""A node whose paths are other than the artists': what reaches it is mapped before anything is run."""

from __future__ import annotations

from farm.model.ids import AttemptId, JobId, TaskId
from farm.model.paths import path_rules
from farm.model.work import OutputSpec
from farm.wire.messages import Launch, Order, StepScript
from workers.instructions import stage_place
from workers.local_paths import as_seen_here


def test_paths_of_a_launch_are_those_of_the_node() -> None:
    script = StepScript(
        job_id=JobId(1),
        job_uid="u",
        job_name="shot",
        step="Render",
        kind="openjd",
        template={},
        parameters={
            "OutputDir": ("PATH", r"Z:\projects\shot\out"),
            "Scene": ("PATH", r"Z:\projects\shot\a.blend"),
            "Frames": ("STRING", "1-3"),
        },
        output=OutputSpec(step="Render", directory_parameter="OutputDir", file_pattern="####.png"),
    )
    order = Order(
        attempt_id=AttemptId("a"),
        task_id=TaskId(1),
        label="1",
        parameters={"Texture": ("PATH", r"z:/projects/tex/1.exr"), "Frame": ("INT", "1")},
    )
    launch = Launch(script=script, orders=(order,))

    seen = as_seen_here(launch, path_rules({r"Z:\projects": "/mnt/projects"}))

    assert seen.script.parameters["Scene"] == ("PATH", "/mnt/projects/shot/a.blend")
    assert seen.script.parameters["Frames"] == ("STRING", "1-3")
    assert seen.orders[0].parameters["Texture"] == ("PATH", "/mnt/projects/tex/1.exr")
    stage = stage_place(seen.script)
    assert stage is not None
    assert stage.directory == "/mnt/projects/shot/out"
    assert as_seen_here(launch, ()) is launch
