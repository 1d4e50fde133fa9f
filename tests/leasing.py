"""Tasks given to a node as the scheduler does it."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import sqlalchemy as sa

from farm.model.decisions import Decision
from farm.model.ids import AttemptId, NodeId, StepId
from farm.store import dispatching
from farm.store.dispatching import Claimed, Lease


def random_id(task: Claimed) -> str:
    return str(uuid.uuid4())


def lease(
    db: sa.Connection,
    step_id: StepId,
    node_id: NodeId,
    count: int,
    *,
    device_id: str = "cpu",
    decision: Decision | None = None,
    name: Callable[[Claimed], str] = random_id,
) -> list[Lease]:
    """Claim and lease up to `count` ready tasks of the step. The caller holds `moves.lock_jobs`."""
    (claimed,) = dispatching.claim(db, step_id, [(node_id, count)])
    leases = [
        Lease(
            attempt_id=AttemptId(name(task)),
            task=task,
            node_id=node_id,
            device_id=device_id,
            decision=decision,
        )
        for task in claimed
    ]
    dispatching.lease(db, leases, lease_s=30)
    return leases
