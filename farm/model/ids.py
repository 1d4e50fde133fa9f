"""Names for identities, so that a node cannot be passed where a task is meant."""

from __future__ import annotations

from typing import NewType

JobId = NewType("JobId", int)
StepId = NewType("StepId", int)
TaskId = NewType("TaskId", int)
AttemptId = NewType("AttemptId", str)
"""A random UUID (text form). Random, not counted: a restored backup must not issue a number twice."""
NodeId = NewType("NodeId", str)
"""The node's name, unique in the farm."""
