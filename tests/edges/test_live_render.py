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
from rich.text import Text

from farm.live.cells import Column, cell, fit_columns, share_rows, sparkline
from farm.live.feed import Feed
from farm.live.lists import lists
from farm.live.panes import NODE_COLUMNS, bar, figure, node_line
from farm.live.plain import changes, overview
from farm.live.render import HELP, render, within_log
from farm.live.snapshot import History, Log, Snapshot, Wants, fetch, remember
from farm.live.view import Action, Pane, Target, Typing, View
from farm.model.ids import NodeId
from farm.model.machines import Capabilities, Node
from farm.model.states import NodeState
from farm.model.work import Counts
from tests.edges.live_farm import HOSTILE, FakeFarm, a_job, a_node, a_task, an_attempt, an_event, stalled
from workers.gpu.declared import declared_devices

LATELY = History(
    use=tuple(number / 30 for number in range(30)),
    per_minute=(None, *(abs(15 - number) / 1.5 for number in range(29))),
    spread=(0.1, 0.2, None, 0.4, 0.15),
)
VIEWS = {
    "overview": View(),
    "tasks": View(focus=Pane.TASKS, job_id=7, cursor={Pane.TASKS: 3}),
    "log": View(focus=Pane.LOG, job_id=7, task_id=7001, task_name="job 7 render 1", cursor={Pane.LOG: 5}),
    "nodes": View(focus=Pane.NODES, is_enlarged=True, filters={Pane.NODES: "state=online"}),
    "stalled": View(focus=Pane.STALLED),
    "help": View(focus=Pane.HELP),
}
SNAPSHOTS = Path(__file__).parent / "snapshots"


def a_snapshot(farm: FakeFarm | None = None, **changes: Any) -> Snapshot:
    asked = fetch((farm or FakeFarm()).get, Wants(job_id=7, task_id=7001))
    return replace(asked, **{"utc_offset_s": 0.0, "per_minute": 12.4, "history": LATELY, **changes})


def drawn(snapshot: Snapshot, width: int, height: int, *, colour: bool = False, **view: Any) -> str:
    return _printed(render(snapshot, width, height, colour=colour, view=View(**view)), width, height, colour)


def _printed(picture: Text, width: int, height: int, colour: bool) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        legacy_windows=False,
    )
    console.print(picture, end="")
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
    farm.tasks = [a_task(1, step=name, label=name, node_id=name, reason=name)]
    farm.attempts = [an_attempt(1, node_id=name, device_id=name, message=name, reason=name)]
    farm.log = name * 3
    farm.stalled = stalled()
    for line in farm.stalled:
        line["job_name"] = line["label"] = line["stall"]["text"] = line["stall"]["action"] = name
        line["attempt"] = an_attempt(1, node_id=name, device_id=name)
    return farm


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_the_picture_is_as_it_was(width: int, height: int, name: str) -> None:
    """Draw anew with: python -m tests.edges.live_pictures"""
    stored = SNAPSHOTS / f"live-{name}-{width}x{height}.txt"
    text = render(a_snapshot(), width, height, colour=False, view=VIEWS[name]).plain

    assert text == stored.read_text(encoding="utf-8")


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
    assert "asking…" in drawn(Snapshot(), 80, 24)
    assert "LOST" in drawn(Snapshot(lost_s=1.0, lost_reason="cannot reach it"), 40, 10)


def test_without_colour_the_picture_holds_no_escape_and_says_the_same() -> None:
    plain, coloured = drawn(a_snapshot(), 80, 24), drawn(a_snapshot(), 80, 24, colour=True)

    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    assert drawn(a_snapshot(), 80, 24, colour=True).count("█") == plain.count("█")


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10), (7, 3)])
def test_a_hostile_name_reaches_no_terminal(colour: bool, width: int, height: int) -> None:
    said: dict[str, Any] = {"answer": HOSTILE, "has_refused": True, "lost_reason": HOSTILE}
    snapshot = a_snapshot(named(HOSTILE))
    typing = Typing(what="filter", text=HOSTILE)
    asked = {
        **VIEWS,
        "typing": View(typing=typing),
        "priority": View(typing=replace(typing, what="priority", target=Target(name=HOSTILE))),
        "asking": View(asking=Action(method="POST", path="/", question=HOSTILE)),
        "said": View(said=HOSTILE),
        "filtered": View(filters=dict.fromkeys(Pane, HOSTILE)),
        "named": View(focus=Pane.LOG, job_id=7, task_id=7001, task_name=HOSTILE),
    }
    for view in asked.values():
        for told in (snapshot, replace(snapshot, **said)):
            text = _printed(render(told, width, height, colour=colour, view=view), width, height, colour)
            assert "\x1b[31m" not in text
            own_colours = re.compile(r"\x1b\[[0-9;]*m")
            check_lines(own_colours.sub("", text) if colour else text, width, height)


@given(name=st.text(max_size=60), width=st.integers(1, 220), height=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_whatever_the_names_and_the_size_every_line_fits(name: str, width: int, height: int) -> None:
    snapshot = a_snapshot(named(name))
    for pane in Pane:
        view = View(
            focus=pane,
            is_enlarged=len(name) % 2 == 0,
            cursor={pane: len(name)},
            job_id=7,
            task_id=7001,
            task_name=name,
            filters={pane: name},
        )
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

    (row,) = (line for line in lines if line.startswith(" ws-anna"))
    assert row.count("n/a") == 4
    assert "0%" not in row


def test_a_declared_device_is_marked_in_front_where_no_cut_hides_it(tmp_path: Path) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text("[n]\ndevices = [{ model = 'NVIDIA L40S', count = 2 }]")
    has = Capabilities(devices=declared_devices(f"{path}#n"))
    line = node_line(
        Node(id=NodeId("n"), state=NodeState.ONLINE, capabilities=has), [(c, c.most) for c in NODE_COLUMNS]
    )
    assert " declared 2× L40S " in "".join(text for text, _ in line)


def test_an_enlarged_pane_has_the_screen_and_scrolls() -> None:
    farm = FakeFarm()
    farm.nodes = [a_node(f"node-{number:03d}") for number in range(100)]

    text = drawn(a_snapshot(farm), 80, 24, focus=Pane.NODES, is_enlarged=True, cursor={Pane.NODES: 99})

    assert "JOBS" not in text
    assert "node-081" in text
    assert "▸node-099" in text
    assert "NODES 82–100 of 100" in text


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

    assert lines[0].startswith("farm: STALLED 2, nodes 1/3, slots 4/12")
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


def test_what_was_not_answered_yet_is_not_shown_as_nothing() -> None:
    """A job that is opened while the server is away has tasks all the same."""
    snapshot = a_snapshot(FakeFarm())
    opened = View(focus=Pane.TASKS, job_id=1)
    lost = replace(snapshot, lost_reason="no route", lost_s=3.0)
    answered = replace(snapshot, job_id=1, tasks=())

    def body(snapshot: Snapshot, view: View) -> str:
        return render(snapshot, 80, 24, colour=False, view=view).plain

    assert "asking…" in body(snapshot, opened)
    assert "not known" in body(lost, opened)
    assert "no tasks" in body(answered, opened)
    assert "no jobs" not in body(Snapshot(), View())


def test_the_line_under_the_cursor_is_marked_and_stays_on_the_screen() -> None:
    farm = FakeFarm()
    farm.jobs = [a_job(number, waiting="12 nodes: VRAM" if number % 3 else "") for number in range(100, 200)]
    snapshot = a_snapshot(farm)
    for at in (0, 1, 7, 50, 98, 99):
        lines = render(
            snapshot, 80, 24, colour=False, view=View(is_enlarged=True, cursor={Pane.JOBS: at})
        ).plain.splitlines()
        (marked,) = (line for line in lines[3:] if line.startswith("▸"))
        assert f" {100 + at} shot_" in marked
        assert sum(not line.strip() for line in lines) <= 1, "the screen is full"


def test_what_is_typed_or_asked_stands_at_the_bottom() -> None:
    typing = View(typing=Typing(what="filter", text="x" * 100 + "state=failed"))
    assert (
        drawn(a_snapshot(), 80, 24, typing=typing.typing).splitlines()[-1].rstrip().endswith("state=failed▏")
    )
    asking = Action(method="POST", path="/jobs/7/cancel", question="cancel job 7 " + "long " * 40)
    last = drawn(a_snapshot(), 80, 24, asking=asking).splitlines()[-1]
    assert last.startswith("cancel job 7 long")
    assert last.endswith("? y/n")
    assert "forbidden" in drawn(a_snapshot(answer="forbidden", has_refused=True), 80, 24).splitlines()[-1]


@given(
    lengths=st.lists(st.integers(min_value=0, max_value=250), max_size=60),
    height=st.integers(min_value=4, max_value=40),
)
@settings(max_examples=40, deadline=None)
def test_a_log_fills_its_pane_however_far_it_is_scrolled(lengths: list[int], height: int) -> None:
    """Home shows the first page, not the first line alone; and the next key down moves."""
    lines = tuple(f"{number} {chr(97 + number % 26) * length}" for number, length in enumerate(lengths))
    snapshot = a_snapshot()
    assert snapshot.log is not None
    snapshot = replace(snapshot, log=replace(snapshot.log, lines=lines))
    view = View(focus=Pane.LOG, task_id=7001, cursor={Pane.LOG: 10_000})
    view = within_log(view, lists(snapshot, view), 80, height)

    def body(up: int) -> list[str]:
        at = replace(view, cursor={Pane.LOG: up})
        above = 3 if height >= 16 else 2
        return render(snapshot, 80, height, colour=False, view=at).plain.splitlines()[above:-1]

    top = body(view.cursor[Pane.LOG])
    rows = sum(-(-len(line) // 80) for line in lines)
    assert top == body(10_000), "no further up than its beginning"
    if lines and -(-len(lines[0]) // 80) <= len(top):
        assert top[0].startswith("0 ")
    # A line that does not fit as a whole is the only one that leaves room.
    assert sum(bool(row.strip()) for row in top) > min(rows, len(top)) - 4 or not lines
    if view.cursor[Pane.LOG]:
        assert body(view.cursor[Pane.LOG] - 1) != top


def test_a_filter_that_cannot_be_read_is_said_and_lets_everything_through() -> None:
    text = drawn(a_snapshot(), 120, 40, filters={Pane.JOBS: "stat=failed"}, is_enlarged=True)
    assert "JOBS: there is no 'stat'" in text or "stat" in text.splitlines()[2]
    assert "shot_008" in text


def test_a_log_shows_its_end_and_scrolls_up() -> None:
    log = View(focus=Pane.LOG, task_id=7001)
    snapshot = a_snapshot()
    assert "Sample 60/512" in render(snapshot, 80, 24, colour=False, view=log).plain
    up = replace(log, cursor={Pane.LOG: 30})
    text = render(snapshot, 80, 24, colour=False, view=up).plain
    assert "Sample 60/512" not in text
    assert "30 lines above its end" in text
    assert snapshot.log is not None
    long = replace(snapshot, log=replace(snapshot.log, lines=("x" * 170,)))
    lines = render(long, 80, 24, colour=False, view=log).plain.splitlines()
    assert [line.rstrip() for line in lines[3:7]] == ["x" * 80, "x" * 80, "x" * 10, ""]
    some = replace(log, filters={Pane.LOG: "SAMPLE 6"})
    text = render(snapshot, 80, 24, colour=False, view=some).plain
    assert "only lines with SAMPLE 6" in text
    assert [line.strip() for line in text.splitlines()[3:-1] if line.strip()] == [
        line for line in snapshot.log.lines if "Sample 6" in line
    ]
    none = render(snapshot, 80, 24, colour=False, view=replace(log, filters={Pane.LOG: "[/]"})).plain
    assert "no line of its output holds this text" in none
    nothing = replace(snapshot, log=Log(task_id=7001))
    assert "no attempt was made yet" in render(nothing, 80, 24, colour=False, view=log).plain
    assert "reading" in render(replace(snapshot, log=None), 80, 24, colour=False, view=log).plain


def test_every_key_of_the_help_fits_80_columns() -> None:
    text = drawn(a_snapshot(), 80, 24, focus=Pane.HELP)
    assert all(told in text for _, told in HELP)


@given(st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), max_size=40), st.integers(0, 30))
def test_a_sparkline_is_as_wide_as_asked(values: list[float | None], width: int) -> None:
    assert len(sparkline(values, width)) == width


def test_a_sparkline_shows_what_is_not_known_as_a_gap() -> None:
    assert sparkline([0.0, None, 0.5, 1.0], 5, top=1.0) == " ▁ ▅█"
    assert sparkline([0.0, 0.0], 2) == "▁▁"


def test_the_history_tells_use_and_spread_of_what_can_say() -> None:
    history = remember(remember(History(), a_snapshot()), Snapshot())
    assert history.use == (0.97, None)
    assert history.per_minute == (12.4, None)
    assert history.spread[0] == pytest.approx(1 / 9)
