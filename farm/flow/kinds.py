"""Kinds of places: which demands each refuses for good, and for which of its node's pools each demand is.

Ten thousand nodes are of a few dozen kinds. What a kind refuses is asked once for each demand, not once for
each node, group or round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from farm.flow.refusals import eligible_devices, pool_rank, standing
from farm.model.machines import Demand, NodeView

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Kinds:
    """Kinds and demands have numbers, in the order in which they came. None is ever forgotten."""

    def __init__(self) -> None:
        self.model: list[int] = []
        """By kind: the device model's number."""
        self.fits: list[Bools] = []
        """By kind and demand: whether it can ever take it. Longer than there are demands."""
        self.pool_ranks: list[Ints | None] = []
        """By kind and demand: which of the node's pools it is for; None where all are of one."""
        self._numbers: dict[tuple[str, int], int] = {}
        self._examples: list[tuple[NodeView, int]] = []
        """Of each kind: a node, and the device's index there."""
        self._demands: dict[Demand, int] = {}
        self._able: Bools = np.zeros((0, 0), np.bool_)
        """By demand and device model: whether some place of the model fits for good."""
        self._able_kinds = 0

    def __len__(self) -> int:
        return len(self.model)

    def demand_at(self, demand: Demand) -> int:
        """The demand's number; what such tasks were seen to take refuses nothing for good."""
        demand = replace(demand, vram_seen_mib=0)
        at = self._demands.get(demand)
        if at is None:
            at = self._demands[demand] = len(self._demands)
            for kind, fits in enumerate(self.fits):
                if at == len(fits):
                    self.fits[kind] = fits = np.concatenate([fits, np.zeros_like(fits)])
                fits[at] = self._is_able(kind, demand)
                self.pool_ranks[kind] = self._ranks_of(kind)
        return at

    def kind_at(self, view: NodeView, index: int, model: int) -> int:
        """The number of the kind that the node's device is of. model: the device model's number."""
        view = _coarse(view)
        key = (_key(view), index)
        kind = self._numbers.get(key)
        if kind is None:
            kind = self._numbers[key] = len(self.model)
            self._examples.append((replace(view, uses=(), accepts_work=True), index))
            self.model.append(model)
            fits = np.zeros(max(8, 2 * len(self._demands)), np.bool_)
            self.fits.append(fits)
            for at, demand in enumerate(self._demands):
                fits[at] = self._is_able(kind, demand)
            self.pool_ranks.append(self._ranks_of(kind))
        return kind

    def able(self, models: int) -> Bools:
        """By demand and device model (of which there are so many): whether some kind of the model fits."""
        count = len(self._demands)
        if self._able.shape != (count, models) or self._able_kinds != len(self.model):
            able = np.zeros((count, models), np.bool_)
            for kind, model in enumerate(self.model):
                able[:, model] |= self.fits[kind][:count]
            self._able, self._able_kinds = able, len(self.model)
        return self._able

    def fitting(self, demand: int) -> Iterator[bool]:
        """By kind: whether it can ever take the demand."""
        return (bool(fits[demand]) for fits in self.fits)

    def _ranks_of(self, kind: int) -> Ints | None:
        has = self._examples[kind][0].capabilities
        if len(has.pools) < 2 or all(demand.pool is None for demand in self._demands):
            return None
        return np.array([pool_rank(demand, has) for demand in self._demands], np.int64)

    def _is_able(self, kind: int, demand: Demand) -> bool:
        view, index = self._examples[kind]
        device = view.capabilities.devices[index]
        if demand.gpus > 1 or next(standing(demand, view), None) is not None:
            return False
        return device in eligible_devices(demand, view)


def _coarse(view: NodeView) -> NodeView:
    """The node with its memory as bought: equal machines report a few MiB more or less. A place's own `Room`
    knows the memory to the MiB."""
    has = view.capabilities
    return replace(view, capabilities=replace(has, memory_mib=math.ceil(has.memory_mib / 4096) * 4096))


def _key(view: NodeView) -> str:
    """What decides refusals for good: all the node has, whatever its devices are called."""
    has = view.capabilities
    devices = [(d.kind, d.model, d.slots, d.vram_mib, d.vram_per_task_mib) for d in has.devices]
    return repr(
        (
            (has.os_family, has.cpu_arch, has.cpus, has.memory_mib, has.pools),
            (sorted(has.software), sorted(has.attributes.items()), sorted(has.amounts.items())),
            devices,
        )
    )
