"""How often a scheduler's round asks the database: most rounds have nothing to do, and must cost little."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from farm.control.scheduler import Scheduler
from farm.model.ids import NodeId
from farm.model.machines import Capabilities, Device, DeviceKind
from farm.settings import Settings, load_settings
from farm.store.engine import open_engine
from farm.wire.messages import Heartbeat, dump

CPU = Device(id="cpu", kind=DeviceKind.CPU, model="test", slots=2)


class Door:
    """In place of the broker, both ways."""

    is_connected = True

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.sent = 0
        self.unroutable: set[str] = set()

    def drain(self, timeout_s: float, most: int, *, linger_s: float = 0.0) -> list[bytes]:
        taken, self.waiting = self.waiting, []
        return taken

    def publish(self, routing_key: str, body: bytes, **_: object) -> None:
        self.sent += 1

    def acknowledge(self) -> None: ...
    def flush(self, timeout_s: float) -> None: ...
    def heartbeat(self) -> None: ...
    def close(self) -> None: ...


class Farm:
    def __init__(self, engine: sa.Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.now = 1_000.0
        self.door = Door()
        self.leader = self.scheduler()
        assert self.leader._leads()
        self.sequence = 0

    def scheduler(self) -> Scheduler:
        door = self.door
        return Scheduler(
            self.engine,
            self.settings,
            intake=door,  # type: ignore[arg-type]
            publisher=door,  # type: ignore[arg-type]
            clock=lambda: self.now,
        )

    def beat(self) -> None:
        self.sequence += 1
        capabilities = Capabilities(cpus=2, memory_mib=1_000, devices=(CPU,))
        beat = Heartbeat(
            node_id=NodeId("blade"),
            session="s",
            boot_id="b",
            sequence=self.sequence,
            capabilities=capabilities,
        )
        self.door.waiting.append(dump(beat))

    @contextmanager
    def asked(self) -> Iterator[list[str]]:
        """Every statement meanwhile, the beginnings of transactions among them."""
        statements: list[str] = []

        def note(_: object, __: object, statement: str, *___: object) -> None:
            statements.append(" ".join(statement.split()))

        sa.event.listen(self.engine, "before_cursor_execute", note)
        try:
            yield statements
        finally:
            sa.event.remove(self.engine, "before_cursor_execute", note)


@pytest.fixture
def farm(sqlite_url: str, tmp_path: Path) -> Iterator[Farm]:
    settings = load_settings(environment={}, database_url=sqlite_url, state_dir=tmp_path / "state")
    engine = open_engine(settings.database)
    yield Farm(engine, settings)
    engine.dispose()


def test_a_heartbeat_that_says_nothing_new_is_taken_in_answered_and_no_more(farm: Farm) -> None:
    farm.beat()
    farm.leader._round()
    farm.leader._round()
    farm.beat()
    with farm.asked() as statements:
        farm.leader._round()
    assert farm.door.sent == 2, "each is answered"
    assert [s.split()[0] for s in statements] == ["BEGIN", "SELECT", "SELECT", "UPDATE", "SELECT"], statements
    assert not any("FROM step" in s for s in statements), "nothing was matched"


def test_a_round_without_messages_asks_nothing_until_a_look_around_is_due_which_writes_nothing(
    farm: Farm,
) -> None:
    farm.beat()
    farm.leader._round()
    farm.leader._round()
    with farm.asked() as statements:
        farm.leader._round()
    assert statements == []
    farm.now += 1.0
    with farm.asked() as statements:
        farm.leader._round()
    assert len(statements) <= 5, statements
    assert all(s.split()[0] in ("BEGIN", "SELECT") and s != "BEGIN IMMEDIATE" for s in statements), statements


def test_one_that_stands_by_holds_up_no_writer(farm: Farm) -> None:
    other = farm.scheduler()
    with farm.asked() as statements:
        assert not other._leads()
    assert [s.split()[0] for s in statements] == ["BEGIN", "SELECT"]
    assert "BEGIN IMMEDIATE" not in statements
