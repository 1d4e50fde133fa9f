"""Rolling upgrades: what only a newer version has a name for is read as unknown, or parked."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest
import sqlalchemy as sa

from farm.control.scheduler import sort_messages
from farm.model.ids import AttemptId, NodeId
from farm.model.limits import Limit
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.model.probes import Probe, Tier
from farm.model.stalls import Evidence, StallKind
from farm.model.states import Outcome, TaskState
from farm.model.work import Isolation, Profile, Tag
from farm.store import (
    attempts,
    events,
    hooks,
    jobs,
    limits,
    moves,
    nodes,
    ready,
    rows,
    settling,
    stalling,
    tasks,
)
from farm.store.engine import reading, writing
from farm.store.tables import HookCallRow
from farm.wire import messages
from farm.wire.messages import Finished, FromNode, Heartbeat, Reports, UnknownMessage, dump, load
from tests.contract.stored_farm import BLADE, a_step, claim, enrol, start, submit

_CALL = HookCallRow.__table__  # type: ignore[attr-defined]

NEWS = "of-a-newer-version"
PARKED = "parked"
READ_AS: dict[type[StrEnum], object] = {
    Outcome: Outcome.NODE_LOST,
    Tag: Tag.UNKNOWN,
    Tier: Tier.NONE,
    DeviceKind: (),  # the device is left out
    Isolation: PARKED,
}
"""What a value of an enum that the receiver does not know is read as."""


# --- every enum of every message ----------------------------------------------------------------------


def _types(kind: Any) -> Iterator[Any]:
    """What a type hint is made of, without containers and None."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType, tuple, dict, typing.Annotated):
        arguments = typing.get_args(kind)
        for argument in arguments[:1] if origin is typing.Annotated else arguments:
            yield from _types(argument)
    elif isinstance(kind, typing.NewType):
        yield from _types(kind.__supertype__)
    elif isinstance(kind, type):
        yield kind


def _enums(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[StrEnum]]]:
    """(fields that lead there, enum) for each enum in a dataclass and in those that it holds."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        for found in _types(hints[field.name]):
            if issubclass(found, StrEnum):
                yield (*path, field.name), found
            elif dataclasses.is_dataclass(found) and found is not kind:
                yield from _enums(found, (*path, field.name))


def _example(kind: Any, path: tuple[str, ...] = ()) -> Any:
    """JSON of a value of the type, with what `path` leads through; its end is `NEWS`."""
    if typing.get_origin(kind) is tuple:
        arguments = [a for a in typing.get_args(kind) if a is not Ellipsis]
        return [_example(argument, path) for argument in arguments[:1]] if path else []
    if typing.get_origin(kind) is dict:
        return {}
    for found in _types(kind):
        if issubclass(found, StrEnum):
            return NEWS if path == ("",) else next(iter(found))
        if dataclasses.is_dataclass(found):
            if path and path[0] not in {f.name for f in dataclasses.fields(found)}:
                continue  # another one of a union
            return _example_of(found, path)
        if found is not type(None):
            return found("1") if found in (int, float, str) else found()
    return None


def _example_of(kind: Any, path: tuple[str, ...]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    made = {}
    for field in dataclasses.fields(kind):
        is_on_path = bool(path) and field.name == path[0]
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name == "kind" and typing.get_origin(hints["kind"]) is typing.Literal:
            made["kind"] = field.default
        elif is_on_path or is_required:
            made[field.name] = _example(hints[field.name], (path[1:] or ("",)) if is_on_path else ())
    return made


def _values(value: Any) -> Iterator[Any]:
    yield value
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _values(getattr(value, field.name))
    elif isinstance(value, tuple):
        for each in value:
            yield from _values(each)


MESSAGES = [
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == messages.__name__
]
PLACES = [(kind, path, enum) for kind in MESSAGES for path, enum in _enums(kind)]


def test_the_walk_finds_the_enums_of_messages() -> None:
    found = {(kind.__name__, path[-1]) for kind, path, _ in PLACES}
    assert {("Finished", "outcome"), ("Reports", "outcome"), ("Launch", "isolation")} <= found
    assert {enum for _, _, enum in PLACES} == set(READ_AS), "say what news of a new enum are read as"


@pytest.mark.parametrize(
    ("kind", "path", "enum"), PLACES, ids=lambda value: value if isinstance(value, str) else None
)
def test_a_value_that_only_a_newer_peer_knows_is_read_as_unknown_or_parked(
    kind: type, path: tuple[str, ...], enum: type[StrEnum]
) -> None:
    body = json.dumps(_example_of(kind, path))
    assert NEWS in body
    if READ_AS[enum] is PARKED:
        with pytest.raises(UnknownMessage):
            load(kind, body)
        return
    values = list(_values(load(kind, body)))
    if enum is DeviceKind:
        assert not [value for value in values if isinstance(value, Device)]
    else:
        assert READ_AS[enum] in values
    assert NEWS not in values


def test_one_strange_end_does_not_keep_the_others_out() -> None:
    ends = tuple(
        Finished(attempt_id=AttemptId(name), outcome=Outcome.SUCCEEDED, reason="why") for name in "abc"
    )
    told = json.loads(dump(Reports(node_id=NodeId("n"), session="s", items=ends)))
    told["items"][1]["outcome"] = NEWS
    [report] = sort_messages([json.dumps(told).encode()]).reports
    assert [end.outcome for end in report.items if isinstance(end, Finished)] == [
        Outcome.SUCCEEDED,
        Outcome.NODE_LOST,
        Outcome.SUCCEEDED,
    ]
    assert [end.reason for end in report.items if isinstance(end, Finished)] == ["why"] * 3


def test_a_node_with_a_strange_device_keeps_its_others() -> None:
    cpu = Device(id="cpu", kind=DeviceKind.CPU, model="m")
    machine = Capabilities(devices=(cpu, cpu))
    beat = Heartbeat(node_id=NodeId("n"), session="s", boot_id="b", sequence=1, capabilities=machine)
    told = json.loads(dump(beat))
    told["capabilities"]["devices"][0]["kind"] = NEWS
    read = load(FromNode, json.dumps(told))
    assert read.capabilities.devices == (cpu,)


# --- what a newer process wrote into the database -------------------------------------------------------


def _write(engine: sa.Engine, table: str, column: str) -> None:
    with writing(engine) as db:
        assert db.execute(sa.text(f"UPDATE {table} SET {column} = :news"), {"news": NEWS}).rowcount


def test_an_older_scheduler_goes_on_with_what_a_newer_one_wrote(engine: sa.Engine) -> None:
    enrol(engine)
    job_id = submit(engine, a_step(tasks=2))
    [attempt] = claim(engine, job_id)
    start(engine, [attempt])
    with writing(engine) as db:
        stalling.witness(db, BLADE, [Evidence(attempt_id=attempt, age_s=9.0)])
    for column in ("stall", "origin", "outcome", "ends_as"):
        _write(engine, "attempt", column)
    _write(engine, "step", "isolation")
    _write(engine, "event", "kind")
    with writing(engine) as db:
        [seen] = stalling.running(db)
        assert seen.verdict.kind is StallKind.WORKING, "it is judged anew"
        assert seen.isolation is Isolation.EXCLUSIVE
        assert {event.kind for event in events.read(db)} == {"other"}
        read = attempts.read_attempt(db, attempt)
        assert (read.outcome, read.stall, read.origin) == (None, None, "match")
        assert {step.isolation for step in jobs.read_job(db, job_id).steps} == {Isolation.EXCLUSIVE}
        assert ready.groups(db)
    with writing(engine) as db:
        db.execute(sa.text("UPDATE attempt SET lease_until = 0"))
        moves.lock_jobs(db, [job_id])
        settling.expire_leases(db, [attempt])
        states = {task.state for task in tasks.list_tasks(db, job_id)}
        assert TaskState.HELD in states, "no second start of what may not be started twice"
        settling.finished(db, {BLADE: [Finished(attempt_id=attempt, outcome=Outcome.SUCCEEDED)]})
        assert attempts.read_attempt(db, attempt).state == "succeeded"


def test_limits_nodes_and_calls_of_a_newer_process_stop_nothing(engine: sa.Engine) -> None:
    enrol(engine)
    job_id = submit(engine)
    with writing(engine) as db:
        limits.put(db, Limit(name="arnold", amount=3))
        call = {"hook": "h", "job_id": job_id, "at": 0.0, "due_at": 0.0, "text": "", "error": ""}
        known, news = {"event_id": 1, "event": "done"}, {"event_id": 2, "event": NEWS}
        db.execute(sa.insert(_CALL), [{**call, **known}, {**call, **news}])
    _write(engine, "farm_limit", "per")
    _write(engine, "node", "state")
    with writing(engine) as db:
        assert limits.read(db)["arnold"].per == "task", "the one that takes the most"
        assert [call.event for call in hooks.take(db)] == ["done"], "the other is for who owed it"
        [view] = nodes.views(db, {})
        assert not view.accepts_work
    with reading(engine) as db:
        assert nodes.read_node(db, NodeId("blade")).state == "suspect"


def test_json_of_a_newer_process_reads_as_the_default() -> None:
    assert rows.from_json(Profile, {"compute_share": 0.7, "tag": NEWS}) == Profile(compute_share=0.7)
    probe = {"tag": "compute", "tier": NEWS, "busy_samples": 3}
    assert rows.from_json(Probe, probe) == Probe(tag=Tag.COMPUTE, busy_samples=3)
    cpu = {"id": "cpu", "kind": "cpu", "model": "m"}
    has: dict[str, Any] = {
        "cpus": 4,
        "devices": [{"id": "x", "kind": NEWS, "model": "m"}, cpu, {**cpu, "kind": NEWS}],
    }
    read = rows.from_json(Capabilities, has)
    assert (read.cpus, [device.id for device in read.devices]) == (4, ["cpu"])
    assert has["devices"][0]["kind"] == NEWS, "the row's own value stays"
