"""The table of weights in the docs is the one in the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from farm.flow.weights import Weights

DOCS = Path(__file__).resolve().parents[2] / "docs" / "matching.md"


def test_every_weight_is_documented_with_its_default_and_what_it_does() -> None:
    text = DOCS.read_text(encoding="utf-8")
    table = text.split("<!-- weights -->")[1].split("<!-- /weights -->")[0]
    told = {row[0]: row[1:] for row in re.findall(r"^\| `(\w+)` \| (\S+) \| (.+) \|$", table, re.MULTILINE)}
    for each in fields(Weights):
        default = each.default
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            shown = f"{default:g}"
        assert told.pop(each.name) == (shown, each.metadata["what"])
    assert not told
