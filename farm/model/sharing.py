"""What people say of how jobs share pools: reservations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.errors import UserError

URGENT_FROM = 90
"""The priority from which work is urgent, where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A share of a pool's slots that other work may not take, however long they stay free."""

    pool: str
    share: float
    """0 to 1, of the slots of nodes that take work; rounded up to whole slots, CPU and GPU apart."""
    from_priority: int | None = URGENT_FROM
    """Jobs of this priority and above may take the slots; None: no job for its priority."""
    users: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()

    def is_for(self, *, priority: int, user: str, project: str) -> bool:
        is_urgent = self.from_priority is not None and priority >= self.from_priority
        return is_urgent or user in self.users or (bool(project) and project in self.projects)

    @property
    def whom(self) -> str:
        """For people: "priority 90 and above, project hero"."""
        told = [] if self.from_priority is None else [f"priority {self.from_priority} and above"]
        told += [f"user {user}" for user in self.users] + [f"project {project}" for project in self.projects]
        return ", ".join(told)


def read_reservation(pool: str, value: object) -> Reservation:
    """From the settings: `0.2`, or `{ share = 0.2, from_priority = 80, users = [], projects = ["hero"] }`.

    Raises UserError that names what is wrong.
    """
    what = f"reservation of pool {pool!r}"
    table = dict(value) if isinstance(value, Mapping) else {"share": value}
    strange = sorted(set(table) - {"share", "from_priority", "users", "projects"})
    if strange:
        raise UserError(f"{what} has no {strange[0]!r}; it has share, from_priority, users and projects")
    share = table.get("share")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise UserError(f"{what}: the share must be above 0 and at most 1")
    names = {}
    for key in ("users", "projects"):
        listed = table.get(key, ())
        if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
            raise UserError(f"{what}: {key} must be a list of names")
        names[key] = tuple(listed)
    urgent = table.get("from_priority", None if any(names.values()) else URGENT_FROM)
    if urgent is not None and (isinstance(urgent, bool) or not isinstance(urgent, int)):
        raise UserError(f"{what}: from_priority must be a whole number from 0 to 100")
    return Reservation(pool=pool, share=float(share), from_priority=urgent, **names)
