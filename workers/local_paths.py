"""Paths of the farm's messages, as this node has them."""

from __future__ import annotations

from dataclasses import replace

from farm.model.paths import PathRule, map_parameters
from farm.wire.messages import Launch


def as_seen_here(launch: Launch, rules: tuple[PathRule, ...]) -> Launch:
    """The message with paths as this node has them."""
    if not rules:
        return launch
    return replace(
        launch,
        script=replace(launch.script, parameters=map_parameters(launch.script.parameters, rules)),
        orders=tuple(
            replace(order, parameters=map_parameters(order.parameters, rules)) for order in launch.orders
        ),
    )
