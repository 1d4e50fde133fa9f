"""Public Open Job Description templates, as they are, through a whole farm.

They lie beside the project where it is developed; elsewhere these tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.farm_under_test import FarmUnderTest, run
from tests.e2e.pictures import check_equal
from tests.waiting import wait_until

SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "openjd-samples"
DEADLINE = "deadline-cloud-samples/job_bundles"
SPEC = "openjd-specifications/job_templates"

pytestmark = [
    pytest.mark.services,
    pytest.mark.e2e,
    pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public samples are not here"),
]


@dataclass(frozen=True, kw_only=True)
class Sample:
    path: str
    parameters: dict[str, str] | None = None
    """`{dir}` stands for a directory of the sample's own, `{scenes}` for that of the scenes."""
    state: str = "done"
    tasks: int = 1
    says: tuple[str, ...] = ()
    """In the log of the last attempt, or in the reason of a failed task."""
    files: tuple[str, ...] = ()
    """Below the directory of its own."""
    pictures: tuple[tuple[str, str], ...] = ()
    """(one of `files`, the same rendered by hand, below the directory of frames)"""
    needs: tuple[str, ...] = ()
    """Programs."""


BLENDER = {"BlenderSceneFile": "{scenes}/small.blend", "OutputDir": "{dir}/out", "Frames": "1-2"}

ALL = (
    Sample(path=f"{SPEC}/stdout-messages.yaml", says=("Processing the things",)),
    Sample(path=f"{SPEC}/path-mapping.yaml", says=("No path mapping rules",)),
    Sample(
        path=f"{SPEC}/ui-controls-showcase.yaml",
        parameters={
            "InputFilePicker": "{scenes}/small.blend",
            "OutputFilePicker": "{dir}/out.txt",
            "DirectoryPicker": "{dir}",
        },
        says=("WEDNESDAY",),
    ),
    Sample(
        path=f"{SPEC}/ffmpeg.yaml",
        parameters={"InputFile": "{frames}/f_%04d.png", "OutputDir": "{dir}", "EndFrame": "3"},
        tasks=4,
        files=("h264_hq_output.mp4", "webm_output.webm", "prores_0_output.mov", "prores_3_output.mov"),
        needs=("ffmpeg",),
    ),
    # Its second step looks for `.PNG`, Blender writes `.png`.
    Sample(
        path=f"{SPEC}/blender-ffmpeg.yaml",
        parameters={"BlenderFile": "{scenes}/small.blend", "OutputDir": "{dir}/out", "EndFrame": "1"},
        state="failed",
        tasks=2,
        says=("render-%04d.PNG",),
        files=("out/render-0001.png",),
        pictures=(("out/render-0001.png", "hand_0001.png"),),
        needs=("blender", "ffmpeg"),
    ),
    Sample(path=f"{DEADLINE}/simple_job", says=("Welcome to AWS Deadline Cloud!",)),
    Sample(path=f"{DEADLINE}/cli_job", parameters={"DataDir": "{dir}"}, files=("computed_hashes.txt",)),
    Sample(path=f"{DEADLINE}/job_env_vars", says=("STEP_VERBOSITY=HIGH", "JOB_PROJECT_ID=step-project-12")),
    Sample(
        path=f"{DEADLINE}/job_env_daemon_process",
        parameters={"Frames": "1-4", "FailureRate": "0"},
        tasks=4,
        says=("SUCCESS",),
        needs=("jq", "ps"),
    ),
    Sample(
        path=f"{DEADLINE}/blender_render",
        parameters=BLENDER,
        tasks=2,
        files=("out/output_0001.jpg", "out/output_0002.jpg"),
        pictures=(("out/output_0001.jpg", "hand_0001.jpg"), ("out/output_0002.jpg", "hand_0002.jpg")),
        needs=("blender",),
    ),
    Sample(
        path=f"{DEADLINE}/task_chunking/blender_render_with_contiguous_chunks",
        parameters=BLENDER,
        files=("out/output_0001.jpg", "out/output_0002.jpg"),
        pictures=(("out/output_0001.jpg", "hand_0001.jpg"), ("out/output_0002.jpg", "hand_0002.jpg")),
        needs=("blender",),
    ),
    Sample(
        path=f"{DEADLINE}/task_chunking/blender_render_with_non_contiguous_chunks",
        parameters=BLENDER | {"Frames": "1,3"},
        files=("out/output_0001.jpg", "out/output_0003.jpg"),
        pictures=(("out/output_0001.jpg", "hand_0001.jpg"), ("out/output_0003.jpg", "hand_0003.jpg")),
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
        files=("out/output.mp4",),
        needs=("ffmpeg",),
    ),
    Sample(path="openjd-opencue/hello_world.yaml", tasks=10, says=("hello world - frame 10",)),
    Sample(path="openjd-rs/chunked_job.yaml", tasks=4),
    Sample(path="openjd-rs/redacted_env.yaml", says=("SECRETVAR is ********",)),
    Sample(path="openjd-rs/reverse_dependency_order.yaml", tasks=3, says=("Running StepC",)),
    Sample(path="openjd-rs/wrap_simple_job.yaml", says=("TaskBody Ran",)),
    Sample(path="openjd-rs/wrap_job_with_inner_env.yaml", says=("TaskBody Ran",)),
    Sample(path="openjd-rs/all_types_template.yaml", says=("sum-ListIntParam=6", "ListListIntParam-0-1=2")),
    Sample(
        path="openjd-rs/let_bindings_template.yaml",
        parameters={"BasePath": "/input/scene.exr", "InputFiles": '["/data/file1.exr", "/data/file2.exr"]'},
        tasks=2,
        says=("combined_value=",),
    ),
    Sample(path="openjd-rs/feature_bundle_1_bash.yaml", says=("Hello from Bash!",)),
    Sample(path="openjd-rs/feature_bundle_1_notify_period.yaml", says=("Notify period works!",)),
    Sample(path="openjd-rs/feature_bundle_1_timeout.yaml", says=("Running with timeout 5s",)),
)


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory, blender_scenes: Path) -> Path:
    """Three small images, a POV-Ray scene, and what the samples render, rendered by hand."""
    directory = tmp_path_factory.mktemp("frames")
    (directory / "ball.pov").write_text(
        "camera { location <0, 0, -4> look_at 0 } light_source { <2, 4, -3> rgb 1 }"
        "sphere { 0, 1 pigment { rgb x } }"
    )
    for number in (1, 2, 3):
        ppm = directory / f"f.{number}.ppm"
        ppm.write_bytes(b"P6 64 36 255\n" + bytes([number * 60]) * (64 * 36 * 3))
        subprocess.run(
            ["ffmpeg", "-loglevel", "error", "-i", ppm, directory / f"f_{number:04d}.png"], check=True
        )
        ppm.unlink()
    for kind in ("PNG", "JPEG"):
        where = ("-o", directory / "hand_####", "-F", kind, "-f", "1..3")
        run("blender", "-b", blender_scenes / "small.blend", *where)
    if shutil.which("povray") is not None:
        scene = (f"+I{directory}/ball.pov", f"+O{directory}/hand.png")
        run("povray", *scene, "+W64", "+H36", "+Q9", "+A0.3", "-D")
    return directory


def log_of(farm: FarmUnderTest, attempt_id: str) -> str:
    found = farm.get(f"/attempts/{attempt_id}/log", limit=1000)
    return "".join(chunk["text"] for chunk in found["chunks"])


def told(farm: FarmUnderTest, job_id: int) -> str:
    """All logs and reasons of the job."""
    attempts = farm.attempts(job_id)
    return "\n".join(log_of(farm, a["id"]) + a["reason"] for a in attempts)


def test_public_samples_end_as_they_should(
    facility: FarmUnderTest, blender_scenes: Path, frames: Path, tmp_path: Path
) -> None:
    jobs: list[tuple[Sample, int, Path]] = []
    for number, sample in enumerate(ALL):
        if not all(shutil.which(program) for program in sample.needs):
            continue
        directory = tmp_path / str(number)
        directory.mkdir()
        places = {"dir": directory, "scenes": blender_scenes, "frames": frames}
        given = {name: value.format(**places) for name, value in (sample.parameters or {}).items()}
        options = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
        retries = ("--retries", "0") if sample.state == "failed" else ()
        jobs.append((sample, facility.submit(str(SAMPLES / sample.path), *options, *retries), directory))
    problems = []
    for sample, job_id, directory in jobs:
        state = facility.wait_for_job(job_id, timeout_s=100)
        counts = facility.job(job_id)["counts"]
        text = told(facility, job_id)
        missing = [word for word in sample.says if word not in text]
        missing += [name for name in sample.files if not (directory / name).is_file()]
        if state != sample.state or sum(counts.values()) != sample.tasks or missing:
            problems.append(f"{sample.path}: {state}, {counts}, missing {missing}\n{text[-1500:]}")
        else:
            for name, by_hand in sample.pictures:
                check_equal(directory / name, frames / by_hand)
    assert not problems, "\n\n".join(problems)


def test_a_sample_that_needs_docker_fails_in_its_environment(facility: FarmUnderTest) -> None:
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0:
        pytest.skip("Docker works here")
    job_id = facility.submit(str(SAMPLES / SPEC / "bash-in-docker.yaml"), "--retries", "0")
    assert facility.wait_for_job(job_id) == "failed"
    tasks = facility.get(f"/jobs/{job_id}/tasks")["items"]
    assert [t["state"] for t in tasks] == ["failed"] * 3
    assert all("DockerContainer" in t["reason"] for t in tasks)


def test_a_sample_that_fits_no_node_waits_and_says_why(facility: FarmUnderTest) -> None:
    job_id = facility.submit(str(SAMPLES / SPEC / "host-requirements.yaml"))
    text = facility.farm("why", str(job_id))
    assert "attr.custom.host_config" in text
    facility.farm("cancel", str(job_id))
    assert facility.wait_for_job(job_id) == "cancelled"


def test_a_sample_of_many_steps_goes_on_where_it_can(facility: FarmUnderTest) -> None:
    job_id = facility.submit(str(SAMPLES / "openjd-rs/job_with_test_steps.yaml"))

    def counts() -> dict[str, dict[str, int]]:
        steps = facility.job(job_id)["job"]["steps"]
        return {s["name"]: {k: n for k, n in s["counts"].items() if n} for s in steps}

    def others_are_done() -> bool:
        return all(set(n) == {"done"} for name, n in counts().items() if name not in ("LongCommand", bad))

    bad = "BadCommand"
    try:
        wait_until(others_are_done, "all but two steps are done", timeout_s=60)
    except AssertionError as error:
        raise AssertionError(f"{error}: {counts()}") from error
    (task,) = facility.get(f"/jobs/{job_id}/tasks", step=bad)["items"]
    assert task["reason"] == "command not found: aaaaaaaaaa"
    facility.farm("cancel", str(job_id))
    assert facility.wait_for_job(job_id) == "cancelled"
    found = counts()
    assert found.pop("LongCommand") == found.pop(bad) == {"cancelled": 1}
    assert found.pop("TaskParamStep") == {"done": 9}
    assert found.pop("DependentParamStep") == {"done": 3}
    assert set(map(str, found.values())) == {"{'done': 1}"}


def test_a_sample_that_sleeps_is_cancelled_at_once(facility: FarmUnderTest) -> None:
    job_id = facility.submit(str(SAMPLES / "openjd-rs/job_interruptible_sleep.yaml"))
    wait_until(lambda: "READY_FOR_SIGNAL" in told(facility, job_id), "its sleep")
    facility.farm("cancel", str(job_id))
    assert facility.wait_for_job(job_id, timeout_s=15) == "cancelled"
    assert "EXIT_NORMAL" not in told(facility, job_id)
