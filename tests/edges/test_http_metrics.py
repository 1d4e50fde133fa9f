"""What Prometheus is told, read back with its own parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from farm.control.matcher import Matcher
from farm.model.ids import NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.settings import load_settings
from farm.store import nodes, ready
from farm.store.engine import open_engine, reading, writing
from farm.wire.messages import Heartbeat
from tests.edges.api import V1, Api, open_api

HOSTILE = 'EPYC"} 1\n# HELP old\\'
"""A device's name, as a node may send it."""
OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


@pytest.fixture
def api(sqlite_url: str, tmp_path: Path) -> Iterator[Api]:
    engine: sa.Engine = open_engine(sqlite_url)
    with open_api(engine, tmp_path) as opened:
        yield opened
    engine.dispose()


def _scraped(api: Api) -> dict[str, dict[tuple[str, ...], float]]:
    """Metric -> values of its labels -> figure, for somebody who is no admin."""
    answer = api.anna.get(f"{V1}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(answer.text)
    }


def test_an_empty_farm_has_figures(api: Api) -> None:
    told = _scraped(api)
    assert told["ridgeline_leaders"] == {(): 0}
    assert told["ridgeline_slots"] == {(): 0}
    assert told["ridgeline_nodes"][("online",)] == 0
    assert set(told["ridgeline_tasks"].values()) == {0}
    assert "ridgeline_spread_seconds" not in told, "nothing was done: 0 would be a lie"


def test_figures_are_those_of_the_api(api: Api) -> None:
    cpu = Device(id="cpu", kind=DeviceKind.CPU, model=HOSTILE, slots=3)
    machine = Capabilities(cpus=8, memory_mib=16_000, devices=(cpu,))
    beat = Heartbeat(node_id=NodeId("blade"), session="s", boot_id="b", sequence=1, capabilities=machine)
    with writing(api.engine) as db:
        nodes.heard(db, beat, rival_s=30)
    api.submit(api.anna)
    assert api.admin.put(f"{V1}/limits/arnold", json={"amount": 4}).status_code == 200
    matcher = Matcher(load_settings(environment={}))
    with reading(api.engine) as db:
        matcher.plan(db, ready.groups(db), nodes.views(db, ready.uses(db)), limit=2)
    with writing(api.engine) as db:
        matcher.save(db)
    told = _scraped(api)
    assert told["ridgeline_slots"] == {(): 3}
    assert told["ridgeline_device_slots"] == {(HOSTILE,): 3}
    assert told["ridgeline_waiting_work_seconds"][()] > 0
    assert told["ridgeline_nodes"][("online",)] == 1
    assert told["ridgeline_tasks"][("ready",)] == 10
    assert told["ridgeline_limit_amount"] == {("arnold",): 4}
    assert told["ridgeline_limit_used"] == {("arnold",): 0}


def test_the_documents_name_every_metric_and_no_other(api: Api) -> None:
    api.submit(api.anna)
    section = OPERATING.read_text(encoding="utf-8").split("## Watch")[1].split("\n## ")[0]
    named = set(re.findall(r"`(ridgeline_\w+)", section))
    only_later = {"ridgeline_spread_seconds", "ridgeline_spread_floor_seconds", "ridgeline_spread_ratio"}
    assert named == set(_scraped(api)) | only_later
