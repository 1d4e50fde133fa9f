"""What a board keeps from round to round decides as a look at everything would."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from farm.flow.board import Board
from farm.flow.groups import Assignment, Group
from farm.flow.predict import RunTimeModel
from farm.flow.refusals import Room
from farm.flow.run_times import Run, model_key, rates_of
from farm.flow.tail import Tail
from farm.flow.waiting import group_key
from farm.flow.weights import PriorityMode, Weights
from farm.flow.window import Window
from farm.model.ids import JobId, NodeId
from farm.model.limits import LIMIT_PREFIX
from farm.model.machines import Capabilities, Demand, Device, NodeView
from farm.model.work import Profile
from tests.flow.boards import BANDWIDTH, COMPUTE, EVERYTHING, MODELS, board, device, group, known, node


class Forgetful(Window):
    """A window that looks at everything each time it is asked to follow, and unasked where it must."""

    is_behind = False

    def follow(self) -> bool:
        self.is_behind = False
        self._version = self._ranks_version = -1
        return super().follow()

    def choose(self, at: int, room: Room, now: float, tail: Tail | None) -> int | None:
        if self.is_behind:
            self.follow()
        return super().choose(at, room, now, tail)


def forget_what_is_kept(made: Board) -> None:
    """Let the next round find out anew what may start, where, and what is near-equal; not the order."""
    groups = made._groups
    for row in groups.rows().tolist():
        groups.may[row] = False
        groups.offered[:, row] = -math.inf
        groups.reopen(row)
    groups._shortage = None
    groups.demands_version += 1
    groups.version += 1
    windows = [Forgetful(groups, made._places, made.model, kind=kind) for kind in range(len(made._kinds))]
    made._windows[:] = windows
    start = type(groups).started

    def started(row: int, model: int, now: float, until: float) -> bool:
        is_less = start(groups, row, model, now, until)
        for window in windows:
            window.is_behind |= is_less
        return is_less

    groups.started = started  # type: ignore[method-assign]
    made._tail.state = lambda now: object()  # type: ignore[method-assign]  # never the same


class History:
    """What happens to a farm of few kinds of devices and many groups, so that what is kept is used again:
    drawn from a seed, and told to two boards alike."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.weights = replace(
            draw.choice([EVERYTHING, Weights()]),
            probe_tasks=draw.choice([2, 6]),
            priority_mode=draw.choice(list(PriorityMode)),
        )
        models = [device(*draw.choice(MODELS), slots=draw.choice([1, 1, 2])) for _ in range(2)]
        pools = draw.choice([("default",), ("film", "default")])
        self.nodes = [self.node(f"n{at}", models[at % 2], pools) for at in range(draw.randint(4, 12))]
        self.live = {each.step_id: each for each in (self.group(step) for step in range(draw.randint(4, 10)))}
        names = [each.model for each in models]
        runs = [
            run
            for step in self.live
            if draw.random() < 0.7
            for run in known(int(step), draw.choice([3.0, 40.0, 90.0]), on=draw.choice(names), times=4)
        ]
        self.boards = [
            board(self.nodes, list(self.live.values()), limits={"lic": 2}, weights=self.weights, runs=runs)
            for _ in range(2)
        ]
        self.running: list[tuple[Assignment, Group]] = []
        self.now = 10.0

    def node(self, name: str, of: Device, pools: tuple[str, ...]) -> NodeView:
        return node(name, capabilities=Capabilities(cpus=8, memory_mib=32_000, devices=(of,), pools=pools))

    def group(self, step: int) -> Group:
        draw = self.draw
        job = draw.randint(1, 4)
        demand = Demand(
            gpus=1,
            vram_mib=draw.choice([0, 0, 12_000]),
            pool=draw.choice([None, None, "film"]),
            amounts=draw.choice([(), (), ((f"{LIMIT_PREFIX}lic", 1.0),)]),
        )
        return group(
            step,
            job_id=JobId(job),
            demand=demand,
            profile=draw.choice([COMPUTE, BANDWIDTH, Profile()]),
            ready=draw.choice([1, 3, 40]),
            max_running=3 if job == 1 else None,
            priority=draw.choice([50, 50, 50, 95]),
            user=draw.choice(["anna", "ben"]),
            avoid=draw.choice([frozenset(), frozenset(), frozenset({NodeId("n0")})]),
        )

    def happen(self) -> str:
        """The next thing. Returns what."""
        draw, live = self.draw, list(self.live.values())
        self.now += draw.choice([0.1, 0.5, 3.0])
        what = draw.choice(HAPPENINGS)
        if what in ("ends", "comes back") and self.running:
            ended, of = self.running.pop(draw.randrange(len(self.running)))
            for made in self.boards:
                made.ended(ended.node_id, ended.device_id, of.demand, of.step_id, of.job_id)
                if what == "comes back" and of.step_id in self.live:
                    made.add_ready(of.step_id, 1)
        elif what == "comes":
            new = self.group(1000 + len(self.live) + round(10 * self.now) * 100)
            self.live[new.step_id] = new
            for made in self.boards:
                assert isinstance(made.model, RunTimeModel)
                made.model.add_step(str(new.step_id), new.profile)
                made.put_group(new, self.now)
        elif what == "goes" and live:
            gone = self.live.pop(draw.choice(live).step_id)
            for made in self.boards:
                made.drop_group(group_key(gone))
        elif what == "changes" and live:
            old = draw.choice(live)
            other = replace(self.group(int(old.step_id)), avoid=old.avoid, job_id=old.job_id)
            self.live[old.step_id] = other = replace(other, max_running=old.max_running)
            for made in self.boards:
                made.put_group(other, self.now)
        elif what == "more run" and live:
            # As when another of its job's steps has started tasks meanwhile.
            old, count = draw.choice(live), draw.randint(0, 3)
            for made in self.boards:
                made.put_group(replace(old, job_running=count), self.now)
        elif what == "learns" and live:
            of, on, seconds = draw.choice(live), draw.choice(MODELS)[0], draw.choice([2.0, 20.0, 150.0])
            for made in self.boards:
                assert isinstance(made.model, RunTimeModel)
                if on in made.model.models:
                    made.model.observe(Run(step=str(of.step_id), model=on, node="n0", runtime_s=seconds))
                    made.learned(of.step_id)
        elif what == "is copied" and live:
            of, view = draw.choice(live), draw.choice(self.nodes)
            if (view.id, "gpu") in self.boards[0].free_places() and view.id not in of.avoid:
                for made in self.boards:
                    made.copied(view.id, "gpu", of.step_id, self.now)
                copy = Assignment(
                    step_id=of.step_id, job_id=of.job_id, node_id=view.id, device_id="gpu", count=1
                )
                self.running.append((copy, of))
        elif what == "node comes":
            view = self.node(f"m{len(self.nodes)}", device(*draw.choice(MODELS)), ("default",))
            self.nodes.append(view)
            for made in self.boards:
                assert isinstance(made.model, RunTimeModel)
                for each in view.capabilities.devices:
                    made.model.add_model(model_key(each), rates_of(each))
                made.put_node(view, self.now)
        elif what in ("drains", "takes work"):
            view = draw.choice(self.nodes)
            for made in self.boards:
                made.node_is(view.id, accepts=what == "takes work")
        elif what == "limit":
            left = draw.randint(0, 3)
            for made in self.boards:
                made.set_free({"lic": left})
        elif what == "weights":
            self.weights = replace(self.weights, window=draw.choice([0.3, 0.75, 1.0]))
            for made in self.boards:
                made.weights = self.weights
        elif what == "prices":
            for made in self.boards:
                made.reprice(self.now)
        return what


HAPPENINGS = [
    *["ends"] * 8, *["learns"] * 3, *["comes back"] * 2, "comes", "goes", "changes", "more run", "is copied",
    "node comes", "drains", "takes work", "limit", "weights", "prices",
]  # fmt: skip


@pytest.mark.parametrize("first", range(0, 48, 16))
def test_what_is_kept_from_round_to_round_decides_as_a_look_at_everything_would(first: int) -> None:
    """Two boards live through the same; one forgets before each round what it has found out."""
    for seed in range(first, first + 16):
        history = History(seed)
        told: list[str] = []
        for _ in range(40):
            told += [history.happen() for _ in range(history.draw.choice([1, 2, 5]))]
            forget_what_is_kept(history.boards[1])
            most = history.draw.choice([1, 2, 20, 20])
            plan, again = (made.round(history.now, most) for made in history.boards)
            assert plan == again, f"seed {seed}, after {told}"
            history.running += [
                (replace(each, count=1), history.live[each.step_id])
                for each in plan
                for _ in range(each.count)
            ]
