"""Which scenes' files a node most likely still has in its file cache: those that it read last.

Jobs of one scene share them: an artist submits the same scene again and again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from farm.model.ids import NodeId, StepId


class Scenes:
    """Which steps read the same files."""

    def __init__(self) -> None:
        self._of: dict[StepId, StepId] = {}
        """A step -> the first of its scene."""
        self._steps: dict[StepId, dict[StepId, None]] = {}

    def of(self, step_id: StepId) -> StepId:
        return self._of.get(step_id, step_id)

    def steps(self, scene: StepId) -> Iterator[StepId]:
        """Those of the scene, the newest first."""
        yield from reversed(self._steps.get(scene, {scene: None}))

    def join(self, step_id: StepId, like: StepId) -> None:
        """The step reads what the other, of an earlier job, has read."""
        if step_id not in self._of:
            scene = self._of[step_id] = self.of(like)
            self._steps.setdefault(scene, {scene: None})[step_id] = None

    def forget(self, step_id: StepId) -> None:
        scene = self._of.pop(step_id, step_id)
        steps = self._steps.get(scene)
        if steps is not None:
            steps.pop(step_id, None)
            if not steps:
                del self._steps[scene]


class Cached:
    """The last scenes that each node has read. One owner; no I/O."""

    def __init__(self, scenes: Scenes) -> None:
        self.scenes = scenes
        self._read: dict[NodeId, dict[StepId, float]] = {}
        """By node and scene, the one that was read last at the end: when it was read whole first."""

    def read(self, node_id: NodeId, step_id: StepId, at: float, *, most: int) -> None:
        """A task of the step has read its files there, by the time `at`. most: scenes that a node keeps."""
        held = self._read.setdefault(node_id, {})
        scene = self.scenes.of(step_id)
        held[scene] = min(held.pop(scene, math.inf), at)
        while len(held) > most:
            del held[next(iter(held))]

    def holds(self, node_id: NodeId, step_id: StepId, by: float = math.inf) -> bool:
        """Whether the node had read the step's scene by then."""
        at = self._read.get(node_id, {}).get(self.scenes.of(step_id))
        return at is not None and at <= by

    def steps(self, node_id: NodeId) -> Iterator[StepId]:
        """Of the scenes that the node has, the one that it read last first."""
        for scene in reversed(self._read.get(node_id, {})):
            yield from self.scenes.steps(scene)

    def nodes(self, step_id: StepId) -> Iterator[NodeId]:
        """Those that have the step's scene."""
        scene = self.scenes.of(step_id)
        return (node_id for node_id, held in self._read.items() if scene in held)

    def forget_node(self, node_id: NodeId) -> None:
        self._read.pop(node_id, None)
