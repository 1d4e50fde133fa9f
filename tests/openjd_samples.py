"""The public Open Job Description samples, each with what it does when it is checked, summed up and run.

They lie beside the project where it is developed; elsewhere their tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2] / "shared" / "data" / "openjd-samples"
DEADLINE: Final = "deadline-cloud-samples/job_bundles"
QUEUE: Final = "deadline-cloud-samples/queue_environments"
SPEC: Final = "openjd-specifications/job_templates"
ENVIRONMENTS: Final = "openjd-specifications/environment_templates"

needs_samples: Final = pytest.mark.skipif(not ROOT.is_dir(), reason="the public samples are not here")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A job template or bundle, run with `parameters`."""

    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    """`{dir}` stands for a directory of the sample's own, `{scenes}` for that of the scenes, `{frames}` for
    that of the small pictures."""
    environments: tuple[str, ...] = ()
    steps: Mapping[str, int] = field(default_factory=dict)
    """Tasks of each step."""
    chunks: Mapping[str, int] = field(default_factory=dict)
    """Of the steps whose tasks are chunks: how many values they stand for, which `summary` counts."""
    scenario: str = ""
    """A file beside it: other values for its parameters, and what is told then."""
    state: str = "done"
    """done, failed; refused: when it is submitted; waits: no node of this machine has what it asks for;
    "": it has a test of its own."""
    says: tuple[str, ...] = ()
    """In what is printed, or in the reason of a failed task."""
    files: tuple[str, ...] = ()
    """Below the directory of its own."""
    pictures: tuple[tuple[str, str], ...] = ()
    """(one of `files`, the same rendered by hand, below the directory of frames)"""
    needs: tuple[str, ...] = ()
    """Programs."""
    least_cpus: int = 0
    """It waits where no node has so many."""
    differs_here: str = ""
    """Without a farm it ends otherwise: done or failed; "-" where it is not run so."""

    @property
    def is_possible(self) -> bool:
        return all(map(shutil.which, self.needs))

    @property
    def state_on_farm(self) -> str:
        return "waits" if self.least_cpus > (os.cpu_count() or 1) else self.state

    @property
    def state_here(self) -> str:
        return self.differs_here or self.state

    def given(self, **places: Path) -> dict[str, str]:
        values = {name: value.format(**places) for name, value in self.parameters.items()}
        told = _scenario(self.scenario).get("job_parameters", {})
        return values | {name: v if isinstance(v, str) else json.dumps(v) for name, v in told.items()}

    def told(self) -> tuple[str, ...]:
        expected = _scenario(self.scenario)
        found = [expected.get(name, {}).get("output_contains", ()) for name in ("expect", "expect_posix")]
        return self.says + tuple(line for lines in found for line in lines)


def _scenario(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text()) if name else {}


BLENDER: Final = {"BlenderSceneFile": "{scenes}/small.blend", "OutputDir": "{dir}/out", "Frames": "1-2"}
JPEGS: Final = (("out/output_0001.jpg", "hand_0001.jpg"), ("out/output_0002.jpg", "hand_0002.jpg"))
MANY: Final = {
    "NormalStep": 1, "LongCommand": 1, "BareStep": 1, "DependentStep": 1, "TaskParamStep": 9,
    "ExtraDependentStep": 1, "DependentParamStep": 3, "StepDepHasStepEnv": 1, "BadCommand": 1,
}  # fmt: skip

ALL: Final = (
    Sample(path=f"{SPEC}/stdout-messages.yaml", steps={"Demo": 1}, says=("Processing the things",)),
    # Its steps want different hosts; without a farm nobody asks for hosts.
    Sample(
        path=f"{SPEC}/host-requirements.yaml",
        steps={"StepOne": 1, "StepTwo": 1},
        state="waits",
        differs_here="done",
    ),
    Sample(path=f"{SPEC}/path-mapping.yaml", steps={"PrintRules": 1}, says=("No path mapping rules",)),
    Sample(
        path=f"{SPEC}/ui-controls-showcase.yaml",
        parameters={
            "InputFilePicker": "{scenes}/small.blend",
            "OutputFilePicker": "{dir}/out.txt",
            "DirectoryPicker": "{dir}",
        },
        steps={"CliScript": 1},
        says=("WEDNESDAY",),
    ),
    # Its environment gets its libraries from a package index, which a test must not ask.
    Sample(
        path=f"{SPEC}/algorithmic-art.yaml",
        parameters={
            "RenderScript": "{frames}/art.py",
            "OutputDirectory": "{dir}",
            "NumAnimationFrames": "3",
        },
        steps={"RenderImages": 12, "EncodeVideos": 3},
        state="",
    ),
    Sample(
        path=f"{SPEC}/ffmpeg.yaml",
        parameters={"InputFile": "{frames}/f_%04d.png", "OutputDir": "{dir}", "EndFrame": "3"},
        steps={"h264": 1, "webm": 1, "prores": 2},
        files=("h264_hq_output.mp4", "webm_output.webm", "prores_0_output.mov", "prores_3_output.mov"),
        needs=("ffmpeg",),
    ),
    # The second step of these two looks for `.PNG`, Blender writes `.png`.
    Sample(
        path=f"{SPEC}/blender-ffmpeg.yaml",
        parameters={"BlenderFile": "{scenes}/small.blend", "OutputDir": "{dir}/out", "EndFrame": "1"},
        steps={"RenderScene": 1, "CreateVideoFromRender": 1},
        state="failed",
        says=("render-%04d.PNG",),
        files=("out/render-0001.png",),
        pictures=(("out/render-0001.png", "hand_0001.png"),),
        needs=("blender", "ffmpeg"),
    ),
    Sample(
        path=f"{SPEC}/blender-ffmpeg-expr.yaml",
        parameters={"BlenderFile": "{scenes}/small.blend", "OutputDir": "{dir}/out", "EndFrame": "2"},
        steps={"RenderScene": 2, "CreateVideoFromRender": 1},
        state="failed",
        says=("Rendering frame 2 of 2 total", "small_%04d.PNG"),
        files=("out/small_0001.png", "out/small_0002.png"),
        pictures=(("out/small_0001.png", "hand_0001.png"), ("out/small_0002.png", "hand_0002.png")),
        needs=("blender", "ffmpeg"),
    ),
    Sample(
        path=f"{SPEC}/bash-in-docker.yaml",
        steps={"RunInDocker": 3},
        state="",
    ),
    Sample(
        path=f"{DEADLINE}/simple_job",
        steps={"WelcomeToAWSDeadlineCloud": 1},
        says=("Welcome to AWS Deadline Cloud!",),
    ),
    # Around it what each of the two queue environments does without the packages that it is for.
    Sample(
        path=f"{DEADLINE}/simple_job",
        environments=(f"{QUEUE}/rez_queue_env.yaml", f"{ENVIRONMENTS}/environment-variables.yaml"),
        steps={"WelcomeToAWSDeadlineCloud": 1},
        says=("Skipping Rez env as RezPackages parameter was empty.", "Welcome to AWS Deadline Cloud!"),
    ),
    Sample(
        path=f"{DEADLINE}/simple_job",
        environments=(f"{QUEUE}/conda_queue_env_from_console.yaml",),
        parameters={"CondaPackages": "python=3.11"},
        steps={"WelcomeToAWSDeadlineCloud": 1},
        state="failed",
        says=("conda-queue-env-enter",),
    ),
    Sample(
        path=f"{DEADLINE}/cli_job",
        parameters={"DataDir": "{dir}"},
        steps={"CliScript": 1},
        files=("computed_hashes.txt",),
    ),
    Sample(
        path=f"{DEADLINE}/job_env_vars",
        steps={"EnvSampleStep": 1},
        says=("STEP_VERBOSITY=HIGH", "JOB_PROJECT_ID=step-project-12"),
    ),
    Sample(
        path=f"{DEADLINE}/job_env_with_new_command",
        steps={"EnvWithCommand": 1},
        says=("Sleeping for duration",),
        differs_here="-",
    ),
    # Without a farm its first task can be quicker than the handler of its daemon's signal.
    Sample(
        path=f"{DEADLINE}/job_env_daemon_process",
        parameters={"Frames": "1-4", "FailureRate": "0"},
        steps={"EnvWithDaemonProcess": 4},
        says=("SUCCESS",),
        needs=("jq", "ps"),
        differs_here="-",
    ),
    # It wants a queue environment that brings the library `polars`.
    Sample(
        path=f"{DEADLINE}/job_dev_progression/stage_1_self_contained_template",
        parameters={"WorkspacePath": "{dir}/work"},
        steps={"InitializeWithBash": 1, "ProcessWithPython": 1},
        state="failed",
        says=("No module named 'polars'",),
        files=("work/csv/dataset.csv",),
    ),
    Sample(
        path=f"{DEADLINE}/blender_render",
        parameters=BLENDER,
        steps={"RenderBlender": 2},
        files=("out/output_0001.jpg", "out/output_0002.jpg"),
        pictures=JPEGS,
        needs=("blender",),
    ),
    Sample(
        path=f"{DEADLINE}/task_chunking/blender_render_with_contiguous_chunks",
        parameters=BLENDER,
        steps={"RenderBlender": 1},
        chunks={"RenderBlender": 2},
        files=("out/output_0001.jpg", "out/output_0002.jpg"),
        pictures=JPEGS,
        needs=("blender",),
    ),
    Sample(
        path=f"{DEADLINE}/task_chunking/blender_render_with_non_contiguous_chunks",
        parameters=BLENDER | {"Frames": "1,3"},
        steps={"RenderBlender": 1},
        chunks={"RenderBlender": 2},
        files=("out/output_0001.jpg", "out/output_0003.jpg"),
        pictures=(JPEGS[0], ("out/output_0003.jpg", "hand_0003.jpg")),
        needs=("blender",),
    ),
    Sample(
        path=f"{DEADLINE}/povray-3.7",
        parameters={
            "InputScene": "{frames}/ball.pov",
            "OutputFilename": "{dir}/ball",
            "ImageWidth": "64",
            "ImageHeight": "36",
        },
        steps={"PovrayRender": 1},
        files=("ball.png",),
        pictures=(("ball.png", "hand.png"),),
        needs=("povray",),
    ),
    Sample(
        path=f"{DEADLINE}/ffmpeg_encode_video",
        parameters={
            "InputDir": "{frames}",
            "InputFilePattern": "f_####.png",
            "EndFrame": "3",
            "OutputDir": "{dir}/out",
        },
        steps={"EncodeVideo": 1},
        files=("out/output.mp4",),
        needs=("ffmpeg",),
    ),
    # What is missing here is named.
    Sample(
        path=f"{DEADLINE}/turntable_with_maya_arnold",
        steps={"PrepareSceneFile": 1, "RenderSequence": 50, "EncodeVideo": 1},
        state="failed",
        says=("mayapy",),
    ),
    Sample(
        path=f"{DEADLINE}/tile_render_with_maya_arnold",
        steps={"Render Tile Regions": 96, "Assemble Tiles": 16},
        state="failed",
        says=("maya-openjd",),
    ),
    Sample(
        path=f"{DEADLINE}/houdini_husk_usd_render",
        parameters={"OutputDir": "{dir}"},
        steps={"HuskRender": 1},
        state="failed",
        says=("husk: command not found",),
    ),
    # Its scripts lie elsewhere.
    Sample(
        path=f"{DEADLINE}/copy_s3_prefix_to_job_attachments",
        parameters={"S3CopySource": "s3://nowhere/scene", "WorkspacePath": "{dir}"},
        steps={"CollectObjects": 1, "HashObjects": 3, "CopyObjects": 3, "SaveManifest": 1},
        state="failed",
        says=("collect_objects.py",),
    ),
    Sample(
        path="deadline-cloud-for-blender/default_blender_template.yaml",
        parameters={"BlenderFile": "{scenes}/small.blend", "OutputDir": "{dir}", "Frames": "1-3"},
        steps={"RenderBlender": 3},
        state="failed",
        says=("blender-openjd",),
    ),
    Sample(path="openjd-opencue/hello_world.yaml", steps={"SayHello": 10}, says=("hello world - frame 10",)),
    Sample(
        path="openjd-opencue/blender_render.yaml",
        parameters={
            "SceneFile": "{scenes}/small.blend",
            "OutputDir": "{dir}",
            "FrameStart": "1",
            "FrameEnd": "2",
        },
        steps={"Render": 2},
        files=("render_0001.png", "render_0002.png"),
        needs=("blender",),
        least_cpus=4,
    ),
    Sample(
        path="openjd-opencue/ffmpeg_transcode.yaml",
        parameters={"InputFile": "{frames}/film.mp4", "OutputDir": "{dir}"},
        steps={"h264": 1, "webm_proxy": 1},
        files=("transcode_job_h264.mp4", "transcode_job_proxy.webm"),
        needs=("ffmpeg",),
    ),
    Sample(
        path="openjd-opencue/multi_step_pipeline.yaml",
        parameters={
            "SceneFile": "{scenes}/small.blend",
            "OutputRoot": "{dir}",
            "CompScript": "{dir}/comp.nk",
            "FrameEnd": "1002",
        },
        steps={"Render": 2, "Denoise": 2, "Composite": 2, "Dailies": 1},
        state="failed",
        says=("/tools/denoise/denoise_frame.py",),
        needs=("blender",),
        least_cpus=8,
    ),
    Sample(path="openjd-rs/chunked_job.yaml", steps={"Chunked Step": 4}, chunks={"Chunked Step": 40}),
    Sample(path="openjd-rs/redacted_env.yaml", steps={"CheckVars": 1}, says=("SECRETVAR is ********",)),
    Sample(
        path="openjd-rs/reverse_dependency_order.yaml",
        steps={"StepC": 1, "StepB": 1, "StepA": 1},
        says=("Running StepC",),
    ),
    Sample(path="openjd-rs/job_with_test_steps.yaml", steps=MANY, state=""),
    Sample(path="openjd-rs/job_interruptible_sleep.yaml", steps={"SleepStep": 1}, state=""),
    Sample(path="openjd-rs/wrap_simple_job.yaml", steps={"OnlyStep": 1}, says=("TaskBody Ran",)),
    Sample(
        path="openjd-rs/wrap_simple_job.yaml",
        environments=("openjd-rs/wrap_env_with_param.yaml",),
        parameters={"WrapPrefix": "given"},
        steps={"OnlyStep": 1},
        says=("WrapParam Task given",),
    ),
    # One layer of wrapping is allowed.
    Sample(
        path="openjd-rs/wrap_simple_job.yaml",
        environments=("openjd-rs/wrap_env_with_param.yaml", "openjd-rs/wrap_env_second.yaml"),
        steps={"OnlyStep": 1},
        state="refused",
        differs_here="failed",
    ),
    Sample(
        path="openjd-rs/wrap_simple_job.yaml",
        environments=("openjd-rs/env_fails_enter.yaml",),
        steps={"OnlyStep": 1},
        state="failed",
        says=("EnvEnterFail Enter",),
    ),
    Sample(
        path="openjd-rs/wrap_simple_job.yaml",
        environments=("openjd-rs/env_fails_exit.yaml",),
        steps={"OnlyStep": 1},
        state="failed",
        says=("TaskBody Ran", "EnvExitFail Exit"),
    ),
    Sample(path="openjd-rs/wrap_job_with_inner_env.yaml", steps={"OnlyStep": 1}, says=("TaskBody Ran",)),
    Sample(
        path="openjd-rs/all_types_template.yaml",
        steps={"TestAllTypes": 1},
        says=("sum-ListIntParam=6", "ListListIntParam-0-1=2"),
    ),
    Sample(
        path="openjd-rs/all_types_template.yaml",
        steps={"TestAllTypes": 1},
        scenario="openjd-rs/all_types_scenario.yaml",
    ),
    # The program `openjd` leaves a chunk a text, which `list()` refuses.
    Sample(
        path="openjd-rs/all_task_param_types_template.yaml",
        steps={"TestAllTypes": 2, "TestChunkInt": 2},
        chunks={"TestChunkInt": 10},
        scenario="openjd-rs/all_task_param_types_scenario.yaml",
        says=("INT: 2 x 10 = 20", "STRING: BETA", "PATH.stem: b"),
        differs_here="-",
    ),
    Sample(
        path="openjd-rs/let_bindings_template.yaml",
        steps={"TestLetBindings": 2},
        scenario="openjd-rs/let_bindings_scenario.yaml",
    ),
    Sample(path="openjd-rs/feature_bundle_1_bash.yaml", steps={"BashStep": 1}, says=("Hello from Bash!",)),
    Sample(
        path="openjd-rs/feature_bundle_1_notify_period.yaml",
        steps={"TestStep": 1},
        says=("Notify period works!",),
    ),
    Sample(
        path="openjd-rs/feature_bundle_1_timeout.yaml",
        steps={"TimeoutStep": 1},
        says=("Running with timeout 5s",),
    ),
)

AROUND: Final = (
    f"{ENVIRONMENTS}/environment-variables.yaml",
    f"{ENVIRONMENTS}/python-venv.yaml",
    f"{QUEUE}/conda_queue_env_from_console.yaml",
    f"{QUEUE}/rez_queue_env.yaml",
    "openjd-rs/env_fails_enter.yaml",
    "openjd-rs/env_fails_exit.yaml",
    "openjd-rs/wrap_env_second.yaml",
    "openjd-rs/wrap_env_with_param.yaml",
)
"""Environment templates."""
