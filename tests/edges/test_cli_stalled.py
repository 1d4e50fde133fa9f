from __future__ import annotations

import json

from farm.cli.stalled import costs_told
from farm.http import examples
from farm.model.stalls import MoveCosts
from tests.edges.cli_farm import Cli, FakeFarm


def test_the_table_has_verdict_evidence_and_deed(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/stalled", examples.page(examples.STALLED))
    cli.patch.setenv("COLUMNS", "200")
    out = cli.good("stalled")
    for told in ("hung", "blade-3", "no CPU, no I/O for 2:10", "ended, to run on another node", "shot_010"):
        assert told in out
    assert farm.last("GET", "/stalled").query == {}
    cli.patch.setenv("COLUMNS", "80")
    assert max(map(len, cli.good("stalled", "--all").splitlines())) <= 80
    assert farm.last("GET", "/stalled").query == {"silent": ["true"]}


def test_json_is_the_farms_own_objects(cli: Cli, farm: FakeFarm) -> None:
    farm.answer("GET", "/stalled", examples.page(examples.STALLED))
    (item,) = json.loads(cli.good("stalled", "kind=hung", "--json"))
    assert item["stall"]["kind"] == "hung"
    assert item["attempt"]["evidence"]["cpu_idle_s"] == 130.0


def test_what_moving_cost_is_told_in_words() -> None:
    assert costs_told(MoveCosts()) == ""
    told = costs_told(MoveCosts(moved=2, copies=1, copies_won=1, lost_s=320.0, saved_s=2_700.0))
    assert told == "2 moved, 1 copy (1 won): 5:20 of work lost, 45:00 saved"
    assert costs_told(MoveCosts(killed=1, lost_s=60.0)).startswith("1 killed: 1:00 of work lost")
