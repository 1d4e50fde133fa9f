"""Limits: counts that the whole farm shares, such as licences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from farm.errors import UserError
from farm.model.ids import JobId, NodeId

LIMIT_PREFIX: Final = "amount.limit."
"""OpenJD amounts of this name are counted over the whole farm: `amount.limit.arnold` = 1 takes one of it."""
MAX_LIMIT: Final = 1_000_000
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,62}")


class LimitScope(StrEnum):
    """What takes of a limit."""

    TASK = "task"
    """Each task that runs, as with a licence for each process."""
    NODE = "node"
    """Each node that runs such tasks, however many, as with a licence for each host."""
    JOB = "job"
    """Each job of which tasks run, however many, as with a floating licence for a scene or a data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    name: str
    amount: int
    """How much of it there is; 0: nothing that needs it starts."""
    per: LimitScope = LimitScope.TASK
    is_from_settings: bool = False
    """The scheduler's settings name it, and say what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What live attempts of one step hold of one limit on one node."""

    limit: str
    amount: int
    """That each of the tasks asked for."""
    node_id: NodeId
    job_id: JobId
    tasks: int = 1


def check_limit_name(name: str) -> str:
    """The name in lower case, as OpenJD compares names. Raises UserError."""
    lower = name.strip().lower().removeprefix(LIMIT_PREFIX)
    if not _NAME.fullmatch(lower):
        raise UserError(
            f"a limit cannot be named {name[:80]!r}: 1 to 63 letters, digits, dots, - and _, a letter first"
        )
    return lower


def limits_needed(amounts: tuple[tuple[str, float], ...]) -> tuple[tuple[str, int], ...]:
    """(limit, how much one task takes of it) of a demand's amounts, rounded up, at least 1."""
    return tuple(
        (name[len(LIMIT_PREFIX) :], max(1, -int(-amount // 1)))
        for name, amount in amounts
        if name.startswith(LIMIT_PREFIX)
    )


def read_limit(name: str, value: object) -> Limit:
    """A limit from the settings: `10`, or `{ amount = 10, per = "node" }`. Raises UserError."""
    name = check_limit_name(name)
    table = value if isinstance(value, Mapping) else {"amount": value}
    strange = sorted(set(table) - {"amount", "per"})
    if strange:
        raise UserError(f"limit {name!r} has no {strange[0]!r}; it has amount and per")
    amount = table.get("amount")
    if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= MAX_LIMIT:
        raise UserError(f"limit {name!r}: the amount must be a whole number from 0 to {MAX_LIMIT:,}")
    try:
        per = LimitScope(str(table.get("per", LimitScope.TASK)))
    except ValueError:
        raise UserError(f"limit {name!r}: per is one of {', '.join(LimitScope)}") from None
    return Limit(name=name, amount=amount, per=per, is_from_settings=True)
