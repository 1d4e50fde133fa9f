"""`farm check`, `farm run`, `farm summary`: the arguments of `openjd`, bundles, public samples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.edges.cli_farm import Cli
from tests.farm_commands import FarmCommands, farm_commands
from tests.openjd_samples import ALL, AROUND, ROOT, Sample, needs_samples

CASES = sorted((ROOT / "conformance").glob("*.yaml"))
TEMPLATE: dict[str, Any] = {
    "specificationVersion": "jobtemplate-2023-09",
    "name": "hello",
    "parameterDefinitions": [{"name": "Word", "type": "STRING", "default": "none"}],
    "steps": [
        {
            "name": "Say",
            "parameterSpace": {
                "taskParameterDefinitions": [{"name": "Frame", "type": "INT", "range": "1-3"}]
            },
            "script": {
                "actions": {"onRun": {"command": "echo", "args": ["{{Param.Word}}-{{Task.Param.Frame}}"]}}
            },
        }
    ],
}


@pytest.fixture(scope="module")
def commands() -> Iterator[FarmCommands]:
    with farm_commands() as found:
        yield found


@pytest.fixture
def farm(commands: FarmCommands, tmp_path: Path) -> Callable[..., str]:
    def run(*words: str, status: int | None = 0) -> str:
        ended, told = commands(*words, cwd=tmp_path)
        assert status is None or ended == status, told
        assert "Traceback" not in told
        return told

    return run


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "template.yaml").write_text(yaml.safe_dump(TEMPLATE))
    values = [{"name": "Word", "value": "kept"}, {"name": "farm:priority", "value": 70}]
    (folder / "parameter_values.yaml").write_text(yaml.safe_dump({"parameterValues": values}))
    inputs = {"assetReferences": {"inputs": {"filenames": ["missing.exr"], "directories": []}}}
    (folder / "asset_references.yaml").write_text(yaml.safe_dump(inputs))
    return folder


def test_a_bundle_is_checked_with_what_it_refers_to(lonely_cli: Cli, bundle: Path) -> None:
    result = lonely_cli("check", str(bundle))
    assert (result.status, "missing.exr, which is not here" in result.err) == (0, True)


def test_json_is_what_openjd_prints_of_templates_that_the_farm_refuses_too(
    farm: Callable[..., str], bundle: Path, tmp_path: Path
) -> None:
    template = str(bundle / "template.yaml")
    for words in (("check",), ("summary",), ("run", "--maximum-tasks", "1")):
        assert json.loads(farm(*words, template, "--json"))["status"] == "success"
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(TEMPLATE | {"steps": []}))
    for asked in (("--json",), ("--output", "json"), ("--output=json",)):
        told = json.loads(farm("check", "bad.yaml", *asked, status=1))
        assert (told["status"], "steps" in told["message"]) == ("error", True)
    assert "choose one of" in farm("check", template, "--json", "--output", "yaml", status=2)


def test_a_bundle_runs_with_its_own_values_and_typed_ones_win(farm: Callable[..., str], bundle: Path) -> None:
    told = farm("run", str(bundle), "--step", "Say", "--maximum-tasks", "1")
    assert "kept-1" in told
    assert "kept-2" not in told
    assert "typed-3" in farm("run", str(bundle), "--step", "Say", "-tp", "Frame=3", "-p", "Word=typed")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steps": []}, "steps"),
        ({"extra": 1}, "extra"),
        (
            {"steps": [dict(TEMPLATE["steps"][0], dependencies=[{"dependsOn": "Say"}])]},
            "in a circle: Say -> Say",
        ),
        ({"specificationVersion": "environment-2023-09"}, "no valid Open Job Description"),
    ],
)
def test_a_wrong_template_is_status_1(
    lonely_cli: Cli, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(TEMPLATE | change))
    for command in ("check", "run", "summary"):
        assert told in lonely_cli.bad(command, str(path), status=1)


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_for_a_template_tells_its_parameters(lonely_cli: Cli, bundle: Path, option: str) -> None:
    assert "ARGUMENTS OF openjd run" in lonely_cli.good("run", option)
    assert "Word (STRING)" in lonely_cli.good("run", str(bundle), option)


@pytest.mark.parametrize("command", ["check", "run", "summary"])
def test_the_help_names_every_option_that_openjd_has(lonely_cli: Cli, command: str) -> None:
    theirs = subprocess.run(
        [str(Path(sys.executable).parent / "openjd"), command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    ours = re.sub(r"-\n +", "-", lonely_cli.good(command, "--help"))  # wrapped at a hyphen
    for option in set(re.findall(r"(?:^  |, )(-{1,2}[a-z][a-z-]*)", theirs, re.MULTILINE)):
        assert option in ours, option


def test_arguments_come_in_any_order(lonely_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(TEMPLATE | {"extra": 1}))
    for words in (
        ("--output", "json", str(path)),
        (str(path), "--output", "json"),
        ("--output=json", str(path)),
    ):
        refused = lonely_cli("check", *words)
        assert refused.status == 1
        assert "extra" in json.loads(refused.out)["message"]
    assert lonely_cli("check").status == 2
    assert lonely_cli("check", str(tmp_path / "none.yaml")).status != 0


def test_what_a_template_makes_is_summed_up(lonely_cli: Cli, bundle: Path) -> None:
    told = json.loads(lonely_cli.good("summary", str(bundle), "--output", "json"))
    assert told["total_tasks"] == 3


@needs_samples
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_a_case_of_the_upstream_conformance_suite(
    farm: Callable[..., str], case: Path, tmp_path: Path
) -> None:
    is_invalid = ".invalid." in case.name
    if ".test." not in case.name:
        farm("check", str(case), status=1 if is_invalid else 0)
        return
    told = yaml.safe_load(case.read_text())
    template = tmp_path / "template.yaml"
    template.write_text(yaml.safe_dump(told["template"]))
    words = [
        word for name, value in (told.get("parameters") or {}).items() for word in ("-p", f"{name}={value}")
    ]
    for number, environment in enumerate(told.get("environments") or ()):
        path = tmp_path / f"environment{number}.yaml"
        path.write_text(yaml.safe_dump(environment))
        words += ["--env", str(path)]
    if told.get("pathMapping"):
        rules = {"version": "pathmapping-1.0", "path_mapping_rules": told["pathMapping"]}
        words += ["--path-mapping-rules", json.dumps(rules)]
    out = farm("run", str(template), *words, status=None)
    expected = told.get("expected") or {}
    wanted = [*expected.get("output", ()), *expected.get("output_posix", ())]
    assert [line for line in wanted if line not in out] == [], out
    assert [line for line in expected.get("forbidden", ()) if line in out] == []


@needs_samples
def test_the_table_has_every_sample_that_is_there() -> None:
    found = {
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*.yaml") if path.parent.name != "conformance"
    }
    scenarios = {path for path in found if path.endswith("_scenario.yaml")}
    others = {path for path in found if path.endswith("parameter_values.yaml")}
    templates = {path.removesuffix("/template.yaml") for path in found - scenarios - others}
    assert templates == {sample.path for sample in ALL} | set(AROUND)
    assert set(AROUND) >= {path for sample in ALL for path in sample.environments}
    assert scenarios == {sample.scenario for sample in ALL} - {""}


@needs_samples
@pytest.mark.parametrize("path", sorted({sample.path for sample in ALL} | set(AROUND)))
def test_a_public_template_is_good(lonely_cli: Cli, path: str) -> None:
    assert "passes validation checks" in lonely_cli.good("check", str(ROOT / path))


@needs_samples
@pytest.mark.parametrize("name", sorted({sample.scenario for sample in ALL} - {""}))
def test_what_is_no_template_is_refused(lonely_cli: Cli, name: str) -> None:
    assert "specificationVersion" in lonely_cli.bad("check", str(ROOT / name), status=1)


@needs_samples
@pytest.mark.parametrize("sample", [s for s in ALL if not s.environments], ids=lambda sample: sample.path)
def test_a_public_sample_is_summed_up(lonely_cli: Cli, sample: Sample, tmp_path: Path) -> None:
    """Without environments, whose parameters are not the template's."""
    given = sample.given(dir=tmp_path, scenes=tmp_path, frames=tmp_path)
    words = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
    told = json.loads(lonely_cli.good("summary", str(ROOT / sample.path), *words, "--output", "json"))
    assert {step["name"]: step["total_tasks"] for step in told["steps"]} == {**sample.steps, **sample.chunks}
    assert told["total_tasks"] == sum({**sample.steps, **sample.chunks}.values())


@pytest.mark.parametrize("words", [("check",), ("summary",), ("check", "--json")])
def test_a_reader_that_has_left_is_met_without_a_traceback(bundle: Path, words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "farm.main", words[0], str(bundle), *words[1:]],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(write)
    assert "Traceback" not in ended.stderr
    assert "Broken pipe" not in ended.stderr
