"""What matching has learnt, through the API and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from farm.control.matcher import Matcher
from farm.http import examples
from farm.model.ids import NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.states import Outcome
from farm.settings import load_settings
from farm.simulate.answer import Question, ask, scenario_of
from farm.store import moves, nodes, ready, settling
from farm.store.engine import open_engine, reading, writing
from farm.wire.messages import Finished, Heartbeat
from tests.edges.api import V1, Api, open_api
from tests.edges.cli_farm import Cli, FakeFarm
from tests.leasing import lease


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[sa.Engine]:
    opened = open_engine(sqlite_url)
    yield opened
    opened.dispose()


@pytest.fixture
def api(engine: sa.Engine, tmp_path: Path) -> Iterator[Api]:
    with open_api(engine, tmp_path) as opened:
        yield opened


def _play(engine: sa.Engine, matcher: Matcher, seconds: float) -> None:
    """Match once, run what was assigned, and let the matcher learn."""
    with writing(engine) as db:
        matcher.save(db)
    with reading(engine) as db:
        views = nodes.views(db, ready.uses(db))
        plan = matcher.plan(db, ready.groups(db), views, limit=2)
    for assignment in plan:
        with writing(engine) as db:
            moves.lock_jobs(db, {assignment.job_id})
            leases = lease(
                db,
                assignment.step_id,
                assignment.node_id,
                assignment.count,
                device_id=assignment.device_id,
                decision=matcher.decision(assignment),
                name=lambda task: f"a-{task.task_id}",
            )
            attempts = [each.attempt_id for each in leases]
            ends = [Finished(attempt_id=a, outcome=Outcome.SUCCEEDED, runtime_s=seconds) for a in attempts]
            settling.finished(db, {assignment.node_id: ends})
        with reading(engine) as db:
            matcher.learn(db, attempts)
    with writing(engine) as db:
        matcher.save(db)


def test_profile_prices_and_reasons_are_told(engine: sa.Engine, api: Api) -> None:
    cpu = Device(
        id="cpu", kind=DeviceKind.CPU, model="EPYC", slots=2, fp32_tflops=1.0, memory_bandwidth_gbps=40.0
    )
    machine = Capabilities(cpus=8, memory_mib=16_000, devices=(cpu,))
    with writing(engine) as db:
        beat = Heartbeat(node_id=NodeId("blade"), session="s", boot_id="b", sequence=1, capabilities=machine)
        nodes.heard(db, beat, rival_s=30)
    job_id = api.submit(api.anna)
    assert api.anna.get(f"{V1}/jobs/{job_id}/profile").json()["steps"][0]["runs"] == 0
    matcher = Matcher(load_settings(environment={}))
    _play(engine, matcher, 42.0)
    (step,) = api.anna.get(f"{V1}/jobs/{job_id}/profile").json()["steps"]
    assert step["runs"] == 2
    assert step["times"][0]["model"] == "EPYC"
    assert step["times"][0]["median_s"] == pytest.approx(42, rel=0.2)
    assert step["times"][0]["upper_s"] > step["times"][0]["median_s"]
    told = api.anna.get(f"{V1}/matching").json()
    assert told["tasks"] == 2
    assert told["spread"]["p99_s"] == 42
    assert told["within"] == {"count": 2, "sd_s": 0, "relative": 0, "floor_sd_s": 0}
    assert told["predictions"] is None, "what was said before the first run was a guess"
    assert [(p["policy"], p["within"]["count"]) for p in told["policies"]] == [("predictive", 2)]
    assert told["models"][0]["model"] == "EPYC"
    assert told["models"][0]["slots"] * told["models"][0]["price"] == pytest.approx(1, rel=0.01)
    attempts = api.anna.get(f"{V1}/jobs/{job_id}/attempts").json()["items"]
    assert {attempt["decision"]["model"] for attempt in attempts} == {"EPYC"}
    assert all(attempt["decision"]["upper_s"] > attempt["decision"]["predicted_s"] for attempt in attempts)
    _play(engine, matcher, 42.0)
    told = api.anna.get(f"{V1}/matching").json()
    assert (told["tasks"], told["predictions"]["count"]) == (4, 2)


def test_what_was_recorded_can_be_played_again(engine: sa.Engine, api: Api, tmp_path: Path) -> None:
    cpu = Device(
        id="cpu", kind=DeviceKind.CPU, model="EPYC", slots=2, fp32_tflops=1.0, memory_bandwidth_gbps=40.0
    )
    with writing(engine) as db:
        machine = Capabilities(cpus=8, memory_mib=16_000, devices=(cpu,))
        beat = Heartbeat(node_id=NodeId("blade"), session="s", boot_id="b", sequence=1, capabilities=machine)
        nodes.heard(db, beat, rival_s=30)
    api.submit(api.anna)
    _play(engine, Matcher(load_settings(environment={})), 42.0)
    answer = api.anna.get(f"{V1}/recording?hours=1").json()
    (step,) = answer["steps"]
    assert step["seconds"]["EPYC"] == pytest.approx(42, rel=0.2)
    assert step["content"][0] * step["seconds"]["EPYC"] == pytest.approx(42, rel=1e-3)
    path = tmp_path / "night.json"
    path.write_text(json.dumps(answer))
    (played,) = ask([Question(name="again", scenario=scenario_of(path))], [0])
    assert played.runs[0].frames == len(step["content"])
    assert api.anna.get(f"{V1}/recording?hours=0").status_code == 422


def test_a_farm_that_has_done_nothing_says_so(api: Api) -> None:
    told = api.anna.get(f"{V1}/matching").json()
    assert (told["tasks"], told["spread"], told["models"]) == (0, None, [])
    assert api.anna.get(f"{V1}/jobs/999/profile").status_code == 404


def test_the_commands_print_what_the_api_tells(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/recording", examples.shown(examples.RECORDING))
    cli.good("record", "night.json", "--hours", "3")
    assert farm.last("GET", "/recording").query == {"hours": ["3.0"]}
    assert "RTX 4090" in (cli.folder / "night.json").read_text()
    assert "a recording is JSON" in cli("record", "night.txt").err
    assert "--load has no meaning for a recording" in cli("simulate", "night.json", "--load", "0.5").err
    printed = cli.good("simulate", "night.json", "--add", "NVIDIA GeForce RTX 4090=4", "--add", "L40S=1")
    assert "predictive + L40S=1" in printed
    farm.answer("GET", "/matching", examples.shown(examples.MATCHING))
    printed = cli.good("stats")
    assert "95 of 100" in printed
    assert "blade-3 takes 1.60 times as long" in cli("stats").err
    printed = cli.good("capacity")
    assert "RTX 4090" in printed
    assert "2:47" in printed
    job = examples.shown(examples.JOB_VIEW)
    farm.answer("GET", f"/jobs/{job['job']['id']}", job)
    farm.answer("GET", f"/jobs/{job['job']['id']}/profile", examples.shown(examples.PROFILE))
    printed = cli.good("profile", str(job["job"]["id"]))
    assert "62% arithmetic" in printed
    assert "learnt from" in printed
