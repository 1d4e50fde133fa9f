from __future__ import annotations

import json

import pytest

from farm.cli import stalled
from farm.cli.stalled import costs_told
from farm.http import examples
from farm.model.stalls import MoveCosts


class Answering:
    """A farm with one stalled attempt."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, object]] = []

    def get(self, path: str, **query: object) -> object:
        self.asked.append((path, query.get("silent")))
        return examples.page(examples.STALLED)


def test_the_table_has_verdict_evidence_and_deed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    client = Answering()
    stalled.stalled(client, with_silent=False, is_json=False)  # type: ignore[arg-type]
    out = capsys.readouterr().out
    for told in ("hung", "blade-3", "no CPU, no I/O for 2:10", "ended, to run on another node", "shot_010"):
        assert told in out
    assert client.asked == [("/stalled", None)]
    monkeypatch.setenv("COLUMNS", "80")
    stalled.stalled(client, with_silent=True, is_json=False)  # type: ignore[arg-type]
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert client.asked[-1] == ("/stalled", "true")


def test_json_is_the_farms_own_objects(capsys: pytest.CaptureFixture[str]) -> None:
    stalled.stalled(Answering(), with_silent=False, is_json=True)  # type: ignore[arg-type]
    (item,) = json.loads(capsys.readouterr().out)
    assert item["stall"]["kind"] == "hung"
    assert item["attempt"]["evidence"]["cpu_idle_s"] == 130.0


def test_what_moving_cost_is_told_in_words() -> None:
    assert costs_told(MoveCosts()) == ""
    told = costs_told(MoveCosts(moved=2, copies=1, copies_won=1, lost_s=320.0, saved_s=2_700.0))
    assert told == "2 moved, 1 copy (1 won): 5:20 of work lost, 45:00 saved"
    assert costs_told(MoveCosts(killed=1, lost_s=60.0)).startswith("1 killed: 1:00 of work lost")
