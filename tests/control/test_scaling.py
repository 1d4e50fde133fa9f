"""Scale rules from the leader's prices to the receiver: one of several calls, and failures are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from farm.control.hooks import HookCaller
from farm.control.scaling import Scaler, model_now
from farm.flow.run_times import FarmState
from farm.model.events import EventKind
from farm.model.ids import AttemptId, NodeId
from farm.model.machines import Capabilities, Device, DeviceKind, Node
from farm.model.scaling import ScaleRule
from farm.model.states import NodeState
from farm.settings import Settings
from farm.store import events, learnt
from farm.store.engine import open_engine, reading, writing

DEAR = FarmState(prices={"L40S": [2.0, 0.4]}, bound_s=2000.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def engine(sqlite_url: str) -> Iterator[sa.Engine]:
    opened = open_engine(sqlite_url)
    with writing(opened) as db:
        learnt.write(db, DEAR, {})
    yield opened
    opened.dispose()


def rule(*command: str) -> ScaleRule:
    return ScaleRule(model="L40S", grow_above_s=600, shrink_below_s=30, for_s=60, command=command)


def happened(engine: sa.Engine, kind: EventKind) -> list[str]:
    with reading(engine) as db:
        return [each.text for each in events.read(db) if each.kind is kind]


def test_of_several_schedulers_one_asks(engine: sa.Engine) -> None:
    clock = Clock()
    scalers = [Scaler(engine, {"more": rule("/bin/true")}, clock=clock) for _ in range(3)]
    asked = []
    for at in range(0, 70, 5):
        clock.now = at
        asked += [(at, told["event"]) for scaler in scalers for _, _, told in scaler.round()]
    assert asked == [(60, "grow")]
    (text,) = happened(engine, EventKind.GROWTH_ASKED)
    assert "one more L40S would save 13:20" in text


@pytest.mark.parametrize("is_well", [True, False])
def test_the_receiver_is_told_and_a_failure_is_an_event(
    engine: sa.Engine, tmp_path: Path, is_well: bool
) -> None:
    heard = tmp_path / "heard"
    program = tmp_path / "more"
    program.write_text(f"#!/bin/sh\ncat > {heard}\nexit {0 if is_well else 3}\n")
    program.chmod(0o755)
    clock = Clock()
    settings = Settings(state_dir=tmp_path, scale={"more": rule(str(program))})
    caller = HookCaller(engine, settings, clock=clock)
    calls = []
    for at in (0.0, 30.0, 60.0, 61.0):
        clock.now = at
        calls.append(caller.scale())
    assert calls == [0, 0, 1, 0]
    told = json.loads(heard.read_text())
    assert (told["event"], told["rule"], told["one_more_saves_s"]) == ("grow", "more", 800.0)
    failed = happened(engine, EventKind.HOOK_FAILED)
    assert failed == [] if is_well else "scale more" in failed[0]


def test_only_nodes_that_take_work_count_and_only_those_without_any_are_idle() -> None:
    gpu = Device(id="g", kind=DeviceKind.GPU, model="L40S", slots=2)
    has = Capabilities(devices=(gpu,))

    def node(name: str, state: NodeState, *attempts: str) -> Node:
        ids = tuple(AttemptId(each) for each in attempts)
        return Node(id=NodeId(name), state=state, capabilities=has, attempts=ids)

    known = [
        node("idle", NodeState.ONLINE),
        node("busy", NodeState.ONLINE, "a1"),
        node("off", NodeState.OFFLINE),
        node("draining", NodeState.DRAINING),
        Node(id=NodeId("other"), state=NodeState.ONLINE),
    ]
    seen = model_now("L40S", DEAR, known)
    assert seen.one_more_saves_s == pytest.approx(800)
    assert (seen.slots, seen.idle_nodes) == (4, ("idle",))
    assert model_now("T4", DEAR, known).one_more_saves_s == 0
