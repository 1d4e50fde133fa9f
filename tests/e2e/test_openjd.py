"""Open Job Description templates of our own, through a whole farm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.farm_under_test import FarmUnderTest
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.e2e]

WEDGES = """
specificationVersion: jobtemplate-2023-09
name: "Wedges {{Param.Title}}"
parameterDefinitions:
- {name: Title, type: STRING, minLength: 1}
- {name: Out, type: PATH, objectType: DIRECTORY, dataFlow: OUT}
- {name: Last, type: INT, default: 2, maxValue: 9}
jobEnvironments:
- name: Job
  variables: {LEVEL: job, KEPT: "{{Param.Title}}"}
  script:
    actions:
      onEnter: {command: sh, args: ["-c", "echo openjd_env: GIVEN=by the environment"]}
      onExit: {command: sh, args: ["-c", "echo left >> '{{Param.Out}}/left.txt'"]}
steps:
- name: Collect
  dependencies: [{dependsOn: Render}]
  script:
    actions:
      onRun: {command: sh, args: ["-c", "cat '{{Param.Out}}'/*.line > '{{Param.Out}}/all.txt'"]}
- name: Render
  stepEnvironments:
  - {name: Step, variables: {LEVEL: step}}
  parameterSpace:
    taskParameterDefinitions:
    - {name: Frame, type: INT, range: "1-{{Param.Last}}"}
    - {name: Hue, type: STRING, range: [red, green]}
    - {name: Size, type: FLOAT, range: [1.5, 2.5]}
    combination: "(Hue, Size) * Frame"
  script:
    actions:
      onRun: {command: sh, args: ["{{Task.File.Run}}"]}
    embeddedFiles:
    - name: Run
      type: TEXT
      data: |
        name="{{Task.Param.Hue}} {{Task.Param.Size}} {{Task.Param.Frame}}"
        echo "$name $LEVEL $KEPT $GIVEN" > "{{Param.Out}}/$name.line"
"""

CHUNKS = """
specificationVersion: jobtemplate-2023-09
extensions: [TASK_CHUNKING]
name: Chunks
parameterDefinitions:
- {name: Out, type: PATH, objectType: DIRECTORY, dataFlow: OUT}
steps:
- name: Render
  parameterSpace:
    taskParameterDefinitions:
    - name: Frames
      type: CHUNK[INT]
      range: "1-3,5-9:2,20"
      chunks: {defaultTaskCount: 3, rangeConstraint: "{{Constraint}}"}
  script:
    actions:
      onRun: {command: touch, args: ["{{Param.Out}}/{{Task.Param.Frames}}"]}
"""

SECRET = """
specificationVersion: jobtemplate-2023-09
extensions: [REDACTED_ENV_VARS]
name: Secret
jobEnvironments:
- name: Login
  script:
    actions:
      onEnter: {command: sh, args: ["-c", "echo openjd_redacted_env: PASS=sesame$((40 + 2))"]}
steps:
- name: Use
  script:
    actions:
      onRun: {command: sh, args: ["-c", "test ${#PASS} = 8 && echo it is $PASS here"]}
"""


def one_step(script: str, *, extra: str = "") -> str:
    """A template with one task that runs `script` in a shell."""
    lines = "\n".join(f"        {line}" for line in script.splitlines())
    return (
        "specificationVersion: jobtemplate-2023-09\nname: One\nsteps:\n- name: Run\n  script:\n"
        "    actions:\n      onRun: {command: sh, args: ['{{Task.File.Run}}']}\n"
        f"    embeddedFiles:\n    - name: Run\n      type: TEXT\n      data: |\n{lines}\n{extra}"
    )


def submit(farm: FarmUnderTest, directory: Path, template: str, *options: str) -> int:
    path = directory / "template.yaml"
    path.write_text(template, encoding="utf-8")
    return farm.submit(str(path), *options)


def tasks(farm: FarmUnderTest, job_id: int) -> list[Any]:
    return list(farm.get(f"/jobs/{job_id}/tasks")["items"])


def test_environments_dependencies_and_a_combined_space(facility: FarmUnderTest, tmp_path: Path) -> None:
    out = tmp_path / "wedges ü"
    out.mkdir()
    job_id = submit(facility, tmp_path, WEDGES, "-p", "Title=Öde 'Straße'", "-p", f"Out={out}")
    assert facility.wait_for_job(job_id) == "done"
    assert facility.job(job_id)["job"]["name"] == "Wedges Öde 'Straße'"
    wanted = [
        f"{hue} {size} {frame} step Öde 'Straße' by the environment"
        for hue, size in (("green", "2.5"), ("red", "1.5"))
        for frame in (1, 2)
    ]
    assert (out / "all.txt").read_text().splitlines() == wanted
    left = (out / "left.txt").read_text().splitlines()
    assert 1 <= len(left) <= 5, "an environment is left once for each session"


@pytest.mark.parametrize(
    ("constraint", "chunks"),
    [("NONCONTIGUOUS", ["1-3", "5,7", "9,20"]), ("CONTIGUOUS", ["1-3", "20-20", "5-5", "7-7", "9-9"])],
)
def test_chunks(facility: FarmUnderTest, tmp_path: Path, constraint: str, chunks: list[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    template = CHUNKS.replace("{{Constraint}}", constraint)
    job_id = submit(facility, tmp_path, template, "-p", f"Out={out}")
    assert facility.wait_for_job(job_id) == "done"
    assert sorted(path.name for path in out.iterdir()) == chunks
    assert len(tasks(facility, job_id)) == len(chunks)


def test_a_secret_is_in_no_log(facility: FarmUnderTest, tmp_path: Path) -> None:
    job_id = submit(facility, tmp_path, SECRET)
    assert facility.wait_for_job(job_id) == "done"
    log = facility.farm("logs", str(job_id))
    assert "it is ******** here" in log
    assert "sesame42" not in log


def test_a_task_says_itself_why_it_failed(facility: FarmUnderTest, tmp_path: Path) -> None:
    script = "echo openjd_progress: 40\necho 'openjd_fail: no licence for the ünicorn'"
    job_id = submit(facility, tmp_path, one_step(script), "--retries", "0")
    assert facility.wait_for_job(job_id) == "failed"
    (task,) = tasks(facility, job_id)
    assert task["reason"] == "no licence for the ünicorn"
    waited = facility.try_farm("wait", str(job_id))
    assert waited.returncode == 1


def test_a_failed_environment_fails_the_task_and_is_left_again(
    facility: FarmUnderTest, tmp_path: Path
) -> None:
    left = tmp_path / "left"
    extra = (
        "  stepEnvironments:\n  - name: Broken\n    script:\n      actions:\n"
        "        onEnter: {command: sh, args: ['-c', 'echo no such daemon; exit 3']}\n"
        f"        onExit: {{command: touch, args: ['{left}']}}\n"
    )
    job_id = submit(facility, tmp_path, one_step(f"touch '{tmp_path}/ran'", extra=extra), "--retries", "0")
    assert facility.wait_for_job(job_id) == "failed"
    (task,) = tasks(facility, job_id)
    assert "Broken" in task["reason"]
    assert left.exists()
    assert not (tmp_path / "ran").exists()


def test_a_failed_task_is_tried_on_another_node_at_once(facility: FarmUnderTest, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"if [ ! -e '{mark}' ]; then touch '{mark}'; echo broken; exit 4; fi"
    job_id = submit(facility, tmp_path, one_step(script))
    assert facility.wait_for_job(job_id, timeout_s=20) == "done"
    attempts = facility.attempts(job_id)
    assert sorted(a["state"] for a in attempts) == ["failed", "succeeded"]
    assert len({a["node_id"] for a in attempts}) == 2


def test_a_job_that_fits_no_node_waits_and_says_why(facility: FarmUnderTest, tmp_path: Path) -> None:
    extra = (
        "  hostRequirements:\n    attributes:\n    - {name: attr.custom.rig, anyOf: [nowhere]}\n"
        "    amounts:\n    - {name: amount.worker.memory, min: 900000000}\n"
    )
    job_id = submit(facility, tmp_path, one_step("true", extra=extra))

    def why() -> str:
        return facility.farm("why", str(job_id))

    text = wait_until(why, "a reason")
    assert "attr.custom.rig" in text
    assert "nowhere" in text
    assert "4 nodes" in text
    assert facility.job(job_id)["job"]["state"] == "active"
    facility.farm("cancel", str(job_id))
    assert facility.wait_for_job(job_id) == "cancelled"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "Title"),
        (("-p", "Title=x", "-p", "Out=/tmp", "-p", "Last=10"), "Last"),
        (("-p", "Title=x", "-p", "Out=/tmp", "-p", "Lost=1"), "Lost"),
    ],
)
def test_wrong_parameters_are_refused_by_name(
    facility: FarmUnderTest, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(WEDGES, encoding="utf-8")
    refused = facility.try_farm("submit", str(path), *options)
    assert refused.returncode == 2
    assert told in refused.stderr
