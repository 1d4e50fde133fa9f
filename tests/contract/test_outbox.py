"""The outbox: what is owed is kept with the change that owes it."""

from __future__ import annotations

import contextlib

import sqlalchemy as sa

from farm.model.ids import AttemptId, NodeId
from farm.store import (
    outbox,
)
from farm.store.engine import writing


def test_what_is_owed_is_kept_until_it_is_sent(engine: sa.Engine) -> None:
    with writing(engine) as db:
        outbox.owe_launches(db, {NodeId("a"): [AttemptId("x")], NodeId("b"): [AttemptId("y")]})
    with contextlib.suppress(RuntimeError), writing(engine) as db:
        outbox.owe_launches(db, {NodeId("c"): [AttemptId("z")]})
        raise RuntimeError("the transaction fails")
    with writing(engine) as db:
        owed = outbox.read(db)
        assert [o.node_id for o in owed] == ["a", "b"]
        outbox.sent(db, [owed[0].id])
        assert [o.node_id for o in outbox.read(db)] == ["b"]
