"""Whether silence means dead nodes or a broken network: leases that run out all at once prove little."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How many nodes can be heard now."""

    silent: int
    """Nodes with attempts whose leases have run out."""
    heard: int
    """Nodes that have spoken lately."""


def is_outage(silence: Silence) -> bool:
    """More nodes fell silent than are heard: a network that broke is likelier than so many deaths at once.

    To wait costs little then. Most of the farm's work would be started again, on the few nodes that are left
    or on none; and when the network is back the nodes go on with what they had.
    """
    return silence.silent > silence.heard
