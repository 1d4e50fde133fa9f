"""Nodes whose agents run as different users: neither can replace or remove what the other wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from farm.model.ids import NodeId

_KEPT: Final = 8


def also(ran_as: Sequence[int], user_id: int | None) -> list[int]:
    """The user ids that a node's agents ran as, the newest last; None: it does not tell."""
    if user_id is None:
        return list(ran_as)
    return [*(each for each in ran_as if each != user_id), user_id][-_KEPT:]


def remarks(ran_as: Mapping[NodeId, Sequence[int]]) -> dict[NodeId, str]:
    """One line for each node that runs, or once ran, as another user than most nodes do.

    What a node wrote as another user stays that user's when its agent is started again: so does the line,
    until a person takes it back.
    """
    told = Counter(ids[-1] for ids in ran_as.values() if ids)
    if not told:
        return {}
    usual = max(told, key=lambda user_id: (told[user_id], user_id))
    found = {}
    for node_id, ids in ran_as.items():
        before = [user_id for user_id in ids[:-1] if user_id != usual]
        if ids and ids[-1] != usual:
            found[node_id] = (
                f"its agent runs as user id {ids[-1]}, most nodes as {usual}: in shared directories neither "
                "can replace or remove what the other wrote; run all agents as one user"
            )
        elif before:
            found[node_id] = (
                f"its agent ran as user id {before[-1]} before, most nodes run as {usual}: what it wrote "
                f"then they cannot replace or remove; chown it, then `farm undrain {node_id}`"
            )
    return found
