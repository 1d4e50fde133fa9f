"""The real store on SQLite in memory, with a virtual clock, outages, and triggers that tell every change.

Transactions are atomic here: a process is paused or killed before one begins or before it commits, never
with another one in between (how PostgreSQL keeps transactions apart is for the contract tests).
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from farm.store import schema
from tests.simulation.connection import ShortEngine
from tests.simulation.kernel import Kernel

_TRIGGERS = """
CREATE TRIGGER told_task AFTER UPDATE OF state, generation ON task
  WHEN OLD.state <> NEW.state OR OLD.generation <> NEW.generation
  BEGIN SELECT told('task', NEW.id, OLD.state, NEW.state, NEW.generation, NEW.attempt_id, NULL); END;
CREATE TRIGGER told_attempt AFTER UPDATE OF state ON attempt WHEN OLD.state <> NEW.state
  BEGIN SELECT told('attempt', NEW.id, OLD.state, NEW.state, OLD.lease_until, NEW.reason, NEW.node_id); END;
CREATE TRIGGER told_new AFTER INSERT ON attempt
  BEGIN SELECT told('attempt', NEW.id, '', NEW.state, NEW.task_id, NEW.reason, NEW.node_id); END;
CREATE TRIGGER told_lease AFTER UPDATE OF lease_until ON attempt WHEN NEW.lease_until > OLD.lease_until
  BEGIN SELECT told('lease', NEW.id, OLD.state, NEW.state, NEW.lease_until, NULL, NEW.node_id); END;
"""


@dataclass(slots=True)
class Change:
    """One row that changed, as a trigger told it."""

    what: str
    """"task", "attempt" or "lease"."""
    id: Any
    old: str
    new: str
    first: Any
    """task: its generation; attempt: its lease before (a new one: its task); lease: until when."""
    second: Any
    """task: its attempt; attempt: the reason."""
    node_id: Any


class Database:
    """One for each operating system process: SQLAlchemy's compiled statements are kept from seed to seed."""

    def __init__(self, *, is_short: bool = True) -> None:
        self.raw = sqlite3.connect(
            ":memory:", check_same_thread=False, isolation_level=None, cached_statements=1_000
        )
        self.raw.create_function("farm_now", 0, self._now)
        self.raw.create_function("told", 7, self._told)
        self.raw.execute("PRAGMA foreign_keys=ON")
        self._kernel: Kernel | None = None
        self.state = State()
        whole = sa.create_engine("sqlite://", creator=lambda: self.raw, poolclass=StaticPool)
        schema.upgrade(whole)
        if is_short:
            self.engine: sa.Engine = ShortEngine(
                whole, self.raw, on_begin=self._begin, on_commit=self._commit, on_rollback=self._rollback
            )
        else:
            self.engine = whole
            sa.event.listen(whole, "begin", self._begin)
            sa.event.listen(whole, "commit", self._commit)
            sa.event.listen(whole, "rollback", self._rollback)
        self.raw.executescript(_TRIGGERS)
        self._filled = [
            name
            for (name,) in self.ask("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not self.ask(f'SELECT 1 FROM "{name}" LIMIT 1')
        ]
        """Tables that a seed fills."""

    def begin_seed(self, kernel: Kernel, on_commit: Callable[[list[Change]], None]) -> None:
        """Empty, and in `kernel`'s time.

        The tables stay: with new ones SQLite would prepare every statement anew.
        """
        self._kernel = None
        if self.raw.in_transaction:
            self.raw.execute("ROLLBACK")
        self.raw.execute("PRAGMA foreign_keys=OFF")
        for name in self._filled:
            self.raw.execute(f'DELETE FROM "{name}"')
        self.raw.execute("PRAGMA foreign_keys=ON")
        self.state = State(on_commit=on_commit)
        self._kernel = kernel

    def now(self) -> float:
        assert self._kernel is not None
        return self._kernel.now + self.state.clock_error_s

    def _now(self) -> float:
        return self.now() if self._kernel is not None else 0.0

    def _told(self, *change: Any) -> None:
        self.state.changes.append(Change(*change))

    def _begin(self, _: sa.Connection) -> None:
        kernel, state = self._kernel, self.state
        if self.raw.in_transaction:
            return  # one who reads opens a second connection to read: here they are one
        if kernel is not None and kernel.current is not None:
            kernel.checkpoint("begin")
            if state.away_until > kernel.now:
                kernel.sleep(0.5)
                raise _lost("the server is not there")
        self.raw.execute("BEGIN")

    def _commit(self, _: sa.Connection) -> None:
        kernel, state = self._kernel, self.state
        if kernel is None:
            return
        changes, state.changes = state.changes, []
        if kernel.current is not None:
            # Between the work and its commit: a process that dies here has done nothing.
            trouble = kernel.current.trouble
            if trouble is not None and trouble[:2] == (0, "kill"):
                kernel.checkpoint("commit")
            if changes and state.commits_in_doubt > 0:
                state.commits_in_doubt -= 1
                is_in = state.draw.random() < 0.5
                kernel.say(f"commit in doubt: it is {'in' if is_in else 'not in'}")
                if is_in:
                    state.on_commit(changes)
                    self.raw.execute("COMMIT")
                else:
                    self.raw.execute("ROLLBACK")
                raise _lost("the connection was lost in COMMIT")
        if changes:
            state.on_commit(changes)

    def _rollback(self, _: sa.Connection) -> None:
        self.state.changes = []

    def ask(self, query: str, *arguments: Any) -> list[Any]:
        """For checks: rows, without SQLAlchemy and without a transaction of its own."""
        return self.raw.execute(query, arguments).fetchall()


@dataclass
class State:
    """What a seed does to the database."""

    on_commit: Callable[[list[Change]], None] = lambda changes: None
    """Called with what a transaction changed, just before it is committed."""
    away_until: float = 0.0
    clock_error_s: float = 0.0
    commits_in_doubt: int = 0
    """So many of the next commits lose their answer."""
    changes: list[Change] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(0))


def _lost(text: str) -> OperationalError:
    return OperationalError("", None, sqlite3.OperationalError(text))
