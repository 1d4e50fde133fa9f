"""The predictive policy as a value: what it has learnt, its board, and how both follow the store.

`plan` is called with everything, as every policy is; only what differs from the last call is taken in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farm.flow.board import Board
from farm.flow.cached import Cached
from farm.flow.groups import Assignment, Group, left_of
from farm.flow.match import fitness, plan
from farm.flow.predict import RunTimeModel
from farm.flow.run_times import Run, SceneLoad, model_key, rates_of
from farm.flow.waiting import GroupKey, group_key
from farm.flow.weights import Period, Weights, weights_at
from farm.model.decisions import Decision
from farm.model.ids import NodeId, StepId
from farm.model.machines import NodeView, Use


class Predictive:
    """One owner; no I/O. Times are the database's."""

    def __init__(
        self,
        model: RunTimeModel | None = None,
        *,
        weights: Weights | None = None,
        periods: Sequence[Period] = (),
        shares: Mapping[str, float] | None = None,
        project_shares: Mapping[str, float] | None = None,
    ) -> None:
        self.model = model or RunTimeModel()
        self._always = weights or Weights()
        self._periods = tuple(periods)
        self.board = Board(self.model, weights=self._always, shares=shares, project_shares=project_shares)
        self._groups: dict[GroupKey, Group] = {}
        self._views: dict[NodeId, NodeView] = {}
        self._ran_last: dict[tuple[NodeId, str], StepId] = {}
        self._cached = Cached(self.board.scenes)
        """As ended runs have read, where the board's is as tasks begin."""

    def plan(
        self,
        groups: Sequence[Group],
        nodes: Sequence[NodeView],
        *,
        now: float,
        hour: float,
        limit: int,
        free: Mapping[str, int] | None = None,
    ) -> tuple[Assignment, ...]:
        """Which tasks start where now: at most `limit`.

        hour: of the day, 0 to 24, for the weights. free: how much is left of each shared count.
        """
        period, weights = weights_at(hour, self._always, self._periods)
        self.board.period, self.board.weights = period, weights
        # Tasks for several GPUs at once are rare, and placed before the rest so that they are not starved.
        wide = [group for group in groups if group.demand.gpus > 1]
        first = plan(wide, nodes, score=fitness, limit=limit, free=free) if wide else ()
        self.model.refresh()  # what runs is expected to end by what is known now
        self._follow_nodes(nodes, first, {group.step_id: group for group in wide}, now)
        self._follow_groups([group for group in groups if group.demand.gpus <= 1], now)
        self.board.set_free(left_of(free or {}, first, wide))
        self.board.reprice(now)
        return first + self.board.round(now, limit - sum(each.count for each in first))

    def weights_at(self, hour: float) -> Weights:
        return weights_at(hour, self._always, self._periods)[1]

    def learn(self, runs: Sequence[Run]) -> None:
        """From ended attempts. Steps and device models that are not known any more teach nothing."""
        for run in runs:
            if run.step in self.model.steps and run.model in self.model.models:
                step_id = StepId(int(run.step))
                # The board still counts this one: it hears of ends with the next plan.
                others = max(self.board.running(step_id) - 1, 0)
                self.model.observe(replace(run, still_running=others))
                self.board.learned(step_id)

    def model_of(self, node_id: NodeId, device_id: str) -> str | None:
        """The device model of a node's device (of several the first); None: it is not known any more."""
        view = self._views.get(node_id)
        first = device_id.split(",")[0]
        devices = view.capabilities.devices if view is not None else ()
        return next((model_key(device) for device in devices if device.id == first), None)

    def loaded(
        self, node_id: NodeId, device_id: str, step_id: StepId, *, began_at: float, load_s: float
    ) -> SceneLoad:
        """How a run came by its scene; ask once for each run that has ended, in that order.

        Whether that helped is learnt: if the scene was not kept loaded, warm runs load as long as cold ones.
        """
        place = (node_id, device_id)
        was_cached = self._cached.holds(node_id, step_id, began_at)
        was = self._ran_last.get(place)
        self._ran_last[place] = step_id
        self._cached.read(node_id, step_id, began_at + load_s, most=self.board.weights.cached_scenes)
        return SceneLoad.WARM if was == step_id else SceneLoad.CACHED if was_cached else SceneLoad.COLD

    def decision(self, step_id: StepId, node_id: NodeId, device_id: str) -> Decision | None:
        """The last one that sent a task of the step to the device."""
        return self.board.decision(step_id, node_id, device_id)

    def prune(self, *, keep: int) -> None:
        """Forget the oldest steps that have nothing ready, until `keep` are left."""
        steps = self.model.steps
        if len(steps) <= keep:
            return
        live = {str(step_id) for step_id, _ in self._groups}
        oldest = sorted(int(name) for name in steps if name not in live)
        for step_id in oldest[: len(steps) - keep]:
            self.model.forget(str(step_id))
            self.board.scenes.forget(StepId(step_id))

    def forget(self) -> None:
        """Another leader may have acted meanwhile: take everything in anew with the next plan."""
        for key in list(self.board.groups()):
            self.board.drop_group(key)
        for node_id in list(self._views):
            self.board.drop_node(node_id)
        self._groups.clear()
        self._views.clear()

    def _follow_nodes(
        self,
        nodes: Sequence[NodeView],
        first: Sequence[Assignment],
        wide: Mapping[StepId, Group],
        now: float,
    ) -> None:
        seen = {view.id for view in nodes}
        for node_id in [node_id for node_id in self._views if node_id not in seen]:
            self.board.drop_node(node_id)
            del self._views[node_id]
        taken: dict[NodeId, list[Use]] = {}
        for assignment in first:
            demand = wide[assignment.step_id].demand
            use = Use(
                device_id=assignment.device_id,
                cpus=demand.cpus,
                memory_mib=demand.memory_mib,
                vram_mib=demand.vram_mib,
            )
            taken.setdefault(assignment.node_id, []).extend([use] * assignment.count)
        for view in nodes:
            if view.id in taken:
                view = replace(view, uses=(*view.uses, *taken[view.id]))
            old = self._views.get(view.id)
            if old == view and not self.board.has_started_on(view.id):
                continue
            if old is None or old.capabilities != view.capabilities:
                for device in view.capabilities.devices:
                    self.model.add_model(model_key(device), rates_of(device))
            self.board.put_node(view, now)
            self._views[view.id] = view

    def _follow_groups(self, groups: Sequence[Group], now: float) -> None:
        seen = {group_key(group) for group in groups}
        for key in [key for key in self._groups if key not in seen]:
            self.board.drop_group(key)
            del self._groups[key]
        for group in groups:
            key = group_key(group)
            if self._groups.get(key) == group and self.board.ready(key) == group.ready:
                continue
            self.model.add_step(str(group.step_id), group.profile, like=group.like or None)
            self.board.put_group(group, now)
            self._groups[key] = group
