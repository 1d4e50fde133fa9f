"""Public Open Job Description templates, as they are, through a whole farm.

They lie beside the project where it is developed; elsewhere these tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.farm_under_test import FarmUnderTest
from tests.e2e.pictures import check_equal
from tests.openjd_samples import ALL, DEADLINE, MANY, QUEUE, ROOT, SPEC, Sample, needs_samples
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.e2e, needs_samples]


def log_of(farm: FarmUnderTest, attempt_id: str) -> str:
    found = farm.get(f"/attempts/{attempt_id}/log", limit=1000)
    return "".join(chunk["text"] for chunk in found["chunks"])


def told(farm: FarmUnderTest, job_id: int) -> str:
    """All logs and reasons of the job."""
    attempts = farm.attempts(job_id)
    return "\n".join(log_of(farm, a["id"]) + a["reason"] for a in attempts)


def test_public_samples_end_as_they_should(
    facility: FarmUnderTest, blender_scenes: Path, sample_pictures: Path, tmp_path: Path
) -> None:
    jobs: list[tuple[Sample, int, Path]] = []
    for number, sample in enumerate(ALL):
        if sample.state == "" or not sample.is_possible:
            continue
        directory = tmp_path / str(number)
        directory.mkdir()
        given = sample.given(dir=directory, scenes=blender_scenes, frames=sample_pictures)
        options = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
        options += [word for path in sample.environments for word in ("--env", str(ROOT / path))]
        if sample.state == "failed":
            options += ["--retries", "0", "--max-failed", "0"]
        words = (str(ROOT / sample.path), *options)
        if sample.state == "refused":
            assert facility.try_farm("submit", *words).returncode == 2
        else:
            jobs.append((sample, facility.submit(*words), directory))
    problems = [told for job in jobs if (told := _what_is_wrong(facility, *job, sample_pictures))]
    assert not problems, "\n\n".join(problems)


def _what_is_wrong(farm: FarmUnderTest, sample: Sample, job_id: int, directory: Path, pictures: Path) -> str:
    steps = {step["name"]: sum(step["counts"].values()) for step in farm.job(job_id)["job"]["steps"]}
    if sample.state_on_farm == "waits":
        state = "waits" if "attr." in (why := farm.farm("why", str(job_id))) or "CPU" in why else why
        farm.farm("cancel", str(job_id))
        text, missing = why, []
    else:
        state = farm.wait_for_job(job_id, timeout_s=150)
        text = told(farm, job_id)
        missing = [word for word in sample.told() if word not in text]
        missing += [name for name in sample.files if not (directory / name).is_file()]
    if state != sample.state_on_farm or steps != sample.steps or missing:
        return f"{sample}: {state}, {steps}, missing {missing}\n{text[-1500:]}"
    if state != "waits":
        for name, by_hand in sample.pictures:
            check_equal(directory / name, pictures / by_hand)
    return ""


def test_what_a_bundle_says_to_the_farm_counts(facility: FarmUnderTest, tmp_path: Path) -> None:
    """Of its `parameter_values.yaml`: no failed task is allowed, and each is tried again twice."""
    where = ("-p", "S3CopySource=s3://nowhere/scene", "-p", f"WorkspacePath={tmp_path}")
    job_id = facility.submit(str(ROOT / DEADLINE / "copy_s3_prefix_to_job_attachments"), *where)
    assert facility.wait_for_job(job_id) == "failed"
    assert [attempt["state"] for attempt in facility.attempts(job_id)] == ["failed"] * 3
    settings = facility.job(job_id)["job"]["settings"]
    assert (settings["max_failed_tasks"], settings["max_retries"]) == (0, 2)


def test_what_a_queue_environment_wants_to_know_is_asked_for_once(facility: FarmUnderTest) -> None:
    """The template has a parameter of the same name; the job's value goes to both."""
    bundle = str(ROOT / DEADLINE / "job_dev_progression" / "stage_1_self_contained_template")
    around = ("--env", str(ROOT / QUEUE / "conda_queue_env_from_console.yaml"))
    told = facility.farm("submit", "--pretend", bundle, *around, "-p", "CondaPackages=polars=1.0")
    assert "InitializeWithBash" in told
    wrong = facility.try_farm("submit", "--pretend", bundle, *around, "-p", "CondaPackage=polars")
    assert (wrong.returncode, "CondaPackages" in wrong.stderr) == (2, True)


def test_a_sample_that_needs_docker_fails_in_its_environment(facility: FarmUnderTest) -> None:
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0:
        pytest.skip("Docker works here")
    job_id = facility.submit(str(ROOT / SPEC / "bash-in-docker.yaml"), "--retries", "0")
    assert facility.wait_for_job(job_id) == "failed"
    tasks = facility.get(f"/jobs/{job_id}/tasks")["items"]
    assert [t["state"] for t in tasks] == ["failed"] * 3
    assert all("DockerContainer" in t["reason"] for t in tasks)


def test_a_sample_that_fits_no_node_waits_and_says_why(facility: FarmUnderTest) -> None:
    job_id = facility.submit(str(ROOT / SPEC / "host-requirements.yaml"))
    text = facility.farm("why", str(job_id))
    assert "attr.custom.host_config" in text
    facility.farm("cancel", str(job_id))
    assert facility.wait_for_job(job_id) == "cancelled"


def test_a_sample_of_many_steps_goes_on_where_it_can(facility: FarmUnderTest) -> None:
    job_id = facility.submit(str(ROOT / "openjd-rs/job_with_test_steps.yaml"))

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
    assert found == {name: {"done": n} for name, n in MANY.items() if name in found}
    assert len(found) == len(MANY) - 2


def test_a_sample_that_sleeps_is_cancelled_at_once(facility: FarmUnderTest) -> None:
    job_id = facility.submit(str(ROOT / "openjd-rs/job_interruptible_sleep.yaml"))
    wait_until(lambda: "READY_FOR_SIGNAL" in told(facility, job_id), "its sleep")
    facility.farm("cancel", str(job_id))
    assert facility.wait_for_job(job_id, timeout_s=15) == "cancelled"
    assert "EXIT_NORMAL" not in told(facility, job_id)
