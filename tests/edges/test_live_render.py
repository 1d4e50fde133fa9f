"""The live view's picture, at the sizes people use and at those they do not."""

from __future__ import annotations

import io
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from farm.live.feed import Feed
from farm.live.plain import changes, overview
from farm.live.render import Column, bar, cell, figure, fit_columns, render, share_rows
from farm.live.snapshot import Snapshot, fetch
from farm.live.view import Pane, View
from farm.model.work import Counts
from tests.edges.live_farm import HOSTILE, FakeFarm, a_job, a_node, an_event

SNAPSHOTS = Path(__file__).parent / "snapshots"


def a_snapshot(farm: FakeFarm | None = None, **changes: Any) -> Snapshot:
    asked = fetch((farm or FakeFarm()).get)
    return replace(asked, **({"utc_offset_s": 0.0, "per_minute": 12.4} | changes))


def drawn(snapshot: Snapshot, width: int, height: int, *, colour: bool = False, **view: Any) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        legacy_windows=False,
    )
    console.print(render(snapshot, width, height, colour=colour, view=View(**view)), end="")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def named(name: str) -> FakeFarm:
    """Everything that a person or a node can name is called `name`."""
    farm = FakeFarm()
    farm.jobs = [
        a_job(7, name=name, waiting=name, settings={"user": name}),
        a_job(8, name=name, state="failed", reason=name),
    ]
    capabilities = {"devices": [{"id": "cpu", "kind": "cpu", "model": name}]}
    farm.nodes = [
        a_node(name, capabilities=capabilities, running=[name, name], reason=name),
        a_node("idle", running=[], reason=name),
    ]
    farm.events = [an_event(1, text=name, actor=name)]
    return farm


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_the_picture_is_as_it_was(width: int, height: int) -> None:
    stored = SNAPSHOTS / f"live-{width}x{height}.txt"

    assert drawn(a_snapshot(), width, height) == stored.read_text(encoding="utf-8")


def test_a_lost_farm_is_told_in_the_header_and_the_last_picture_stays() -> None:
    lost = a_snapshot(lost_s=12.0, lost_reason="cannot reach http://farm:7450")

    header, *rest = drawn(lost, 80, 24).splitlines()

    assert "LOST for 12 s: cannot reach" in header
    assert "nodes 1/3" in header
    assert rest == drawn(a_snapshot(), 80, 24).splitlines()[1:]


def test_a_farm_without_a_leader_says_so_first() -> None:
    asked = a_snapshot()
    assert asked.farm is not None
    leaderless = replace(asked, farm=replace(asked.farm, leader=None))

    assert "no scheduler leads" in drawn(leaderless, 60, 10)


def test_a_farm_that_never_answered_still_has_a_picture() -> None:
    assert "connecting…" in drawn(Snapshot(), 80, 24)
    assert "no jobs" in drawn(Snapshot(), 80, 24)
    assert "LOST" in drawn(Snapshot(lost_s=1.0, lost_reason="cannot reach it"), 40, 10)


def test_without_colour_the_picture_holds_no_escape_and_says_the_same() -> None:
    plain, coloured = drawn(a_snapshot(), 80, 24), drawn(a_snapshot(), 80, 24, colour=True)

    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    assert drawn(a_snapshot(), 80, 24, colour=True).count("█") == plain.count("█")


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10), (7, 3)])
def test_a_hostile_name_reaches_no_terminal(colour: bool, width: int, height: int) -> None:
    text = drawn(a_snapshot(named(HOSTILE)), width, height, colour=colour)

    assert "\x1b[31m" not in text
    own_colours = re.compile(r"\x1b\[[0-9;]*m")
    check_lines(own_colours.sub("", text) if colour else text, width, height)


@given(name=st.text(max_size=60), width=st.integers(1, 220), height=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_whatever_the_names_and_the_size_every_line_fits(name: str, width: int, height: int) -> None:
    snapshot = a_snapshot(named(name))
    for pane in Pane:
        view = View(focus=pane, is_enlarged=len(name) % 2 == 0, scroll={pane: len(name)})
        check_lines(render(snapshot, width, height, colour=False, view=view).plain, width, height)


def check_lines(text: str, width: int, height: int) -> None:
    lines = text.split("\n")
    assert len(lines) == height
    for line in lines:
        assert cell_len(line) <= width
        assert not [char for char in line if unicodedata.category(char) in ("Cc", "Cf", "Cs")]


def test_a_name_in_square_brackets_is_shown_as_it_is() -> None:
    farm = named("[red]x[/]")

    assert "[red]x[/]" in drawn(a_snapshot(farm), 80, 24)


def test_a_reason_stands_below_its_job_where_there_is_no_room_beside_it() -> None:
    narrow, wide = drawn(a_snapshot(), 80, 24).splitlines(), drawn(a_snapshot(), 200, 50).splitlines()
    reason = "12 nodes: VRAM 24 GB < 31 GB needed"

    assert any(line.strip().startswith("└ " + reason) for line in narrow)
    assert any("shot_009" in line and reason in line for line in wide)


def test_a_device_that_cannot_say_its_use_says_so() -> None:
    lines = drawn(a_snapshot(), 80, 24).splitlines()

    (row,) = (line for line in lines if line.startswith("ws-anna"))
    assert row.count("n/a") == 4
    assert "0%" not in row


def test_an_enlarged_pane_has_the_screen_and_scrolls() -> None:
    farm = FakeFarm()
    farm.nodes = [a_node(f"node-{number:03d}") for number in range(100)]

    text = drawn(a_snapshot(farm), 80, 24, focus=Pane.NODES, is_enlarged=True, scroll={Pane.NODES: 90})

    assert "JOBS" not in text
    assert "node-090" in text
    assert "node-099" in text
    assert "NODES 91–100 of 100" in text


@given(
    counts=st.builds(
        Counts,
        ready=st.integers(0, 10**6),
        running=st.integers(0, 300),
        done=st.integers(0, 10**6),
        failed=st.integers(0, 300),
        cancelled=st.integers(0, 300),
    ),
    width=st.integers(0, 60),
)
def test_a_bar_is_never_too_long_and_only_full_when_all_is_done(counts: Counts, width: int) -> None:
    done, running, failed = bar(counts, width)

    assert min(done, running, failed) >= 0
    assert done + running + failed <= width
    if width and done == width:
        assert counts.done == counts.total
    if width >= 3:
        assert (running > 0) == (counts.live > 0)
        assert (failed > 0) == (counts.failed + counts.cancelled > 0)


@given(st.text(), st.integers(0, 40), st.booleans())
def test_a_cell_is_exactly_as_wide_as_asked(text: str, width: int, is_right: bool) -> None:
    assert cell_len(cell(text, width, is_right=is_right)) == width


@given(st.integers(9, 100), st.lists(st.integers(1, 500), min_size=3, max_size=3))
def test_rows_are_shared_out_to_the_last(height: int, wanted: list[int]) -> None:
    rows = share_rows(height, wanted, weights=(5, 3, 2))

    assert sum(rows) == height
    assert min(rows) >= 3
    assert all(got <= max(want, 3) for got, want in zip(rows[:-1], wanted[:-1], strict=True))


@given(st.integers(1, 300))
def test_columns_fill_the_width_and_the_first_is_always_there(width: int) -> None:
    columns = [Column(title=str(n), width=5 + n, most=20, rank=n) for n in range(6)]

    fitted = fit_columns(columns, width)

    assert fitted[0][0] is columns[0]
    assert sum(cells for _, cells in fitted) + len(fitted) - 1 <= width
    assert [c for c, _ in fitted] == columns[: len(fitted)]


def test_an_unknown_figure_is_never_nought() -> None:
    assert [figure(v) for v in (None, 0.35, 91.6, 864.0, 1979.4)] == ["n/a", "0.35", "91.6", "864", "1979"]


def test_plain_lines_tell_how_things_stand() -> None:
    lines = list(overview(a_snapshot()))

    assert lines[0].startswith("farm: nodes 1/3, slots 4/12")
    assert "job 8 shot_008: active, 250 of 253 tasks done (98%), 3 running, ETA 3:07–4:10" in lines
    assert "node ws-anna: suspect, silent for 14 s" in lines
    assert not [line for line in lines if line.startswith("job 6")], "ended jobs are history"


def test_a_plain_line_is_printed_for_each_change_and_for_nothing_else() -> None:
    farm = FakeFarm()
    old = a_snapshot(farm)
    assert list(changes(old, a_snapshot(farm))) == []

    farm.jobs[0] = a_job(7, counts={"done": 81}, name="x\ny")
    farm.nodes[0] = a_node("gpu-01", state="offline", reason="silent for 40 s", running=[])
    farm.events.append(an_event(13, kind="node-offline", text="gpu-01", at=farm.now))
    lost = a_snapshot(farm, lost_reason="no route")

    assert list(changes(old, lost)) == [
        "farm: no answer: no route",
        "event: 08:00:00 node-offline: gpu-01",
        "job 7 x\\x0ay: active, 81 of 209 tasks done (38%), 6 running, 2 failed, ETA 3:07–4:10",
        "node gpu-01: offline, silent for 40 s",
    ]
    assert list(changes(lost, a_snapshot(farm))) == ["farm: connected again"]


@given(st.text())
@settings(max_examples=30, deadline=None)
def test_a_plain_line_is_one_line_and_holds_no_control(name: str) -> None:
    snapshot = a_snapshot(named(name))
    for line in [*overview(snapshot), *changes(Snapshot(), snapshot)]:
        assert not [char for char in line if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def test_the_feed_is_the_only_thing_that_waits() -> None:
    """Made, never started: it answers at once."""
    feed = Feed(FakeFarm().get, interval_s=1, notify=lambda: None)

    assert feed.latest() == Snapshot()
