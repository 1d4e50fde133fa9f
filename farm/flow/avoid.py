"""Where a task that failed is not tried again for a while, and how much more its next attempt asks for.

Kept with the task as one text: names of nodes and least amounts, joined by commas: `blade-1,memory>=49152`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from farm.model.ids import NodeId
from farm.model.machines import Capabilities
from farm.model.states import Outcome

GROWTH: Final = 1.5
MOST_NODES: Final = 8
"""Names that are kept, the newest."""
AVOID_S: Final = 60.0
STALL_AVOID_S: Final = 900.0
"""After a stall or a fault of the node: what made it is seldom over within a minute."""
GROWN_S: Final = 24 * 3600.0
_MEMORY, _VRAM = "memory>=", "vram>="


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoid:
    nodes: tuple[NodeId, ...] = ()
    """In the order in which it failed there."""
    memory_mib: int = 0
    """The node must have so much."""
    vram_mib: int = 0
    """One of its devices must."""

    def text(self) -> str:
        parts: list[str] = list(self.nodes[-MOST_NODES:])
        if self.memory_mib:
            parts.append(f"{_MEMORY}{self.memory_mib}")
        if self.vram_mib:
            parts.append(f"{_VRAM}{self.vram_mib}")
        return ",".join(parts)

    def told(self) -> str:
        """For people."""
        parts = [f"failed on {', '.join(self.nodes)}"] if self.nodes else []
        if self.memory_mib:
            parts.append(f"needs {self.memory_mib:,} MiB of memory after running out of it")
        if self.vram_mib:
            parts.append(f"needs {self.vram_mib:,} MiB of VRAM after running out of it")
        return "; ".join(parts)

    def excludes(self, node_id: NodeId, has: Capabilities) -> bool:
        vram_mib = max((device.vram_mib or 0 for device in has.devices), default=0)
        return node_id in self.nodes or has.memory_mib < self.memory_mib or vram_mib < self.vram_mib


def read(text: str | None) -> Avoid:
    nodes: list[NodeId] = []
    memory_mib = vram_mib = 0
    for part in (text or "").split(","):
        if part.startswith(_MEMORY):
            memory_mib = int(part[len(_MEMORY) :])
        elif part.startswith(_VRAM):
            vram_mib = int(part[len(_VRAM) :])
        elif part:
            nodes.append(NodeId(part))
    return Avoid(nodes=tuple(nodes), memory_mib=memory_mib, vram_mib=vram_mib)


def seconds(outcome: Outcome) -> float:
    """For how long a failure of this class keeps a task away."""
    if outcome is Outcome.OUT_OF_MEMORY:
        return GROWN_S
    return STALL_AVOID_S if outcome in (Outcome.STALLED, Outcome.NODE_FAULT) else AVOID_S


def also(before: Avoid, node_id: NodeId) -> Avoid:
    """It failed there too."""
    return replace(before, nodes=(*(node for node in before.nodes if node != node_id), node_id))


def grown(
    before: Avoid,
    *,
    on_gpu: bool,
    used_mib: int | None,
    asked_mib: int,
    had_mib: int | None,
    farm: Iterable[Capabilities],
) -> Avoid:
    """After an attempt ran out of memory: its next one gets half as much again, more than the last one
    had to itself where that was not enough, but never more than the largest node of the farm has.

    on_gpu: it was VRAM. used_mib: the most that it was seen to hold. asked_mib: what the step asks for.
    had_mib: what the node, or the device, has. None: not known.
    """
    known = max(used_mib or 0, asked_mib, before.vram_mib if on_gpu else before.memory_mib)
    wanted = int(known * GROWTH)
    if had_mib is not None and known * GROWTH >= had_mib:
        wanted = max(wanted, had_mib + 1)
    largest = max(
        (
            max((device.vram_mib or 0 for device in has.devices), default=0) if on_gpu else has.memory_mib
            for has in farm
        ),
        default=0,
    )
    least = min(wanted, largest)
    return replace(before, vram_mib=least) if on_gpu else replace(before, memory_mib=least)
