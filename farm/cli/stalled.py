"""`farm stalled`: what runs and gets nowhere, and by which evidence."""

from __future__ import annotations

import time
from typing import Any

from farm.cli.listing import Listing, Wanted
from farm.cli.naming import Connected
from farm.cli.show import Column, cell
from farm.control.fields import stalled_fields
from farm.control.views import StalledView
from farm.model.stalls import MoveCosts
from farm.text import duration


def stalled(client: Connected, *, with_silent: bool, wanted: Wanted) -> None:
    now = time.time()
    listing = Listing(StalledView, stalled_fields(now), "stalled attempts", wanted)
    answers = client().get("/stalled", silent="true" if with_silent else None)["items"]
    columns = [
        Column("Job", is_right=True),
        Column("Name", shrinks=True, least=8),
        Column("Frame"),
        Column("Node"),
        Column("Taken for"),
        Column("Since", is_right=True),
        Column("Evidence", shrinks=True, least=20),
        Column("Done about it", shrinks=True, least=10),
    ]

    def row(item: StalledView) -> list[Any]:
        return [
            cell(item.attempt.job_id),
            cell(item.job_name),
            cell(item.label),
            cell(item.attempt.node_id),
            cell(item.stall.kind, "yellow" if item.stall.is_stall else "dim"),
            cell("-" if item.stall.since is None else duration(max(now - item.stall.since, 0))),
            cell(item.stall.text),
            cell(item.stall.action or "-"),
        ]

    empty = "nothing such is taken for stalled" if wanted.is_filtered else "nothing is taken for stalled"
    listing.put(listing.matching(answers), columns, row, empty=empty)


def costs_told(costs: MoveCosts | None) -> str:
    """ "2 moved, 1 copy (1 won): 5:20 of work lost, 45:00 saved"; empty when nothing was."""
    if costs is None:
        return ""
    parts = []
    if costs.moved:
        parts.append(f"{costs.moved:,} moved")
    if costs.killed:
        parts.append(f"{costs.killed:,} killed")
    copies = costs.copies + costs.speculations
    if copies:
        parts.append(f"{copies:,} {'copy' if copies == 1 else 'copies'} ({costs.copies_won:,} won)")
    if not parts:
        return ""
    return f"{', '.join(parts)}: {duration(costs.lost_s)} of work lost, {duration(costs.saved_s)} saved"
