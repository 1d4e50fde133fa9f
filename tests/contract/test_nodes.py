"""Nodes: enrolled, silent, back, and what is believed of a heartbeat."""

from __future__ import annotations

import sqlalchemy as sa

from farm.model.events import EventKind
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.states import NodeState
from farm.store import (
    events,
    nodes,
)
from farm.store.engine import reading, writing
from tests.contract.stored_farm import BLADE, enrol


def test_a_heartbeat_of_nonsense_is_refused_with_the_reason(engine: sa.Engine) -> None:
    nonsense = Capabilities(
        devices=(Device(id="cpu", kind=DeviceKind.CPU, model="x", fp32_tflops=float("nan")),)
    )
    assert "no number" in enrol(engine, capabilities=nonsense).refused
    assert "free disk" in enrol(engine, disk_free_mib=2**40).refused
    assert enrol(engine, name="bl\0ade").refused
    assert enrol(engine, name="x\x1b[2J").refused
    assert enrol(engine, agent_version="\0").refused
    with reading(engine) as db:
        assert nodes.list_nodes(db) == []


def test_nodes_enrol_fall_silent_and_come_back(engine: sa.Engine) -> None:
    assert enrol(engine, capabilities=None).wants_hello
    assert enrol(engine) == nodes.Hearing(is_first=True)
    with reading(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.ONLINE
    for _ in range(2):
        with writing(engine) as db:
            db.execute(sa.text("UPDATE node SET seen_at = seen_at - 20"))
            nodes.watch(db, suspect_s=10, offline_s=30)
    with reading(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.OFFLINE
        assert not nodes.views(db, {})[0].accepts_work
    enrol(engine, capabilities=None)
    with writing(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.ONLINE
        nodes.drain(db, BLADE, is_drained=True, actor="root")
        assert nodes.read_node(db, BLADE).state is NodeState.DRAINING
        kinds = [event.kind for event in events.read(db)]
    assert kinds == [
        EventKind.NODE_ENROLLED, EventKind.NODE_SUSPECTED, EventKind.NODE_OFFLINE, EventKind.NODE_ONLINE,
        EventKind.NODE_DRAINED,
    ]  # fmt: skip
    assert "alive elsewhere" in enrol(engine, session="s2", boot_id="b2").refused
    assert enrol(engine, session="s2") == nodes.Hearing(is_first=True)
    assert enrol(engine, session="s2", capabilities=None) == nodes.Hearing()


def test_an_old_heartbeat_says_nothing(engine: sa.Engine) -> None:
    """It lay in the hands of a scheduler that was stopped, and came again when that one died."""
    enrol(engine, sequence=98)
    enrol(engine, sequence=100, is_draining=True)
    for sequence in (99, 100):
        assert enrol(engine, sequence=sequence).is_old
    with reading(engine) as db:
        assert nodes.read_node(db, BLADE).state is NodeState.DRAINING
    assert enrol(engine, sequence=101) == nodes.Hearing()
    assert enrol(engine, session="s2", sequence=1) == nodes.Hearing(is_first=True)
