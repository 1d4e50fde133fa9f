"""Nodes: enrolled, silent, back, and what is believed of a heartbeat."""

from __future__ import annotations

import sqlalchemy as sa

from farm.control.desk.why import WhyDesk
from farm.model.events import EventKind
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.states import NodeState, Outcome
from farm.settings import load_settings
from farm.store import (
    events,
    nodes,
)
from farm.store.engine import reading, writing
from tests.contract.stored_farm import BLADE, a_step, claim, enrol, finish, start, submit


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


def _notes(engine: sa.Engine) -> dict[str, tuple[str, ...]]:
    with reading(engine) as db:
        return {str(node.id): node.capabilities.notes for node in nodes.list_nodes(db)}


def test_a_node_of_another_user_is_told_of_until_a_person_takes_it_back(engine: sa.Engine) -> None:
    for name in ("blade-1", "blade-2"):
        enrol(engine, name=name, capabilities=Capabilities(user_id=1000))
    enrol(engine, capabilities=Capabilities(user_id=0, notes=("no GPU",)))
    notes = _notes(engine)
    assert notes.pop(BLADE)[0] == "no GPU"
    assert not any(notes.values())
    assert "runs as user id 0, most nodes as 1000" in _notes(engine)[BLADE][1]
    # Started again as the right one: what it wrote before is still root's.
    enrol(engine, session="s2", capabilities=Capabilities(user_id=1000))
    enrol(engine, session="s2", capabilities=None)
    assert "ran as user id 0 before" in _notes(engine)[BLADE][0]
    with writing(engine) as db:
        nodes.drain(db, BLADE, is_drained=False, actor="root")
    assert not any(_notes(engine).values())
    assert "cannot be" in enrol(engine, session="s2", capabilities=Capabilities(user_id=-1)).refused


def test_why_tells_of_such_a_node_when_the_storage_failed_a_task(engine: sa.Engine) -> None:
    for name in ("blade-1", "blade-2"):
        enrol(engine, name=name, capabilities=Capabilities(user_id=1000))
    enrol(engine, capabilities=Capabilities(user_id=0))
    job_id = submit(engine, a_step(tasks=1))
    desk = WhyDesk(engine, load_settings(environment={}))
    assert not any("user id" in line.text for line in desk.why_job(job_id).lines), "nothing failed"
    attempts = claim(engine, job_id, 1)
    start(engine, attempts)
    finish(engine, attempts, Outcome.STORAGE, reason="permission denied")
    (line,) = [line for line in desk.why_job(job_id).lines if "user id" in line.text]
    assert line.node_ids == (BLADE,)
    assert not line.is_momentary
